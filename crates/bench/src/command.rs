//! The memory of a service proxy as it is run: the command itself, alone.
//!
//! The command is a copy of the program, so that nothing else maps its file; API server and simulated Host Networking Service are processes of
//! other files. The API server is reached over TLS with a client certificate. The share of memory (PSS) is read at rest.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use hcn::{Guid, HostComputeNetwork, NetworkType, Subnet};
use ipnet::IpNet;
use linux_sys::netlink::Rtnl;
use linux_sys::ns::NetNs;

use crate::api::{self, NODE_IP};
use crate::figures::{Amount, Figures};
use crate::process::{Helper, Running};

/// Which programs are measured.
#[derive(Clone, Debug, clap::Args)]
pub struct Programs {
    /// The mullion to measure; figures of a release build are the ones that count
    #[arg(long)]
    pub mullion: PathBuf,
    /// Upstream's kube-proxy for Linux, measured beside ours
    #[arg(long)]
    pub upstream: Option<PathBuf>,
    /// Measure memory alone
    #[arg(long)]
    pub only_memory: bool,
}

impl Programs {
    /// The arguments that say the same.
    pub fn arguments(&self) -> Result<Vec<String>> {
        let text = |path: &Path| path.canonicalize().with_context(|| format!("finding {} failed", path.display()));
        let mut arguments = vec!["--mullion".to_owned(), text(&self.mullion)?.display().to_string()];
        if let Some(upstream) = &self.upstream {
            arguments.extend(["--upstream".to_owned(), text(upstream)?.display().to_string()]);
        }
        arguments.extend(self.only_memory.then(|| "--only-memory".to_owned()));
        Ok(arguments)
    }
}

/// How many Services a proxy serves, and the most that it may take for them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    /// How many Services, with three backends each.
    pub services: usize,
    /// The most, in millions of bytes.
    pub most_mb: f64,
}

/// The sizes of each backend, all of them with a limit.
pub const NFTABLES: [Size; 2] = [Size { services: 2_020, most_mb: 15.0 }, Size { services: 20_000, most_mb: 60.0 }];
pub const HNS: [Size; 2] = [Size { services: 2_020, most_mb: 15.0 }, Size { services: 20_000, most_mb: 60.0 }];

/// How long a proxy is watched at rest.
const REST: Duration = Duration::from_secs(20);
/// The most of a processor that it may take meanwhile, in percent.
const REST_PERCENT: f64 = 0.1;
/// How long a proxy may take until it serves everything.
const PATIENCE: Duration = Duration::from_secs(300);
/// A program that says nothing of itself is at rest when it has not run for so long.
const QUIET: Duration = Duration::from_secs(5);
const METRICS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10249);
const NETWORK: &str = "pods";

/// The processes around a proxy.
pub struct Site {
    directory: tempfile::TempDir,
    _api: Helper,
    services: usize,
}

impl Site {
    /// An API server with so many Services.
    pub fn new(services: usize) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().to_str().context("the directory for temporary files has a strange name")?;
        let mut api = Helper::start(&["proxy-api", &services.to_string(), path])?;
        ensure!(api.line()? == "listening", "the API server did not say that it listens");
        Ok(Self { directory, _api: api, services })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A copy of a program, which no other process maps.
    fn copy(&self, program: &Path, name: &str) -> Result<PathBuf> {
        let to = self.path(name);
        std::fs::copy(program, &to).with_context(|| format!("copying {} failed", program.display()))?;
        std::fs::set_permissions(&to, std::fs::Permissions::from_mode(0o755))?;
        // As an installed program's, its pages are on the disk: the kernel could not let go of others.
        File::open(&to)?.sync_all()?;
        Ok(to)
    }

    /// Starts a copy of `program`; `directories` and what it says go to the site's.
    fn start(&self, program: &Path, name: &str, arguments: &[String]) -> Result<Measured> {
        self.run(self.copy(program, name)?, name, arguments)
    }

    /// Starts `program` itself.
    fn run(&self, program: PathBuf, name: &str, arguments: &[String]) -> Result<Measured> {
        let log = self.path(&format!("{name}.log"));
        let output = File::create(&log)?;
        let mut command = Command::new(&program);
        command.args(arguments).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).env_remove("MULLION_LOG").env_remove("MULLION_HCN");
        let begun = Instant::now();
        let child = command.spawn().with_context(|| format!("starting {} failed", program.display()))?;
        Ok(Measured { child: Running(child), program, log, begun })
    }

    /// Of kube-proxy, whosever it is.
    fn kube_proxy_arguments(&self, mode: &str, node: &str) -> [String; 4] {
        let kubeconfig = format!("--kubeconfig={}", self.path("kubeconfig").display());
        [kubeconfig, format!("--proxy-mode={mode}"), format!("--hostname-override={node}"), "--cluster-cidr=10.0.0.0/12".to_owned()]
    }

    /// Of `mullion`.
    fn proxy_arguments(&self, mode: &str, node: &str) -> Vec<String> {
        std::iter::once("kube-proxy".to_owned()).chain(self.kube_proxy_arguments(mode, node)).collect()
    }

    fn nftables_arguments(&self) -> Vec<String> {
        self.proxy_arguments("nftables", "node-0")
    }
}

