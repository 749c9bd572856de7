//! The scheduler: gives each pending pod a node.
//!
//! Inputs: pods, nodes, claims, volumes, storage classes. Outputs: bindings, the `PodScheduled` condition, Events; for claims that wait for
//! a pod, the volume or the node chosen for them. Mirrors `pkg/scheduler` with the plug-ins NodeUnschedulable, NodeName, TaintToleration,
//! NodeAffinity, NodePorts, NodeResourcesFit, NodeResourcesBalancedAllocation, VolumeBinding, PodTopologySpread (hard constraints, and its
//! default spreading by owner) and InterPodAffinity (its required part).
//! Guarantees: a decision counts at once, before its binding is written, so that no node and no volume is given away twice; a pod that fits
//! nowhere is looked at again when something changes that it may have waited for, the more important ones first.
//! What it does not do: preemption, preferences about other pods, soft spread constraints.

mod bind;
mod cache;
mod neighbours;
mod place;
mod rows;
mod volumes;

use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use cluster::{Backoff, Client, EventRecorder, Informer, Key, Selection};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    runner::{Next, Queue},
    storage::rows::StorageViews,
};
use cache::Cache;
pub(crate) use place::{covers, tolerates};
use rows::{NodeRow, PodRow};
use volumes::{Progress, Storage};

/// Delays between attempts for one pod, however often the cluster changes (upstream: 1 s to 10 s; here a change is answered at once first).
const FIRST_DELAY: Duration = Duration::from_millis(5);
const LAST_DELAY: Duration = Duration::from_secs(10);

/// How long the volumes of a pod may take whose node is chosen (upstream: `bindTimeoutSeconds`).
const VOLUMES_TIMEOUT: Duration = Duration::from_secs(600);
/// How soon to look again for claims while the first lists of storage are still coming.
const STORAGE_STARTS: Duration = Duration::from_millis(200);

#[derive(Default)]
struct State {
    cache: Cache,
    /// Pods that fitted nowhere, waiting for a change, with their delays.
    parked: HashMap<Key, Parked>,
    delays: HashMap<Key, Backoff>,
    /// Pods whose node is chosen and whose volumes are on their way.
    waiting: HashMap<Key, Waiting>,
    /// Volumes given to claims that the API does not show yet.
    given: HashMap<String, Key>,
}

/// A pod that fitted nowhere, and which changes concern it.
#[derive(Debug, Clone, Copy)]
struct Parked {
    priority: i32,
    /// It wants to be near other pods.
    near: bool,
    claims: bool,
}

#[derive(Debug, Clone)]
struct Waiting {
    node: String,
    since: Instant,
}

struct Scheduler {
    client: Client,
    pods: Informer<PodRow>,
    storage: StorageViews,
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
    let storage = StorageViews::start(&client);
    tokio::select! {
        () = async { tokio::join!(pods.synced(), nodes.synced()); } => {}
        () = shutdown.cancelled() => return,
    }
    let (queue, state) = (Queue::<Key>::default(), Arc::new(Mutex::new(State::default())));
    watch(&pods, &nodes, &queue, &state);
    watch_storage(&storage, &pods, &queue, &state);
    let events = EventRecorder::new(client.clone(), "default-scheduler", "");
    let scheduler = Arc::new(Scheduler { client, pods, storage, events, state });
    queue.run("scheduler", 32, shutdown, |key| schedule(scheduler.clone(), key)).await;
    drop(nodes);
}

fn watch(pods: &Informer<PodRow>, nodes: &Informer<NodeRow>, queue: &Queue<Key>, state: &Arc<Mutex<State>>) {
    let (keys, shared) = (queue.clone(), state.clone());
    nodes.subscribe(move |change| {
        let mut state = locked(&shared);
        state.cache.set_node(&change.key.name, change.new.cloned());
        wake(&mut state, &keys, |_| true);
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
            state.waiting.remove(change.key);
        }
        let arrived = change.new.is_some_and(|pod| !pod.node.is_empty()) && change.old.is_none_or(|pod| pod.node.is_empty());
        wake(&mut state, &keys, |parked| freed || (arrived && parked.near));
    });
}

