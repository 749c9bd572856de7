//! Deletion of namespaces: removes everything in one that is being deleted, then its finalizer.
//!
//! Inputs: namespaces, discovery. Outputs: deletions, the namespace's finalizers and conditions. Mirrors `pkg/controller/namespace`.
//! Guarantees: a namespace goes only when a look at every kind found nothing left in it; its pods go before anything else, so that no pod runs
//! without the policies and Secrets that it was made with.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use cluster::{Client, Key, is_conflict, is_not_found, update_status_with_retry};
use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::core::v1::{Namespace, NamespaceCondition, Pod},
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
    let Some(since) = row.filter(|row| !row.finalizers.is_empty()).and_then(|row| row.deleted_at) else { return Ok(Next::Change) };
    let kinds = match discovery::kinds(&context.client).await {
        Ok(kinds) => kinds,
        Err(error) => {
            report(&context, &name, &Found { unknown: Some(crate::refusal(&error)), ..Found::default() }).await?;
            return Err(error).context("asking which kinds there are");
        }
    };
    let namespaced: Vec<Kind> = kinds.into_iter().filter(|kind| kind.namespaced).collect();
    let (pods, others): (Vec<Kind>, Vec<Kind>) = namespaced.into_iter().partition(|kind| is_pods(&kind.resource));
    let mut found = empty_all(&context, &name, &pods, since).await;
    if found.is_empty() {
        found = empty_all(&context, &name, &others, since).await;
    }
    // A namespace that something else holds says that it is empty now.
    report(&context, &name, &found).await?;
    anyhow::ensure!(found.failures.is_empty(), "cannot empty namespace {name}: {}", found.failures.join(", "));
    if found.left.is_empty() {
        finalize(&context, &name).await?;
        return Ok(Next::Change);
    }
    Ok(Next::Within(LOOK_AGAIN))
}

fn is_pods(resource: &ApiResource) -> bool {
    resource.group.is_empty() && resource.plural == "pods"
}

/// Remaining objects of one kind in a namespace.
#[derive(Debug, Default, PartialEq, Eq)]
struct Remains {
    kind: String,
    count: usize,
    /// Finalizers that hold it, each with how many objects it holds.
    finalizers: Vec<(String, usize)>,
}

/// What was found in a namespace after all of it was deleted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    /// Why nobody could say which kinds there are.
    unknown: Option<String>,
    left: Vec<Remains>,
    /// Why kinds could not be emptied.
    failures: Vec<String>,
}

impl Found {
    fn is_empty(&self) -> bool {
        self.left.is_empty() && self.failures.is_empty()
    }
}

/// Deletes all objects of these kinds in a namespace that is being deleted `since` then, and returns what remains. A kind that cannot be
/// emptied does not keep the others.
async fn empty_all(context: &Context, namespace: &str, kinds: &[Kind], since: Timestamp) -> Found {
    let mut found = Found::default();
    let emptied = join_all(kinds.iter().map(|kind| empty(context, namespace, kind, since))).await;
    for (kind, emptied) in kinds.iter().zip(emptied) {
        let (left, is_unexpected) = match emptied {
            Ok(None) => continue,
            Ok(Some(emptied)) => emptied,
            Err(error) => {
                found.failures.push(crate::refusal(&error));
                continue;
            }
        };
        if is_unexpected {
            let ApiResource { api_version, group, plural, .. } = &kind.resource;
            let slash = if group.is_empty() { "/" } else { "" };
            let what = format!("{slash}{api_version}, Resource={plural}");
            found.failures.push(format!("unexpected items still remain in namespace: {namespace} for gvr: {what}"));
        }
        found.left.push(left);
    }
    found
}

/// Deletes all objects of a kind in a namespace and returns the remaining ones, and whether nothing explains that they remain.
async fn empty(context: &Context, namespace: &str, kind: &Kind, since: Timestamp) -> kube::Result<Option<(Remains, bool)>> {
    let api: Api<DynamicObject> = Api::namespaced_with(context.client.clone(), namespace, &kind.resource);
    let present = api.list_metadata(&ListParams::default()).await?.items;
    if present.is_empty() {
        return Ok(None);
    }
    let alive = present.iter().filter(|one| one.metadata.deletion_timestamp.is_none());
    let names: Vec<&str> = alive.filter_map(|one| one.metadata.name.as_deref()).collect();
    let background = DeleteParams::background();
    if kind.delete_collection && !names.is_empty() {
        api.delete_collection(&background, &ListParams::default()).await?;
    } else {
        for name in names {
            match api.delete(name, &background).await {
                Err(error) if !is_not_found(&error) && !is_conflict(&error) => return Err(error),
                _ => {}
            }
        }
    }
    let left = api.list_metadata(&ListParams::default()).await?.items;
    if left.is_empty() {
        return Ok(None);
    }
    let finalizers = left.iter().flat_map(|one| one.metadata.finalizers.iter().flatten());
    let mut counted: Vec<(String, usize)> = Vec::new();
    for finalizer in finalizers {
        match counted.iter_mut().find(|(name, _)| name == finalizer) {
            Some((_, count)) => *count += 1,
            None => counted.push((finalizer.clone(), 1)),
        }
    }
    let mut is_unexpected = counted.is_empty();
    if is_unexpected && is_pods(&kind.resource) {
        let pods: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
        let pods = pods.list(&ListParams::default()).await?.items;
        is_unexpected = !pods.is_empty() && !within_grace(&pods, since, Timestamp::now());
    }
    let ApiResource { plural, group, .. } = &kind.resource;
    let remains = Remains { kind: format!("{plural}.{group}"), count: left.len(), finalizers: counted };
    Ok(Some((remains, is_unexpected)))
}

