//! Facts about the host's rules: address translation, load balancing, access rules at switches, and the sets that they read.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hcn::Protocol;
use ipnet::IpNet;

use super::{AccessList, Hop};
use crate::mac::Mac;

/// One fact about the host's rules. One transaction changes all of them; the variants are in the order in which they are written there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// Ports of a bridge reach the host itself only on a host path.
    Guarded {
        bridge: String,
    },
    /// What reaches the ports of a bridge is TCP, UDP, ICMP or IGMP, unless a rule of theirs lets more in.
    Closed {
        bridge: String,
    },
    /// Ports of a bridge and the host do not reach each other.
    Hostless {
        bridge: String,
    },
    /// Traffic between the ports of a bridge goes to the fabric first.
    ToFabric {
        bridge: String,
    },
    OverlayLink {
        link: String,
    },
    /// A tunnel of an overlay.
    TunnelLink {
        tunnel: String,
    },
    /// An address of the host on a bridge.
    HostAddress(IpAddr),
    /// The address of a hop, by its mark.
    HopAddress(Hop),
    /// An overlay's own addresses: they leave it only translated.
    OverlayPrefix(IpNet),
    /// An address that tunnelled frames for that MAC are taken for.
    TunnelMac {
        tunnel: String,
        mac: Mac,
    },
    /// What a pod sends there goes by the host.
    HostPath {
        /// The pod's address.
        address: IpAddr,
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
        destination: IpNet,
        hop: Hop,
    },
    /// What leaves a prefix for elsewhere gets the host's address, whatever the protocol (NAT networks).
    Masquerade(IpNet),
    /// The source that a class of traffic gets.
    Source {
        class: NatClass,
        address: IpAddr,
    },
    /// A destination to which a class is not translated.
    Exception {
        class: NatClass,
        destination: IpNet,
    },
    /// A destination to which a class with [`ONLY_DESTINATIONS`] is translated.
    Destination {
        class: NatClass,
        destination: IpNet,
    },
    /// Outgoing TCP and UDP of an address belong to a class.
    Outbound {
        address: IpAddr,
        class: NatClass,
    },
    /// A destination that a pod's proxy does not see.
    Unproxied {
        /// The pod's address.
        address: IpAddr,
        destination: IpNet,
    },
    /// A pod's connections to a prefix end at a proxy.
    Proxied {
        /// The pod's address.
        address: IpAddr,
        protocol: Protocol,
        destination: IpNet,
        proxy: (IpAddr, u16),
    },
    /// A set of addresses that access rules name.
    Set(String),
    /// A member of a set.
    Member {
        set: String,
        prefix: IpNet,
    },
    /// Access rules of a port, at its switch.
    Access(AccessList),
    /// Connections that keep their destination follow the backend selected for them.
    Kept {
        /// Of IPv6.
        ipv6: bool,
    },
    /// A backend selector.
    Selector(Selector),
    Backend {
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
        vip: Vip,
        /// Its place among the VIP's backends, from 0.
        slot: u16,
        /// The backend.
        hop: Hop,
    },
    /// A VIP with its backend selector.
    Vip {
        vip: Vip,
        selector: Selector,
    },
}

impl Rule {
    /// Whether several objects may need the same fact, so that it goes only with the last of them.
    pub(super) fn is_shared(&self) -> bool {
        matches!(
            self,
            Self::Source { .. }
                | Self::Exception { .. }
                | Self::Destination { .. }
                | Self::Selector(_)
                | Self::OverlayPrefix(_)
                | Self::HostAddress(_)
                | Self::HopAddress(_)
                | Self::PodHops { .. }
                | Self::Kept { .. }
        )
    }
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
    pub port: u16,
}

impl Vip {
    /// What a client dials at that address, or at any of the host's.
    pub fn new(address: Option<IpAddr>, ipv6: bool, protocol: Protocol, port: u16) -> Self {
        let any = if ipv6 { IpAddr::from(Ipv6Addr::UNSPECIFIED) } else { Ipv4Addr::UNSPECIFIED.into() };
        Self { address: address.unwrap_or(any), protocol, port }
    }
}

/// Traffic whose source is translated alike: its number travels as the packet's mark.
pub type NatClass = u32;

/// Connections that a load balancer translated to the address of the link behind.
pub const BALANCED: NatClass = 0x4d00_0001;

/// Traffic between the ports of a tunnel network, on its way to the fabric.
pub const TO_FABRIC: NatClass = 0x4d00_0002;

/// Set in the number of a class that names its destinations.
pub const ONLY_DESTINATIONS: NatClass = 0x0100_0000;
