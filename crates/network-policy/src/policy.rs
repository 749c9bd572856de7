//! Policies as rules ask for them: one model for NetworkPolicies and ClusterNetworkPolicies.

pub mod cluster;
mod namespaced;

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

use ::cluster::Key;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube_rules::Selector;

use crate::net::Range;

/// Which way a rule looks from its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    Ingress,
    Egress,
}

impl Direction {
    pub const BOTH: [Self; 2] = [Self::Ingress, Self::Egress];
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        })
    }
}

/// One value for each direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Both<T> {
    pub ingress: T,
    pub egress: T,
}

impl<T> Both<T> {
    pub fn of(&self, direction: Direction) -> &T {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }

    pub fn of_mut(&mut self, direction: Direction) -> &mut T {
        match direction {
            Direction::Ingress => &mut self.ingress,
            Direction::Egress => &mut self.egress,
        }
    }
}

/// What a rule does with the packets that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    Allow,
    Deny,
    /// Skip the rest of the tier.
    Pass,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Pass => "pass",
        })
    }
}

/// A transport protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// By the API's name; none is TCP.
    pub fn read(name: Option<&str>) -> Option<Self> {
        match name {
            None | Some("" | "TCP") => Some(Self::Tcp),
            Some("UDP") => Some(Self::Udp),
            Some("SCTP") => Some(Self::Sctp),
            Some(_) => None,
        }
    }

    /// Its number in IP headers.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        })
    }
}

/// A label selector that can be a key.
#[derive(Clone, Debug)]
pub struct Selects {
    selector: Selector,
    text: Box<str>,
}

impl Selects {
    pub fn new(selector: &LabelSelector) -> Self {
        Self::from(Selector::new(selector))
    }

    /// Everything.
    pub fn all() -> Self {
        Self::from(Selector::default())
    }

    pub fn is_all(&self) -> bool {
        self.selector.is_empty()
    }

    /// Whether labels that `label` looks up satisfy it.
    pub fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.selector.matches_by(label)
    }
}

impl From<Selector> for Selects {
    fn from(selector: Selector) -> Self {
        // Display leaves out why a requirement matches nothing.
        let text = format!("{selector:?}").into();
        Self { selector, text }
    }
}

impl PartialEq for Selects {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Selects {}

impl PartialOrd for Selects {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Selects {
    fn cmp(&self, other: &Self) -> Ordering {
        self.text.cmp(&other.text)
    }
}

impl Hash for Selects {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl fmt::Display for Selects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_all() { f.write_str("all") } else { self.selector.fmt(f) }
    }
}

/// Which namespaces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Namespaces {
    /// The one of that name.
    Named(Box<str>),
    /// Those whose labels a selector selects.
    Labelled(Selects),
}

/// Pods by their namespaces and labels. Pods of the host's network are none of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodSelector {
    pub namespaces: Namespaces,
    pub pods: Selects,
}

impl PodSelector {
    /// No pod at all: no namespace has an empty name.
    pub fn nobody() -> Self {
        Self { namespaces: Namespaces::Named("".into()), pods: Selects::all() }
    }
}

impl fmt::Display for PodSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespaces {
            Namespaces::Named(name) => write!(f, "pods {} of namespace {name}", self.pods),
            Namespaces::Labelled(selector) => write!(f, "pods {} of namespaces {selector}", self.pods),
        }
    }
}

/// Who may be at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    Pods(PodSelector),
    /// Nodes by their labels.
    Nodes(Selects),
    /// Addresses.
    Nets(Vec<Range>),
}

/// Which ports at the packet's destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortMatch {
    /// Of that protocol, from the first to the last, both in it.
    Range(Protocol, u16, u16),
    /// What a container of the destination pod calls so; of any protocol where none is given.
    Named(Option<Protocol>, Box<str>),
}

impl PortMatch {
    /// Every port of a protocol.
    pub fn all(protocol: Protocol) -> Self {
        Self::Range(protocol, 0, u16::MAX)
    }
}

/// One rule of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub action: Action,
    /// The rule's name, where it has one.
    pub name: Box<str>,
    /// Its place among the policy's rules of its direction.
    pub index: usize,
    /// None is everybody. An empty list is nobody.
    pub peers: Option<Vec<Peer>>,
    /// None is every packet. An empty list is none.
    pub ports: Option<Vec<PortMatch>>,
}

/// Names a policy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyId {
    Namespaced(Key),
    Cluster(Box<str>),
}

impl fmt::Display for PolicyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Namespaced(key) => write!(f, "NetworkPolicy {key}"),
            Self::Cluster(name) => write!(f, "ClusterNetworkPolicy {name}"),
        }
    }
}

/// Which policies count before which: Admin, then NetworkPolicies, then Baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    Admin,
    NetworkPolicy,
    Baseline,
}

/// A policy, whatever its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub tier: Tier,
    /// Within a tier, the lower ones come first.
    pub priority: i32,
    /// The pods whose packets it is about.
    pub subject: PodSelector,
    /// The directions that the policy closes but for what its rules allow; of NetworkPolicies only.
    pub isolates: Both<bool>,
    pub rules: Both<Vec<Rule>>,
    /// What of the object cannot be used, one sentence each.
    pub problems: Vec<String>,
}

impl Policy {
    /// Whether it can be about any pod; what stands for a policy that cannot be used is about none.
    pub fn has_effect(&self) -> bool {
        self.subject != PodSelector::nobody()
    }
}
