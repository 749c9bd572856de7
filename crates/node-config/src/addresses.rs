//! Address options of a cluster: networks of pods and Services, and the range of NodePorts. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, Serialize};

use crate::port_range::PortRange;
use crate::values::Families;

/// kube-controller-manager's default of `--node-cidr-mask-size-ipv6`.
const NODE_MASK_IPV6: u8 = 64;

/// Address options of `mullion up`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AddressOptions {
    /// Pods' addresses, `--cluster-cidr`: one network, or one of each family, the primary one first.
    pub cluster_cidr: Families<IpNet>,
    /// Prefix length of one node's part of the IPv4 network, `--node-mask`.
    pub node_mask: u8,
    /// Prefix length of one node's part of the IPv6 network, `--node-mask-ipv6`.
    #[serde(default = "node_mask_ipv6")]
    pub node_mask_ipv6: u8,
    /// Services' addresses, `--service-cidr`: the families of `cluster_cidr` in their order.
    pub service_cidr: Families<IpNet>,
    /// The cluster's DNS Service, `--dns-ip`, of the primary family.
    pub dns_ip: IpAddr,
    /// NodePorts of Services, `--service-node-port-range`.
    #[serde(default)]
    pub service_node_port_range: PortRange,
    /// Addresses for Services of type LoadBalancer, `--load-balancer-cidr`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_balancer_cidr: Option<Ipv4Net>,
}

fn node_mask_ipv6() -> u8 {
    NODE_MASK_IPV6
}

impl Default for AddressOptions {
    fn default() -> Self {
        let net = |address: [u8; 4], prefix| IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::from(address), prefix)).into();
        Self {
            cluster_cidr: net([192, 168, 0, 0], 16),
            node_mask: 24,
            node_mask_ipv6: NODE_MASK_IPV6,
            service_cidr: net([10, 96, 0, 0], 12),
            dns_ip: Ipv4Addr::new(10, 96, 0, 10).into(),
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
    /// Whether pods, Services and nodes have addresses of both families.
    pub fn dual_stack(&self) -> bool {
        self.cluster_cidr.both()
    }

    /// Whether these options make a working cluster of so many nodes on `lan`, the nodes' networks.
    ///
    /// # Errors
    /// One line that names the option and the way out.
    pub fn check(&self, nodes: usize, lan: &[IpNet]) -> Result<(), AddressError> {
        self.check_families()?;
        let nets = || {
            let pods = self.cluster_cidr.iter().map(|net| ("--cluster-cidr", net));
            let services = self.service_cidr.iter().map(|net| ("--service-cidr", net));
            pods.chain(services).chain(self.load_balancer_cidr.map(|net| ("--load-balancer-cidr", IpNet::V4(net))))
        };
        for (option, net) in nets() {
            check_network(option, net, lan)?;
        }
        let all: Vec<(&str, IpNet)> = nets().collect();
        for (at, (option, net)) in all.iter().enumerate() {
            if let Some((other, second)) = all[at + 1..].iter().find(|(_, other)| overlap(*net, *other)) {
                return wrong(format!("{option} {net} and {other} {second} overlap: choose separate networks"));
            }
        }
        self.cluster_cidr.iter().try_for_each(|net| self.check_shares(net, nodes))?;
        self.service_cidr.iter().try_for_each(check_services)?;
        let Some(primary) = self.service_cidr.first() else { return Ok(()) };
        let (dns_ip, first) = (self.dns_ip, nth(primary, 1));
        if !primary.contains(&dns_ip) || [primary.network(), first, primary.broadcast()].contains(&dns_ip) {
            return wrong(format!("--dns-ip {dns_ip} must lie in --service-cidr {primary}, behind its first address: write {}", nth(primary, 10)));
        }
        Ok(())
    }

    fn check_families(&self) -> Result<(), AddressError> {
        let Self { cluster_cidr, service_cidr, .. } = self;
        let families = |nets: &Families<IpNet>| nets.iter().map(|net| if net.addr().is_ipv6() { "IPv6" } else { "IPv4" }).collect::<Vec<_>>();
        let (pods, services) = (families(cluster_cidr), families(service_cidr));
        if pods != services {
            let (pods, services) = (pods.join(" and "), services.join(" and "));
            return wrong(format!(
                "--cluster-cidr {cluster_cidr} is {pods}, --service-cidr {service_cidr} is {services}: give both options the same families, in one order"
            ));
        }
        if cluster_cidr.of(false).is_none() {
            return wrong(format!(
                "--cluster-cidr {cluster_cidr} has no IPv4, and Windows has no pod network of IPv6 alone: add an IPv4 network to --cluster-cidr and --service-cidr, as {cluster_cidr},{}",
                Self::default().cluster_cidr
            ));
        }
        Ok(())
    }

    /// Whether every node gets its part of a network for pods.
    fn check_shares(&self, net: IpNet, nodes: usize) -> Result<(), AddressError> {
        // The most that are counted: kube-controller-manager keeps no more of IPv6.
        const MOST_BITS: u8 = 16;
        let (option, mask, longest, default) = match net {
            IpNet::V4(_) => ("--node-mask", self.node_mask, 28, 24),
            IpNet::V6(_) => ("--node-mask-ipv6", self.node_mask_ipv6, 120, NODE_MASK_IPV6),
        };
        if !(net.prefix_len()..=longest).contains(&mask) {
            return wrong(format!("{option} {mask} must be from {} (that of --cluster-cidr) to {longest}", net.prefix_len()));
        }
        let bits = mask - net.prefix_len();
        if net.addr().is_ipv6() && bits > MOST_BITS {
            return wrong(format!(
                "--cluster-cidr {net} has more than {} parts of {option} {mask}: choose a prefix length from {} on, as {}/{}",
                1u32 << MOST_BITS,
                mask - MOST_BITS,
                net.network(),
                default - MOST_BITS
            ));
        }
        let room = 1u64 << bits.min(32);
        if room < nodes as u64 {
            return wrong(format!("--cluster-cidr {net} with {option} {mask} has room for {room} nodes, not {nodes}: enlarge either"));
        }
        Ok(())
    }
}

