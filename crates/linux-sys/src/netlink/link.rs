//! Links: veth pairs, bridges and their ports, VXLAN devices.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};

use super::wire::{self, Writer};
use super::{ACK, CREATE, Result, Rtnl, ip_bytes, read_ip};
use crate::ns::NetNs;

const IFLA_LINKINFO: u16 = libc::IFLA_LINKINFO;
const INFO_KIND: u16 = 1;
const INFO_DATA: u16 = 2;
const VETH_PEER: u16 = 1;
const IFF_UP: u32 = libc::IFF_UP as u32;
const IFF_PROMISC: u32 = libc::IFF_PROMISC as u32;
const IFF_ALLMULTI: u32 = libc::IFF_ALLMULTI as u32;
const IFF_LOWER_UP: u32 = libc::IFF_LOWER_UP as u32;

/// A link as the kernel lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its number in this namespace.
    pub index: u32,
    pub name: String,
    /// `veth`, `bridge`, `vxlan`, …; empty for physical and loopback links.
    pub kind: String,
    /// Largest packet in bytes.
    pub mtu: u32,
    /// Switched on.
    pub up: bool,
    /// Its other side is there and switched on.
    pub carrier: bool,
    /// Takes frames for any address.
    pub promiscuous: bool,
    /// Takes frames for any multicast group.
    pub all_multicast: bool,
    /// Packets that wait for their turn at most.
    pub tx_queue: u32,
    /// Hardware address; zero for links without one.
    pub mac: [u8; 6],
    /// The bridge that it is a port of.
    pub master: Option<u32>,
    /// The number of the link that it is a pair with, or that it is built on, in that link's namespace.
    pub peer: Option<u32>,
    /// A number that its user gave it and others, 0 otherwise.
    pub group: u32,
    /// Counters since the link was made.
    pub stats: LinkStats,
}

/// A pair of links to make.
#[derive(Debug, Clone, Copy, Default)]
pub struct Veth<'a> {
    pub name: &'a str,
    /// The other end's name.
    pub peer: &'a str,
    /// Where the other end is made; none means here.
    pub peer_ns: Option<&'a NetNs>,
    /// Of both ends; none means the kernel's default.
    pub mtu: Option<u32>,
    /// See [`Link::group`]; of this end alone.
    pub group: u32,
    /// The other end's hardware address; none means one by chance.
    pub peer_mac: Option<[u8; 6]>,
}

/// What is to change of a link; the rest stays. The kernel takes it in this order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkChange {
    /// Largest packet in bytes.
    pub mtu: Option<u32>,
    /// The bridge that it becomes a port of.
    pub master: Option<u32>,
    /// Whether it is switched on.
    pub up: bool,
}

/// Counters of a link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkStats {
    pub rx_packets: u64,
    pub tx_packets: u64,
    pub rx_bytes: u64,
    pub tx_bytes: u64,
    pub rx_errors: u64,
    pub tx_errors: u64,
    pub rx_dropped: u64,
    pub tx_dropped: u64,
}

/// A VXLAN device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vxlan {
    /// Network identifier, 24 bits.
    pub vni: u32,
    /// Source address of tunnel packets.
    pub local: Option<IpAddr>,
    /// The link that tunnel packets leave by.
    pub device: Option<u32>,
    /// UDP port (IANA: 4789; Linux's own default: 8472).
    pub port: u16,
    /// Learns addresses from packets.
    pub learning: bool,
}

/// Switches of a bridge port; `None` leaves one as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BridgePort {
    /// Isolated ports do not reach each other.
    pub isolated: Option<bool>,
    /// Learns addresses from packets.
    pub learning: Option<bool>,
    /// Sends packets back where they came from.
    pub hairpin: Option<bool>,
    /// Gets packets for unknown unicast addresses.
    pub flood: Option<bool>,
    /// Gets packets for unknown multicast groups.
    pub multicast_flood: Option<bool>,
    /// Gets broadcasts.
    pub broadcast_flood: Option<bool>,
    /// Answers neighbour requests out of the bridge's own tables instead of flooding them.
    pub neigh_suppress: Option<bool>,
    /// Passes no frame at all, until its carrier comes back.
    pub blocked: Option<bool>,
}

/// `IFLA_VXLAN_*`, linux/if_link.h.
mod vxlan_attr {
    pub const ID: u16 = 1;
    pub const LINK: u16 = 3;
    pub const LOCAL: u16 = 4;
    pub const LEARNING: u16 = 7;
    pub const PORT: u16 = 15;
    pub const LOCAL6: u16 = 17;
}

