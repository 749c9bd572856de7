//! StatefulSets: pods with names and claims of their own, in order.
//!
//! Inputs: StatefulSets (read anew each time), ControllerRevisions, pods, claims. Outputs: pods, claims and their owners,
//! ControllerRevisions, status, Events. Mirrors `pkg/controller/statefulset`.
//! Guarantees: never two pods of one ordinal, since the ordinal is in the name; nothing is decided while a created pod is not shown yet
//! ([`pods::Flight`]).

mod apply;
mod claims;
mod history;
#[cfg(test)]
mod model_tests;
mod plan;
mod rows;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use anyhow::Context as _;
use cluster::{Client, EventRecorder, Informer, Key, Selection, is_conflict, is_not_found};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, StatefulSet, StatefulSetSpec, StatefulSetStatus},
    core::v1::{PersistentVolumeClaim, Pod},
};
use kube::{Api, api::PostParams};
use tokio_util::sync::CancellationToken;

use crate::{
    ownership::{self, Claim},
    pods::{self, Flight},
    revisions::RevisionRow,
    runner::{Next, Queue},
    view::{Views, controller_reference},
};
use kube_rules::Selector;
use plan::{Input, plan};
use rows::{ClaimRow, SetPod, SetRow, SetView, parent_and_ordinal};

struct Context {
    client: Client,
    sets: Informer<SetRow>,
    pods: Informer<SetPod>,
    claims: Informer<ClaimRow>,
    revisions: Informer<RevisionRow>,
    events: EventRecorder,
    flight: Flight,
}

/// Runs the controller until `shutdown`.
pub(crate) async fn run(client: Client, views: Views, shutdown: CancellationToken) {
    let all = || Selection::all().of(&views.api);
    let context = Context {
        sets: Informer::start(Api::<StatefulSet>::all(client.clone()), all(), |set| Some(SetRow::new(set))),
        pods: Informer::start(Api::<Pod>::all(client.clone()), all(), SetPod::new),
        claims: Informer::start(Api::<PersistentVolumeClaim>::all(client.clone()), all(), |claim| Some(ClaimRow::new(claim))),
        revisions: Informer::start(Api::<ControllerRevision>::all(client.clone()), all(), |revision| Some(RevisionRow::new(revision))),
        events: EventRecorder::new(client.clone(), "statefulset-controller", ""),
        flight: Flight::default(),
        client,
    };
    tokio::select! {
        () = async { tokio::join!(context.sets.synced(), context.pods.synced(), context.claims.synced(), context.revisions.synced()); } => {}
        () = shutdown.cancelled() => return,
    }
    let queue = Queue::<Key>::default();
    watch(&context, &queue);
    let context = Arc::new(context);
    queue.run("statefulset", 4, shutdown, |key| sync(context.clone(), key)).await;
}

