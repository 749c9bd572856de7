//! Jobs: runs pods until enough of them succeeded, or too many failed.
//!
//! Inputs: Jobs (read anew each time), pods. Outputs: pods, status, Events. Mirrors `pkg/controller/job`.
//! Guarantees: never two creations for one decision ([`pods::Flight`]); the end of a pod is counted exactly once, since a finalizer holds
//! the pod until its uid is in the status; a Job is declared finished only when all its pods are counted and gone.
//! Not covered: pod groups (`scheduling`), which upstream has behind a gate.

mod intervals;
#[cfg(test)]
mod model_tests;
mod plan;
mod policy;
mod record;
mod removal;
mod rows;
mod template;
mod track;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::Context as _;
use cluster::{Client, EventRecorder, EventType, Informer, Key, Selection, is_conflict, is_not_found};
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::{
    batch::v1::{Job, JobStatus},
    core::v1::Pod,
};
use kube::{
    Api, Resource,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    ownership::{self, Claim},
    pods::{self, Failure, Flight, PodControl, Workload},
    runner::{Next, Queue},
    view::{Views, controller_reference},
};
use kube_rules::Selector;
use plan::{Input, Steps, Work};
use record::Record;
use rows::{FINALIZER, JobPod, JobView};

pub(crate) use rows::{Ended, JobRow};

/// What there is to work on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Item {
    Job(Key),
    /// A pod that has our finalizer and no controller.
    Orphan(Key),
}

#[derive(Default)]
struct State {
    /// Pods whose finalizer we removed, until their rows show it.
    released: BTreeSet<String>,
    /// Failures of each Job's pods.
    records: HashMap<Key, Record>,
}

struct Context {
    pods: PodControl,
    rows: Informer<JobPod>,
    state: Arc<Mutex<State>>,
}

impl Context {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pod_api(&self, ns: &str) -> Api<Pod> {
        Api::namespaced(self.pods.client.clone(), ns)
    }
}

/// Runs the controller until `shutdown`.
pub(crate) async fn run(client: Client, views: Views, shutdown: CancellationToken) {
    let jobs = Informer::start(Api::<Job>::all(client.clone()), Selection::all().of(&views.api), |job| Some(JobRow::new(job)));
    let rows = Informer::start(Api::<Pod>::all(client.clone()), Selection::all().of(&views.api), JobPod::new);
    tokio::select! {
        () = async { tokio::join!(jobs.synced(), rows.synced()); } => {}
        () = shutdown.cancelled() => return,
    }
    let (queue, flight, state) = (Queue::<Item>::default(), Flight::default(), Arc::default());
    watch(&jobs, &rows, &queue, &flight, &state);
    let events = EventRecorder::new(client.clone(), "job-controller", "");
    let context = Arc::new(Context { pods: PodControl { client, events, flight }, rows, state });
    queue.run("job", 8, shutdown, |item| work(context.clone(), item)).await;
}

fn watch(jobs: &Informer<JobRow>, rows: &Informer<JobPod>, queue: &Queue<Item>, flight: &Flight, state: &Arc<Mutex<State>>) {
    let keys = queue.clone();
    jobs.subscribe(move |change| keys.add(Item::Job(change.key.clone())));
    let (keys, jobs, flight, state) = (queue.clone(), jobs.clone(), flight.clone(), state.clone());
    rows.subscribe(move |change| {
        if let Some(pod) = change.new {
            flight.seen(&pod.uid);
            if !pod.tracked {
                state.lock().unwrap_or_else(PoisonError::into_inner).released.remove(&pod.uid);
            }
        } else if let Some(pod) = change.old {
            flight.gone(&pod.uid);
            state.lock().unwrap_or_else(PoisonError::into_inner).released.remove(&pod.uid);
        }
        for pod in [change.old, change.new].into_iter().flatten() {
            if let Some(owner) = &pod.controller {
                keys.add(Item::Job(Key::new(&change.key.ns, &owner.name)));
            } else if change.new.is_some() {
                if pod.tracked {
                    keys.add(Item::Orphan(change.key.clone()));
                }
                let matching = jobs.in_namespace(&change.key.ns).into_iter().filter(|(_, job)| matches(&job.selector, pod));
                keys.extend(matching.map(|(key, _)| Item::Job(key)));
            }
        }
    });
}

