//! What must hold in the host's kernel, as a list of small facts; and plans, which are what to remove and what to add.
//!
//! Every object of the model compiles to some facts ([`crate::compile`]). A change of an object is the difference of its facts before and after,
//! so the cost of a change follows the change. Facts sort in the order in which they can be made; they are removed in the opposite order.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hcn::{Guid, Protocol};
use ipnet::IpNet;

use crate::mac::Mac;

mod access;
mod show;

pub use access::{Access, AccessList, AccessRule, Place, USUAL_PROTOCOLS};

/// How a network forwards between its own ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Forwarding {
    /// Ports reach each other only through the host, whose rules apply to every packet.
    Routed,
    /// The bridge forwards frames between its ports.
    Switched,
}

/// What clients of a VIP are distributed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Distribution {
    /// Each connection by itself.
    Connection,
    /// Client address and protocol.
    SourceProtocol,
    /// Client address.
    Source,
}

/// Source address that a backend sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Seen {
    /// The client.
    Client,
    /// The address of a class.
    Class(NatClass),
    /// The address of the link that leads to the backend: where the host has no other.
    Link,
}

/// How a VIP selects a backend. There are few different selectors however many VIPs exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Selector {
    /// Of IPv6.
    pub ipv6: bool,
    /// Backends to select from, at least 1.
    pub count: u16,
    /// What clients are distributed by.
    pub distribution: Distribution,
    /// The VIP is a port of every host address.
    pub any_host_address: bool,
    /// Source address that the backend sees.
    pub seen: Seen,
    /// The host's own traffic is balanced too.
    pub host: bool,
    /// Ports of guarded bridges are balanced only on a host path.
    pub guarded: bool,
    /// The packet keeps its destination, which the backend has, too.
    pub kept: bool,
    /// Clients outside the host are seen as they are.
    pub mux: bool,
}

/// One address, protocol and port that clients connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vip {
    /// The address; the unspecified one is any address of the host.
    pub address: IpAddr,
    /// TCP, UDP or SCTP.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
}

impl Vip {
    /// What a client dials at that address, or at any of the host's.
    pub fn new(address: Option<IpAddr>, ipv6: bool, protocol: Protocol, port: u16) -> Self {
        let any = if ipv6 { IpAddr::from(Ipv6Addr::UNSPECIFIED) } else { Ipv4Addr::UNSPECIFIED.into() };
        Self { address: address.unwrap_or(any), protocol, port }
    }
}

/// A port of a bridge whose other end is an interface of a compartment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port {
    /// The host's end.
    pub name: String,
    /// The bridge it is a port of.
    pub bridge: String,
    /// How that bridge forwards.
    pub forwarding: Forwarding,
    /// The compartment.
    pub compartment: Guid,
    /// The interface's name inside.
    pub interface: String,
    /// Its MAC.
    pub mac: Mac,
    /// Its addresses.
    pub addresses: Vec<IpNet>,
    /// Its routes: prefix, gateway, metric.
    pub routes: Vec<(IpNet, IpAddr, u16)>,
    /// Bytes; none is the uplink's.
    pub mtu: Option<u16>,
    /// Bytes taken from the MTU for encapsulation.
    pub overhead: u16,
}

/// Traffic whose source is translated alike: its number travels as the packet's mark.
pub type NatClass = u32;

/// Connections that a load balancer translated to the address of the link behind.
pub const BALANCED: NatClass = 0x4d00_0001;

/// Where packets are sent whatever their destination: their mark says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hop {
    /// Its address.
    pub address: IpAddr,
    /// Only where it is a neighbour of the host; else it may be behind a router, too.
    pub neighbour: bool,
}

impl Hop {
    /// The bits by which a mark is known as a hop's.
    pub const MARKS: NatClass = 0x2000_0000;

    /// Where those bits are.
    pub const MASK: NatClass = 0xf000_0000;

    /// The mark follows from the hop, so a restart finds it again.
    pub fn mark(self) -> NatClass {
        Self::MARKS | stable_hash(&format!("{} {}", self.address, self.neighbour)) & !Self::MASK
    }
}

/// Traffic between the ports of a tunnel network, on its way to the fabric.
pub const TO_FABRIC: NatClass = 0x4d00_0002;

/// Set in the number of a class that names its destinations.
pub const ONLY_DESTINATIONS: NatClass = 0x0100_0000;

