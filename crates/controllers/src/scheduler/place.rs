//! Placement: filters nodes for one pod and takes the one with the best score. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use k8s_openapi::api::core::v1::Taint;
use kube_rules::{HostPort, NodeSelector, requests, taints};

use super::{
    cache::Usage,
    memo::{Facts, Memo},
    neighbours::Neighbours,
    profile::{Plugin, Profile},
    rows::{NodeRow, PodRow},
    score,
    volumes::{Step, Volumes},
    world::World,
};

/// A node by its name, with what its pods use.
pub(super) type Candidate<'a> = (&'a str, &'a NodeRow, &'a Usage);

/// A node with what is known of it for the pod alone.
pub(super) type Judged<'a> = (Candidate<'a>, &'a Facts);

/// Why removing the pods of a node that may go would not help, by the node's name.
pub(super) type Attempts = BTreeMap<String, Vec<String>>;

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

    /// The reasons alone.
    pub fn into_reasons(self) -> Vec<String> {
        self.reasons
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

    /// Whether a node refuses the pod for a reason that no other pod has to do with.
    pub fn is_hopeless(&self, node: &str) -> bool {
        self.refusals.iter().any(|(name, refusal)| name == node && !refusal.curable)
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

    /// The reasons, and why it does not help that others go.
    pub fn despite_preemption(&self, attempts: &Attempts) -> String {
        let all = self.refusals.len();
        if all == 0 {
            return self.reasons();
        }
        let preemption = histogram(self.refusals.iter().flat_map(|(name, refusal)| match (refusal.curable, attempts.get(name)) {
            (true, Some(reasons)) => reasons.iter().map(String::as_str).collect(),
            (true, None) => vec!["No preemption victims found for incoming pod"],
            (false, _) => vec!["Preemption is not helpful for scheduling"],
        }));
        self.without_preemption(&format!("0/{all} nodes are available: {preemption}."))
    }
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.despite_preemption(&Attempts::new()))
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

/// The best node for `pod`, whose claims are among `world`, and the writes that its claims need there. `memo` changes how long that takes, and
/// nothing else.
pub(super) fn place<'a>(
    pod: &PodRow,
    world: &World,
    nodes: impl Iterator<Item = Candidate<'a>>,
    memo: &'a mut Memo,
) -> Result<(String, Vec<Step>), Unfit> {
    // Walked several times: the tree of all nodes only once.
    let mut all = Vec::with_capacity(memo.nodes());
    all.extend(nodes);
    let nodes = all.iter().copied();
    let everywhere = |reason: String| {
        let refusals = nodes.clone().map(|(name, ..)| (name.to_owned(), Refusal::hopeless(&reason))).collect();
        Unfit { refusals, overall: Some(reason) }
    };
    let trial = Trial::of(pod, world, nodes.clone()).map_err(everywhere)?;
    let judged = nodes.clone().zip(memo.facts(pod, &world.profile, trial.neighbours.soft(), nodes));
    let refuses = !trial.refuses_none();
    let mut fitting: Vec<Judged<'_>> = Vec::with_capacity(all.len());
    fitting.extend(judged.clone().filter(|(candidate, facts)| facts.refusal.is_none() && !(refuses && trial.further_refusal(*candidate).is_some())));
    if fitting.is_empty() {
        let refusal = |(candidate, facts): Judged<'_>| facts.refusal.clone().or_else(|| trial.further_refusal(candidate));
        let refusals = judged.filter_map(|one| Some((one.0.0.to_owned(), refusal(one)?))).collect();
        return Err(Unfit { refusals, overall: None });
    }
    let chosen = |(name, node, _): Candidate<'_>| (name.to_owned(), trial.volumes.steps(name, node).unwrap_or_default());
    // The node where others made room for it is its node, whatever else has become free.
    if let Some((nominated, _)) = fitting.iter().find(|((name, ..), _)| pod.nominated.as_deref() == Some(name)) {
        return Ok(chosen(*nominated));
    }
    let scores = score::scores(pod, world, &trial.neighbours, judged, &fitting);
    // Among equals the emptier node, then the first by name, so that the same state of the cluster gives the same decision.
    let best = fitting.iter().zip(scores).max_by(|(((a_name, _, a), _), a_score), (((b_name, _, b), _), b_score)| {
        a_score.cmp(b_score).then(b.pods.cmp(&a.pods)).then(b_name.cmp(a_name))
    });
    best.map(|((candidate, _), _)| chosen(*candidate)).ok_or(Unfit { refusals: Vec::new(), overall: None })
}

/// What is computed once for a pod and a state of the nodes, before each node is looked at.
pub(super) struct Trial<'a> {
    pod: &'a PodRow,
    profile: &'a Profile,
    volumes: Volumes<'a>,
    contended: bool,
    neighbours: Neighbours,
}

