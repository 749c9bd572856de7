//! Pod garbage collection: pods of missing nodes, deleted pods of nodes out of service, pods deleted before they got a node, and finished
//! pods beyond the limit.
//!
//! Inputs: pods, nodes. Outputs: deletions. Mirrors `pkg/controller/podgc`.
//! Guarantees: a node has to be missing for 40 s before its pods go, in the API itself and not only in our view.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::Context as _;
use cluster::{Client, Key, is_conflict, is_not_found};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    runner::{Next, Queue},
    view::{NodeRow, PodRow, Views},
};
use kube_rules::readiness;

/// Says that a node is shut down and will not end its pods itself.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// How many ended pods may stay (upstream: `--terminated-pod-gc-threshold`).
const THRESHOLD: usize = 12_500;
/// How long a node has to be missing (upstream: `quarantineTime`).
const QUARANTINE: Duration = Duration::from_secs(40);
/// How often to look although nothing changed (upstream: `gcCheckPeriod`).
const PERIOD: Duration = Duration::from_secs(20);

struct Context {
    client: Client,
    views: Views,
    /// Since when each node that pods name is missing.
    missing: Mutex<HashMap<String, Instant>>,
}

/// Runs the controller until `shutdown`.
pub(crate) async fn run(client: Client, views: Views, shutdown: CancellationToken) {
    // One key: the work is one look at everything.
    let queue = Queue::<()>::default();
    queue.add(());
    let keys = queue.clone();
    views.nodes.subscribe(move |change| {
        if change.new.is_none_or(|node| node.taints.iter().any(|taint| taint.key == OUT_OF_SERVICE)) {
            keys.add(());
        }
    });
    let keys = queue.clone();
    views.pods.subscribe(move |change| {
        if change.new.is_some_and(|pod| pod.node.is_empty() && pod.deleting) {
            keys.add(());
        }
    });
    let context = Arc::new(Context { client, views, missing: Mutex::default() });
    queue.run("podgc", 1, shutdown, |()| sync(context.clone())).await;
}

/// Why a pod goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    Ended,
    Orphaned,
    /// Its node is out of service.
    Stranded,
    NeverPlaced,
}

/// Which pods go, with the reason; `gone` are nodes that have been missing for long enough, `out_of_service` those that will not come back.
fn plan(pods: &[(Key, Arc<PodRow>)], gone: &HashSet<String>, out_of_service: &HashSet<String>, threshold: usize) -> Vec<(Key, Reason)> {
    let mut ended: Vec<&(Key, Arc<PodRow>)> = pods.iter().filter(|(_, pod)| pod.is_finished()).collect();
    // Evicted ones first: the others were a controller's. Then the oldest (upstream: `byEvictionAndCreationTimestamp`).
    ended.sort_by_key(|(key, pod)| (!pod.evicted, pod.created, key.name.clone(), key.ns.clone()));
    let surplus = ended.len().saturating_sub(threshold);
    let mut plan: Vec<(Key, Reason)> = ended.iter().take(surplus).map(|(key, _)| (key.clone(), Reason::Ended)).collect();
    for (key, pod) in pods {
        if gone.contains(&pod.node) {
            plan.push((key.clone(), Reason::Orphaned));
        } else if pod.deleting && out_of_service.contains(&pod.node) {
            plan.push((key.clone(), Reason::Stranded));
        } else if pod.node.is_empty() && pod.deleting {
            plan.push((key.clone(), Reason::NeverPlaced));
        }
    }
    plan
}

async fn sync(context: Arc<Context>) -> anyhow::Result<Next> {
    let pods = context.views.pods.snapshot();
    let gone = gone_nodes(&context, &pods).await?;
    let lost = |node: &NodeRow| readiness::ready(&node.conditions).is_none() && node.taints.iter().any(|taint| taint.key == OUT_OF_SERVICE);
    let nodes = context.views.nodes.snapshot().into_iter();
    let out_of_service = nodes.filter(|(_, node)| lost(node)).map(|(key, _)| key.name).collect();
    let mut refused = Ok(Next::Within(PERIOD));
    for (key, reason) in plan(&pods, &gone, &out_of_service, THRESHOLD) {
        let Some(pod) = context.views.pods.get(&key) else { continue };
        tracing::debug!(pod = %key, ?reason, "removing");
        // One that cannot be removed (a webhook refuses it) does not keep the others.
        if let Err(error) = remove(&context, &key, &pod, reason).await {
            refused = Err(error).with_context(|| format!("removing {key}"));
        }
    }
    refused
}

