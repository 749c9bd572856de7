//! Rules about other pods: affinity, anti-affinity and spread constraints, required and preferred. Pure (upstream: plug-ins
//! InterPodAffinity and PodTopologySpread).

use std::collections::{HashMap, HashSet};

use k8s_openapi::api::core::v1::{Pod, PodAffinityTerm, PodSpec, TopologySpreadConstraint, WeightedPodAffinityTerm};

use super::{
    cache::Usage,
    place::{Refusal, is_repelled, suits},
    rows::{NodeRow, PodRow},
    world::Spaces,
};
use kube_rules::{Labels, Selector};

/// A term of a required affinity or anti-affinity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Term {
    selector: Selector,
    namespaces: Vec<String>,
    /// Further namespaces, by their labels.
    spaces: Option<Selector>,
    topology: String,
}

impl Term {
    /// A compiled term of a pod in `ns`.
    fn new(term: &PodAffinityTerm, ns: &str) -> Self {
        let mut namespaces = term.namespaces.clone().unwrap_or_default();
        if namespaces.is_empty() && term.namespace_selector.is_none() {
            namespaces.push(ns.to_owned());
        }
        let spaces = term.namespace_selector.as_ref().map(Selector::new);
        // No selector at all matches no pod.
        let selector = Selector::optional(term.label_selector.as_ref());
        Self { selector, namespaces, spaces, topology: term.topology_key.clone() }
    }

    fn matches(&self, pod: &PodRow, spaces: &Spaces) -> bool {
        let by_labels = |selector: &Selector| selector.is_empty() || spaces.get(&pod.ns).is_some_and(|labels| selector.matches(labels));
        let space = self.namespaces.contains(&pod.ns) || self.spaces.as_ref().is_some_and(by_labels);
        space && self.selector.matches(&pod.labels)
    }
}

/// How much the required affinity of placed pods counts for a pod that matches it (upstream: `hardPodAffinityWeight`).
const REQUIRED_WEIGHT: i64 = 1;

/// A spread constraint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Spread {
    selector: Selector,
    topology: String,
    max_skew: i64,
    min_domains: usize,
    /// Whether nodes count that the pod does not ask for, or that repel it.
    unasked: bool,
    repelling: bool,
}

impl Spread {
    /// Whether a node is part of the count.
    fn counts(&self, pod: &PodRow, name: &str, node: &NodeRow) -> bool {
        (self.unasked || suits(pod, name, node)) && (self.repelling || !is_repelled(pod, node))
    }

    fn new(constraint: &TopologySpreadConstraint, labels: &Labels) -> Self {
        let selector = Selector::optional(constraint.label_selector.as_ref());
        let keys = constraint.match_label_keys.iter().flatten();
        let same: Labels = keys.filter_map(|key| labels.get(key).map(|value| (key.clone(), value.clone()))).collect();
        Self {
            selector: selector.and(Selector::from_labels(&same)),
            topology: constraint.topology_key.clone(),
            max_skew: constraint.max_skew.into(),
            min_domains: constraint.min_domains.and_then(|least| least.try_into().ok()).unwrap_or(1),
            unasked: constraint.node_affinity_policy.as_deref() == Some("Ignore"),
            repelling: constraint.node_taints_policy.as_deref() != Some("Honor"),
        }
    }
}

/// All that a pod asks of its neighbours.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Rules {
    near: Vec<Term>,
    apart: Vec<Term>,
    spread: Vec<Spread>,
    /// Preferred neighbours, with weights; those to be avoided have negative ones.
    likes: Vec<(i64, Term)>,
    /// Spread constraints that only prefer.
    soft_spread: Vec<Spread>,
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
        let weigh = |terms: Option<&Vec<WeightedPodAffinityTerm>>, sign: i64| {
            let terms = terms.into_iter().flatten();
            terms.map(|one| (sign * i64::from(one.weight), Term::new(&one.pod_affinity_term, &ns))).collect::<Vec<_>>()
        };
        let preferred =
            affinity.and_then(|all| all.pod_affinity.as_ref()).and_then(|one| one.preferred_during_scheduling_ignored_during_execution.as_ref());
        let avoided =
            affinity.and_then(|all| all.pod_anti_affinity.as_ref()).and_then(|one| one.preferred_during_scheduling_ignored_during_execution.as_ref());
        let (hard, soft): (Vec<_>, Vec<_>) =
            spec.topology_spread_constraints.iter().flatten().partition(|one| one.when_unsatisfiable == "DoNotSchedule");
        let spread = |all: Vec<&TopologySpreadConstraint>| all.into_iter().map(|one| Spread::new(one, &labels)).collect();
        Self {
            near: compile(near),
            apart: compile(apart),
            spread: spread(hard),
            likes: [weigh(preferred, 1), weigh(avoided, -1)].concat(),
            soft_spread: spread(soft),
        }
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

/// Counts of placed pods by topology domain, for one pod that is to be placed.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    near: Vec<Domains>,
    /// The pod is the first of its kind and satisfies its own affinity.
    first: bool,
    apart: Vec<Domains>,
    /// Labels of nodes near which placed pods do not want it.
    unwanted: HashSet<(String, String)>,
    spread: Vec<Domains>,
    /// How much nodes with a label are preferred for the pods near them.
    liking: HashMap<(String, String), i64>,
    soft_spread: Vec<Domains>,
}

