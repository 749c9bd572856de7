//! Plan for the pods of one DaemonSet: pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use cluster::EventType;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::DaemonSetStatus;

use super::rows::{DaemonView, Strategy};
use crate::{
    pods::Observed,
    view::{NodeRow, PodRow},
};

/// The most pods created, and the most deleted, in one pass (upstream: `BurstReplicas`).
const BURST: usize = 250;

/// A pod and its name.
type NamedPod = (String, Arc<PodRow>);
type Pods<'a> = Vec<&'a NamedPod>;

/// All that the plan is made from.
pub(super) struct Input<'a> {
    pub view: &'a DaemonView,
    /// The hash of the present template's revision.
    pub hash: &'a str,
    pub nodes: &'a [(String, Arc<NodeRow>)],
    /// The DaemonSet's own pods.
    pub pods: &'a [NamedPod],
    pub observed: &'a Observed,
    /// Nodes whose failed pods are left alone a little longer.
    pub resting: &'a BTreeSet<String>,
    pub now: Timestamp,
}

/// Everything to do now.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Plan {
    /// Nodes that get a pod.
    pub create: Vec<String>,
    /// Pods to be deleted.
    pub delete: Vec<String>,
    /// Nodes whose failed pod is deleted.
    pub failed_on: Vec<String>,
    pub events: Vec<(EventType, &'static str, String)>,
    pub status: DaemonSetStatus,
    /// When the next ready pod becomes available by time alone.
    pub recheck: Option<Duration>,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |names: &[String]| if names.is_empty() { "-".to_owned() } else { names.join(" ") };
        let status = &self.status;
        write!(
            f,
            "create on {}, delete {}; {} of {} scheduled, {} ready, {} updated, {} available, {} misscheduled",
            list(&self.create),
            list(&self.delete),
            status.current_number_scheduled,
            status.desired_number_scheduled,
            status.number_ready,
            status.updated_number_scheduled.unwrap_or_default(),
            status.number_available.unwrap_or_default(),
            status.number_misscheduled
        )
    }
}

/// Compares pods and nodes with what the DaemonSet asks for.
pub(super) fn plan(input: &Input<'_>) -> Plan {
    let by_node = by_node(input);
    let mut plan = Plan::default();
    let is_processed = !input.view.deleting && input.observed.coming == 0;
    if is_processed {
        for (name, node) in input.nodes {
            let pods = by_node.get(name.as_str());
            input.manage(&mut plan, name, node, pods.map_or(&[], Vec::as_slice));
        }
        plan.delete.extend(strays(input, &by_node));
        // Old pods are replaced only while nothing else is under way, so that the limits count what is really there.
        if plan.create.is_empty() && plan.delete.is_empty() && input.observed.going.is_empty() {
            roll(input, &mut plan, &by_node);
        }
        plan.create.truncate(BURST);
        plan.delete.truncate(BURST);
    }
    plan.status = status(input, &by_node);
    if !is_processed {
        // What the pods of this generation should be was not looked at.
        plan.status.observed_generation = input.view.status.observed_generation;
    }
    plan.recheck = recheck(input);
    plan
}

/// When the next ready pod becomes available by time alone; that of an update counts as well as the old one beside it.
fn recheck(input: &Input<'_>) -> Option<Duration> {
    let least = SignedDuration::from_secs(input.view.min_ready_seconds.into());
    let waiting = input.pods.iter().filter(|(_, pod)| !pod.deleting && !input.is_available(pod)).filter_map(|(_, pod)| pod.ready);
    waiting.map(|since| Duration::try_from((since + least).duration_since(input.now)).unwrap_or_default()).min()
}

/// The pods by the node they are on or meant for, oldest first; ended ones that are being deleted no longer count.
fn by_node<'a>(input: &Input<'a>) -> BTreeMap<&'a str, Pods<'a>> {
    let mut all: BTreeMap<&str, Pods<'a>> = BTreeMap::new();
    for one in input.pods {
        let (_, pod) = one;
        let node = if pod.node.is_empty() { pod.meant_for.as_deref() } else { Some(pod.node.as_str()) };
        if let Some(node) = node.filter(|_| !(pod.is_finished() && pod.deleting)) {
            all.entry(node).or_default().push(one);
        }
    }
    for pods in all.values_mut() {
        pods.sort_by_key(|(name, pod)| (pod.node.is_empty(), pod.created, name.clone()));
    }
    all
}

