//! ReplicaSets: keeps the desired number of pods of a template, and counts them.
//!
//! Inputs: ReplicaSets, pods. Outputs: pods, status, Events. Mirrors `pkg/controller/replicaset` and `controller_utils.go`.
//! Guarantees: never creates or deletes twice for one decision, since what was written but not yet seen ([`pods::Flight`]) counts as
//! done.

mod plan;
mod rank;

use std::sync::Arc;

use anyhow::Context as _;
use cluster::{Client, EventRecorder, Key, is_not_found};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{ReplicaSet, ReplicaSetStatus},
    core::v1::{ObjectReference, Pod},
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
use plan::{Scale, plan};

struct Context {
    client: Client,
    views: Views,
    pods: PodControl,
}

/// Runs the controller until `shutdown`.
pub(crate) async fn run(client: Client, views: Views, shutdown: CancellationToken) {
    let queue = Queue::<Key>::default();
    let flight = Flight::default();
    watch(&views, &queue, &flight);
    let events = EventRecorder::new(client.clone(), "replicaset-controller", "");
    let pods = PodControl { client: client.clone(), events, flight };
    let context = Arc::new(Context { client, views, pods });
    queue.run("replicaset", 16, shutdown, |key| sync(context.clone(), key)).await;
}

fn watch(views: &Views, queue: &Queue<Key>, flight: &Flight) {
    let keys = queue.clone();
    views.replica_sets.subscribe(move |change| keys.add(change.key.clone()));
    let (keys, sets, flight) = (queue.clone(), views.replica_sets.clone(), flight.clone());
    views.pods.subscribe(move |change| {
        if let Some(pod) = change.new {
            flight.seen(&pod.uid);
        } else if let Some(pod) = change.old {
            flight.gone(&pod.uid);
        }
        for pod in [change.old, change.new].into_iter().flatten() {
            match &pod.controller {
                Some(owner) => keys.extend(Views::controller_key(Some(owner), "ReplicaSet", &change.key.ns)),
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
    let Some(set) = context.views.replica_sets.get(&key) else {
        context.pods.flight.forget(&key);
        return Ok(Next::Change);
    };
    let pods = claim(&context, &key, &set).await?;
    let related = related_nodes(&context, &key, &set);
    let observed = context.pods.flight.observe(&key, pods.iter().map(|(_, pod)| pod.uid.as_str()));
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
async fn claim(context: &Context, key: &Key, set: &RsRow) -> anyhow::Result<Vec<(String, Arc<PodRow>)>> {
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
                ownership::adopt(&pods, &name.name, &pod.uid, &controller_reference("apps/v1", "ReplicaSet", &set.name, &set.uid)).await?;
                mine.push((name.name, pod));
            }
            Claim::Release => ownership::release(&pods, &name.name, &pod.uid, &set.uid).await?,
            Claim::Adopt | Claim::Foreign => {}
        }
    }
    Ok(mine)
}

/// Before anything is adopted: the ReplicaSet is still the one we think of (upstream: `RecheckDeletionTimestamp`).
async fn confirm_alive(context: &Context, key: &Key, set: &RsRow) -> anyhow::Result<ReplicaSet> {
    let live: ReplicaSet = Api::namespaced(context.client.clone(), &key.ns).get(&key.name).await?;
    anyhow::ensure!(live.metadata.uid.as_ref() == Some(&set.uid), "{key} was replaced by another object of its name");
    anyhow::ensure!(live.metadata.deletion_timestamp.is_none(), "{key} is being deleted");
    Ok(live)
}

/// The nodes of the active pods of all ReplicaSets of the same owner, for ranking (upstream: `getPodsRankedByRelatedPodsOnSameNode`).
fn related_nodes(context: &Context, key: &Key, set: &RsRow) -> Vec<String> {
    let sets = context.views.replica_sets.in_namespace(&key.ns);
    let same_owner = |other: &RsRow| set.controller.is_some() && other.controller == set.controller;
    let related: Vec<String> =
        sets.iter().filter(|(_, other)| other.uid == set.uid || same_owner(other)).map(|(_, other)| other.uid.clone()).collect();
    let pods = context.views.pods.in_namespace(&key.ns);
    let of_related = |pod: &PodRow| pod.controller.as_ref().is_some_and(|owner| related.contains(&owner.uid));
    pods.iter().filter(|(_, pod)| pod.is_active() && of_related(pod)).map(|(_, pod)| pod.node.clone()).collect()
}

fn reference(key: &Key, set: &RsRow) -> ObjectReference {
    ObjectReference {
        api_version: Some("apps/v1".to_owned()),
        kind: Some("ReplicaSet".to_owned()),
        namespace: Some(key.ns.clone()),
        name: Some(key.name.clone()),
        uid: Some(set.uid.clone()),
        ..Default::default()
    }
}

async fn create(context: &Context, key: &Key, set: &RsRow, count: usize) -> Option<Failure> {
    let live = match confirm_alive(context, key, set).await {
        Ok(live) => live,
        Err(error) => return Some(Failure { reason: "FailedCreate", message: error.to_string(), error }),
    };
    let template = live.spec.and_then(|spec| spec.template).unwrap_or_default();
    let pod = pods::from_template(template, key, controller_reference("apps/v1", "ReplicaSet", &key.name, &set.uid));
    context.pods.create(&Workload { key, object: &reference(key, set) }, count, |_| pod.clone()).await
}

async fn delete(context: &Context, key: &Key, set: &RsRow, mine: &[(String, Arc<PodRow>)], names: &[String]) -> Option<Failure> {
    let targets = mine.iter().filter(|(name, _)| names.contains(name)).map(|(name, pod)| (name.as_str(), pod.uid.as_str()));
    context.pods.delete(&Workload { key, object: &reference(key, set) }, targets).await
}

async fn write_status(context: &Context, key: &Key, set: &RsRow, status: ReplicaSetStatus) -> anyhow::Result<()> {
    if plan::same_status(set, &status) {
        return Ok(());
    }
    let api: Api<ReplicaSet> = Api::namespaced(context.client.clone(), &key.ns);
    let Some(mut live) = api.get_opt(&key.name).await? else { return Ok(()) };
    if live.metadata.uid.as_ref() != Some(&set.uid) {
        return Ok(());
    }
    live.status = Some(status);
    match api.replace_status(&key.name, &PostParams::default(), &live).await {
        Err(error) if is_not_found(&error) => Ok(()),
        other => other.map(|_| ()).context("writing the ReplicaSet's status"),
    }
}
