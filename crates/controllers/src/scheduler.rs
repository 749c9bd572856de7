//! The scheduler: gives each pending pod a node.
//!
//! Inputs: pods, nodes, claims, volumes, storage classes, what CSI drivers publish, namespaces, Services and owners. Outputs: bindings, the
//! `PodScheduled` condition, Events; for claims that wait for a pod, the volume or the node chosen for them. Mirrors `pkg/scheduler` with
//! its default plug-ins but DynamicResources; a [`SchedulerConfig`] says which of them a scheduler name means, and their weights.
//! Guarantees: a decision counts at once, before its binding is written, so that no node and no volume is given away twice; a pod that fits
//! nowhere is looked at again when something changes that it may have waited for, the more important ones first.
//! Every node counts for every pod: `percentageOfNodesToScore` is accepted and changes nothing. What is known of a node for pods that are alike
//! is kept until the node changes (`memo`).

mod bind;
mod cache;
mod config;
mod disks;
mod memo;
mod neighbours;
mod place;
mod preempt;
mod profile;
mod rows;
mod score;
mod volumes;
mod world;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use backoff::Backoff;
use cluster::{ApiServer, Client, EventRecorder, Informer, Key, Selection};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::runner::{Next, Queue};
use cache::Cache;
pub use config::{SchedulerConfig, SchedulerConfigError};
use memo::Memo;
use place::Unfit;
use preempt::{Budget, Sacrifice};
use profile::Profile;
use rows::{DEFAULT_SCHEDULER, NodeRow, PodRow};
use volumes::{Progress, Step};
use world::{Sources, World};

/// The first delay between attempts for one pod, however often the cluster changes (upstream: 1 s; here a change is answered at once first).
const FIRST_DELAY: Duration = Duration::from_millis(5);

/// How long the volumes of a pod may take whose node is chosen (upstream: `bindTimeoutSeconds`).
const VOLUMES_TIMEOUT: Duration = Duration::from_secs(600);
/// How soon to look again for claims while the first lists of storage are still coming.
const STORAGE_STARTS: Duration = Duration::from_millis(200);

#[derive(Default)]
struct State {
    /// The longest delay between attempts for one pod.
    last_delay: Duration,
    cache: Cache,
    memo: Memo,
    /// Pods that fitted nowhere, waiting for a change, with their delays.
    parked: HashMap<Key, Parked>,
    delays: HashMap<Key, Backoff>,
    /// Pods whose node is chosen and whose volumes are on their way.
    waiting: HashMap<Key, Waiting>,
    /// Volumes given to claims that the API does not show yet.
    given: HashMap<String, Key>,
    /// Pods for which others make room; they hold their place meanwhile.
    preempting: HashMap<Key, Preempting>,
}

#[derive(Debug, Clone)]
struct Preempting {
    node: String,
    victims: Vec<Key>,
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
    sources: Sources,
    /// Profiles by scheduler name; other pods are not ours.
    profiles: BTreeMap<String, Arc<Profile>>,
    /// Events in the name of each of them.
    recorders: BTreeMap<String, EventRecorder>,
    events: EventRecorder,
    state: Arc<Mutex<State>>,
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the scheduler until `shutdown`.
pub async fn run(client: Client, api: &ApiServer, config: SchedulerConfig, shutdown: CancellationToken) {
    let pods = Informer::start(Api::<Pod>::all(client.clone()), Selection::all().of(api), |pod| Some(PodRow::new(pod)));
    let nodes = Informer::start(Api::<Node>::all(client.clone()), Selection::all().of(api), |node| Some(NodeRow::new(node)));
    let sources = Sources::start(&client, api);
    tokio::select! {
        () = async { tokio::join!(pods.synced(), nodes.synced(), sources.spaces.synced(), sources.owners_synced()); } => {}
        () = shutdown.cancelled() => return,
    }
    let state = State { last_delay: config.last_delay, ..State::default() };
    let (queue, state) = (Queue::<Key>::default(), Arc::new(Mutex::new(state)));
    watch(&pods, &nodes, &queue, &state);
    watch_sources(&sources, &pods, &queue, &state);
    let profiles = config.profiles;
    let recorders = profiles.keys().map(|name| (name.clone(), EventRecorder::new(client.clone(), name, ""))).collect();
    let events = EventRecorder::new(client.clone(), DEFAULT_SCHEDULER, "");
    let scheduler = Arc::new(Scheduler { client, pods, sources, profiles, recorders, events, state });
    queue.run("scheduler", 32, shutdown, |key| schedule(scheduler.clone(), key)).await;
    drop(nodes);
}

fn watch(pods: &Informer<PodRow>, nodes: &Informer<NodeRow>, queue: &Queue<Key>, state: &Arc<Mutex<State>>) {
    let (keys, shared) = (queue.clone(), state.clone());
    nodes.subscribe(move |change| {
        let mut state = locked(&shared);
        state.cache.set_node(&change.key.name, change.new.cloned());
        wake(&mut state, &keys, |_, _| true);
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
            state.preempting.remove(change.key);
        }
        let arrived = change.new.is_some_and(|pod| !pod.node.is_empty()) && change.old.is_none_or(|pod| pod.node.is_empty());
        wake(&mut state, &keys, |_, parked| freed || (arrived && parked.near));
    });
}

