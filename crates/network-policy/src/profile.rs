//! Profiles: the rules of one direction of an endpoint, in order (pure). Endpoints with the same rules share a profile.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::net::Range;
use crate::policy::{Action, Direction, Peer, PodSelector, Policy, PolicyId, PortMatch, Protocol, Rule, Selects, Tier};
use crate::rows::NamedPort;

/// A group of addresses that rules name: the key says who belongs to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GroupKey {
    /// The addresses of pods that one of these selects.
    Pods(Vec<PodSelector>),
    /// The addresses of nodes that one of these selects.
    Nodes(Vec<Selects>),
    /// Addresses that stand in the policy.
    Nets(Vec<Range>),
    /// Addresses of pods that one of these selects or that lie in one of these ranges, each with the ports that its containers call so.
    Named(Vec<PodSelector>, Vec<Range>, Option<Protocol>, Box<str>),
}

impl GroupKey {
    /// A name that follows from what the group is, of sixteen hexadecimal digits.
    pub fn name(&self) -> String {
        digest(format_args!("{self:?}"))
    }
}

impl fmt::Display for GroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn all<T: fmt::Display>(f: &mut fmt::Formatter<'_>, what: &str, list: &[T]) -> fmt::Result {
            list.iter().enumerate().try_for_each(|(at, one)| write!(f, "{}{what}{one}", if at > 0 { " or " } else { "" }))
        }
        match self {
            Self::Pods(selectors) => all(f, "", selectors),
            Self::Nodes(selectors) => all(f, "nodes ", selectors),
            Self::Nets(ranges) => all(f, "", &ranges.iter().flat_map(|range| range.nets()).collect::<Vec<_>>()),
            Self::Named(selectors, ranges, protocol, name) => {
                write!(f, "port {name}")?;
                protocol.iter().try_for_each(|protocol| write!(f, "/{protocol}"))?;
                f.write_str(" of ")?;
                all(f, "", selectors)?;
                let nets: Vec<_> = ranges.iter().flat_map(|range| range.nets()).collect();
                f.write_str(if selectors.is_empty() || nets.is_empty() { "" } else { " or " })?;
                all(f, "pods in ", &nets)
            }
        }
    }
}

fn digest(text: fmt::Arguments<'_>) -> String {
    let hash = Sha256::digest(text.to_string());
    hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Ports of one protocol, from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ports {
    pub protocol: Protocol,
    pub first: u16,
    pub last: u16,
}

impl Ports {
    pub fn is_all(self) -> bool {
        self.first == 0 && self.last == u16::MAX
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            _ if self.is_all() => write!(f, "{}", self.protocol),
            Self { protocol, first, last } if first == last => write!(f, "{protocol} {first}"),
            Self { protocol, first, last } => write!(f, "{protocol} {first}-{last}"),
        }
    }
}

/// Why a packet passes or not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// A rule of a policy, by its place and its name.
    Rule { policy: PolicyId, direction: Direction, index: usize, name: Box<str> },
    /// These policies isolate the pod, and none of their rules allows the packet.
    Isolated(Vec<PolicyId>),
    /// No policy says anything about it.
    Nothing,
    /// Traffic between a pod and its own node, and of a pod with itself, always passes.
    Own,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule { policy, direction, index, name } => {
                write!(f, "{policy} {direction}[{index}]")?;
                if name.is_empty() { Ok(()) } else { write!(f, " ({name})") }
            }
            Self::Isolated(policies) => {
                f.write_str("isolated by ")?;
                policies.iter().enumerate().try_for_each(|(at, policy)| write!(f, "{}{policy}", if at > 0 { ", " } else { "" }))?;
                f.write_str("; no rule allows it")
            }
            Self::Nothing => f.write_str("no policy denies it"),
            Self::Own => f.write_str("traffic of a pod with itself and with its own node always passes"),
        }
    }
}

/// A rule of a profile. It matches when the peer and the ports match, or one of the named ports.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProfileRule {
    pub action: Action,
    pub origin: Origin,
    /// Peers; none is everybody.
    pub peers: Option<Vec<Arc<GroupKey>>>,
    /// Ports of the destination; none is every packet.
    pub ports: Option<Vec<Ports>>,
    /// Groups of destinations with their own ports ([`GroupKey::Named`]).
    pub named: Vec<Arc<GroupKey>>,
}

impl ProfileRule {
    /// The groups that it names.
    pub fn groups(&self) -> impl Iterator<Item = &Arc<GroupKey>> {
        self.peers.iter().flatten().chain(&self.named)
    }

