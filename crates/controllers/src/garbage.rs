//! Garbage collection: removes objects whose owners are all gone, and carries out foreground and orphaning deletion.
//!
//! Inputs: the metadata of every kind the API serves (asked again and again, since kinds may come and go). Outputs: deletions, owner references, finalizers. Mirrors
//! `pkg/controller/garbagecollector`.
//! Guarantees: nothing is removed from cached state alone: before an object goes, it and each owner that seems to be missing are read from the API, and
//! the deletion names the uid and version that were read. An object with an owner of a kind that is not served is left alone.

mod graph;
mod plan;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::Context as _;
use backoff::Backoff;
use cluster::{ApiServer, Client, EventRecorder, EventType, Informer, Key, Selection, is_conflict, is_not_found};
use futures::future::join_all;
use k8s_openapi::{
    api::core::v1::ObjectReference,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, Preconditions, PropagationPolicy},
    core::PartialObjectMeta,
};
use serde_json::json;
use thiserror_ext::AsReport as _;
use tokio_util::sync::CancellationToken;

use crate::{
    discovery::{self, Kind},
    runner::{Next, Queue},
};
use graph::{Graph, Known, Owner, Place, Row, Shown};
use plan::{Action, Seen, plan};

/// Kinds that come and go too often to be owned by anything (upstream: `DefaultIgnoredResources`).
const IGNORED: [&str; 1] = ["events"];

/// How often to ask which kinds there are (upstream: 30 s).
const ASK_AGAIN: Duration = Duration::from_secs(30);

/// The kinds that are followed.
type Followed = HashMap<Arc<Kind>, Informer<Row>>;

struct Context {
    client: Client,
    api: ApiServer,
    kinds: Mutex<Followed>,
    graph: Arc<Mutex<Graph>>,
    queue: Queue<String>,
    events: EventRecorder,
}

fn locked(graph: &Mutex<Graph>) -> MutexGuard<'_, Graph> {
    graph.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the controller until `shutdown`.
pub(crate) async fn run(client: Client, api: ApiServer, shutdown: CancellationToken) {
    let kinds = tokio::select! {
        kinds = kinds(&client) => kinds,
        () = shutdown.cancelled() => return,
    };
    let (queue, graph) = (Queue::<String>::default(), Arc::new(Mutex::new(Graph::default())));
    let informers: Followed = kinds.iter().map(|kind| (kind.clone(), follow(&client, &api, kind, &graph, &queue))).collect();
    tokio::select! {
        _ = join_all(informers.values().map(Informer::synced)) => {}
        () = shutdown.cancelled() => return,
    }
    queue.extend(locked(&graph).complete());
    let events = EventRecorder::new(client.clone(), "garbage-collector-controller", "");
    let context = Arc::new(Context { client, api, kinds: Mutex::new(informers), graph, queue: queue.clone(), events });
    tokio::select! {
        () = queue.run("garbagecollector", 16, shutdown, |uid| sync(context.clone(), uid)) => {}
        () = refresh(&context) => {}
    }
}

/// Follows kinds that came, and leaves those that went.
async fn refresh(context: &Context) {
    loop {
        tokio::time::sleep(ASK_AGAIN).await;
        let present = kinds(&context.client).await;
        let came: Vec<(Arc<Kind>, Informer<Row>)> = {
            let mut followed = context.kinds.lock().unwrap_or_else(PoisonError::into_inner);
            followed.retain(|kind, _| {
                let stays = present.contains(kind);
                if !stays {
                    tracing::debug!(kind = kind.resource.kind, "the kind went");
                    locked(&context.graph).forget_kind(kind);
                }
                stays
            });
            let new = present.into_iter().filter(|kind| !followed.contains_key(kind)).collect::<Vec<_>>();
            let started = new.into_iter().map(|kind| (kind.clone(), follow(&context.client, &context.api, &kind, &context.graph, &context.queue)));
            let started: Vec<_> = started.collect();
            followed.extend(started.iter().cloned());
            started
        };
        if came.is_empty() {
            continue;
        }
        join_all(came.iter().map(|(_, informer)| informer.synced())).await;
        // Objects with owners of an unknown kind were left alone.
        context.queue.extend(locked(&context.graph).complete());
    }
}

async fn kinds(client: &Client) -> Vec<Arc<Kind>> {
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
    loop {
        match discovery::kinds(client).await {
            Ok(kinds) => return kinds.into_iter().filter(|kind| !IGNORED.contains(&kind.resource.plural.as_str())).map(Arc::new).collect(),
            Err(error) => {
                tracing::debug!(error = %error.as_report(), "asking which kinds there are failed; asking again");
                tokio::time::sleep(backoff.next_delay()).await;
            }
        }
    }
}

