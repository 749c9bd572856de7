//! Namespaces, the bridge between them, and addresses.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use linux_sys::netlink::{Link, Route, Rtnl};
use linux_sys::ns::NetNs;
use linux_sys::sysctl;

use crate::lan::{self, LAN_IPV6, ROUTER, SECOND_ADAPTER};
use crate::outside;
use crate::protocol::InitConfig;

/// The bridge in `gw` that is the LAN.
const BRIDGE: &str = "lan0";
/// The bridge in `gw` that second adapters are on.
const SECOND_BRIDGE: &str = "lan1";
/// Every host's adapter on the LAN.
const UPLINK: &str = "eth0";

/// What each host needs to forward packets for its pods, beyond the known state of a new namespace. Set before its first link, which
/// copies the `default` ones.
const SWITCHES: [(&str, &str); 7] = [
    ("net.ipv4.ip_forward", "1"),
    // Pods' packets return by other links than they came by.
    ("net.ipv4.conf.all.rp_filter", "0"),
    ("net.ipv4.conf.default.rp_filter", "0"),
    // Hosts are routers on one LAN: none must send redirects to the others.
    ("net.ipv4.conf.all.send_redirects", "0"),
    ("net.ipv4.conf.default.send_redirects", "0"),
    ("net.ipv4.conf.all.accept_redirects", "0"),
    ("net.ipv4.conf.default.accept_redirects", "0"),
];

/// The same of IPv6, in labs that have it. Addresses are the lab's own: nothing is learned from advertisements, and nobody else has them.
const IPV6_SWITCHES: [(&str, &str); 9] = [
    ("net.ipv6.conf.all.forwarding", "1"),
    ("net.ipv6.conf.default.forwarding", "1"),
    ("net.ipv6.conf.all.accept_ra", "0"),
    ("net.ipv6.conf.default.accept_ra", "0"),
    ("net.ipv6.conf.all.accept_redirects", "0"),
    ("net.ipv6.conf.default.accept_redirects", "0"),
    // Detection takes a second, in which a link cannot look for neighbours.
    ("net.ipv6.conf.default.dad_transmits", "0"),
    ("net.ipv6.conf.default.accept_dad", "0"),
    // No limit of one ICMP message a second: what leads nowhere is refused at once.
    ("net.ipv6.icmp.ratelimit", "0"),
];

/// Makes namespaces, links, addresses and routes; returns the namespaces by host, `gw` among them.
pub(super) fn build(config: &InitConfig) -> io::Result<BTreeMap<String, NetNs>> {
    let mut hosts = BTreeMap::new();
    let gw = make(config, ROUTER)?;
    let router = Rtnl::open_in(&gw)?;
    router.add_bridge(BRIDGE)?;
    let bridge = link(&router, BRIDGE)?;
    router.set_mac(bridge.index, mac(config.gateway))?;
    give_addresses(&router, bridge.index, config.gateway, config)?;
    router.set_up(bridge.index)?;
    for host in &config.hosts {
        let ns = make(config, &host.name)?;
        let port = format!("lan-{}", host.address.octets()[3]);
        router.add_veth(&port, UPLINK, Some(&ns))?;
        let port = link(&router, &port)?;
        router.set_master(port.index, Some(bridge.index))?;
        router.set_up(port.index)?;
        let inside = Rtnl::open_in(&ns)?;
        let uplink = link(&inside, UPLINK)?;
        inside.set_mac(uplink.index, mac(host.address))?;
        give_addresses(&inside, uplink.index, host.address, config)?;
        inside.set_up(uplink.index)?;
        for (everywhere, gateway) in default_routes(config) {
            inside.add_route(&Route::new(everywhere).via(gateway).oif(uplink.index))?;
        }
        // Asking for a link has the kernel (6.8 on) act on its carrier now; else it does so within a
        // second, and what is sent before that is lost.
        link(&inside, UPLINK)?;
        link(&router, &port.name)?;
        if config.two_adapters.contains(&host.name) {
            add_second_adapter(&router, &inside, &ns, host.address)?;
        }
        hosts.insert(host.name.clone(), ns);
    }
    let lan = link(&router, BRIDGE)?;
    for (network, hop) in &config.routes {
        router.add_route(&Route::new(*network).via(*hop).oif(lan.index))?;
    }
    // Refuse connections to the outside at once, without the limit of one ICMP message a second.
    sysctl::set_in(&gw, "net.ipv4.icmp_ratelimit", "0")?;
    if config.outside {
        translate(&gw)?;
    }
    hosts.insert(ROUTER.into(), gw);
    Ok(hosts)
}

