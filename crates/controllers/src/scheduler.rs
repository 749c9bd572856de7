//! The scheduler: gives each pending pod a node.
//!
//! Inputs: pods, nodes. Outputs: bindings, the `PodScheduled` condition, Events. Mirrors `pkg/scheduler` with the plug-ins NodeUnschedulable,
//! NodeName, TaintToleration, NodeAffinity, NodePorts, NodeResourcesFit, NodeResourcesBalancedAllocation, PodTopologySpread (hard
//! constraints, and its default spreading by owner) and InterPodAffinity (its required part).
//! Guarantees: a decision counts at once, before its binding is written, so that no node is given away twice; a pod that fits nowhere is
//! looked at again when a node changes or a pod leaves one.
//! What it does not do: preemption, preferences about other pods, soft spread constraints, volumes.

mod cache;
mod neighbours;
mod place;
mod rows;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::Context as _;
use cluster::{Backoff, Client, EventRecorder, EventType, Informer, Key, Selection, is_conflict, is_not_found};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Binding, Node, ObjectReference, Pod},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::runner::{Next, Queue};
use cache::Cache;
pub(crate) use place::{covers, tolerates};
use rows::{NodeRow, PodRow};

/// Delays between attempts for one pod, however often the cluster changes (upstream: 1 s to 10 s; here a change is answered at once first).
const FIRST_DELAY: Duration = Duration::from_millis(5);
const LAST_DELAY: Duration = Duration::from_secs(10);

#[derive(Default)]
struct State {
    cache: Cache,
    /// Pods that fitted nowhere, waiting for a change, with their delays.
    parked: HashSet<Key>,
    delays: HashMap<Key, Backoff>,
}

struct Scheduler {
    client: Client,
    pods: Informer<PodRow>,
    events: EventRecorder,
    state: Arc<Mutex<State>>,
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the scheduler until `shutdown`.
pub async fn run(client: Client, shutdown: CancellationToken) {
    let pods = Informer::start(Api::<Pod>::all(client.clone()), Selection::all(), |pod| Some(PodRow::new(pod)));
    let nodes = Informer::start(Api::<Node>::all(client.clone()), Selection::all(), |node| Some(NodeRow::new(node)));
    tokio::select! {
        () = async { tokio::join!(pods.synced(), nodes.synced()); } => {}
        () = shutdown.cancelled() => return,
    }
    let (queue, state) = (Queue::<Key>::default(), Arc::new(Mutex::new(State::default())));
    watch(&pods, &nodes, &queue, &state);
    let events = EventRecorder::new(client.clone(), "default-scheduler", "");
    let scheduler = Arc::new(Scheduler { client, pods, events, state });
    queue.run("scheduler", 32, shutdown, |key| schedule(scheduler.clone(), key)).await;
    drop(nodes);
}

fn watch(pods: &Informer<PodRow>, nodes: &Informer<NodeRow>, queue: &Queue<Key>, state: &Arc<Mutex<State>>) {
    let (keys, shared) = (queue.clone(), state.clone());
    nodes.subscribe(move |change| {
        let mut state = locked(&shared);
        state.cache.set_node(&change.key.name, change.new.cloned());
        wake(&mut state, &keys);
    });
    let (keys, shared) = (queue.clone(), state.clone());
    pods.subscribe(move |change| {
        let mut state = locked(&shared);
        let freed = state.cache.set_pod(change.key, change.new);
        if change.new.is_some_and(|pod| pod.is_pending()) {
            keys.add(change.key.clone());
        } else {
            state.parked.remove(change.key);
            state.delays.remove(change.key);
        }
        if freed {
            wake(&mut state, &keys);
        }
    });
}

/// Something changed that may let waiting pods in.
fn wake(state: &mut State, queue: &Queue<Key>) {
    for key in std::mem::take(&mut state.parked) {
        let delay = state.delays.entry(key.clone()).or_insert_with(|| Backoff::new(FIRST_DELAY, LAST_DELAY)).next_delay();
        queue.add_after(key, delay);
    }
}

async fn schedule(scheduler: Arc<Scheduler>, key: Key) -> anyhow::Result<Next> {
    let Some(pod) = scheduler.pods.get(&key).filter(|pod| pod.is_pending()) else { return Ok(Next::Change) };
    let decision = {
        let mut state = locked(&scheduler.state);
        if state.cache.is_assumed(&key) {
            return Ok(Next::Change);
        }
        let decision = place::place(&pod, state.cache.nodes());
        match &decision {
            Ok(node) => state.cache.assume(&key, &pod, node),
            Err(_) => {
                state.parked.insert(key.clone());
            }
        }
        decision
    };
    match decision {
        Ok(node) => scheduler.bind(&key, &pod, &node).await,
        Err(why) => scheduler.refuse(&key, &pod, &why.to_string()).await,
    }
}

fn reference(key: &Key, pod: &PodRow) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(key.ns.clone()),
        name: Some(key.name.clone()),
        uid: Some(pod.uid.clone()),
        ..Default::default()
    }
}

impl Scheduler {
    async fn bind(&self, key: &Key, pod: &PodRow, node: &str) -> anyhow::Result<Next> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &key.ns);
        let binding = Binding {
            metadata: ObjectMeta { name: Some(key.name.clone()), namespace: Some(key.ns.clone()), uid: Some(pod.uid.clone()), ..Default::default() },
            target: ObjectReference { kind: Some("Node".to_owned()), name: Some(node.to_owned()), ..Default::default() },
        };
        match pods.create_subresource::<_, Value>("binding", &key.name, &PostParams::default(), &binding).await {
            Ok(_) => {
                let message = format!("Successfully assigned {key} to {node}");
                self.events.event(&reference(key, pod), EventType::Normal, "Scheduled", Some("Binding"), message);
                Ok(Next::Change)
            }
            Err(error) => {
                locked(&self.state).cache.forget(key);
                // Someone bound, replaced or deleted it: the informer will tell.
                if is_not_found(&error) || is_conflict(&error) {
                    Ok(Next::Change)
                } else {
                    Err(error).with_context(|| format!("binding {key} to {node}"))
                }
            }
        }
    }

    async fn refuse(&self, key: &Key, pod: &PodRow, why: &str) -> anyhow::Result<Next> {
        self.events.event(&reference(key, pod), EventType::Warning, "FailedScheduling", Some("Scheduling"), why);
        if pod.unschedulable.as_deref() == Some(why) {
            return Ok(Next::Change);
        }
        let now = Timestamp::from_second(Timestamp::now().as_second()).context("reading the clock")?;
        let condition = json!({
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why,
            "lastProbeTime": Value::Null, "lastTransitionTime": pod.unscheduled_since.map_or(Time(now), Time),
        });
        let patch = json!({"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}});
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &key.ns);
        match pods.patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(patch)).await {
            Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(Next::Change),
            other => other.map(|_| Next::Change).with_context(|| format!("noting that {key} fits nowhere")),
        }
    }
}