/// A program that runs.
struct Measured {
    child: Running,
    program: PathBuf,
    log: PathBuf,
    begun: Instant,
}

impl Measured {
    fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.0.try_wait()? {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            bail!("{} ended with {status}: {}", self.program.display(), log.trim());
        }
        ensure!(self.begun.elapsed() < PATIENCE, "{} does not serve all after {PATIENCE:?}", self.program.display());
        Ok(())
    }

    /// Waits until our proxy serves everything; how long it took.
    fn converged(&mut self, services: usize) -> Result<Duration> {
        loop {
            if let Ok((200, body)) = api::get(METRICS, "/readyz") {
                let health: serde_json::Value = serde_json::from_str(&body)?;
                if health["converged"] == true && health["desired"] == services {
                    return Ok(self.begun.elapsed());
                }
            }
            self.check()?;
            sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the program has answered for its metrics and not run for a while.
    fn settled(&mut self) -> Result<()> {
        let mut last = (self.child.cpu()?, Instant::now());
        let mut answered = false;
        loop {
            sleep(Duration::from_millis(200));
            answered = answered || api::get(METRICS, "/metrics").is_ok();
            self.check()?;
            let cpu = self.child.cpu()?;
            if cpu > last.0 + Duration::from_millis(20) || !answered {
                last = (cpu, Instant::now());
            } else if last.1.elapsed() > QUIET {
                return Ok(());
            }
        }
    }

    /// Asks the program to end, and waits for that.
    fn end(mut self) -> Result<()> {
        self.child.interrupt()?;
        let status = self.child.0.wait()?;
        let log = || std::fs::read_to_string(&self.log).unwrap_or_default();
        ensure!(status.success(), "{} ended with {status}: {}", self.program.display(), log().trim());
        Ok(())
    }

    /// Watches it at rest: its share of a processor.
    fn rest(&self) -> Result<f64> {
        let before = self.child.cpu()?;
        sleep(REST);
        Ok((self.child.cpu()? - before).as_secs_f64() / REST.as_secs_f64() * 100.0)
    }

    /// What its memory is made of.
    fn add_memory(&self, figures: &mut Figures, name: &str, most_mb: f64) -> Result<()> {
        let memory = self.child.memory(&self.program)?;
        figures.at_most(format!("{name}: PSS at rest"), Amount::megabytes(memory.all), most_mb);
        figures.background(format!("{name}: of which pages of its program file"), Amount::megabytes(memory.program));
        figures.background(format!("{name}: the most that was resident (VmHWM)"), Amount::megabytes(memory.peak));
        Ok(())
    }
}

/// `mullion kube-proxy --proxy-mode=nftables`, and upstream's where it is given.
pub fn nftables(figures: &mut Figures, programs: &Programs, size: Size) -> Result<()> {
    let Size { services, most_mb } = size;
    let site = Site::new(services)?;
    let mut ours = site.start(&programs.mullion, "mullion", &site.nftables_arguments())?;
    figures.background_time(format!("{services}: `mullion kube-proxy`, from its start to the last element"), ours.converged(services)?);
    let percent = ours.rest()?;
    ours.add_memory(figures, &format!("{services}: `mullion kube-proxy` alone"), most_mb)?;
    figures.at_most(format!("{services}: its share of a processor at rest, {} s", REST.as_secs()), Amount::percent(percent), REST_PERCENT);
    drop(ours);
    service_proxy::nftables::cleanup()?;
    if let Some(upstream) = &programs.upstream {
        upstreams(figures, &site, upstream)?;
    }
    Ok(())
}

fn upstreams(figures: &mut Figures, site: &Site, upstream: &Path) -> Result<()> {
    let mut arguments = site.kube_proxy_arguments("nftables", "node-0").to_vec();
    // What only the machine's own root may write.
    arguments
        .extend(["--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0"].map(str::to_owned));
    let mut theirs = site.start(upstream, "kube-proxy", &arguments)?;
    theirs.settled()?;
    sleep(REST);
    let memory = theirs.child.memory(&theirs.program)?;
    figures.background(format!("{}: PSS at rest of upstream's kube-proxy, nftables", site.services), Amount::megabytes(memory.all));
    Ok(())
}

/// `mullion kube-proxy --proxy-mode=userspace` for one Service, at 10.96.0.1:80.
pub struct Userspace {
    measured: Measured,
    _site: Site,
}

impl Userspace {
    /// Starts it; returns once it serves.
    pub fn start(programs: &Programs) -> Result<Self> {
        let site = Site::new(1)?;
        let mut arguments = site.proxy_arguments("userspace", "node-0");
        arguments.push("--service-interface=lo".to_owned());
        let mut measured = site.start(&programs.mullion, "mullion", &arguments)?;
        measured.converged(1)?;
        Ok(Self { measured, _site: site })
    }

    /// Its share of memory.
    pub fn memory(&self) -> Result<Amount> {
        Ok(Amount::megabytes(self.measured.child.memory(&self.measured.program)?.all))
    }

    /// How many pipes it has open.
    pub fn pipes(&self) -> Result<usize> {
        let mut names = BTreeSet::new();
        for file in std::fs::read_dir(format!("/proc/{}/fd", self.measured.child.0.id()))? {
            names.extend(std::fs::read_link(file?.path()).ok().filter(|to| to.to_string_lossy().starts_with("pipe:")));
        }
        Ok(names.len())
    }
}

/// `mullion kube-proxy --proxy-mode=kernelspace` over the simulated service of `mullion hns-sim`, with packets.
pub fn hns(figures: &mut Figures, programs: &Programs, size: Size) -> Result<()> {
    let Size { services, most_mb } = size;
    let site = Site::new(services)?;
    let host = Host::start(&site, &programs.mullion)?;
    let mut ours = site.start(&programs.mullion, "mullion", &host.proxy_arguments(&site))?;
    figures.background_time(
        format!("{services}: `mullion kube-proxy` over `mullion hns-sim`, from its start to the last load balancer"),
        ours.converged(services)?,
    );
    sleep(REST);
    ours.add_memory(figures, &format!("{services}: `mullion kube-proxy` alone, HNS"), most_mb)
}

/// How the proxy programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The kernel's nftables.
    Nftables,
    /// A simulated Host Networking Service, with packets.
    Hns,
}

