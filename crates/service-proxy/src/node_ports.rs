//! Addresses on which node ports listen (pure).

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use crate::table::IpFamily;

/// On which of the host's addresses node ports listen (`nodePortAddresses`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePorts {
    /// The node's primary addresses.
    Primary,
    /// Every address of the host in these networks.
    Nets(Vec<IpNet>),
}

impl NodePorts {
    /// Selects the addresses from the node's own and all of the host. Of loopback only 127.0.0.1 can be one: the kernel routes
    /// ::1 nowhere, and of link-local addresses nobody outside says which link.
    pub fn select(&self, node_ips: &[IpAddr], host: &[IpAddr]) -> Vec<IpAddr> {
        let mut selected: Vec<IpAddr> = match self {
            Self::Primary => IpFamily::ALL.iter().filter_map(|family| node_ips.iter().copied().find(|ip| IpFamily::of(*ip) == *family)).collect(),
            Self::Nets(nets) => host.iter().copied().filter(|ip| can_listen(ip) && nets.iter().any(|net| net.contains(ip))).collect(),
        };
        selected.sort();
        selected.dedup();
        selected
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
    fn node_ports_listen_on_selected_addresses() {
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
            assert_eq!(choice.select(&node, &host), ips(&expected), "{choice:?}");
        }
    }
}