    /// Whether no packet can match it whatever its groups hold.
    fn is_void(&self) -> bool {
        let plain = self.peers.as_ref().is_some_and(Vec::is_empty) || self.ports.as_ref().is_some_and(Vec::is_empty);
        plain && self.named.is_empty()
    }
}

impl fmt::Display for ProfileRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.action)?;
        let mut cases = Vec::new();
        if !self.peers.as_ref().is_some_and(Vec::is_empty) && !self.ports.as_ref().is_some_and(Vec::is_empty) {
            let peers = self.peers.as_ref().map(|peers| peers.iter().map(|peer| format!("[{peer}]")).collect::<Vec<_>>().join(" "));
            let ports = self.ports.as_ref().map(|ports| ports.iter().map(Ports::to_string).collect::<Vec<_>>().join(", "));
            cases.push(format!(" {}{}", peers.unwrap_or_else(|| "everybody".into()), ports.map(|p| format!(" at {p}")).unwrap_or_default()));
        }
        cases.extend(self.named.iter().map(|group| format!(" [{group}]")));
        write!(f, "{} # {}", cases.join(" or"), self.origin)
    }
}

/// Whether a group has an address (with a port).
pub type Has<'a> = dyn Fn(&GroupKey, IpAddr, Option<(Protocol, u16)>) -> bool + 'a;

/// The rules of one direction: first `admin`, then `rest`, and then `end` decides.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Profile {
    pub direction: Direction,
    /// Rules of the Admin tier. [`Action::Pass`] goes on with `rest`.
    pub admin: Vec<ProfileRule>,
    /// Rules of the NetworkPolicies that isolate the pod, else of the Baseline tier, where [`Action::Pass`] goes on with `end`.
    pub rest: Vec<ProfileRule>,
    /// What becomes of packets that no rule decides.
    pub end: (Action, Origin),
}

impl Profile {
    /// The profile of a pod that `policies` select; none when every packet passes. `policies` are in the order of their ids.
    pub fn compile(direction: Direction, policies: &[(&PolicyId, &Policy)], own: &[NamedPort]) -> Option<Self> {
        let mut ordered = policies.to_vec();
        ordered.sort_by_key(|(id, policy)| (policy.tier, policy.priority, *id));
        let tier = |tier: Tier| {
            let rules = ordered.iter().filter(move |(_, policy)| policy.tier == tier);
            let rules = rules.flat_map(|(id, policy)| policy.rules.of(direction).iter().map(move |rule| (*id, rule)));
            rules.map(|(id, rule)| compile_rule(direction, id, rule, own)).filter(|rule| !rule.is_void()).collect::<Vec<_>>()
        };
        let isolating = ordered.iter().filter(|(_, policy)| *policy.isolates.of(direction)).map(|(id, _)| (*id).clone());
        let isolating: Vec<PolicyId> = isolating.collect();
        let (rest, end) = if isolating.is_empty() {
            (tier(Tier::Baseline), (Action::Allow, Origin::Nothing))
        } else {
            (tier(Tier::NetworkPolicy), (Action::Deny, Origin::Isolated(isolating)))
        };
        let profile = Self { direction, admin: tier(Tier::Admin), rest, end };
        let open = profile.end.0 == Action::Allow && profile.rules().next().is_none();
        (!open).then_some(profile)
    }

    pub fn rules(&self) -> impl Iterator<Item = &ProfileRule> {
        self.admin.iter().chain(&self.rest)
    }

    /// The groups that its rules name; one may come twice.
    pub fn groups(&self) -> impl Iterator<Item = &Arc<GroupKey>> {
        self.rules().flat_map(ProfileRule::groups)
    }

    /// A name that follows from the rules, of sixteen hexadecimal digits.
    pub fn name(&self) -> String {
        digest(format_args!("{self:?}"))
    }

