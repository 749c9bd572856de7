//! Address options of a cluster: networks of pods and Services, and the range of NodePorts. Pure.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use crate::port_range::PortRange;

/// Address options of `mullion up`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AddressOptions {
    /// Pods' addresses, `--cluster-cidr`.
    pub cluster_cidr: Ipv4Net,
    /// Prefix length of one node's part of it, `--node-mask`.
    pub node_mask: u8,
    /// Services' addresses, `--service-cidr`.
    pub service_cidr: Ipv4Net,
    /// The cluster's DNS Service, `--dns-ip`.
    pub dns_ip: Ipv4Addr,
    /// NodePorts of Services, `--service-node-port-range`.
    #[serde(default)]
    pub service_node_port_range: PortRange,
    /// Addresses for Services of type LoadBalancer, `--load-balancer-cidr`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_balancer_cidr: Option<Ipv4Net>,
}

impl Default for AddressOptions {
    fn default() -> Self {
        Self {
            cluster_cidr: Ipv4Net::new_assert(Ipv4Addr::new(192, 168, 0, 0), 16),
            node_mask: 24,
            service_cidr: Ipv4Net::new_assert(Ipv4Addr::new(10, 96, 0, 0), 12),
            dns_ip: Ipv4Addr::new(10, 96, 0, 10),
            service_node_port_range: PortRange::default(),
            load_balancer_cidr: None,
        }
    }
}

/// Why addresses cannot be planned so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AddressError(String);

fn wrong<T>(text: impl Into<String>) -> Result<T, AddressError> {
    Err(AddressError(text.into()))
}

impl AddressOptions {
    /// Whether these options make a working cluster of so many nodes on `lan`.
    ///
    /// # Errors
    /// One line that names the option and the way out.
    pub fn check(&self, nodes: usize, lan: Ipv4Net) -> Result<(), AddressError> {
        let Self { cluster_cidr, node_mask, service_cidr, dns_ip, service_node_port_range: _, load_balancer_cidr } = self;
        let nets =
            [("--cluster-cidr", Some(cluster_cidr)), ("--service-cidr", Some(service_cidr)), ("--load-balancer-cidr", load_balancer_cidr.as_ref())];
        for (option, net) in nets.into_iter().filter_map(|(option, net)| Some((option, net?))) {
            if net.addr() != net.network() {
                return wrong(format!("{option} {net} has bits behind its prefix: write {}", net.trunc()));
            }
            let special = [("loopback", [127, 0, 0, 0], 8), ("link-local", [169, 254, 0, 0], 16), ("multicast", [224, 0, 0, 0], 3)];
            for (name, address, prefix) in special {
                if overlap(*net, Ipv4Net::new_assert(address.into(), prefix)) {
                    return wrong(format!("{option} {net} overlaps {name} addresses: choose private ones, as {}", Self::default().cluster_cidr));
                }
            }
            if overlap(*net, lan) {
                return wrong(format!("{option} {net} overlaps the hosts' LAN {lan}: choose another network"));
            }
        }
        if overlap(*cluster_cidr, *service_cidr) {
            return wrong(format!("--cluster-cidr {cluster_cidr} and --service-cidr {service_cidr} overlap: choose separate networks"));
        }
        for (option, net) in [("--cluster-cidr", cluster_cidr), ("--service-cidr", service_cidr)] {
            if let Some(cidr) = load_balancer_cidr.filter(|cidr| overlap(*cidr, *net)) {
                return wrong(format!("{option} {net} and --load-balancer-cidr {cidr} overlap: choose separate networks"));
            }
        }
        if *node_mask < cluster_cidr.prefix_len() || *node_mask > 28 {
            return wrong(format!("--node-mask {node_mask} must be from {} (that of --cluster-cidr) to 28", cluster_cidr.prefix_len()));
        }
        let room = 1u64 << (node_mask - cluster_cidr.prefix_len());
        if room < nodes as u64 {
            return wrong(format!(
                "--cluster-cidr {cluster_cidr} with --node-mask {node_mask} has room for {room} nodes, not {nodes}: enlarge either"
            ));
        }
        if !(8..=28).contains(&service_cidr.prefix_len()) {
            return wrong(format!("--service-cidr {service_cidr} must have a prefix length from 8 to 28"));
        }
        let first = u32::from(service_cidr.network()) + 1;
        let reserved = [service_cidr.network(), first.into(), service_cidr.broadcast()];
        if !service_cidr.contains(dns_ip) || reserved.contains(dns_ip) {
            return wrong(format!(
                "--dns-ip {dns_ip} must lie in --service-cidr {service_cidr}, behind its first address: write {}",
                Ipv4Addr::from(first + 9)
            ));
        }
        Ok(())
    }
}

fn overlap(a: Ipv4Net, b: Ipv4Net) -> bool {
    a.contains(&b.network()) || b.contains(&a.network())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAN: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 240, 0, 0), 24);

    fn options(change: impl FnOnce(&mut AddressOptions)) -> AddressOptions {
        let mut options = AddressOptions::default();
        change(&mut options);
        options
    }

    #[test]
    fn each_wrong_option_is_named_with_a_way_out() {
        let net = |text: &str| text.parse::<Ipv4Net>().unwrap();
        let cases = [
            (options(|o| o.cluster_cidr = net("192.168.1.0/16")), "--cluster-cidr 192.168.1.0/16 has bits behind its prefix: write 192.168.0.0/16"),
            (options(|o| o.cluster_cidr = net("10.240.0.0/16")), "overlaps the hosts' LAN"),
            (options(|o| o.cluster_cidr = net("127.0.0.0/16")), "overlaps loopback addresses"),
            (options(|o| o.service_cidr = net("192.168.128.0/20")), "--cluster-cidr 192.168.0.0/16 and --service-cidr 192.168.128.0/20 overlap"),
            (options(|o| o.node_mask = 15), "--node-mask 15 must be from 16"),
            (options(|o| o.node_mask = 29), "to 28"),
            (options(|o| o.node_mask = 16), "has room for 1 nodes, not 3"),
            (options(|o| o.dns_ip = Ipv4Addr::new(10, 96, 0, 1)), "behind its first address: write 10.96.0.10"),
            (options(|o| o.dns_ip = Ipv4Addr::new(10, 112, 0, 1)), "must lie in --service-cidr 10.96.0.0/12"),
            (options(|o| o.load_balancer_cidr = Some(net("10.240.0.128/25"))), "--load-balancer-cidr 10.240.0.128/25 overlaps the hosts' LAN"),
            (
                options(|o| o.load_balancer_cidr = Some(net("10.100.0.0/24"))),
                "--service-cidr 10.96.0.0/12 and --load-balancer-cidr 10.100.0.0/24 overlap",
            ),
            (options(|o| o.service_cidr = net("10.96.0.0/30")), "prefix length from 8 to 28"),
        ];
        for (options, expected) in cases {
            let message = options.check(3, LAN).expect_err(expected).to_string();
            assert!(message.contains(expected), "{message}");
        }
        AddressOptions::default().check(3, LAN).unwrap();
        options(|o| o.load_balancer_cidr = Some(net("10.241.0.0/24"))).check(3, LAN).unwrap();
    }

    #[test]
    fn options_without_a_range_of_node_ports_have_the_default() {
        let kept = r#"{"clusterCidr": "192.168.0.0/16", "nodeMask": 24, "serviceCidr": "10.96.0.0/12", "dnsIp": "10.96.0.10"}"#;
        assert_eq!(serde_json::from_str::<AddressOptions>(kept).unwrap(), AddressOptions::default());
    }
}