/// Whether a network can be used at all.
fn check_network(option: &str, net: IpNet, lan: &[IpNet]) -> Result<(), AddressError> {
    if net.addr() != net.network() {
        return wrong(format!("{option} {net} has bits behind its prefix: write {}", net.trunc()));
    }
    let of = |address: IpAddr, prefix| IpNet::new_assert(address, prefix);
    let special = [
        ("loopback", of(Ipv4Addr::new(127, 0, 0, 0).into(), 8)),
        ("link-local", of(Ipv4Addr::new(169, 254, 0, 0).into(), 16)),
        ("multicast", of(Ipv4Addr::new(224, 0, 0, 0).into(), 3)),
        ("loopback", of(Ipv6Addr::UNSPECIFIED.into(), 96)),
        ("link-local", of(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0).into(), 10)),
        ("multicast", of(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0).into(), 8)),
    ];
    if let Some((name, _)) = special.into_iter().find(|(_, special)| overlap(net, *special)) {
        let as_this = if net.addr().is_ipv6() { "fd00:10:244::/48".to_owned() } else { AddressOptions::default().cluster_cidr.to_string() };
        return wrong(format!("{option} {net} overlaps {name} addresses: choose private ones, as {as_this}"));
    }
    match lan.iter().find(|lan| overlap(net, **lan)) {
        Some(lan) => wrong(format!("{option} {net} overlaps the hosts' LAN {lan}: choose another network")),
        None => Ok(()),
    }
}

/// kube-apiserver allots from at most 64 bits of IPv6.
fn check_services(net: IpNet) -> Result<(), AddressError> {
    let (shortest, longest) = if net.addr().is_ipv6() { (64, 124) } else { (8, 28) };
    if (shortest..=longest).contains(&net.prefix_len()) {
        return Ok(());
    }
    wrong(format!("--service-cidr {net} must have a prefix length from {shortest} to {longest}"))
}

/// The `n`th address of a network, counted from its own.
pub fn nth(net: IpNet, n: u32) -> IpAddr {
    match net.network() {
        IpAddr::V4(address) => Ipv4Addr::from(u32::from(address).wrapping_add(n)).into(),
        IpAddr::V6(address) => Ipv6Addr::from(u128::from(address).wrapping_add(n.into())).into(),
    }
}

