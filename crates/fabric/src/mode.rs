//! Modes of the pod network, each a pure function from nodes, settings and the host's routes to what must hold on one host.
//!
//! A new mode is a file in `mode/` and a row of [`MODES`].

pub mod bgp;
mod desired;
mod families;
mod host_gateway;
mod l3;
mod transparent;
mod vxlan;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use host::HostRoute;
use ipnet::IpNet;
use serde_json::Value;

pub use desired::{Desired, Hop, Masquerade, Through, Tunnel, Vtep};

use crate::conf;
use crate::flannel::Mac;
use crate::hns;
use crate::problem::{Kind, Problem};
use crate::rows::NodeRow;

/// How pods of different nodes reach each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Every node routes the others' pod CIDRs to their addresses. The nodes are neighbours on one link.
    #[default]
    HostGateway,
    /// The router between the nodes has a route for every pod CIDR; nodes send everything to it.
    L3,
    /// Packets between pods of different nodes travel in VXLAN. The nodes only have to reach each other.
    Vxlan,
    /// As host-gateway, with Windows pods that are hosts of a LAN of their own, behind a second adapter.
    Transparent,
    /// Nodes tell each other, and routers, their pod CIDRs by BGP. Next hops are neighbours.
    Bgp,
}

/// The function of a mode: adds what it wants to what is common to all.
type Decide = fn(&Inputs<'_>, &mut Desired);

/// Name, summary for users, and function of every mode.
pub const MODES: &[(Mode, &str, &str, Decide)] = &[
    (Mode::HostGateway, "host-gateway", "every node routes the others' pods to their addresses", host_gateway::decide),
    (Mode::L3, "l3", "the router between the nodes has a route to every node's pods", l3::decide),
    (Mode::Vxlan, "vxlan", "packets between pods of different nodes travel in VXLAN, as flannel has them", vxlan::decide),
    (
        Mode::Transparent,
        "transparent",
        "as host-gateway; pods of Windows nodes are behind a second adapter, and Services are served in user space",
        transparent::decide,
    ),
    (Mode::Bgp, "bgp", "nodes tell each other, and routers, their pods' networks by BGP, as Calico's nodes do", bgp::decide),
];

impl Mode {
    fn row(self) -> &'static (Mode, &'static str, &'static str, Decide) {
        // The table has every mode: a test compares.
        MODES.iter().find(|row| row.0 == self).unwrap_or(&MODES[0])
    }

    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Why the mode carries IPv4 alone, where it does.
    pub fn one_family(self) -> Option<&'static str> {
        match self {
            Self::Vxlan => Some("overlays of HNS have no IPv6"),
            Self::Transparent => Some("on Windows, pods have IPv6 on L2Bridge networks alone"),
            _ => None,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A mode that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is no pod network: use {}", names())]
pub struct UnknownMode {
    name: String,
}

fn names() -> String {
    MODES.iter().map(|row| row.1).collect::<Vec<_>>().join(", ")
}

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        MODES.iter().find(|row| row.1 == text).map(|row| row.0).ok_or_else(|| UnknownMode { name: text.to_owned() })
    }
}

/// What the host is to the pod network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// A node, which has pods.
    Node(Box<PodSettings>),
    /// A host on the nodes' network without pods, which reaches pods, such as the control plane's.
    Host {
        /// Its address on the nodes' network.
        address: IpAddr,
    },
    /// The router between the nodes.
    Router,
}

/// How pods of a node are attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// To an HNS network.
    Windows {
        /// The physical adapter's alias, for example `Ethernet`.
        adapter: String,
        /// Pods reach themselves through their Services, where HNS has direct server return.
        loopback_dsr: bool,
    },
    /// To a Linux bridge of this name.
    Linux { bridge: String },
}

/// Settings of a node that has pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSettings {
    pub attachment: Attachment,
    /// The cluster's identity (UID of namespace `kube-system`), which marks what is ours.
    pub cluster_uid: String,
    /// Name of the network, in CNI and HNS.
    pub network_name: String,
    /// Every ClusterIP lies in one of these; one per address family.
    pub service_cidrs: Vec<IpNet>,
    /// The networks of the nodes; one per address family.
    pub lans: Vec<IpNet>,
    /// Cluster DNS.
    pub dns_ip: IpAddr,
    /// For example `cluster.local`.
    pub cluster_domain: String,
    /// Where the CNI configuration goes.
    pub cni_conf_dir: PathBuf,
    /// Where host-local keeps reservations; absent means its default.
    pub ipam_dir: Option<PathBuf>,
    /// Where flannel's `subnet.env` goes, for plug-ins that read it; absent means nowhere.
    pub subnet_env: Option<PathBuf>,
}

/// What all tunnels of a cluster have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vxlan {
    /// The number of the segment.
    pub vni: u32,
    /// UDP port.
    pub port: u16,
    /// Largest inner packet in bytes; absent means what the nodes' network carries.
    pub mtu: Option<u32>,
}

impl Vxlan {
    /// Windows has no VNI below.
    pub const LEAST_VNI: u32 = 4096;
    /// Windows has no other port.
    pub const PORT: u16 = 4789;
}

