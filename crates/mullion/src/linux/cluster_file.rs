//! The cluster's description, `DIR/cluster.json`, and the layout of DIR.
//!
//! ```text
//! DIR/cluster.json   specification, addresses, format version
//! DIR/pki, DIR/store control plane
//! DIR/hosts/NODE/    c, d (drives) or root; hns, cni, images, log
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use fabric::Mode;
use hcn::{HnsVersion, SupportedFeatures};
use host::{HostError, HostRoot};
use ipnet::IpNet;
use kube_rules::NodeOs;
use lab::dir::{Dirs, Env};
use lab::error::LabError;
use lab::lan::{self, CONTROL_PLANE, Host, LAN, LAN_IPV6, LanFull};
use node_config::addresses::{AddressError, AddressOptions};
use node_config::node::Part;
use node_config::node_spec::{NodeSpec, SpecError};
use node_config::{Families, GoDuration, OfFamily};
use serde::{Deserialize, Serialize};

use super::audit::AuditArgs;
use super::cli::DirArgs;

/// The format of `cluster.json` that this program writes, and the newest that it reads.
///
/// | format | differences |
/// | --- | --- |
/// | 1 | without name, port, kubeconfig, outside and stand-ins |
/// | 2 | keeps every option of `up` |
pub const FORMAT: u32 = 2;

/// Why DIR's cluster cannot be described or used. Each message is one line with the way out.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// Wrong node specification.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// Wrong address options.
    #[error(transparent)]
    Addresses(#[from] AddressError),
    /// Written by a newer Mullion.
    #[error("{} is of format {found}, this mullion reads up to {known}: use a newer mullion or another --dir", .dir.display())]
    NewerFormat {
        dir: PathBuf,
        /// Its format.
        found: u32,
        /// The newest that is known.
        known: u32,
    },
    /// DIR holds a cluster of another specification.
    #[error(
        "cannot change {option} of the cluster in {}: {reason}, and it was made with {option} {held}; leave {option} out to resume it, or choose another --dir for another cluster",
        .dir.display()
    )]
    OtherCluster {
        dir: PathBuf,
        /// The option that differs.
        option: &'static str,
        /// What the cluster was made with.
        held: String,
        /// Why it stays.
        reason: &'static str,
    },
    /// Two address families on a network that carries one.
    #[error(
        "--network {network} carries IPv4 alone ({reason}), and --cluster-cidr {cluster_cidr} has two address families: use host-gateway, l3 or bgp"
    )]
    OneFamily {
        network: Mode,
        cluster_cidr: Families<IpNet>,
        /// Why it does.
        reason: &'static str,
    },
    /// Pods of a node have no address of the primary family, and the cluster's DNS has one of it.
    #[error(
        "cannot run the node {node} in a cluster with IPv6 as its primary family: its Host Networking Service has no IPv6 for pods, so they would not reach the cluster's DNS; write the IPv4 network first in --cluster-cidr and --service-cidr, or give the node build 20348 or later"
    )]
    PrimaryFamily { node: String },
    /// A node is called as a hollow node is.
    #[error("cannot run hollow nodes beside the node {node}: a hollow node has that name; leave --hollow out, or choose another --dir")]
    HollowName { node: String },
    /// Addresses of hollow nodes are used otherwise.
    #[error("cannot run hollow nodes: {option} {net} overlaps their network {own}; leave --hollow out, or choose another network")]
    HollowNetwork {
        option: &'static str,
        net: IpNet,
        /// Of hollow nodes or their pods.
        own: IpNet,
    },
    /// Too many nodes for the LAN.
    #[error(transparent)]
    Lan(#[from] LanFull),
    /// DIR is not to be deleted.
    #[error("cannot delete {}: {reason}", .dir.display())]
    Delete {
        dir: PathBuf,
        /// Why, and the way out.
        reason: String,
    },
    /// The lab's own reason.
    #[error(transparent)]
    Lab(#[from] LabError),
}

/// Which networks and hosts there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Validated options.
    pub addresses: AddressOptions,
    /// `cp` and the nodes, in the order of the specification. `gw` is the bridge's own host.
    pub hosts: Vec<Host>,
}

