//! Evicts pods from nodes whose NoExecute taints they do not, or no longer, tolerate.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::Context as _;
use cluster::{Client, EventRecorder, EventType, Key, is_conflict, is_not_found};
use jiff::Timestamp;
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
    view::{NodeRow, PodRow, Views},
};

/// Since when pods tolerate the taints of their node for a while only, by uid.
#[derive(Clone, Default)]
struct Clocks(Arc<Mutex<HashMap<Key, (String, Timestamp)>>>);

impl Clocks {
    fn all(&self) -> MutexGuard<'_, HashMap<Key, (String, Timestamp)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the time of a pod began; from `now` on if it has not begun yet.
    fn began(&self, key: &Key, uid: &str, now: Timestamp) -> Timestamp {
        let mut all = self.all();
        let clock = all.entry(key.clone()).or_insert_with(|| (uid.to_owned(), now));
        if clock.0 != uid {
            *clock = (uid.to_owned(), now);
        }
        clock.1
    }

    fn runs(&self, key: &Key) -> bool {
        self.all().contains_key(key)
    }

    /// Answers whether the time of a pod ran.
    fn stop(&self, key: &Key) -> bool {
        self.all().remove(key).is_some()
    }
}

struct Context {
    client: Client,
    views: Views,
    events: EventRecorder,
    clocks: Clocks,
}

/// Runs until `shutdown`.
pub(super) async fn run(client: Client, views: Views, shutdown: CancellationToken) {
    let (queue, clocks) = (Queue::<Key>::default(), Clocks::default());
    let (keys, nodes, running) = (queue.clone(), views.nodes.clone(), clocks.clone());
    views.pods.subscribe(move |change| {
        let is_tainted = |pod: &PodRow| nodes.get(Key::cluster(&pod.node)).is_some_and(|node| node.taints.iter().any(taints::evicts));
        if running.runs(change.key) || change.new.is_some_and(|pod| !pod.node.is_empty() && is_tainted(pod)) {
            keys.add(change.key.clone());
        }
    });
    let (keys, pods) = (queue.clone(), views.pods.clone());
    views.nodes.subscribe(move |change| {
        let evicting = |node: &NodeRow| node.taints.iter().filter(|taint| taints::evicts(taint)).cloned().collect::<Vec<Taint>>();
        let before = change.old.map(|node| evicting(node)).unwrap_or_default();
        // A node that is gone leaves its pods to their collector.
        if change.new.is_some_and(|node| evicting(node) != before) {
            keys.extend(pods.snapshot().into_iter().filter(|(_, pod)| pod.node == change.key.name).map(|(key, _)| key));
        }
    });
    let events = EventRecorder::new(client.clone(), "taint-eviction-controller", "");
    let context = Arc::new(Context { client, views, events, clocks });
    queue.run("tainteviction", 8, shutdown, |key| sync(context.clone(), key)).await;
}

/// How a pod bears the taints of its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bears {
    All,
    /// For so long.
    For(Duration),
    Not,
}

/// How a pod with these tolerations bears these taints: the shortest of the times for which it tolerates any of them counts.
fn bears(all: &[Taint], tolerations: &[Toleration]) -> Bears {
    let mut shortest: Option<u64> = None;
    for taint in all.iter().filter(|taint| taints::evicts(taint)) {
        let mut fitting = tolerations.iter().filter(|one| taints::tolerates(one, taint)).peekable();
        if fitting.peek().is_none() {
            return Bears::Not;
        }
        let times = fitting.filter_map(|toleration| toleration.toleration_seconds).map(|seconds| u64::try_from(seconds).unwrap_or_default());
        shortest = times.chain(shortest).min();
    }
    shortest.map_or(Bears::All, |seconds| Bears::For(Duration::from_secs(seconds)))
}

