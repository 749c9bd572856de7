//! Links, addresses, neighbours and compartments.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr};

use hcn::Guid;
use ipnet::{IpNet, Ipv4Net};
use linux_sys::netlink::{self, BridgePort, Link, Route, Rtnl};
use linux_sys::ns::NetNs;
use linux_sys::sysctl;

use super::LinuxKernel;
use crate::fact::{Fact, Forwarding, Port};

/// The prefixes of our links' names.
const BRIDGE: &str = "hns";
const PORT: &str = "ep";

fn absent(what: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("there is no {what}"))
}

/// Whether a name is one that [`crate::fact::bridge_name`] or [`crate::fact::port_name`] gives.
fn is_ours(name: &str) -> bool {
    let digits = name.strip_prefix(BRIDGE).filter(|digits| digits.len() == 8).or(name.strip_prefix(PORT).filter(|digits| digits.len() == 12));
    digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// The MAC of a bridge: fixed, or it would follow the bridge's ports and pods would lose their gateway.
fn bridge_mac(name: &str) -> [u8; 6] {
    let digits = u32::from_str_radix(name.trim_start_matches(BRIDGE), 16).unwrap_or_default();
    let [a, b, c, d] = digits.to_be_bytes();
    [0x02, 0x4d, a, b, c, d]
}

impl LinuxKernel {
    /// The host forwards, and never tells a pod of a shorter way.
    pub(super) fn prepare_host(&self) -> io::Result<()> {
        self.set(&[
            ("net.ipv4.ip_forward".into(), "1"),
            ("net.ipv4.conf.all.send_redirects".into(), "0"),
            ("net.ipv4.conf.all.rp_filter".into(), "0"),
        ])?;
        // Where the bridge firewall is loaded it would translate packets on their way into the bridge, before the host routes them.
        match self.set(&[("net.bridge.bridge-nf-call-iptables".into(), "0")]) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn set(&self, switches: &[(String, &str)]) -> io::Result<()> {
        self.node.run(|| switches.iter().try_for_each(|(name, value)| sysctl::set(name, value)))?
    }

    fn index(&self, name: &str) -> io::Result<u32> {
        Ok(self.rtnl.link(name)?.ok_or_else(|| absent(format_args!("link {name}")))?.index)
    }

    fn compartment(&self, id: &Guid) -> std::path::PathBuf {
        self.netns_dir.join(id.to_string())
    }

    /// Makes a fact about links hold.
    pub(super) fn make(&self, fact: &Fact) -> io::Result<()> {
        match fact {
            Fact::Bridge { name, forwarding } => self.make_bridge(name, *forwarding),
            Fact::BridgeAddress { bridge, address } => Ok(self.rtnl.add_addr(self.index(bridge)?, IpNet::V4(*address))?),
            Fact::Compartment(id) => NetNs::create_at(&self.compartment(id)).map(drop),
            Fact::Port(port) => self.make_port(port).inspect_err(|_| {
                // A half-made port would be in the way of the next attempt.
                if let Err(error) = self.unmake(fact) {
                    tracing::warn!(%error, port = port.name, "a half-made port stays");
                }
            }),
            Fact::Neighbour { bridge, address, mac } => Ok(self.rtnl.add_neigh(self.index(bridge)?, IpAddr::V4(*address), mac.0)?),
            _ => Ok(()),
        }
    }

    /// Makes a fact about links hold no longer. What is gone already is fine.
    pub(super) fn unmake(&self, fact: &Fact) -> io::Result<()> {
        match fact {
            Fact::Bridge { name, .. } => self.delete_link(name),
            Fact::Port(port) => self.delete_link(&port.name),
            Fact::BridgeAddress { bridge, address } => match self.rtnl.link(bridge)? {
                Some(link) => gone_is_fine(self.rtnl.del_addr(link.index, IpNet::V4(*address))),
                None => Ok(()),
            },
            Fact::Neighbour { bridge, address, .. } => match self.rtnl.link(bridge)? {
                Some(link) => gone_is_fine(self.rtnl.del_neigh(link.index, IpAddr::V4(*address))),
                None => Ok(()),
            },
            Fact::Compartment(id) => NetNs::remove_at(&self.compartment(id)),
            _ => Ok(()),
        }
    }

    fn delete_link(&self, name: &str) -> io::Result<()> {
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
        self.rtnl.set_mac(index, bridge_mac(name))?;
        let routed = if forwarding == Forwarding::Routed { "1" } else { "0" };
        self.set(&[
            // Answers for every address of the subnet that lies behind the same bridge: pods reach each other through the host …
            (format!("net.ipv4.conf.{name}.proxy_arp_pvlan"), routed),
            // … at once, not after the up to 800 ms that a proxy politely waits …
            (format!("net.ipv4.neigh.{name}.proxy_delay"), "0"),
            // … and are not told to talk directly, which isolated ports would not let them.
            (format!("net.ipv4.conf.{name}.send_redirects"), "0"),
            (format!("net.ipv4.conf.{name}.rp_filter"), "0"),
            // A switched network ends at the host.
            (format!("net.ipv4.conf.{name}.forwarding"), routed),
        ])?;
        Ok(self.rtnl.set_up(index)?)
    }

    fn make_port(&self, port: &Port) -> io::Result<()> {
        let path = self.compartment(&port.compartment);
        let compartment = NetNs::open(&path)?;
        let bridge = self.index(&port.bridge)?;
        let mtu = self.mtu(port)?;
        self.rtnl.add_veth(&port.name, &port.interface, Some(&compartment))?;
        let outer = self.index(&port.name)?;
        self.rtnl.set_mtu(outer, mtu)?;
        self.rtnl.set_master(outer, Some(bridge))?;
        self.rtnl.set_bridge_port(outer, BridgePort { isolated: Some(port.forwarding == Forwarding::Routed), ..BridgePort::default() })?;
        self.rtnl.set_up(outer)?;

        let inside = Rtnl::open_in(&compartment)?;
        let inner = inside.link(&port.interface)?.ok_or_else(|| absent(format_args!("interface {}", port.interface)))?.index;
        inside.set_mac(inner, port.mac.0)?;
        inside.set_mtu(inner, mtu)?;
        for address in &port.addresses {
            inside.add_addr(inner, IpNet::V4(*address))?;
        }
        inside.set_up(inner)?;
        for (prefix, gateway, metric) in &port.routes {
            inside.replace_route(&route(*prefix, *gateway, *metric, inner, &port.addresses))?;
        }
        // Asking for a link has the kernel (6.8 on) act on its carrier now; else it does so within a second, and what the
        // pod sends before that is lost.
        inside.link(&port.interface)?;
        self.rtnl.link(&port.name)?;
        self.rtnl.link(&port.bridge)?;
        Ok(())
    }

    /// The port's own MTU, else the uplink's; less what encapsulation takes.
    fn mtu(&self, port: &Port) -> io::Result<u32> {
        let uplink = self.rtnl.link(&self.uplink)?.map_or(1500, |link| link.mtu);
        Ok(port.mtu.map_or(uplink, u32::from).saturating_sub(port.overhead.into()))
    }

    /// The uplink's address.
    pub(super) fn uplink_address(&self) -> io::Result<Option<Ipv4Addr>> {
        let Some(link) = self.rtnl.link(&self.uplink)? else { return Ok(None) };
        let addresses = self.rtnl.addrs(link.index)?;
        Ok(addresses.into_iter().find_map(|address| match address.addr() {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        }))
    }

    /// Removes links, addresses and compartments that are ours and not among `facts`, then makes what is missing.
    pub(super) fn reconcile_links(&self, facts: &BTreeSet<Fact>) -> Result<(), (String, io::Error)> {
        let listed = self.rtnl.links().map_err(|error| ("listing links".to_owned(), error.into()))?;
        let existing: Vec<Link> = listed.into_iter().filter(|link| is_ours(&link.name)).collect();
        self.remove_strays(facts, &existing)?;
        for fact in facts.iter().filter(|fact| is_link(fact)) {
            let made = match fact {
                // A port that exists carries a pod's traffic: it stays as it is.
                Fact::Port(port) if existing.iter().any(|link| link.name == port.name) => Ok(()),
                fact => self.make(fact),
            };
            made.map_err(|error| (fact.to_string(), error))?;
        }
        Ok(())
    }

    fn remove_strays(&self, facts: &BTreeSet<Fact>, existing: &[Link]) -> Result<(), (String, io::Error)> {
        let wanted: BTreeSet<&str> = facts
            .iter()
            .filter_map(|fact| match fact {
                Fact::Bridge { name, .. } => Some(name.as_str()),
                Fact::Port(port) => Some(port.name.as_str()),
                _ => None,
            })
            .collect();
        for link in existing {
            let failed = |error| (format!("stray link {}", link.name), error);
            if !wanted.contains(link.name.as_str()) {
                gone_is_fine(self.rtnl.del_link(link.index)).map_err(failed)?;
                continue;
            }
            if link.name.starts_with(BRIDGE) {
                for address in self.rtnl.addrs(link.index).map_err(|error| failed(error.into()))? {
                    let IpNet::V4(v4) = address else { continue };
                    if !facts.contains(&Fact::BridgeAddress { bridge: link.name.clone(), address: v4 }) {
                        gone_is_fine(self.rtnl.del_addr(link.index, address)).map_err(failed)?;
                    }
                }
            }
        }
        self.remove_stray_compartments(facts).map_err(|error| ("stray compartments".to_owned(), error))
    }

    fn remove_stray_compartments(&self, facts: &BTreeSet<Fact>) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.netns_dir)? {
            let entry = entry?;
            let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<Guid>().ok()) else { continue };
            if !facts.contains(&Fact::Compartment(id)) {
                NetNs::remove_at(&entry.path())?;
            }
        }
        Ok(())
    }
}

/// Whether a fact is about links rather than address translation.
pub(super) fn is_link(fact: &Fact) -> bool {
    matches!(fact, Fact::Bridge { .. } | Fact::BridgeAddress { .. } | Fact::Compartment(_) | Fact::Port(_) | Fact::Neighbour { .. })
}

/// What shall go may be gone.
fn gone_is_fine(result: netlink::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(()),
    }
}

fn route(prefix: Ipv4Net, gateway: Ipv4Addr, metric: u16, interface: u32, addresses: &[Ipv4Net]) -> Route {
    let on_link = !addresses.iter().any(|address| address.contains(&gateway));
    let route = Route::new(IpNet::V4(prefix)).via(IpAddr::V4(gateway)).oif(interface);
    Route { onlink: on_link, metric: metric.into(), ..route }
}
