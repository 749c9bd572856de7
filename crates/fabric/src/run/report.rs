//! Events about nodes whose network differs from the cluster's, and the condition `NetworkUnavailable`.
//!
//! Who owns the condition: the node itself, as flannel has it; in the mode l3 the router, since a node cannot know whether the
//! router has its route (upstream: the route controller of `cloud-controller-manager`).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use cluster::{EventRecorder, EventType};
use hcn::owned_id;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use thiserror_ext::AsReport as _;
use tokio::time::Instant;

use super::Outcome;
use crate::apply::publish;
use crate::mode::{Mode, Role, Settings};
use crate::problem::{Kind, Problem};
use crate::rows::{Condition, NodeRow};

/// The component that signs Events.
const COMPONENT: &str = "mullion-fabric";
/// The network of a node is whole.
const UP: &str = "PodNetworkUp";
/// It is not.
const DOWN: &str = "PodNetworkDown";
/// The router has the node's routes (upstream's reason).
const ROUTED: &str = "RouteCreated";
/// It has not (upstream's reason).
const NOT_ROUTED: &str = "NoRouteCreated";
/// Events vanish after an hour; what lasts is said again before.
const REPEAT: Duration = Duration::from_secs(1800);
/// How many nodes write the Event of what all of them find.
const WITNESSES: usize = 3;

/// What kind of trouble which node has.
type Matter = (Option<String>, Kind);

pub(super) struct Reporter {
    client: Client,
    events: EventRecorder,
    /// How long trouble that may pass is left to pass.
    grace: Duration,
    /// How often a condition is written at most.
    period: Duration,
    since: HashMap<Matter, Instant>,
    /// When each problem became an Event.
    told: HashMap<String, Instant>,
    written: HashMap<String, (Condition, Instant)>,
    /// That conditions cannot be written was logged.
    refused: bool,
}

impl Reporter {
    pub fn new(client: Client, host: &str, full_pass: Duration) -> Self {
        let events = EventRecorder::new(client.clone(), COMPONENT, host);
        let (grace, period) = (full_pass / 3, full_pass);
        Self { client, events, grace, period, since: HashMap::new(), told: HashMap::new(), written: HashMap::new(), refused: false }
    }

    /// Writes what is due after a pass.
    pub async fn tell(&mut self, settings: &Settings, nodes: &BTreeMap<String, NodeRow>, outcome: &Outcome) {
        let now = Instant::now();
        let matters: HashSet<Matter> = outcome.problems.iter().map(matter).collect();
        self.since.retain(|matter, _| matters.contains(matter));
        matters.into_iter().for_each(|matter| _ = self.since.entry(matter).or_insert(now));
        let lasting: Vec<&Problem> = outcome.problems.iter().filter(|problem| self.lasts(problem, now)).collect();
        self.write_events(settings, nodes, &lasting, now);
        let conditions = conditions(settings, nodes, outcome, &lasting);
        self.write_conditions(nodes, conditions, now).await;
    }

    fn lasts(&self, problem: &Problem, now: Instant) -> bool {
        let since = self.since.get(&matter(problem)).copied().unwrap_or(now);
        !problem.kind.may_pass() || now.duration_since(since) >= self.grace
    }

    fn write_events(&mut self, settings: &Settings, nodes: &BTreeMap<String, NodeRow>, lasting: &[&Problem], now: Instant) {
        self.told.retain(|text, _| lasting.iter().any(|problem| problem.text == *text));
        for problem in lasting {
            if self.told.get(&problem.text).is_some_and(|told| now.duration_since(*told) < REPEAT) {
                continue;
            }
            if self.told.insert(problem.text.clone(), now).is_none() && problem.kind == Kind::CidrMissing {
                tracing::warn!("{problem}");
            }
            let Some(name) = object(settings, nodes, problem) else { continue };
            // Upstream names the Node by its name here, and kubectl describe looks for that.
            let node = ObjectReference { kind: Some("Node".into()), name: Some(name.clone()), uid: Some(name), ..ObjectReference::default() };
            self.events.event(&node, EventType::Warning, problem.kind.reason(), None, shortened(&problem.text));
        }
    }

    async fn write_conditions(&mut self, nodes: &BTreeMap<String, NodeRow>, conditions: BTreeMap<String, Condition>, now: Instant) {
        self.written.retain(|node, _| nodes.contains_key(node));
        for (node, wanted) in conditions {
            let present = nodes.get(&node).and_then(|row| row.condition.as_ref());
            // What was written is seen a moment later, and an owner that writes the contrary is no reason to write without end.
            let recent = self.written.get(&node).is_some_and(|(last, at)| *last == wanted && now.duration_since(*at) < self.period);
            if recent || !differs(present, &wanted) {
                continue;
            }
            let changed = present.is_none_or(|present| present.unavailable != wanted.unavailable);
            let result = publish::condition(&self.client, &node, &wanted, changed).await;
            match result {
                Ok(()) => tracing::info!(node, "condition NetworkUnavailable is {}: {}", wanted.unavailable, wanted.message),
                Err(error) if std::mem::replace(&mut self.refused, true) => {
                    tracing::debug!(node, error = %error.as_report(), "a condition was not written");
                }
                Err(error) => tracing::warn!(
                    "cannot write condition NetworkUnavailable of node {node}: {}; let this user patch nodes/status; further ones at debug level",
                    error.as_report()
                ),
            }
            self.written.insert(node, (wanted, now));
        }
    }
}

