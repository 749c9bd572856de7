//! DaemonSets: one pod on each matching node, and their revisions.
//!
//! Inputs: DaemonSets (read anew each time), ControllerRevisions, pods, nodes. Outputs: pods tied to a node by affinity (the scheduler binds
//! them), ControllerRevisions, status, Events. Mirrors `pkg/controller/daemon` (daemon_controller.go, update.go).
//! Guarantees: never two creations for one decision ([`pods::Flight`]); an update takes away no more pods than its strategy allows.
//! Not covered: rolling back (kubectl does it by writing an old template).

mod history;
mod plan;
mod rows;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::Context as _;
use backoff::Backoff;
use cluster::{Client, EventRecorder, EventType, Informer, Key, Selection};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet, DaemonSetSpec, DaemonSetStatus},
    core::v1::Pod,
};
use kube::{Api, Resource, api::PostParams};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    ownership::{self, Claim},
    pods::{self, Failure, Flight, PodControl, Workload},
    revisions::{HASH_LABEL, RevisionRow, template_digest},
    runner::{Next, Queue},
    view::{PodRow, Views, controller_reference},
};
use kube_rules::Selector;
use plan::{Input, Plan, plan};
use rows::{DaemonRow, DaemonView};

/// Pauses before a failed pod of one node is replaced (upstream: 1 s to 15 min).
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(15 * 60);

/// The informers of this controller alone.
struct Sets {
    sets: Informer<DaemonRow>,
    revisions: Informer<RevisionRow>,
}

struct Context {
    views: Views,
    sets: Sets,
    pods: PodControl,
    failures: Mutex<HashMap<(Key, String), Pause>>,
}

/// The pause of one DaemonSet on one node.
struct Pause {
    backoff: Backoff,
    until: Instant,
}

impl Context {
    fn client(&self) -> &Client {
        &self.pods.client
    }