/// A second adapter of a host, which is up and has no address.
fn add_second_adapter(router: &Rtnl, inside: &Rtnl, ns: &NetNs, address: Ipv4Addr) -> io::Result<()> {
    if router.link(SECOND_BRIDGE)?.is_none() {
        router.add_bridge(SECOND_BRIDGE)?;
        router.set_up(link(router, SECOND_BRIDGE)?.index)?;
    }
    let bridge = link(router, SECOND_BRIDGE)?;
    let name = format!("lan1-{}", address.octets()[3]);
    router.add_veth(&name, SECOND_ADAPTER, Some(ns))?;
    let port = link(router, &name)?;
    router.set_master(port.index, Some(bridge.index))?;
    router.set_up(port.index)?;
    inside.set_up(link(inside, SECOND_ADAPTER)?.index)?;
    // As above: the kernel acts on carriers now.
    link(inside, SECOND_ADAPTER)?;
    link(router, &name)?;
    Ok(())
}

/// What leaves the LAN has the router's address.
fn translate(gw: &NetNs) -> io::Result<()> {
    let table = nft::Table::new(nft::Family::Ip, "mullion-gw");
    let mut desired: nft::Desired = nft::Desired::new(table);
    let postrouting = nft::Chain::base("postrouting", nft::ChainType::Nat, nft::Hook::Postrouting, 100);
    desired.chain(postrouting, [nft::rule().oifname(outside::LINK).masquerade()]);
    nft::Engine::new(nft::Nft::open_in(gw)?).reconcile(vec![desired])?;
    Ok(())
}

/// A host's namespace, pinned, with its switches, and the directory for those of its pods.
fn make(config: &InitConfig, host: &str) -> io::Result<NetNs> {
    let path = config.run.join("ns").join(host);
    std::fs::create_dir(config.run.join("ns").join(format!("{host}.d")))?;
    let ns = NetNs::create_at(&path)?;
    let ipv6 = IPV6_SWITCHES.iter().filter(|_| config.ipv6);
    ns.run(|| SWITCHES.iter().chain(ipv6).try_for_each(|(name, value)| sysctl::set(name, value)))??;
    Ok(ns)
}

fn link(rtnl: &Rtnl, name: &str) -> io::Result<Link> {
    rtnl.link(name)?.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("link {name} is gone")))
}

/// The addresses of a host on the LAN.
fn give_addresses(rtnl: &Rtnl, link: u32, address: Ipv4Addr, config: &InitConfig) -> io::Result<()> {
    rtnl.add_addr(link, on_lan(address, config.prefix))?;
    if config.ipv6 {
        rtnl.add_addr(link, IpNet::new_assert(lan::ipv6(address).into(), LAN_IPV6.prefix_len()))?;
    }
    Ok(())
}

/// Where a host sends what is not on the LAN.
fn default_routes(config: &InitConfig) -> Vec<(IpNet, IpAddr)> {
    let mut routes = vec![(IpNet::new_assert(Ipv4Addr::UNSPECIFIED.into(), 0), config.gateway.into())];
    if config.ipv6 {
        routes.push((IpNet::new_assert(Ipv6Addr::UNSPECIFIED.into(), 0), lan::ipv6(config.gateway).into()));
    }
    routes
}

fn on_lan(address: Ipv4Addr, prefix: u8) -> IpNet {
    IpNet::new_assert(address.into(), prefix)
}

/// A hardware address that contains its host's IP address: the local bit, then the address.
fn mac(address: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = address.octets();
    [0x02, 0x4d, a, b, c, d]
}
