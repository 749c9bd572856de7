//! Wiring of `mullion node`: node agent, service proxy and pod network of one node in one process, over one API client.

mod groups;
mod images;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use backoff::Backoff;
use cluster::ApiServer;
use hcn::HcnClient;
use hcn::watch::{Timing, Watch};
use host::{HostFacts, HostRoot, Machine, NodeOs};
use k8s_openapi::api::core::v1::{Namespace, Taint};
use kube::Api;
use kube::api::{ListParams, ObjectList};
use kube::core::PartialObjectMeta;
use kubelet::certificates::identity::{self, Identity};
use kubelet::certificates::manager::Purpose;
use kubelet::certificates::serving::{ServingCertificate, TlsSettings};
use node_config::kubelet::{AuthorizationMode, CgroupDriver, SwapBehavior};
use node_config::node::flags::{self, Options, Program};
use node_config::node::{Complete, Part};
use node_config::{ConfigError, KubeletConfiguration, document};
use service_proxy::StatusServer;
use service_proxy::options::{self, Mode};
use thiserror_ext::AsReport as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::kube_proxy::init_logs;
use super::machine;
use super::notify::Supervisor;
use crate::exit::{Code, Failure};

/// The version that nodes and the API server report: upstream's whose behaviour is followed, and ours after the plus.
pub const VERSION: &str = concat!("v1.36.2+mullion.", env!("CARGO_PKG_VERSION"));

/// Name of the pod network, in CNI and HNS.
pub const NETWORK: &str = "mullion";

/// How often proxy and fabric compare everything with the host.
pub const FULL_PASS: Duration = Duration::from_secs(30);

/// Runs a node until the process is asked to end; pods stay.
pub fn main(program: Program, args: impl IntoIterator<Item = String>) -> Result<(), Failure> {
    let usage = |error: ConfigError| Failure::new(Code::Usage, error);
    let options = Options::parse(program, args).map_err(usage)?;
    if options.flags.help {
        print!("{}", flags::help(program));
        return Ok(());
    }
    if options.flags.version {
        println!("Kubernetes {VERSION}");
        return Ok(());
    }
    let Options { mut config, flags, warnings } = options;
    machine::fill(&mut config);
    let mut complete = config.complete(NETWORK).map_err(usage)?;
    check(&complete).map_err(|error| Failure::new(Code::Usage, error))?;
    init_logs("kubelet", complete.config.kubelet.logging.verbosity, Some(flags.log_file.as_str()).filter(|path| !path.is_empty()))?;
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    for suite in tls(&complete.config.kubelet)?.1 {
        tracing::warn!("tlsCipherSuites: {suite} has no effect: the server has only suites with forward secrecy and authenticated encryption");
    }
    if let Some(name) = std::env::var("CONTAINER_NETWORK").ok().filter(|name| !name.is_empty()) {
        tracing::warn!("{}", super::kubelet::container_network(&name));
    }
    if complete.config.kubelet.tls_cert_file.is_empty() && !complete.config.kubelet.server_tls_bootstrap {
        let dir = machine::cert_dir(&complete.config.node)?;
        machine::self_signed(&mut complete.config, &dir)?;
    }
    machine::warn_without_rights();
    set_priority(&flags.windows_priorityclass)?;
    if flags.windows_service {
        #[cfg(windows)]
        return super::service::run(super::service::KUBELET, move |stop| crate::run_agent(run(&complete, stop))).map_err(Failure::from);
        #[cfg(not(windows))]
        tracing::warn!("--windows-service has no effect: this is no Windows");
    }
    crate::run_agent(run(&complete, crate::end_requested())).map_err(Failure::from)
}

/// Upstream's default is the class that processes have anyway.
fn set_priority(class: &str) -> Result<()> {
    if class.is_empty() {
        return Ok(());
    }
    #[cfg(windows)]
    return host::set_priority_class(class).with_context(|| format!("--windows-priorityclass={class}"));
    #[cfg(not(windows))]
    {
        tracing::warn!("--windows-priorityclass={class} has no effect: this is no Windows");
        Ok(())
    }
}

/// Checks values that only their users understand.
fn check(config: &Complete) -> Result<()> {
    let kubelet = &config.config.kubelet;
    if !config.config.node.without.contains(&Part::Fabric) {
        network(config)?;
    }
    eviction(kubelet, config.config.node.os).context("eviction thresholds")?;
    super::shutdown::periods(kubelet)?;
    reserved(kubelet)?;
    log_rotation(config)?;
    tls(kubelet)?;
    images::check(config)?;
    container_settings(kubelet)?;
    restarts(kubelet).map(drop)
}

