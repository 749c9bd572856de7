//! Disruption budgets: computes how many pods of each may be evicted now.
//!
//! Inputs: PodDisruptionBudgets, pods and, for shares, what their controllers want. Outputs: the budgets' status, which the API server asks
//! at each eviction, and the condition of pods that were to be disrupted and were not. Mirrors `pkg/controller/disruption`.
//! Guarantees: the status is written over the version it was counted from, so that no eviction in between is forgotten; while the numbers
//! are unknown no disruption is allowed.

mod plan;
mod stale;

use std::{collections::BTreeMap, sync::Arc};

use anyhow::Context as _;
use cluster::{Client, EventRecorder, EventType, Informer, Key, Selection, is_conflict, is_not_found};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{ObjectReference, ReplicationController},
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api,
    api::{PostParams, Resource},
};
use tokio_util::sync::CancellationToken;

use crate::{
    autoscaler::target::Target,
    runner::{Next, Queue},
    view::{Controller, PodRow, Views},
};
use plan::{BudgetRow, Input, plan};

struct Context {
    client: Client,
    views: Views,
    budgets: Informer<BudgetRow>,
    scales: Scales,
    events: EventRecorder,
}

/// What an object that keeps pods wants.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Scale {
    uid: String,
    replicas: i32,
}

impl Scale {
    fn new(meta: &ObjectMeta, replicas: Option<i32>) -> Self {
        Self { uid: meta.uid.clone().unwrap_or_default(), replicas: replicas.unwrap_or(1) }
    }
}

/// Kinds that this controller alone reads for their number of pods.
#[derive(Clone)]
struct Scales {
    stateful_sets: Informer<Scale>,
    replication_controllers: Informer<Scale>,
}

impl Scales {
    fn start(client: &Client, views: &Views) -> Self {
        let all = || Selection::all().of(&views.api);
        Self {
            stateful_sets: Informer::start(Api::<StatefulSet>::all(client.clone()), all(), |set| {
                Some(Scale::new(&set.metadata, set.spec.as_ref().and_then(|spec| spec.replicas)))
            }),
            replication_controllers: Informer::start(Api::<ReplicationController>::all(client.clone()), all(), |controller| {
                Some(Scale::new(&controller.metadata, controller.spec.as_ref().and_then(|spec| spec.replicas)))
            }),
        }
    }

    fn all(&self) -> [&Informer<Scale>; 2] {
        [&self.stateful_sets, &self.replication_controllers]
    }
}

/// Runs the controller until `shutdown`.
pub(crate) async fn run(client: Client, views: Views, shutdown: CancellationToken) {
    let budgets =
        Informer::start(Api::<PodDisruptionBudget>::all(client.clone()), Selection::all().of(&views.api), |budget| Some(BudgetRow::new(budget)));
    let scales = Scales::start(&client, &views);
    tokio::select! {
        () = async { tokio::join!(budgets.synced(), scales.stateful_sets.synced(), scales.replication_controllers.synced()); } => {}
        () = shutdown.cancelled() => return,
    }
    let queue = Queue::<Key>::default();
    watch(&views, &budgets, &queue);
    for informer in scales.all() {
        let (keys, all) = (queue.clone(), budgets.clone());
        informer.subscribe(move |change| {
            if change.old != change.new {
                keys.extend(all.in_namespace(&change.key.ns).into_iter().map(|(key, _)| key));
            }
        });
    }
    let events = EventRecorder::new(client.clone(), "controllermanager", "");
    let stale = stale::run(client.clone(), views.clone(), shutdown.clone());
    let context = Arc::new(Context { client, views, budgets, scales, events });
    tokio::join!(stale, queue.run("disruption", 2, shutdown, |key| sync(context.clone(), key)));
}

fn watch(views: &Views, budgets: &Informer<BudgetRow>, queue: &Queue<Key>) {
    let keys = queue.clone();
    budgets.subscribe(move |change| keys.add(change.key.clone()));
    let (keys, all) = (queue.clone(), budgets.clone());
    views.pods.subscribe(move |change| {
        for (key, budget) in all.in_namespace(&change.key.ns) {
            if [change.old, change.new].into_iter().flatten().any(|pod| budget.selector.matches(&pod.labels)) {
                keys.add(key);
            }
        }
    });
    let (keys, all) = (queue.clone(), budgets.clone());
    views.replica_sets.subscribe(move |change| {
        if change.old.map(|set| set.replicas) != change.new.map(|set| set.replicas) {
            keys.extend(all.in_namespace(&change.key.ns).into_iter().map(|(key, _)| key));
        }
    });
    let (keys, all) = (queue.clone(), budgets.clone());
    views.deployments.subscribe(move |change| keys.extend(all.in_namespace(&change.key.ns).into_iter().map(|(key, _)| key)));
}