/// `mullion kube-proxy` below another program.
pub struct Watched {
    measured: Measured,
    mode: Mode,
    _host: Option<Host>,
    _site: Site,
}

impl Watched {
    /// Starts it behind these arguments of this program; returns once it serves so many Services.
    pub fn start(mullion: &Path, mode: Mode, services: usize, options: &[String]) -> Result<Self> {
        let site = Site::new(services)?;
        let (host, proxy) = match mode {
            Mode::Nftables => (None, site.nftables_arguments()),
            Mode::Hns => {
                let host = Host::start(&site, mullion)?;
                let arguments = host.proxy_arguments(&site);
                (Some(host), arguments)
            }
        };
        let arguments: Vec<String> = options.iter().cloned().chain([mullion.display().to_string()]).chain(proxy).collect();
        let mut measured = site.run(std::env::current_exe()?, "traced", &arguments)?;
        measured.converged(services)?;
        Ok(Self { measured, mode, _host: host, _site: site })
    }

    /// Reads its metrics, as a monitoring system does.
    pub fn scrape(&self) -> Result<()> {
        api::get(METRICS, "/metrics").map(|_| ())
    }

    /// Ends it, and what it programmed.
    pub fn end(self) -> Result<()> {
        self.measured.end()?;
        match self.mode {
            Mode::Nftables => service_proxy::nftables::cleanup().map(|_| ()).map_err(anyhow::Error::from),
            Mode::Hns => Ok(()),
        }
    }
}

/// A simulated Windows host in this network namespace, which ends with the benchmark.
struct Host {
    socket: PathBuf,
    _simulator: Measured,
    /// The other end of the uplink.
    _lan: NetNs,
}

impl Host {
    fn start(site: &Site, mullion: &Path) -> Result<Self> {
        let rtnl = Rtnl::open()?;
        let lan = NetNs::new_anonymous()?;
        Rtnl::open_in(&lan)?.add_veth("uplink", "eth0", Some(&NetNs::current()?))?;
        let eth0 = rtnl.link("eth0")?.context("the uplink is gone")?.index;
        rtnl.add_addr(eth0, IpNet::new(NODE_IP, 24)?)?;
        rtnl.set_up(eth0)?;
        let socket = site.path("hcn");
        let option = |name: &str, path: &Path| format!("--{name}={}", path.display());
        let arguments = vec![
            "hns-sim".to_owned(),
            "--node=win01".to_owned(),
            "--hns-version=15.5".to_owned(),
            option("netns-dir", &site.path("ns")),
            option("state-dir", &site.path("hns")),
            option("socket", &socket),
            option("admin-socket", &site.path("admin")),
        ];
        let mut simulator = site.start(mullion, "hns-sim", &arguments)?;
        let client = hcn::blocking::Client::connect(&format!("unix:{}", socket.display()))?;
        while client.features().is_err() {
            simulator.check()?;
            sleep(Duration::from_millis(20));
        }
        let subnet = Subnet::new("192.168.4.0/24".parse()?, "192.168.4.1".parse()?);
        client.create(Guid::random(), &HostComputeNetwork::new(NETWORK, NetworkType::L2Bridge, subnet))?;
        Ok(Self { socket, _simulator: simulator, _lan: lan })
    }

    /// Of the proxy of this host. All backends are on other hosts: a pod of this one would need an endpoint that CNI makes.
    fn proxy_arguments(&self, site: &Site) -> Vec<String> {
        let mut arguments = site.proxy_arguments("kernelspace", "another");
        arguments.extend([format!("--hcn=unix:{}", self.socket.display()), format!("--network-name={NETWORK}")]);
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_a_limit() {
        for sizes in [NFTABLES, HNS] {
            assert_eq!(sizes.map(|size| size.services), [2_020, 20_000]);
            assert!(sizes.iter().all(|size| size.most_mb.is_finite() && size.most_mb > 0.0));
        }
    }
}