impl Layout {
    /// Gives each node an address: the one it had (`known`), else the first free one.
    ///
    /// # Errors
    /// One line that names the option and the way out.
    pub fn new(nodes: &[NodeSpec], addresses: &AddressOptions, known: &BTreeMap<String, Ipv4Addr>) -> Result<Self, ClusterError> {
        addresses.check(nodes.len(), &[IpNet::V4(LAN), IpNet::V6(LAN_IPV6)])?;
        Ok(Self { addresses: addresses.clone(), hosts: lan::hosts(nodes.iter().map(|node| node.name.as_str()), known)? })
    }

    /// The addresses of a host on the LAN, the primary family's first; none of a host that is not there.
    pub fn addresses(&self, host: &str) -> Families<IpAddr> {
        let Some(host) = self.hosts.iter().find(|h| h.name == host) else { return Families::default() };
        self.of_each_family(|ipv6| if ipv6 { lan::ipv6(host.address).into() } else { host.address.into() })
    }

    /// The control plane's address of one family.
    pub fn control_plane(&self, ipv6: bool) -> IpAddr {
        if ipv6 { lan::ipv6(CONTROL_PLANE).into() } else { CONTROL_PLANE.into() }
    }

    /// The nodes' networks, the primary family's first.
    pub fn lan(&self) -> Families<IpNet> {
        self.of_each_family(|ipv6| if ipv6 { IpNet::V6(LAN_IPV6) } else { IpNet::V4(LAN) })
    }

    fn of_each_family<T: OfFamily>(&self, one: impl Fn(bool) -> T) -> Families<T> {
        // Of different families, as the networks of pods are.
        Families::new(self.addresses.cluster_cidr.iter().map(|net| one(net.addr().is_ipv6()))).unwrap_or_default()
    }
}

/// The cluster of DIR, as `cluster.json` keeps it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cluster {
    /// Version of this format.
    pub format: u32,
    /// Its name in kubeconfigs; empty in files of format 1.
    #[serde(default)]
    pub name: String,
    pub nodes: Vec<NodeSpec>,
    /// How many hollow nodes there are beside them.
    #[serde(default)]
    pub hollow: u32,
    /// The mode of the pod network.
    #[serde(with = "by_name")]
    pub network: Mode,
    pub addresses: AddressOptions,
    /// Switches of the node agents, as `HyperVContainer=true`.
    #[serde(default)]
    pub feature_gates: String,
    /// How long pods may take to end before their hosts do; 0 for not at all.
    #[serde(default)]
    pub shutdown_grace_period: GoDuration,
    /// Where images are asked for first, as `docker.io=http://10.0.0.1:5000`.
    #[serde(default)]
    pub registry_mirrors: Vec<String>,
    /// Registries without TLS.
    #[serde(default)]
    pub insecure_registries: Vec<String>,
    /// Parts that the node agents leave out, as `proxy`.
    #[serde(default)]
    pub without: Vec<Part>,
    /// The API server's port on 127.0.0.1; `None` before the first start, and in files of format 1.
    #[serde(default)]
    pub port: Option<u16>,
    /// A file that gets the administrator's kubeconfig too.
    #[serde(default)]
    pub kubeconfig: Option<PathBuf>,
    /// Whether pods reach what the machine reaches.
    #[serde(default)]
    pub outside: bool,
    /// Whether NetworkPolicies are put into effect.
    #[serde(default)]
    pub network_policy: bool,
    /// Whether images that only a stand-in could answer for are refused.
    #[serde(default)]
    pub no_stand_ins: bool,
    /// How the audit log is written.
    #[serde(default)]
    pub audit: AuditArgs,
    /// The nodes' addresses on the LAN: they stay when the cluster is resumed.
    pub node_addresses: BTreeMap<String, Ipv4Addr>,
}

/// A mode by its name.
mod by_name {
    use super::Mode;

    pub fn serialize<S: serde::Serializer>(mode: &Mode, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(mode)
    }