async fn sync(context: Arc<Context>, key: Key) -> anyhow::Result<Next> {
    let Some(budget) = context.budgets.get(&key) else { return Ok(Next::Change) };
    let api: Api<PodDisruptionBudget> = Api::namespaced(context.client.clone(), &key.ns);
    let Some(mut live) = api.get_opt(&key.name).await? else { return Ok(Next::Change) };
    // An eviction may have been noted that the informer does not show yet.
    let row = BudgetRow::new(&live);
    if row.uid != budget.uid {
        return Ok(Next::Change);
    }
    let object = live.object_ref(&());
    let pods = context.views.pods.in_namespace(&key.ns).into_iter();
    let pods: Vec<_> = pods.filter(|(_, pod)| row.selector.matches(&pod.labels)).map(|(key, pod)| (key.name, pod)).collect();
    if pods.is_empty() {
        context.events.event(&object, EventType::Normal, "NoPods", None, "No matching pods found");
    }
    let scale = if row.needs_scale() { scale(&context, &key, &object, &pods).await } else { Ok(0) };
    if let Err(why) = &scale {
        let message = format!("Failed to calculate the number of expected pods: {why}");
        context.events.event(&object, EventType::Warning, "CalculateExpectedPodCountFailed", None, message);
    }
    let plan = plan(&Input { budget: &row, pods: &pods, scale: &scale, now: Timestamp::now() });
    for name in &plan.stayed {
        let message = format!("Pod was expected by PDB {key} to be deleted but it wasn't");
        context.events.event(&pod_reference(&key, name, &pods), EventType::Warning, "NotDeleted", None, message);
    }
    if plan.status != row.status {
        live.status = Some(plan.status);
        match api.replace_status(&key.name, &PostParams::default(), &live).await {
            Err(error) if is_not_found(&error) => return Ok(Next::Change),
            Err(error) if is_conflict(&error) => anyhow::bail!("{key} changed while it was counted; it will be counted again"),
            other => other.map(|_| ()).context("writing the budget's status")?,
        }
    }
    Ok(plan.recheck.map_or(Next::Change, Next::Within))
}

fn pod_reference(key: &Key, name: &str, pods: &[(String, Arc<PodRow>)]) -> ObjectReference {
    let uid = pods.iter().find(|(pod, _)| pod == name).map(|(_, pod)| pod.uid.clone());
    ObjectReference { kind: Some("Pod".to_owned()), namespace: Some(key.ns.clone()), name: Some(name.to_owned()), uid, ..Default::default() }
}

/// How many pods the controllers of these pods want, all together.
async fn scale(context: &Context, key: &Key, object: &ObjectReference, pods: &[(String, Arc<PodRow>)]) -> Result<i32, String> {
    if pods.iter().any(|(_, pod)| pod.controller.is_none()) {
        let message = "Pods selected by this PodDisruptionBudget were found to be unmanaged. As a result, the status of the PDB cannot be calculated \
                       correctly, which may result in undefined behavior. To account for these pods please set \".spec.minAvailable\" field of the PDB \
                       to an integer value.";
        context.events.event(object, EventType::Warning, "UnmanagedPods", None, message);
    }
    // A pod of each controller.
    let controllers: BTreeMap<&Controller, &str> = pods.iter().filter_map(|(name, pod)| Some((pod.controller.as_ref()?, name.as_str()))).collect();
    let mut wanted: BTreeMap<String, i32> = BTreeMap::new();
    for (controller, pod) in controllers {
        let found = replicas_of(context, key, controller).await?;
        wanted.extend([found.ok_or_else(|| format!("found no controllers for pod {pod:?}"))?]);
    }
    Ok(wanted.values().sum())
}

/// A controller's uid and number of replicas, unless it is gone; a Deployment stands for all its ReplicaSets.
async fn replicas_of(context: &Context, key: &Key, controller: &Controller) -> Result<Option<(String, i32)>, String> {
    let group = controller.version.split_once('/').map_or("", |(group, _)| group);
    let scales = match (group, controller.kind.as_str()) {
        ("apps", "ReplicaSet") => return Ok(replicas_of_set(context, key, controller)),
        ("apps", "StatefulSet") => &context.scales.stateful_sets,
        ("", "ReplicationController") => &context.scales.replication_controllers,
        _ => return replicas_of_any(context, key, controller).await,
    };
    let scale = scales.get(Key::new(&key.ns, &controller.name)).filter(|scale| scale.uid == controller.uid);
    Ok(scale.map(|scale| (scale.uid.clone(), scale.replicas)))
}

/// A ReplicaSet's number of replicas, or its Deployment's.
fn replicas_of_set(context: &Context, key: &Key, controller: &Controller) -> Option<(String, i32)> {
    let set = context.views.replica_sets.get(Key::new(&key.ns, &controller.name)).filter(|set| set.uid == controller.uid)?;
    let deployment = Views::controller_key(set.controller.as_ref(), "Deployment", &key.ns).and_then(|key| context.views.deployments.get(key));
    Some(deployment.map_or_else(|| (set.uid.clone(), set.replicas), |deployment| (deployment.uid.clone(), deployment.replicas)))
}

/// Of a kind that only its subresource `scale` tells something about (upstream: `getScaleController`).
async fn replicas_of_any(context: &Context, key: &Key, controller: &Controller) -> Result<Option<(String, i32)>, String> {
    let target = Target::find(&context.client, &key.ns, &controller.version, &controller.kind, &controller.name).await?;
    if !target.is_scalable {
        return Err(format!("{} does not implement the scale subresource", target.resource));
    }
    let scale = target.scale_if_there().await?.filter(|scale| scale.metadata.uid.as_ref() == Some(&controller.uid));
    Ok(scale.map(|scale| (controller.uid.clone(), scale.spec.and_then(|spec| spec.replicas).unwrap_or_default())))
}
