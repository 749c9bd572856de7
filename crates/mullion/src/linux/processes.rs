//! The processes of a cluster with their arguments, and the configuration of its nodes. Pure.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use fabric::Mode;
use hcn::HnsVersion;
use kube_rules::NodeOs;
use lab::dir::Dirs;
use lab::lan::SECOND_ADAPTER;
use lab::protocol::{ProcessSpec, Readiness};
use node_config::kube_proxy::ProxyMode;
use node_config::kubelet::{Authentication, FeatureGates, X509};
use node_config::node::Part;
use node_config::node_spec::NodeSpec;
use node_config::{GoDuration, KubeProxyConfiguration, KubeletConfiguration, NetworkList, NetworkName, NodeConfig, NodeConfiguration};
use uuid::Uuid;

use super::cluster_file::{Cluster, Layout};
use super::keys::{HOLLOW_KUBECONFIG, LAN_PORT, ROUTER_KUBECONFIG};

/// Name of the control plane's process.
pub const CONTROL_PLANE_PROCESS: &str = "control-plane";
/// Name of the process of all hollow nodes.
pub const HOLLOW_NODES: &str = "hollow-nodes";
/// Name of the listener that the control plane inherits.
pub const API_LISTENER: &str = "api";
/// The number it inherits it by.
const API_FD: i32 = 3;
/// As kind has it: no pressure by a full disk.
pub const EVICTION_HARD: &str = "memory.available<100Mi,nodefs.available<0%";

/// Agents and plug-ins use the second API of the Host Networking Service, which earlier builds do not have. Their hosts get the service of
/// this build, unless the specification says otherwise.
pub const FIRST_WITH_V2: u32 = 17763;

/// What the list of processes depends on.
pub struct Inputs<'a> {
    pub dirs: &'a Dirs,
    /// Nodes and network mode.
    pub cluster: &'a Cluster,
    /// Addresses.
    pub layout: &'a Layout,
    /// Layers shared by all clusters.
    pub image_cache: &'a std::path::Path,
    /// Names this start of the hosts.
    pub boot: Uuid,
    /// Names the cluster; machines' identities follow from it.
    pub identity: Uuid,
}

impl Inputs<'_> {
    /// Names a node's present boot.
    pub fn boot_id(&self, node: &str) -> String {
        Uuid::new_v5(&self.boot, node.as_bytes()).to_string()
    }
}

/// Arguments as text.
struct Argv(Vec<String>);

impl Argv {
    fn new(command: &str) -> Self {
        Self(vec!["/proc/self/exe".to_owned(), command.to_owned()])
    }

    fn opt(mut self, name: &str, value: impl ToString) -> Self {
        self.0.extend([format!("--{name}"), value.to_string()]);
        self
    }

    fn path(self, name: &str, value: impl AsRef<std::path::Path>) -> Self {
        self.opt(name, value.as_ref().display())
    }

    fn flag(mut self, name: &str, set: bool) -> Self {
        if set {
            self.0.push(format!("--{name}"));
        }
        self
    }
}

/// All processes, in the order of their start.
pub fn list(inputs: &Inputs<'_>) -> Vec<ProcessSpec> {
    let mut all = vec![control_plane(inputs)];
    all.extend((inputs.cluster.network == Mode::L3).then(|| router(inputs)));
    for node in &inputs.cluster.nodes {
        let mut before = Vec::new();
        if node.os.is_windows() {
            let hns = hns_sim(inputs, node);
            before.push(hns.name.clone());
            all.push(hns);
        }
        let mut runtime = container_sim(inputs, node);
        runtime.after = before;
        let mut agent = agent(inputs, node);
        agent.after = vec![CONTROL_PLANE_PROCESS.to_owned(), runtime.name.clone()];
        all.extend([runtime, agent]);
    }
    all.extend((inputs.cluster.hollow > 0).then(|| hollow_nodes(inputs)));
    all
}

