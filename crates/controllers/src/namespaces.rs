//! Deletion of namespaces: removes everything in one that is being deleted, then its finalizer.
//!
//! Inputs: namespaces, discovery. Outputs: deletions, the namespace's finalizers and conditions. Mirrors `pkg/controller/namespace`.
//! Guarantees: a namespace goes only when a look at every kind found nothing left in it; its pods go before anything else, so that no pod runs
//! without the policies and Secrets that it was made with.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use cluster::{Client, Key, is_conflict, is_not_found, update_status_with_retry};
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Namespace, NamespaceCondition},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, PostParams},
};
use tokio_util::sync::CancellationToken;

use crate::{
    discovery::{self, Kind},
    runner::{Next, Queue},
    view::Views,
};

const FINALIZER: &str = "kubernetes";
/// How soon to look again while content remains that nobody reports (pods going are reported).
const LOOK_AGAIN: Duration = Duration::from_millis(500);

struct Context {
    client: Client,
    views: Views,
}

/// Runs the controller until `shutdown`.
pub(crate) async fn run(client: Client, views: Views, shutdown: CancellationToken) {
    let queue = Queue::<String>::default();
    let keys = queue.clone();
    views.namespaces.subscribe(move |change| keys.add(change.key.name.clone()));
    let (keys, namespaces) = (queue.clone(), views.namespaces.clone());
    views.pods.subscribe(move |change| {
        if change.new.is_none() && namespaces.get(Key::cluster(&change.key.ns)).is_some_and(|row| row.deleting) {
            keys.add(change.key.ns.clone());
        }
    });
    let context = Arc::new(Context { client, views });
    queue.run("namespace", 4, shutdown, |name| sync(context.clone(), name)).await;
}

async fn sync(context: Arc<Context>, name: String) -> anyhow::Result<Next> {
    let row = context.views.namespaces.get(Key::cluster(&name));
    if !row.is_some_and(|row| row.deleting && row.finalizers.iter().any(|one| one == FINALIZER)) {
        return Ok(Next::Change);
    }
    let kinds = discovery::kinds(&context.client).await.context("asking which kinds there are")?;
    let namespaced: Vec<Kind> = kinds.into_iter().filter(|kind| kind.namespaced).collect();
    let (pods, others): (Vec<Kind>, Vec<Kind>) =
        namespaced.into_iter().partition(|kind| kind.resource.group.is_empty() && kind.resource.plural == "pods");
    let mut left = empty_all(&context, &name, &pods).await?;
    if left.is_empty() {
        left = empty_all(&context, &name, &others).await?;
    }
    if left.is_empty() {
        finalize(&context, &name).await?;
        return Ok(Next::Change);
    }
    report(&context, &name, &left).await?;
    Ok(Next::Within(LOOK_AGAIN))
}

/// Remaining objects of one kind in a namespace.
#[derive(Debug, PartialEq, Eq)]
struct Remains {
    kind: String,
    count: usize,
    /// Finalizers that hold it, each with how many objects it holds.
    finalizers: Vec<(String, usize)>,
}