/// The node, in the order of its start: API client, watch of HNS, node agent; beside it the cluster's identity, fabric and proxy.
async fn run(config: &Complete, ended: impl Future<Output = ()>) -> Result<()> {
    cluster::install_crypto_provider();
    let node = &config.config.node;
    let runs = |part: Part| !node.without.contains(&part);
    let supervisor = Supervisor::from_env();
    let identity = supervisor.starting("waiting for the node's client certificate: kubectl get csr", identity(config));
    let Identity { client, host, counts, work: identity } = identity.await.context("the node has no identity")?;
    let api = ApiServer::default();
    let (shutdown, gone) = (CancellationToken::new(), CancellationToken::new());
    // One client and one watch for all parts: they share the bound on calls, and agree on whether HNS answers. A node without
    // parts only connects to the API server, on a machine without HNS too.
    let watched = runs(Part::Kubelet) || runs(Part::Fabric) || node.network_policy;
    let hcn = match node.os {
        NodeOs::Windows { .. } if watched || runs(Part::Proxy) => Some(hcn_client(config)?),
        NodeOs::Windows { .. } | NodeOs::Linux => None,
    };
    let watch = hcn.clone().filter(|_| watched).map(|client| Watch::start(client, Timing::default()));
    let (gate, gates) = network_policy::gate();
    let network_gate = node.network_policy.then(|| -> kubelet::NetworkGate { Arc::new(move |pod, ips| Box::pin(gate.clone().opened(pod, ips))) });
    let agent = async {
        if !runs(Part::Kubelet) {
            shutdown.cancelled().await;
            return Ok(());
        }
        let agent = kubelet::Config {
            host_network: watch.as_ref().map(Watch::health),
            hcn: hcn.clone(),
            network_gate,
            shutdown: super::shutdown::shutdown(config, &gone)?,
            client_certificate: counts,
            api_host: host.clone(),
            ..kubelet_config(config, client.clone(), &api)?
        };
        kubelet::run(agent, shutdown.clone()).await.context("the node agent ended")
    };
    let policies = async {
        if node.network_policy {
            let policies = policy_config(config, client.clone(), &api, hcn.clone(), watch.as_ref())?;
            let policies = super::policy::served(policies, network_policy::status_server::BIND_ADDRESS).await;
            let policies = network_policy::Config { gate: Some(gates), ..policies };
            network_policy::run(policies, shutdown.clone().cancelled_owned()).await;
        }
        Ok(())
    };
    let network = run_fabric_and_proxy(config, client.clone(), &api, hcn.clone(), watch.as_ref(), &shutdown);
    let end = async {
        tokio::select! {
            () = ended => {}
            () = gone.cancelled() => tracing::info!("the pods have ended"),
        }
        tracing::info!(node = node.node_name, "ending; pods stay");
        supervisor.stopping();
        shutdown.cancel();
    };
    let work = async { tokio::try_join!(agent, network, policies).map(|_| ()) };
    tokio::pin!(work);
    tokio::pin!(end);
    tokio::select! {
        done = &mut work => return done,
        never = supervisor.clone().keep(health_url(config)) => match never {},
        ended = identity => return ended.map(|never| match never {}).context("the node has no identity any more"),
        () = &mut end => {}
    }
    work.await
}