/// Nodes that pods name and that have been missing for the whole quarantine.
async fn gone_nodes(context: &Context, pods: &[(Key, Arc<PodRow>)]) -> anyhow::Result<HashSet<String>> {
    let named = pods.iter().map(|(_, pod)| &pod.node).filter(|node| !node.is_empty());
    let absent: HashSet<String> = named.filter(|node| context.views.nodes.get(Key::cluster(*node)).is_none()).cloned().collect();
    let long: Vec<String> = {
        let mut missing = context.missing.lock().unwrap_or_else(PoisonError::into_inner);
        missing.retain(|node, _| absent.contains(node));
        for node in &absent {
            missing.entry(node.clone()).or_insert_with(Instant::now);
        }
        missing.iter().filter(|(_, since)| since.elapsed() >= QUARANTINE).map(|(node, _)| node.clone()).collect()
    };
    let nodes: Api<Node> = Api::all(context.client.clone());
    let mut gone = HashSet::new();
    for node in long {
        if nodes.get_metadata_opt(&node).await.context("looking for a missing node")?.is_none() {
            gone.insert(node);
        }
    }
    Ok(gone)
}

async fn remove(context: &Context, key: &Key, pod: &PodRow, reason: Reason) -> kube::Result<()> {
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &key.ns);
    // A pod that has not ended gets its last phase, so that a Job counts it.
    if !pod.is_finished() {
        let now = Timestamp::now();
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC",
            "message": "PodGC: node no longer exists", "lastTransitionTime": Time(Timestamp::from_second(now.as_second()).unwrap_or(now)),
        });
        let conditions = if reason == Reason::Orphaned { json!([condition]) } else { json!([]) };
        let patch = json!({"metadata": {"uid": pod.uid}, "status": {"phase": "Failed", "conditions": conditions}});
        match pods.patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(patch)).await {
            Err(error) if is_not_found(&error) || is_conflict(&error) => return Ok(()),
            other => other.map(|_| ())?,
        }
    }
    let preconditions = Some(Preconditions { uid: Some(pod.uid.clone()), resource_version: None });
    match pods.delete(&key.name, &DeleteParams { preconditions, ..DeleteParams::default().grace_period(0) }).await {
        Err(error) if !is_not_found(&error) && !is_conflict(&error) => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pod;

    #[test]
    fn orphaned_unplaced_and_surplus_pods_are_removed() {
        let row = |name: &str, change: fn(&mut PodRow)| {
            let (name, row) = pod(name, change);
            (Key::new("a", name), row)
        };
        let at = |second| Some(Timestamp::from_second(second).unwrap());
        let ended = |name: &str, second: i64| {
            let (key, mut row) = row(name, |row| row.phase = "Succeeded".into());
            Arc::make_mut(&mut row).created = at(second);
            (key, row)
        };
        let mut evicted = ended("evicted", 40);
        Arc::make_mut(&mut evicted.1).evicted = true;
        let pods = [
            ended("young", 30),
            ended("old", 10),
            ended("middle", 20),
            evicted,
            row("orphan", |row| row.node = "gone".into()),
            row("fine", |row| row.node = "win01".into()),
            row("waiting", |_| {}),
            row("dropped", |row| row.deleting = true),
            row("stays", |row| row.node = "off".into()),
            row("stranded", |row| {
                row.node = "off".into();
                row.deleting = true;
            }),
            row("ending", |row| {
                row.node = "win01".into();
                row.deleting = true;
            }),
        ];
        let gone = HashSet::from(["gone".to_owned()]);
        let off = HashSet::from(["off".to_owned()]);
        let removed: Vec<String> = plan(&pods, &gone, &off, 1).iter().map(|(key, reason)| format!("{} {reason:?}", key.name)).collect();
        assert_eq!(removed, ["evicted Ended", "old Ended", "middle Ended", "orphan Orphaned", "dropped NeverPlaced", "stranded Stranded"]);
    }
}
