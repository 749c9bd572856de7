//! `mullion kube-proxy`, and the names `kube-proxy` and `proxy`: the service proxy alone, in the place of upstream's.

mod gaps;
mod options;
mod server;
#[cfg(windows)]
mod service;

use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use hcn::HcnClient;
use k8s_openapi::api::core::v1::{Namespace, Node, Service};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use service_proxy::{BackendConfig, Config, Metrics, NodePolicy, NodeRow, StartupTaint, Status};
use tokio::sync::watch;

use crate::cli::NodeArgs;
use crate::exit::Failure;
use options::Options;
use server::{Site, Told};

/// Whether a program of that name is this one.
pub fn is_own_name(name: &str) -> bool {
    let name = name.strip_suffix(".exe").unwrap_or(name);
    matches!(name, "kube-proxy" | "proxy")
}

/// Runs the proxy until it is told to end; what was programmed stays.
pub fn main(args: impl IntoIterator<Item = String>) -> Result<(), Failure> {
    let options = Options::parse(args)?;
    if options.is_on("help") {
        print!("{}", options::help());
        return Ok(());
    }
    if options.is_on("version") {
        println!("Kubernetes {}", crate::app::node::VERSION);
        return Ok(());
    }
    init_logs(options.get("v"), options.given("log-file"))?;
    options.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    if let Some(path) = options.given("write-config-to") {
        std::fs::write(path, options.to_file()?).with_context(|| format!("the configuration cannot be written to {path}"))?;
        return Ok(());
    }
    if options.is_on("init-only") {
        tracing::info!("nothing needs privileges beforehand");
        return Ok(());
    }
    if options.is_on("windows-service") {
        #[cfg(windows)]
        return service::run(options).map_err(Failure::from);
        #[cfg(not(windows))]
        tracing::warn!("--windows-service has no effect: this is no Windows");
    }
    crate::agent_runtime()?.block_on(run(&options, crate::told_to_end())).map_err(Failure::from)
}

fn init_logs(verbosity: &str, file: Option<&str>) -> Result<()> {
    let default = match verbosity.parse::<u32>() {
        Ok(6..) => "info,service_proxy=trace",
        Ok(4..) => "info,service_proxy=debug",
        _ => "info",
    };
    let open = |path| std::fs::File::options().append(true).create(true).open(path).with_context(|| format!("--log-file: {path} cannot be opened"));
    crate::init_logs_with(default, file.map(open).transpose()?);
    Ok(())
}

/// What carries Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Kernel,
    Nftables,
    Userspace,
}

impl Mode {
    fn of(options: &Options) -> Result<Self> {
        let windows = cfg!(windows) || options.given("hcn").is_some() || std::env::var_os("MULLION_HCN").is_some();
        let mode = match options.get("proxy-mode").to_ascii_lowercase().as_str() {
            "" if windows => Self::Kernel,
            "" | "nftables" => Self::Nftables,
            "kernelspace" => Self::Kernel,
            "userspace" => Self::Userspace,
            other @ ("iptables" | "ipvs") => {
                tracing::warn!("there is no {other} backend: nftables serves the same Services");
                Self::Nftables
            }
            other => bail!("unknown --proxy-mode {other:?}: use kernelspace, nftables or userspace"),
        };
        if mode == Self::Nftables && !cfg!(target_os = "linux") {
            bail!("--proxy-mode=nftables needs Linux: use kernelspace or userspace");
        }
        Ok(mode)
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Kernel => "kernelspace",
            Self::Nftables => "nftables",
            Self::Userspace => "userspace",
        }
    }
}

