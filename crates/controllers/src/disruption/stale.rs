//! Pods that say that they are about to be disrupted, and are still there (upstream: `syncStalePodDisruption`).

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use cluster::{Client, Key, is_conflict, is_not_found};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Time};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    runner::{Next, Queue},
    view::{PodRow, Views},
};

/// How long the deletion may take to follow (upstream: `stalePodDisruptionTimeout`).
const TIMEOUT: SignedDuration = SignedDuration::from_secs(120);

/// Takes the condition back until `shutdown`.
pub(super) async fn run(client: Client, views: Views, shutdown: CancellationToken) {
    let queue = Queue::<Key>::default();
    let keys = queue.clone();
    views.pods.subscribe(move |change| {
        if change.new.is_some_and(|pod| left(pod, Timestamp::now()).is_some()) {
            keys.add(change.key.clone());
        }
    });
    let views = Arc::new(views);
    queue.run("stale-disruption", 1, shutdown, |key| sync(client.clone(), views.clone(), key)).await;
}

/// How long the pod's deletion may still take to follow; none of a pod that goes or does not say that it will.
fn left(pod: &PodRow, now: Timestamp) -> Option<Duration> {
    let since = pod.disrupted.filter(|_| !pod.deleting && !pod.is_finished())?;
    Some(Duration::try_from((since + TIMEOUT).duration_since(now)).unwrap_or_default())
}

async fn sync(client: Client, views: Arc<Views>, key: Key) -> anyhow::Result<Next> {
    let Some(pod) = views.pods.get(&key) else { return Ok(Next::Change) };
    let now = Timestamp::now();
    match left(&pod, now) {
        None => return Ok(Next::Change),
        Some(left) if !left.is_zero() => return Ok(Next::Within(left)),
        Some(_) => {}
    }
    let now = Time(Timestamp::from_second(now.as_second()).context("reading the clock")?);
    let condition = json!({"type": "DisruptionTarget", "status": "False", "reason": Value::Null, "message": Value::Null, "lastTransitionTime": now});
    let patch = json!({"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}});
    let pods: Api<Pod> = Api::namespaced(client, &key.ns);
    match pods.patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(patch)).await {
        Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(Next::Change),
        other => other.map(|_| Next::Change).with_context(|| format!("noting that {key} was not disrupted")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pod;

    #[test]
    fn a_deletion_has_two_minutes_to_follow() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let left = |second: i64, change: fn(&mut PodRow)| left(&pod("web", change).1, at(second)).map(|left| left.as_secs());
        let told = |row: &mut PodRow| row.disrupted = Some(Timestamp::from_second(100).unwrap());
        assert_eq!([left(130, told), left(220, told), left(900, told)], [Some(90), Some(0), Some(0)]);
        assert_eq!(left(900, |_| {}), None);
        let gone = |row: &mut PodRow| (row.disrupted, row.deleting) = (Some(Timestamp::UNIX_EPOCH), true);
        let ended = |row: &mut PodRow| (row.disrupted, row.phase) = (Some(Timestamp::UNIX_EPOCH), "Failed".into());
        assert_eq!([left(900, gone), left(900, ended)], [None, None]);
    }
}