/// A Job without selector has no pods.
fn matches(selector: &Selector, pod: &JobPod) -> bool {
    !selector.is_empty() && selector.matches(&pod.labels)
}

async fn work(context: Arc<Context>, item: Item) -> anyhow::Result<Next> {
    match item {
        Item::Job(key) => sync(&context, key).await,
        Item::Orphan(key) => {
            if let Some(pod) = context.rows.get(&key).filter(|pod| pod.controller.is_none() && pod.tracked) {
                release(&context, &key.ns, &pod).await?;
            }
            Ok(Next::Change)
        }
    }
}

async fn sync(context: &Context, key: Key) -> anyhow::Result<Next> {
    let api: Api<Job> = Api::namespaced(context.pods.client.clone(), &key.ns);
    let found = api.get_opt(&key.name).await?;
    let row = found.as_ref().map(JobRow::new);
    let live = row.as_ref().filter(|row| row.foreign || row.ended.is_none()).map(|row| row.uid.as_str());
    release_left(context, &key, live).await?;
    if live.is_none() {
        context.pods.flight.forget(&key);
        context.state().records.remove(&key);
    }
    let (Some(job), Some(row)) = (found, row.filter(|row| !row.foreign && row.ended.is_none())) else { return Ok(Next::Change) };
    let Some(view) = JobView::new(&job) else { return Ok(Next::Change) };
    if view.spec.completion_mode.as_deref().is_some_and(|mode| !matches!(mode, "Indexed" | "NonIndexed")) {
        let message = "Skipped Job sync because completion mode is unknown";
        context.pods.events.event(&job.object_ref(&()), EventType::Warning, "UnknownCompletionMode", None, message);
        return Ok(Next::Change);
    }
    let mine = claim(context, &key, &row).await?;
    run_once(context, &key, &api, job, &view, &mine).await
}

/// One pass over a Job that has not ended.
async fn run_once(context: &Context, key: &Key, api: &Api<Job>, mut job: Job, view: &JobView, mine: &[Arc<JobPod>]) -> anyhow::Result<Next> {
    let observed = context.pods.flight.observe(key, mine.iter().map(|pod| pod.uid.as_str()));
    let shown = |uid: &String| mine.iter().any(|pod| pod.uid == *uid && pod.deleting);
    let (released, record) = {
        let state = context.state();
        (state.released.clone(), state.records.get(key).copied().unwrap_or_default())
    };
    let settled = observed.coming == 0 && observed.going.iter().all(shown);
    let now = Timestamp::now();
    let input = Input { job: view, pods: mine, released: &released, coming: observed.coming, settled, record, now };
    let mut work = Work::begin(&input);
    let steps = work.steps();
    tracing::debug!(job = %key, "{steps}");
    let failure = apply(context, key, &job, view, &steps).await;
    work.carried_out(&steps, failure.is_none());
    let release = work.track();
    if work.dirty {
        job = write_status(api, job, &work.status).await?;
        context.state().records.insert(key.clone(), work.record);
        work.dirty = false;
    }
    let (gone, failed) = release_all(context, &key.ns, &release).await;
    if failed.is_none() {
        work.settle(&gone);
    }
    if work.dirty {
        job = write_status(api, job, &work.status).await?;
    }
    let object = job.object_ref(&());
    for (type_, reason, message) in &work.events {
        context.pods.events.event(&object, *type_, reason, None, message.as_str());
    }
    if let Some(error) = failed.or(failure.map(|failure| failure.error)) {
        return Err(error);
    }
    let unseen = (observed.coming > 0).then_some(pods::UNSEEN);
    Ok([steps.recheck, unseen].into_iter().flatten().min().map_or(Next::Change, Next::Within))
}