/// Whether pods may still take their time, counted from the deletion of their namespace (upstream: `estimateGracefulTermination`).
fn within_grace(pods: &[Pod], since: Timestamp, now: Timestamp) -> bool {
    let has_ended = |pod: &&Pod| pod.status.as_ref().is_some_and(|status| matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")));
    let running = pods.iter().filter(|pod| !has_ended(pod));
    let longest = running.filter_map(|pod| pod.spec.as_ref()?.termination_grace_period_seconds).max().unwrap_or_default();
    now.duration_since(since) < SignedDuration::from_secs(longest)
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

/// Type, whether it is true, reason and message of a condition.
type Condition = (&'static str, bool, &'static str, String);

/// Upstream's words for what was found (`namespaced_resources_deleter.go`, `status_condition_utils.go`).
fn conditions(found: &Found) -> [Condition; 5] {
    let sorted = |mut all: Vec<String>| {
        all.sort();
        all.join(", ")
    };
    let either = |type_, problem: Option<(&'static str, String)>, fine: (&'static str, &str)| match problem {
        Some((reason, message)) => (type_, true, reason, message),
        None => (type_, false, fine.0, fine.1.to_owned()),
    };
    let failures = found.failures.len();
    let failed = format!("Failed to delete all resource types, {failures} remaining: {}", sorted(found.failures.clone()));
    let content: Vec<String> = found.left.iter().map(|one| format!("{} has {} resource instances", one.kind, one.count)).collect();
    let mut held: Vec<(&str, usize)> = Vec::new();
    for (finalizer, count) in found.left.iter().flat_map(|one| &one.finalizers) {
        match held.iter_mut().find(|(name, _)| name == finalizer) {
            Some((_, sum)) => *sum += count,
            None => held.push((finalizer, *count)),
        }
    }
    let finalizers: Vec<String> = held.iter().map(|(name, count)| format!("{name} in {count} resource instances")).collect();
    let remain = (!content.is_empty()).then(|| ("SomeResourcesRemain", format!("Some resources are remaining: {}", sorted(content))));
    let hold = (!finalizers.is_empty())
        .then(|| ("SomeFinalizersRemain", format!("Some content in the namespace has finalizers remaining: {}", sorted(finalizers))));
    let deleted = "All content successfully deleted, may be waiting on finalization";
    [
        either(
            "NamespaceDeletionDiscoveryFailure",
            found.unknown.clone().map(|why| ("DiscoveryFailed", why)),
            ("ResourcesDiscovered", "All resources successfully discovered"),
        ),
        either("NamespaceDeletionGroupVersionParsingFailure", None, ("ParsedGroupVersions", "All legacy kube types successfully parsed")),
        either("NamespaceDeletionContentFailure", (failures > 0).then_some(("ContentDeletionFailed", failed)), ("ContentDeleted", deleted)),
        either("NamespaceContentRemaining", remain, ("ContentRemoved", "All content successfully removed")),
        either("NamespaceFinalizersRemaining", hold, ("ContentHasNoFinalizers", "All content-preserving finalizers finished")),
    ]
}

async fn report(context: &Context, name: &str, found: &Found) -> anyhow::Result<()> {
    let api: Api<Namespace> = Api::all(context.client.clone());
    let now = Timestamp::now();
    let now = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
    let written = update_status_with_retry(&api, name, |namespace| {
        let present = namespace.status.get_or_insert_default().conditions.get_or_insert_default();
        let before = present.clone();
        for (type_, holds, reason, message) in conditions(found) {
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

    fn message(found: &Found, type_: &str) -> (bool, String) {
        let all = conditions(found);
        let (_, holds, reason, message) = all.into_iter().find(|one| one.0 == type_).unwrap();
        (holds, format!("{reason}: {message}"))
    }

    #[test]
    fn remaining_objects_are_reported_in_upstreams_words() {
        let left = vec![
            Remains { kind: "pods.".into(), count: 2, finalizers: vec![("example.com/hold".into(), 1), ("another.com/hold".into(), 1)] },
            Remains { kind: "deployments.apps".into(), count: 1, finalizers: vec![("example.com/hold".into(), 1)] },
        ];
        let found = Found { left, failures: vec!["b".into(), "a".into()], unknown: Some("no answer".into()) };
        for (type_, expected) in [
            ("NamespaceDeletionDiscoveryFailure", "DiscoveryFailed: no answer"),
            ("NamespaceDeletionContentFailure", "ContentDeletionFailed: Failed to delete all resource types, 2 remaining: a, b"),
            (
                "NamespaceContentRemaining",
                "SomeResourcesRemain: Some resources are remaining: deployments.apps has 1 resource instances, pods. has 2 resource instances",
            ),
            (
                "NamespaceFinalizersRemaining",
                "SomeFinalizersRemain: Some content in the namespace has finalizers remaining: another.com/hold in 1 resource instances, \
                 example.com/hold in 2 resource instances",
            ),
        ] {
            assert_eq!(message(&found, type_), (true, expected.to_owned()));
        }
        assert!(conditions(&Found::default()).iter().all(|condition| !condition.1), "nothing fails, and nothing remains");
    }

    #[test]
    fn pods_may_take_the_longest_of_their_times() {
        let pod = |phase: &str, grace: i64| -> Pod {
            serde_json::from_value(
                serde_json::json!({"spec": {"containers": [], "terminationGracePeriodSeconds": grace}, "status": {"phase": phase}}),
            )
            .unwrap()
        };
        let pods = [pod("Running", 5), pod("Running", 30), pod("Succeeded", 600)];
        let at = |second| Timestamp::from_second(second).unwrap();
        assert!(within_grace(&pods, at(100), at(129)));
        assert!(!within_grace(&pods, at(100), at(130)));
        assert!(!within_grace(&pods[2..], at(100), at(101)), "what has ended takes no time");
    }
}
