//! ReplicaSets and ReplicationControllers: keeps the desired number of pods of a template, and counts them.
//!
//! Inputs: objects of these kinds, pods. Outputs: pods, status, Events. Mirrors `pkg/controller/replicaset` and `controller_utils.go`.
//! Guarantees: never creates or deletes twice for one decision, since what was written but not yet seen ([`pods::Flight`]) counts as
//! done.

mod kinds;
mod plan;
mod rank;

use std::{marker::PhantomData, sync::Arc};

use anyhow::Context as _;
use cluster::{Client, EventRecorder, Informer, Key, Selection, is_not_found};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{ReplicaSet, ReplicaSetStatus},
    core::v1::{ObjectReference, Pod, ReplicationController},
};
use kube::{Api, api::PostParams};
use tokio_util::sync::CancellationToken;

use crate::{
    deployment::RsRow,
    ownership::{self, Claim},
    pods::{self, Failure, Flight, PodControl, Workload},
    runner::{Next, Queue},
    view::{PodRow, Views, controller_reference},
};
use kinds::Replicated;
use plan::{Scale, has_surplus, plan};

struct Context<K> {
    client: Client,
    views: Views,
    sets: Informer<RsRow>,
    pods: PodControl,
    kind: PhantomData<fn() -> K>,
}

/// Runs the controller of ReplicaSets until `shutdown`.
pub(crate) async fn run(client: Client, views: Views, shutdown: CancellationToken) {
    let sets = views.replica_sets.clone();
    run_kind::<ReplicaSet>(client, views, sets, "replicaset", shutdown).await;
}

/// Runs the controller of ReplicationControllers until `shutdown`.
pub(crate) async fn run_replication_controllers(client: Client, views: Views, shutdown: CancellationToken) {
    let all = Selection::all().of(&views.api);
    let sets = Informer::start(Api::<ReplicationController>::all(client.clone()), all, |controller| Some(controller.row()));
    tokio::select! {
        () = sets.synced() => {}
        () = shutdown.cancelled() => return,
    }
    run_kind::<ReplicationController>(client, views, sets, "replicationcontroller", shutdown).await;
}

async fn run_kind<K: Replicated>(client: Client, views: Views, sets: Informer<RsRow>, name: &'static str, shutdown: CancellationToken) {
    let queue = Queue::<Key>::default();
    let flight = Flight::default();
    watch(&views, &sets, K::KIND, &queue, &flight);
    let events = EventRecorder::new(client.clone(), K::COMPONENT, "");
    let pods = PodControl { client: client.clone(), events, flight };
    let context = Arc::new(Context::<K> { client, views, sets, pods, kind: PhantomData });
    queue.run(name, 16, shutdown, |key| sync(context.clone(), key)).await;
}

fn watch(views: &Views, sets: &Informer<RsRow>, kind: &'static str, queue: &Queue<Key>, flight: &Flight) {
    let keys = queue.clone();
    sets.subscribe(move |change| keys.add(change.key.clone()));
    let (keys, sets, flight) = (queue.clone(), sets.clone(), flight.clone());
    views.pods.subscribe(move |change| {
        if let Some(pod) = change.new {
            flight.seen(&pod.uid);
        } else if let Some(pod) = change.old {
            flight.gone(&pod.uid);
        }
        for pod in [change.old, change.new].into_iter().flatten() {
            match &pod.controller {
                Some(owner) => keys.extend(Views::controller_key(Some(owner), kind, &change.key.ns)),
                None if change.new.is_some() => {
                    let matching = sets.in_namespace(&change.key.ns).into_iter().filter(|(_, set)| set.selector.matches(&pod.labels));
                    keys.extend(matching.map(|(key, _)| key));
                }
                None => {}
            }
        }
    });
}

async fn sync<K: Replicated>(context: Arc<Context<K>>, key: Key) -> anyhow::Result<Next> {
    let Some(set) = context.sets.get(&key) else {
        context.pods.flight.forget(&key);
        return Ok(Next::Change);
    };
    let pods = claim(&context, &key, &set).await?;
    let observed = context.pods.flight.observe(&key, pods.iter().map(|(_, pod)| pod.uid.as_str()));
    // Only pods that are to be deleted are ranked; a scale-up syncs once for each of its pods.
    let related = if has_surplus(&set, &pods, &observed) { related_nodes(&context, &key, &set) } else { Vec::new() };
    let plan = plan(&set, &pods, &observed, &related, Timestamp::now());
    let failure = match &plan.scale {
        Scale::Keep => None,
        Scale::Create(count) => create(&context, &key, &set, *count).await,
        Scale::Delete(names) => delete(&context, &key, &set, &pods, names).await,
    };
    let status = plan.status_after(&set, failure.as_ref().map(|failure| (failure.reason, failure.message.as_str())), Timestamp::now());
    write_status(&context, &key, &set, status).await?;
    match failure {
        Some(failure) => Err(failure.error),
        None => Ok(plan.recheck.map_or(Next::Change, Next::Within)),
    }
}