async fn run(options: &Options, ended: impl Future<Output = ()>) -> Result<()> {
    cluster::install_crypto_provider();
    let mode = Mode::of(options)?;
    if mode == Mode::Kernel {
        gaps::of(options).iter().for_each(|gap| tracing::warn!("{gap}"));
    }
    if options.is_on("cleanup") && mode != Mode::Kernel {
        return cleanup(mode);
    }
    let startup_taint = options.given("startup-taint").map(str::parse::<StartupTaint>).transpose().map_err(anyhow::Error::msg)?;
    let client = client(options).await?;
    let name = node_name(options)?;
    let (status, told) = watch::channel(Status::default());
    let told = tell(options, mode, told).await?;
    tokio::pin!(ended);
    let identity = async { tokio::join!(cluster_uid(&client), node_row(&client, &name, options)) };
    let (uid, node) = tokio::select! {
        both = identity => both,
        () = &mut ended => return Ok(()),
    };
    tracing::info!(node = name, cluster = uid, mode = mode.as_str(), "the API server answers");
    let node_ips = node_ips(options, &node)?;
    if options.is_on("cleanup") {
        let settings = hns_settings(options, &node_ips)?;
        let removed = service_proxy::hns::cleanup(&hcn(options)?, uid, settings).await?;
        tracing::info!(removed, "what this proxy made is gone");
        return Ok(());
    }
    let backend = match mode {
        Mode::Kernel => BackendConfig::Hcn { client: hcn(options)?, settings: hns_settings(options, &node_ips)? },
        Mode::Nftables => nftables(options, &node, &node_ips)?,
        Mode::Userspace => userspace(options, &node_ips)?,
    };
    if let Some(taint) = startup_taint {
        tokio::spawn(taint.hold(client.clone(), name.clone(), told.status.clone()));
    }
    let forwarded = options.listen("healthz-bind-address", "healthz-port", 10256)?.map(|at| at.port());
    let policy =
        NodePolicy { node_ips, forwarded_health_port: forwarded.filter(|_| options.is_on("forward-healthcheck-vip")), ..NodePolicy::default() };
    let config = Config {
        full_pass: told.sync_period.max(Duration::from_secs(1)),
        policy,
        status: Some(status),
        metrics: told.metrics.clone(),
        ..Config::new(client, &name, uid, backend)
    };
    let mut changed = Ok(());
    service_proxy::run(config, async {
        tokio::select! {
            () = ended => {}
            path = other_config(options) => changed = Err(anyhow!("{path} was changed: ending, to be started again with what it says now")),
        }
    })
    .await;
    tracing::info!("ending; what was programmed stays");
    changed
}

/// How often the configuration file is looked at.
const LOOK: Duration = Duration::from_secs(5);

/// Ends when the configuration file says something else than at the start, as upstream does.
async fn other_config(options: &Options) -> &str {
    let Some(path) = options.given("config") else { return std::future::pending().await };
    let began = std::fs::read(path).ok();
    loop {
        tokio::time::sleep(LOOK).await;
        // A file that is away is about to come back, or nobody wants another start.
        if let Ok(now) = std::fs::read(path)
            && began.as_ref() != Some(&now)
        {
            return path;
        }
    }
}

/// Answers at the addresses of health and metrics from what `status` says.
async fn tell(options: &Options, mode: Mode, status: watch::Receiver<Status>) -> Result<Arc<Told>> {
    let told = Arc::new(Told {
        status,
        metrics: Metrics::default(),
        mode: mode.as_str(),
        sync_period: options.duration("iptables-sync-period")?,
        config: serde_yaml_ng::from_str(&options.to_file()?)?,
        asked: Default::default(),
    });
    listen(options, &told).await?;
    Ok(told)
}

/// The same for the proxy within `mullion node`, at upstream's addresses. Returns where to tell how far it is, and to count.
pub async fn tell_for_node(args: &NodeArgs) -> Result<(watch::Sender<Status>, Metrics)> {
    let (mode, status) = (if args.os.is_windows() { Mode::Kernel } else { Mode::Nftables }, watch::Sender::new(Status::default()));
    let flags = [
        format!("--hostname-override={}", args.hostname_override),
        format!("--proxy-mode={}", mode.as_str()),
        format!("--bind-address={}", args.node_ip),
        format!("--cluster-cidr={}", args.cluster_cidr),
        format!("--iptables-sync-period={}s", crate::app::node::FULL_PASS.as_secs()),
    ];
    let network = args.os.is_windows().then(|| format!("--network-name={}", crate::app::node::NETWORK));
    let told = tell(&Options::parse(flags.into_iter().chain(network))?, mode, status.subscribe()).await?;
    Ok((status, told.metrics.clone()))
}