impl<'a> Trial<'a> {
    /// The error is why the pod fits nowhere, whatever the nodes are.
    pub fn of<'n>(pod: &'a PodRow, world: &'a World, nodes: impl Iterator<Item = Candidate<'n>> + Clone) -> Result<Self, String> {
        let profile = world.profile.as_ref();
        if named(pod, profile).is_some_and(|named| named.is_empty()) {
            return Err("pod affinity terms conflict".to_owned());
        }
        let volumes = Volumes::of(pod, world)?;
        let contended = volumes.are_contended(pod, nodes.clone());
        Ok(Self { pod, profile, volumes, contended, neighbours: Neighbours::of(pod, world, nodes) })
    }

    /// The first plug-in's refusal, in upstream's order.
    pub fn refusal(&self, candidate: Candidate<'_>) -> Option<Refusal> {
        own_refusal(self.pod, self.profile, candidate).or_else(|| self.further_refusal(candidate))
    }

    /// Whether [`Self::further_refusal`] has nothing against any node: most pods ask nothing of others, and nobody asks anything of them.
    fn refuses_none(&self) -> bool {
        !self.contended && self.pod.claims.is_empty() && self.neighbours.refuse_none(self.pod)
    }

    /// That of the plug-ins that look beyond the node, which come last.
    fn further_refusal(&self, candidate: Candidate<'_>) -> Option<Refusal> {
        let (pod, node) = (self.pod, candidate.1);
        let in_use = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod";
        let contended = self.contended.then(|| Refusal::curable(in_use));
        contended
            .or_else(|| self.volumes.refuse(pod, candidate))
            .or_else(|| self.neighbours.refuse_spread(pod, node))
            .or_else(|| if self.profile.has(Plugin::InterPodAffinity) { self.neighbours.refuse_affinity(pod, node) } else { None })
    }
}

/// The only nodes that the pod's affinity names, if it names nodes.
fn named<'a>(pod: &'a PodRow, profile: &Profile) -> Option<BTreeSet<&'a str>> {
    pod.node_affinity.required.as_ref().filter(|_| profile.has(Plugin::NodeAffinity)).and_then(NodeSelector::names)
}

/// The first refusal of the plug-ins that look at the pod, one node and the pods there alone.
pub(super) fn own_refusal(pod: &PodRow, profile: &Profile, (name, node, usage): Candidate<'_>) -> Option<Refusal> {
    let has = |plugin| profile.has(plugin);
    let hopeless = |reason: &str| Some(Refusal::hopeless(reason));
    if named(pod, profile).is_some_and(|named| !named.contains(name)) {
        return hopeless("node(s) didn't satisfy plugin(s) [NodeAffinity]");
    }
    let cordon = Taint { key: "node.kubernetes.io/unschedulable".into(), effect: "NoSchedule".into(), ..Default::default() };
    if has(Plugin::NodeUnschedulable) && node.unschedulable && !taints::is_tolerated(&cordon, &pod.tolerations) {
        return hopeless("node(s) were unschedulable");
    }
    if has(Plugin::TaintToleration) && is_repelled(pod, node) {
        return hopeless("node(s) had untolerated taint(s)");
    }
    if has(Plugin::NodeAffinity) {
        if profile.added_affinity.as_ref().is_some_and(|added| !added.matches(name, &node.labels)) {
            return hopeless("node(s) didn't match scheduler-enforced node affinity");
        }
        if !suits(pod, name, node) {
            return hopeless("node(s) didn't match Pod's node affinity/selector");
        }
    }
    let taken = |port: &HostPort| usage.ports.iter().any(|taken| port.conflicts_with(taken));
    if has(Plugin::NodePorts) && pod.ports.iter().any(taken) {
        return Some(Refusal::curable("node(s) didn't have free ports for the requested pod ports"));
    }
    let crowded = if has(Plugin::NodeResourcesFit) { fit(pod, profile, node, usage) } else { None };
    let taken = |other: &PodRow| pod.disks.iter().any(|disk| other.disks.iter().any(|other| disk.conflicts_with(other)));
    let occupied = has(Plugin::VolumeRestrictions) && !pod.disks.is_empty() && usage.members.iter().any(|other| taken(other));
    crowded.or_else(|| occupied.then(|| Refusal::curable("node(s) had no available disk")))
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
fn fit(pod: &PodRow, profile: &Profile, node: &NodeRow, usage: &Usage) -> Option<Refusal> {
    let (mut reasons, mut curable) = (Vec::new(), true);
    if usage.pods + 1 > node.allocatable.get("pods").copied().unwrap_or_default() {
        reasons.push("Too many pods".to_owned());
    }
    let ignored = |name: &str| {
        let group = name.split_once('/').map(|(group, _)| group);
        profile.ignored_resources.contains(name) || group.is_some_and(|group| profile.ignored_groups.contains(group))
    };
    for shortage in requests::shortages(&pod.requests, &usage.requests, &node.allocatable) {
        if !ignored(&shortage.name) {
            reasons.push(format!("Insufficient {}", shortage.name));
            curable &= shortage.requested <= shortage.allocatable;
        }
    }
    (!reasons.is_empty()).then_some(Refusal { reasons, curable })
}

#[cfg(test)]
#[path = "place_tests.rs"]
mod tests;
