//! Access rules of ports: by source and destination, in tiers, the first that matches decides.

use hcn::Guid;
use ipnet::IpNet;

/// What a rule does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// It passes.
    Allow,
    /// It is lost.
    Block,
    /// The next tier decides.
    Pass,
}

/// What a container gets without being asked: ICMP, IGMP, TCP, UDP, and ICMP of IPv6.
pub const USUAL_PROTOCOLS: [u8; 5] = [1, 2, 6, 17, 58];

/// A rule. What it does not name matches everything.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccessRule {
    /// What it does.
    pub action: Access,
    /// Protocols, by number.
    pub protocols: Vec<u8>,
    pub sources: Vec<IpNet>,
    pub source_sets: Vec<String>,
    pub destinations: Vec<IpNet>,
    pub destination_sets: Vec<String>,
    /// Ranges of source ports.
    pub source_ports: Vec<(u16, u16)>,
    /// Ranges of destination ports.
    pub destination_ports: Vec<(u16, u16)>,
}

impl AccessRule {
    /// A rule that matches every packet.
    pub fn everything(action: Access) -> Self {
        Self {
            action,
            protocols: Vec::new(),
            sources: Vec::new(),
            source_sets: Vec::new(),
            destinations: Vec::new(),
            destination_sets: Vec::new(),
            source_ports: Vec::new(),
            destination_ports: Vec::new(),
        }
    }

    /// Whether it lets a protocol pass that does not pass without it.
    pub fn opens(&self) -> bool {
        self.action == Access::Allow && self.protocols.iter().any(|protocol| !USUAL_PROTOCOLS.contains(protocol))
    }
}

/// Where rules are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// At the port of the switch, which the host routes by.
    Switch,
    /// In the compartment.
    Inside {
        compartment: Guid,
        interface: String,
        /// Of the compartment's own firewall, not of a switch that the host does not see into.
        host: bool,
    },
}

/// The rules of a port in one direction. Replies of what they allow pass; what no rule matches passes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccessList {
    pub port: String,
    /// Where the rules are.
    pub place: Place,
    /// Towards the endpoint.
    pub inbound: bool,
    /// The endpoint's addresses.
    pub addresses: Vec<std::net::IpAddr>,
    /// Tiers of rules, in order.
    pub tiers: Vec<Vec<AccessRule>>,
}