/// Changes of storage concern pods with claims, those of namespaces pods that look for company.
fn watch_sources(sources: &Sources, pods: &Informer<PodRow>, queue: &Queue<Key>, state: &Arc<Mutex<State>>) {
    let (keys, shared) = (queue.clone(), state.clone());
    sources.spaces.subscribe(move |_| wake(&mut locked(&shared), &keys, |_, parked| parked.near));
    let storage = &sources.storage;
    let (keys, shared, all) = (queue.clone(), state.clone(), pods.clone());
    storage.claims.subscribe(move |change| {
        let mut state = locked(&shared);
        let claims = |pod: Arc<PodRow>| pod.claims.iter().any(|one| one.name == change.key.name);
        let uses = |key: &Key| key.ns == change.key.ns && all.get(key).is_some_and(claims);
        keys.extend(state.waiting.keys().filter(|key| uses(key)).cloned().collect::<Vec<_>>());
        wake(&mut state, &keys, |key, parked| parked.claims && uses(key));
    });
    let (keys, shared) = (queue.clone(), state.clone());
    storage.volumes.subscribe(move |change| {
        let mut state = locked(&shared);
        if change.new.is_none_or(|volume| volume.claim.is_some()) {
            state.given.remove(&change.key.name);
        }
        wake(&mut state, &keys, |_, parked| parked.claims);
    });
    let (keys, shared) = (queue.clone(), state.clone());
    storage.classes.subscribe(move |_| wake(&mut locked(&shared), &keys, |_, parked| parked.claims));
    let (keys, shared) = (queue.clone(), state.clone());
    sources.csi_nodes.subscribe(move |_| wake(&mut locked(&shared), &keys, |_, parked| parked.claims));
    let (keys, shared) = (queue.clone(), state.clone());
    sources.attachments.subscribe(move |change| {
        if change.new.is_none() {
            wake(&mut locked(&shared), &keys, |_, parked| parked.claims);
        }
    });
    let (keys, shared) = (queue.clone(), state.clone());
    sources.capacities.subscribe(move |_| wake(&mut locked(&shared), &keys, |_, parked| parked.claims));
}

/// Something changed that may let these waiting pods in; the more important ones come first.
fn wake(state: &mut State, queue: &Queue<Key>, concerns: impl Fn(&Key, &Parked) -> bool) {
    let mut woken: Vec<(Reverse<i32>, Key)> =
        state.parked.iter().filter(|(key, parked)| concerns(key, parked)).map(|(key, parked)| (Reverse(parked.priority), key.clone())).collect();
    woken.sort();
    for (_, key) in woken {
        state.parked.remove(&key);
        let last = state.last_delay;
        let delay = state.delays.entry(key.clone()).or_insert_with(|| Backoff::new(FIRST_DELAY, last)).next_delay();
        queue.add_after(key, delay);
    }
}

async fn schedule(scheduler: Arc<Scheduler>, key: Key) -> anyhow::Result<Next> {
    let Some(pod) = scheduler.pods.get(&key).filter(|pod| pod.is_pending()) else { return Ok(Next::Change) };
    let Some(profile) = scheduler.profiles.get(&pod.scheduler) else { return Ok(Next::Change) };
    if !pod.claims.is_empty() && !scheduler.sources.are_synced() {
        return Ok(Next::Within(STORAGE_STARTS));
    }
    let waiting = locked(&scheduler.state).waiting.get(&key).cloned();
    if let Some(waiting) = waiting {
        return scheduler.follow_up(&key, &pod, &waiting).await;
    }
    let decision = decide(&mut locked(&scheduler.state), &scheduler.sources, profile, &key, &pod);
    match decision {
        Decision::Placed => Ok(Next::Change),
        Decision::Bind { node, steps } if steps.is_empty() => scheduler.bind(&key, &pod, &node).await,
        Decision::Bind { node, steps } => scheduler.provide(&key, &pod, &node, &steps).await,
        Decision::Ask => scheduler.preempt(&key, &pod).await,
        Decision::Refuse { why } => scheduler.refuse(&key, &pod, &why).await,
    }
}

