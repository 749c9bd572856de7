//! `bench losses`: how long the pods of two simulated Windows nodes do without a network after their Host Networking Services lost something.
//!
//! Pods are asked over TCP at their own addresses, from the network namespace of the control plane's host. A pod serves again from the first
//! answer on that is followed by no failure for a while. Time zero is when the last service answers.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};

use crate::figures::Figures;
use crate::process;
use crate::up::{PATIENCE, round, run};

/// Pods on each node.
const PODS: usize = 25;
const NODES: [&str; 2] = ["win01", "win02"];
/// From the services' answer to the last pod's. There is no latency to add: the simulated services have none here.
const LIMIT: Duration = Duration::from_secs(3);
/// A pod that answered for that long serves.
const STEADY: Duration = Duration::from_millis(1500);
const LIST: &str = r#"jsonpath={range .items[*]}{.metadata.name}{" "}{.status.podIP}{"\n"}{end}"#;
/// Fault, what it needs beside being set, and the figure's name.
const CASES: [(&str, &[&str], &str); 6] = [
    ("", &["restart", "--away", "1s", "--wipe"], "everything (wipe)"),
    ("restart-loses-endpoints,count=1", &["restart", "--away", "1s"], "endpoints, by a restart"),
    ("restart-loses-namespaces,count=1", &["restart", "--away", "1s"], "namespaces, by a restart"),
    ("net-new-id,count=1", &[], "the network, to one with another id"),
    ("lost-object", &["endpoints", "_mullion"], "one endpoint each, deleted by somebody"),
    ("lost-object", &["namespaces", "Resources"], "one namespace each, deleted by somebody"),
];

/// What is measured.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The mullion to measure; figures of a release build are the ones that count
    #[arg(long)]
    mullion: PathBuf,
    /// kubectl
    #[arg(long, default_value = "kubectl")]
    kubectl: PathBuf,
}

/// The table's title.
pub fn title() -> String {
    format!("until the last of {} pods serves again; HNS lost", PODS * NODES.len())
}

/// Measures every loss on one cluster, also after one that failed.
pub fn measure(args: &Args, figures: &mut Figures) -> Result<()> {
    let mullion = args.mullion.canonicalize().with_context(|| format!("finding {} failed", args.mullion.display()))?;
    let measure = |kubeconfig: &Path, home: &Path| {
        let bench = Bench { mullion: &mullion, kubectl: &args.kubectl, kubeconfig, home, dir: home.join("dir") };
        let mut failed = Vec::new();
        for (fault, command, name) in CASES {
            match bench.pods().and_then(|()| bench.case(fault, command)) {
                Ok(took) => figures.time(name, took, LIMIT),
                Err(error) => failed.push(format!("losing {name}: {error:#}")),
            }
        }
        if failed.is_empty() { Ok(()) } else { bail!("{}", failed.join("; ")) }
    };
    round(&mullion, &[], measure).map(drop)
}

struct Bench<'a> {
    mullion: &'a Path,
    kubectl: &'a Path,
    kubeconfig: &'a Path,
    home: &'a Path,
    dir: PathBuf,
}