fn follow(client: &Client, server: &ApiServer, kind: &Arc<Kind>, graph: &Arc<Mutex<Graph>>, queue: &Queue<String>) -> Informer<Row> {
    let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(client.clone(), &kind.resource);
    let (kind, graph, queue) = (kind.clone(), graph.clone(), queue.clone());
    Informer::start_metadata(api, Selection::all().of(server), Row::new, move |change| {
        let place = Place { kind: kind.clone(), key: change.key.clone() };
        queue.extend(locked(&graph).change(&place, change.old, change.new));
    })
}

async fn sync(context: Arc<Context>, uid: String) -> anyhow::Result<Next> {
    let Some(place) = locked(&context.graph).place(&uid) else { return Ok(Next::Change) };
    let api = api(&context.client, &place.kind.resource, &place.key.ns, place.kind.namespaced);
    // The informer's row may be old; the action follows from the object as it is.
    let Some(live) = api.get_metadata_opt(&place.key.name).await.with_context(|| format!("reading {place}"))? else {
        return Ok(Next::Change);
    };
    let Some(row) = Row::new(&live.metadata).filter(|row| row.uid == uid) else { return Ok(Next::Change) };
    let mut owners = Vec::new();
    if !row.deleting {
        for owner in &row.owners {
            owners.push((owner.clone(), look(&context, (&place, &uid), owner).await?));
        }
    }
    let dependents = locked(&context.graph).dependents(&uid);
    let action = plan(&row, &owners, &dependents);
    if action != Action::Keep {
        tracing::debug!(object = %place, "{action}");
    }
    apply(&context, &place, &live.metadata, &action).await.with_context(|| format!("{action}: {place}"))?;
    Ok(Next::Change)
}

fn api(client: &Client, resource: &ApiResource, ns: &str, namespaced: bool) -> Api<DynamicObject> {
    if namespaced { Api::namespaced_with(client.clone(), ns, resource) } else { Api::all_with(client.clone(), resource) }
}

/// How an owner is, by the graph if it knows it, else by the API.
async fn look(context: &Context, (dependent, uid): (&Place, &str), owner: &Owner) -> anyhow::Result<Seen> {
    let known = locked(&context.graph).known(dependent, owner);
    match known {
        Known::Here(row) => return Ok(if row.deleting && row.foreground { Seen::Waiting } else { Seen::Present }),
        Known::Elsewhere => report_elsewhere(context, dependent, uid, owner),
        Known::Nothing => {}
    }
    let of_owner = |kind: &&Arc<Kind>| kind.resource.kind == owner.kind && kind.resource.group == owner.group();
    let kind = context.kinds.lock().unwrap_or_else(PoisonError::into_inner).keys().find(of_owner).cloned();
    let Some(kind) = kind else { return Ok(Seen::Unknown) };
    if kind.namespaced && dependent.key.ns.is_empty() {
        // An object of the whole cluster cannot be owned from inside a namespace: the reference is a mistake, not a reason to delete.
        return Ok(Seen::Unknown);
    }
    let api = api(&context.client, &kind.resource, &dependent.key.ns, kind.namespaced);
    let live = api.get_metadata_opt(&owner.name).await.with_context(|| format!("looking for {} {}", owner.kind, owner.name))?;
    let same = live.and_then(|live| Row::new(&live.metadata)).filter(|row| row.uid == owner.uid);
    Ok(match same {
        Some(row) if row.deleting && row.foreground => Seen::Waiting,
        Some(_) => Seen::Present,
        None => Seen::Absent,
    })
}

/// An object names an owner that is in another namespace.
fn report_elsewhere(context: &Context, place: &Place, uid: &str, owner: &Owner) {
    let ns = place.key.ns.as_str();
    let object = ObjectReference {
        api_version: Some(place.kind.resource.api_version.clone()),
        kind: Some(place.kind.resource.kind.clone()),
        namespace: Some(ns.to_owned()).filter(|ns| !ns.is_empty()),
        name: Some(place.key.name.clone()),
        uid: Some(uid.to_owned()),
        ..Default::default()
    };
    let message = format!("ownerRef {} does not exist in namespace {ns:?}", Shown(owner, ns));
    context.events.event(&object, EventType::Warning, "OwnerRefInvalidNamespace", None, message);
}

