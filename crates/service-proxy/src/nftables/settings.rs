//! What the backend needs to know of the node and of the configuration (pure).

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use crate::table::IpFamily;

/// What the backend needs to know of the node and of the configuration.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The node's own addresses, the primary one of each family first.
    pub node_ips: Vec<IpAddr>,
    /// On which of the host's addresses node ports listen.
    pub node_ports: NodePorts,
    /// How pods are told from other clients.
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

/// How pods of this node are told from other clients (`detectLocal`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pods {
    /// They are not: nobody counts as one.
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

/// On which of the host's addresses node ports listen (`nodePortAddresses`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePorts {
    /// The node's primary addresses.
    Primary,
    /// Every address of the host in these networks.
    Nets(Vec<IpNet>),
}

impl NodePorts {
    /// The addresses, given the node's own and all of the host. Of loopback only 127.0.0.1 can be one: the kernel routes
    /// ::1 nowhere, and of link-local addresses nobody outside says which link.
    pub fn pick(&self, node_ips: &[IpAddr], host: &[IpAddr]) -> Vec<IpAddr> {
        let mut picked: Vec<IpAddr> = match self {
            Self::Primary => IpFamily::ALL.iter().filter_map(|family| node_ips.iter().copied().find(|ip| IpFamily::of(*ip) == *family)).collect(),
            Self::Nets(nets) => host.iter().copied().filter(|ip| can_listen(ip) && nets.iter().any(|net| net.contains(ip))).collect(),
        };
        picked.sort();
        picked.dedup();
        picked
    }
}

fn can_listen(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_loopback() || *ip == Ipv4Addr::LOCALHOST,
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_ports_listen_where_they_are_told_to() {
        let ips = |texts: &[&str]| texts.iter().map(|t| t.parse().unwrap()).collect::<Vec<IpAddr>>();
        let nets = |texts: &[&str]| NodePorts::Nets(texts.iter().map(|t| t.parse().unwrap()).collect());
        let node = ips(&["10.0.0.5", "10.9.0.5", "fd00::5"]);
        let host = ips(&["127.0.0.1", "127.0.0.53", "::1", "10.0.0.5", "10.9.0.5", "fd00::5", "fe80::1", "172.17.0.1"]);
        for (choice, expected) in [
            (NodePorts::Primary, vec!["10.0.0.5", "fd00::5"]),
            (nets(&["10.9.0.0/16"]), vec!["10.9.0.5"]),
            (nets(&["0.0.0.0/0"]), vec!["10.0.0.5", "10.9.0.5", "127.0.0.1", "172.17.0.1"]),
            (nets(&["127.0.0.0/8", "::/0"]), vec!["127.0.0.1", "fd00::5"]),
            (nets(&["192.0.2.0/24"]), vec![]),
        ] {
            assert_eq!(choice.pick(&node, &host), ips(&expected), "{choice:?}");
        }
    }
}