/// Where this agent says whether it is well.
fn health_url(config: &Complete) -> Option<String> {
    let kubelet = &config.config.kubelet;
    let at = match kubelet.healthz_bind_address {
        address if !address.is_unspecified() => address,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    let has_port = kubelet.healthz_port != 0 && !config.config.node.without.contains(&Part::Kubelet);
    has_port.then(|| format!("http://{}/healthz", SocketAddr::new(at, kubelet.healthz_port)))
}

/// Fabric and proxy, which mark what is theirs with the cluster's identity.
async fn run_fabric_and_proxy(
    config: &Complete,
    client: kube::Client,
    api: &ApiServer,
    hcn: Option<HcnClient>,
    watch: Option<&Watch>,
    shutdown: &CancellationToken,
) -> Result<()> {
    let node = &config.config.node;
    // An agent alone needs no identity of the cluster, and may not be allowed to read it. A node without any part only says whom it reaches.
    let runs = |part: Part| !node.without.contains(&part);
    if runs(Part::Kubelet) && !runs(Part::Fabric) && !runs(Part::Proxy) {
        return Ok(());
    }
    let cluster_uid = tokio::select! {
        uid = cluster_uid(&client) => uid,
        () = shutdown.cancelled() => return Ok(()),
    };
    tracing::info!(node = node.node_name, cluster = cluster_uid, "the API server answers");
    let (facts, mut known) = watch::channel(None);
    let fabric = async {
        if !node.without.contains(&Part::Fabric) {
            let fabric = fabric_config(config, client.clone(), &cluster_uid, hcn.clone())?;
            let fabric = fabric::Config { api: api.clone(), changes: watch.map(Watch::listen), facts: Some(facts.clone()), ..fabric };
            fabric::run(fabric, shutdown.clone().cancelled_owned()).await;
        }
        Ok(())
    };
    let proxy = async {
        if !node.without.contains(&Part::Proxy) {
            // Load balancers of an overlay need an address that follows from the node's pod CIDR.
            let facts = if waits_for_facts(config)? {
                tokio::select! {
                    facts = known.wait_for(Option::is_some) => facts.map(|facts| facts.clone()).unwrap_or_default(),
                    () = shutdown.cancelled() => return Ok(()),
                }
            } else {
                None
            };
            let proxy = serve_proxy_status(config, client.clone(), &cluster_uid, hcn.clone(), facts).await?;
            service_proxy::run(service_proxy::Config { api: api.clone(), ..proxy }, shutdown.clone().cancelled_owned()).await;
        }
        Ok(())
    };
    tokio::try_join!(fabric, proxy).map(|_: ((), ())| ())
}

/// The node's identity at the API server.
async fn identity(config: &Complete) -> Result<Identity> {
    let node = &config.config.node;
    let settings = identity::Settings {
        kubeconfig: node.kubeconfig.clone().into(),
        bootstrap_kubeconfig: Some(PathBuf::from(&node.bootstrap_kubeconfig)).filter(|path| !path.as_os_str().is_empty()),
        cert_dir: machine::cert_dir(node)?,
        node_name: node.node_name.clone(),
        rotates: config.config.kubelet.rotate_certificates,
        is_agent: !node.without.contains(&Part::Kubelet),
    };
    Ok(identity::identity(&settings).await?)
}

/// The policies of this node's pods.
fn policy_config(
    config: &Complete,
    client: kube::Client,
    api: &ApiServer,
    hcn: Option<HcnClient>,
    watch: Option<&Watch>,
) -> Result<network_policy::Config> {
    let backend = match hcn {
        Some(hcn) => network_policy::Backend::Hns { hns: network_policy::hns::Hns::new(hcn), changes: watch.map(Watch::listen) },
        None => super::policy::nftables()?,
    };
    Ok(network_policy::Config {
        client,
        api: api.clone(),
        node_name: config.config.node.node_name.clone(),
        backend,
        full_pass: FULL_PASS,
        status: None,
        metrics: network_policy::metrics::Metrics::default(),
        gate: None,
    })
}

/// The client of this node's HNS.
fn hcn_client(config: &Complete) -> Result<HcnClient> {
    Ok(match config.config.node.hcn.as_str() {
        "" => HcnClient::from_env()?,
        address => HcnClient::connect(address)?,
    })
}

/// The identity of the cluster: the UID of namespace `kube-system`. Waits for an API server that is still starting.
async fn cluster_uid(client: &kube::Client) -> String {
    let namespaces = Api::<Namespace>::all(client.clone());
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
    loop {
        // Listed, not read by name: the proxy's and fabric's role lets nodes list namespaces.
        let only = ListParams::default().fields("metadata.name=kube-system");
        let uid = |list: ObjectList<PartialObjectMeta<Namespace>>| list.items.into_iter().find_map(|namespace| namespace.metadata.uid);
        match namespaces.list_metadata(&only).await.map(uid) {
            Ok(Some(uid)) => return uid,
            Ok(None) => tracing::warn!("the cluster has no namespace kube-system yet"),
            Err(error) => tracing::warn!(error = %error.as_report(), "the cluster's identity cannot be read yet"),
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

fn fabric_config(config: &Complete, client: kube::Client, cluster_uid: &str, hcn: Option<HcnClient>) -> Result<fabric::Config> {
    let (node, kubelet) = (&config.config.node, &config.config.kubelet);
    let attachment = match hcn {
        Some(_) => fabric::Attachment::Windows { adapter: node.adapter.clone(), loopback_dsr: node.loopback_dsr },
        None if cfg!(target_os = "linux") => fabric::Attachment::Linux { bridge: "cni0".to_owned() },
        None => bail!("--os linux needs a Linux machine"),
    };
    let pods = fabric::PodSettings {
        attachment,
        cluster_uid: cluster_uid.to_owned(),
        network_name: NETWORK.to_owned(),
        service_cidrs: node.service_cidr.iter().collect(),
        lans: node.lan.iter().collect(),
        dns_ip: config.cluster_dns.context("the pod network has no --cluster-dns")?,
        cluster_domain: kubelet.cluster_domain.clone(),
        cni_conf_dir: node.cni_conf_dir.clone().into(),
        ipam_dir: Some(node.ipam_dir.as_str()).filter(|dir| !dir.is_empty()).map(PathBuf::from),
        subnet_env: Some(node.flannel_subnet_env.as_str()).filter(|path| !path.is_empty()).map(PathBuf::from),
    };
    let (mode, vxlan) = network(config)?;
    Ok(fabric::Config {
        client,
        api: ApiServer::default(),
        settings: fabric::Settings {
            mode,
            vxlan,
            bgp: bgp(&node.bgp)?,
            node_name: node.node_name.clone(),
            cluster_cidrs: config.cluster_cidr.iter().collect(),
            role: fabric::Role::Node(Box::new(pods)),
        },
        routes: routes()?,
        hcn,
        full_pass: FULL_PASS,
        changes: None,
        status: None,
        facts: None,
    })
}

/// The mode and the tunnels' parameters: of flannel's net-conf.json where there is one, else by the mode's name; an empty one is the default.
fn network(config: &Complete) -> Result<(fabric::Mode, fabric::Vxlan)> {
    let node = &config.config.node;
    let named = match node.network.as_str() {
        "" => None,
        name => Some(name.parse::<fabric::Mode>().context("the member network of NodeConfiguration")?),
    };
    let path = node.flannel_net_conf.as_str();
    if path.is_empty() {
        return Ok((named.unwrap_or_default(), fabric::Vxlan::default()));
    }
    let bytes = std::fs::read(path).with_context(|| format!("cannot read flannel's configuration {path}"))?;
    let net_conf = fabric::flannel::NetConf::parse(&bytes).with_context(|| format!("cannot use flannel's configuration {path}"))?;
    let mode = net_conf.backend.mode();
    if let Some(named) = named.filter(|named| *named != mode) {
        bail!("--network is {named}, but the backend of {path} is {mode}: leave one of the two out");
    }
    if config.cluster_cidr.of(net_conf.network.addr().is_ipv6()) != Some(net_conf.network) {
        bail!("--cluster-cidr is {}, but the Network of {path} is {}: give both the same", config.cluster_cidr, net_conf.network);
    }
    let vxlan = if let fabric::flannel::Backend::Vxlan(vxlan) = net_conf.backend { vxlan } else { fabric::Vxlan::default() };
    Ok((mode, vxlan))
}

/// Settings of BGP, with the passwords of their files.
fn bgp(config: &node_config::node::BgpConfiguration) -> Result<fabric::Bgp> {
    let password = |path: &str| {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read the password of BGP in {path}"))?;
        fabric::mode::bgp::password(&host::decode_text(&bytes)).with_context(|| format!("cannot use the password of BGP in {path}"))
    };
    let mesh = Some(config.mesh_password_file.as_str()).filter(|path| !path.is_empty());
    Ok(fabric::Bgp {
        asn: Some(config.as_number).filter(|number| *number != 0),
        passwords: config.password_files.iter().map(|(peer, path)| Ok((*peer, password(path)?))).collect::<Result<_>>()?,
        mesh_password: mesh.map(password).transpose()?,
        peers: config.peers.clone(),
    })
}

/// Whether the proxy can start only when the pod network exists.
fn waits_for_facts(config: &Complete) -> Result<bool> {
    let node = &config.config.node;
    let given = config.config.kube_proxy.winkernel.source_vip.is_some();
    Ok(node.os.is_windows() && !given && !node.without.contains(&Part::Fabric) && network(config)?.0 == fabric::Mode::Vxlan)
}

/// Serves the proxy's status, and returns its configuration.
async fn serve_proxy_status(
    config: &Complete,
    client: kube::Client,
    cluster_uid: &str,
    hcn: Option<HcnClient>,
    facts: Option<fabric::NetworkFacts>,
) -> Result<service_proxy::Config> {
    let mut proxy = config.config.kube_proxy.clone();
    // An overlay's endpoints carry the MAC of the node's adapter.
    let mac = facts.as_ref().and_then(|_| super::kube_proxy::mac_of(config.node_ip));
    if let Some(facts) = facts {
        proxy.winkernel.source_vip = facts.source_vip;
    }
    let mode = Mode::of(&proxy, hcn.is_some())?;
    let proxy = options::in_effect(proxy, mode, None);
    options::warn_of_gaps(&proxy, mode, false);
    let status = watch::Sender::new(service_proxy::Status::default());
    let server = StatusServer::new(proxy.clone(), mode, status.subscribe());
    server.serve().await?;
    let interface = config.config.node.service_interface.as_str();
    let service_interface = Some(interface).filter(|name| !name.is_empty() && mode == Mode::Userspace);
    let ips: Vec<IpAddr> = config.config.node.node_ip.iter().collect();
    let host = options::Host { ips: &ips, hcn, mac, service_interface, masquerade_leaving: true, ..options::Host::default() };
    let backend = options::backend(&proxy, mode, host)?;
    Ok(service_proxy::Config {
        full_pass: proxy.sync_period.0.max(Duration::from_secs(1)),
        status: Some(status),
        metrics: server.metrics.clone(),
        // The Node's own addresses, which the proxy reads.
        policy: options::policy(&proxy, Vec::new()),
        ..service_proxy::Config::new(client, &config.config.node.node_name, cluster_uid, backend)
    })
}

#[cfg(target_os = "linux")]
pub fn routes() -> Result<Arc<dyn host::Routes>> {
    Ok(Arc::new(host::LinuxRoutes::open()?))
}

#[cfg(windows)]
pub fn routes() -> Result<Arc<dyn host::Routes>> {
    Ok(Arc::new(host::WindowsRoutes))
}

fn kubelet_config(config: &Complete, client: kube::Client, api: &ApiServer) -> Result<kubelet::Config> {
    let (node, kubelet) = (&config.config.node, &config.config.kubelet);
    let facts = match (node.machine_id.as_str(), node.boot_id.as_str()) {
        ("", _) | (_, "") => HostFacts::read(),
        (machine, boot) => HostFacts::simulated(node.os, machine, boot),
    };
    if node.os.is_windows() && kubelet.user_namespaces != Default::default() {
        bail!("invalid configuration: userNamespaces is not supported on Windows; leave it out");
    }
    if node.os.is_windows() && kubelet.single_process_oom_kill {
        bail!("invalid configuration: singleProcessOOMKill is not supported on Windows; leave it out");
    }
    let machine = Machine::read().context("the machine does not say how large it is")?;
    Ok(kubelet::Config {
        client,
        api: api.clone(),
        node_name: node.node_name.clone(),
        os: node.os,
        node_ips: node.node_ip.iter().collect(),
        find_address: node.node_ip_is_found.then(|| -> kubelet::FindAddress {
            let own = machine::OwnAddress::new(&node.node_name);
            Arc::new(move || own.find())
        }),
        cri: runtime(kubelet)?,
        root: Arc::new(host_root(node.os, &node.roots)?),
        root_dir: node.root_dir.clone(),
        facts,
        capacity: capacity(config, &machine)?,
        huge_pages: if is_simulated(config) { BTreeMap::new() } else { machine.huge_pages },
        is_machine: !is_simulated(config),
        reserved: reserved(kubelet)?,
        labels: node.node_labels.clone(),
        taints: taints(config),
        hyper_v_container: kubelet.has_feature("HyperVContainer"),
        eviction: eviction(kubelet, node.os).context("eviction thresholds")?,
        shutdown: None,
        logs: log_rotation(config)?,
        dead_containers: dead_containers(node),
        images: images::collection(kubelet)?,
        image_pulls: images::pulls(kubelet)?,
        image_credentials: images::credentials(config)?,
        registration: registration(config),
        containers: container_settings(kubelet)?,
        groups: groups::settings(kubelet, node.os)?,
        debugging: kubelet.enable_debugging_handlers,
        polls: kubelet::Polls {
            node: kubelet.node_status_update_frequency.0,
            pod: kubelet.sync_frequency.0,
            restart: restarts(kubelet)?,
            ..kubelet::Polls::default()
        },
        static_pods: static_pods(kubelet),
        pod_logs_dir: kubelet.pod_logs_dir.clone(),
        volume_plugin_dir: kubelet.volume_plugin_dir.clone(),
        device_plugins: true,
        system_logs: kubelet::SystemLogs { files: kubelet.enable_system_log_handler, queries: kubelet.enable_system_log_query },
        ids_per_pod: kubelet.user_namespaces.ids_per_pod.0,
        cluster_dns: kubelet.cluster_dns.clone(),
        cluster_domain: kubelet.cluster_domain.clone(),
        resolver: resolver(config)?,
        version: VERSION.to_owned(),
        configuration: document::to_document(kubelet),
        server: kubelet.enable_server.then(|| server(config)).transpose()?,
        healthz: healthz(kubelet)?,
        host_network: None,
        hcn: None,
        network_gate: None,
        client_certificate: None,
        api_host: String::new(),
    })
}

/// The socket of plain health checks; port 0 is none, as upstream.
fn healthz(kubelet: &KubeletConfiguration) -> Result<Option<TcpListener>> {
    if kubelet.healthz_port == 0 {
        return Ok(None);
    }
    let at = SocketAddr::new(kubelet.healthz_bind_address, kubelet.healthz_port);
    TcpListener::bind(at).map(Some).with_context(|| format!("the node agent cannot listen on {at}: end the other node agent of this machine"))
}

/// How the agent registers its Node and keeps it.
fn registration(config: &Complete) -> kubelet::Registration {
    let (node, kubelet) = (&config.config.node, &config.config.kubelet);
    kubelet::Registration {
        make: kubelet.register_node,
        addresses: match has_cloud(config) {
            true => kubelet::AddressSource::Cloud { given: !node.node_ip_is_found },
            false => kubelet::AddressSource::Agent,
        },
        provider_id: kubelet.provider_id.clone(),
        max_images: kubelet.node_status_max_images.try_into().ok(),
        report: kubelet.node_status_report_frequency.0,
        lease_seconds: kubelet.node_lease_duration_seconds.0,
    }
}

/// What holds for all containers.
fn container_settings(kubelet: &KubeletConfiguration) -> Result<kubelet::ContainerSettings> {
    Ok(kubelet::ContainerSettings {
        cgroups: match kubelet.cgroup_driver {
            CgroupDriver::Cgroupfs => kubelet::Cgroups::Files,
            CgroupDriver::Systemd => kubelet::Cgroups::Systemd,
        },
        no_cpu_quota: !kubelet.cpu_cfs_quota,
        single_process_oom_kill: kubelet.single_process_oom_kill,
        seccomp_default: kubelet.seccomp_default,
        unsafe_sysctls: kubelet.allowed_unsafe_sysctls.iter().map(ToString::to_string).collect(),
        cpu_quota_period: quota_period(kubelet)?,
        limited_swap: kubelet.memory_swap.swap_behavior == SwapBehavior::LimitedSwap,
    })
}

/// For how long a limit of `cpu` counts, where that is not the kernel's default.
fn quota_period(kubelet: &KubeletConfiguration) -> Result<Option<Duration>> {
    let period = kubelet.cpu_cfs_quota_period;
    if period == KubeletConfiguration::default().cpu_cfs_quota_period {
        return Ok(None);
    }
    if !kubelet.has_feature("CustomCPUCFSQuotaPeriod") {
        bail!("invalid configuration: cpuCFSQuotaPeriod (--cpu-cfs-quota-period) {period} requires feature gate CustomCPUCFSQuotaPeriod");
    }
    if !(Duration::from_millis(1)..=Duration::from_secs(1)).contains(&period.0) {
        bail!("invalid configuration: cpuCFSQuotaPeriod (--cpu-cfs-quota-period) {period} must be between 1ms and 1sec, inclusive");
    }
    Ok(Some(period.0))
}

/// How long containers that end wait before they start again: at first, and at most (upstream `newCrashLoopBackOff`).
fn restarts(kubelet: &KubeletConfiguration) -> Result<(Duration, Duration)> {
    let given = kubelet.crash_loop_back_off.max_container_restart_period;
    let (first, longest) = if kubelet.has_feature("ReduceDefaultCrashLoopBackOffDecay") { (1, 60) } else { (10, 300) };
    let (first, longest) = (Duration::from_secs(first), Duration::from_secs(longest));
    if !kubelet.has_feature("KubeletCrashLoopBackOffMax") {
        if kubelet.crash_loop_back_off != Default::default() {
            bail!(
                "invalid configuration: FeatureGate KubeletCrashLoopBackOffMax not enabled, CrashLoopBackOff.MaxContainerRestartPeriod must not \
                 be set"
            );
        }
        return Ok((first, longest));
    }
    if !(Duration::from_secs(1)..=Duration::from_secs(300)).contains(&given.0) {
        bail!(
            "invalid configuration: CrashLoopBackOff.MaxContainerRestartPeriod (got: {} seconds) must be set between 1s and 300s",
            given.0.as_secs_f64()
        );
    }
    Ok((first.min(given.0), given.0))
}

/// How long dead containers stay.
fn dead_containers(node: &node_config::NodeConfiguration) -> kubelet::DeadContainers {
    kubelet::DeadContainers {
        min_age: node.minimum_container_ttl_duration.0,
        per_container: node.maximum_dead_containers_per_container.try_into().ok(),
        total: node.maximum_dead_containers.try_into().ok(),
    }
}

fn static_pods(kubelet: &KubeletConfiguration) -> kubelet::StaticPods {
    let headers = kubelet.static_pod_url_header.iter().flat_map(|(name, values)| values.iter().map(|value| (name.clone(), value.clone())));
    kubelet::StaticPods {
        path: kubelet.static_pod_path.clone(),
        file_check: kubelet.file_check_frequency.0,
        url: kubelet.static_pod_url.clone(),
        headers: headers.collect(),
        http_check: kubelet.http_check_frequency.0,
    }
}

/// The server's socket and certificates.
fn server(config: &Complete) -> Result<kubelet::ServerConfig> {
    let kubelet = &config.config.kubelet;
    let at = SocketAddr::new(kubelet.address.unwrap_or(config.node_ip), kubelet.port);
    let listener =
        TcpListener::bind(at).with_context(|| format!("the node agent cannot listen on {at}: end what uses the port or choose another --port"))?;
    let files = Some((PathBuf::from(&kubelet.tls_cert_file), PathBuf::from(&kubelet.tls_private_key_file)));
    let files = files.filter(|(certificate, _)| !certificate.as_os_str().is_empty());
    let certificate = match files {
        files if kubelet.server_tls_bootstrap => {
            let dir = machine::cert_dir(&config.config.node)?;
            machine::make_cert_dir(&dir)?;
            ServingCertificate::Requested(pki::PairStore::open(dir, Purpose::Serving.prefix(), files)?)
        }
        Some((certificate, key)) => ServingCertificate::Files { certificate, key },
        None => bail!("the node agent has no serving certificate: give --tls-cert-file"),
    };
    let client_ca = Some(PathBuf::from(&kubelet.authentication.x509.client_ca_file)).filter(|path| !path.as_os_str().is_empty());
    Ok(kubelet::ServerConfig { listener, certificate, client_ca, tls: tls(kubelet)?.0, access: access(kubelet) })
}

/// Who may use the server.
fn access(kubelet: &KubeletConfiguration) -> kubelet::Access {
    let (authentication, authorization) = (&kubelet.authentication, &kubelet.authorization);
    kubelet::Access {
        tokens: authentication.webhook.enabled,
        anonymous: authentication.anonymous.enabled,
        everything: authorization.mode == AuthorizationMode::AlwaysAllow,
        token: authentication.webhook.cache_ttl.0,
        allowed: authorization.webhook.cache_authorized_ttl.0,
        denied: authorization.webhook.cache_unauthorized_ttl.0,
    }
}

/// Versions and ciphers of the server, with the suites that it does not have.
fn tls(kubelet: &KubeletConfiguration) -> Result<(TlsSettings, Vec<String>)> {
    Ok(TlsSettings::parse(&kubelet.tls_min_version, &kubelet.tls_cipher_suites, &kubelet.tls_curve_preferences)?)
}

/// Whether a cloud's controllers complete the Node.
fn has_cloud(config: &Complete) -> bool {
    config.config.node.cloud_provider == "external"
}

/// Taints of a Node that is registered: those asked for, and upstream's of Nodes that a cloud's controllers complete.
fn taints(config: &Complete) -> Vec<Taint> {
    let asked = config.config.kubelet.register_with_taints.iter();
    let asked = asked.map(|taint| (taint.key.clone(), taint.value.clone(), taint.effect.to_string()));
    let cloud = has_cloud(config).then(|| ("node.cloudprovider.kubernetes.io/uninitialized".to_owned(), "true".to_owned(), "NoSchedule".to_owned()));
    asked
        .chain(cloud)
        .map(|(key, value, effect)| Taint { key, value: Some(value).filter(|value| !value.is_empty()), effect, time_added: None })
        .collect()
}

/// The resolver of pods with `dnsPolicy: Default`. A simulated host asks the cluster's server: it has no other.
fn resolver(config: &Complete) -> Result<kubelet::Resolver> {
    let given = config.config.kubelet.resolv_conf.as_deref();
    let path = match given {
        Some("") => return Ok(kubelet::Resolver::off(&config.config.node.node_ip.iter().collect::<Vec<_>>())),
        // Unless there is a file of that name, as upstream.
        Some(path) if !(cfg!(windows) && path == "Host" && !Path::new(path).is_file()) => path,
        _ if is_simulated(config) => {
            return Ok(kubelet::Resolver { servers: config.cluster_dns.iter().map(ToString::to_string).collect(), ..kubelet::Resolver::default() });
        }
        #[cfg(windows)]
        _ => {
            let (servers, searches) = host::resolver().context("cannot read the machine's DNS servers: give --resolv-conf a file")?;
            return Ok(kubelet::Resolver { servers, searches, ..kubelet::Resolver::default() });
        }
        #[cfg(not(windows))]
        _ => "/etc/resolv.conf",
    };
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read the resolver's file {path}: give another --resolv-conf"))?;
    Ok(kubelet::Resolver { file: path.to_owned(), ..kubelet::Resolver::parse(&text) })
}

fn quantity(what: &str, text: &str) -> Result<kube_rules::Quantity> {
    kube_rules::Quantity::parse(text).with_context(|| format!("{what} {text:?} is no quantity: write it as 8, 500m or 16Gi"))
}

fn log_rotation(config: &Complete) -> Result<kubelet::LogRotation> {
    let kubelet = &config.config.kubelet;
    let size = quantity("--container-log-max-size", &kubelet.container_log_max_size)?.value();
    let max_size = u64::try_from(size).context("--container-log-max-size must not be negative")?;
    let max_files = kubelet.container_log_max_files;
    if max_files < 2 {
        bail!("containerLogMaxFiles is {max_files}: keep at least 2 files");
    }
    Ok(kubelet::LogRotation { max_size, max_files, interval: kubelet.container_log_monitor_interval.0 })
}

/// The container runtime, and what cares for images where that is another program.
fn runtime(kubelet: &KubeletConfiguration) -> Result<cri::Client> {
    let client = cri::Client::connect(&kubelet.container_runtime_endpoint).context("the container runtime endpoint cannot be used")?;
    match kubelet.image_service_endpoint.as_str() {
        "" => Ok(client),
        endpoint => client.with_images(endpoint).context("imageServiceEndpoint cannot be used"),
    }
}

/// Whether the host is a simulated one: then its size is what it declares, and what other programs of the machine use is not its own.
pub(super) fn is_simulated(config: &Complete) -> bool {
    !config.config.node.machine_id.is_empty()
}

/// The node's size: declared, else the machine's.
fn capacity(config: &Complete, machine: &Machine) -> Result<kubelet::Capacity> {
    let (node, kubelet) = (&config.config.node, &config.config.kubelet);
    let declared = |text: &str, simulated: &'static str| match text {
        "" if is_simulated(config) => simulated.to_owned(),
        text => text.to_owned(),
    };
    let (cpu, memory) = (declared(&node.cpu, "8"), declared(&node.memory, "16Gi"));
    let cpu_millis = if cpu.is_empty() { i64::from(machine.processors) * 1000 } else { quantity("--cpu", &cpu)?.milli_value() };
    let memory_bytes = match memory.as_str() {
        "" => machine.memory,
        text => u64::try_from(quantity("--memory", text)?.value()).context("--memory must not be negative")?,
    };
    let by_core = u32::try_from(cpu_millis / 1000).unwrap_or(0).saturating_mul(kubelet.pods_per_core);
    let pods = if kubelet.pods_per_core == 0 { kubelet.max_pods } else { kubelet.max_pods.min(by_core) };
    Ok(kubelet::Capacity { cpu_millis, memory_bytes, pods, ephemeral_storage_bytes: 0 })
}

/// What the system and the node's agents need for themselves.
fn reserved(kubelet: &KubeletConfiguration) -> Result<kube_rules::Amounts> {
    let mut all = kube_rules::Amounts::new();
    for (member, amounts) in [("systemReserved", &kubelet.system_reserved), ("kubeReserved", &kubelet.kube_reserved)] {
        for (resource, amount) in reserved_for(member, amounts)? {
            let sum = all.entry(resource).or_insert(kube_rules::Quantity::from_units(0));
            *sum = kube_rules::Quantity::from_millis(sum.milli_value().saturating_add(amount.milli_value()));
        }
    }
    Ok(all)
}

/// One of these two members.
fn reserved_for(member: &str, amounts: &BTreeMap<String, String>) -> Result<kube_rules::Amounts> {
    let mut all = kube_rules::Amounts::new();
    for (resource, text) in amounts {
        if !matches!(resource.as_str(), "cpu" | "memory" | "ephemeral-storage" | "pid") {
            bail!("{member}.{resource} cannot be reserved: reserve cpu, memory, ephemeral-storage or pid");
        }
        let amount = quantity(&format!("{member}.{resource}"), text)?;
        if amount.value() < 0 {
            bail!("{member}.{resource} must not be negative");
        }
        all.insert(resource.clone(), amount);
    }
    Ok(all)
}

/// When pods are evicted.
fn eviction(kubelet: &KubeletConfiguration, os: NodeOs) -> Result<kubelet::Eviction> {
    let graces = kubelet.eviction_soft_grace_period.iter().map(|(signal, grace)| (signal.clone(), grace.0)).collect();
    let thresholds = kubelet::Eviction::thresholds(&kubelet.eviction_hard.0, &kubelet.eviction_soft, &graces, &kubelet.eviction_minimum_reclaim)?;
    let eviction = kubelet::Eviction {
        thresholds,
        transition: kubelet.eviction_pressure_transition_period.0,
        max_pod_grace: kubelet.eviction_max_pod_grace_period.into(),
        ..kubelet::Eviction::default()
    };
    Ok(if os.is_windows() { eviction } else { eviction.with_allocatable_memory() })
}

pub(super) fn host_root(os: NodeOs, roots: &[String]) -> Result<HostRoot> {
    if !os.is_windows() {
        let [root] = roots else { bail!("a Linux node has one --root, not {}", roots.len()) };
        return Ok(HostRoot::linux(root)?);
    }
    let drives = roots.iter().map(|root| drive(root)).collect::<Result<Vec<_>>>()?;
    Ok(HostRoot::windows(os, drives)?)
}

/// `C=DIR`.
pub fn drive(text: &str) -> Result<(char, PathBuf)> {
    let (letter, dir) = text.split_once('=').with_context(|| format!("drive {text:?} has no directory: write it as C=DIR"))?;
    match letter.chars().collect::<Vec<_>>().as_slice() {
        [letter] if letter.is_ascii_alphabetic() => Ok((letter.to_ascii_uppercase(), dir.into())),
        _ => bail!("{letter:?} is no drive letter: write it as C=DIR"),
    }
}