/// Next step for a pod.
#[derive(Debug)]
enum Decision {
    /// It has its place, which is being written.
    Placed,
    Bind {
        node: String,
        steps: Vec<Step>,
    },
    /// Less important pods may make room.
    Ask,
    Refuse {
        why: String,
    },
}

/// Decides about a pod; its place is taken at once.
fn decide(state: &mut State, sources: &Sources, profile: &Arc<Profile>, key: &Key, pod: &PodRow) -> Decision {
    let held = state.preempting.get(key).cloned();
    if held.is_some() {
        // The place is reserved so that no other pod takes it; the pod itself is filtered again.
        state.cache.forget(key);
    }
    if state.cache.has(key) {
        return Decision::Placed;
    }
    let world = World::of(pod, profile, sources, &state.given);
    match place::place(pod, &world, state.cache.nodes(), &mut state.memo) {
        Ok((node, steps)) => {
            state.preempting.remove(key);
            state.cache.assume(key, pod, &node);
            if !steps.is_empty() {
                state.waiting.insert(key.clone(), Waiting { node: node.clone(), since: Instant::now() });
                state.given.extend(steps.iter().filter_map(Step::given));
            }
            Decision::Bind { node, steps }
        }
        Err(unfit) => {
            if let Some(held) = held {
                if held.victims.iter().any(|victim| state.cache.has(victim)) {
                    state.cache.assume(key, pod, &held.node);
                    state.park(key, pod);
                    return Decision::Refuse { why: unfit.without_preemption("not eligible due to a terminating pod on the nominated node.") };
                }
                state.preempting.remove(key);
            }
            if profile.preempts && waits_for_preemption(state, pod, &unfit) {
                state.park(key, pod);
                return Decision::Refuse { why: unfit.without_preemption("not eligible due to a terminating pod on the nominated node.") };
            }
            let lesser = |name: &str| state.cache.members(name).any(|(_, other)| other.priority < pod.priority);
            let helps = unfit.curable_nodes().any(lesser) || pod.nominated.is_some();
            if helps && pod.preempts && profile.preempts {
                return Decision::Ask;
            }
            state.park(key, pod);
            let why = match (profile.preempts, pod.preempts) {
                (false, _) => unfit.reasons(),
                (true, true) => unfit.to_string(),
                (true, false) => unfit.without_preemption("not eligible due to preemptionPolicy=Never."),
            };
            Decision::Refuse { why }
        }
    }
}

/// Whether pods are still going from the node that was chosen for this pod, by this scheduler or one before it.
fn waits_for_preemption(state: &State, pod: &PodRow, unfit: &Unfit) -> bool {
    let Some(nominated) = pod.nominated.as_deref().filter(|node| pod.preempts && !unfit.is_hopeless(node)) else { return false };
    state.cache.members(nominated).any(|(_, other)| other.priority < pod.priority && other.preempted)
}

/// State of the preemption for a pod.
#[derive(Debug)]
enum Room {
    /// There is a place after all, or the pod has one.
    Found,
    /// These pods go, and the pod waits for it.
    Make {
        sacrifice: Sacrifice,
        why: String,
    },
    None {
        why: String,
    },
}

/// Selects the victims of a preemption; the place is reserved at once.
fn make_room(state: &mut State, sources: &Sources, profile: &Arc<Profile>, key: &Key, pod: &PodRow, budgets: &[Budget]) -> Room {
    if state.cache.has(key) {
        return Room::Found;
    }
    let world = World::of(pod, profile, sources, &state.given);
    let Err(unfit) = place::place(pod, &world, state.cache.nodes(), &mut state.memo) else { return Room::Found };
    state.park(key, pod);
    match preempt::sacrifice(pod, &world, &state.cache, budgets, &unfit) {
        Err(attempts) => Room::None { why: unfit.despite_preemption(&attempts) },
        Ok(sacrifice) => {
            for victim in &sacrifice.victims {
                // One that only held a place loses it without ado.
                if state.preempting.remove(victim).is_some() {
                    state.cache.forget(victim);
                }
            }
            let held = Preempting { node: sacrifice.node.clone(), victims: sacrifice.victims.clone() };
            state.preempting.insert(key.clone(), held);
            state.cache.assume(key, pod, &sacrifice.node);
            Room::Make { sacrifice, why: unfit.reasons() }
        }
    }
}

impl State {
    fn park(&mut self, key: &Key, pod: &PodRow) {
        let parked = Parked { priority: pod.priority, near: pod.rules.wants_company(), claims: !pod.claims.is_empty() };
        self.parked.insert(key.clone(), parked);
    }
}