/// All hollow nodes, on the control plane's host: they need nothing but the API server.
fn hollow_nodes(inputs: &Inputs<'_>) -> ProcessSpec {
    let dirs = inputs.dirs;
    let argv = Argv::new(HOLLOW_NODES)
        .path("kubeconfig", dirs.dir.join("pki").join(HOLLOW_KUBECONFIG))
        .opt("nodes", inputs.cluster.hollow)
        .opt("identity", inputs.identity)
        .opt("boot", inputs.boot)
        .opt("dns-ip", inputs.layout.addresses.dns_ip);
    let mut process = ProcessSpec::new(HOLLOW_NODES, "cp", argv.0, dirs.log(None, HOLLOW_NODES));
    process.after = vec![CONTROL_PLANE_PROCESS.to_owned()];
    process
}

/// The hosts whose second adapter their HNS takes, as the Windows nodes of the alpha document of 2016 have it.
pub fn two_adapters(cluster: &Cluster) -> Vec<String> {
    let windows = cluster.nodes.iter().filter(|node| node.os.is_windows());
    windows.filter(|_| cluster.network == Mode::Transparent).map(|node| node.name.clone()).collect()
}

fn control_plane(inputs: &Inputs<'_>) -> ProcessSpec {
    let (dirs, addresses) = (inputs.dirs, &inputs.layout.addresses);
    let argv = Argv::new("control-plane")
        .path("pki-dir", dirs.dir.join("pki"))
        .path("store-dir", dirs.dir.join("store"))
        .path("hosts-dir", dirs.dir.join("hosts"))
        .path("scheduler-config", dirs.dir.join("scheduler.yaml"))
        .opt("listen-fd", API_FD)
        .path("ports-socket", dirs.ports_socket())
        .opt("address", inputs.layout.addresses("cp"))
        .opt("port", LAN_PORT)
        .opt("cluster-cidr", addresses.cluster_cidr)
        .opt("node-mask", addresses.node_mask)
        .opt("node-mask-ipv6", addresses.node_mask_ipv6)
        .opt("service-cidr", addresses.service_cidr)
        .opt("dns-ip", addresses.dns_ip)
        .opt("service-node-port-range", addresses.service_node_port_range)
        .opt("network", inputs.cluster.network)
        .opt("hollow", inputs.cluster.hollow)
        .flag("network-policy", inputs.cluster.network_policy);
    let argv = inputs.cluster.audit.options(dirs).into_iter().fold(argv, |argv, (name, value)| argv.opt(name, value));
    let argv = match addresses.load_balancer_cidr {
        Some(cidr) => argv.opt("load-balancer-cidr", cidr),
        None => argv,
    };
    let argv = if inputs.cluster.outside { argv.opt("dns-upstream", SocketAddr::from((lab::outside::DNS, 53))) } else { argv };
    let mut process = ProcessSpec::new(CONTROL_PLANE_PROCESS, "cp", argv.0, dirs.log(None, "control-plane"));
    process.fds = vec![(API_LISTENER.to_owned(), API_FD)];
    process.readiness = Readiness::Notify;
    process
}

/// Keeps the routes to pods on `gw`.
fn router(inputs: &Inputs<'_>) -> ProcessSpec {
    let dirs = inputs.dirs;
    let argv = Argv(vec!["/proc/self/exe".to_owned(), "fabric".to_owned(), "router".to_owned()])
        .path("kubeconfig", dirs.dir.join("pki").join(ROUTER_KUBECONFIG));
    let argv = argv.opt("network", inputs.cluster.network);
    let argv = inputs.layout.addresses.cluster_cidr.iter().fold(argv, |argv, net| argv.opt("cluster-cidr", net));
    let mut process = ProcessSpec::new("router", lab::lan::ROUTER, argv.0, dirs.log(None, "router"));
    process.after = vec![CONTROL_PLANE_PROCESS.to_owned()];
    process
}