    fn failures(&self) -> MutexGuard<'_, HashMap<(Key, String), Pause>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs the controller until `shutdown`.
pub(crate) async fn run(client: Client, views: Views, shutdown: CancellationToken) {
    let sets = Informer::start(Api::<DaemonSet>::all(client.clone()), Selection::all().of(&views.api), |set| Some(DaemonRow::new(set)));
    let revisions =
        Informer::start(Api::<ControllerRevision>::all(client.clone()), Selection::all().of(&views.api), |revision| Some(RevisionRow::new(revision)));
    tokio::select! {
        () = async { tokio::join!(sets.synced(), revisions.synced()); } => {}
        () = shutdown.cancelled() => return,
    }
    let (queue, flight, sets) = (Queue::<Key>::default(), Flight::default(), Sets { sets, revisions });
    watch(&views, &sets, &queue, &flight);
    let events = EventRecorder::new(client.clone(), "daemonset-controller", "");
    let pods = PodControl { client, events, flight };
    let context = Arc::new(Context { views, sets, pods, failures: Mutex::default() });
    queue.run("daemonset", 4, shutdown, |key| sync(context.clone(), key)).await;
}

fn watch(views: &Views, own: &Sets, queue: &Queue<Key>, flight: &Flight) {
    let keys = queue.clone();
    own.sets.subscribe(move |change| keys.add(change.key.clone()));
    let (keys, sets) = (queue.clone(), own.sets.clone());
    own.revisions.subscribe(move |change| {
        for revision in [change.old, change.new].into_iter().flatten() {
            keys.extend(Views::controller_key(revision.controller.as_ref(), "DaemonSet", &change.key.ns));
        }
        if let Some(orphan) = change.new.filter(|revision| revision.controller.is_none()) {
            let matching = sets.in_namespace(&change.key.ns).into_iter().filter(|(_, set)| set.selector.matches(&orphan.labels));
            keys.extend(matching.map(|(key, _)| key));
        }
    });
    let (keys, sets) = (queue.clone(), own.sets.clone());
    views.nodes.subscribe(move |change| {
        let parts = |node: &crate::view::NodeRow| (node.labels.clone(), node.taints.clone(), node.unschedulable);
        // Conditions change all the time and mean nothing here.
        if change.old.map(|node| parts(node)) != change.new.map(|node| parts(node)) {
            keys.extend(sets.snapshot().into_iter().map(|(key, _)| key));
        }
    });
    let (keys, sets, flight) = (queue.clone(), own.sets.clone(), flight.clone());
    views.pods.subscribe(move |change| {
        if let Some(pod) = change.new {
            flight.seen(&pod.uid);
        } else if let Some(pod) = change.old {
            flight.gone(&pod.uid);
        }
        for pod in [change.old, change.new].into_iter().flatten() {
            match &pod.controller {
                Some(owner) => keys.extend(Views::controller_key(Some(owner), "DaemonSet", &change.key.ns)),
                None if change.new.is_some() => {
                    let matching = sets.in_namespace(&change.key.ns).into_iter().filter(|(_, set)| set.selector.matches(&pod.labels));
                    keys.extend(matching.map(|(key, _)| key));
                }
                None => {}
            }
        }
    });
}

async fn sync(context: Arc<Context>, key: Key) -> anyhow::Result<Next> {
    let api: Api<DaemonSet> = Api::namespaced(context.client().clone(), &key.ns);
    let Some(set) = api.get_opt(&key.name).await? else {
        context.pods.flight.forget(&key);
        context.failures().retain(|(owner, _), _| *owner != key);
        return Ok(Next::Change);
    };
    let Some(spec) = set.spec.clone() else { return Ok(Next::Change) };
    let selector = Selector::new(&spec.selector);
    if selector.is_empty() {
        let message = "This daemon set is selecting all pods. A non-empty selector is required.";
        context.pods.events.event(&set.object_ref(&()), EventType::Warning, "SelectingAll", None, message);
        return Ok(Next::Change);
    }
    let pods = claim(&context, &key, &set, &selector).await?;
    if set.metadata.deletion_timestamp.is_some() {
        return Ok(Next::Change);
    }
    // While pods get the hash of another revision, theirs says nothing; they bring us here again.
    let Some(hash) = keep_history(&context, &key, (&set, &spec), &selector, &pods).await? else { return Ok(Next::Change) };
    let (view, nodes) = (DaemonView::new(&set, &spec), context.views.nodes.snapshot());
    let nodes: Vec<_> = nodes.into_iter().map(|(key, node)| (key.name, node)).collect();
    let observed = context.pods.flight.observe(&key, pods.iter().map(|(_, pod)| pod.uid.as_str()));
    let (resting, soonest) = resting(&context, &key);
    let input = Input { view: &view, hash: &hash, nodes: &nodes, pods: &pods, observed: &observed, resting: &resting, now: Timestamp::now() };
    let plan = plan(&input);
    tracing::debug!(daemonset = %key, "{plan}");
    let failure = apply(&context, &key, &set, &spec, &hash, &pods, &plan).await;
    write_status(&context, &api, &key, &set, &plan.status).await?;
    if let Some(failure) = failure {
        return Err(failure.error);
    }
    let unseen = (observed.coming > 0).then_some(pods::UNSEEN);
    Ok([plan.recheck, soonest, unseen].into_iter().flatten().min().map_or(Next::Change, Next::Within))
}

/// The DaemonSet's own pods; matching orphans are adopted, those that match no longer released.
async fn claim(context: &Context, key: &Key, set: &DaemonSet, selector: &Selector) -> anyhow::Result<Vec<(String, Arc<PodRow>)>> {
    let api: Api<Pod> = Api::namespaced(context.client().clone(), &key.ns);
    let uid = set.metadata.uid.as_deref().unwrap_or_default();
    let owner = controller_reference("apps/v1", "DaemonSet", &key.name, uid);
    let leaving = set.metadata.deletion_timestamp.is_some();
    let mut mine = Vec::new();
    for (name, pod) in context.views.pods.in_namespace(&key.ns) {
        match ownership::claim(pod.controller.as_ref(), uid, selector.matches(&pod.labels), pod.deleting || leaving) {
            Claim::Mine => mine.push((name.name, pod)),
            Claim::Adopt => {
                ownership::adopt(&api, &name.name, &pod.uid, &owner).await?;
                mine.push((name.name, pod));
            }
            Claim::Release => ownership::release(&api, &name.name, &pod.uid, uid).await?,
            Claim::Foreign => {}
        }
    }
    Ok(mine)
}

/// Brings the revisions up to date; answers with the hash of the present template's, or none while pods are being labelled anew.
async fn keep_history(
    context: &Context,
    key: &Key,
    (set, spec): (&DaemonSet, &DaemonSetSpec),
    selector: &Selector,
    pods: &[(String, Arc<PodRow>)],
) -> anyhow::Result<Option<String>> {
    let revisions = history::owner(context, key, set).claim(&context.sets.revisions, selector, true).await?;
    let live: BTreeSet<String> = pods.iter().filter_map(|(_, pod)| pod.labels.get(HASH_LABEL).cloned()).collect();
    let limit = spec.revision_history_limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(10);
    let steps = history::plan(&revisions, &template_digest(&spec.template), &live, limit);
    history::apply(context, key, (set, spec), (&revisions, pods), &steps).await
}

/// Nodes where a failed pod of this DaemonSet is left alone for now, and when the first of them is due.
fn resting(context: &Context, key: &Key) -> (BTreeSet<String>, Option<Duration>) {
    let now = Instant::now();
    let mut failures = context.failures();
    // A pod that lasted twice the longest pause starts afresh.
    failures.retain(|_, pause| now.saturating_duration_since(pause.until) < LAST_PAUSE * 2);
    let waiting = failures.iter().filter(|((owner, _), pause)| owner == key && pause.until > now);
    let waiting: Vec<(String, Duration)> = waiting.map(|((_, node), pause)| (node.clone(), pause.until - now)).collect();
    (waiting.iter().map(|(node, _)| node.clone()).collect(), waiting.iter().map(|(_, left)| *left).min())
}

async fn apply(
    context: &Context,
    key: &Key,
    set: &DaemonSet,
    spec: &DaemonSetSpec,
    hash: &str,
    pods: &[(String, Arc<PodRow>)],
    plan: &Plan,
) -> Option<Failure> {
    let object = set.object_ref(&());
    for (type_, reason, message) in &plan.events {
        context.pods.events.event(&object, *type_, reason, None, message.as_str());
    }
    for node in &plan.failed_on {
        let mut failures = context.failures();
        let fresh = || Pause { backoff: Backoff::new(FIRST_PAUSE, LAST_PAUSE), until: Instant::now() };
        let pause = failures.entry((key.clone(), node.clone())).or_insert_with(fresh);
        pause.until = Instant::now() + pause.backoff.next_delay();
    }
    let workload = Workload { key, object: &object };
    let template = rows::pod_template(set, &spec.template, hash);
    let owner = controller_reference("apps/v1", "DaemonSet", &key.name, set.metadata.uid.as_deref().unwrap_or_default());
    let pod = |index: usize| pods::from_template(rows::tie_to_node(&template, &plan.create[index]), key, owner.clone());
    let created = context.pods.create(&workload, plan.create.len(), pod).await;
    let doomed = pods.iter().filter(|(name, _)| plan.delete.contains(name));
    let deleted = context.pods.delete(&workload, doomed.map(|(name, pod)| (name.as_str(), pod.uid.as_str()))).await;
    created.or(deleted)
}

async fn write_status(context: &Context, api: &Api<DaemonSet>, key: &Key, set: &DaemonSet, status: &DaemonSetStatus) -> anyhow::Result<()> {
    if set.status.as_ref() == Some(status) {
        return Ok(());
    }
    let mut written = set.clone();
    written.status = Some(status.clone());
    match api.replace_status(&key.name, &PostParams::default(), &written).await {
        Err(error) if cluster::is_not_found(&error) => Ok(()),
        // Someone wrote the DaemonSet meanwhile, which brings us here again.
        Err(error) if cluster::is_conflict(&error) && context.sets.sets.get(key).is_some() => Ok(()),
        other => other.map(|_| ()).context("writing the DaemonSet's status"),
    }
}
