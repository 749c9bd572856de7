//! Placement: filters and scores nodes for one pod. Pure.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::api::core::v1::Taint;
use kube_rules::{requests, taints};

use super::{
    cache::Usage,
    neighbours::Neighbours,
    rows::{NodeRow, PodRow},
    volumes::{Step, Volumes},
    world::{Spaces, World},
};

/// Why one node refuses a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    reasons: Vec<String>,
    /// Whether removing other pods could help.
    curable: bool,
}

impl Refusal {
    /// A reason that no other pod has to do with.
    pub fn hopeless(reason: &str) -> Self {
        Self { reasons: vec![reason.to_owned()], curable: false }
    }

    /// Several reasons that no other pod has to do with.
    pub fn all_hopeless(reasons: &[&str]) -> Self {
        Self { reasons: reasons.iter().map(|&reason| reason.to_owned()).collect(), curable: false }
    }

    /// A reason that goes away with other pods.
    pub fn curable(reason: &str) -> Self {
        Self { reasons: vec![reason.to_owned()], curable: true }
    }
}

/// Why no node takes a pod, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unfit {
    /// Each node's name and reason.
    refusals: Vec<(String, Refusal)>,
    /// A reason that has nothing to do with nodes; it stands for all refusals.
    overall: Option<String>,
}

impl Unfit {
    /// The nodes where removing other pods could help.
    pub fn curable_nodes(&self) -> impl Iterator<Item = &str> {
        self.refusals.iter().filter(|(_, refusal)| refusal.curable).map(|(name, _)| name.as_str())
    }

    /// The reasons alone: others are making room.
    pub fn reasons(&self) -> String {
        let all = self.refusals.len();
        if all == 0 {
            return "no nodes available to schedule pods".to_owned();
        }
        let reasons = match &self.overall {
            Some(reason) => reason.clone(),
            None => histogram(self.refusals.iter().flat_map(|(_, refusal)| refusal.reasons.iter().map(String::as_str))),
        };
        format!("0/{all} nodes are available: {reasons}.")
    }

    /// The reasons, and why others were not asked to make room.
    pub fn without_preemption(&self, why: &str) -> String {
        format!("{} no new claims to deallocate, preemption: {why}", self.reasons())
    }
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.refusals.len();
        if all == 0 {
            return f.write_str(&self.reasons());
        }
        let preemption = histogram(self.refusals.iter().map(|(_, refusal)| match refusal.curable {
            true => "No preemption victims found for incoming pod",
            false => "Preemption is not helpful for scheduling",
        }));
        f.write_str(&self.without_preemption(&format!("0/{all} nodes are available: {preemption}.")))
    }
}

/// `2 this, 1 that`, in the order of the text as upstream sorts it.
fn histogram<'a>(reasons: impl Iterator<Item = &'a str>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for reason in reasons {
        *counts.entry(reason).or_default() += 1;
    }
    let mut parts: Vec<String> = counts.into_iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    parts.sort();
    parts.join(", ")
}

/// The best node for `pod`, whose claims are among `world`, and the writes that its claims need there.
pub(super) fn place<'a>(
    pod: &PodRow,
    world: &World,
    nodes: impl Iterator<Item = (&'a str, &'a NodeRow, &'a Usage)> + Clone,
) -> Result<(String, Vec<Step>), Unfit> {
    let volumes = Volumes::of(pod, world).map_err(|reason| {
        let refusals = nodes.clone().map(|(name, ..)| (name.to_owned(), Refusal::hopeless(&reason))).collect();
        Unfit { refusals, overall: Some(reason) }
    })?;
    let mut refusals = Vec::new();
    let mut fitting = Vec::new();
    let neighbours = Neighbours::of(pod, &world.spaces, nodes.clone());
    let contended = volumes.are_contended(pod, nodes.clone());
    for (name, node, usage) in nodes {
        match first_refusal(pod, &volumes, contended, &neighbours, (name, node, usage)) {
            None => fitting.push((name, node, usage)),
            Some(refusal) => refusals.push((name.to_owned(), refusal)),
        }
    }
    let scores = score(pod, &neighbours, &fitting);
    // Among equals the emptier node, then the first by name, so that the same state of the cluster gives the same decision.
    let best = fitting
        .iter()
        .zip(scores)
        .max_by(|((a_name, _, a), a_score), ((b_name, _, b), b_score)| a_score.total_cmp(b_score).then(b.pods.cmp(&a.pods)).then(b_name.cmp(a_name)));
    match best {
        Some(((name, node, _), _)) => Ok(((*name).to_owned(), volumes.steps(name, node).unwrap_or_default())),
        None => Err(Unfit { refusals, overall: None }),
    }
}

/// Why one node refuses a pod whose claims are `volumes`, given all nodes as they would be.
pub(super) fn refusal<'a>(
    pod: &PodRow,
    volumes: &Volumes<'_>,
    spaces: &Spaces,
    nodes: impl Iterator<Item = (&'a str, &'a NodeRow, &'a Usage)> + Clone,
    one: (&str, &NodeRow, &Usage),
) -> Option<Refusal> {
    first_refusal(pod, volumes, volumes.are_contended(pod, nodes.clone()), &Neighbours::of(pod, spaces, nodes), one)
}

fn first_refusal(
    pod: &PodRow,
    volumes: &Volumes<'_>,
    contended: bool,
    neighbours: &Neighbours,
    (name, node, usage): (&str, &NodeRow, &Usage),
) -> Option<Refusal> {
    let taken = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode";
    filter(pod, name, node, usage)
        .or_else(|| contended.then(|| Refusal::curable(taken)))
        .or_else(|| volumes.refuse(name, node))
        .or_else(|| neighbours.refuse(pod, node))
}