/// Pods that wait for a node that is gone: no other controller removes them.
fn strays(input: &Input<'_>, by_node: &BTreeMap<&str, Pods<'_>>) -> Vec<String> {
    let exists = |node: &str| input.nodes.iter().any(|(name, _)| name == node);
    let lost = by_node.iter().filter(|(node, _)| !exists(node)).flat_map(|(_, pods)| pods.iter());
    lost.filter(|(_, pod)| pod.node.is_empty() && !input.is_going(pod)).map(|(name, _)| name.clone()).collect()
}

impl Input<'_> {
    /// Whether a pod is being deleted, though the informer may not say so yet.
    fn is_going(&self, pod: &PodRow) -> bool {
        pod.deleting || self.observed.going.contains(&pod.uid)
    }

    fn is_new(&self, pod: &PodRow) -> bool {
        self.view.is_updated(&pod.labels, self.hash)
    }

    fn is_available(&self, pod: &PodRow) -> bool {
        pod.ready.is_some_and(|since| since + SignedDuration::from_secs(self.view.min_ready_seconds.into()) <= self.now)
    }

    /// Brings one node to the pod it should have (upstream: `podsShouldBeOnNode`).
    fn manage(&self, plan: &mut Plan, name: &str, node: &NodeRow, pods: &[&NamedPod]) {
        let fate = self.view.fate(name, node);
        if fate.run && pods.is_empty() {
            plan.create.push(name.to_owned());
        } else if fate.stay {
            let running = self.weed(plan, name, pods);
            if !self.view.strategy.allows_surge() {
                plan.delete.extend(running.iter().skip(1).map(|(name, _)| name.clone()));
            } else if running.is_empty() && fate.run {
                plan.create.push(name.to_owned());
            } else if running.len() > 1 {
                self.thin_out(plan, &running);
            }
        } else {
            plan.delete.extend(pods.iter().filter(|(_, pod)| !self.is_going(pod)).map(|(name, _)| name.clone()));
        }
    }

    /// Deletes ended pods, failed ones with growing pauses; returns those that run.
    fn weed<'a>(&self, plan: &mut Plan, node: &str, pods: &[&'a NamedPod]) -> Pods<'a> {
        let mut running = Vec::new();
        for one in pods.iter().filter(|(_, pod)| !self.is_going(pod)) {
            let (name, pod) = one;
            let found = |state: &str, way: &str| format!("Found {state} daemon pod {}/{name} on node {node}, will try to {way} it", self.view.ns);
            match pod.phase.as_str() {
                "Failed" if self.resting.contains(node) => {}
                "Failed" => {
                    plan.events.push((EventType::Warning, "FailedDaemonPod", found("failed", "kill")));
                    plan.failed_on.push(node.to_owned());
                    plan.delete.push(name.clone());
                }
                "Succeeded" => {
                    plan.events.push((EventType::Normal, "SucceededDaemonPod", found("succeeded", "delete")));
                    plan.delete.push(name.clone());
                }
                _ => running.push(*one),
            }
        }
        running
    }

    /// Two pods may be on a node while the new one is not available and the old one is ready; all others go.
    fn thin_out(&self, plan: &mut Plan, running: &Pods<'_>) {
        let (new, old): (Pods<'_>, Pods<'_>) = running.iter().partition(|(_, pod)| self.is_new(pod));
        plan.delete.extend(new.iter().skip(1).chain(old.iter().skip(1)).map(|(name, _)| name.clone()));
        if let (Some((_, new)), Some((name, old))) = (new.first(), old.first())
            && (old.ready.is_none() || self.is_available(new))
        {
            plan.delete.push(name.clone());
        }
    }

    /// The new and the old pod of a node; none when there are more than one of either.
    fn pair<'a>(&self, pods: &Pods<'a>) -> Option<(Option<&'a NamedPod>, Option<&'a NamedPod>)> {
        let alive = pods.iter().copied().filter(|(_, pod)| !self.is_going(pod));
        let (new, old): (Pods<'a>, Pods<'a>) = alive.partition(|(_, pod)| self.is_new(pod));
        (new.len() <= 1 && old.len() <= 1).then(|| (new.first().copied(), old.first().copied()))
    }
}

