//! Evicts pods from nodes whose NoExecute taints they do not, or no longer, tolerate.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use cluster::{Client, EventRecorder, EventType, Key, is_conflict, is_not_found};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ObjectReference, Pod, Taint, Toleration};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use kube_rules::taints;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    runner::{Next, Queue},
    view::{PodRow, Views},
};

struct Context {
    client: Client,
    views: Views,
    events: EventRecorder,
    /// Tolerated time counts from here at the earliest.
    started: Timestamp,
}

/// Runs until `shutdown`.
pub(super) async fn run(client: Client, views: Views, events: EventRecorder, shutdown: CancellationToken) {
    let queue = Queue::<Key>::default();
    let (keys, nodes) = (queue.clone(), views.nodes.clone());
    views.pods.subscribe(move |change| {
        let Some(pod) = change.new.filter(|pod| !pod.node.is_empty()) else { return };
        let tainted = nodes.get(Key::cluster(&pod.node)).is_some_and(|node| node.taints.iter().any(taints::evicts));
        if tainted {
            keys.add(change.key.clone());
        }
    });
    let (keys, pods) = (queue.clone(), views.pods.clone());
    views.nodes.subscribe(move |change| {
        let Some(node) = change.new else { return };
        let same = change.old.is_some_and(|old| old.taints == node.taints);
        if !same && node.taints.iter().any(taints::evicts) {
            keys.extend(pods.snapshot().into_iter().filter(|(_, pod)| pod.node == change.key.name).map(|(key, _)| key));
        }
    });
    let context = Arc::new(Context { client, views, events, started: Timestamp::now() });
    queue.run("tainteviction", 8, shutdown, |key| sync(context.clone(), key)).await;
}

/// When a pod has to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leave {
    Never,
    At(Timestamp),
}

/// When a pod with these tolerations leaves a node with these taints; tolerated time counts from the newest taint, or from `started`.
fn leave(all: &[Taint], tolerations: &[Toleration], started: Timestamp) -> Leave {
    let mut earliest: Option<Option<i64>> = None;
    let mut since = started;
    for taint in all.iter().filter(|taint| taints::evicts(taint)) {
        let mut fitting = tolerations.iter().filter(|one| taints::tolerates(one, taint)).peekable();
        if fitting.peek().is_none() {
            return Leave::At(started);
        }
        since = since.max(taint.time_added.as_ref().map_or(started, |time| time.0));
        for toleration in fitting {
            let seconds = toleration.toleration_seconds.map(|seconds| seconds.max(0));
            earliest = Some(match (earliest.flatten(), seconds) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            });
        }
    }
    match earliest.flatten() {
        Some(seconds) => Leave::At(since + SignedDuration::from_secs(seconds)),
        None => Leave::Never,
    }
}

async fn sync(context: Arc<Context>, key: Key) -> anyhow::Result<Next> {
    let Some(pod) = context.views.pods.get(&key).filter(|pod| !pod.deleting) else { return Ok(Next::Change) };
    let Some(node) = context.views.nodes.get(Key::cluster(&pod.node)) else { return Ok(Next::Change) };
    match leave(&node.taints, &pod.tolerations, context.started) {
        Leave::Never => Ok(Next::Change),
        Leave::At(time) => match Duration::try_from(time.duration_since(Timestamp::now())) {
            Ok(left) if !left.is_zero() => Ok(Next::Within(left)),
            _ => evict(&context, &key, &pod).await,
        },
    }
}

async fn evict(context: &Context, key: &Key, pod: &PodRow) -> anyhow::Result<Next> {
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &key.ns);
    let condition = json!({
        "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
        "message": "Taint manager: deleting due to NoExecute taint", "lastTransitionTime": super::now(),
    });
    let patch = json!({"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}});
    let gone = |error: &kube::Error| is_not_found(error) || is_conflict(error);
    match pods.patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(patch)).await {
        Err(error) if gone(&error) => return Ok(Next::Change),
        other => other.with_context(|| format!("noting why {key} goes"))?,
    };
    let object = ObjectReference {
        kind: Some("Pod".to_owned()),
        namespace: Some(key.ns.clone()),
        name: Some(key.name.clone()),
        uid: Some(pod.uid.clone()),
        ..Default::default()
    };
    context.events.event(&object, EventType::Normal, "TaintManagerEviction", None, format!("Marking for deletion Pod {key}"));
    let preconditions = Some(Preconditions { uid: Some(pod.uid.clone()), resource_version: None });
    match pods.delete(&key.name, &DeleteParams { preconditions, ..DeleteParams::default() }).await {
        Err(error) if !gone(&error) => Err(error).with_context(|| format!("evicting {key}")),
        _ => Ok(Next::Change),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn pods_leave_when_their_toleration_ends() {
        let taint = |key: &str, added: i64| Taint { key: key.into(), effect: "NoExecute".into(), time_added: Some(Time(at(added))), value: None };
        let tolerate = |key: &str, seconds: Option<i64>| Toleration {
            key: Some(key.into()),
            operator: Some("Exists".into()),
            toleration_seconds: seconds,
            ..Default::default()
        };
        let harmless = Taint { effect: "NoSchedule".into(), ..taint("a", 0) };
        for (what, taints, tolerations, expected) in [
            ("no taint", vec![], vec![], Leave::Never),
            ("a taint about scheduling only", vec![harmless], vec![], Leave::Never),
            ("not tolerated", vec![taint("a", 900)], vec![tolerate("b", None)], Leave::At(at(1000))),
            ("tolerated for ever", vec![taint("a", 900)], vec![tolerate("a", None)], Leave::Never),
            ("tolerated for a while", vec![taint("a", 2000)], vec![tolerate("a", Some(300))], Leave::At(at(2300))),
            ("an old taint counts from the start", vec![taint("a", 10)], vec![tolerate("a", Some(300))], Leave::At(at(1300))),
            (
                "the shortest counts",
                vec![taint("a", 2000), taint("b", 2000)],
                vec![tolerate("a", Some(300)), tolerate("b", Some(5))],
                Leave::At(at(2005)),
            ),
            ("one of two not tolerated", vec![taint("a", 2000), taint("b", 2000)], vec![tolerate("a", None)], Leave::At(at(1000))),
            ("negative is at once", vec![taint("a", 2000)], vec![tolerate("a", Some(-5))], Leave::At(at(2000))),
        ] {
            assert_eq!(leave(&taints, &tolerations, at(1000)), expected, "{what}");
        }
    }
}
