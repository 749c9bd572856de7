//! Rules about other pods: affinity, anti-affinity and spread constraints, required and preferred. Pure (upstream: plug-ins
//! InterPodAffinity and PodTopologySpread).

use std::collections::{HashMap, HashSet};

use k8s_openapi::api::core::v1::{Pod, PodAffinityTerm, PodSpec, TopologySpreadConstraint, WeightedPodAffinityTerm};

use super::{
    place::{Candidate, Judged, Refusal, is_repelled, suits},
    profile::Plugin,
    rows::{NodeRow, PodRow},
    score::MAX,
    world::{Spaces, World},
};
use kube_rules::{Labels, Selector};

/// The label whose values are single nodes: pods are counted per node without a table (upstream: `LabelHostname`).
const HOSTNAME: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";

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

/// A spread constraint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Spread {
    selector: Selector,
    topology: String,
    /// It keeps pods pending; otherwise it only prefers nodes.
    hard: bool,
    max_skew: i64,
    min_domains: usize,
    /// Whether nodes count that the pod does not ask for, or that repel it.
    unasked: bool,
    repelling: bool,
}

impl Spread {
    /// Whether a node is part of the count.
    pub fn counts(&self, pod: &PodRow, name: &str, node: &NodeRow) -> bool {
        (self.unasked || suits(pod, name, node)) && (self.repelling || !is_repelled(pod, node))
    }

    /// Upstream's constraints of pods without any (`systemDefaultConstraints`).
    fn defaults() -> [Self; 2] {
        [(HOSTNAME, 3), (ZONE, 5)].map(|(topology, max_skew)| Self {
            selector: Selector::nothing(),
            topology: topology.to_owned(),
            hard: false,
            max_skew,
            min_domains: 1,
            unasked: false,
            repelling: true,
        })
    }

    /// The label that names the domains.
    pub fn topology(&self) -> &str {
        &self.topology
    }

    /// How many pods of a node it counts.
    pub fn members(&self, pod: &PodRow, members: &[std::sync::Arc<PodRow>]) -> i64 {
        // Upstream: a selector that matches everything counts nothing.
        if self.selector.is_empty() {
            return 0;
        }
        let matching = members.iter().filter(|other| !other.deleting && other.ns == pod.ns && self.selector.matches(&other.labels));
        i64::try_from(matching.count()).unwrap_or(i64::MAX)
    }

    pub fn new(constraint: &TopologySpreadConstraint, labels: &Labels) -> Self {
        let selector = Selector::optional(constraint.label_selector.as_ref());
        let keys = constraint.match_label_keys.iter().flatten();
        let same: Labels = keys.filter_map(|key| labels.get(key).map(|value| (key.clone(), value.clone()))).collect();
        Self {
            selector: selector.and(Selector::from_labels(&same)),
            topology: constraint.topology_key.clone(),
            hard: constraint.when_unsatisfiable == "DoNotSchedule",
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
        let spread = spec.topology_spread_constraints.iter().flatten().map(|one| Spread::new(one, &labels));
        Self { near: compile(near), apart: compile(apart), spread: spread.collect(), likes: [weigh(preferred, 1), weigh(avoided, -1)].concat() }
    }
}

impl Rules {
    /// Whether the pod can only be where certain others are.
    pub fn wants_company(&self) -> bool {
        !self.near.is_empty() || !self.spread.is_empty()
    }

    /// Whether the pod says where others are to be, or where it is to be for others that come.
    pub fn concern_others(&self) -> bool {
        !self.near.is_empty() || !self.apart.is_empty() || !self.likes.is_empty()
    }

    /// Whether the pod says nothing about how it is to be spread.
    pub fn spreads_by_default(&self) -> bool {
        self.spread.is_empty()
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
    /// The spread constraints that keep it away, and their counts.
    hard: Vec<Spread>,
    spread: Vec<Domains>,
    /// Those that only prefer.
    soft: Vec<Spread>,
    /// Nodes that lack one of the labels of `soft` have no score; otherwise a missing label only does not count.
    needs_all_labels: bool,
    /// How much nodes with a label are preferred for the pods near them.
    liking: HashMap<(String, String), i64>,
}

impl Neighbours {
    /// Looks at every placed pod once, if it matters to the pod or the pod to it.
    pub fn of<'a>(pod: &PodRow, world: &World, nodes: impl Iterator<Item = Candidate<'a>>) -> Self {
        let rules = &pod.rules;
        let spread = if rules.spread.is_empty() { world.spread_defaults() } else { rules.spread.clone() };
        let (hard, soft): (Vec<_>, Vec<_>) = spread.into_iter().partition(|one| one.hard);
        let hard = if world.profile.has(Plugin::PodTopologySpread) { hard } else { Vec::new() };
        let mut all = Self {
            near: vec![Domains::new(); rules.near.len()],
            apart: vec![Domains::new(); rules.apart.len()],
            spread: vec![Domains::new(); hard.len()],
            hard,
            soft,
            needs_all_labels: !rules.spread.is_empty() || world.profile.spread_defaults.is_some(),
            ..Self::default()
        };
        let theirs = !(world.profile.ignores_others_preferences && rules.likes.is_empty());
        for candidate in nodes {
            if !all.hard.is_empty() {
                all.count_spread(pod, candidate);
            }
            all.count_company(pod, world, candidate, theirs);
        }
        all.first = all.near.iter().all(HashMap::is_empty) && rules.near.iter().all(|term| term.matches(pod, &world.spaces));
        all
    }