    pub fn deserialize<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Mode, D::Error> {
        <String as serde::Deserialize>::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Options of `up`; `None` takes what DIR remembers, or the default.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Requested {
    /// `--nodes`.
    pub nodes: Option<Vec<NodeSpec>>,
    /// `--hollow`.
    pub hollow: Option<u32>,
    /// `--network`.
    pub network: Option<Mode>,
    /// `--cluster-cidr` and the like.
    pub addresses: Option<AddressOptions>,
    /// `--feature-gates`.
    pub feature_gates: Option<String>,
    /// `--shutdown-grace-period`.
    pub shutdown_grace_period: Option<GoDuration>,
    /// `--registry-mirror`; those given replace all that are remembered.
    pub registry_mirrors: Option<Vec<String>>,
    /// `--insecure-registry`, alike.
    pub insecure_registries: Option<Vec<String>>,
    /// `--without`, alike.
    pub without: Option<Vec<Part>>,
    /// `--name`.
    pub name: Option<String>,
    /// `--kubeconfig`; an empty path forgets the one that is remembered.
    pub kubeconfig: Option<PathBuf>,
    /// `--outside`.
    pub outside: Option<bool>,
    /// `--network-policy`.
    pub network_policy: Option<bool>,
    /// `--no-stand-ins`.
    pub no_stand_ins: Option<bool>,
    /// `--audit-log-path` and the like.
    pub audit: AuditArgs,
}

impl Cluster {
    /// What DIR remembers; `None` for a new one.
    ///
    /// # Errors
    /// [`ClusterError::NewerFormat`], [`LabError::Damaged`].
    pub fn load(dirs: &Dirs) -> Result<Option<Self>, ClusterError> {
        let path = dirs.dir.join("cluster.json");
        let text = match fs::read_to_string(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(LabError::file("read", &path))?,
        };
        let damaged = |e: serde_json::Error| LabError::Damaged { path: path.clone(), reason: e.to_string() };
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        // The format first: a newer one may have anything else in other places.
        let Format { format } = serde_json::from_str(&text).map_err(damaged)?;
        if format > FORMAT {
            return Err(ClusterError::NewerFormat { dir: dirs.dir.clone(), found: format, known: FORMAT });
        }
        Ok(serde_json::from_str(&text).map(Some).map_err(damaged)?)
    }

    /// What DIR remembers, checked against what is requested now, with a plan of its addresses.
    ///
    /// # Errors
    /// [`ClusterError::OtherCluster`] when they differ; address errors.
    pub fn merge(known: Option<Self>, requested: Requested, default_nodes: &[NodeSpec], dirs: &Dirs) -> Result<(Self, Layout), ClusterError> {
        let list = |nodes: &[NodeSpec]| nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        if let Some(known) = &known {
            let refuse = |option, held: &dyn ToString, reason| {
                Err(ClusterError::OtherCluster { dir: dirs.dir.clone(), option, held: held.to_string(), reason })
            };
            if requested.nodes.as_ref().is_some_and(|n| *n != known.nodes) {
                return refuse("--nodes", &list(&known.nodes), "its nodes' addresses, disks and keys are made for them");
            }
            if requested.network.as_ref().is_some_and(|n| *n != known.network) {
                return refuse("--network", &known.network, "its nodes' routes are made for it");
            }
            let (held, asked) = (&known.addresses, requested.addresses.as_ref().unwrap_or(&known.addresses));
            if asked.cluster_cidr != held.cluster_cidr {
                return refuse("--cluster-cidr", &held.cluster_cidr, "its nodes have their pod networks out of it");
            }
            if asked.node_mask != held.node_mask {
                return refuse("--node-mask", &held.node_mask, "its nodes have pod networks of that size");
            }
            if asked.node_mask_ipv6 != held.node_mask_ipv6 {
                return refuse("--node-mask-ipv6", &held.node_mask_ipv6, "its nodes have pod networks of that size");
            }
            if asked.service_cidr != held.service_cidr {
                return refuse("--service-cidr", &held.service_cidr, "its Services have their ClusterIPs out of it");
            }
            if asked.dns_ip != held.dns_ip {
                return refuse("--dns-ip", &held.dns_ip, "the Service kube-dns and its pods have that address");
            }
            if asked.service_node_port_range != held.service_node_port_range {
                return refuse("--service-node-port-range", &held.service_node_port_range, "its Services have their NodePorts out of it");
            }
        }
        // Services get other addresses when it changes.
        let load_balancer_cidr = requested.addresses.as_ref().map(|addresses| addresses.load_balancer_cidr);
        let mut cluster = known.unwrap_or_else(|| Self {
            format: FORMAT,
            nodes: requested.nodes.unwrap_or_else(|| default_nodes.to_vec()),
            hollow: 0,
            network: requested.network.unwrap_or_default(),
            addresses: requested.addresses.unwrap_or_default(),
            feature_gates: String::new(),
            shutdown_grace_period: GoDuration::default(),
            registry_mirrors: Vec::new(),
            insecure_registries: Vec::new(),
            without: Vec::new(),
            name: String::new(),
            port: None,
            kubeconfig: None,
            outside: false,
            network_policy: false,
            no_stand_ins: false,
            audit: AuditArgs::default(),
            node_addresses: BTreeMap::new(),
        });
        cluster.format = FORMAT;
        cluster.addresses.load_balancer_cidr = load_balancer_cidr.unwrap_or(cluster.addresses.load_balancer_cidr);
        // They change how nodes behave, not what the cluster is: a resumed one may have others.
        cluster.hollow = requested.hollow.unwrap_or(cluster.hollow);
        cluster.feature_gates = requested.feature_gates.unwrap_or(cluster.feature_gates);
        cluster.shutdown_grace_period = requested.shutdown_grace_period.unwrap_or(cluster.shutdown_grace_period);
        cluster.registry_mirrors = requested.registry_mirrors.unwrap_or(cluster.registry_mirrors);
        cluster.insecure_registries = requested.insecure_registries.unwrap_or(cluster.insecure_registries);
        cluster.without = requested.without.unwrap_or(cluster.without);
        cluster.outside = requested.outside.unwrap_or(cluster.outside);
        cluster.network_policy = requested.network_policy.unwrap_or(cluster.network_policy);
        cluster.no_stand_ins = requested.no_stand_ins.unwrap_or(cluster.no_stand_ins);
        cluster.audit = requested.audit.over(cluster.audit);
        cluster.kubeconfig = requested.kubeconfig.or(cluster.kubeconfig).filter(|path| !path.as_os_str().is_empty());
        cluster.name = requested.name.unwrap_or(cluster.name);
        if cluster.name.is_empty() {
            cluster.name = dirs.default_name();
        }
        cluster.check_hollow()?;
        let layout = Layout::new(&cluster.nodes, &cluster.addresses, &cluster.node_addresses)?;
        if let Some(reason) = cluster.network.one_family().filter(|_| cluster.addresses.dual_stack()) {
            return Err(ClusterError::OneFamily { network: cluster.network, cluster_cidr: cluster.addresses.cluster_cidr, reason });
        }
        cluster.check_primary_family()?;
        cluster.node_addresses = layout.hosts.iter().skip(1).map(|h| (h.name.clone(), h.address)).collect();
        Ok((cluster, layout))
    }

    /// Whether pods of every node have an address of the primary family.
    fn check_primary_family(&self) -> Result<(), ClusterError> {
        let lacks = |node: &&NodeSpec| {
            let NodeOs::Windows { build } = node.os else { return false };
            let own = node.hns.as_deref().and_then(|hns| hns.split('+').next()?.parse().ok());
            !SupportedFeatures::of(own.unwrap_or_else(|| HnsVersion::of_build(build))).ipv6_dual_stack
        };
        let ipv6 = self.addresses.cluster_cidr.first().is_some_and(|net| net.addr().is_ipv6());
        match self.nodes.iter().find(lacks).filter(|_| ipv6) {
            Some(node) => Err(ClusterError::PrimaryFamily { node: node.name.clone() }),
            None => Ok(()),
        }
    }

    /// Whether hollow nodes have names and addresses of their own.
    fn check_hollow(&self) -> Result<(), ClusterError> {
        if self.hollow == 0 {
            return Ok(());
        }
        if let Some(node) = self.nodes.iter().find(|node| hollow::names(self.hollow).any(|name| name == node.name)) {
            return Err(ClusterError::HollowName { node: node.name.clone() });
        }
        let addresses = &self.addresses;
        let pods = addresses.cluster_cidr.iter().map(|net| ("--cluster-cidr", net));
        let services = addresses.service_cidr.iter().map(|net| ("--service-cidr", net));
        let balancers = addresses.load_balancer_cidr.map(|net| ("--load-balancer-cidr", IpNet::V4(net)));
        for (option, net) in pods.chain(services).chain(balancers) {
            let own = [hollow::NODES, hollow::PODS].map(IpNet::V4);
            if let Some(own) = own.into_iter().find(|own| net.contains(&own.network()) || own.contains(&net.network())) {
                return Err(ClusterError::HollowNetwork { option, net, own });
            }
        }
        Ok(())
    }

    /// Writes `cluster.json`, whole or not at all.
    ///
    /// # Errors
    /// When the disk is full or DIR is not writable.
    pub fn save(&self, dirs: &Dirs) -> Result<(), ClusterError> {
        let path = dirs.dir.join("cluster.json");
        let text = serde_json::to_vec_pretty(self).map_err(|e| LabError::Damaged { path: path.clone(), reason: e.to_string() })?;
        Ok(atomic_file::Options::new().synced().write(&path, text).map_err(LabError::file("write", &path))?)
    }
}

/// The paths of the cluster that `args` names.
pub fn dirs(args: &DirArgs) -> Result<Dirs, LabError> {
    let env = Env::of_process();
    Dirs::resolve(&args.dir.clone().unwrap_or_else(|| env.default_dir()), &env)
}

/// /etc/hosts of a Linux node that has none.
const HOSTS: &str = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n";

/// Makes the directories of the cluster and its nodes, and /etc/hosts of Linux nodes; what is there stays as it is.
///
/// # Errors
/// When one cannot be made.
pub fn make_dirs(dirs: &Dirs, nodes: &[NodeSpec]) -> Result<(), LabError> {
    let mut all: Vec<PathBuf> = ["pki", "store", "log"].iter().map(|d| dirs.dir.join(d)).collect();
    for node in nodes {
        let drives: &[&str] = match (node.os, node.drive) {
            // Pods mount files of /etc from their node, as from any Linux machine.
            (NodeOs::Linux, _) => &["root/etc"],
            (NodeOs::Windows { .. }, None) => &["c", "hns"],
            (NodeOs::Windows { .. }, Some(_)) => &["c", "d", "hns"],
        };
        all.extend(drives.iter().chain(&["cni", "images", "log"]).map(|d| dirs.host(&node.name).join(d)));
    }
    for dir in all {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(LabError::file("make", &dir))?;
    }
    for node in nodes.iter().filter(|node| node.os == NodeOs::Linux) {
        let root = dirs.host(&node.name).join("root");
        write_hosts(&root).map_err(|error| LabError::file("write", root.join("etc/hosts"))(io::Error::other(error)))?;
    }
    Ok(())
}

/// Pods may have put links anywhere below a node's root: none is followed out of it.
fn write_hosts(root: &Path) -> Result<(), HostError> {
    let root = HostRoot::linux(root)?;
    let hosts = root.parse("/etc/hosts")?;
    if matches!(root.kind(&hosts), Ok(None)) {
        root.write_file(&hosts, HOSTS.as_bytes(), 0o644)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use node_config::node_spec::parse_list;

    use super::*;

    fn dirs(root: &Path) -> Dirs {
        Dirs { dir: root.join("dir"), run: root.join("run/0011aabb") }
    }

    #[test]
    fn ipv6_is_primary_only_where_pods_of_every_node_have_it() {
        let dirs = dirs(Path::new("/x"));
        let addresses = |cluster: &str, services: &str, dns: &str| AddressOptions {
            cluster_cidr: cluster.parse().unwrap(),
            service_cidr: services.parse().unwrap(),
            dns_ip: dns.parse().unwrap(),
            ..AddressOptions::default()
        };
        let ipv6 = addresses("fd00:10:244::/48,192.168.0.0/16", "fd00:10:96::/112,10.96.0.0/12", "fd00:10:96::a");
        let ipv4 = addresses("192.168.0.0/16,fd00:10:244::/48", "10.96.0.0/12,fd00:10:96::/112", "10.96.0.10");
        let merge = |nodes: &str, addresses: &AddressOptions| {
            let requested = Requested { addresses: Some(addresses.clone()), ..Requested::default() };
            Cluster::merge(None, requested, &parse_list(nodes).unwrap(), &dirs).map(drop)
        };
        merge("a:linux,b:windows:20348,c:windows:17763:hns=13.3", &ipv6).unwrap();
        for (nodes, lacking) in [("a:linux,b:windows:17763", "b"), ("a:linux,c:windows:20348:hns=11.9+x=y", "c")] {
            let refused = merge(nodes, &ipv6).unwrap_err().to_string();
            assert!(refused.starts_with(&format!("cannot run the node {lacking} in a cluster with IPv6 as its primary family")), "{refused}");
            merge(nodes, &ipv4).unwrap();
        }
    }

    #[test]
    fn hollow_nodes_come_and_go_with_up_and_take_no_names_or_networks_of_others() {
        let (dirs, nodes) = (dirs(Path::new("/x")), parse_list("lin01:linux").unwrap());
        let asked = |hollow| Requested { hollow, ..Requested::default() };
        let merge = |known, requested| Cluster::merge(known, requested, &nodes, &dirs).map(|(cluster, _)| cluster);
        let ten = merge(None, asked(Some(10))).unwrap();
        assert_eq!(merge(Some(ten.clone()), asked(None)).unwrap().hollow, 10, "they are remembered");
        assert_eq!(merge(Some(ten), asked(Some(0))).unwrap().hollow, 0);
        let name = Requested { nodes: Some(parse_list("hollow-0010:linux").unwrap()), ..asked(Some(10)) };
        assert_eq!(merge(None, Requested { hollow: Some(9), ..name.clone() }).unwrap().hollow, 9);
        let error = merge(None, name).unwrap_err().to_string();
        assert!(error.starts_with("cannot run hollow nodes beside the node hollow-0010: "), "{error}");
        for (option, change) in [
            ("--cluster-cidr 100.64.0.0/10", AddressOptions { cluster_cidr: "100.64.0.0/10".parse().unwrap(), ..AddressOptions::default() }),
            (
                "--load-balancer-cidr 100.64.9.0/24",
                AddressOptions { load_balancer_cidr: Some("100.64.9.0/24".parse().unwrap()), ..AddressOptions::default() },
            ),
        ] {
            let with = |hollow| Requested { addresses: Some(change.clone()), ..asked(hollow) };
            assert_eq!(merge(None, with(None)).unwrap().hollow, 0);
            let error = merge(None, with(Some(1))).unwrap_err().to_string();
            assert!(error.starts_with(&format!("cannot run hollow nodes: {option} overlaps their network ")), "{error}");
        }
    }

    #[test]
    fn a_cluster_is_remembered_and_others_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let dirs = dirs(root.path());
        fs::create_dir_all(&dirs.dir).unwrap();
        let defaults = parse_list("lin01:linux,win01:windows").unwrap();
        assert_eq!(Cluster::load(&dirs).unwrap(), None);
        let (cluster, layout) = Cluster::merge(None, Requested::default(), &defaults, &dirs).unwrap();
        cluster.save(&dirs).unwrap();
        let known = Cluster::load(&dirs).unwrap();
        assert_eq!(known.as_ref(), Some(&cluster));
        let again = Cluster::merge(known.clone(), Requested::default(), &[], &dirs).unwrap();
        assert_eq!(again, (cluster, layout), "resumed without options");
        let mirrors = |list: &[&str]| Requested { registry_mirrors: Some(list.iter().map(|m| (*m).to_owned()).collect()), ..Requested::default() };
        let (mirrored, _) = Cluster::merge(known.clone(), mirrors(&["docker.io=http://a"]), &[], &dirs).unwrap();
        let (later, _) = Cluster::merge(Some(mirrored), Requested::default(), &[], &dirs).unwrap();
        assert_eq!(later.registry_mirrors, ["docker.io=http://a"], "remembered");
        let (other, _) = Cluster::merge(Some(later), mirrors(&["docker.io=http://b"]), &[], &dirs).unwrap();
        assert_eq!(other.registry_mirrors, ["docker.io=http://b"], "replaced");
        let refused = |requested| Cluster::merge(known.clone(), requested, &[], &dirs).unwrap_err().to_string();
        let nodes = Requested { nodes: Some(parse_list("b:linux").unwrap()), ..Requested::default() };
        assert!(refused(nodes).contains("--nodes lin01:linux,win01:windows:20348; leave --nodes out to resume it, or choose another --dir"));
        let addresses = Requested { addresses: Some(AddressOptions { node_mask: 26, ..AddressOptions::default() }), ..Requested::default() };
        assert!(refused(addresses).contains("--node-mask 24"));
    }

    #[test]
    fn options_of_a_cluster_stay_until_changed() {
        let root = tempfile::tempdir().unwrap();
        let dirs = dirs(root.path());
        let defaults = parse_list("lin01:linux").unwrap();
        let made = Requested {
            name: Some("ci".into()),
            kubeconfig: Some("/k".into()),
            outside: Some(true),
            no_stand_ins: Some(true),
            without: Some(vec![Part::Proxy]),
            feature_gates: Some("HyperVContainer=true".into()),
            shutdown_grace_period: "30s".parse().ok(),
            ..Requested::default()
        };
        let (made, _) = Cluster::merge(None, made, &defaults, &dirs).unwrap();
        let (resumed, _) = Cluster::merge(Some(made.clone()), Requested::default(), &[], &dirs).unwrap();
        assert_eq!(resumed, made);
        assert_eq!(made.shutdown_grace_period.to_string(), "30s");
        assert_eq!((made.name.as_str(), made.kubeconfig.as_deref(), made.outside, made.no_stand_ins), ("ci", Some(Path::new("/k")), true, true));
        let back = Requested {
            kubeconfig: Some("".into()),
            outside: Some(false),
            no_stand_ins: Some(false),
            without: Some(vec![]),
            feature_gates: Some(String::new()),
            shutdown_grace_period: "0s".parse().ok(),
            name: Some("other".into()),
            ..Requested::default()
        };
        let (back, _) = Cluster::merge(Some(made), back, &[], &dirs).unwrap();
        assert_eq!((back.name.as_str(), back.kubeconfig, back.outside, back.no_stand_ins), ("other", None, false, false));
        assert!(back.shutdown_grace_period.0.is_zero());
        assert!(back.without.is_empty() && back.feature_gates.is_empty());
    }

    #[test]
    fn a_description_of_format_1_is_read_and_becomes_the_newest() {
        let root = tempfile::tempdir().unwrap();
        let dirs = dirs(root.path());
        fs::create_dir_all(&dirs.dir).unwrap();
        let old = r#"{"format": 1, "nodes": [{"name": "win01", "os": {"windows": {"build": 20348}}, "cpu": 8, "mem": 17179869184, "drive": null,
            "hns": null, "runtime": null}], "network": "host-gateway", "addresses": {"clusterCidr": "192.168.0.0/16", "nodeMask": 24,
            "serviceCidr": "10.96.0.0/12", "dnsIp": "10.96.0.10"}, "nodeAddresses": {"win01": "10.240.0.11"}}"#;
        fs::write(dirs.dir.join("cluster.json"), old).unwrap();
        let known = Cluster::load(&dirs).unwrap();
        let (cluster, _) = Cluster::merge(known, Requested::default(), &[], &dirs).unwrap();
        assert_eq!((cluster.format, cluster.name.as_str(), cluster.port, cluster.outside), (FORMAT, "dir", None, false));
    }

    #[test]
    fn newer_and_damaged_descriptions_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let dirs = dirs(root.path());
        fs::create_dir_all(&dirs.dir).unwrap();
        fs::write(dirs.dir.join("cluster.json"), r#"{"format": 9, "elsewhere": {}}"#).unwrap();
        let e = Cluster::load(&dirs).unwrap_err();
        assert!(e.to_string().contains("is of format 9, this mullion reads up to 2"), "{e}");
        fs::write(dirs.dir.join("cluster.json"), r#"{"format": 1, "nod"#).unwrap();
        let e = Cluster::load(&dirs).unwrap_err();
        assert!(matches!(e, ClusterError::Lab(LabError::Damaged { .. })), "{e}");
    }

    #[test]
    fn node_kinds_have_their_directories() {
        let root = tempfile::tempdir().unwrap();
        let dirs = dirs(root.path());
        make_dirs(&dirs, &parse_list("l:linux,w:windows,v:windows:drive=D").unwrap()).unwrap();
        let hosts = dirs.host("l").join("root/etc/hosts");
        assert!(fs::read_to_string(&hosts).unwrap().contains("localhost"), "pods of any Linux machine can mount it");
        let outside = root.path().join("outside");
        fs::remove_file(&hosts).unwrap();
        std::os::unix::fs::symlink(&outside, &hosts).unwrap();
        make_dirs(&dirs, &parse_list("l:linux").unwrap()).unwrap();
        assert!(!outside.exists(), "links are not followed out of a node");
        for there in ["pki", "store", "log", "hosts/l/root", "hosts/l/images", "hosts/w/c", "hosts/w/hns", "hosts/v/d"] {
            assert!(dirs.dir.join(there).is_dir(), "{there}");
        }
        assert!(!dirs.dir.join("hosts/w/d").exists() && !dirs.dir.join("hosts/l/c").exists());
    }
}