async fn listen(options: &Options, told: &Arc<Told>) -> Result<()> {
    let sites = [
        (Site::Metrics, options.listen("metrics-bind-address", "metrics-port", 10249)?),
        (Site::Health, options.listen("healthz-bind-address", "healthz-port", 10256)?),
    ];
    for (site, at) in sites {
        let Some(at) = at else { continue };
        match server::serve(at, site, told.clone()).await {
            Err(error) if !options.is_on("bind-address-hard-fail") => tracing::warn!("{error:#}"),
            done => done?,
        }
    }
    Ok(())
}

/// Removes what a backend made that needs no cluster to know its own.
fn cleanup(mode: Mode) -> Result<()> {
    #[cfg(target_os = "linux")]
    if mode == Mode::Nftables {
        let there = service_proxy::nftables::cleanup()?;
        tracing::info!(there, "the table of nftables is gone");
        return Ok(());
    }
    tracing::info!(mode = mode.as_str(), "nothing outlives the proxy in this mode");
    Ok(())
}

/// A client by kubeconfig, by address alone (the alpha's way), or by the pod's own identity.
async fn client(options: &Options) -> Result<Client> {
    let master = options.given("master").map(options::master_url);
    let config = match (options.given("kubeconfig"), &master) {
        (None, Some(url)) => kube::Config::new(url.parse().with_context(|| format!("--master: {url:?} is no address"))?),
        (None, None) => kube::Config::incluster().context("this is no pod: give --kubeconfig, or --master")?,
        (Some(path), master) => {
            let mut file = Kubeconfig::read_from(path).with_context(|| format!("the kubeconfig {path} cannot be read"))?;
            for cluster in file.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
                cluster.server = master.clone().or(cluster.server.take());
            }
            let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
            config.with_context(|| format!("the kubeconfig {path} cannot be used"))?
        }
    };
    Client::try_from(config).context("the API client cannot be made")
}

fn node_name(options: &Options) -> Result<String> {
    let given = options.given("hostname-override").map(str::to_owned);
    let own = || if cfg!(windows) { std::env::var("COMPUTERNAME").ok() } else { std::fs::read_to_string("/proc/sys/kernel/hostname").ok() };
    // Names of Nodes are lower case, whatever a host calls itself.
    given
        .or_else(own)
        .map(|name| name.trim().to_lowercase())
        .filter(|name| !name.is_empty())
        .context("this host has no name: give --hostname-override")
}