/// The ReplicaSet's own pods; matching orphans are adopted, those that match no longer released.
async fn claim<K: Replicated>(context: &Context<K>, key: &Key, set: &RsRow) -> anyhow::Result<Vec<(String, Arc<PodRow>)>> {
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &key.ns);
    let mut mine = Vec::new();
    let mut checked = false;
    for (name, pod) in context.views.pods.in_namespace(&key.ns) {
        let matches = set.selector.matches(&pod.labels);
        match ownership::claim(pod.controller.as_ref(), &set.uid, matches, pod.deleting || set.deleting) {
            Claim::Mine => mine.push((name.name, pod)),
            Claim::Adopt if pod.is_active() => {
                if !checked {
                    confirm_alive(context, key, set).await?;
                    checked = true;
                }
                ownership::adopt(&pods, &name.name, &pod.uid, &controller_reference(K::API_VERSION, K::KIND, &set.name, &set.uid)).await?;
                mine.push((name.name, pod));
            }
            Claim::Release => ownership::release(&pods, &name.name, &pod.uid, &set.uid).await?,
            Claim::Adopt | Claim::Foreign => {}
        }
    }
    Ok(mine)
}

/// Before anything is adopted: the ReplicaSet is still the one we think of (upstream: `RecheckDeletionTimestamp`).
async fn confirm_alive<K: Replicated>(context: &Context<K>, key: &Key, set: &RsRow) -> anyhow::Result<K> {
    let live: K = Api::namespaced(context.client.clone(), &key.ns).get(&key.name).await?;
    anyhow::ensure!(live.meta().uid.as_ref() == Some(&set.uid), "{key} was replaced by another object of its name");
    anyhow::ensure!(live.meta().deletion_timestamp.is_none(), "{key} is being deleted");
    Ok(live)
}

/// The nodes of the active pods of all ReplicaSets of the same owner, for ranking (upstream: `getPodsRankedByRelatedPodsOnSameNode`).
fn related_nodes<K: Replicated>(context: &Context<K>, key: &Key, set: &RsRow) -> Vec<String> {
    let sets = context.sets.in_namespace(&key.ns);
    let same_owner = |other: &RsRow| set.controller.is_some() && other.controller == set.controller;
    let related: Vec<String> =
        sets.iter().filter(|(_, other)| other.uid == set.uid || same_owner(other)).map(|(_, other)| other.uid.clone()).collect();
    let pods = context.views.pods.in_namespace(&key.ns);
    let of_related = |pod: &PodRow| pod.controller.as_ref().is_some_and(|owner| related.contains(&owner.uid));
    pods.iter().filter(|(_, pod)| pod.is_active() && of_related(pod)).map(|(_, pod)| pod.node.clone()).collect()
}

fn reference<K: Replicated>(key: &Key, set: &RsRow) -> ObjectReference {
    ObjectReference {
        api_version: Some(K::API_VERSION.to_owned()),
        kind: Some(K::KIND.to_owned()),
        namespace: Some(key.ns.clone()),
        name: Some(key.name.clone()),
        uid: Some(set.uid.clone()),
        ..Default::default()
    }
}

async fn create<K: Replicated>(context: &Context<K>, key: &Key, set: &RsRow, count: usize) -> Option<Failure> {
    let live = match confirm_alive(context, key, set).await {
        Ok(live) => live,
        Err(error) => return Some(Failure { reason: "FailedCreate", message: error.to_string(), error }),
    };
    let template = live.into_template();
    let pod = pods::from_template(template, key, controller_reference(K::API_VERSION, K::KIND, &key.name, &set.uid));
    context.pods.create(&Workload { key, object: &reference::<K>(key, set) }, count, |_| pod.clone()).await
}

async fn delete<K: Replicated>(context: &Context<K>, key: &Key, set: &RsRow, mine: &[(String, Arc<PodRow>)], names: &[String]) -> Option<Failure> {
    let targets = mine.iter().filter(|(name, _)| names.contains(name)).map(|(name, pod)| (name.as_str(), pod.uid.as_str()));
    context.pods.delete(&Workload { key, object: &reference::<K>(key, set) }, targets).await
}

async fn write_status<K: Replicated>(context: &Context<K>, key: &Key, set: &RsRow, mut status: ReplicaSetStatus) -> anyhow::Result<()> {
    if !K::COUNTS_TERMINATING {
        status.terminating_replicas = None;
    }
    if plan::same_status(set, &status) {
        return Ok(());
    }
    let api: Api<K> = Api::namespaced(context.client.clone(), &key.ns);
    let Some(mut live) = api.get_opt(&key.name).await? else { return Ok(()) };
    if live.meta().uid.as_ref() != Some(&set.uid) {
        return Ok(());
    }
    live.set_status(status);
    match api.replace_status(&key.name, &PostParams::default(), &live).await {
        Err(error) if is_not_found(&error) => Ok(()),
        other => other.map(|_| ()).with_context(|| format!("writing the status of {key}")),
    }
}