/// The first plug-in's refusal, in upstream's order.
fn filter(pod: &PodRow, name: &str, node: &NodeRow, usage: &Usage) -> Option<Refusal> {
    let hopeless = |reason: &str| Some(Refusal::hopeless(reason));
    let cordon = Taint { key: "node.kubernetes.io/unschedulable".into(), effect: "NoSchedule".into(), ..Default::default() };
    if node.unschedulable && !taints::is_tolerated(&cordon, &pod.tolerations) {
        return hopeless("node(s) were unschedulable");
    }
    if is_repelled(pod, node) {
        return hopeless("node(s) had untolerated taint(s)");
    }
    if !suits(pod, name, node) {
        return hopeless("node(s) didn't match Pod's node affinity/selector");
    }
    if pod.ports.iter().any(|port| usage.ports.iter().any(|taken| port.conflicts_with(taken))) {
        return Some(Refusal::curable("node(s) didn't have free ports for the requested pod ports"));
    }
    fit(pod, node, usage)
}

/// Whether a taint of the node keeps the pod away.
pub(super) fn is_repelled(pod: &PodRow, node: &NodeRow) -> bool {
    taints::find_untolerated(&node.taints, &pod.tolerations, taints::prevents_scheduling).is_some()
}

/// Whether the node is one that the pod asks for.
pub(super) fn suits(pod: &PodRow, name: &str, node: &NodeRow) -> bool {
    pod.node_affinity.matches(name, &node.labels)
}

/// Whether the node's resources suffice; each shortage is a reason.
fn fit(pod: &PodRow, node: &NodeRow, usage: &Usage) -> Option<Refusal> {
    let (mut reasons, mut curable) = (Vec::new(), true);
    let most = node.allocatable.get("pods").copied().unwrap_or_default();
    if usage.pods + 1 > most {
        reasons.push("Too many pods".to_owned());
        curable &= most > 0;
    }
    for shortage in requests::shortages(&pod.requests, &usage.requests, &node.allocatable) {
        reasons.push(format!("Insufficient {}", shortage.name));
        curable &= shortage.requested <= shortage.allocatable;
    }
    (!reasons.is_empty()).then_some(Refusal { reasons, curable })
}

/// Upstream's weights of the default plug-ins.
const TAINTS: f64 = 3.0;
const AFFINITY: f64 = 2.0;
const SPREAD: f64 = 2.0;
const COMPANY: f64 = 2.0;

/// One number a node; more is better.
fn score(pod: &PodRow, neighbours: &Neighbours, nodes: &[(&str, &NodeRow, &Usage)]) -> Vec<f64> {
    let disliked: Vec<f64> = nodes.iter().map(|(_, node, _)| unpreferred_taints(pod, node)).collect();
    let preferred: Vec<f64> = nodes.iter().map(|(name, node, _)| preference(pod, name, node)).collect();
    let siblings: Vec<f64> = nodes.iter().map(|(_, _, usage)| if neighbours.spreads() { 0.0 } else { sibling_count(pod, usage) }).collect();
    let spread = neighbours.spread_scores(pod, nodes.iter().map(|(_, node, _)| *node));
    let company = neighbours.company_scores(nodes.iter().map(|(_, node, _)| *node));
    let largest = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let (most_disliked, most_preferred, most_siblings) = (largest(&disliked), largest(&preferred), largest(&siblings));
    // Shares of the largest value, as upstream's DefaultNormalizeScore has them.
    let share = |value: f64, most: f64| if most > 0.0 { 100.0 * value / most } else { 0.0 };
    nodes
        .iter()
        .enumerate()
        .map(|(index, (_, node, usage))| {
            let (least, balanced) = allocation(pod, node, usage);
            least + balanced + TAINTS * (100.0 - share(disliked[index], most_disliked)) + AFFINITY * share(preferred[index], most_preferred)
                - SPREAD * share(siblings[index], most_siblings)
                + SPREAD * spread[index]
                + COMPANY * company[index]
        })
        .collect()
}

#[expect(clippy::cast_precision_loss, reason = "scores are shares of 100")]
fn unpreferred_taints(pod: &PodRow, node: &NodeRow) -> f64 {
    node.taints.iter().filter(|taint| taint.effect == "PreferNoSchedule" && !taints::is_tolerated(taint, &pod.tolerations)).count() as f64
}

fn preference(pod: &PodRow, name: &str, node: &NodeRow) -> f64 {
    pod.preferred.iter().filter(|(_, term)| term.matches(name, &node.labels)).map(|(weight, _)| f64::from(*weight)).sum()
}

#[expect(clippy::cast_precision_loss, reason = "scores are shares of 100")]
fn sibling_count(pod: &PodRow, usage: &Usage) -> f64 {
    pod.owner.as_ref().and_then(|owner| usage.owners.get(owner)).copied().unwrap_or_default() as f64
}

/// How much stays free (LeastAllocated), and how evenly cpu and memory are used (BalancedAllocation).
fn allocation(pod: &PodRow, node: &NodeRow, usage: &Usage) -> (f64, f64) {
    #[expect(clippy::cast_precision_loss, reason = "scores are shares of 100")]
    let used = |name: &str, amount: i64| match node.allocatable.get(name) {
        Some(allocatable) if *allocatable > 0 => (amount as f64 / *allocatable as f64).min(1.0),
        _ => 1.0,
    };
    let cpu = used("cpu", usage.weight.0 + pod.weight.0);
    let memory = used("memory", usage.weight.1 + pod.weight.1);
    (50.0 * (1.0 - cpu) + 50.0 * (1.0 - memory), 100.0 * (1.0 - (cpu - memory).abs() / 2.0))
}

#[cfg(test)]
#[path = "place_tests.rs"]
mod tests;