    /// What becomes of a packet with this peer and destination. `has` says whether a group has an address (with a port).
    pub fn decide(&self, peer: IpAddr, destination: (IpAddr, Option<(Protocol, u16)>), has: &Has<'_>) -> (Action, &Origin) {
        let matches = |rule: &&ProfileRule| {
            let peer_fits = rule.peers.as_ref().is_none_or(|peers| peers.iter().any(|group| has(group, peer, None)));
            let ports_fit = rule.ports.as_ref().is_none_or(|ports| {
                let Some((protocol, port)) = destination.1 else { return false };
                ports.iter().any(|range| range.protocol == protocol && (range.first..=range.last).contains(&port))
            });
            let named = || destination.1.is_some() && rule.named.iter().any(|group| has(group, destination.0, destination.1));
            (peer_fits && ports_fit) || named()
        };
        match self.admin.iter().find(matches) {
            Some(rule) if rule.action != Action::Pass => return (rule.action, &rule.origin),
            _ => {}
        }
        match self.rest.iter().find(matches) {
            Some(rule) if rule.action != Action::Pass => (rule.action, &rule.origin),
            _ => (self.end.0, &self.end.1),
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (tier, rules) in [("admin", &self.admin), ("rules", &self.rest)] {
            rules.iter().try_for_each(|rule| writeln!(f, "{} {tier} {rule}", self.direction))?;
        }
        writeln!(f, "{} else {} # {}", self.direction, self.end.0, self.end.1)
    }
}

fn compile_rule(direction: Direction, id: &PolicyId, rule: &Rule, own: &[NamedPort]) -> ProfileRule {
    let origin = Origin::Rule { policy: id.clone(), direction, index: rule.index, name: rule.name.clone() };
    let (selectors, nets) = (selectors(rule.peers.as_deref()), ranges(rule.peers.as_deref().unwrap_or_default()));
    let (mut ports, mut named) = (Vec::new(), Vec::new());
    for port in rule.ports.iter().flatten() {
        match port {
            PortMatch::Range(protocol, first, last) => ports.push(Ports { protocol: *protocol, first: *first, last: *last }),
            PortMatch::Named(protocol, name) if direction == Direction::Ingress => {
                let fits = |port: &&NamedPort| port.name == *name && protocol.is_none_or(|protocol| protocol == port.protocol);
                ports.extend(own.iter().filter(fits).map(|port| Ports { protocol: port.protocol, first: port.port, last: port.port }));
            }
            // Only pods have names for ports.
            PortMatch::Named(protocol, name) if !selectors.is_empty() || !nets.is_empty() => {
                named.push(Arc::new(GroupKey::Named(selectors.clone(), nets.clone(), *protocol, name.clone())));
            }
            PortMatch::Named(..) => {}
        }
    }
    let ports = merged_ports(ports);
    named.sort_unstable();
    named.dedup();
    ProfileRule { action: rule.action, origin, peers: rule.peers.as_deref().map(groups), ports: rule.ports.as_ref().map(|_| ports), named }
}

/// Sorted, without overlaps, neighbours joined.
fn merged_ports(mut ports: Vec<Ports>) -> Vec<Ports> {
    ports.sort_unstable();
    let mut result: Vec<Ports> = Vec::new();
    for range in ports {
        match result.last_mut() {
            Some(before) if before.protocol == range.protocol && range.first <= before.last.saturating_add(1) => {
                before.last = before.last.max(range.last);
            }
            _ => result.push(range),
        }
    }
    result
}

/// The pods among peers; every pod where everybody is meant.
fn selectors(peers: Option<&[Peer]>) -> Vec<PodSelector> {
    let Some(peers) = peers else {
        return vec![PodSelector { namespaces: crate::policy::Namespaces::Labelled(Selects::all()), pods: Selects::all() }];
    };
    let mut selectors: Vec<PodSelector> =
        peers.iter().filter_map(|peer| if let Peer::Pods(pods) = peer { Some(pods.clone()) } else { None }).collect();
    selectors.sort_unstable();
    selectors.dedup();
    selectors
}

/// The addresses that stand in peers.
fn ranges(peers: &[Peer]) -> Vec<Range> {
    let ranges = peers.iter().filter_map(|peer| if let Peer::Nets(ranges) = peer { Some(ranges) } else { None });
    crate::net::merged(ranges.flatten().copied().collect())
}

/// At most one group of each kind.
fn groups(peers: &[Peer]) -> Vec<Arc<GroupKey>> {
    let pods = selectors(Some(peers));
    let mut nodes: Vec<Selects> = peers.iter().filter_map(|peer| if let Peer::Nodes(nodes) = peer { Some(nodes.clone()) } else { None }).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let nets = ranges(peers);
    let pods = (!pods.is_empty()).then_some(GroupKey::Pods(pods));
    let nodes = (!nodes.is_empty()).then_some(GroupKey::Nodes(nodes));
    let nets = (!nets.is_empty()).then_some(GroupKey::Nets(nets));
    pods.into_iter().chain(nodes).chain(nets).map(Arc::new).collect()
}
