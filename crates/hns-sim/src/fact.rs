//! What must hold in the host's kernel, as a list of small facts; and plans, which are what to remove and what to add.
//!
//! Every object of the model means some facts ([`crate::realise`]). A change of an object is the difference of its facts before and after,
//! so the cost of a change follows the change. Facts sort in the order in which they can be made; they are removed in the opposite order.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::Ipv4Addr;

use hcn::{Guid, Protocol};
use ipnet::Ipv4Net;

use crate::mac::Mac;

/// How a network forwards between its own ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Forwarding {
    /// Ports reach each other only through the host, whose rules apply to every packet.
    Routed,
    /// The bridge forwards frames between its ports.
    Switched,
}

/// What clients of a frontend are spread by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Spread {
    /// Each connection by itself.
    Connection,
    /// Client address and protocol.
    SourceProtocol,
    /// Client address.
    Source,
}

/// How a frontend picks a backend. There are few different ones however many frontends exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pick {
    /// Backends to pick from, at least 1.
    pub count: u16,
    /// What clients are spread by.
    pub spread: Spread,
    /// The frontend is a port of every host address.
    pub any_host_address: bool,
    /// The backend sees the client's address instead of the host's.
    pub keep_source: bool,
    /// The host's own traffic is balanced too.
    pub host: bool,
}

/// What a client dials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frontend {
    /// The address; none is any address of the host.
    pub address: Option<Ipv4Addr>,
    /// TCP, UDP or SCTP.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
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
    pub addresses: Vec<Ipv4Net>,
    /// Its routes: prefix, gateway, metric.
    pub routes: Vec<(Ipv4Net, Ipv4Addr, u16)>,
    /// Bytes; none is the uplink's.
    pub mtu: Option<u16>,
    /// Bytes taken from the MTU for encapsulation.
    pub overhead: u16,
}

/// Traffic whose source is translated alike: its number travels as the packet's mark.
pub type NatClass = u32;

/// The class of connections that a load balancer translated.
pub const BALANCED: NatClass = 0x4d00_0001;

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
    /// An address of the host on a bridge.
    BridgeAddress {
        /// The bridge.
        bridge: String,
        /// The address with its subnet's length.
        address: Ipv4Net,
    },
    /// A compartment: a network namespace that processes can enter.
    Compartment(Guid),
    /// A port.
    Port(Port),
    /// Who answers for an address on a bridge.
    Neighbour {
        /// The bridge.
        bridge: String,
        /// The address.
        address: Ipv4Addr,
        /// Its MAC.
        mac: Mac,
    },
    /// What leaves a prefix for elsewhere gets the host's address, whatever the protocol (NAT networks).
    Masquerade(Ipv4Net),
    /// The source that a class of traffic gets.
    Source {
        /// The class.
        class: NatClass,
        /// The address.
        address: Ipv4Addr,
    },
    /// A destination to which a class is not translated.
    Exception {
        /// The class.
        class: NatClass,
        /// The destination.
        destination: Ipv4Net,
    },
    /// A destination to which a class with [`ONLY_DESTINATIONS`] is translated.
    Destination {
        /// The class.
        class: NatClass,
        /// The destination.
        destination: Ipv4Net,
    },
    /// Outgoing TCP and UDP of an address belong to a class.
    Outbound {
        /// The address.
        address: Ipv4Addr,
        /// The class.
        class: NatClass,
    },
    /// A way of picking exists.
    Pick(Pick),
    /// A backend of a frontend.
    Backend {
        /// The frontend.
        frontend: Frontend,
        /// Its place among the frontend's backends, from 0.
        slot: u16,
        /// The backend's address.
        address: Ipv4Addr,
        /// The backend's port.
        port: u16,
    },
    /// A frontend picks among its backends.
    Frontend {
        /// The frontend.
        frontend: Frontend,
        /// How.
        pick: Pick,
    },
}

impl Fact {
    /// Whether several objects may mean the same fact, so that it goes only with the last of them.
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Source { .. } | Self::Exception { .. } | Self::Destination { .. } | Self::Pick(_))
    }
}

/// A bridge's name is short and follows from the network's id.
pub fn bridge_name(network: &Guid) -> String {
    format!("hns{:.8}", network.0.simple().to_string())
}

/// A port's name is short and follows from the endpoint's id. It takes the id's last digits: UUIDv5 puts no structure there.
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

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fact in &self.remove {
            writeln!(f, "- {fact}")?;
        }
        for fact in &self.add {
            writeln!(f, "+ {fact}")?;
        }
        Ok(())
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

impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) => write!(f, "{} {address}:{}", self.protocol, self.port),
            None => write!(f, "{} *:{}", self.protocol, self.port),
        }
    }
}

impl fmt::Display for Pick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spread = match self.spread {
            Spread::Connection => "connection",
            Spread::SourceProtocol => "source and protocol",
            Spread::Source => "source",
        };
        write!(f, "1 of {} by {spread}", self.count)?;
        for (flag, text) in
            [(self.any_host_address, ", on any host address"), (self.keep_source, ", source kept"), (!self.host, ", not for the host")]
        {
            if flag {
                f.write_str(text)?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {} of {} for {} in compartment {}: mac {}", self.name, self.bridge, self.interface, self.compartment, self.mac)?;
        for address in &self.addresses {
            write!(f, ", address {address}")?;
        }
        for (prefix, gateway, _) in &self.routes {
            write!(f, ", route {prefix} via {gateway}")?;
        }
        if let Some(mtu) = self.mtu {
            write!(f, ", mtu {mtu}")?;
        }
        if self.overhead != 0 {
            write!(f, ", overhead {}", self.overhead)?;
        }
        Ok(())
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bridge { name, forwarding: Forwarding::Routed } => write!(f, "bridge {name}, routed"),
            Self::Bridge { name, forwarding: Forwarding::Switched } => write!(f, "bridge {name}, switched"),
            Self::BridgeAddress { bridge, address } => write!(f, "address {address} on {bridge}"),
            Self::Compartment(id) => write!(f, "compartment {id}"),
            Self::Port(port) => port.fmt(f),
            Self::Neighbour { bridge, address, mac } => write!(f, "neighbour {address} on {bridge} is {mac}"),
            Self::Masquerade(prefix) => write!(f, "masquerade {prefix}"),
            Self::Source { class, address } => write!(f, "class {class:#x} leaves as {address}"),
            Self::Exception { class, destination } => write!(f, "class {class:#x} keeps its source to {destination}"),
            Self::Destination { class, destination } => write!(f, "class {class:#x} is translated to {destination}"),
            Self::Outbound { address, class } => write!(f, "outbound {address} is class {class:#x}"),
            Self::Pick(pick) => write!(f, "pick {pick}"),
            Self::Backend { frontend, slot, address, port } => write!(f, "backend {slot} of {frontend} is {address}:{port}"),
            Self::Frontend { frontend, pick } => write!(f, "frontend {frontend} picks {pick}"),
        }
    }
}