fn hns_sim(inputs: &Inputs<'_>, node: &NodeSpec) -> ProcessSpec {
    let (dirs, name) = (inputs.dirs, &node.name);
    let mut switches = Vec::new();
    let version = match (&node.hns, node.os) {
        (Some(hns), _) => {
            let mut parts = hns.split('+').map(str::to_owned);
            let version = parts.next().unwrap_or_default();
            switches.extend(parts);
            version
        }
        (None, NodeOs::Windows { build }) => HnsVersion::of_build(build.max(FIRST_WITH_V2)).to_string(),
        (None, NodeOs::Linux) => HnsVersion::of_build(0).to_string(),
    };
    let socket = dirs.socket(name, "hcn");
    let mut argv = Argv::new("hns-sim")
        .opt("node", name)
        .path("netns-dir", dirs.pod_netns_dir(name))
        .path("state-dir", dirs.host(name).join("hns"))
        .path("socket", &socket)
        .path("admin-socket", dirs.socket(name, "hcn-admin"))
        .opt("hns-version", version);
    for switch in switches {
        argv = argv.opt("switch", switch);
    }
    if two_adapters(inputs.cluster).contains(name) {
        argv = argv.opt("uplink", SECOND_ADAPTER);
    }
    let mut process = ProcessSpec::new(format!("{name}/hns-sim"), name, argv.0, dirs.log(Some(name), "hns-sim"));
    process.readiness = Readiness::Socket(socket);
    process
}

/// The drives of a Windows node, the directory of a Linux node.
fn roots(inputs: &Inputs<'_>, node: &NodeSpec) -> Vec<String> {
    let host = inputs.dirs.host(&node.name);
    if !node.os.is_windows() {
        return vec![host.join("root").display().to_string()];
    }
    let drives = [Some(('C', "c")), node.drive.map(|drive| (drive, "d"))];
    drives.into_iter().flatten().map(|(letter, dir)| format!("{letter}={}", host.join(dir).display())).collect()
}

fn container_sim(inputs: &Inputs<'_>, node: &NodeSpec) -> ProcessSpec {
    let (dirs, name) = (inputs.dirs, &node.name);
    let (socket, host) = (dirs.socket(name, "cri"), dirs.host(name));
    let mut argv = Argv::new("container-sim")
        .opt("node", name)
        .opt("os", node.os)
        .path("socket", &socket)
        .path("state-dir", &host)
        .path("cache-dir", inputs.image_cache)
        .path("netns-dir", dirs.pod_netns_dir(name))
        .path("cni-conf-dir", host.join("cni").join("conf"))
        .path("cni-bin-dir", host.join("cni").join("bin"))
        .opt("processors", node.cpu)
        .flag("no-stand-ins", inputs.cluster.no_stand_ins);
    for mirror in &inputs.cluster.registry_mirrors {
        argv = argv.opt("registry-mirror", mirror);
    }
    for registry in &inputs.cluster.insecure_registries {
        argv = argv.opt("insecure-registry", registry);
    }
    if node.os != NodeOs::Linux {
        argv = argv.opt("hcn", hcn_address(dirs, name)).path("power-dir", dirs.power_dir(name));
    }
    for root in roots(inputs, node) {
        argv = argv.opt("root", root);
    }
    let mut process = ProcessSpec::new(format!("{name}/container-sim"), name, argv.0, dirs.log(Some(name), "container-sim"));
    if node.os != NodeOs::Linux {
        // The plug-ins that it starts find the service here.
        process.env = vec![("MULLION_HCN".to_owned(), hcn_address(dirs, name))];
    }
    process.readiness = Readiness::Socket(socket);
    process
}

fn hcn_address(dirs: &Dirs, node: &str) -> String {
    format!("unix:{}", dirs.socket(node, "hcn").display())
}

/// The configuration file of a node: written at every `up`, since a start of the host has an identity of its own.
pub fn node_config_file(dirs: &Dirs, node: &str) -> PathBuf {
    dirs.host(node).join("node.yaml")
}

