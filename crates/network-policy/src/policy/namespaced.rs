//! Reader of NetworkPolicies (networking.k8s.io/v1).
//!
//! The API server refuses objects with wrong networks and ports, but not every one that stores them is ours: what cannot be read matches
//! nothing, so that the policy stays closed there, and is reported.

use ipnet::IpNet;
use k8s_openapi::api::networking::v1::{IPBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{Action, Both, Namespaces, Peer, PodSelector, Policy, PortMatch, Protocol, Rule, Selects, Tier};
use crate::net;

impl Policy {
    /// Reads a NetworkPolicy.
    pub fn namespaced(policy: &NetworkPolicy) -> Self {
        let spec = policy.spec.clone().unwrap_or_default();
        let namespace = policy.metadata.namespace.as_deref().unwrap_or_default();
        let mut reader = Reader { namespace, problems: Vec::new() };
        // The API server fills in types that are not given; an object that it never saw has none.
        let types = spec.policy_types.as_deref().unwrap_or_default();
        let named = |name: &str| types.iter().any(|one| one == name);
        let isolates = Both {
            ingress: types.is_empty() || named("Ingress"),
            egress: named("Egress") || (types.is_empty() && spec.egress.as_ref().is_some_and(|rules| !rules.is_empty())),
        };
        // Rules of a direction that the policy has no type for mean nothing, also for pods that another policy isolates.
        let ingress = spec.ingress.iter().flatten().filter(|_| isolates.ingress).enumerate();
        let ingress = ingress.map(|(at, rule)| reader.rule(format!("ingress[{at}]"), at, rule.from.as_deref(), rule.ports.as_deref())).collect();
        let egress = spec.egress.iter().flatten().filter(|_| isolates.egress).enumerate();
        let egress = egress.map(|(at, rule)| reader.rule(format!("egress[{at}]"), at, rule.to.as_deref(), rule.ports.as_deref())).collect();
        Self {
            tier: Tier::NetworkPolicy,
            priority: 0,
            subject: reader.pods(None, spec.pod_selector.as_ref().map_or_else(Selects::all, Selects::new)),
            isolates,
            rules: Both { ingress, egress },
            problems: reader.problems,
        }
    }
}

struct Reader<'a> {
    namespace: &'a str,
    problems: Vec<String>,
}

impl Reader<'_> {
    fn rule(&mut self, at: String, index: usize, peers: Option<&[NetworkPolicyPeer]>, ports: Option<&[NetworkPolicyPort]>) -> Rule {
        let given = peers.filter(|peers| !peers.is_empty());
        let peers = given.map(|peers| peers.iter().filter_map(|peer| self.peer(&at, peer)).collect());
        let given = ports.filter(|ports| !ports.is_empty());
        let ports = given.map(|ports| ports.iter().filter_map(|port| self.port(&at, port)).collect());
        Rule { action: Action::Allow, name: Box::default(), index, peers, ports }
    }

    fn problem(&mut self, text: String) {
        self.problems.push(text);
    }

    fn pods(&self, namespaces: Option<Selects>, pods: Selects) -> PodSelector {
        PodSelector { namespaces: namespaces.map_or_else(|| Namespaces::Named(self.namespace.into()), Namespaces::Labelled), pods }
    }

    fn peer(&mut self, at: &str, peer: &NetworkPolicyPeer) -> Option<Peer> {
        if let Some(block) = &peer.ip_block {
            return self.block(at, block);
        }
        let (namespaces, pods) = (peer.namespace_selector.as_ref().map(Selects::new), peer.pod_selector.as_ref().map(Selects::new));
        if namespaces.is_none() && pods.is_none() {
            self.problem(format!("{at} has a peer without a selector and ipBlock, which matches nobody: give it one"));
            return None;
        }
        Some(Peer::Pods(self.pods(namespaces, pods.unwrap_or_else(Selects::all))))
    }

    fn block(&mut self, at: &str, block: &IPBlock) -> Option<Peer> {
        let Ok(cidr) = block.cidr.parse::<IpNet>() else {
            self.problem(format!("{at} has ipBlock {:?}, which is no network and matches nobody: write one as 10.0.0.0/8", block.cidr));
            return None;
        };
        let mut except = Vec::new();
        for text in block.except.iter().flatten() {
            match text.parse::<IpNet>() {
                Ok(net) => except.push(net),
                Err(_) => {
                    // To allow what an exception was meant to exclude would open the policy.
                    self.problem(format!("{at} has exception {text:?} of ipBlock {cidr}, which is no network; the block matches nobody until it is"));
                    return None;
                }
            }
        }
        Some(Peer::Nets(net::without(cidr, &except)))
    }

    fn port(&mut self, at: &str, port: &NetworkPolicyPort) -> Option<PortMatch> {
        let Some(protocol) = Protocol::read(port.protocol.as_deref()) else {
            self.problem(format!(
                "{at} has protocol {:?}, which matches nothing: use TCP, UDP or SCTP",
                port.protocol.as_deref().unwrap_or_default()
            ));
            return None;
        };
        match &port.port {
            None => Some(PortMatch::all(protocol)),
            Some(IntOrString::String(name)) => Some(PortMatch::Named(Some(protocol), name.as_str().into())),
            Some(IntOrString::Int(first)) => {
                let last = port.end_port.unwrap_or(*first);
                match (u16::try_from(*first), u16::try_from(last)) {
                    (Ok(first), Ok(last)) if 0 < first && first <= last => Some(PortMatch::Range(protocol, first, last)),
                    _ => {
                        self.problem(format!(
                            "{at} has ports {first} to {last}, which match nothing: write ports from 1 to 65535, the lower one first"
                        ));
                        None
                    }
                }
            }
        }
    }
}