    fn count_spread(&mut self, pod: &PodRow, (name, node, usage): Candidate<'_>) {
        if !self.hard.iter().all(|one| node.labels.contains_key(&one.topology)) {
            return;
        }
        for (constraint, domains) in self.hard.iter().zip(&mut self.spread).filter(|(one, _)| one.counts(pod, name, node)) {
            // An empty domain counts too: it is the one with the fewest pods.
            *domains.entry(node.labels[&constraint.topology].clone()).or_default() += constraint.members(pod, &usage.members);
        }
    }

    fn count_company(&mut self, pod: &PodRow, world: &World, (_, node, usage): Candidate<'_>, with_preferences: bool) {
        let (rules, spaces) = (&pod.rules, &world.spaces);
        let others = if rules.concern_others() { &usage.members } else { &usage.minded };
        for other in others {
            if !rules.near.is_empty() && rules.near.iter().all(|term| term.matches(other, spaces)) {
                count(&rules.near, &mut self.near, node, |_| true);
            }
            count(&rules.apart, &mut self.apart, node, |term| term.matches(other, spaces));
            for term in other.rules.apart.iter().filter(|term| term.matches(pod, spaces)) {
                if let Some(value) = node.labels.get(&term.topology) {
                    self.unwanted.insert((term.topology.clone(), value.clone()));
                }
            }
            if !with_preferences {
                continue;
            }
            let required = world.profile.hard_affinity_weight;
            let preferred = rules.likes.iter().filter(|(_, term)| term.matches(other, spaces)).map(|(weight, term)| (*weight, term));
            let theirs = other.rules.likes.iter().filter(|(_, term)| term.matches(pod, spaces)).map(|(weight, term)| (*weight, term));
            let firm = other.rules.near.iter().filter(|term| required > 0 && term.matches(pod, spaces)).map(|term| (required, term));
            for (weight, term) in preferred.chain(theirs).chain(firm) {
                if let Some(value) = node.labels.get(&term.topology) {
                    *self.liking.entry((term.topology.clone(), value.clone())).or_default() += weight;
                }
            }
        }
    }

