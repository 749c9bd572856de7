//! Adapter of links: bridges, tunnels, their addresses, neighbours and routes.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use linux_sys::netlink::{self, Route, Vxlan};
use linux_sys::sysctl;
use thiserror_ext::AsReport as _;

use super::LinuxKernel;
use crate::fact::{Fact, Forwarding, Link, uplink_bridge};
use crate::mac::Mac;

/// The prefixes of our links' names.
pub(super) const BRIDGE: &str = "hns";
const PORT: &str = "ep";
pub(super) const TUNNEL: &str = "hvx";

pub(super) fn absent(what: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("there is no {what}"))
}

/// Whether a name is one that [`crate::fact`] gives to a link.
fn is_ours(name: &str) -> bool {
    let kinds = [(BRIDGE, 8), (TUNNEL, 8), (PORT, 12)];
    let digits = kinds.iter().find_map(|(prefix, length)| name.strip_prefix(prefix).filter(|digits| digits.len() == *length));
    name == uplink_bridge() || digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

impl LinuxKernel {
    /// Makes the host forward packets, without ICMP redirects to pods.
    pub(super) fn prepare_host(&self) -> io::Result<()> {
        self.set(&[
            ("net.ipv4.ip_forward".into(), "1"),
            ("net.ipv4.conf.all.send_redirects".into(), "0"),
            ("net.ipv4.conf.all.accept_redirects".into(), "0"),
            ("net.ipv4.conf.all.rp_filter".into(), "0"),
        ])?;
        // Where the bridge firewall is loaded it would translate packets on their way into the bridge, before the host routes them; and a host
        // without IPv6 is a host.
        for (name, value) in
            [("net.bridge.bridge-nf-call-iptables", "0"), ("net.bridge.bridge-nf-call-ip6tables", "0"), ("net.ipv6.conf.all.forwarding", "1")]
        {
            match self.set(&[(name.into(), value)]) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn set(&self, switches: &[(String, &str)]) -> io::Result<()> {
        self.node.run(|| switches.iter().try_for_each(|(name, value)| sysctl::set(name, value)))?
    }

    /// The number of a link. Numbers are remembered: thousands of facts name the same few links.
    pub(super) fn index(&self, name: &str) -> io::Result<u32> {
        if let Some(index) = self.known.borrow().get(name) {
            return Ok(*index);
        }
        let index = self.rtnl.link(name)?.ok_or_else(|| absent(format_args!("link {name}")))?.index;
        if name.starts_with(BRIDGE) || name.starts_with(TUNNEL) {
            self.known.borrow_mut().insert(name.to_owned(), index);
        }
        Ok(index)
    }

    /// Makes a fact about links hold.
    pub(super) fn make(&self, link: &Link) -> io::Result<()> {
        match link {
            Link::Bridge { name, forwarding } => self.make_bridge(name, *forwarding),
            Link::BridgeMac { bridge, mac } => Ok(self.rtnl.set_mac(self.index(bridge)?, mac.0)?),
            Link::Uplink { bridge } => self.enslave_uplink(bridge),
            Link::Fabric => self.make_fabric(),
            Link::Tunnel { name, vni, port, local, mac } => self.make_tunnel(name, *vni, *port, *local, *mac),
            Link::BridgeAddress { bridge, address } => Ok(self.rtnl.add_addr(self.index(bridge)?, *address)?),
            Link::Port(port) => self.make_port(port).inspect_err(|_| {
                // A half-made port would be in the way of the next attempt.
                if let Err(error) = self.unmake(link) {
                    tracing::warn!(error = %error.as_report(), port = port.name, "a half-made port stays");
                }
            }),
            Link::Blocked { port } => self.block_port(port, true),
            Link::Rate { compartment, interface, bytes } => self.bound(compartment, interface, *bytes),
            Link::Neighbour { link, address, mac } => Ok(self.rtnl.add_neigh(self.index(link)?, *address, mac.0)?),
            Link::Peer { tunnel, mac, host, vni } => Ok(self.rtnl.add_fdb(self.index(tunnel)?, mac.0, Some(*host), *vni)?),
            Link::Hops { ipv6 } => self.make_gate(*ipv6),
            Link::Hop(hop) => self.make_hop(*hop),
            Link::Route { tunnel, prefix, router } => Ok(self.rtnl.replace_route(&through(self.index(tunnel)?, *prefix, *router))?),
        }
    }

    /// Makes a fact about links no longer hold. What is gone already is fine.
    pub(super) fn unmake(&self, link: &Link) -> io::Result<()> {
        match link {
            Link::Bridge { name, .. } => self.delete_link(name),
            Link::Tunnel { name, .. } => self.delete_tunnel(name),
            Link::Port(port) => self.delete_link(&port.name),
            Link::Rate { compartment, interface, .. } => self.unbound(compartment, interface),
            Link::Blocked { port } => match self.block_port(port, false) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                other => other,
            },
            Link::Uplink { bridge } => self.release_uplink(bridge),
            Link::Fabric => self.unmake_fabric(),
            Link::BridgeAddress { bridge, address } => self.on_link(bridge, |index| self.rtnl.del_addr(index, *address)),
            Link::Neighbour { link, address, .. } => self.on_link(link, |index| self.rtnl.del_neigh(index, *address)),
            Link::Peer { tunnel, mac, host, vni } => self.on_link(tunnel, |index| self.rtnl.del_fdb(index, mac.0, Some(*host), *vni)),
            Link::Route { tunnel, prefix, router } => self.on_link(tunnel, |index| self.rtnl.del_route(&through(index, *prefix, *router))),
            Link::Hops { ipv6 } => self.unmake_gate(*ipv6),
            Link::Hop(hop) => self.unmake_hop(*hop),
            // A bridge's MAC goes with the bridge.
            Link::BridgeMac { .. } => Ok(()),
        }
    }

    /// Takes something from a link; where either is gone, that is fine.
    fn on_link(&self, name: &str, take: impl FnOnce(u32) -> netlink::Result<()>) -> io::Result<()> {
        match self.index(name) {
            Ok(index) => gone_is_fine(take(index)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn delete_link(&self, name: &str) -> io::Result<()> {
        self.known.borrow_mut().remove(name);
        match self.rtnl.link(name)? {
            Some(link) => gone_is_fine(self.rtnl.del_link(link.index)),
            None => Ok(()),
        }
    }

    fn make_bridge(&self, name: &str, forwarding: Forwarding) -> io::Result<()> {
        if self.rtnl.link(name)?.is_none() {
            self.rtnl.add_bridge(name)?;
        }
        let index = self.index(name)?;
        let uplink = name == uplink_bridge();
        let routed = if forwarding == Forwarding::Routed { "1" } else { "0" };
        self.set(&[
            // Answers for every address of the subnet that lies behind the same bridge: pods reach each other through the host …
            (format!("net.ipv4.conf.{name}.proxy_arp_pvlan"), routed),
            // … at once, not after the up to 800 ms that a proxy politely waits …
            (format!("net.ipv4.neigh.{name}.proxy_delay"), "0"),
            // … and get no redirect to each other, which isolated ports would block.
            (format!("net.ipv4.conf.{name}.send_redirects"), "0"),
            (format!("net.ipv4.conf.{name}.rp_filter"), "0"),
            // A switched network ends at the host; what comes from the LAN is as good as before.
            (format!("net.ipv4.conf.{name}.forwarding"), if uplink { "1" } else { routed }),
        ])?;
        Ok(self.rtnl.set_up(index)?)
    }

    fn make_tunnel(&self, name: &str, vni: u32, port: u16, local: Ipv4Addr, mac: Mac) -> io::Result<()> {
        if self.rtnl.link(name)?.is_none() {
            let device = self.rtnl.link(&self.uplink)?.map(|link| link.master.unwrap_or(link.index));
            self.rtnl.add_vxlan(name, &Vxlan { vni, local: Some(local.into()), device, port, learning: false })?;
        }
        let made = self.set_up_tunnel(name, mac);
        if made.is_err() {
            self.delete_tunnel(name)?;
        }
        made
    }

    fn delete_tunnel(&self, name: &str) -> io::Result<()> {
        self.close_tunnel(name)?;
        self.delete_link(name)
    }

    fn set_up_tunnel(&self, name: &str, mac: Mac) -> io::Result<()> {
        let index = self.index(name)?;
        self.rtnl.set_mac(index, mac.0)?;
        self.set(&[(format!("net.ipv4.conf.{name}.send_redirects"), "0"), (format!("net.ipv4.conf.{name}.rp_filter"), "0")])?;
        self.open_tunnel(name)?;
        Ok(self.rtnl.set_up(index)?)
    }

    pub(super) fn uplink_address(&self) -> io::Result<Option<Ipv4Addr>> {
        let Some(link) = self.rtnl.link(&self.uplink)? else { return Ok(None) };
        let addresses = self.rtnl.addrs(link.master.unwrap_or(link.index))?;
        Ok(addresses.into_iter().find_map(|address| match address.addr() {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        }))
    }

    /// Removes links and addresses that are ours and not among `facts`. Returns our links that were there.
    pub(super) fn remove_stray_links(&self, facts: &BTreeSet<Fact>) -> Result<Vec<netlink::Link>, (String, io::Error)> {
        self.known.borrow_mut().clear();
        let listed = self.rtnl.links().map_err(|error| ("listing links".to_owned(), error.into()))?;
        let existing: Vec<netlink::Link> = listed.into_iter().filter(|link| is_ours(&link.name)).collect();
        self.remove_strays(facts, &existing)?;
        Ok(existing)
    }

    /// Makes the links among `facts`, of which some are `existing`.
    pub(super) fn make_links(&self, facts: &BTreeSet<Fact>, existing: &[netlink::Link]) -> Result<(), (String, io::Error)> {
        for link in facts.iter().filter_map(Fact::link) {
            let made = match link {
                // A port that exists carries a pod's traffic: it stays as it is.
                Link::Port(port) if existing.iter().any(|device| device.name == port.name) => Ok(()),
                link => self.make(link),
            };
            made.map_err(|error| (link.to_string(), error))?;
        }
        Ok(())
    }

    fn remove_strays(&self, facts: &BTreeSet<Fact>, existing: &[netlink::Link]) -> Result<(), (String, io::Error)> {
        let desired: BTreeSet<&str> = facts
            .iter()
            .filter_map(Fact::link)
            .filter_map(|link| match link {
                Link::Bridge { name, .. } | Link::Tunnel { name, .. } => Some(name.as_str()),
                Link::Port(port) => Some(port.name.as_str()),
                _ => None,
            })
            .collect();
        for link in existing {
            let failed = |error| (format!("stray link {}", link.name), error);
            if !desired.contains(link.name.as_str()) {
                self.release_uplink(&link.name).map_err(failed)?;
                if link.name.starts_with(TUNNEL) { self.delete_tunnel(&link.name) } else { self.delete_link(&link.name) }.map_err(failed)?;
            } else if link.name.starts_with(BRIDGE) && link.name != uplink_bridge() {
                self.remove_stray_addresses(facts, link).map_err(failed)?;
            } else if link.name.starts_with(TUNNEL) {
                self.remove_stray_ways(facts, link).map_err(failed)?;
            }
        }
        if !facts.contains(&Fact::Link(Link::Fabric)) {
            self.unmake_fabric().map_err(|error| ("the way to the fabric".to_owned(), error))?;
        }
        self.remove_stray_hops(facts).map_err(|error| ("stray hops".to_owned(), error))
    }

    fn remove_stray_addresses(&self, facts: &BTreeSet<Fact>, link: &netlink::Link) -> io::Result<()> {
        for address in self.rtnl.addrs(link.index)? {
            let kernels = matches!(address, IpNet::V6(v6) if v6.addr().is_unicast_link_local());
            if !kernels && !facts.contains(&Fact::Link(Link::BridgeAddress { bridge: link.name.clone(), address })) {
                gone_is_fine(self.rtnl.del_addr(link.index, address))?;
            }
        }
        Ok(())
    }

    /// Removes routes, neighbours and peers of a tunnel without a fact.
    fn remove_stray_ways(&self, facts: &BTreeSet<Fact>, link: &netlink::Link) -> io::Result<()> {
        let tunnel = || link.name.clone();
        for route in self.rtnl.routes()?.into_iter().filter(|route| route.oif == Some(link.index) && route.dst.addr().is_ipv4()) {
            if !facts.contains(&Fact::Link(Link::Route { tunnel: tunnel(), prefix: route.dst, router: route.via })) {
                gone_is_fine(self.rtnl.del_route(&route))?;
            }
        }
        for neighbour in self.rtnl.neighbours(link.index)?.into_iter().filter(|neighbour| neighbour.permanent) {
            let Some(mac) = neighbour.mac else { continue };
            if !facts.contains(&Fact::Link(Link::Neighbour { link: tunnel(), address: neighbour.ip, mac: Mac(mac) })) {
                gone_is_fine(self.rtnl.del_neigh(link.index, neighbour.ip))?;
            }
        }
        for entry in self.rtnl.fdb(link.index)? {
            let Some(host) = entry.dst else { continue };
            if !facts.contains(&Fact::Link(Link::Peer { tunnel: tunnel(), mac: Mac(entry.mac), host, vni: entry.vni })) {
                gone_is_fine(self.rtnl.del_fdb(link.index, entry.mac, Some(host), entry.vni))?;
            }
        }
        Ok(())
    }
}

/// What shall go may be gone.
pub(super) fn gone_is_fine(result: netlink::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(()),
    }
}

/// A route through a tunnel. Nothing else announces the router's address there.
fn through(tunnel: u32, prefix: IpNet, router: Option<IpAddr>) -> Route {
    let route = Route::new(prefix).oif(tunnel);
    match router {
        Some(router) => Route { onlink: true, ..route.via(router) },
        None => route,
    }
}