/// One thing that must hold in the kernel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fact {
    /// A bridge of the host.
    Bridge {
        /// Its name.
        name: String,
        /// How it forwards.
        forwarding: Forwarding,
    },
    /// A bridge's own MAC.
    BridgeMac {
        /// The bridge.
        bridge: String,
        /// Its MAC.
        mac: Mac,
    },
    /// The host's adapter is a port of a bridge, which has taken its addresses over.
    Uplink {
        /// The bridge.
        bridge: String,
    },
    /// What is marked for the fabric leaves by the adapter, whatever its destination.
    Fabric,
    /// A device that encapsulates frames.
    Tunnel {
        /// Its name.
        name: String,
        /// The identifier of its segment.
        vni: u32,
        /// The UDP port.
        port: u16,
        /// The host's own address.
        local: Ipv4Addr,
        /// The MAC of the distributed router.
        mac: Mac,
    },
    /// An address of the host on a bridge.
    BridgeAddress {
        /// The bridge.
        bridge: String,
        /// The address with its subnet's length.
        address: IpNet,
    },
    /// A compartment: a network namespace that processes can enter.
    Compartment(Guid),
    /// A port.
    Port(Port),
    /// A port that passes nothing.
    Blocked {
        /// The port.
        port: String,
    },
    /// An interface sends at most so much.
    Rate {
        /// The compartment.
        compartment: Guid,
        /// The interface in it.
        interface: String,
        /// Bytes a second.
        bytes: u64,
    },
    /// Who answers for an address on a link.
    Neighbour {
        /// The link.
        link: String,
        /// The address.
        address: IpAddr,
        /// Its MAC.
        mac: Mac,
    },
    /// Where frames for a MAC are sent.
    Peer {
        /// The tunnel.
        tunnel: String,
        /// The MAC.
        mac: Mac,
        /// The host behind which it is.
        host: IpAddr,
        /// The segment, where it is not the tunnel's own.
        vni: Option<u32>,
    },
    /// What is reached through a tunnel.
    Route {
        /// The tunnel.
        tunnel: String,
        /// The destinations.
        prefix: IpNet,
        /// The router in the tunnel; none is the destination itself.
        router: Option<IpAddr>,
    },
    /// What is marked for a hop leaves by it.
    Hops {
        /// Of IPv6.
        ipv6: bool,
    },
    /// A way by a hop.
    Hop(Hop),
    /// Ports of a bridge reach the host itself only on a host path.
    Guarded {
        /// The bridge.
        bridge: String,
    },
    /// What reaches the ports of a bridge is TCP, UDP, ICMP or IGMP, unless a rule of theirs lets more in.
    Closed {
        /// The bridge.
        bridge: String,
    },
    /// Ports of a bridge and the host do not reach each other.
    Hostless {
        /// The bridge.
        bridge: String,
    },
    /// Traffic between the ports of a bridge goes to the fabric first.
    ToFabric {
        /// The bridge.
        bridge: String,
    },
    /// A link of an overlay.
    OverlayLink {
        /// The link.
        link: String,
    },
    /// An overlay's own addresses: they leave it only translated.
    OverlayPrefix(IpNet),
    /// An address that tunnelled frames for that MAC are taken for.
    TunnelMac {
        /// The tunnel.
        tunnel: String,
        /// The MAC.
        mac: Mac,
    },
    /// What a pod sends there goes by the host.
    HostPath {
        /// The pod's address.
        address: IpAddr,
        /// The destinations.
        destination: IpNet,
    },
    /// What a pod sends can be marked for a hop.
    PodHops {
        /// Of IPv6.
        ipv6: bool,
    },
    /// What a pod sends there leaves by a hop.
    PodHop {
        /// The pod's address.
        address: IpAddr,
        /// The destinations.
        destination: IpNet,
        /// The hop.
        hop: Hop,
    },
    /// What leaves a prefix for elsewhere gets the host's address, whatever the protocol (NAT networks).
    Masquerade(IpNet),
    /// The source that a class of traffic gets.
    Source {
        /// The class.
        class: NatClass,
        /// The address.
        address: IpAddr,
    },
    /// A destination to which a class is not translated.
    Exception {
        /// The class.
        class: NatClass,
        /// The destination.
        destination: IpNet,
    },
    /// A destination to which a class with [`ONLY_DESTINATIONS`] is translated.
    Destination {
        /// The class.
        class: NatClass,
        /// The destination.
        destination: IpNet,
    },
    /// Outgoing TCP and UDP of an address belong to a class.
    Outbound {
        /// The address.
        address: IpAddr,
        /// The class.
        class: NatClass,
    },
    /// A destination that a pod's proxy does not see.
    Unproxied {
        /// The pod's address.
        address: IpAddr,
        /// The destination.
        destination: IpNet,
    },
    /// A pod's connections to a prefix end at a proxy.
    Proxied {
        /// The pod's address.
        address: IpAddr,
        /// The protocol.
        protocol: Protocol,
        /// The destinations.
        destination: IpNet,
        /// The proxy.
        proxy: (IpAddr, u16),
    },
    /// A set of addresses that access rules name.
    Set(String),
    /// A member of a set.
    Member {
        /// The set.
        set: String,
        /// The addresses.
        prefix: IpNet,
    },
    /// Access rules of a port.
    Access(AccessList),
    /// Connections that keep their destination follow the backend picked for them.
    Kept {
        /// Of IPv6.
        ipv6: bool,
    },
    /// A backend selector.
    Selector(Selector),
    /// A backend of a VIP.
    Backend {
        /// The VIP.
        vip: Vip,
        /// Its place among the VIP's backends, from 0.
        slot: u16,
        /// The backend's address.
        address: IpAddr,
        /// The backend's port.
        port: u16,
    },
    /// A backend of a VIP whose connections keep their destination.
    KeptBackend {
        /// The VIP.
        vip: Vip,
        /// Its place among the VIP's backends, from 0.
        slot: u16,
        /// The backend.
        hop: Hop,
    },
    /// A VIP with its backend selector.
    Vip {
        /// The VIP.
        vip: Vip,
        /// Its selector.
        selector: Selector,
    },
}