fn overlap(a: IpNet, b: IpNet) -> bool {
    a.contains(&b.network()) || b.contains(&a.network())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lan() -> [IpNet; 2] {
        ["10.240.0.0/24", "fd00:10:240::/64"].map(|net| net.parse().unwrap())
    }

    fn options(change: impl FnOnce(&mut AddressOptions)) -> AddressOptions {
        let mut options = AddressOptions::default();
        change(&mut options);
        options
    }

    #[test]
    fn each_wrong_option_is_named_with_a_way_out() {
        let net = |text: &str| text.parse::<Families<IpNet>>().unwrap();
        let of_balancers = |text: &str| text.parse::<Ipv4Net>().ok();
        let both = |pods: &str, services: &str| options(|o| (o.cluster_cidr, o.service_cidr) = (net(pods), net(services)));
        let cases = [
            (options(|o| o.cluster_cidr = net("192.168.1.0/16")), "--cluster-cidr 192.168.1.0/16 has bits behind its prefix: write 192.168.0.0/16"),
            (options(|o| o.cluster_cidr = net("10.240.0.0/16")), "overlaps the hosts' LAN"),
            (options(|o| o.cluster_cidr = net("127.0.0.0/16")), "overlaps loopback addresses"),
            (options(|o| o.service_cidr = net("192.168.128.0/20")), "--cluster-cidr 192.168.0.0/16 and --service-cidr 192.168.128.0/20 overlap"),
            (options(|o| o.node_mask = 15), "--node-mask 15 must be from 16"),
            (options(|o| o.node_mask = 29), "to 28"),
            (options(|o| o.node_mask = 16), "has room for 1 nodes, not 3"),
            (options(|o| o.dns_ip = Ipv4Addr::new(10, 96, 0, 1).into()), "behind its first address: write 10.96.0.10"),
            (options(|o| o.dns_ip = Ipv4Addr::new(10, 112, 0, 1).into()), "must lie in --service-cidr 10.96.0.0/12"),
            (options(|o| o.load_balancer_cidr = of_balancers("10.240.0.128/25")), "--load-balancer-cidr 10.240.0.128/25 overlaps the hosts' LAN"),
            (
                options(|o| o.load_balancer_cidr = of_balancers("10.100.0.0/24")),
                "--service-cidr 10.96.0.0/12 and --load-balancer-cidr 10.100.0.0/24 overlap",
            ),
            (options(|o| o.service_cidr = net("10.96.0.0/30")), "prefix length from 8 to 28"),
            (options(|o| o.cluster_cidr = net("192.168.0.0/16,fd00:1::/48")), "is IPv4 and IPv6, --service-cidr 10.96.0.0/12 is IPv4: give both"),
            (both("192.168.0.0/16,fd00:1::/48", "fd00:2::/112,10.96.0.0/12"), "the same families, in one order"),
            (both("fd00:1::/48", "fd00:2::/112"), "Windows has no pod network of IPv6 alone: add an IPv4 network"),
            (both("192.168.0.0/16,fd00:1::/47", "10.96.0.0/12,fd00:2::/112"), "choose a prefix length from 48 on, as fd00:1::/48"),
            (both("192.168.0.0/16,fd00:1::/65", "10.96.0.0/12,fd00:2::/112"), "--node-mask-ipv6 64 must be from 65 (that of --cluster-cidr) to 120"),
            (both("192.168.0.0/16,fd00:1::/63", "10.96.0.0/12,fd00:2::/112"), "--node-mask-ipv6 64 has room for 2 nodes, not 3"),
            (both("192.168.0.0/16,fd00:1::/48", "10.96.0.0/12,fd00:2::/48"), "--service-cidr fd00:2::/48 must have a prefix length from 64 to 124"),
            (both("192.168.0.0/16,fd00:1::/48", "10.96.0.0/12,fd00:1::/112"), "--cluster-cidr fd00:1::/48 and --service-cidr fd00:1::/112 overlap"),
            (both("192.168.0.0/16,fd00:10::/32", "10.96.0.0/12,fd00:2::/112"), "overlaps the hosts' LAN fd00:10:240::/64"),
            (
                both("192.168.0.0/16,fe80::/48", "10.96.0.0/12,fd00:2::/112"),
                "overlaps link-local addresses: choose private ones, as fd00:10:244::/48",
            ),
            (
                both("fd00:1::/48,192.168.0.0/16", "fd00:2::/112,10.96.0.0/12"),
                "--dns-ip 10.96.0.10 must lie in --service-cidr fd00:2::/112, behind its first address: write fd00:2::a",
            ),
        ];
        for (options, expected) in cases {
            let message = options.check(3, &lan()).expect_err(expected).to_string();
            assert!(message.contains(expected), "{message}");
        }
        AddressOptions::default().check(3, &lan()).unwrap();
        both("192.168.0.0/16,fd00:1::/48", "10.96.0.0/12,fd00:2::/112").check(3, &lan()).unwrap();
        let six_first = both("fd00:1::/48,192.168.0.0/16", "fd00:2::/112,10.96.0.0/12");
        AddressOptions { dns_ip: "fd00:2::a".parse().unwrap(), ..six_first }.check(3, &lan()).unwrap();
        options(|o| o.load_balancer_cidr = "10.241.0.0/24".parse().ok()).check(3, &lan()).unwrap();
    }

    #[test]
    fn options_without_a_range_of_node_ports_have_the_default() {
        let kept = r#"{"clusterCidr": "192.168.0.0/16", "nodeMask": 24, "serviceCidr": "10.96.0.0/12", "dnsIp": "10.96.0.10"}"#;
        assert_eq!(serde_json::from_str::<AddressOptions>(kept).unwrap(), AddressOptions::default());
    }
}
