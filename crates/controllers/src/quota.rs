//! Resource quotas: counts what the objects of each namespace use.
//!
//! Inputs: ResourceQuotas, and objects of the kinds that they limit. Outputs: the quotas' status; admission adds to `used` at once when an
//! object is made, this controller gives back what is no longer used. Mirrors `pkg/controller/resourcequota`; what an object uses is in
//! crate `admission`.
//! Guarantees: a status is written over the version it was counted for, so that nothing that admission noted meanwhile is forgotten;
//! everything is counted anew every five minutes.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use admission::quota::{Evaluator, Objects, is_ignored, total};
use anyhow::Context as _;
use cluster::{Client, Informer, Key, Selection, is_conflict, is_not_found};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ResourceQuota, ResourceQuotaStatus},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use kube::{
    Api,
    api::{DynamicObject, ListParams, PartialObjectMeta, PostParams},
};
use kube_rules::{Amounts, requests::amounts};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    discovery::{self, Kind},
    runner::{Next, Queue},
    view::{PodRow, Views},
};

/// Time between full counts (upstream: `--resource-quota-sync-period`).
const FULL_PASS: Duration = Duration::from_secs(300);

/// How long after the last object was made the numbers must be right.
const SETTLED: Duration = Duration::from_secs(1);

/// What triggers a count: not what this controller or admission wrote.
#[derive(Debug, PartialEq)]
struct Row {
    spec: Value,
    /// Whether the status repeats the specification, and has an amount for each resource of it.
    is_counted: bool,
}

impl Row {
    fn new(quota: &ResourceQuota) -> Option<Self> {
        let hard = hard(quota);
        let status = quota.status.as_ref();
        let has = |of: Option<&BTreeMap<String, ApiQuantity>>| of.map(amounts).unwrap_or_default();
        let (said, used) = (has(status.and_then(|status| status.hard.as_ref())), has(status.and_then(|status| status.used.as_ref())));
        let is_counted = said == hard && hard.keys().all(|name| used.contains_key(name));
        Some(Self { spec: serde_json::to_value(&quota.spec).ok()?, is_counted })
    }
}

struct Context {
    client: Client,
    views: Views,
    quotas: Informer<Row>,
    queue: Queue<Key>,
    kinds: Mutex<Vec<Kind>>,
    /// Kinds that some quota limits.
    followed: Mutex<HashMap<Kind, Informer<String>>>,
}