impl Bench<'_> {
    fn kubectl(&self, args: &[&str], stdin: &str) -> Result<String> {
        run(Command::new(self.kubectl).env("KUBECONFIG", self.kubeconfig).env("HOME", self.home).args(args), stdin)
    }

    fn hns(&self, node: &str, args: &[&str]) -> Result<String> {
        run(Command::new(self.mullion).arg("hns").args(args).args(["--node", node, "--dir"]).arg(&self.dir), "")
    }

    /// New pods: a container that has been restarted within ten minutes waits before it starts again, as upstream's does.
    fn pods(&self) -> Result<()> {
        self.kubectl(&["delete", "deployments", "--all", "--timeout=60s"], "")?;
        self.kubectl(&["delete", "pods", "--all", "--grace-period=1", "--timeout=60s"], "")?;
        for node in NODES {
            let deployment = serde_json::json!({
                "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": node},
                "spec": {"replicas": PODS, "selector": {"matchLabels": {"app": node}}, "template": {
                    "metadata": {"labels": {"app": node}},
                    "spec": {"nodeSelector": {"kubernetes.io/hostname": node}, "containers": [{"name": "iis", "image": "microsoft/iis"}]},
                }},
            });
            self.kubectl(&["apply", "-f", "-"], &deployment.to_string())?;
        }
        self.kubectl(&["wait", "--for=condition=Available", "deployments", "--all", "--timeout=120s"], "").map(drop)
    }

    /// One loss on both nodes, and the time until the last pod serves.
    fn case(&self, fault: &str, command: &[&str]) -> Result<Duration> {
        let probe = Probe::start(&self.dir)?;
        self.until_steady(&probe, None)?;
        let made = self.made_endpoints()?;
        for node in NODES {
            match command {
                [list, mark] => {
                    let id = self.some_id(node, list, mark)?;
                    self.hns(node, &["fault", "add", &format!("{fault},id={id},count=1")]).map(drop)?;
                }
                _ => {
                    if !fault.is_empty() {
                        self.hns(node, &["fault", "add", fault])?;
                    }
                    if !command.is_empty() {
                        self.hns(node, command)?;
                    }
                }
            }
        }
        for node in NODES {
            let begin = Instant::now();
            while let Err(error) = self.hns(node, &["list", "networks"]) {
                if begin.elapsed() > PATIENCE {
                    return Err(error.context(format!("the service of {node} does not answer")));
                }
                sleep(Duration::from_millis(20));
            }
        }
        let since = now();
        if !fault.is_empty() {
            self.until_hit()?;
        }
        let took = self.until_steady(&probe, Some(since))?;
        // An endpoint can be back before anybody asks, so that time alone does not say whether anything was lost.
        let repaired = made.iter().zip(self.made_endpoints()?).all(|(before, after)| after > *before);
        if repaired { Ok(took) } else { bail!("a node made no endpoint after the loss") }
    }

    /// How often each node's service was asked for a new endpoint.
    fn made_endpoints(&self) -> Result<[u64; NODES.len()]> {
        let mut counts = [0; NODES.len()];
        for (count, node) in counts.iter_mut().zip(NODES) {
            let counters: serde_json::Value = serde_json::from_str(&self.hns(node, &["counters", "-o", "json"])?)?;
            *count = counters["HcnCreateEndpoint"]["calls"].as_u64().with_context(|| format!("{node} counts no created endpoints: {counters}"))?;
        }
        Ok(counts)
    }

    /// Waits until each fault that was set has hit a call or an object.
    fn until_hit(&self) -> Result<()> {
        let begin = Instant::now();
        for node in NODES {
            loop {
                let set: serde_json::Value = serde_json::from_str(&self.hns(node, &["fault", "list", "-o", "json"])?)?;
                let waits = |fault: &serde_json::Value| fault["struck"].as_u64() == Some(0);
                // One that hits an object at once is not in the list any more.
                if set.as_array().is_some_and(|set| !set.iter().any(waits)) {
                    break;
                }
                if begin.elapsed() > PATIENCE {
                    bail!("a fault of {node} has hit nothing within {PATIENCE:?}: {set}");
                }
                sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// The id of one object that belongs to a pod.
    fn some_id(&self, node: &str, list: &str, mark: &str) -> Result<String> {
        let all: serde_json::Value = serde_json::from_str(&self.hns(node, &["list", list, "-o", "json"])?)?;
        let objects = all.as_array().cloned().unwrap_or_default();
        let of_pod = |object: &&serde_json::Value| match mark {
            "Resources" => object["Resources"].as_array().is_some_and(|all| !all.is_empty()),
            mark => object["Name"].as_str().is_some_and(|name| name.ends_with(mark)),
        };
        let found = objects.iter().find(of_pod).and_then(|object| object["ID"].as_str());
        found.map(str::to_owned).with_context(|| format!("{node} has no {list} of a pod"))
    }

    /// Waits until every pod has served for a while. Answers how long after `since` the last one began to.
    fn until_steady(&self, probe: &Probe, since: Option<Duration>) -> Result<Duration> {
        let begin = Instant::now();
        loop {
            // Replaced pods have other addresses.
            probe.ask(&self.kubectl(&["get", "pods", "-o", LIST], "")?)?;
            let states = probe.states.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let serving: Vec<Duration> = states.values().flatten().copied().collect();
            let last = serving.iter().max().copied().unwrap_or_default();
            if serving.len() == PODS * NODES.len() && now().saturating_sub(last.max(since.unwrap_or_default())) >= STEADY {
                return Ok(since.map_or(Duration::ZERO, |since| last.saturating_sub(since)));
            }
            if begin.elapsed() > PATIENCE {
                bail!("{} of {} pods serve after {PATIENCE:?}", serving.len(), PODS * NODES.len());
            }
            sleep(Duration::from_millis(100));
        }
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// By pod: since when it serves.
type States = BTreeMap<String, Option<Duration>>;

/// This program in the control plane's network namespace.
struct Probe {
    child: Child,
    states: Arc<Mutex<States>>,
}

impl Probe {
    fn start(dir: &Path) -> Result<Self> {
        let pid = process::find(dir, "control-plane").context("the control plane does not run")?.to_string();
        let mut command = Command::new("nsenter");
        command.args(["-t", &pid, "-U", "-n", "--preserve-credentials"]).arg(std::env::current_exe()?).arg("losses-part");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("starting nsenter failed")?;
        let output = child.stdout.take().context("the probe has no output")?;
        let states: Arc<Mutex<States>> = Arc::default();
        let noted = states.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some((pod, since)) = line.split_once(' ') {
                    let since = since.parse().ok().map(Duration::from_millis);
                    noted.lock().unwrap_or_else(PoisonError::into_inner).insert(pod.to_owned(), since);
                }
            }
        });
        Ok(Self { child, states })
    }

    fn ask(&self, pods: &str) -> Result<()> {
        let mut input = self.child.stdin.as_ref().context("the probe has no input")?;
        input.write_all(pods.as_bytes()).context("the probe has ended")
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asks the pods that standard input names (`NAME IP` a line; the last address counts), and prints `NAME MILLISECONDS` when one begins to
/// serve, `NAME -` when one stops.
pub fn part() -> Result<()> {
    let (print, lines) = mpsc::channel::<String>();
    std::thread::spawn(move || lines.iter().for_each(|line| println!("{line}")));
    let addresses: Arc<Mutex<BTreeMap<String, String>>> = Arc::default();
    let mut known = BTreeSet::new();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let Some((pod, ip)) = line.split_once(' ').filter(|(_, ip)| !ip.is_empty()) else { continue };
        addresses.lock().unwrap_or_else(PoisonError::into_inner).insert(pod.to_owned(), ip.to_owned());
        if known.insert(pod.to_owned()) {
            let (pod, addresses, print) = (pod.to_owned(), addresses.clone(), print.clone());
            std::thread::spawn(move || follow(&pod, &addresses, &print));
        }
    }
    Ok(())
}

fn follow(pod: &str, addresses: &Mutex<BTreeMap<String, String>>, print: &mpsc::Sender<String>) {
    let mut serves = false;
    loop {
        let address = addresses.lock().unwrap_or_else(PoisonError::into_inner).get(pod).cloned().unwrap_or_default();
        let begin = now();
        let answers = hostname(&address).is_ok_and(|name| name == pod);
        if answers != serves {
            serves = answers;
            let since = if serves { begin.as_millis().to_string() } else { "-".to_owned() };
            if print.send(format!("{pod} {since}")).is_err() {
                return;
            }
        }
        // Whoever serves is asked rarely: asking takes processor time that the pods need.
        sleep(Duration::from_millis(if serves { 250 } else { 50 }));
    }
}

fn hostname(address: &str) -> Result<String> {
    let wait = Duration::from_millis(300);
    let mut stream = TcpStream::connect_timeout(&SocketAddr::new(address.parse()?, 80), wait)?;
    stream.set_read_timeout(Some(wait))?;
    stream.write_all(b"GET /hostname HTTP/1.1\r\nHost: iis\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text.rsplit("\r\n\r\n").next().unwrap_or_default().trim().to_owned())
}