/// `struct ifinfomsg`.
fn header(family: u8, index: u32, flags: u32, change: u32) -> [u8; 16] {
    let mut h = [0; 16];
    h[0] = family;
    h[4..8].copy_from_slice(&index.to_ne_bytes());
    h[8..12].copy_from_slice(&flags.to_ne_bytes());
    h[12..16].copy_from_slice(&change.to_ne_bytes());
    h
}

fn read(payload: &[u8]) -> Option<Link> {
    let flags = wire::u32_at(payload, 8)?;
    let mut link = Link {
        index: wire::u32_at(payload, 4)?,
        name: String::new(),
        kind: String::new(),
        mtu: 0,
        up: flags & IFF_UP != 0,
        carrier: flags & IFF_LOWER_UP != 0,
        promiscuous: flags & IFF_PROMISC != 0,
        all_multicast: flags & IFF_ALLMULTI != 0,
        tx_queue: 0,
        mac: [0; 6],
        master: None,
        peer: None,
        group: 0,
        stats: LinkStats::default(),
    };
    for (kind, value) in wire::attrs(payload.get(16..)?) {
        match kind {
            libc::IFLA_IFNAME => link.name = wire::text(value),
            libc::IFLA_MTU => link.mtu = wire::u32_at(value, 0)?,
            libc::IFLA_ADDRESS => link.mac = value.try_into().unwrap_or_default(),
            libc::IFLA_TXQLEN => link.tx_queue = wire::u32_at(value, 0)?,
            libc::IFLA_LINK => link.peer = wire::u32_at(value, 0),
            libc::IFLA_GROUP => link.group = wire::u32_at(value, 0)?,
            libc::IFLA_MASTER => link.master = wire::u32_at(value, 0),
            IFLA_LINKINFO => link.kind = wire::attr(value, INFO_KIND).map(wire::text).unwrap_or_default(),
            libc::IFLA_STATS64 => link.stats = read_stats(value).unwrap_or_default(),
            _ => {}
        }
    }
    Some(link)
}

fn read_vxlan(payload: &[u8]) -> Option<Vxlan> {
    use vxlan_attr::*;
    let info = wire::attr(payload.get(16..)?, IFLA_LINKINFO)?;
    if wire::text(wire::attr(info, INFO_KIND)?) != "vxlan" {
        return None;
    }
    let data = wire::attr(info, INFO_DATA)?;
    let number = |kind| wire::attr(data, kind).and_then(|value| wire::u32_at(value, 0));
    Some(Vxlan {
        vni: number(ID)?,
        local: wire::attr(data, LOCAL).or_else(|| wire::attr(data, LOCAL6)).and_then(read_ip),
        device: number(LINK).filter(|index| *index != 0),
        port: u16::from_be_bytes(wire::attr(data, PORT)?.try_into().ok()?),
        learning: wire::attr(data, LEARNING).is_some_and(|value| value.first().is_some_and(|on| *on != 0)),
    })
}

/// `struct rtnl_link_stats64`.
fn read_stats(value: &[u8]) -> Option<LinkStats> {
    let n = |i: usize| wire::u64_at(value, i * 8);
    Some(LinkStats {
        rx_packets: n(0)?,
        tx_packets: n(1)?,
        rx_bytes: n(2)?,
        tx_bytes: n(3)?,
        rx_errors: n(4)?,
        tx_errors: n(5)?,
        rx_dropped: n(6)?,
        tx_dropped: n(7)?,
    })
}