impl Context {
    fn kinds(&self) -> MutexGuard<'_, Vec<Kind>> {
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs the controller until `shutdown`.
pub(crate) async fn run(client: Client, views: Views, shutdown: CancellationToken) {
    let quotas = Informer::start(Api::<ResourceQuota>::all(client.clone()), Selection::all().of(&views.api), Row::new);
    tokio::select! {
        () = quotas.synced() => {}
        () = shutdown.cancelled() => return,
    }
    let queue = Queue::<Key>::default();
    let keys = queue.clone();
    quotas.subscribe(move |change| {
        if change.new.is_some_and(|new| !new.is_counted || change.old.is_none_or(|old| old.spec != new.spec)) {
            keys.add(change.key.clone());
        }
    });
    let (keys, all) = (queue.clone(), quotas.clone());
    views.pods.subscribe(move |change| {
        if gives_back(change.old.map(Arc::as_ref), change.new.map(Arc::as_ref)) {
            keys.extend(all.in_namespace(&change.key.ns).into_iter().map(|(key, _)| key));
        } else if change.old.is_none() {
            settle(&keys, &all, &change.key.ns);
        }
    });
    let context = Arc::new(Context { client, views, quotas, queue: queue.clone(), kinds: Mutex::default(), followed: Mutex::default() });
    tokio::select! {
        () = queue.run("resourcequota", 5, shutdown, |key| sync(context.clone(), key)) => {}
        () = pass(&context) => {}
    }
}

/// Counts anew soon after an object was made: admission notes it before it is stored, and a count between the two misses it.
fn settle(keys: &Queue<Key>, quotas: &Informer<Row>, ns: &str) {
    for (key, _) in quotas.in_namespace(ns) {
        keys.add_after(key, SETTLED);
    }
}

/// Whether a pod may use less than before: it ended or goes, its containers got other resources, or it is in other scopes.
fn gives_back(old: Option<&PodRow>, new: Option<&PodRow>) -> bool {
    match (old, new) {
        (Some(_), None) => true,
        (Some(old), Some(new)) => (old.is_active() && !new.is_active()) || old.charge != new.charge,
        (None, _) => false,
    }
}

/// Counts everything once in a while: kinds may have come, and pods that are being deleted stop to count by time alone.
async fn pass(context: &Context) {
    loop {
        tokio::time::sleep(FULL_PASS).await;
        context.kinds().clear();
        context.queue.extend(context.quotas.snapshot().into_iter().map(|(key, _)| key));
    }
}

async fn sync(context: Arc<Context>, key: Key) -> anyhow::Result<Next> {
    if context.quotas.get(&key).is_none() {
        return Ok(Next::Change);
    }
    let api: Api<ResourceQuota> = Api::namespaced(context.client.clone(), &key.ns);
    // Read before its objects: what is made meanwhile changes the version.
    let Some(quota) = api.get_opt(&key.name).await? else { return Ok(Next::Change) };
    let kinds = limited(&context, &quota).await?;
    let mut listed = Vec::new();
    for kind in kinds {
        follow(&context, &kind).await;
        let items = list(&context.client, &kind, &key.ns).await.with_context(|| format!("listing {} in {}", kind.resource.plural, key.ns))?;
        listed.push((kind, items));
    }
    let objects: Vec<Objects<'_>> =
        listed.iter().map(|(kind, items)| Objects { group: &kind.resource.group, resource: &kind.resource.plural, items }).collect();
    let counted = total(&serde_json::to_value(&quota)?, &objects, Timestamp::now());
    let Some(status) = status(&quota, &counted) else { return Ok(Next::Change) };
    let changed = ResourceQuota { status: Some(status), ..quota };
    match api.replace_status(&key.name, &PostParams::default(), &changed).await {
        Err(error) if is_not_found(&error) => Ok(Next::Change),
        Err(error) if is_conflict(&error) => anyhow::bail!("{key} changed while it was counted; it will be counted again"),
        other => other.map(|_| Next::Change).with_context(|| format!("writing the status of quota {key}")),
    }
}

/// The kinds that a quota limits.
async fn limited(context: &Context, quota: &ResourceQuota) -> anyhow::Result<Vec<Kind>> {
    let known = |kind: &&Kind| kind.namespaced && !is_ignored(&kind.resource.group, &kind.resource.plural);
    let hard = hard(quota);
    let measured = |kinds: &[Kind]| {
        let measures = |kind: &&Kind| {
            let evaluator = Evaluator::of(&kind.resource.group, &kind.resource.plural);
            hard.keys().any(|name| evaluator.measures(name))
        };
        kinds.iter().filter(known).filter(measures).cloned().collect::<Vec<Kind>>()
    };
    let found = measured(&context.kinds());
    if !context.kinds().is_empty() {
        return Ok(found);
    }
    let kinds = discovery::kinds(&context.client).await.context("asking which kinds there are")?;
    let found = measured(&kinds);
    *context.kinds() = kinds;
    Ok(found)
}

/// Counts anew when objects of this kind go, or change what they use.
async fn follow(context: &Context, kind: &Kind) {
    let resource = (kind.resource.group.as_str(), kind.resource.plural.as_str());
    // The shared rows of pods say more.
    if resource == ("", "pods") {
        return;
    }
    let counts_alone = matches!(Evaluator::of(resource.0, resource.1), Evaluator::Count(_));
    let informer = {
        let mut followed = context.followed.lock().unwrap_or_else(PoisonError::into_inner);
        if followed.contains_key(kind) {
            return;
        }
        let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(context.client.clone(), &kind.resource);
        let (keys, all) = (context.queue.clone(), context.quotas.clone());
        let row = move |meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta| {
            Some(if counts_alone { String::new() } else { meta.resource_version.clone().unwrap_or_default() })
        };
        let informer = Informer::start_metadata(api, Selection::all().of(&context.views.api), row, move |change| {
            if change.old.is_none() {
                settle(&keys, &all, &change.key.ns);
            } else if change.old != change.new {
                keys.extend(all.in_namespace(&change.key.ns).into_iter().map(|(key, _)| key));
            }
        });
        followed.insert(kind.clone(), informer.clone());
        informer
    };
    informer.synced().await;
}

async fn list(client: &Client, kind: &Kind, ns: &str) -> kube::Result<Vec<Value>> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), ns, &kind.resource);
    if let Evaluator::Count(_) = Evaluator::of(&kind.resource.group, &kind.resource.plural) {
        let items = api.list_metadata(&ListParams::default()).await?.items;
        return Ok(items.into_iter().map(|item| json!({"metadata": {"name": item.metadata.name}})).collect());
    }
    let items = api.list(&ListParams::default()).await?.items;
    Ok(items.into_iter().filter_map(|item| serde_json::to_value(item).ok()).collect())
}

fn hard(quota: &ResourceQuota) -> Amounts {
    quota.spec.as_ref().and_then(|spec| spec.hard.as_ref()).map(amounts).unwrap_or_default()
}

