//! Rules about other pods: affinity, anti-affinity and hard spread constraints. Pure (upstream: plug-ins InterPodAffinity and
//! PodTopologySpread, their required parts).

use std::collections::{HashMap, HashSet};

use k8s_openapi::api::core::v1::{Pod, PodAffinityTerm, PodSpec, TopologySpreadConstraint};

use super::{
    cache::Usage,
    place::{Refusal, suits},
    rows::{NodeRow, PodRow},
};
use crate::selector::{Labels, Selector};

/// A term of a required affinity or anti-affinity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Term {
    selector: Selector,
    /// None: all namespaces.
    namespaces: Option<Vec<String>>,
    topology: String,
}

impl Term {
    /// A compiled term of a pod in `ns`. A selector of namespaces counts only when it is the empty one, which means all of them.
    fn new(term: &PodAffinityTerm, ns: &str) -> Self {
        let named = term.namespaces.clone().unwrap_or_default();
        let everywhere = term.namespace_selector.as_ref().is_some_and(|selector| Selector::new(selector).is_empty());
        let namespaces = match (everywhere, named.is_empty()) {
            (true, _) => None,
            (false, true) => Some(vec![ns.to_owned()]),
            (false, false) => Some(named),
        };
        // No selector at all matches no pod.
        let selector = term.label_selector.as_ref().map_or_else(Selector::nothing, Selector::new);
        Self { selector, namespaces, topology: term.topology_key.clone() }
    }

    fn matches(&self, pod: &PodRow) -> bool {
        self.namespaces.as_ref().is_none_or(|all| all.contains(&pod.ns)) && self.selector.matches(&pod.labels)
    }
}

/// A spread constraint that keeps a pod from being placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Spread {
    selector: Selector,
    topology: String,
    max_skew: i64,
    min_domains: usize,
}

impl Spread {
    fn new(constraint: &TopologySpreadConstraint, labels: &Labels) -> Option<Self> {
        if constraint.when_unsatisfiable != "DoNotSchedule" {
            return None;
        }
        let selector = constraint.label_selector.as_ref().map_or_else(Selector::nothing, Selector::new);
        let keys = constraint.match_label_keys.iter().flatten();
        let same: Labels = keys.filter_map(|key| labels.get(key).map(|value| (key.clone(), value.clone()))).collect();
        Some(Self {
            selector: selector.and(Selector::from_labels(&same)),
            topology: constraint.topology_key.clone(),
            max_skew: constraint.max_skew.into(),
            min_domains: constraint.min_domains.and_then(|least| least.try_into().ok()).unwrap_or(1),
        })
    }
}

/// All that a pod asks of its neighbours.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Rules {
    near: Vec<Term>,
    apart: Vec<Term>,
    spread: Vec<Spread>,
}

impl Rules {
    pub fn new(pod: &Pod, spec: &PodSpec) -> Self {
        let ns = pod.metadata.namespace.clone().unwrap_or_default();
        let labels = pod.metadata.labels.clone().unwrap_or_default();
        let compile = |terms: Option<&Vec<PodAffinityTerm>>| terms.into_iter().flatten().map(|term| Term::new(term, &ns)).collect();
        let affinity = spec.affinity.as_ref();
        let near =
            affinity.and_then(|all| all.pod_affinity.as_ref()).and_then(|one| one.required_during_scheduling_ignored_during_execution.as_ref());
        let apart =
            affinity.and_then(|all| all.pod_anti_affinity.as_ref()).and_then(|one| one.required_during_scheduling_ignored_during_execution.as_ref());
        let spread = spec.topology_spread_constraints.iter().flatten();
        Self { near: compile(near), apart: compile(apart), spread: spread.filter_map(|one| Spread::new(one, &labels)).collect() }
    }
}

impl Rules {
    /// Whether the pod can only be where certain others are.
    pub fn wants_company(&self) -> bool {
        !self.near.is_empty()
    }
}

/// Pods by the value of one topology label.
type Domains = HashMap<String, i64>;

/// What matters of all placed pods to one pod that is to be placed.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    near: Vec<Domains>,
    /// The pod is the first of its kind and satisfies its own affinity.
    first: bool,
    apart: Vec<Domains>,
    /// Labels of nodes near which placed pods do not want it.
    unwanted: HashSet<(String, String)>,
    spread: Vec<Domains>,
}

