//! `bench cni`: CNI plug-ins as a runtime calls them, process start included, in namespaces of their own.
//!
//! The program starts itself again in new namespaces, so that an ordinary user may run it. What is compared is measured in turn.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use hcn::blocking::Client;
use hcn::{Guid, HnsVersion, HostComputeNamespace, HostComputeNetwork, NetworkType, Subnet};
use hns_sim::Simulator;
use hns_sim::kernel::NoKernel;
use hns_sim::switches::Switches;
use linux_sys::netlink::Rtnl;
use linux_sys::ns::NetNs;
use serde_json::{Value, json};

use crate::figures::{Figures, Report};
use crate::namespaced;
use crate::up::median;

/// Which programs are measured.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The program of the plug-ins; figures of a release build are the ones that count
    #[arg(long)]
    pub cni: PathBuf,
    /// The whole program, measured beside it
    #[arg(long)]
    pub mullion: Option<PathBuf>,
    /// The directory of upstream's plug-ins, measured beside ours
    #[arg(long, default_value = "/usr/lib/cni")]
    pub upstream: PathBuf,
}

/// How many pods each figure is of.
const PODS: usize = 61;
/// How many are connected at once.
const CROWD: usize = 100;
const ADD: Duration = Duration::from_millis(3);
const BEYOND_THE_KERNEL: Duration = Duration::from_micros(1_500);

/// Measures and prints. The exit code says whether a figure is over its limit.
pub fn main(args: &Args) -> Result<()> {
    let path = |path: &Path| path.canonicalize().with_context(|| format!("finding {} failed", path.display()));
    let mut again = vec!["cni-part".to_owned(), "--cni".to_owned(), path(&args.cni)?.display().to_string()];
    if let Some(mullion) = &args.mullion {
        again.extend(["--mullion".to_owned(), path(mullion)?.display().to_string()]);
    }
    again.extend(["--upstream".to_owned(), args.upstream.display().to_string()]);
    namespaced::again(again)
}

/// Everything, within the namespaces.
pub fn part(args: &Args) -> Result<ExitCode> {
    linux_sys::ns::reset_switches()?;
    Rtnl::open()?.set_up(1)?;
    let mut report = Report::resume();
    report.table(&format!("bridge with host-local (median of {PODS})"), |figures| linux(figures, args));
    report.table(&format!("{CROWD} pods at once"), |figures| crowd(figures, args));
    report.table(&format!("win-bridge with host-local, on a model of HNS (median of {PODS})"), |figures| windows(figures, args));
    Ok(report.end())
}

/// A plug-in's program, and the network of its pods.
struct Plugin<'a> {
    program: &'a Path,
    name: &'a str,
    conf: Value,
    env: Vec<(String, String)>,
}

impl Plugin<'_> {
    /// Calls it; what it answers, and how long the call takes from before the program starts until it has ended.
    fn call(&self, command: &str, id: &str, netns: &str) -> Result<(Value, Duration)> {
        let begun = Instant::now();
        let mut child = Command::new(self.program)
            .arg0(self.name)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .envs([("CNI_COMMAND", command), ("CNI_CONTAINERID", id), ("CNI_NETNS", netns), ("CNI_IFNAME", "eth0")])
            .env("CNI_PATH", self.program.parent().unwrap_or(Path::new("/")))
            .envs(self.env.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {} failed", self.program.display()))?;
        child.stdin.take().context("no standard input")?.write_all(self.conf.to_string().as_bytes())?;
        let output = child.wait_with_output()?;
        let took = begun.elapsed();
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "{} {command} of {id}: {text}", self.name);
        Ok((serde_json::from_str(&text).unwrap_or_default(), took))
    }
}

/// Where pods' namespaces and addresses are.
struct Site(tempfile::TempDir);