fn watch(context: &Context, queue: &Queue<Key>) {
    let keys = queue.clone();
    context.sets.subscribe(move |change| keys.add(change.key.clone()));
    let keys = queue.clone();
    context.revisions.subscribe(move |change| {
        for revision in [change.old, change.new].into_iter().flatten() {
            keys.extend(Views::controller_key(revision.controller.as_ref(), "StatefulSet", &change.key.ns));
        }
    });
    let (keys, sets) = (queue.clone(), context.sets.clone());
    context.claims.subscribe(move |change| {
        // A claim's name ends with the name of its pod.
        let Some((parent, _)) = parent_and_ordinal(&change.key.name) else { return };
        let suits = |key: &Key| parent.strip_suffix(&key.name).is_some_and(|template| template.ends_with('-'));
        keys.extend(sets.in_namespace(&change.key.ns).into_iter().map(|(key, _)| key).filter(suits));
    });
    let (keys, sets, flight) = (queue.clone(), context.sets.clone(), context.flight.clone());
    context.pods.subscribe(move |change| {
        if let Some(pod) = change.new {
            flight.seen(&pod.uid);
        } else if let Some(pod) = change.old {
            flight.gone(&pod.uid);
        }
        for pod in [change.old, change.new].into_iter().flatten() {
            match &pod.controller {
                Some(owner) => keys.extend(Views::controller_key(Some(owner), "StatefulSet", &change.key.ns)),
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
    let api: Api<StatefulSet> = Api::namespaced(context.client.clone(), &key.ns);
    let Some(set) = api.get_opt(&key.name).await? else {
        context.flight.forget(&key);
        return Ok(Next::Change);
    };
    let Some(spec) = set.spec.clone() else { return Ok(Next::Change) };
    let selector = Selector::new(&spec.selector);
    if selector.is_empty() {
        return Ok(Next::Change);
    }
    let revisions = history::owner(&context, &key, &set).claim(&context.revisions, &selector, false).await?;
    let pods = claim(&context, &key, &set, &selector).await?;
    run_once(&context, &key, &set, &spec, &revisions, pods).await
}

async fn run_once(
    context: &Context,
    key: &Key,
    set: &StatefulSet,
    spec: &StatefulSetSpec,
    revisions: &[RevisionRow],
    pods: Vec<Arc<SetPod>>,
) -> anyhow::Result<Next> {
    let view = SetView::new(set, spec);
    let owner = history::owner(context, key, set);
    let update = history::bring_up(&owner, set, &spec.template, revisions).await?;
    let current = revisions.iter().find(|one| view.status.current_revision.as_ref() == Some(&one.name));
    let current = current.map_or(update.name.as_str(), |one| one.name.as_str());
    let observed = context.flight.observe(key, pods.iter().map(|pod| pod.uid.as_str()));
    // What was deleted counts as being deleted.
    let going = |pod: Arc<SetPod>| match observed.going.contains(&pod.uid) {
        true => Arc::new(SetPod { deleting: true, ..(*pod).clone() }),
        false => pod,
    };
    let pods: Vec<Arc<SetPod>> = pods.into_iter().map(going).collect();
    let claims: BTreeMap<String, Arc<ClaimRow>> = context.claims.in_namespace(&key.ns).into_iter().map(|(key, row)| (key.name, row)).collect();
    let input = Input {
        view: &view,
        pods: &pods,
        claims: &claims,
        current,
        update: &update.name,
        collisions: update.collisions,
        settled: observed.coming == 0,
        now: Timestamp::now(),
    };
    let plan = plan(&input);
    tracing::debug!(statefulset = %key, "{plan}");
    let applied = apply::Apply { context, key, set, spec, view: &view, pods: &pods, update: &update.name }.run(&plan.steps).await;
    write_status(context, key, set, &plan.status).await?;
    applied?;
    let mut live = BTreeSet::from([current, update.name.as_str()]);
    live.extend(pods.iter().map(|pod| pod.revision()));
    if let Ok(limit) = usize::try_from(spec.revision_history_limit.unwrap_or(10)) {
        for one in history::surplus(revisions, &live, limit) {
            owner.delete(one).await?;
        }
    }
    let unseen = (observed.coming > 0).then_some(pods::UNSEEN);
    Ok([plan.recheck, unseen].into_iter().flatten().min().map_or(Next::Change, Next::Within))
}

/// The StatefulSet's own pods; matching orphans with a fitting name are adopted, those that match no longer released.
async fn claim(context: &Context, key: &Key, set: &StatefulSet, selector: &Selector) -> anyhow::Result<Vec<Arc<SetPod>>> {
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &key.ns);
    let uid = set.metadata.uid.as_deref().unwrap_or_default();
    let owner = controller_reference("apps/v1", "StatefulSet", &key.name, uid);
    let leaving = set.metadata.deletion_timestamp.is_some();
    let mut mine = Vec::new();
    for (name, pod) in context.pods.in_namespace(&key.ns) {
        let member = parent_and_ordinal(&name.name).is_some_and(|(parent, _)| parent == key.name);
        match ownership::claim(pod.controller.as_ref(), uid, member && selector.matches(&pod.labels), pod.deleting || leaving) {
            Claim::Mine => mine.push(pod),
            Claim::Adopt => {
                ownership::adopt(&api, &name.name, &pod.uid, &owner).await?;
                mine.push(pod);
            }
            Claim::Release => ownership::release(&api, &name.name, &pod.uid, uid).await?,
            Claim::Foreign => {}
        }
    }
    Ok(mine)
}

async fn write_status(context: &Context, key: &Key, set: &StatefulSet, status: &StatefulSetStatus) -> anyhow::Result<()> {
    if set.status.as_ref().is_some_and(|before| plan::same_status(before, status)) {
        return Ok(());
    }
    let api: Api<StatefulSet> = Api::namespaced(context.client.clone(), &key.ns);
    let mut written = set.clone();
    written.status = Some(status.clone());
    match api.replace_status(&key.name, &PostParams::default(), &written).await {
        Err(error) if is_not_found(&error) => Ok(()),
        // Someone wrote the StatefulSet meanwhile, which brings us here again.
        Err(error) if is_conflict(&error) && context.sets.get(key).is_some() => Ok(()),
        other => other.map(|_| ()).context("writing the StatefulSet's status"),
    }
}