impl Neighbours {
    /// Looks at every placed pod once.
    pub fn of<'a>(pod: &PodRow, nodes: impl Iterator<Item = (&'a str, &'a NodeRow, &'a Usage)>) -> Self {
        let rules = &pod.rules;
        let mut all = Self {
            near: vec![Domains::new(); rules.near.len()],
            apart: vec![Domains::new(); rules.apart.len()],
            spread: vec![Domains::new(); rules.spread.len()],
            ..Self::default()
        };
        for (name, node, usage) in nodes {
            all.add_node(pod, name, node, usage);
        }
        all.first = all.near.iter().all(HashMap::is_empty) && rules.near.iter().all(|term| term.matches(pod));
        all
    }

    fn add_node(&mut self, pod: &PodRow, name: &str, node: &NodeRow, usage: &Usage) {
        let rules = &pod.rules;
        let eligible = suits(pod, name, node) && rules.spread.iter().all(|one| node.labels.contains_key(&one.topology));
        for (constraint, domains) in rules.spread.iter().zip(&mut self.spread).filter(|_| eligible) {
            let matching = usage.members.iter().filter(|other| other.ns == pod.ns && !other.deleting && constraint.selector.matches(&other.labels));
            // An empty domain counts too: it is the one with the fewest pods.
            *domains.entry(node.labels[&constraint.topology].clone()).or_default() += i64::try_from(matching.count()).unwrap_or(i64::MAX);
        }
        for other in &usage.members {
            if !rules.near.is_empty() && rules.near.iter().all(|term| term.matches(other)) {
                count(&rules.near, &mut self.near, node, |_| true);
            }
            count(&rules.apart, &mut self.apart, node, |term| term.matches(other));
            for term in other.rules.apart.iter().filter(|term| term.matches(pod)) {
                if let Some(value) = node.labels.get(&term.topology) {
                    self.unwanted.insert((term.topology.clone(), value.clone()));
                }
            }
        }
    }

    /// Why a node cannot take the pod because of its neighbours.
    pub fn refuse(&self, pod: &PodRow, node: &NodeRow) -> Option<Refusal> {
        self.refuse_spread(pod, node).or_else(|| self.refuse_affinity(pod, node))
    }

    fn refuse_spread(&self, pod: &PodRow, node: &NodeRow) -> Option<Refusal> {
        for (constraint, domains) in pod.rules.spread.iter().zip(&self.spread) {
            let Some(value) = node.labels.get(&constraint.topology) else {
                return Some(Refusal::hopeless("node(s) didn't match pod topology spread constraints (missing required label)"));
            };
            let least = if domains.len() < constraint.min_domains { 0 } else { domains.values().copied().min().unwrap_or_default() };
            let own = i64::from(constraint.selector.matches(&pod.labels));
            if domains.get(value).copied().unwrap_or_default() + own - least > constraint.max_skew {
                return Some(Refusal::curable("node(s) didn't match pod topology spread constraints"));
            }
        }
        None
    }

    fn refuse_affinity(&self, pod: &PodRow, node: &NodeRow) -> Option<Refusal> {
        let has = |term: &Term, domains: &Domains| node.labels.get(&term.topology).is_some_and(|value| domains.contains_key(value));
        let labelled = pod.rules.near.iter().all(|term| node.labels.contains_key(&term.topology));
        let near = pod.rules.near.iter().zip(&self.near).all(|(term, domains)| has(term, domains));
        if !pod.rules.near.is_empty() && !(labelled && (near || self.first)) {
            return Some(Refusal::hopeless("node(s) didn't match pod affinity rules"));
        }
        if pod.rules.apart.iter().zip(&self.apart).any(|(term, domains)| has(term, domains)) {
            return Some(Refusal::curable("node(s) didn't match pod anti-affinity rules"));
        }
        let unwanted = |(key, value): (&String, &String)| self.unwanted.contains(&(key.clone(), value.clone()));
        if !self.unwanted.is_empty() && node.labels.iter().any(unwanted) {
            return Some(Refusal::curable("node(s) didn't satisfy existing pods anti-affinity rules"));
        }
        None
    }
}

fn count(terms: &[Term], domains: &mut [Domains], node: &NodeRow, matches: impl Fn(&Term) -> bool) {
    for (term, domains) in terms.iter().zip(domains).filter(|(term, _)| matches(term)) {
        if let Some(value) = node.labels.get(&term.topology) {
            *domains.entry(value.clone()).or_default() += 1;
        }
    }
}

#[cfg(test)]
#[path = "neighbours_tests.rs"]
mod tests;