/// Replaces old pods as far as the strategy allows (upstream: `rollingUpdate`).
fn roll(input: &Input<'_>, plan: &mut Plan, by_node: &BTreeMap<&str, Pods<'_>>) {
    if input.view.strategy == Strategy::OnDelete {
        return;
    }
    let wanted: BTreeSet<&str> = input.nodes.iter().filter(|(name, node)| input.view.fate(name, node).run).map(|(name, _)| name.as_str()).collect();
    let (unavailable, surge) = input.view.strategy.limits(wanted.len());
    let names = by_node.keys().copied().chain(wanted.iter().copied()).collect::<BTreeSet<&str>>();
    let empty = Vec::new();
    let nodes = names.into_iter().map(|name| (name, by_node.get(name).unwrap_or(&empty)));
    if surge == 0 { replace(input, plan, nodes, unavailable) } else { surge_over(input, plan, nodes, &wanted, surge) }
}

/// Deletes old pods: those not available anyway, which count as missing, and as many others as may be missing beside them.
fn replace<'a>(input: &Input<'_>, plan: &mut Plan, nodes: impl Iterator<Item = (&'a str, &'a Pods<'a>)>, most: usize) {
    let (mut missing, mut broken, mut candidates) = (0, Vec::new(), Vec::new());
    for (_, pods) in nodes {
        match input.pair(pods) {
            None | Some((None, None) | (Some(_), Some(_))) => missing += 1,
            Some((Some((_, new)), None)) => missing += usize::from(!input.is_available(new)),
            Some((None, Some((name, old)))) if input.is_available(old) => candidates.push(name.clone()),
            Some((None, Some((name, _)))) => {
                missing += 1;
                broken.push(name.clone());
            }
        }
    }
    candidates.truncate(most.saturating_sub(missing));
    plan.delete.extend(broken.into_iter().chain(candidates));
}

/// Creates new pods beside old ones: where the old one is not available anyway, and on as many other nodes as may have two; an old one
/// goes when the new one is available. A node that gets no new pod (a taint came) loses its old one when enough others are available.
fn surge_over<'a>(input: &Input<'_>, plan: &mut Plan, nodes: impl Iterator<Item = (&'a str, &'a Pods<'a>)>, wanted: &BTreeSet<&str>, most: usize) {
    let (mut doubled, mut serving, mut leaving) = (0, 0, Vec::new());
    let (mut broken, mut candidates) = (Vec::new(), Vec::new());
    for (node, pods) in nodes {
        let Some((new, old)) = input.pair(pods) else {
            doubled += 1;
            continue;
        };
        serving += usize::from(old.or(new).is_some_and(|(_, pod)| input.is_available(pod)));
        match (new, old) {
            (_, None) => {}
            (None, Some((name, old))) => match (wanted.contains(node), input.is_available(old)) {
                (true, true) => candidates.push(node.to_owned()),
                (true, false) => broken.push(node.to_owned()),
                (false, true) => leaving.push(name.clone()),
                (false, false) => plan.delete.push(name.clone()),
            },
            (Some((_, new)), Some((name, _))) if input.is_available(new) => plan.delete.push(name.clone()),
            (Some(_), Some(_)) => doubled += 1,
        }
    }
    leaving.truncate(serving.saturating_sub(wanted.len()));
    plan.delete.extend(leaving);
    candidates.truncate(most.saturating_sub(doubled));
    plan.create.extend(broken.into_iter().chain(candidates));
}

fn status(input: &Input<'_>, by_node: &BTreeMap<&str, Pods<'_>>) -> DaemonSetStatus {
    let (mut status, mut updated, mut available) = (DaemonSetStatus::default(), 0, 0);
    for (name, node) in input.nodes {
        let oldest = by_node.get(name.as_str()).and_then(|pods| pods.first());
        if !input.view.fate(name, node).run {
            status.number_misscheduled += i32::from(oldest.is_some());
            continue;
        }
        status.desired_number_scheduled += 1;
        let Some((_, pod)) = oldest else { continue };
        status.current_number_scheduled += 1;
        updated += i32::from(input.is_new(pod));
        status.number_ready += i32::from(pod.ready.is_some());
        available += i32::from(input.is_available(pod));
    }
    let nonzero = |count: i32| (count != 0).then_some(count);
    status.updated_number_scheduled = nonzero(updated);
    status.number_available = nonzero(available);
    status.number_unavailable = nonzero(status.desired_number_scheduled - available);
    status.observed_generation = Some(input.view.generation);
    status.collision_count = input.view.status.collision_count;
    status.conditions.clone_from(&input.view.status.conditions);
    status
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "model_tests.rs"]
mod model;
