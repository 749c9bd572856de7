//! Settings of the nftables backend: the node and the configuration (pure).

use std::net::IpAddr;

use ipnet::IpNet;

use crate::node_ports::NodePorts;
use crate::table::IpFamily;

/// Settings of the backend.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The node's own addresses, the primary one of each family first.
    pub node_ips: Vec<IpAddr>,
    /// On which of the host's addresses node ports listen.
    pub node_ports: NodePorts,
    /// How pods are distinguished from other clients.
    pub pods: Pods,
    /// Every client of a ClusterIP gets this node's address, not outsiders alone.
    pub masquerade_all: bool,
    /// The bit of a packet's mark that asks for this node's address as its source; it is cleared afterwards.
    pub masquerade_mark: u32,
    /// Pods that a Service leads off the pod network get this node's address too: nobody there need know a way to pods.
    pub masquerade_leaving: bool,
}

impl Settings {
    /// As upstream without flags: node ports on the primary addresses, bit 14 for masquerading.
    pub fn new(node_ips: Vec<IpAddr>, pods: Pods) -> Self {
        Self { node_ips, node_ports: NodePorts::Primary, pods, masquerade_all: false, masquerade_mark: 1 << 14, masquerade_leaving: false }
    }
}

/// How pods of this node are distinguished from other clients (`detectLocal`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pods {
    /// They are not: no client counts as a pod.
    Unknown,
    /// By their addresses: at most one network of each IP version.
    Nets(Vec<IpNet>),
    /// By the interface they come in by.
    Interface(String),
    /// By how that interface's name begins.
    InterfacePrefix(String),
}

impl Pods {
    /// Their network in one family.
    pub fn net(&self, family: IpFamily) -> Option<IpNet> {
        match self {
            Self::Nets(nets) => nets.iter().copied().find(|net| IpFamily::of(net.addr()) == family),
            _ => None,
        }
    }
}