impl Site {
    fn new() -> Result<Self> {
        Ok(Self(tempfile::tempdir()?))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn bridge<'a>(&self, program: &'a Path, at: u8) -> Plugin<'a> {
        let conf = json!({"cniVersion": "1.0.0", "name": format!("net{at}"), "type": "bridge", "bridge": format!("br{at}"), "isGateway": true,
            "ipam": {"type": "host-local", "dataDir": self.path("ipam"), "ranges": [[{"subnet": format!("10.{at}.0.0/16")}]], "routes": [{"dst": "0.0.0.0/0"}]}});
        Plugin { program, name: "bridge", conf, env: Vec::new() }
    }
}

/// How long a plug-in's calls for pods take, one after the other, each pod in a namespace of its own.
#[derive(Default)]
struct Times {
    add: Vec<Duration>,
    del: Vec<Duration>,
}

fn linux(figures: &mut Figures, args: &Args) -> Result<()> {
    let site = Site::new()?;
    let theirs = args.upstream.join("bridge");
    let mut plugins = vec![("ours", site.bridge(&args.cni, 1))];
    if theirs.exists() {
        plugins.push(("upstream's", site.bridge(&theirs, 2)));
    }
    if let Some(mullion) = &args.mullion {
        plugins.push(("ours, of the whole program", site.bridge(mullion, 3)));
    }
    let bare = site.bridge(&args.cni, 4);
    let mut times: Vec<Times> = plugins.iter().map(|_| Times::default()).collect();
    let mut kernel = Vec::new();
    let rtnl = Rtnl::open()?;
    // The first makes the bridges and does not count.
    for pod in 0..=PODS {
        for ((_, plugin), times) in plugins.iter().zip(&mut times) {
            let netns = site.path("pod");
            let _pod = NetNs::create_at(&netns)?;
            let (add, del) = (plugin.call("ADD", "pod", &netns.display().to_string())?.1, plugin.call("DEL", "pod", &netns.display().to_string())?.1);
            NetNs::remove_at(&netns)?;
            if pod > 0 {
                times.add.push(add);
                times.del.push(del);
            }
        }
        let netns = site.path("bare");
        let _pod = NetNs::create_at(&netns)?;
        let (result, _) = bare.call("ADD", "bare", &netns.display().to_string())?;
        let end = result["interfaces"][1]["name"].as_str().and_then(|name| rtnl.link(name).transpose()).context("no host's end")??;
        let begun = Instant::now();
        rtnl.del_link(end.index)?;
        kernel.push(begun.elapsed());
        bare.call("DEL", "bare", &netns.display().to_string())?;
        NetNs::remove_at(&netns)?;
    }
    let kernel = median(kernel.split_off(1));
    for (at, ((whose, _), Times { add, del })) in plugins.iter().zip(times).enumerate() {
        let (add, del) = (median(add), median(del));
        let beyond = del.saturating_sub(kernel);
        if at == 0 {
            figures.time(format!("ADD, {whose}"), add, ADD);
            figures.time(format!("DEL, {whose}: what it takes longer than the kernel"), beyond, BEYOND_THE_KERNEL);
        } else {
            figures.background_time(format!("ADD, {whose}"), add);
            figures.background_time(format!("DEL, {whose}: what it takes longer than the kernel"), beyond);
        }
    }
    figures.background_time("the kernel's deletion of such a link", kernel);
    Ok(())
}

