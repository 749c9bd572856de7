//! Ports: veth pairs between bridges and compartments; the uplink as a port; the route to the fabric.

use std::io;
use std::net::IpAddr;

use hcn::Guid;
use hcn::document::EndpointStats;
use ipnet::IpNet;
use linux_sys::netlink::{BridgePort, Rate, Route, Rtnl, Rule};
use linux_sys::ns::NetNs;
use linux_sys::sysctl;

use super::LinuxKernel;
use super::links::{absent, gone_is_fine};
use crate::fact::{Forwarding, Port, TO_FABRIC, port_name};

/// The routing table that leads to the fabric, and the place of the rule that asks it.
const FABRIC_TABLE: u32 = 0x4d75;
const FABRIC_PRIORITY: u32 = 100;

impl LinuxKernel {
    pub(super) fn make_port(&self, port: &Port) -> io::Result<()> {
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
        follow_nobody(port, &compartment)?;
        self.give_addresses(port, &inside, inner)?;
        // Asking for a link has the kernel (6.8 on) act on its carrier now; else it does so within a second, and what the
        // pod sends before that is lost.
        inside.link(&port.interface)?;
        self.rtnl.link(&port.name)?;
        self.rtnl.link(&port.bridge)?;
        Ok(())
    }

    fn give_addresses(&self, port: &Port, inside: &Rtnl, inner: u32) -> io::Result<()> {
        let routed = port.forwarding == Forwarding::Routed;
        for address in &port.addresses {
            // The host answers for its pods' neighbours in IPv4 alone: in IPv6 they are reached by the gateway.
            if routed && address.addr().is_ipv6() { inside.add_lone_addr(inner, *address) } else { inside.add_addr(inner, *address) }?;
        }
        inside.set_up(inner)?;
        for (prefix, gateway, metric) in &port.routes {
            inside.replace_route(&route(*prefix, *gateway, *metric, inner, port))?;
        }
        Ok(())
    }

    /// The port's own MTU, else the uplink's; less what encapsulation takes.
    fn mtu(&self, port: &Port) -> io::Result<u32> {
        let uplink = self.rtnl.link(&self.uplink)?.map_or(1500, |link| link.mtu);
        Ok(port.mtu.map_or(uplink, u32::from).saturating_sub(port.overhead.into()))
    }

    pub(super) fn block_port(&self, port: &str, blocked: bool) -> io::Result<()> {
        Ok(self.rtnl.set_bridge_port(self.index(port)?, BridgePort { blocked: Some(blocked), ..BridgePort::default() })?)
    }

    /// Bounds what an interface sends. Segments wait their turn, as long as they come to a tenth of a second.
    pub(super) fn bound(&self, compartment: &Guid, interface: &str, bytes: u64) -> io::Result<()> {
        const LEAST_BURST: u64 = 16 * 1024;
        let share = |part: u64| u32::try_from((bytes / part).max(LEAST_BURST)).unwrap_or(u32::MAX);
        let rate = Rate { bytes, burst: share(100), queue: share(10).saturating_add(share(100)) };
        let inside = Rtnl::open_in(&NetNs::open(&self.compartment(compartment))?)?;
        let link = inside.link(interface)?.ok_or_else(|| absent(format_args!("interface {interface}")))?;
        Ok(inside.set_rate(link.index, rate)?)
    }

    /// Takes the bound away, where the interface is still there.
    pub(super) fn unbound(&self, compartment: &Guid, interface: &str) -> io::Result<()> {
        let inside = match NetNs::open(&self.compartment(compartment)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => Rtnl::open_in(&other?)?,
        };
        inside.link(interface)?.map_or(Ok(()), |link| gone_is_fine(inside.del_rate(link.index)))
    }

    /// Counters of a port: what the host's end received, the endpoint sent.
    pub(super) fn port_stats(&self, endpoint: &Guid) -> io::Result<Option<EndpointStats>> {
        let Some(link) = self.rtnl.link(&port_name(endpoint))? else { return Ok(None) };
        Ok(Some(EndpointStats {
            endpoint_id: *endpoint,
            bytes_received: link.stats.tx_bytes,
            bytes_sent: link.stats.rx_bytes,
            packets_received: link.stats.tx_packets,
            packets_sent: link.stats.rx_packets,
            dropped_packets_incoming: link.stats.tx_dropped,
            dropped_packets_outgoing: link.stats.rx_dropped,
            ..EndpointStats::default()
        }))
    }