    /// How much the pod and its neighbours like each other, for each node.
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "scores are shares of 100")]
    pub fn company_scores<'a>(&self, nodes: impl Iterator<Item = &'a NodeRow>) -> Vec<i64> {
        let liking = |node: &NodeRow| self.liking.iter().filter(|((key, value), _)| node.labels.get(key) == Some(value)).map(|(_, sum)| *sum).sum();
        let sums: Vec<i64> = nodes.map(liking).collect();
        let (least, most) = (sums.iter().copied().min().unwrap_or_default(), sums.iter().copied().max().unwrap_or_default());
        let share = |sum: i64| if most > least { (MAX as f64 * ((sum - least) as f64 / (most - least) as f64)) as i64 } else { 0 };
        sums.into_iter().map(share).collect()
    }

    /// How well each of the `fitting` nodes keeps the pod's like apart; a node without the labels is the last choice.
    pub fn spread_scores<'a>(&self, nodes: impl Iterator<Item = Judged<'a>>, fitting: &[Judged<'a>]) -> Vec<i64> {
        if self.soft.is_empty() {
            return vec![0; fitting.len()];
        }
        let qualifies = |node: &NodeRow| !self.needs_all_labels || self.soft.iter().all(|one| node.labels.contains_key(&one.topology));
        let counts = self.soft_counts(nodes.filter(|((_, node, _), _)| qualifies(node)), fitting.iter().filter(|((_, node, _), _)| qualifies(node)));
        let qualified = fitting.iter().filter(|((_, node, _), _)| qualifies(node)).count();
        #[expect(clippy::cast_precision_loss, reason = "upstream's arithmetic")]
        let weights: Vec<f64> = self
            .soft
            .iter()
            .zip(&counts)
            .map(|(one, domains)| {
                let size = if one.topology == HOSTNAME { qualified } else { domains.len() };
                (size as f64 + 2.0).ln()
            })
            .collect();
        #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "upstream's arithmetic")]
        let crowd = |(_, facts): &Judged<'_>| -> i64 {
            let mut sum = 0.0;
            for (((constraint, domains), weight), tally) in self.soft.iter().zip(&counts).zip(&weights).zip(&facts.spread) {
                let Some(value) = &tally.domain else { continue };
                let count = if constraint.topology == HOSTNAME { tally.members } else { domains.get(value.as_str()).copied().unwrap_or_default() };
                sum += count as f64 * weight + (constraint.max_skew - 1) as f64;
            }
            sum.round() as i64
        };
        let crowds: Vec<Option<i64>> = fitting.iter().map(|one| qualifies(one.0.1).then(|| crowd(one))).collect();
        let known = || crowds.iter().flatten().copied();
        let (least, most) = (known().min().unwrap_or_default(), known().max().unwrap_or_default());
        let score = |crowd: Option<i64>| match crowd {
            Some(_) if most == 0 => MAX,
            Some(crowd) => MAX * (most + least - crowd) / most,
            None => 0,
        };
        crowds.into_iter().map(score).collect()
    }

    /// Pods by domain for each soft constraint, in the domains of the nodes that fit; a node without the label is in the domain of no name.
    fn soft_counts<'a, 'f>(
        &self,
        nodes: impl Iterator<Item = Judged<'a>>,
        fitting: impl Iterator<Item = &'f Judged<'a>>,
    ) -> Vec<HashMap<&'a str, i64>>
    where
        'a: 'f,
    {
        let mut counts: Vec<HashMap<&str, i64>> = vec![HashMap::new(); self.soft.len()];
        // Neighbouring nodes are mostly in one domain, which is looked up once then.
        let mut last = vec![None; self.soft.len()];
        for (_, facts) in fitting {
            let soft = self.soft.iter().zip(&mut counts).zip(&facts.spread).zip(&mut last);
            for (((_, domains), tally), last) in soft.filter(|(((one, _), _), _)| one.topology != HOSTNAME) {
                if *last != Some(tally.domain()) {
                    *last = Some(tally.domain());
                    domains.entry(tally.domain()).or_default();
                }
            }
        }
        let mut runs = vec![("", 0); self.soft.len()];
        for (_, facts) in nodes {
            let soft = self.soft.iter().zip(&mut counts).zip(&facts.spread).zip(&mut runs);
            for (((_, domains), tally), run) in soft.filter(|(((one, _), tally), _)| one.topology != HOSTNAME && tally.counts) {
                if run.0 != tally.domain() {
                    add(domains, std::mem::replace(run, (tally.domain(), 0)));
                }
                run.1 += tally.members;
            }
        }
        counts.iter_mut().zip(runs).for_each(|(domains, run)| add(domains, run));
        counts
    }

    /// The spread constraints that only prefer.
    pub fn soft(&self) -> &[Spread] {
        &self.soft
    }

    /// Whether neither [`Self::refuse_spread`] nor [`Self::refuse_affinity`] has anything against any node.
    pub fn refuse_none(&self, pod: &PodRow) -> bool {
        self.hard.is_empty() && pod.rules.near.is_empty() && pod.rules.apart.is_empty() && self.unwanted.is_empty()
    }

    /// Why a node cannot take the pod because of its spread constraints.
    pub fn refuse_spread(&self, pod: &PodRow, node: &NodeRow) -> Option<Refusal> {
        for (constraint, domains) in self.hard.iter().zip(&self.spread) {
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

    /// Why a node cannot take the pod because of other pods' affinity and its own.
    pub fn refuse_affinity(&self, pod: &PodRow, node: &NodeRow) -> Option<Refusal> {
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

/// The constraints of a pod that says nothing: the profile's, else upstream's own, for the pods that `selector` selects.
pub(super) fn default_spread(of_profile: Option<&Vec<Spread>>, selector: &Selector) -> Vec<Spread> {
    let all = of_profile.cloned().unwrap_or_else(|| Spread::defaults().into());
    all.into_iter().map(|one| Spread { selector: selector.clone(), ..one }).collect()
}

/// Adds the pods of some nodes to those of their domain, if it counts.
fn add(domains: &mut HashMap<&str, i64>, (domain, members): (&str, i64)) {
    if let Some(count) = domains.get_mut(domain) {
        *count += members;
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