fn crowd(figures: &mut Figures, args: &Args) -> Result<()> {
    let site = Site::new()?;
    let theirs = args.upstream.join("bridge");
    let mut plugins = vec![("ours", site.bridge(&args.cni, 5))];
    if theirs.exists() {
        plugins.push(("upstream's", site.bridge(&theirs, 6)));
    }
    for (whose, plugin) in &plugins {
        let pods: Vec<PathBuf> = (0..CROWD).map(|pod| site.path(&format!("{whose}{pod}"))).collect();
        let _namespaces: Vec<NetNs> = pods.iter().map(|pod| NetNs::create_at(pod)).collect::<std::io::Result<_>>()?;
        let all = |command: &str| -> Result<(Vec<Value>, Duration)> {
            let begun = Instant::now();
            let answers = std::thread::scope(|scope| {
                let call = |at: usize, pod: &PathBuf| plugin.call(command, &format!("pod{at}"), &pod.display().to_string());
                let threads: Vec<_> = pods.iter().enumerate().map(|(at, pod)| scope.spawn(move || call(at, pod))).collect();
                threads
                    .into_iter()
                    .map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread panicked"))))
                    .collect::<Result<Vec<_>>>()
            })?;
            Ok((answers.into_iter().map(|(answer, _)| answer).collect(), begun.elapsed()))
        };
        let (answers, add) = all("ADD")?;
        let addresses: BTreeSet<String> = answers.iter().map(|answer| answer["ips"][0]["address"].to_string()).collect();
        ensure!(addresses.len() == CROWD, "{whose}: {CROWD} pods have {} addresses", addresses.len());
        let (_, del) = all("DEL")?;
        figures.background_time(format!("ADD, {whose}, until the last has ended; each pod has an address of its own"), add);
        figures.background_time(format!("DEL, {whose}, until the last has ended"), del);
        pods.iter().try_for_each(|pod| NetNs::remove_at(pod))?;
    }
    Ok(())
}

fn windows(figures: &mut Figures, args: &Args) -> Result<()> {
    let site = Site::new()?;
    let kernel = NoKernel { management: Some([10, 240, 0, 12].into()), survived: true };
    let simulator = Simulator::new(Box::new(kernel), Switches::of(HnsVersion::new(15, 5)), None)?;
    let config = hns_sim::server::Config {
        node: "win".to_owned(),
        netns_dir: site.path("compartments"),
        state_dir: site.path("state"),
        socket: site.path("hcn"),
        admin_socket: site.path("admin"),
        hns_version: HnsVersion::new(15, 5),
        uplink: "eth0".to_owned(),
        switches: Vec::new(),
        options: hns_sim::Options::default(),
    };
    hns_sim::server::serve(&simulator, &config)?;
    let client = Client::new(simulator.session());
    let subnet = Subnet::new("10.7.0.0/16".parse()?, "10.7.0.1".parse()?);
    let network = client.create(Guid::random(), &HostComputeNetwork::new("pods", NetworkType::L2Bridge, subnet))?;
    // As the pod network writes it.
    let conf = json!({"cniVersion": "1.0.0", "name": "pods", "type": "win-bridge", "ipMasqNetwork": "10.0.0.0/8",
        "hnsNetwork": network.id.to_string(),
        "ipam": {"type": "host-local", "dataDir": site.path("ipam"), "ranges": [[{"subnet": "10.7.0.0/16", "rangeStart": "10.7.0.3"}]]}});
    let env = vec![("MULLION_HCN".to_owned(), format!("unix:{}", config.socket.display()))];
    let plugin = Plugin { program: &args.cni, name: "win-bridge", conf, env };
    let (mut add, mut calls, mut most) = (Vec::new(), Vec::new(), 0);
    for pod in 0..=PODS {
        let namespace = client.create(Guid::random(), &HostComputeNamespace::default())?.id.to_string();
        simulator.controls().calls.reset();
        let (_, took) = plugin.call("ADD", &format!("pod{pod}"), &namespace)?;
        let counters = simulator.controls().calls.counters();
        let hns = counters.values().map(|counter| counter.micros).sum();
        let asked = counters.iter().filter(|(call, _)| !call.contains("Open") && !call.contains("Close"));
        most = most.max(asked.map(|(_, counter)| counter.calls).sum());
        if pod > 0 {
            calls.push(Duration::from_micros(hns));
            add.push(took.saturating_sub(Duration::from_micros(hns)));
        }
    }
    figures.time("ADD, without what HNS takes", median(add), ADD);
    figures.background_time("what HNS takes for it", median(calls));
    figures.at_most("calls of HNS for it, but for opening and closing", crate::figures::Amount::count(most as usize), 4.0);
    Ok(())
}
