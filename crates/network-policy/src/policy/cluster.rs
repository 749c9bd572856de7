//! Reader of ClusterNetworkPolicies (policy.networking.k8s.io/v1alpha2, kubernetes-sigs/network-policy-api).
//!
//! A peer or protocol that this version of the reader does not know fails closed, as the API's documentation asks: an Accept rule then
//! matches nobody there, and a Deny or Pass rule denies everything.

use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::Deserialize;
use serde_json::Value;
use thiserror_ext::AsReport as _;

use super::{Action, Both, Namespaces, Peer, PodSelector, Policy, PortMatch, Protocol, Rule, Selects, Tier};
use crate::net::{self, Range};

/// The API's group.
pub const GROUP: &str = "policy.networking.k8s.io";
/// The version that is read.
pub const VERSION: &str = "v1alpha2";
/// Kind and plural.
pub const KIND: (&str, &str) = ("ClusterNetworkPolicy", "clusternetworkpolicies");

#[derive(Deserialize)]
struct Spec {
    tier: String,
    priority: i32,
    subject: Value,
    #[serde(default)]
    ingress: Vec<RawRule>,
    #[serde(default)]
    egress: Vec<RawRule>,
}

#[derive(Deserialize)]
struct RawRule {
    #[serde(default)]
    name: String,
    action: String,
    #[serde(default, alias = "to")]
    from: Vec<Value>,
    #[serde(default)]
    protocols: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NamespacedPod {
    #[serde(default)]
    namespace_selector: Option<LabelSelector>,
    #[serde(default)]
    pod_selector: Option<LabelSelector>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PortOf {
    #[serde(default)]
    destination_port: Option<Port>,
}

#[derive(Deserialize)]
struct Port {
    #[serde(default)]
    number: Option<u16>,
    #[serde(default)]
    range: Option<PortRange>,
}

#[derive(Deserialize)]
struct PortRange {
    start: u16,
    end: u16,
}

/// A policy that cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    #[error("its spec is none of {VERSION}")]
    Spec(#[from] serde_json::Error),
    #[error("tier {0:?} is none: use Admin or Baseline")]
    Tier(String),
    #[error("its subject selects neither namespaces nor pods")]
    Subject,
}

impl Policy {
    /// Reads the `spec` of a ClusterNetworkPolicy.
    ///
    /// # Errors
    /// [`SpecError`], when it is not known which pods it is about; then it has no effect.
    pub fn cluster(spec: &Value) -> Result<Self, SpecError> {
        let spec = Spec::deserialize(spec)?;
        let tier = match spec.tier.as_str() {
            "Admin" => Tier::Admin,
            "Baseline" => Tier::Baseline,
            _ => return Err(SpecError::Tier(spec.tier)),
        };
        let subject = match pods(&spec.subject) {
            Some(Peer::Pods(subject)) => subject,
            _ => return Err(SpecError::Subject),
        };
        let mut problems = Vec::new();
        let mut rules = |direction: &str, given: Vec<RawRule>| {
            let given = given.into_iter().enumerate();
            given.filter_map(|(index, raw)| rule(&format!("{direction}[{index}]"), index, raw, &mut problems)).collect()
        };
        let rules = Both { ingress: rules("ingress", spec.ingress), egress: rules("egress", spec.egress) };
        Ok(Self { tier, priority: spec.priority, subject, isolates: Both::default(), rules, problems })
    }

    /// What stands for a ClusterNetworkPolicy that cannot be used: it selects no pod, and its one problem says why.
    pub fn without_effect(error: &SpecError) -> Self {
        Self {
            tier: Tier::Admin,
            priority: 0,
            subject: PodSelector::nobody(),
            isolates: Both::default(),
            rules: Both::default(),
            problems: vec![format!("the policy has no effect: {}; correct it", error.to_report_string())],
        }
    }
}

fn rule(at: &str, index: usize, raw: RawRule, problems: &mut Vec<String>) -> Option<Rule> {
    let action = match raw.action.as_str() {
        "Accept" => Action::Allow,
        "Deny" => Action::Deny,
        "Pass" => Action::Pass,
        other => {
            problems.push(format!("{at} has action {other:?}, which is none, and is left out: use Accept, Deny or Pass"));
            return None;
        }
    };
    let before = problems.len();
    let peers: Vec<Peer> = raw.from.iter().filter_map(|value| peer(at, value, action, problems)).collect();
    let ports: Vec<PortMatch> = raw.protocols.iter().filter_map(|value| protocol(at, value, problems)).collect();
    let name = raw.name.into_boxed_str();
    if problems.len() > before && action != Action::Allow {
        return Some(Rule { action: Action::Deny, name, index, peers: None, ports: None });
    }
    Some(Rule { action, name, index, peers: Some(peers), ports: (!raw.protocols.is_empty()).then_some(ports) })
}

fn selector(value: &Value) -> Option<Selects> {
    LabelSelector::deserialize(value).ok().map(|selector| Selects::new(&selector))
}

/// A subject, or a peer of pods.
fn pods(value: &Value) -> Option<Peer> {
    if let Some(namespaces) = value.get("namespaces") {
        return Some(Peer::Pods(PodSelector { namespaces: Namespaces::Labelled(selector(namespaces)?), pods: Selects::all() }));
    }
    let both = NamespacedPod::deserialize(value.get("pods")?).ok()?;
    let of = |selector: Option<LabelSelector>| selector.as_ref().map_or_else(Selects::all, Selects::new);
    Some(Peer::Pods(PodSelector { namespaces: Namespaces::Labelled(of(both.namespace_selector)), pods: of(both.pod_selector) }))
}

fn peer(at: &str, value: &Value, action: Action, problems: &mut Vec<String>) -> Option<Peer> {
    if let Some(peer) = pods(value) {
        return Some(peer);
    }
    if let Some(nodes) = value.get("nodes").and_then(selector) {
        return Some(Peer::Nodes(nodes));
    }
    if let Some(networks) = value.get("networks").and_then(Value::as_array) {
        let mut ranges = Vec::new();
        for text in networks {
            match text.as_str().and_then(|text| text.parse::<IpNet>().ok()) {
                Some(net) => ranges.push(Range::of(net)),
                None => problems.push(format!("{at} has network {text}, which is none: write one as 10.0.0.0/8")),
            }
        }
        return Some(Peer::Nets(net::merged(ranges)));
    }
    let closed = if action == Action::Allow { "the peer matches nobody" } else { "the rule denies everything" };
    problems.push(if value.get("domainNames").is_some() {
        format!("{at} has domainNames, which are not resolved here, so {closed}: use networks")
    } else {
        format!("{at} has a peer of an unknown kind, so {closed}: use namespaces, pods, nodes or networks")
    });
    None
}

fn protocol(at: &str, value: &Value, problems: &mut Vec<String>) -> Option<PortMatch> {
    if let Some(name) = value.get("destinationNamedPort").and_then(Value::as_str) {
        return Some(PortMatch::Named(None, name.into()));
    }
    for (key, protocol) in [("tcp", Protocol::Tcp), ("udp", Protocol::Udp), ("sctp", Protocol::Sctp)] {
        let Some(given) = value.get(key) else { continue };
        match PortOf::deserialize(given).map(|of| of.destination_port) {
            Ok(None) => return Some(PortMatch::all(protocol)),
            Ok(Some(Port { number: Some(number), range: None })) => return Some(PortMatch::Range(protocol, number, number)),
            Ok(Some(Port { number: None, range: Some(PortRange { start, end }) })) if start <= end => {
                return Some(PortMatch::Range(protocol, start, end));
            }
            _ => {}
        }
    }
    problems.push(format!("{at} has protocol {value}, which cannot be read: use tcp, udp or sctp with a destinationPort, or destinationNamedPort"));
    None
}