fn matter(problem: &Problem) -> Matter {
    (problem.node.clone(), problem.kind)
}

fn shortened(text: &str) -> String {
    text.chars().take(Condition::LONGEST).collect()
}

/// The Node that the Event of a problem is about; none where another host writes it. What all hosts find is about the node that is
/// wrong, and a few of them say so; what one host finds is about that host.
fn object(settings: &Settings, nodes: &BTreeMap<String, NodeRow>, problem: &Problem) -> Option<String> {
    let own = &settings.node_name;
    match &settings.role {
        // The control plane's host is no Node.
        Role::Host { .. } => None,
        Role::Router => problem.node.clone(),
        Role::Node(_) if problem.is_own(own) || !problem.kind.is_common() => Some(own.clone()),
        Role::Node(_) => problem.node.clone().filter(|about| is_witness(own, about, nodes)),
    }
}

/// Whether `own` is one of the nodes that speak about `about`: those of ours whose ids are first in an order that `about` decides.
fn is_witness(own: &str, about: &str, nodes: &BTreeMap<String, NodeRow>) -> bool {
    let ours = |row: &NodeRow| row.condition.as_ref().is_some_and(|condition| [UP, DOWN].contains(&condition.reason.as_str()));
    let order = |name: &str| owned_id(about, "witness", name).0;
    let first = order(own);
    let before = nodes.iter().filter(|(name, row)| *name != own && *name != about && ours(row) && order(name) < first);
    before.take(WITNESSES).count() < WITNESSES
}

/// The conditions that this host owns, as they should be. Those that it cannot decide at the moment are left out.
fn conditions(settings: &Settings, nodes: &BTreeMap<String, NodeRow>, outcome: &Outcome, lasting: &[&Problem]) -> BTreeMap<String, Condition> {
    match (&settings.role, settings.mode) {
        (Role::Node(_), mode) if mode != Mode::L3 => {
            let own = &settings.node_name;
            let message = format!("the pod network of this node, {mode}, is up");
            let mine = |problem: &&Problem| problem.is_own(own) && !problem.kind.leaves_a_network();
            let decided = decide(outcome.problems.iter().filter(mine), lasting.iter().copied().filter(mine), outcome.ready, (UP, DOWN), message);
            decided.filter(|_| nodes.contains_key(own)).map(|condition| (own.clone(), condition)).into_iter().collect()
        }
        (Role::Router, Mode::L3) if outcome.problems.iter().all(|problem| problem.node.is_some()) => {
            let with_cidr = nodes.iter().filter(|(_, row)| row.pod_cidrs.iter().any(|cidr| row.address(*cidr).is_some()));
            let of = |(name, row): (&String, &NodeRow)| {
                let about = |problem: &&Problem| problem.node.as_ref() == Some(name) && !problem.kind.leaves_a_network();
                let cidrs = row.pod_cidrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                let message = format!("the router leads to {cidrs}");
                let (all, lasting) = (outcome.problems.iter().filter(about), lasting.iter().copied().filter(about));
                Some((name.clone(), decide(all, lasting, outcome.reached.contains(name), (ROUTED, NOT_ROUTED), message)?))
            };
            with_cidr.filter_map(of).collect()
        }
        _ => BTreeMap::new(),
    }
}

/// The condition of one node: down when a problem lasts, up when there is none, undecided between the two.
fn decide<'a>(
    mut all: impl Iterator<Item = &'a Problem>,
    lasting: impl Iterator<Item = &'a Problem>,
    ready: bool,
    (up, down): (&str, &str),
    message: String,
) -> Option<Condition> {
    let texts: Vec<&str> = lasting.map(|problem| problem.text.as_str()).collect();
    if !texts.is_empty() {
        return Some(Condition { unavailable: true, reason: down.to_owned(), message: shortened(&texts.join("; ")) });
    }
    (all.next().is_none() && ready).then(|| Condition { unavailable: false, reason: up.to_owned(), message })
}

/// Whether a condition has to be written. Another owner's that says the same is enough.
fn differs(present: Option<&Condition>, wanted: &Condition) -> bool {
    let Some(present) = present else { return true };
    let same = present.unavailable == wanted.unavailable;
    !same || (wanted.unavailable && present.reason == wanted.reason && present.message != wanted.message)
}

#[cfg(test)]
mod tests;