impl Default for Vxlan {
    fn default() -> Self {
        Self { vni: Self::LEAST_VNI, port: Self::PORT, mtu: None }
    }
}

/// Configuration of the pod network on one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub mode: Mode,
    /// Of the mode vxlan.
    pub vxlan: Vxlan,
    /// Of the mode bgp.
    pub bgp: bgp::Bgp,
    /// This host's name; of nodes, the Node's.
    pub node_name: String,
    /// Every pod's address lies in one of these; one per address family.
    pub cluster_cidrs: Vec<IpNet>,
    pub role: Role,
}

/// The link of the nodes' network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uplink {
    /// Its number.
    pub index: u32,
    /// Largest packet in bytes.
    pub mtu: u32,
}

/// What was found on the host beside its routes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostState {
    pub uplink: Option<Uplink>,
    /// HNS takes the MTU of pods from their endpoints' policies.
    pub sets_mtu: bool,
    /// The MAC of the distributed router of the HNS network, once that exists.
    pub dr_mac: Option<Mac>,
    /// In the mode bgp.
    pub bgp: Option<Arc<bgp::Known>>,
    /// Whether the Host Networking Service of a Windows node has IPv6.
    pub hns_ipv6: bool,
    /// Whether it has load balancers that return directly.
    pub hns_dsr: bool,
}

/// Facts of the pod network that other parts of the node need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkFacts {
    /// Name of the HNS network.
    pub hns_network: String,
    /// The address that an overlay's load balancers give to translated traffic. No pod has it.
    pub source_vip: Option<IpAddr>,
    /// The MAC of the distributed router of an overlay.
    pub dr_mac: Option<Mac>,
    /// Largest packet of pods, in bytes, where it is known.
    pub mtu: Option<u32>,
}

/// What a mode decides from.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    pub settings: &'a Settings,
    /// All Nodes by name.
    pub nodes: &'a BTreeMap<String, NodeRow>,
    /// The host's main routing table.
    pub routes: &'a [HostRoute],
    pub state: &'a HostState,
}

/// A pod CIDR of another node, and the address of that node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer<'a> {
    pub node: &'a str,
    pub row: &'a NodeRow,
    pub cidr: IpNet,
    /// Of the same family as the CIDR.
    pub address: IpAddr,
}

/// What must hold on this host.
pub fn desired(inputs: &Inputs<'_>) -> Desired {
    let mut desired = Desired::default();
    (inputs.settings.mode.row().3)(inputs, &mut desired);
    if let (Some(hns), Some(cni)) = (&desired.hns, &mut desired.cni) {
        conf::name_network(cni, hns.network_id);
    }
    let own = &inputs.settings.node_name;
    if let (Role::Node(_), Some(row)) = (&inputs.settings.role, inputs.nodes.get(own))
        && row.pod_cidrs.is_empty()
    {
        let text = format!(
            "node {own}: it has no pod CIDR, so its pods get no network; start the controller manager with --allocate-node-cidrs, or set spec.podCIDR of the Node"
        );
        desired.problems.push(Problem::of_node(Kind::CidrMissing, own, text));
    }
    desired.problems.extend(families::problems(inputs));
    desired
}

/// Every other node's pod CIDRs, and why some are left out. Of two nodes with overlapping ones the older is right; towards others
/// a host keeps its own in either case. Nodes that do not have their CIDR or address yet are no problem: they will.
pub fn peers<'a>(own: &str, nodes: &'a BTreeMap<String, NodeRow>, cluster_cidrs: &[IpNet]) -> (Vec<Peer<'a>>, Vec<Problem>) {
    let (mut peers, mut problems) = (Vec::new(), Vec::new());
    // Disjoint, so that only the neighbours in order can overlap a new one.
    let mut taken: BTreeMap<IpNet, (&str, &NodeRow)> = BTreeMap::new();
    let mut in_order: Vec<(&String, &NodeRow)> = nodes.iter().collect();
    in_order.sort_by_key(|(name, row)| (*name != own, row.created));
    for (name, row) in in_order {
        for cidr in row.pod_cidrs.iter().copied() {
            if !cluster_cidrs.iter().any(|cluster| cluster.contains(&cidr)) {
                let known = cluster_cidrs.iter().map(IpNet::to_string).collect::<Vec<_>>().join(", ");
                let text = format!(
                    "node {name}: pod CIDR {cidr} is outside the cluster's {known}, so it gets no route; register the node anew with a pod CIDR of these (--cluster-cidr of kube-controller-manager)"
                );
                problems.push(Problem::of_node(Kind::CidrOutside, name, text));
                continue;
            }
            let before = taken.range(..=cidr).next_back().filter(|(other, _)| other.contains(&cidr));
            let after = taken.range(cidr..).next().filter(|(other, _)| cidr.contains(*other));
            if let Some((other, (holder, held))) = before.or(after) {
                // This host is asked first whatever its age.
                let newer_is_own = *holder == own && (held.created, own) > (row.created, name.as_str());
                let (wrong, cidr, right, other) =
                    if newer_is_own { (own, *other, name.as_str(), cidr) } else { (name.as_str(), cidr, *holder, *other) };
                let text = format!(
                    "node {wrong}: pod CIDR {cidr} overlaps {other} of node {right}; it gets no route until one of the two nodes is registered anew"
                );
                problems.push(Problem::of_node(Kind::CidrOverlaps, wrong, text));
                continue;
            }
            taken.insert(cidr, (name, row));
            if name != own && row.address(cidr).is_none() && !row.addresses.is_empty() {
                problems.push(families::no_address(name, cidr, "these pods are not reached"));
            }
            if let Some(address) = row.address(cidr).filter(|_| name != own) {
                peers.push(Peer { node: name, row, cidr, address });
            }
        }
    }
    (peers, problems)
}