/// The status that says what was counted; none when it says so already. What could not be counted stays as it was.
fn status(quota: &ResourceQuota, counted: &Amounts) -> Option<ResourceQuotaStatus> {
    let hard = hard(quota);
    let old = quota.status.clone().unwrap_or_default();
    let parsed = |of: &Option<BTreeMap<String, ApiQuantity>>| of.as_ref().map(amounts);
    let before = parsed(&old.used);
    let mut used = before.clone().unwrap_or_default();
    used.extend(counted.iter().map(|(name, quantity)| (name.clone(), *quantity)));
    used.retain(|name, _| hard.contains_key(name));
    if parsed(&old.hard).as_ref() == Some(&hard) && before.as_ref() == Some(&used) {
        return None;
    }
    let written = |all: &Amounts| all.iter().map(|(name, quantity)| (name.clone(), ApiQuantity(quantity.to_string()))).collect();
    Some(ResourceQuotaStatus { hard: Some(written(&hard)), used: Some(written(&used)) })
}

#[cfg(test)]
mod tests {
    use kube_rules::Quantity;

    use super::*;

    #[test]
    fn a_status_follows_from_what_was_counted() {
        let counted = |all: &[(&str, &str)]| all.iter().map(|(name, text)| (name.to_string(), Quantity::parse(text).unwrap())).collect::<Amounts>();
        for (name, status_before, counts, expected) in [
            ("new", Value::Null, &[("pods", "2")][..], Some(json!({"hard": {"pods": "5", "cpu": "1"}, "used": {"pods": "2"}}))),
            ("counted", json!({"hard": {"pods": "5", "cpu": "1000m"}, "used": {"pods": "2", "cpu": "500m"}}), &[("pods", "2"), ("cpu", "0.5")], None),
            (
                "less",
                json!({"hard": {"pods": "5", "cpu": "1"}, "used": {"pods": "2", "cpu": "500m"}}),
                &[("pods", "1")],
                Some(json!({"hard": {"pods": "5", "cpu": "1"}, "used": {"pods": "1", "cpu": "500m"}})),
            ),
            (
                "another specification",
                json!({"hard": {"pods": "4", "secrets": "1"}, "used": {"pods": "2", "secrets": "1"}}),
                &[("pods", "2"), ("cpu", "0")],
                Some(json!({"hard": {"pods": "5", "cpu": "1"}, "used": {"pods": "2", "cpu": "0"}})),
            ),
        ] {
            let quota: ResourceQuota =
                serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": {"hard": {"pods": "5", "cpu": "1"}}, "status": status_before}))
                    .unwrap();
            let found = status(&quota, &counted(counts)).map(|status| serde_json::to_value(status).unwrap());
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn a_quota_is_counted_again_when_its_status_falls_behind() {
        let row = |status: Value| Row::new(&serde_json::from_value(json!({"spec": {"hard": {"pods": "5"}}, "status": status})).unwrap()).unwrap();
        assert!(!row(Value::Null).is_counted);
        assert!(!row(json!({"hard": {"pods": "4"}, "used": {"pods": "1"}})).is_counted);
        let one = row(json!({"hard": {"pods": "5"}, "used": {"pods": "1"}}));
        assert!(one.is_counted);
        assert_eq!(one, row(json!({"hard": {"pods": "5"}, "used": {"pods": "2"}})), "what admission adds is no reason");
    }

    #[test]
    fn a_pods_charge_follows_its_scope_and_the_resources_that_it_has() {
        let charge = |spec: Value, cpu: &str| {
            let resources = json!({"requests": {"cpu": cpu}});
            let status =
                json!({"containerStatuses": [{"name": "c", "ready": true, "restartCount": 0, "image": "", "imageID": "", "resources": resources}]});
            PodRow::new(&serde_json::from_value(json!({"spec": spec, "status": status})).unwrap()).charge
        };
        let (plain, bounded) = (json!({"containers": []}), json!({"containers": [], "activeDeadlineSeconds": 5}));
        assert_eq!(charge(plain.clone(), "1"), charge(plain.clone(), "1"));
        assert_ne!(charge(plain.clone(), "1"), charge(plain.clone(), "2"));
        assert_ne!(charge(plain, "1"), charge(bounded, "1"));
    }

    #[test]
    fn pods_that_end_or_go_give_back() {
        let (_, pod) = crate::testing::pod("a", |_| {});
        let (_, ended) = crate::testing::pod("a", |row| row.phase = "Succeeded".to_owned());
        let (_, deleting) = crate::testing::pod("a", |row| row.deleting = true);
        let (_, resized) = crate::testing::pod("a", |row| row.charge += 1);
        for (old, new, expected) in [
            (None, Some(&pod), false),
            (Some(&pod), Some(&pod), false),
            (Some(&pod), Some(&ended), true),
            (Some(&pod), Some(&deleting), true),
            (Some(&ended), None, true),
            (Some(&pod), Some(&resized), true),
        ] {
            assert_eq!(gives_back(old.map(AsRef::as_ref), new.map(AsRef::as_ref)), expected);
        }
    }
}