impl Neighbours {
    /// Looks at every placed pod once.
    pub fn of<'a>(pod: &PodRow, spaces: &Spaces, nodes: impl Iterator<Item = (&'a str, &'a NodeRow, &'a Usage)>) -> Self {
        let rules = &pod.rules;
        let mut all = Self {
            near: vec![Domains::new(); rules.near.len()],
            apart: vec![Domains::new(); rules.apart.len()],
            spread: vec![Domains::new(); rules.spread.len()],
            soft_spread: vec![Domains::new(); rules.soft_spread.len()],
            ..Self::default()
        };
        for (name, node, usage) in nodes {
            all.add_node(pod, spaces, name, node, usage);
        }
        all.first = all.near.iter().all(HashMap::is_empty) && rules.near.iter().all(|term| term.matches(pod, spaces));
        all
    }

    fn add_node(&mut self, pod: &PodRow, spaces: &Spaces, name: &str, node: &NodeRow, usage: &Usage) {
        let rules = &pod.rules;
        let labelled = rules.spread.iter().all(|one| node.labels.contains_key(&one.topology));
        let members = |constraint: &Spread| {
            let matching = usage.members.iter().filter(|other| other.ns == pod.ns && !other.deleting && constraint.selector.matches(&other.labels));
            i64::try_from(matching.count()).unwrap_or(i64::MAX)
        };
        for (constraint, domains) in rules.spread.iter().zip(&mut self.spread).filter(|(one, _)| labelled && one.counts(pod, name, node)) {
            // An empty domain counts too: it is the one with the fewest pods.
            *domains.entry(node.labels[&constraint.topology].clone()).or_default() += members(constraint);
        }
        for (constraint, domains) in rules.soft_spread.iter().zip(&mut self.soft_spread).filter(|(one, _)| one.counts(pod, name, node)) {
            if let Some(value) = node.labels.get(&constraint.topology) {
                *domains.entry(value.clone()).or_default() += members(constraint);
            }
        }
        for other in &usage.members {
            if !rules.near.is_empty() && rules.near.iter().all(|term| term.matches(other, spaces)) {
                count(&rules.near, &mut self.near, node, |_| true);
            }
            count(&rules.apart, &mut self.apart, node, |term| term.matches(other, spaces));
            for term in other.rules.apart.iter().filter(|term| term.matches(pod, spaces)) {
                if let Some(value) = node.labels.get(&term.topology) {
                    self.unwanted.insert((term.topology.clone(), value.clone()));
                }
            }
            let preferred = rules.likes.iter().filter(|(_, term)| term.matches(other, spaces)).map(|(weight, term)| (*weight, term));
            let theirs = other.rules.likes.iter().filter(|(_, term)| term.matches(pod, spaces)).map(|(weight, term)| (*weight, term));
            let firm = other.rules.near.iter().filter(|term| term.matches(pod, spaces)).map(|term| (REQUIRED_WEIGHT, term));
            for (weight, term) in preferred.chain(theirs).chain(firm) {
                if let Some(value) = node.labels.get(&term.topology) {
                    *self.liking.entry((term.topology.clone(), value.clone())).or_default() += weight;
                }
            }
        }
    }

    /// Why a node cannot take the pod because of its neighbours.
    pub fn refuse(&self, pod: &PodRow, node: &NodeRow) -> Option<Refusal> {
        self.refuse_spread(pod, node).or_else(|| self.refuse_affinity(pod, node))
    }

    /// Whether the pod says itself how it wants to be spread.
    pub fn spreads(&self) -> bool {
        !self.soft_spread.is_empty()
    }

    /// 0 to 100 a node: how much the pod and its neighbours like each other.
    #[expect(clippy::cast_precision_loss, reason = "scores are shares of 100")]
    pub fn company_scores<'a>(&self, nodes: impl Iterator<Item = &'a NodeRow>) -> Vec<f64> {
        let liking = |node: &NodeRow| self.liking.iter().filter(|((key, value), _)| node.labels.get(key) == Some(value)).map(|(_, sum)| *sum).sum();
        let sums: Vec<i64> = nodes.map(liking).collect();
        let (least, most) = (sums.iter().copied().min().unwrap_or_default(), sums.iter().copied().max().unwrap_or_default());
        sums.into_iter().map(|sum| if most > least { 100.0 * (sum - least) as f64 / (most - least) as f64 } else { 0.0 }).collect()
    }

    /// 0 to 100 a node: how well it keeps the pod's like apart; a node without the labels is the last choice.
    #[expect(clippy::cast_precision_loss, reason = "scores are shares of 100")]
    pub fn spread_scores<'a>(&self, pod: &PodRow, nodes: impl Iterator<Item = &'a NodeRow>) -> Vec<f64> {
        if !self.spreads() {
            return nodes.map(|_| 0.0).collect();
        }
        let crowd = |node: &NodeRow| -> Option<f64> {
            let constraints = pod.rules.soft_spread.iter().zip(&self.soft_spread);
            constraints
                .map(|(constraint, domains)| {
                    let count = domains.get(node.labels.get(&constraint.topology)?).copied().unwrap_or_default();
                    Some(count as f64 * (domains.len() as f64 + 2.0).ln() + (constraint.max_skew - 1) as f64)
                })
                .sum()
        };
        let crowds: Vec<Option<f64>> = nodes.map(crowd).collect();
        let known = || crowds.iter().flatten().copied();
        let (least, most) = (known().fold(f64::INFINITY, f64::min), known().fold(0.0, f64::max));
        let score = |crowd: Option<f64>| match crowd {
            Some(crowd) if most > 0.0 => 100.0 * (most + least - crowd) / most,
            Some(_) => 100.0,
            None => 0.0,
        };
        crowds.into_iter().map(score).collect()
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