impl<'a> Inputs<'a> {
    /// Every other node's pod CIDRs; problems go into `desired`.
    fn peers(&self, desired: &mut Desired) -> Vec<Peer<'a>> {
        let (peers, problems) = peers(&self.settings.node_name, self.nodes, &self.settings.cluster_cidrs);
        desired.problems.extend(problems);
        peers
    }

    /// What this node attaches its pods with: the families that it has a pod CIDR and an address of, as far as mode and host carry them.
    fn own_pods(&self) -> Option<(&'a PodSettings, conf::Inputs)> {
        let Role::Node(pods) = &self.settings.role else { return None };
        let row = self.nodes.get(&self.settings.node_name)?;
        let mut all = row.pod_cidrs.iter().filter(|cidr| families::refusal(self, **cidr).is_none()).filter_map(|cidr| {
            let like = |nets: &[IpNet]| nets.iter().copied().find(|net| net.addr().is_ipv4() == cidr.addr().is_ipv4());
            Some(conf::Family {
                pod_cidr: *cidr,
                node_ip: row.address(*cidr)?,
                cluster_cidr: like(&self.settings.cluster_cidrs).unwrap_or(*cidr),
                service_cidr: like(&pods.service_cidrs),
                lan: like(&pods.lans),
            })
        });
        let first = all.next()?;
        let second = all.find(|family| family.node_ip.is_ipv4() != first.node_ip.is_ipv4());
        let inputs = conf::Inputs {
            name: pods.network_name.clone(),
            first,
            second,
            dns_ip: pods.dns_ip,
            domain: pods.cluster_domain.clone(),
            ipam_dir: pods.ipam_dir.clone(),
            loopback_dsr: self.state.hns_dsr && matches!(pods.attachment, Attachment::Windows { loopback_dsr: true, .. }),
        };
        Some((pods, inputs))
    }

    /// flannel's `subnet.env` of this node, where it is wanted.
    fn subnet_env(&self, pods: &PodSettings, inputs: &conf::Inputs, mtu: Option<u32>) -> Option<String> {
        pods.subnet_env.as_ref().map(|_| conf::subnet_env(inputs, mtu))
    }

    /// The network of this node's pods where packets between nodes are plain: an L2Bridge on Windows, a bridge on Linux.
    fn plain_network(&self, desired: &mut Desired) {
        let Some((pods, inputs)) = self.own_pods() else { return };
        match &pods.attachment {
            Attachment::Windows { adapter, .. } => {
                let network = hns::Desired::new(&pods.cluster_uid, &pods.network_name, adapter, inputs.first.pod_cidr);
                let network = inputs.second.iter().fold(network, |network, second| network.with_subnet(second.pod_cidr));
                desired.hns = Some(network.with_placeholder(&pods.cluster_uid, adapter, &self.taken(pods)));
                desired.mtu = self.state.uplink.map(|uplink| uplink.mtu);
                desired.cni = Some(self.limited(conf::windows(&inputs), desired.mtu, USUAL_MTU));
            }
            Attachment::Linux { bridge } => self.linux_bridge(&inputs, bridge, desired),
        }
    }

    /// The pods of a Linux node where packets between nodes are plain.
    fn linux_bridge(&self, inputs: &conf::Inputs, bridge: &str, desired: &mut Desired) {
        desired.masquerade = inputs.families().map(|family| Masquerade { pods: family.pod_cidr, cluster: family.cluster_cidr }).collect();
        desired.mtu = self.state.uplink.map(|uplink| uplink.mtu);
        desired.cni = Some(conf::linux(inputs, bridge, desired.mtu));
    }

    /// What the placeholder's subnet must not overlap.
    fn taken(&self, pods: &PodSettings) -> Vec<IpNet> {
        [&self.settings.cluster_cidrs, &pods.service_cidrs, &pods.lans].into_iter().flatten().copied().collect()
    }

    /// A configuration of a Windows node with the largest packet of pods, where HNS would choose another one.
    fn limited(&self, mut cni: Value, mtu: Option<u32>, usual: u32) -> Value {
        if let Some(mtu) = mtu.filter(|mtu| *mtu != usual && self.state.sets_mtu) {
            conf::limit_packets(&mut cni, mtu);
        }
        cni
    }
}

/// The largest packet of a network that nobody changed; HNS gives pods that, less what its encapsulation takes.
const USUAL_MTU: u32 = 1500;

#[cfg(test)]
mod tests;
