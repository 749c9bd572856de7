//! `bench up`'s second table: pods of the simulated Windows nodes, programs under Wine among them.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use crate::figures::{Amount, Figures};
use crate::process;
use crate::up::{PATIENCE, median, run};

const WINE: &str = "mcr.microsoft.com/windows/nanoserver:ltsc2022";
const STAND_IN: &str = "mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc2022";
/// Pods whose memory is shared out, pods at once on one host, and repetitions of a time.
const TOGETHER: usize = 3;
const MANY: usize = 60;
const TIMES: usize = 5;
/// What pods print when the watch sees them change.
const STATE: &str = r#"jsonpath={.metadata.name} {.status.conditions[?(@.type=="Ready")].status}{"\n"}"#;

/// kubectl, speaking to the cluster that is measured.
pub struct Cluster<'a> {
    pub kubectl: &'a Path,
    /// What it reads.
    pub kubeconfig: &'a Path,
    /// Where its caches go.
    pub home: &'a Path,
    /// Where the cluster's state is.
    pub dir: &'a Path,
}

impl Cluster<'_> {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.kubectl);
        command.env("KUBECONFIG", self.kubeconfig).env("HOME", self.home).args(args);
        command
    }

    fn kubectl(&self, args: &[&str], stdin: &str) -> Result<String> {
        run(&mut self.command(args), stdin)
    }

    /// From the first pod seen to the last Ready, both as a watch reports them.
    fn ready(&self, pods: &[Value]) -> Result<Duration> {
        let watch = Watch::open(self)?;
        self.kubectl(&["create", "-f", "-"], &json!({"apiVersion": "v1", "kind": "List", "items": pods}).to_string())?;
        watch.until_ready(pods.len())
    }

    fn delete(&self) -> Result<()> {
        self.kubectl(&["delete", "pods", "--all", "--grace-period=1", "--timeout=120s"], "").map(drop)
    }

    /// The median of how long kubectl takes, with its own start.
    fn time(&self, args: &[&str]) -> Result<Duration> {
        let once = || {
            let begin = Instant::now();
            self.kubectl(args, "").map(|_| begin.elapsed())
        };
        Ok(median((0..TIMES * 2 + 1).map(|_| once()).collect::<Result<_>>()?))
    }
}

/// `kubectl get pods --watch-only`, ended with this.
struct Watch {
    child: Child,
    lines: Receiver<(Instant, String)>,
}

impl Watch {
    fn open(cluster: &Cluster<'_>) -> Result<Self> {
        let mut child =
            cluster.command(&["get", "pods", "--watch-only", "-o", STATE]).stdout(Stdio::piped()).spawn().context("starting kubectl failed")?;
        let output = child.stdout.take().context("kubectl has no output")?;
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send((Instant::now(), line)).is_err() {
                    return;
                }
            }
        });
        // kubectl does not report when its watch is open.
        thread::sleep(Duration::from_millis(500));
        Ok(Self { child, lines })
    }

    fn until_ready(&self, count: usize) -> Result<Duration> {
        let (mut first, mut ready) = (None, std::collections::BTreeSet::new());
        while ready.len() < count {
            let (at, line) = self.lines.recv_timeout(PATIENCE).with_context(|| format!("{} of {count} pods are Ready", ready.len()))?;
            let begin = *first.get_or_insert(at);
            if let Some(name) = line.strip_suffix(" True") {
                ready.insert(name.to_owned());
                if ready.len() == count {
                    return Ok(at - begin);
                }
            }
        }
        bail!("no pods to wait for")
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Measures on a running cluster.
pub fn measure(cluster: &Cluster<'_>, figures: &mut Figures) -> Result<()> {
    let seconds = Duration::from_secs_f64;
    let singles = |image: &str, argv: &[&str]| -> Result<Duration> {
        let mut times = Vec::new();
        // The first fills caches and does not count.
        for at in 0..=TIMES {
            let time = cluster.ready(&[pod(&format!("one-{at}"), image, argv)])?;
            cluster.delete()?;
            times.extend((at > 0).then_some(time));
        }
        Ok(median(times))
    };
    figures.time("Wine pod, created to Ready", singles(WINE, &["cmd"])?, seconds(0.7));
    figures.time("stand-in pod (IIS), created to Ready", singles(STAND_IN, &[])?, seconds(0.35));
    let many: Vec<Value> = (0..MANY).map(|at| pod(&format!("many-{at}"), STAND_IN, &[])).collect();
    figures.time("60 stand-in pods on one host, created to Ready", cluster.ready(&many)?, seconds(6.0));
    cluster.delete()?;
    let together: Vec<Value> = (0..TOGETHER).map(|at| pod(&format!("wine-{at}"), WINE, &["cmd"])).collect();
    cluster.ready(&together)?;
    let memory = process::of_pods(cluster.dir, "cmd.exe")? * 1024 / TOGETHER as u64;
    figures.at_most("PSS of a Wine pod beyond its program", Amount::megabytes(memory), 25.0);
    let exec = cluster.time(&["exec", "wine-0", "--", "cmd", "/c", "ver"])?;
    figures.time("`kubectl exec` of `cmd /c ver` in a Wine session", exec, seconds(0.12));
    figures.background_time("of which kubectl's own start (`kubectl version --client`)", cluster.time(&["version", "--client"])?);
    cluster.delete()
}

fn pod(name: &str, image: &str, argv: &[&str]) -> Value {
    let mut container = json!({"name": "main", "image": image, "stdin": true});
    if !argv.is_empty() {
        container["command"] = json!(argv);
    }
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"nodeSelector": {"kubernetes.io/hostname": "win01"}, "containers": [container]}
    })
}
