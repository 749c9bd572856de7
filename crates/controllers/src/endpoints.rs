//! EndpointSlices of each Service (and Endpoints, for old clients).
//!
//! Inputs: Services with a selector, pods, nodes; Endpoints that someone wrote for a Service without one ([`mirror`]). Outputs:
//! EndpointSlices managed by `endpointslice-controller.k8s.io` or `endpointslicemirroring-controller.k8s.io`, and one Endpoints object a
//! Service. Mirrors `pkg/controller/endpointslice`, `endpointslicemirroring` and `endpoint`, and `k8s.io/endpointslice`.
//! Guarantees: slices of others are never touched; the name of a slice follows from its Service, ports and number, so a second attempt
//! finds the first one's result; a slice is written only over the version the plan was made from.

mod hints;
mod legacy;
pub(crate) mod mirror;
mod plan;
mod rows;

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Context as _;
use cluster::{Client, EventRecorder, EventType, Key, is_conflict, is_not_found};
use k8s_openapi::api::{
    core::v1::{Endpoints, ObjectReference},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api,
    api::{DeleteParams, PostParams, Preconditions},
};
use tokio_util::sync::CancellationToken;

use crate::{
    runner::{Next, Queue},
    view::{ServiceRow, Views},
};
use kube_rules::Selector;
use plan::Action;
use rows::{Desired, Source};

pub(crate) use hints::Distribution;
pub(crate) use rows::SliceRow;

struct Context {
    client: Client,
    views: Views,
    events: EventRecorder,
    /// For Events about Endpoints.
    endpoints: EventRecorder,
    /// Services whose endpoints have hints by the annotation, as events told.
    hinted: Mutex<HashSet<Key>>,
}

/// Runs the controller until `shutdown`.
pub(crate) async fn run(client: Client, views: Views, shutdown: CancellationToken) {
    let queue = Queue::<Key>::default();
    watch(&views, &queue);
    let events = EventRecorder::new(client.clone(), "endpoint-slice-controller", "");
    let endpoints = EventRecorder::new(client.clone(), "endpoint-controller", "");
    let context = Arc::new(Context { client, views, events, endpoints, hinted: Mutex::default() });
    queue.run("endpointslice", 8, shutdown, |key| sync(context.clone(), key)).await;
}

fn watch(views: &Views, queue: &Queue<Key>) {
    let keys = queue.clone();
    views.services.subscribe(move |change| keys.add(change.key.clone()));
    let (keys, services) = (queue.clone(), views.services.clone());
    views.pods.subscribe(move |change| {
        for (key, service) in services.in_namespace(&change.key.ns) {
            let Some(selector) = &service.selector else { continue };
            let rows = [change.old, change.new].into_iter().flatten();
            if rows.into_iter().any(|pod| selector.matches(&pod.labels)) {
                keys.add(key);
            }
        }
    });
    let (keys, services) = (queue.clone(), views.services.clone());
    views.nodes.subscribe(move |change| {
        if change.old.map(|node| hints::shares_of(node)) != change.new.map(|node| hints::shares_of(node)) {
            let by_share = services.snapshot().into_iter().filter(|(_, service)| service.distribution == Distribution::Auto);
            keys.extend(by_share.map(|(key, _)| key));
        }
    });
    let keys = queue.clone();
    views.slices.subscribe(move |change| {
        for slice in [change.old, change.new].into_iter().flatten().filter(|slice| !slice.mirrors) {
            keys.add(Key::new(&change.key.ns, &slice.service));
        }
    });
}

async fn sync(context: Arc<Context>, key: Key) -> anyhow::Result<Next> {
    let Some(service) = context.views.services.get(&key) else {
        context.hinted.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
        delete_legacy(&context.client, &key).await?;
        return Ok(Next::Change);
    };
    let Some(selector) = service.selector.as_ref().filter(|_| !service.external_name && !service.deleting) else {
        return Ok(Next::Change);
    };
    let tell = |error: &anyhow::Error| {
        let message = format!("Error updating Endpoint Slices for Service {key}: {}", reason(error));
        context.events.event(&reference(&key, &service), EventType::Warning, "FailedToUpdateEndpointSlices", None, message);
    };
    let Desired { groups, skipped } = match reconcile(&context, &key, &service, selector).await {
        Ok(desired) => desired,
        Err(error) => {
            if !error.chain().filter_map(|cause| cause.downcast_ref::<kube::Error>()).any(is_conflict) {
                tell(&error);
            }
            return Err(error);
        }
    };
    write_legacy(&context, &key, &service, &groups).await?;
    if skipped.is_empty() {
        return Ok(Next::Change);
    }
    // The nodes of these pods may only be late.
    let error = anyhow::anyhow!("{}", skipped.join(", "));
    tell(&error);
    Err(error)
}

/// What the server said, or else what went wrong.
fn reason(error: &anyhow::Error) -> String {
    error.chain().find_map(|cause| cause.downcast_ref::<kube::Error>()).map_or_else(|| error.to_string(), crate::refusal)
}