/// The identity of the cluster: the UID of namespace `kube-system`, or, for who may not see that, of Service `kubernetes`.
async fn cluster_uid(client: &Client) -> String {
    let mut backoff = cluster::Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
    loop {
        let namespace = Api::<Namespace>::all(client.clone()).get_metadata("kube-system").await;
        match namespace {
            Ok(object) if object.metadata.uid.is_some() => return object.metadata.uid.unwrap_or_default(),
            Err(kube::Error::Api(status)) if status.code == 403 => {
                let service = Api::<Service>::namespaced(client.clone(), "default").list_metadata(&kube::api::ListParams::default()).await;
                let uid = |list: kube::core::ObjectList<kube::core::PartialObjectMeta<Service>>| {
                    list.items.into_iter().find(|item| item.metadata.name.as_deref() == Some("kubernetes")).and_then(|item| item.metadata.uid)
                };
                match service.map(uid) {
                    Ok(Some(uid)) => return uid,
                    Ok(None) => tracing::warn!("the cluster has no Service kubernetes yet"),
                    Err(error) => tracing::warn!(%error, "the cluster's identity cannot be read yet"),
                }
            }
            Ok(_) => tracing::warn!("namespace kube-system has no UID yet"),
            Err(error) => tracing::warn!(%error, "the cluster's identity cannot be read yet"),
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

/// What the Node object says. With an address given nobody waits for it.
async fn node_row(client: &Client, name: &str, options: &Options) -> NodeRow {
    let given = options.address("bind-address").ok().flatten().is_some_and(|ip| !ip.is_unspecified());
    let mut backoff = cluster::Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
    loop {
        match Api::<Node>::all(client.clone()).get_opt(name).await {
            Ok(Some(node)) => return NodeRow::of(&node),
            Ok(None) if given => return NodeRow::default(),
            Err(error) if given => {
                tracing::warn!(%error, "the Node cannot be read; --bind-address is its address");
                return NodeRow::default();
            }
            Ok(None) => tracing::warn!(node = name, "the Node does not exist yet; --hostname-override names another"),
            Err(error) => tracing::warn!(%error, "the Node cannot be read yet"),
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

fn node_ips(options: &Options, node: &NodeRow) -> Result<Vec<IpAddr>> {
    let given = options.address("bind-address")?.filter(|ip| !ip.is_unspecified());
    let mut ips: Vec<IpAddr> = given.into_iter().collect();
    ips.extend(node.addresses.iter().filter(|ip| Some(**ip) != given));
    if ips.is_empty() {
        bail!("the Node has no address: give --bind-address");
    }
    Ok(ips)
}

fn hcn(options: &Options) -> Result<HcnClient> {
    match options.given("hcn") {
        Some(address) => Ok(HcnClient::connect(address)?),
        None => Ok(HcnClient::from_env()?),
    }
}

fn hns_settings(options: &Options, node_ips: &[IpAddr]) -> Result<service_proxy::hns::Settings> {
    let network = options.given("network-name").map(str::to_owned).or_else(|| std::env::var("KUBE_NETWORK").ok());
    let network =
        network.filter(|name| !name.is_empty()).context("the HNS network of the pods is not named: give --network-name, or set KUBE_NETWORK")?;
    let gate_off = options.list("feature-gates").contains(&"WinDSR=false");
    Ok(service_proxy::hns::Settings {
        dsr: options.is_on("enable-dsr") && !gate_off,
        source_vip: options.address("source-vip")?,
        node_ips: node_ips.to_vec(),
        host_mac: options.given("host-mac").map(str::to_owned).or_else(|| node_ips.first().and_then(|ip| mac_of(*ip))),
        root_endpoint: options.get("root-hnsendpoint-name").to_owned(),
        ..service_proxy::hns::Settings::new(network)
    })
}

/// The MAC of the adapter that has an address, in the form of HNS.
#[cfg(target_os = "linux")]
fn mac_of(ip: IpAddr) -> Option<String> {
    let netlink = linux_sys::netlink::Rtnl::open().ok()?;
    let has = |index| netlink.addrs(index).is_ok_and(|nets| nets.iter().any(|net| net.addr() == ip));
    let link = netlink.links().ok()?.into_iter().find(|link| has(link.index))?;
    let text = std::fs::read_to_string(format!("/sys/class/net/{}/address", link.name)).ok()?;
    Some(text.trim().replace(':', "-").to_uppercase())
}

#[cfg(not(target_os = "linux"))]
fn mac_of(_: IpAddr) -> Option<String> {
    None
}

fn node_ports(options: &Options) -> Result<service_proxy::NodePorts> {
    match options.list("nodeport-addresses").as_slice() {
        [] | ["primary"] => Ok(service_proxy::NodePorts::Primary),
        _ => Ok(service_proxy::NodePorts::Nets(options.networks("nodeport-addresses")?)),
    }
}

#[cfg(target_os = "linux")]
fn nftables(options: &Options, node: &NodeRow, node_ips: &[IpAddr]) -> Result<BackendConfig> {
    use service_proxy::nftables::{Pods, Settings};
    let cidrs = options.networks("cluster-cidr")?;
    let pods = match options.get("detect-local-mode") {
        "NodeCIDR" => Pods::Nets(node.pod_cidrs.clone()),
        "BridgeInterface" => Pods::Interface(options.get("pod-bridge-interface").to_owned()),
        "InterfaceNamePrefix" => Pods::InterfacePrefix(options.get("pod-interface-name-prefix").to_owned()),
        "" | "ClusterCIDR" if cidrs.is_empty() => Pods::Unknown,
        "" | "ClusterCIDR" => Pods::Nets(cidrs),
        other => bail!("unknown --detect-local-mode {other:?}: use ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix"),
    };
    let bit: u32 =
        options.get("iptables-masquerade-bit").parse().ok().filter(|bit| *bit < 32).context("--iptables-masquerade-bit is from 0 to 31")?;
    let settings = Settings::new(node_ips.to_vec(), pods);
    let settings =
        Settings { node_ports: node_ports(options)?, masquerade_all: options.is_on("masquerade-all"), masquerade_mark: 1 << bit, ..settings };
    Ok(BackendConfig::Nftables(settings))
}

#[cfg(not(target_os = "linux"))]
fn nftables(_: &Options, _: &NodeRow, _: &[IpAddr]) -> Result<BackendConfig> {
    bail!("--proxy-mode=nftables needs Linux: use kernelspace or userspace")
}

fn userspace(options: &Options, node_ips: &[IpAddr]) -> Result<BackendConfig> {
    let named = options.given("service-interface").map(str::to_owned).or_else(|| std::env::var("INTERFACE_TO_ADD_SERVICE_IP").ok());
    let interface: Option<Arc<dyn host::Addresses>> = match named.filter(|name| !name.is_empty()) {
        #[cfg(target_os = "linux")]
        Some(name) => Some(Arc::new(host::LinuxAddresses::open(&name)?)),
        #[cfg(windows)]
        Some(name) => Some(Arc::new(host::WindowsAddresses::open(&name)?)),
        None => {
            tracing::warn!("no interface gets Services' addresses, so only node ports are served: give --service-interface");
            None
        }
    };
    Ok(BackendConfig::Userspace(service_proxy::userspace::Settings {
        interface,
        node_ips: node_ips.to_vec(),
        node_ports: node_ports(options)?,
        pods: options.networks("cluster-cidr")?,
        udp_idle: options.duration("udp-timeout")?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_upstreams_programs_are_ours() {
        for name in ["kube-proxy", "kube-proxy.exe", "proxy.exe", "proxy"] {
            assert!(is_own_name(name), "{name}");
        }
        assert!(!is_own_name("mullion") && !is_own_name("proxyd"));
    }

    #[test]
    fn settings_follow_the_flags() {
        let parse = |line: &str| Options::parse(line.split_whitespace().map(str::to_owned)).unwrap();
        let ips = ["10.0.0.5".parse().unwrap()];
        let settings = hns_settings(&parse("--network-name=pods --source-vip=10.244.1.2 --host-mac=00-15-5D-00-00-01"), &ips).unwrap();
        assert!(settings.dsr, "direct server return is on unless somebody says no");
        assert_eq!((settings.network.as_str(), settings.root_endpoint.as_str()), ("pods", "cbr0"));
        assert!(!hns_settings(&parse("--network-name=pods --enable-dsr=false"), &ips).unwrap().dsr);
        assert!(!hns_settings(&parse("--network-name=pods --feature-gates=WinOverlay=true,WinDSR=false"), &ips).unwrap().dsr);
        let row = NodeRow { addresses: vec!["10.0.0.9".parse().unwrap()], ..NodeRow::default() };
        let first = |line: &str| node_ips(&parse(line), &row).unwrap()[0].to_string();
        assert_eq!([first("--bind-address=10.0.0.5"), first("--bind-address=0.0.0.0"), first("")], ["10.0.0.5", "10.0.0.9", "10.0.0.9"]);
        assert!(node_ips(&parse(""), &NodeRow::default()).is_err());
        assert_eq!(Mode::of(&parse("--proxy-mode=userspace")).unwrap(), Mode::Userspace);
        assert!(Mode::of(&parse("--proxy-mode=fast")).is_err());
    }
}
