//! Facts about links: bridges, tunnels, ports, their addresses, neighbours, routes and next hops.

use std::net::{IpAddr, Ipv4Addr};

use hcn::Guid;
use ipnet::IpNet;

use super::NatClass;
use crate::mac::Mac;

/// One fact about links. The variants are in the order in which they are made.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Link {
    Bridge {
        name: String,
        /// How it forwards.
        forwarding: Forwarding,
    },
    BridgeMac {
        bridge: String,
        mac: Mac,
    },
    /// The host's adapter is a port of a bridge, which has taken its addresses over.
    Uplink {
        bridge: String,
    },
    /// What is marked for the fabric leaves by the adapter, whatever its destination.
    Fabric,
    /// A device that encapsulates frames.
    Tunnel {
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
        bridge: String,
        /// The address with its subnet's length.
        address: IpNet,
    },
    Port(Port),
    /// A port that passes nothing.
    Blocked {
        port: String,
    },
    /// An interface sends at most so much.
    Rate {
        compartment: Guid,
        interface: String,
        /// Bytes a second.
        bytes: u64,
    },
    /// The MAC that answers for an address on a link.
    Neighbour {
        link: String,
        address: IpAddr,
        mac: Mac,
    },
    /// Where frames for a MAC are sent.
    Peer {
        tunnel: String,
        mac: Mac,
        /// The host behind which it is.
        host: IpAddr,
        /// The segment, where it is not the tunnel's own.
        vni: Option<u32>,
    },
    /// What is reached through a tunnel.
    Route {
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
}

impl Link {
    /// Whether several objects may need the same fact, so that it goes only with the last of them.
    pub(super) fn is_shared(&self) -> bool {
        matches!(
            self,
            Self::Bridge { .. }
                | Self::BridgeAddress { .. }
                | Self::Uplink { .. }
                | Self::Fabric
                | Self::Peer { .. }
                | Self::Hops { .. }
                | Self::Hop(_)
        )
    }
}

/// How a network forwards between its own ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Forwarding {
    /// Ports reach each other only through the host, whose rules apply to every packet.
    Routed,
    /// The bridge forwards frames between its ports.
    Switched,
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
    pub compartment: Guid,
    /// The interface's name inside.
    pub interface: String,
    pub mac: Mac,
    pub addresses: Vec<IpNet>,
    /// Its routes: prefix, gateway, metric.
    pub routes: Vec<(IpNet, IpAddr, u16)>,
    /// Bytes; none is the uplink's.
    pub mtu: Option<u16>,
    /// Bytes taken from the MTU for encapsulation.
    pub overhead: u16,
}

/// Next hop of packets that carry its mark, whatever their destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hop {
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