/// Writes the slices of a Service; answers with what it should have.
async fn reconcile(context: &Context, key: &Key, service: &ServiceRow, selector: &Selector) -> anyhow::Result<Desired> {
    let pods: Vec<_> = context.views.pods.in_namespace(&key.ns).into_iter().filter(|(_, pod)| selector.matches(&pod.labels)).collect();
    let slices: Vec<_> =
        context.views.slices.in_namespace(&key.ns).into_iter().filter(|(_, slice)| slice.service == key.name && !slice.mirrors).collect();
    let zone = |node: &str| Some(context.views.nodes.get(Key::cluster(node))?.labels.get("topology.kubernetes.io/zone").cloned());
    let Desired { mut groups, skipped } = rows::desired(key, service, &pods, zone);
    let refused = match service.distribution {
        Distribution::Auto => {
            let nodes = context.views.nodes.snapshot();
            hints::assign(&mut groups, Distribution::Auto, &hints::shares(nodes.iter().map(|(_, node)| node.as_ref())))
        }
        other => hints::assign(&mut groups, other, &None),
    };
    tell_hints(context, key, service, &refused);
    let source = Source::service(key, service);
    let actions = plan::plan(key, &source, &groups, &slices);
    for action in &actions {
        tracing::debug!(service = %key, "{action}");
        apply(&context.client, key, &source, action).await?;
    }
    Ok(Desired { groups, skipped })
}

fn reference(key: &Key, service: &ServiceRow) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Service".to_owned()),
        namespace: Some(key.ns.clone()),
        name: Some(key.name.clone()),
        uid: Some(service.uid.clone()),
        ..ObjectReference::default()
    }
}

fn tell_hints(context: &Context, key: &Key, service: &ServiceRow, refused: &[String]) {
    let told = {
        let mut hinted = context.hinted.lock().unwrap_or_else(PoisonError::into_inner);
        let mut had = hinted.contains(key);
        let told = hints::events(&mut had, service.distribution, refused, &service.families);
        if had {
            hinted.insert(key.clone());
        } else {
            hinted.remove(key);
        }
        told
    };
    for (is_warning, reason, message) in told {
        let type_ = if is_warning { EventType::Warning } else { EventType::Normal };
        context.events.event(&reference(key, service), type_, reason, None, message);
    }
}

async fn apply(client: &Client, key: &Key, source: &Source, action: &Action) -> anyhow::Result<()> {
    let api: Api<EndpointSlice> = Api::namespaced(client.clone(), &key.ns);
    match action {
        Action::Create { name, slice } => {
            let object = rows::object(key, source, name, slice, None);
            match api.create(&PostParams::default(), &object).await {
                Err(error) if is_conflict(&error) => anyhow::bail!("EndpointSlice {name} exists already; it will be looked at again"),
                Err(error) if crate::is_namespace_terminating(&error) => Ok(()),
                other => other.map(|_| ()).with_context(|| format!("creating EndpointSlice {name}")),
            }
        }
        Action::Update { name, version, slice } => {
            let object = rows::object(key, source, name, slice, Some(version.clone()));
            api.replace(name, &PostParams::default(), &object).await.map(|_| ()).with_context(|| format!("updating EndpointSlice {name}"))
        }
        Action::Delete { name, version } => {
            let preconditions = Some(Preconditions { uid: None, resource_version: Some(version.clone()) });
            match api.delete(name, &DeleteParams { preconditions, ..DeleteParams::default() }).await {
                Err(error) if !is_not_found(&error) => Err(error).with_context(|| format!("deleting EndpointSlice {name}")),
                _ => Ok(()),
            }
        }
    }
}

async fn write_legacy(context: &Context, key: &Key, service: &ServiceRow, desired: &[rows::Group]) -> anyhow::Result<()> {
    let api: Api<Endpoints> = Api::namespaced(context.client.clone(), &key.ns);
    let wanted = legacy::endpoints(key, service, desired);
    let (written, failure) = match api.get_opt(&key.name).await? {
        None => {
            let written = api.create(&PostParams::default(), &wanted).await;
            (written, ("FailedToCreateEndpoint", format!("Failed to create endpoint for service {key}")))
        }
        Some(mut found) => {
            if !legacy::update(&mut found, wanted) {
                return Ok(());
            }
            let written = api.replace(&key.name, &PostParams::default(), &found).await;
            (written, ("FailedToUpdateEndpoint", format!("Failed to update endpoint {key}")))
        }
    };
    match written {
        Err(error) if crate::is_namespace_terminating(&error) => Ok(()),
        Err(error) => {
            // An object that somebody else wrote meanwhile is no failure.
            if !is_conflict(&error) {
                let object = ObjectReference { kind: Some("Endpoints".to_owned()), uid: None, ..reference(key, service) };
                let message = format!("{}: {}", failure.1, crate::refusal(&error));
                context.endpoints.event(&object, EventType::Warning, failure.0, None, message);
            }
            Err(error).context("writing Endpoints")
        }
        Ok(_) => Ok(()),
    }
}

/// Deletes the Endpoints that this controller wrote while the Service was being deleted; the API server deletes those that it finds then.
async fn delete_legacy(client: &Client, key: &Key) -> anyhow::Result<()> {
    let api: Api<Endpoints> = Api::namespaced(client.clone(), &key.ns);
    let Some(found) = api.get_opt(&key.name).await?.filter(legacy::is_ours) else { return Ok(()) };
    let preconditions = Some(Preconditions { uid: found.metadata.uid, resource_version: found.metadata.resource_version });
    match api.delete(&key.name, &DeleteParams { preconditions, ..DeleteParams::default() }).await {
        Err(error) if !is_not_found(&error) => Err(error).context("deleting Endpoints"),
        _ => Ok(()),
    }
}
