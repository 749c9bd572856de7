//! Which processes a cluster consists of, with what arguments. Pure.

use std::net::SocketAddr;

use hcn::HnsVersion;
use kube_rules::NodeOs;
use lab::dir::Dirs;
use lab::plan::{CONTROL_PLANE, LAN};
use lab::protocol::{ProcessSpec, Readiness};
use node_config::node_spec::NodeSpec;
use uuid::Uuid;

use super::cluster::{Cluster, Plan};
use super::keys::LAN_PORT;

/// Name of the control plane's process.
pub const CONTROL_PLANE_PROCESS: &str = "control-plane";
/// Name of the listener that the control plane inherits.
pub const API_LISTENER: &str = "api";
/// The number it inherits it by.
const API_FD: i32 = 3;
/// As kind has it: no pressure by a full disk.
const EVICTION_HARD: &str = "memory.available<100Mi,nodefs.available<0%";

/// Agents and plug-ins speak the second API of the Host Networking Service, which earlier builds lack. Their hosts get the service of
/// this build, unless the specification says otherwise.
pub const FIRST_WITH_V2: u32 = 17763;

/// What the list of processes depends on.
pub struct Inputs<'a> {
    /// Paths.
    pub dirs: &'a Dirs,
    /// Nodes and network mode.
    pub cluster: &'a Cluster,
    /// Addresses.
    pub plan: &'a Plan,
    /// Layers shared by all clusters.
    pub image_cache: &'a std::path::Path,
    /// Names this start of the hosts.
    pub boot: Uuid,
    /// Names the cluster; machines' identities follow from it.
    pub identity: Uuid,
    /// Whether stand-ins answer for images that need a real Windows.
    pub stand_ins: bool,
    /// Whether there is a way to the outside.
    pub outside: bool,
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
    all
}

fn control_plane(inputs: &Inputs<'_>) -> ProcessSpec {
    let (dirs, addresses) = (inputs.dirs, &inputs.plan.addresses);
    let argv = Argv::new("control-plane")
        .path("pki-dir", dirs.dir.join("pki"))
        .path("store-dir", dirs.dir.join("store"))
        .path("hosts-dir", dirs.dir.join("hosts"))
        .opt("listen-fd", API_FD)
        .path("ports-socket", dirs.ports_socket())
        .opt("address", CONTROL_PLANE)
        .opt("port", LAN_PORT)
        .opt("cluster-cidr", addresses.cluster_cidr)
        .opt("node-mask", addresses.node_mask)
        .opt("service-cidr", addresses.service_cidr)
        .opt("dns-ip", addresses.dns_ip);
    let argv = if inputs.outside { argv.opt("dns-upstream", SocketAddr::from((lab::outside::DNS, 53))) } else { argv };
    let mut process = ProcessSpec::new(CONTROL_PLANE_PROCESS, "cp", argv.0, dirs.log(None, "control-plane"));
    process.fds = vec![(API_LISTENER.to_owned(), API_FD)];
    process.readiness = Readiness::Notify;
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
    let mut process = ProcessSpec::new(format!("{name}/hns-sim"), name, argv.0, dirs.log(Some(name), "hns-sim"));
    process.readiness = Readiness::Socket(socket);
    process
}

/// `--root` options: the drives of a Windows node, the directory of a Linux node.
fn roots(inputs: &Inputs<'_>, node: &NodeSpec, mut argv: Argv) -> Argv {
    let host = inputs.dirs.host(&node.name);
    if node.os == NodeOs::Linux {
        return argv.path("root", host.join("root"));
    }
    argv = argv.opt("root", format!("C={}", host.join("c").display()));
    match node.drive {
        Some(drive) => argv.opt("root", format!("{drive}={}", host.join("d").display())),
        None => argv,
    }
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
        .flag("no-stand-ins", !inputs.stand_ins);
    for mirror in &inputs.cluster.registry_mirrors {
        argv = argv.opt("registry-mirror", mirror);
    }
    for registry in &inputs.cluster.insecure_registries {
        argv = argv.opt("insecure-registry", registry);
    }
    if node.os != NodeOs::Linux {
        argv = argv.opt("hcn", hcn_address(dirs, name));
    }
    let argv = roots(inputs, node, argv);
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

fn agent(inputs: &Inputs<'_>, node: &NodeSpec) -> ProcessSpec {
    let (dirs, name, addresses) = (inputs.dirs, &node.name, &inputs.plan.addresses);
    let (pki, host) = (dirs.dir.join("pki"), dirs.host(name));
    let address = inputs.plan.address(name).unwrap_or(CONTROL_PLANE);
    let runtime = node.runtime.clone().unwrap_or_else(|| format!("unix://{}", dirs.socket(name, "cri").display()));
    let mut argv = Argv::new("node")
        .path("kubeconfig", pki.join(format!("{name}.conf")))
        .opt("hostname-override", name)
        .opt("node-ip", address)
        .opt("os", node.os)
        .opt("container-runtime-endpoint", runtime)
        .opt("cluster-cidr", addresses.cluster_cidr)
        .opt("service-cidr", addresses.service_cidr)
        .opt("lan", LAN)
        .opt("cluster-dns", addresses.dns_ip)
        .path("cni-conf-dir", host.join("cni").join("conf"))
        .path("ipam-dir", host.join("cni").join("ipam"))
        .path("tls-cert-file", pki.join(format!("{name}-serving.crt")))
        .path("tls-private-key-file", pki.join(format!("{name}-serving.key")))
        .path("client-ca-file", pki.join("ca.crt"))
        .opt("cpu", node.cpu)
        .opt("memory", node.mem)
        .opt("machine-id", Uuid::new_v5(&inputs.identity, name.as_bytes()))
        .opt("boot-id", inputs.boot_id(name))
        // The disk is the user's own, as full as they like it: no node of theirs is under pressure.
        .opt("eviction-hard", EVICTION_HARD);
    if !inputs.cluster.feature_gates.is_empty() {
        argv = argv.opt("feature-gates", &inputs.cluster.feature_gates);
    }
    for part in &inputs.cluster.without {
        argv = argv.opt("without", part);
    }
    if node.os != NodeOs::Linux {
        argv = argv.opt("hcn", hcn_address(dirs, name)).opt("loopback-dsr", node.loopback_dsr);
    }
    let argv = roots(inputs, node, argv);
    ProcessSpec::new(format!("{name}/node"), name, argv.0, dirs.log(Some(name), "node"))
}