fn switch(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

impl Rtnl {
    /// All links of the namespace.
    pub fn links(&self) -> Result<Vec<Link>> {
        self.dump("list links", libc::RTM_GETLINK, &header(0, 0, 0, 0), read)
    }

    pub fn link(&self, name: &str) -> Result<Option<Link>> {
        let body = |w: &mut Writer| w.attr_str(libc::IFLA_IFNAME, name);
        let found = self.request(&format!("read link {name}"), libc::RTM_GETLINK, ACK, &header(0, 0, 0, 0), body);
        match found {
            Ok(replies) => Ok(replies.iter().find_map(|r| read(r))),
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// A veth pair; the peer is made in `peer_ns` (default: here). Both ends are down.
    pub fn add_veth(&self, name: &str, peer: &str, peer_ns: Option<&NetNs>) -> Result<()> {
        self.add_veth_with(&Veth { name, peer, peer_ns, ..Veth::default() })
    }

    /// A veth pair, both ends down.
    pub fn add_veth_with(&self, veth: &Veth<'_>) -> Result<()> {
        let mtu = |w: &mut Writer| veth.mtu.into_iter().for_each(|mtu| w.attr_u32(libc::IFLA_MTU, mtu));
        let peer = |w: &mut Writer| {
            w.raw(&header(0, 0, 0, 0));
            w.attr_str(libc::IFLA_IFNAME, veth.peer);
            mtu(w);
            if let Some(mac) = veth.peer_mac {
                w.attr(libc::IFLA_ADDRESS, &mac);
            }
            if let Some(ns) = veth.peer_ns {
                w.attr_u32(libc::IFLA_NET_NS_FD, ns.as_fd().as_raw_fd() as u32);
            }
        };
        self.change(&format!("add veth {}", veth.name), libc::RTM_NEWLINK, CREATE, &header(0, 0, 0, 0), |w| {
            w.attr_str(libc::IFLA_IFNAME, veth.name);
            w.attr_u32(libc::IFLA_GROUP, veth.group);
            mtu(w);
            w.nest(IFLA_LINKINFO, |w| {
                w.attr_str(INFO_KIND, "veth");
                w.nest(INFO_DATA, |w| w.nest(VETH_PEER, peer));
            });
        })
    }

    /// Changes several properties of a link at once.
    pub fn change_link(&self, index: u32, change: &LinkChange) -> Result<()> {
        let flags = if change.up { IFF_UP } else { 0 };
        self.set(&format!("change link {index}"), &header(0, index, flags, flags), |w| {
            if let Some(mtu) = change.mtu {
                w.attr_u32(libc::IFLA_MTU, mtu);
            }
            if let Some(master) = change.master {
                w.attr_u32(libc::IFLA_MASTER, master);
            }
        })
    }

    /// A bridge, down.
    pub fn add_bridge(&self, name: &str) -> Result<()> {
        self.add(name, "bridge", |_| {})
    }

    /// A bridge, down, whose MAC does not follow its ports.
    pub fn add_bridge_with_mac(&self, name: &str, mac: [u8; 6]) -> Result<()> {
        self.change(&format!("add bridge {name}"), libc::RTM_NEWLINK, CREATE, &header(0, 0, 0, 0), |w| {
            w.attr_str(libc::IFLA_IFNAME, name);
            w.attr(libc::IFLA_ADDRESS, &mac);
            w.nest(IFLA_LINKINFO, |w| w.attr_str(INFO_KIND, "bridge"));
        })
    }

    /// A device that takes what other links redirect to it, down; see [`Link::group`].
    pub fn add_ifb(&self, name: &str, group: u32) -> Result<()> {
        self.change(&format!("add ifb {name}"), libc::RTM_NEWLINK, CREATE, &header(0, 0, 0, 0), |w| {
            w.attr_str(libc::IFLA_IFNAME, name);
            w.attr_u32(libc::IFLA_GROUP, group);
            w.nest(IFLA_LINKINFO, |w| w.attr_str(INFO_KIND, "ifb"));
        })
    }

    /// A VXLAN device, down.
    pub fn add_vxlan(&self, name: &str, vxlan: &Vxlan) -> Result<()> {
        self.add(name, "vxlan", |w| {
            use vxlan_attr::*;
            w.attr_u32(ID, vxlan.vni);
            if let Some(device) = vxlan.device {
                w.attr_u32(LINK, device);
            }
            if let Some(local) = vxlan.local {
                w.attr(if local.is_ipv4() { LOCAL } else { LOCAL6 }, &ip_bytes(local));
            }
            w.attr_u8(LEARNING, u8::from(vxlan.learning));
            w.attr(PORT, &vxlan.port.to_be_bytes());
        })
    }

    /// The parameters of a VXLAN device; none where there is no link of that name, or one of another kind.
    pub fn vxlan(&self, name: &str) -> Result<Option<Vxlan>> {
        let body = |w: &mut Writer| w.attr_str(libc::IFLA_IFNAME, name);
        match self.request(&format!("read vxlan {name}"), libc::RTM_GETLINK, ACK, &header(0, 0, 0, 0), body) {
            Ok(replies) => Ok(replies.iter().find_map(|reply| read_vxlan(reply))),
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn add(&self, name: &str, kind: &str, data: impl FnOnce(&mut Writer)) -> Result<()> {
        self.change(&format!("add {kind} {name}"), libc::RTM_NEWLINK, CREATE, &header(0, 0, 0, 0), |w| {
            w.attr_str(libc::IFLA_IFNAME, name);
            w.nest(IFLA_LINKINFO, |w| {
                w.attr_str(INFO_KIND, kind);
                w.nest(INFO_DATA, data);
            });
        })
    }

    /// Deletes a link (and a veth's peer with it).
    pub fn del_link(&self, index: u32) -> Result<()> {
        self.change(&format!("delete link {index}"), libc::RTM_DELLINK, ACK, &header(0, index, 0, 0), |_| {})
    }

    fn set(&self, operation: &str, head: &[u8; 16], body: impl FnOnce(&mut Writer)) -> Result<()> {
        self.change(operation, libc::RTM_NEWLINK, ACK, head, body)
    }

    /// Switches a link on.
    pub fn set_up(&self, index: u32) -> Result<()> {
        self.set(&format!("set link {index} up"), &header(0, index, IFF_UP, IFF_UP), |_| {})
    }

    /// Switches a link off.
    pub fn set_down(&self, index: u32) -> Result<()> {
        self.set(&format!("set link {index} down"), &header(0, index, 0, IFF_UP), |_| {})
    }

    /// Has a link take frames for any address, or only for its own.
    pub fn set_promiscuous(&self, index: u32, on: bool) -> Result<()> {
        let flags = if on { IFF_PROMISC } else { 0 };
        self.set(&format!("set promiscuous mode of link {index} {}", switch(on)), &header(0, index, flags, IFF_PROMISC), |_| {})
    }

    /// Has a link take frames for any multicast group, or only for those that it is in.
    pub fn set_all_multicast(&self, index: u32, on: bool) -> Result<()> {
        let flags = if on { IFF_ALLMULTI } else { 0 };
        self.set(&format!("set all-multicast mode of link {index} {}", switch(on)), &header(0, index, flags, IFF_ALLMULTI), |_| {})
    }

    /// Sets how many packets wait for their turn at most.
    pub fn set_tx_queue(&self, index: u32, packets: u32) -> Result<()> {
        self.set(&format!("set the queue of link {index} to {packets}"), &header(0, index, 0, 0), |w| w.attr_u32(libc::IFLA_TXQLEN, packets))
    }

    /// Sets the largest packet in bytes.
    pub fn set_mtu(&self, index: u32, mtu: u32) -> Result<()> {
        self.set(&format!("set mtu {mtu} of link {index}"), &header(0, index, 0, 0), |w| w.attr_u32(libc::IFLA_MTU, mtu))
    }

    /// Sets the hardware address.
    pub fn set_mac(&self, index: u32, mac: [u8; 6]) -> Result<()> {
        self.set(&format!("set hardware address of link {index}"), &header(0, index, 0, 0), |w| w.attr(libc::IFLA_ADDRESS, &mac))
    }

    /// Makes a link a port of a bridge, or of none.
    pub fn set_master(&self, index: u32, master: Option<u32>) -> Result<()> {
        let name = format!("set master {} of link {index}", master.unwrap_or(0));
        self.set(&name, &header(0, index, 0, 0), |w| w.attr_u32(libc::IFLA_MASTER, master.unwrap_or(0)))
    }

    /// Renames a link, which must be down.
    pub fn set_name(&self, index: u32, name: &str) -> Result<()> {
        self.set(&format!("rename link {index} to {name}"), &header(0, index, 0, 0), |w| w.attr_str(libc::IFLA_IFNAME, name))
    }

    /// Moves a link to another namespace: it arrives down, without addresses, its number may change.
    pub fn move_to(&self, index: u32, ns: &NetNs) -> Result<()> {
        let fd = ns.as_fd().as_raw_fd() as u32;
        self.set(&format!("move link {index}"), &header(0, index, 0, 0), |w| w.attr_u32(libc::IFLA_NET_NS_FD, fd))
    }

    /// Sets switches of a bridge port.
    pub fn set_bridge_port(&self, index: u32, port: BridgePort) -> Result<()> {
        const PROTINFO: u16 = 12;
        // IFLA_BRPORT_*, linux/if_link.h.
        let switches = [
            (4, port.hairpin),
            (8, port.learning),
            (9, port.flood),
            (27, port.multicast_flood),
            (30, port.broadcast_flood),
            (32, port.neigh_suppress),
            (33, port.isolated),
        ];
        // IFLA_BRPORT_STATE; BR_STATE_DISABLED (blocking ports go back to forwarding by themselves) and BR_STATE_FORWARDING.
        const STATE: u16 = 1;
        let head = header(libc::AF_BRIDGE as u8, index, 0, 0);
        self.change(&format!("set bridge port {index}"), libc::RTM_SETLINK, ACK, &head, |w| {
            w.nest(PROTINFO, |w| {
                if let Some(blocked) = port.blocked {
                    w.attr_u8(STATE, if blocked { 0 } else { 3 });
                }
                for (kind, on) in switches {
                    if let Some(on) = on {
                        w.attr_u8(kind, u8::from(on));
                    }
                }
            });
        })
    }
}