/// The Job's own pods; matching orphans are adopted, those that match no longer released.
async fn claim(context: &Context, key: &Key, job: &JobRow) -> anyhow::Result<Vec<Arc<JobPod>>> {
    let api = context.pod_api(&key.ns);
    let owner = controller_reference("batch/v1", "Job", &key.name, &job.uid);
    let mut mine = Vec::new();
    for (_, pod) in context.rows.in_namespace(&key.ns) {
        match ownership::claim(pod.controller.as_ref(), &job.uid, matches(&job.selector, &pod), pod.deleting || job.deleting) {
            Claim::Mine => mine.push(pod),
            Claim::Adopt => {
                patch(&api, &pod, json!({"ownerReferences": [owner], "finalizers": [FINALIZER]})).await?;
                mine.push(Arc::new(JobPod { tracked: true, ..(*pod).clone() }));
            }
            Claim::Release => {
                let none = json!({"ownerReferences": [{"$patch": "delete", "uid": job.uid}], "$deleteFromPrimitiveList/finalizers": [FINALIZER]});
                patch(&api, &pod, none).await?;
            }
            Claim::Foreign => {}
        }
    }
    Ok(mine)
}

async fn patch(api: &Api<Pod>, pod: &JobPod, mut meta: Value) -> kube::Result<()> {
    meta["uid"] = json!(pod.uid);
    match api.patch(&pod.name, &PatchParams::default(), &Patch::Strategic(json!({"metadata": meta}))).await {
        // It went away or is another pod now: nothing is left to do.
        Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(()),
        other => other.map(|_| ()),
    }
}

/// Removes the finalizer of a pod.
async fn release(context: &Context, ns: &str, pod: &JobPod) -> kube::Result<()> {
    context.state().released.insert(pod.uid.clone());
    let result = patch(&context.pod_api(ns), pod, json!({"$deleteFromPrimitiveList/finalizers": [FINALIZER]})).await;
    if result.is_err() || context.rows.get(Key::new(ns, &pod.name)).is_none_or(|row| row.uid != pod.uid || !row.tracked) {
        context.state().released.remove(&pod.uid);
    }
    result
}

/// Removes the finalizers of these pods; answers with the uids of those where it is gone, and the first refusal.
async fn release_all(context: &Context, ns: &str, pods: &[Arc<JobPod>]) -> (BTreeSet<String>, Option<anyhow::Error>) {
    let results = join_all(pods.iter().map(async |pod| (pod.uid.clone(), release(context, ns, pod).await))).await;
    let (mut gone, mut failed) = (BTreeSet::new(), None);
    for (uid, result) in results {
        match result {
            Ok(()) => {
                gone.insert(uid);
            }
            Err(error) => failed = failed.or(Some(anyhow::Error::new(error).context("removing the finalizer of a pod"))),
        }
    }
    (gone, failed)
}

/// Lets go of pods whose Job is gone, ended or was replaced; `live` is the Job that still counts.
async fn release_left(context: &Context, key: &Key, live: Option<&str>) -> anyhow::Result<()> {
    for (_, pod) in context.rows.in_namespace(&key.ns) {
        let left = pod.controller.as_ref().is_some_and(|owner| owner.name == key.name && Some(owner.uid.as_str()) != live);
        if left && pod.tracked && !context.state().released.contains(&pod.uid) {
            release(context, &key.ns, &pod).await?;
        }
    }
    Ok(())
}

async fn apply(context: &Context, key: &Key, job: &Job, view: &JobView, steps: &Steps) -> Option<Failure> {
    let object = job.object_ref(&());
    let workload = Workload { key, object: &object };
    let (_, failed) = release_all(context, &key.ns, &steps.remove).await;
    if let Some(error) = failed {
        return Some(Failure { reason: "FailedDelete", message: error.to_string(), error });
    }
    let doomed = steps.kill.iter().chain(&steps.remove).map(|pod| (pod.name.as_str(), pod.uid.as_str()));
    if let Some(failure) = context.pods.delete(&workload, doomed).await {
        return Some(failure);
    }
    let owner = controller_reference("batch/v1", "Job", &key.name, job.metadata.uid.as_deref().unwrap_or_default());
    let pod = |place: usize| template::pod(key, view, &steps.create[place], owner.clone());
    context.pods.create(&workload, steps.create.len(), pod).await
}

/// Writes the status; answers with the Job as it is then.
async fn write_status(api: &Api<Job>, mut job: Job, status: &JobStatus) -> anyhow::Result<Job> {
    job.status = Some(status.clone());
    let name = job.metadata.name.clone().unwrap_or_default();
    match api.replace_status(&name, &PostParams::default(), &job).await {
        Err(error) if is_not_found(&error) => Ok(job),
        other => other.context("writing the Job's status"),
    }
}