async fn sync(context: Arc<Context>, key: Key) -> anyhow::Result<Next> {
    let Some(pod) = context.views.pods.get(&key) else {
        if context.clocks.stop(&key) {
            tell(&context, &key, "", "Cancelling deletion of Pod");
        }
        return Ok(Next::Change);
    };
    let Some(node) = context.views.nodes.get(Key::cluster(&pod.node)).filter(|_| !pod.deleting) else { return Ok(Next::Change) };
    match bears(&node.taints, &pod.tolerations) {
        Bears::All => {
            if context.clocks.stop(&key) {
                tell(&context, &key, &pod.uid, "Cancelling deletion of Pod");
            }
            return Ok(Next::Change);
        }
        Bears::For(time) => {
            let now = Timestamp::now();
            let passed = Duration::try_from(now.duration_since(context.clocks.began(&key, &pod.uid, now))).unwrap_or_default();
            if let Some(left) = time.checked_sub(passed).filter(|left| !left.is_zero()) {
                return Ok(Next::Within(left));
            }
        }
        Bears::Not => {}
    }
    evict(&context, &key, &pod).await?;
    context.clocks.stop(&key);
    Ok(Next::Change)
}

fn tell(context: &Context, key: &Key, uid: &str, what: &str) {
    let object = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(key.ns.clone()),
        name: Some(key.name.clone()),
        uid: (!uid.is_empty()).then(|| uid.to_owned()),
        ..Default::default()
    };
    context.events.event(&object, EventType::Normal, "TaintManagerEviction", None, format!("{what} {key}"));
}

async fn evict(context: &Context, key: &Key, pod: &PodRow) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &key.ns);
    let condition = json!({
        "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
        "message": "Taint manager: deleting due to NoExecute taint", "lastTransitionTime": super::now(),
    });
    let patch = json!({"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}});
    let gone = |error: &kube::Error| is_not_found(error) || is_conflict(error);
    match pods.patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(patch)).await {
        Err(error) if gone(&error) => return Ok(()),
        other => other.with_context(|| format!("noting why {key} goes"))?,
    };
    tell(context, key, &pod.uid, "Marking for deletion Pod");
    let preconditions = Some(Preconditions { uid: Some(pod.uid.clone()), resource_version: None });
    match pods.delete(&key.name, &DeleteParams { preconditions, ..DeleteParams::default() }).await {
        Err(error) if !gone(&error) => Err(error).with_context(|| format!("evicting {key}")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_bear_taints_as_their_tolerations_say() {
        let taint = |key: &str| Taint { key: key.into(), effect: "NoExecute".into(), ..Default::default() };
        let tolerate = |key: &str, seconds: Option<i64>| Toleration {
            key: Some(key.into()),
            operator: Some("Exists".into()),
            toleration_seconds: seconds,
            ..Default::default()
        };
        let harmless = Taint { effect: "NoSchedule".into(), ..taint("a") };
        let seconds = |count| Bears::For(Duration::from_secs(count));
        for (what, taints, tolerations, expected) in [
            ("no taint", vec![], vec![], Bears::All),
            ("a taint about scheduling only", vec![harmless], vec![], Bears::All),
            ("not tolerated", vec![taint("a")], vec![tolerate("b", None)], Bears::Not),
            ("tolerated for ever", vec![taint("a")], vec![tolerate("a", None)], Bears::All),
            ("tolerated for a while", vec![taint("a")], vec![tolerate("a", Some(300))], seconds(300)),
            ("the shortest counts", vec![taint("a"), taint("b")], vec![tolerate("a", Some(300)), tolerate("b", Some(5))], seconds(5)),
            ("of one taint too", vec![taint("a")], vec![tolerate("a", None), tolerate("a", Some(7))], seconds(7)),
            ("one of two not tolerated", vec![taint("a"), taint("b")], vec![tolerate("a", None)], Bears::Not),
            ("negative is at once", vec![taint("a")], vec![tolerate("a", Some(-5))], seconds(0)),
        ] {
            assert_eq!(bears(&taints, &tolerations), expected, "{what}");
        }
    }

    #[test]
    fn the_time_of_a_pod_begins_when_it_is_first_seen_to_run() {
        let (clocks, key) = (Clocks::default(), Key::new("a", "web"));
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!((clocks.began(&key, "1", at(10)), clocks.began(&key, "1", at(20))), (at(10), at(10)));
        assert_eq!(clocks.began(&key, "2", at(30)), at(30), "another pod of the name");
        assert!(clocks.runs(&key) && clocks.stop(&key) && !clocks.stop(&key) && !clocks.runs(&key));
        assert_eq!(clocks.began(&key, "2", at(40)), at(40), "it begins anew after it was stopped");
    }
}