async fn apply(context: &Context, place: &Place, live: &ObjectMeta, action: &Action) -> kube::Result<()> {
    let api = api(&context.client, &place.kind.resource, &place.key.ns, place.kind.namespaced);
    match action {
        Action::Keep => Ok(()),
        Action::Wait(dependents) => {
            context.queue.extend(dependents.iter().cloned());
            Ok(())
        }
        Action::Delete(policy) => {
            let policy = match policy {
                plan::Policy::Background => PropagationPolicy::Background,
                plan::Policy::Foreground => PropagationPolicy::Foreground,
                plan::Policy::Orphan => PropagationPolicy::Orphan,
            };
            delete(&api, &place.key, live, policy).await
        }
        Action::Disown(owners) => disown(&api, &place.key, live, owners).await,
        Action::Unblock => unblock(&api, &place.key, live).await,
        Action::Orphan(dependents) => {
            let owner = live.uid.clone().unwrap_or_default();
            for dependent in dependents {
                orphan(context, dependent, &owner).await?;
            }
            drop_finalizer(&api, &place.key, live, plan::ORPHAN).await
        }
        Action::Release => drop_finalizer(&api, &place.key, live, plan::FOREGROUND).await,
    }
}

/// Deletes an object as it was read. One that is written all the time goes too, as long as its owners are the same.
async fn delete(api: &Api<DynamicObject>, key: &Key, live: &ObjectMeta, policy: PropagationPolicy) -> kube::Result<()> {
    let attempt = async |resource_version: Option<String>| {
        let preconditions = Some(Preconditions { uid: live.uid.clone(), resource_version });
        let params = DeleteParams { propagation_policy: Some(policy.clone()), preconditions, ..DeleteParams::default() };
        match api.delete(&key.name, &params).await {
            Err(error) if !is_not_found(&error) => Err(error),
            _ => Ok(()),
        }
    };
    match attempt(live.resource_version.clone()).await {
        Err(error) if is_conflict(&error) => {
            let Some(now) = api.get_metadata_opt(&key.name).await? else { return Ok(()) };
            let same = now.metadata.uid == live.uid && now.metadata.owner_references == live.owner_references;
            if same { attempt(None).await } else { Err(error) }
        }
        other => other,
    }
}

async fn orphan(context: &Context, dependent: &str, owner: &str) -> kube::Result<()> {
    let Some(place) = locked(&context.graph).place(dependent) else { return Ok(()) };
    let api = api(&context.client, &place.kind.resource, &place.key.ns, place.kind.namespaced);
    let Some(live) = api.get_metadata_opt(&place.key.name).await? else { return Ok(()) };
    match disown(&api, &place.key, &live.metadata, &[owner.to_owned()]).await {
        Err(error) if is_not_found(&error) => Ok(()),
        other => other,
    }
}

/// Removes references to these owners, over the version that was read.
async fn disown(api: &Api<DynamicObject>, key: &Key, live: &ObjectMeta, owners: &[String]) -> kube::Result<()> {
    let kept: Vec<_> = live.owner_references.iter().flatten().filter(|owner| !owners.contains(&owner.uid)).collect();
    write(api, key, json!({"metadata": {"resourceVersion": live.resource_version, "ownerReferences": kept}})).await
}

/// Lets no owner's deletion wait for this object.
async fn unblock(api: &Api<DynamicObject>, key: &Key, live: &ObjectMeta) -> kube::Result<()> {
    let free = |owner: &OwnerReference| OwnerReference { block_owner_deletion: Some(false), ..owner.clone() };
    let owners: Vec<_> = live.owner_references.iter().flatten().map(free).collect();
    write(api, key, json!({"metadata": {"resourceVersion": live.resource_version, "ownerReferences": owners}})).await
}

async fn drop_finalizer(api: &Api<DynamicObject>, key: &Key, live: &ObjectMeta, finalizer: &str) -> kube::Result<()> {
    let kept: Vec<_> = live.finalizers.iter().flatten().filter(|one| *one != finalizer).collect();
    match write(api, key, json!({"metadata": {"resourceVersion": live.resource_version, "finalizers": kept}})).await {
        Err(error) if is_not_found(&error) => Ok(()),
        other => other,
    }
}

async fn write(api: &Api<DynamicObject>, key: &Key, patch: serde_json::Value) -> kube::Result<()> {
    let written = api.patch_metadata(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
    if let Err(error) = &written
        && is_conflict(error)
    {
        tracing::trace!(%key, "the object changed meanwhile");
    }
    written.map(|_| ())
}
