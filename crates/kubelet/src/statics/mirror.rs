//! Mirror pods: the API objects that show a node's static pods (upstream pkg/kubelet/pod/mirror_client.go).

use std::sync::Arc;
use std::time::Duration;

use cluster::Key;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Api;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube_rules::static_pod;
use thiserror_ext::AsReport as _;

use crate::agent::{Agent, uid};

/// After a call that failed.
const RETRY: Duration = Duration::from_secs(10);

/// What the API holds of this node's pods under one name.
#[derive(Clone, Debug, PartialEq)]
struct Shown {
    key: Key,
    uid: String,
    /// The manifest that it shows; None for a pod that is no mirror.
    hash: Option<String>,
    deleting: bool,
}

/// A static pod: its name, its hash, and whether it is to stay.
type Wanted = (Key, String, bool);

/// What is to be done with mirror pods.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    Create(Key),
    Delete { key: Key, uid: String },
}

/// Brings the mirrors to the static pods. A mirror of another manifest goes before its successor comes; that of a pod that ends stays until
/// the pod has ended, so that its last status is seen.
fn plan(wanted: &[Wanted], shown: &[Shown]) -> Vec<Action> {
    let mut actions = Vec::new();
    for (key, hash, stays) in wanted {
        match shown.iter().find(|s| s.key == *key) {
            None if *stays => actions.push(Action::Create(key.clone())),
            Some(s) if *stays && s.hash.is_some() && (s.deleting || s.hash.as_ref() != Some(hash)) => {
                actions.push(Action::Delete { key: key.clone(), uid: s.uid.clone() });
            }
            _ => {}
        }
    }
    let orphan = |s: &&Shown| s.hash.is_some() && !wanted.iter().any(|(key, _, _)| *key == s.key);
    actions.extend(shown.iter().filter(orphan).map(|s| Action::Delete { key: s.key.clone(), uid: s.uid.clone() }));
    actions
}

fn shown(pod: &Pod) -> Shown {
    Shown {
        key: Key::of(pod),
        uid: uid(pod),
        hash: static_pod::mirrored(pod).map(str::to_owned),
        deleting: pod.metadata.deletion_timestamp.is_some(),
    }
}

/// The mirror of a static pod, owned by its Node.
fn object(pod: &Pod, node: &str, node_uid: &str) -> Pod {
    let mut mirror = pod.clone();
    let meta = &mut mirror.metadata;
    let hash = meta.uid.take().unwrap_or_default();
    meta.annotations.get_or_insert_default().insert(static_pod::MIRROR.to_owned(), hash);
    meta.owner_references = Some(vec![OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.to_owned(),
        uid: node_uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: None,
    }]);
    mirror.status = None;
    mirror
}

/// Keeps the mirrors true, for ever.
pub(crate) async fn keep(agent: Arc<Agent>) {
    agent.pods.synced().await;
    agent.statics.read().await;
    let mut node = agent.node.changed();
    loop {
        let failed = Box::pin(pass(&agent)).await;
        tokio::select! {
            () = agent.statics.changed.notified() => {}
            () = tokio::time::sleep(RETRY), if failed => {}
            // It may wait for its Node.
            Ok(()) = node.changed(), if failed => {}
        }
    }
}

/// One pass. Returns whether something has to be tried again.
async fn pass(agent: &Agent) -> bool {
    let statics = agent.statics.shown();
    let pods: Vec<Arc<Pod>> = agent.pods.snapshot().into_iter().map(|(_, pod)| pod).collect();
    for (key, pod, _) in &statics {
        // A mirror that has just come, or that somebody changed, gets the status.
        if pods.iter().any(|p| Key::of(&**p) == *key && static_pod::mirrored(p) == Some(&uid(pod))) {
            agent.statuses.resend(&uid(pod));
        }
    }
    let wanted: Vec<Wanted> = statics.iter().map(|(key, pod, stays)| (key.clone(), uid(pod), *stays)).collect();
    let mut failed = false;
    for action in plan(&wanted, &pods.iter().map(|pod| shown(pod)).collect::<Vec<_>>()) {
        failed |= !apply(agent, &action).await;
    }
    failed
}

/// Returns whether the action was carried out.
async fn apply(agent: &Agent, action: &Action) -> bool {
    match action {
        Action::Create(key) => {
            let node = agent.node.get(Key::cluster(&agent.side.node_name)).filter(|node| node.metadata.deletion_timestamp.is_none());
            // It is created once the Node is.
            let Some(node_uid) = node.and_then(|node| node.metadata.uid.clone()) else { return false };
            let Some(pod) = agent.statics.get(key) else { return true };
            let mirror = object(&pod, &agent.side.node_name, &node_uid);
            match Api::<Pod>::namespaced(agent.client.clone(), &key.ns).create(&PostParams::default(), &mirror).await {
                Ok(_) => true,
                Err(error) => {
                    tracing::warn!(pod = %key, error = %error.as_report(), "cannot create a mirror pod; its static pod runs, and this is tried again");
                    false
                }
            }
        }
        Action::Delete { key, uid } => {
            let params = DeleteParams {
                grace_period_seconds: Some(0),
                preconditions: Some(Preconditions { uid: Some(uid.clone()), resource_version: None }),
                ..DeleteParams::default()
            };
            match Api::<Pod>::namespaced(agent.client.clone(), &key.ns).delete(&key.name, &params).await {
                Err(error) if !cluster::is_not_found(&error) && !cluster::is_conflict(&error) => {
                    tracing::warn!(pod = %key, error = %error.as_report(), "cannot delete a mirror pod; trying again");
                    false
                }
                _ => true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn mirrors_follow_their_static_pods() {
        let key = || Key::new("ns", "web-n");
        let mirror = |hash: Option<&str>, deleting| Shown { key: key(), uid: "m".into(), hash: hash.map(str::to_owned), deleting };
        let wanted = |hash: &str, stays| vec![(key(), hash.to_owned(), stays)];
        let delete = || vec![Action::Delete { key: key(), uid: "m".into() }];
        for (what, wanted, shown, want) in [
            ("it is missing", wanted("h", true), vec![], vec![Action::Create(key())]),
            ("it is there", wanted("h", true), vec![mirror(Some("h"), false)], vec![]),
            ("it shows another manifest", wanted("h", true), vec![mirror(Some("old"), false)], delete()),
            ("somebody deletes it", wanted("h", true), vec![mirror(Some("h"), true)], delete()),
            ("the name is taken by a pod of the API", wanted("h", true), vec![mirror(None, false)], vec![]),
            ("the pod ends", wanted("h", false), vec![mirror(Some("h"), false)], vec![]),
            ("the pod ends without one", wanted("h", false), vec![], vec![]),
            ("the pod has ended", vec![], vec![mirror(Some("h"), false)], delete()),
            ("a pod of the API", vec![], vec![mirror(None, false)], vec![]),
        ] {
            assert_eq!(plan(&wanted, &shown), want, "{what}");
        }
    }

    #[test]
    fn a_mirror_is_owned_by_its_node_and_says_its_hash() {
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": "web-n", "namespace": "ns", "uid": "h"}, "status": {"phase": "Running"}})).unwrap();
        let mirror = serde_json::to_value(object(&pod, "n", "node-uid")).unwrap();
        let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "node-uid", "controller": true}]);
        assert_eq!(mirror["metadata"]["ownerReferences"], owner);
        assert_eq!((&mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"], &mirror["metadata"]["uid"]), (&json!("h"), &json!(null)));
        assert_eq!(mirror.get("status"), None);
    }
}