/// Changes of storage concern pods with claims alone.
fn watch_storage(storage: &StorageViews, pods: &Informer<PodRow>, queue: &Queue<Key>, state: &Arc<Mutex<State>>) {
    let (keys, shared, all) = (queue.clone(), state.clone(), pods.clone());
    storage.claims.subscribe(move |change| {
        let mut state = locked(&shared);
        let uses = |key: &&Key| key.ns == change.key.ns && all.get(*key).is_some_and(|pod| pod.claims.iter().any(|one| one.name == change.key.name));
        keys.extend(state.waiting.keys().filter(uses).cloned().collect::<Vec<_>>());
        wake(&mut state, &keys, |parked| parked.claims);
    });
    let (keys, shared) = (queue.clone(), state.clone());
    storage.volumes.subscribe(move |change| {
        let mut state = locked(&shared);
        if change.new.is_none_or(|volume| volume.claim.is_some()) {
            state.given.remove(&change.key.name);
        }
        wake(&mut state, &keys, |parked| parked.claims);
    });
    let (keys, shared) = (queue.clone(), state.clone());
    storage.classes.subscribe(move |_| wake(&mut locked(&shared), &keys, |parked| parked.claims));
}

/// Something changed that may let these waiting pods in; the more important ones come first.
fn wake(state: &mut State, queue: &Queue<Key>, concerns: impl Fn(&Parked) -> bool) {
    let mut woken: Vec<(Reverse<i32>, Key)> =
        state.parked.iter().filter(|(_, parked)| concerns(parked)).map(|(key, parked)| (Reverse(parked.priority), key.clone())).collect();
    woken.sort();
    for (_, key) in woken {
        state.parked.remove(&key);
        let delay = state.delays.entry(key.clone()).or_insert_with(|| Backoff::new(FIRST_DELAY, LAST_DELAY)).next_delay();
        queue.add_after(key, delay);
    }
}

async fn schedule(scheduler: Arc<Scheduler>, key: Key) -> anyhow::Result<Next> {
    let Some(pod) = scheduler.pods.get(&key).filter(|pod| pod.is_pending()) else { return Ok(Next::Change) };
    if !pod.claims.is_empty() && !scheduler.storage.are_synced() {
        return Ok(Next::Within(STORAGE_STARTS));
    }
    let waiting = locked(&scheduler.state).waiting.get(&key).cloned();
    if let Some(waiting) = waiting {
        return scheduler.follow_up(&key, &pod, &waiting).await;
    }
    let decision = {
        let mut state = locked(&scheduler.state);
        if state.cache.is_assumed(&key) {
            return Ok(Next::Change);
        }
        let storage = Storage::of(&pod, &scheduler.storage, &state.given);
        let decision = place::place(&pod, &storage, state.cache.nodes());
        match &decision {
            Ok((node, steps)) => {
                state.cache.assume(&key, &pod, node);
                if !steps.is_empty() {
                    state.waiting.insert(key.clone(), Waiting { node: node.clone(), since: Instant::now() });
                    state.given.extend(steps.iter().filter_map(volumes::Step::given));
                }
            }
            Err(_) => {
                let near = pod.rules.wants_company();
                state.parked.insert(key.clone(), Parked { priority: pod.priority, near, claims: !pod.claims.is_empty() });
            }
        }
        decision
    };
    match decision {
        Ok((node, steps)) if steps.is_empty() => scheduler.bind(&key, &pod, &node).await,
        Ok((node, steps)) => scheduler.provide(&key, &pod, &node, &steps).await,
        Err(why) => scheduler.refuse(&key, &pod, &why.to_string()).await,
    }
}