/// The configuration of a node.
///
/// # Errors
/// When `cluster.json` holds options that this program does not know.
pub fn node_config(inputs: &Inputs<'_>, spec: &NodeSpec) -> anyhow::Result<NodeConfig> {
    let (dirs, name, addresses) = (inputs.dirs, &spec.name, &inputs.layout.addresses);
    let (pki, host) = (dirs.dir.join("pki"), dirs.host(name));
    let text = |path: PathBuf| path.display().to_string();
    let in_user_space = two_adapters(inputs.cluster).contains(name);
    let node = NodeConfiguration {
        kubeconfig: text(pki.join(format!("{name}.conf"))),
        node_name: name.clone(),
        node_ip: inputs.layout.addresses(name),
        os: spec.os,
        roots: roots(inputs, spec),
        hcn: if spec.os.is_windows() { hcn_address(dirs, name) } else { String::new() },
        loopback_dsr: spec.loopback_dsr,
        service_cidr: addresses.service_cidr,
        lan: inputs.layout.lan(),
        network: inputs.cluster.network.to_string(),
        network_policy: inputs.cluster.network_policy,
        cni_conf_dir: text(host.join("cni").join("conf")),
        ipam_dir: text(host.join("cni").join("ipam")),
        cpu: spec.cpu.to_string(),
        memory: spec.mem.to_string(),
        machine_id: Uuid::new_v5(&inputs.identity, name.as_bytes()).to_string(),
        boot_id: inputs.boot_id(name),
        without: inputs.cluster.without.clone(),
        // A transparent network has no load balancers: the node relays, at addresses that it has itself.
        service_interface: if in_user_space { "lo".to_owned() } else { String::new() },
        ..NodeConfiguration::default()
    };
    let grace = inputs.cluster.shutdown_grace_period;
    let kubelet = KubeletConfiguration {
        tls_cert_file: text(pki.join(format!("{name}-serving.crt"))),
        tls_private_key_file: text(pki.join(format!("{name}-serving.key"))),
        authentication: Authentication { x509: X509 { client_ca_file: text(pki.join("ca.crt")) }, ..Authentication::default() },
        cluster_dns: vec![addresses.dns_ip],
        container_runtime_endpoint: spec.runtime.clone().unwrap_or_else(|| format!("unix://{}", dirs.socket(name, "cri").display())),
        feature_gates: inputs.cluster.feature_gates.parse::<FeatureGates>()?.0,
        shutdown_grace_period: grace,
        // Whole seconds: upstream takes no part of one.
        shutdown_grace_period_critical_pods: GoDuration(Duration::from_secs(grace.0.as_secs() / 3)),
        // The disk is the user's own, as full as they like it: no node of theirs is under pressure.
        eviction_hard: EVICTION_HARD.parse()?,
        image_gc_high_threshold_percent: 100,
        ..KubeletConfiguration::default()
    };
    let kube_proxy = KubeProxyConfiguration {
        cluster_cidr: NetworkList(addresses.cluster_cidr.iter().map(NetworkName::Net).collect()),
        mode: if in_user_space { ProxyMode::Userspace } else { ProxyMode::Unset },
        ..KubeProxyConfiguration::default()
    };
    Ok(NodeConfig { node, kubelet, kube_proxy })
}

/// How long an agent may take to end after its pods.
const AFTER_PODS: Duration = Duration::from_secs(2);

/// The node's name stands on the command line too, for readers of the list of processes.
fn agent(inputs: &Inputs<'_>, node: &NodeSpec) -> ProcessSpec {
    let (dirs, name) = (inputs.dirs, &node.name);
    let argv = Argv::new("node").path("config", node_config_file(dirs, name)).opt("hostname-override", name);
    let grace = inputs.cluster.shutdown_grace_period.0;
    // The agent notes the end of its pods at the API before it ends.
    let power = if grace.is_zero() || inputs.cluster.without.contains(&Part::Kubelet) { Duration::ZERO } else { grace.saturating_add(AFTER_PODS) };
    let power_ms = power.as_millis().try_into().unwrap_or(u64::MAX);
    ProcessSpec { power_ms, ..ProcessSpec::new(format!("{name}/node"), name, argv.0, dirs.log(Some(name), "node")) }
}

#[cfg(test)]
mod tests;