impl Fact {
    /// Whether several objects may mean the same fact, so that it goes only with the last of them.
    pub fn is_shared(&self) -> bool {
        matches!(
            self,
            Self::Source { .. }
                | Self::Exception { .. }
                | Self::Destination { .. }
                | Self::Selector(_)
                | Self::Bridge { .. }
                | Self::BridgeAddress { .. }
                | Self::Uplink { .. }
                | Self::Fabric
                | Self::Peer { .. }
                | Self::OverlayPrefix(_)
                | Self::Hops { .. }
                | Self::Hop(_)
                | Self::PodHops { .. }
                | Self::Kept { .. }
        )
    }
}

/// A bridge's name is short and follows from the network's id. It takes the id's last digits: UUIDv5 puts no structure there.
pub fn bridge_name(network: &Guid) -> String {
    format!("hns{}", &network.0.simple().to_string()[24..])
}

/// The bridge of the host's adapter, which all networks share that are part of the LAN.
pub fn uplink_bridge() -> String {
    "hnsuplink".to_owned()
}

/// A tunnel's name is short and follows from what makes it another one.
pub fn tunnel_name(network: &Guid, vni: u32, port: u16, local: Ipv4Addr) -> String {
    format!("hvx{:08x}", stable_hash(&format!("{network} {vni} {port} {local}")))
}

/// FNV-1a: stable between versions, unlike the standard library's hasher.
pub fn stable_hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// A port's name is short and follows from the endpoint's id. It takes the id's last digits, too.
pub fn port_name(endpoint: &Guid) -> String {
    format!("ep{}", &endpoint.0.simple().to_string()[20..])
}

/// What to do in the kernel: all removals, then all additions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Facts that shall no longer hold, in the order of removal.
    pub remove: Vec<Fact>,
    /// Facts that shall hold, in the order of making.
    pub add: Vec<Fact>,
}

impl Plan {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.add.is_empty()
    }

    /// The plan that undoes this one.
    #[must_use]
    pub fn inverse(&self) -> Self {
        let reversed = |facts: &[Fact]| facts.iter().rev().cloned().collect();
        Self { remove: reversed(&self.add), add: reversed(&self.remove) }
    }
}

/// How many objects mean each shared fact.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shared(BTreeMap<Fact, u32>);

impl Shared {
    /// What to do when `before` gives way to `after`, given what other objects mean.
    pub fn plan(&self, before: &BTreeSet<Fact>, after: &BTreeSet<Fact>) -> Plan {
        let held = |fact: &Fact| self.0.get(fact).copied().unwrap_or(0);
        let gone = before.difference(after).filter(|fact| !fact.is_shared() || held(fact) <= 1);
        let new = after.difference(before).filter(|fact| !fact.is_shared() || held(fact) == 0);
        let mut remove: Vec<Fact> = gone.cloned().collect();
        remove.reverse();
        Plan { remove, add: new.cloned().collect() }
    }

    /// Notes that `before` gave way to `after`.
    pub fn commit(&mut self, before: &BTreeSet<Fact>, after: &BTreeSet<Fact>) {
        for fact in after.difference(before).filter(|fact| fact.is_shared()) {
            *self.0.entry(fact.clone()).or_default() += 1;
        }
        for fact in before.difference(after).filter(|fact| fact.is_shared()) {
            if let Some(count) = self.0.get_mut(fact) {
                *count -= 1;
                if *count == 0 {
                    self.0.remove(fact);
                }
            }
        }
    }
}