    /// Makes the uplink a port of the bridge, which takes over its MAC, its addresses and its routes.
    pub(super) fn enslave_uplink(&self, bridge: &str) -> io::Result<()> {
        let uplink = self.rtnl.link(&self.uplink)?.ok_or_else(|| absent(format_args!("adapter {}", self.uplink)))?;
        let bridge = self.index(bridge)?;
        if uplink.master == Some(bridge) {
            return Ok(());
        }
        self.rtnl.set_mac(bridge, uplink.mac)?;
        let moved = self.move_addresses(uplink.index, bridge, |rtnl| Ok(rtnl.set_master(uplink.index, Some(bridge))?));
        if moved.is_err() {
            self.move_addresses(bridge, uplink.index, |rtnl| Ok(rtnl.set_master(uplink.index, None)?))?;
        }
        moved
    }

    /// Gives the uplink back what the bridge took over, where it is a port of that bridge.
    pub(super) fn release_uplink(&self, bridge: &str) -> io::Result<()> {
        let (Some(uplink), Some(bridge)) = (self.rtnl.link(&self.uplink)?, self.rtnl.link(bridge)?) else { return Ok(()) };
        if uplink.master != Some(bridge.index) {
            return Ok(());
        }
        self.move_addresses(bridge.index, uplink.index, |rtnl| Ok(rtnl.set_master(uplink.index, None)?))
    }

    /// Moves addresses and routes from one link to the other, with what must happen in between.
    fn move_addresses(&self, from: u32, to: u32, between: impl FnOnce(&Rtnl) -> io::Result<()>) -> io::Result<()> {
        let (addresses, routes) = self.belongings(from)?;
        between(&self.rtnl)?;
        for address in &addresses {
            gone_is_fine(self.rtnl.del_addr(from, *address))?;
            self.rtnl.add_addr(to, *address)?;
        }
        for route in routes {
            self.rtnl.replace_route(&Route { oif: Some(to), ..route })?;
        }
        Ok(())
    }

    /// What is marked for the fabric asks a routing table that knows only the adapter's gateway.
    pub(super) fn make_fabric(&self) -> io::Result<()> {
        let everywhere = |route: &Route| route.dst.prefix_len() == 0 && route.dst.addr().is_ipv4() && route.table != FABRIC_TABLE;
        let way = self.rtnl.routes()?.into_iter().find(everywhere).ok_or_else(|| absent("default route to the fabric"))?;
        self.rtnl.replace_route(&Route { table: FABRIC_TABLE, metric: 0, ..way })?;
        Ok(self.rtnl.add_rule(&fabric_rule())?)
    }

    pub(super) fn unmake_fabric(&self) -> io::Result<()> {
        if self.rtnl.rules()?.iter().any(|rule| rule.table == FABRIC_TABLE) {
            gone_is_fine(self.rtnl.del_rule(&fabric_rule()))?;
        }
        for route in self.rtnl.routes()?.into_iter().filter(|route| route.table == FABRIC_TABLE) {
            gone_is_fine(self.rtnl.del_route(&route))?;
        }
        Ok(())
    }
}

/// Addresses and routes of IPv6 are the endpoint's: what routers of the LAN advertise, or redirect to, has no effect on them.
fn follow_nobody(port: &Port, compartment: &NetNs) -> io::Result<()> {
    if port.forwarding != Forwarding::Routed || !port.addresses.iter().any(|address| address.addr().is_ipv6()) {
        return Ok(());
    }
    let name = port.interface.replace('.', "/");
    let set = || ["accept_ra", "accept_redirects"].iter().try_for_each(|key| sysctl::set(&format!("net.ipv6.conf.{name}.{key}"), "0"));
    compartment.run(set)?
}

fn fabric_rule() -> Rule {
    Rule { priority: FABRIC_PRIORITY, fwmark: Some((TO_FABRIC, u32::MAX)), table: FABRIC_TABLE, ..Rule::default() }
}

fn route(prefix: IpNet, gateway: IpAddr, metric: u16, interface: u32, port: &Port) -> Route {
    // An address of IPv6 has no route to its network here.
    let lone = gateway.is_ipv6() && port.forwarding == Forwarding::Routed;
    let on_link = lone || !port.addresses.iter().any(|address| address.contains(&gateway));
    let route = Route::new(prefix).via(gateway).oif(interface);
    Route { onlink: on_link, metric: metric.into(), ..route }
}