/// Deletes all objects of these kinds in a namespace, and returns what remains.
async fn empty_all(context: &Context, namespace: &str, kinds: &[Kind]) -> anyhow::Result<Vec<Remains>> {
    let left = join_all(kinds.iter().map(|kind| empty(context, namespace, kind))).await;
    Ok(left.into_iter().collect::<anyhow::Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// Deletes all objects of a kind in a namespace and returns the remaining ones.
async fn empty(context: &Context, namespace: &str, kind: &Kind) -> anyhow::Result<Option<Remains>> {
    let api: Api<DynamicObject> = Api::namespaced_with(context.client.clone(), namespace, &kind.resource);
    let failed = || format!("emptying {} of {}", namespace, kind.resource.plural);
    let present = api.list_metadata(&ListParams::default()).await.with_context(failed)?.items;
    if present.is_empty() {
        return Ok(None);
    }
    let alive = present.iter().filter(|one| one.metadata.deletion_timestamp.is_none());
    let names: Vec<&str> = alive.filter_map(|one| one.metadata.name.as_deref()).collect();
    let background = DeleteParams::background();
    if kind.delete_collection && !names.is_empty() {
        api.delete_collection(&background, &ListParams::default()).await.with_context(failed)?;
    } else {
        for name in names {
            match api.delete(name, &background).await {
                Err(error) if !is_not_found(&error) && !is_conflict(&error) => return Err(error).with_context(failed),
                _ => {}
            }
        }
    }
    let left = api.list_metadata(&ListParams::default()).await.with_context(failed)?.items;
    let finalizers = left.iter().flat_map(|one| one.metadata.finalizers.iter().flatten());
    let mut counted: Vec<(String, usize)> = Vec::new();
    for finalizer in finalizers {
        match counted.iter_mut().find(|(name, _)| name == finalizer) {
            Some((_, count)) => *count += 1,
            None => counted.push((finalizer.clone(), 1)),
        }
    }
    let ApiResource { plural, group, version, .. } = &kind.resource;
    let kind = if group.is_empty() { format!("{plural}.") } else { format!("{plural}.{group}") };
    tracing::trace!(namespace, kind, version, left = left.len(), "emptied");
    Ok((!left.is_empty()).then_some(Remains { kind, count: left.len(), finalizers: counted }))
}

async fn finalize(context: &Context, name: &str) -> anyhow::Result<()> {
    let api: Api<Namespace> = Api::all(context.client.clone());
    let Some(mut namespace) = api.get_opt(name).await? else { return Ok(()) };
    if let Some(finalizers) = namespace.spec.as_mut().and_then(|spec| spec.finalizers.as_mut()) {
        finalizers.retain(|one| one != FINALIZER);
    }
    match api.replace_subresource("finalize", name, &PostParams::default(), &namespace).await {
        Err(error) if is_not_found(&error) => Ok(()),
        other => other.map(|_: Namespace| ()).with_context(|| format!("letting namespace {name} go")),
    }
}

/// Upstream's words for what remains (`namespaced_resources_deleter.go`, `status_condition_utils.go`). Failures are tried again without
/// a report, so that the first three conditions say that all is well.
fn conditions(left: &[Remains]) -> [(&'static str, bool, &'static str, String); 5] {
    let content: Vec<String> = left.iter().map(|one| format!("{} has {} resource instances", one.kind, one.count)).collect();
    let mut held: Vec<(&str, usize)> = Vec::new();
    for (finalizer, count) in left.iter().flat_map(|one| &one.finalizers) {
        match held.iter_mut().find(|(name, _)| name == finalizer) {
            Some((_, sum)) => *sum += count,
            None => held.push((finalizer, *count)),
        }
    }
    let finalizers: Vec<String> = held.iter().map(|(name, count)| format!("{name} in {count} resource instances")).collect();
    let remaining = match content.as_slice() {
        [] => ("NamespaceContentRemaining", false, "ContentRemoved", "All content successfully removed".into()),
        some => ("NamespaceContentRemaining", true, "SomeResourcesRemain", format!("Some resources are remaining: {}", some.join(", "))),
    };
    let holding = match finalizers.as_slice() {
        [] => ("NamespaceFinalizersRemaining", false, "ContentHasNoFinalizers", "All content-preserving finalizers finished".into()),
        some => {
            let message = format!("Some content in the namespace has finalizers remaining: {}", some.join(", "));
            ("NamespaceFinalizersRemaining", true, "SomeFinalizersRemain", message)
        }
    };
    let deleted = "All content successfully deleted, may be waiting on finalization";
    [
        ("NamespaceDeletionDiscoveryFailure", false, "ResourcesDiscovered", "All resources successfully discovered".into()),
        ("NamespaceDeletionGroupVersionParsingFailure", false, "ParsedGroupVersions", "All legacy kube types successfully parsed".into()),
        ("NamespaceDeletionContentFailure", false, "ContentDeleted", deleted.into()),
        remaining,
        holding,
    ]
}

async fn report(context: &Context, name: &str, left: &[Remains]) -> anyhow::Result<()> {
    let api: Api<Namespace> = Api::all(context.client.clone());
    let now = Timestamp::now();
    let now = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
    let written = update_status_with_retry(&api, name, |namespace| {
        let present = namespace.status.get_or_insert_default().conditions.get_or_insert_default();
        let before = present.clone();
        for (type_, holds, reason, message) in conditions(left) {
            let old = present.iter().find(|one| one.type_ == type_).cloned();
            let status = if holds { "True" } else { "False" };
            let since = old.filter(|old| old.status == status).and_then(|old| old.last_transition_time);
            present.retain(|one| one.type_ != type_);
            present.push(NamespaceCondition {
                type_: type_.to_owned(),
                status: status.to_owned(),
                reason: Some(reason.to_owned()),
                message: Some(message),
                last_transition_time: Some(since.unwrap_or_else(|| now.clone())),
            });
        }
        *present != before
    })
    .await;
    match written {
        Err(cluster::Error::Request { source, .. }) if is_not_found(&source) => Ok(()),
        other => other.map(|_| ()).context("writing the namespace's conditions"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_objects_are_reported_in_upstreams_words() {
        let left = [
            Remains { kind: "pods.".into(), count: 2, finalizers: vec![("example.com/hold".into(), 1)] },
            Remains { kind: "deployments.apps".into(), count: 1, finalizers: vec![("example.com/hold".into(), 1)] },
        ];
        let [.., content, finalizers] = conditions(&left);
        assert_eq!(content.3, "Some resources are remaining: pods. has 2 resource instances, deployments.apps has 1 resource instances");
        assert_eq!(finalizers.3, "Some content in the namespace has finalizers remaining: example.com/hold in 2 resource instances");
        assert!((content.1, finalizers.1) == (true, true));
        assert!(conditions(&[]).iter().all(|condition| !condition.1), "nothing fails, and nothing remains");
    }
}
