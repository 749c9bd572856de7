//! Moves the pods of a node away, as `kubectl drain` does: no new ones come, and those that are there are evicted.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{EvictParams, ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use thiserror_ext::AsReport as _;
use tokio::time::Instant;

/// How often refused evictions are tried again, and pods looked at, as kubectl.
const AGAIN: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_secs(1);
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Which pods may be evicted that would not come back as they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Those that no controller makes again.
    pub is_forced: bool,
    /// Those with data in emptyDir volumes.
    pub deletes_empty_dir_data: bool,
}

/// Why pods stay.
#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    #[error("evicting pods of node {node:?} would lose them or their data: {}", .pods.join("; "))]
    Blocked { node: String, pods: Vec<String> },
    #[error("cannot {operation} of node {node:?}")]
    Request {
        operation: &'static str,
        node: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("pods are still on node {node:?} after {}s: {}; the node takes no new pods: kubectl uncordon {node} undoes it", .within.as_secs(), .pods.join(", "))]
    Late { node: String, within: Duration, pods: Vec<String> },
}

/// A pod that is to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Victim {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// The pods that are to go.
///
/// # Errors
/// A line for each pod that must not go without an option.
pub fn victims(pods: &[Pod], options: Options) -> Result<Vec<Victim>, Vec<String>> {
    let (mut victims, mut blocked) = (Vec::new(), Vec::new());
    for pod in pods {
        let meta = &pod.metadata;
        let controller = meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
        let is_mirror = meta.annotations.as_ref().is_some_and(|all| all.contains_key(MIRROR));
        if is_mirror || controller.is_some_and(|owner| owner.kind == "DaemonSet") {
            continue;
        }
        let of = |text: &Option<String>| text.clone().unwrap_or_default();
        let victim = Victim { namespace: of(&meta.namespace), name: of(&meta.name), uid: of(&meta.uid) };
        let is_over = pod.status.as_ref().and_then(|status| status.phase.as_deref()).is_some_and(|phase| matches!(phase, "Succeeded" | "Failed"));
        let has_data = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()).any(|volume| volume.empty_dir.is_some());
        let (namespace, name) = (&victim.namespace, &victim.name);
        if controller.is_none() && !options.is_forced && !is_over {
            blocked.push(format!("{namespace}/{name} has no controller that makes it again (--force)"));
        } else if has_data && !options.deletes_empty_dir_data && !is_over {
            blocked.push(format!("{namespace}/{name} has data in an emptyDir volume (--delete-emptydir-data)"));
        }
        victims.push(victim);
    }
    if blocked.is_empty() { Ok(victims) } else { Err(blocked) }
}

/// Cordons the node, evicts its pods, and waits until they are gone.
///
/// # Errors
/// [`DrainError`]; nothing is evicted when a pod must not go.
pub async fn drain(client: &Client, node: &str, options: Options, within: Duration) -> Result<(), DrainError> {
    let failed = |operation| move |source| DrainError::Request { operation, node: node.to_owned(), source: Box::new(source) };
    let start = Instant::now();
    let all = Api::<Pod>::all(client.clone());
    let of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let pods = all.list(&of_node).await.map_err(failed("list the pods"))?.items;
    let mut left = victims(&pods, options).map_err(|pods| DrainError::Blocked { node: node.to_owned(), pods })?;
    let cordon = Patch::Merge(json!({"spec": {"unschedulable": true}}));
    Api::<Node>::all(client.clone()).patch(node, &PatchParams::default(), &cordon).await.map_err(failed("cordon the object"))?;
    let mut evicted: Vec<String> = Vec::new();
    let mut tried: Option<Instant> = None;
    while !left.is_empty() {
        if tried.is_none_or(|at| at.elapsed() >= AGAIN) {
            for victim in left.iter().filter(|victim| !evicted.contains(&victim.uid)).cloned().collect::<Vec<_>>() {
                match Api::<Pod>::namespaced(client.clone(), &victim.namespace).evict(&victim.name, &EvictParams::default()).await {
                    Ok(_) => evicted.push(victim.uid),
                    Err(error) if cluster::is_not_found(&error) => evicted.push(victim.uid),
                    // A disruption budget: it is asked again.
                    Err(kube::Error::Api(status)) if status.code == 429 => {
                        tracing::info!(pod = victim.name, reason = status.message, "the eviction is refused for now");
                    }
                    Err(source) => return Err(failed("evict a pod")(source)),
                }
            }
            tried = Some(Instant::now());
        }
        match all.list(&of_node).await {
            Ok(pods) => left.retain(|victim| pods.items.iter().any(|pod| pod.metadata.uid.as_deref() == Some(&victim.uid))),
            Err(error) => tracing::warn!(error = %error.as_report(), "the pods of the node cannot be listed"),
        }
        if !left.is_empty() {
            if start.elapsed() >= within {
                let pods = left.into_iter().map(|victim| format!("{}/{}", victim.namespace, victim.name)).collect();
                return Err(DrainError::Late { node: node.to_owned(), within, pods });
            }
            tokio::time::sleep(LOOK).await;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::{Arc, Mutex};

    use serde_json::Value;
    use test_lab::api::{Reply, fake_client};

    use super::*;

    fn pod(name: &str, owner: Option<&str>, spec: Value) -> Value {
        let owners: Vec<Value> =
            owner.into_iter().map(|kind| json!({"apiVersion": "v1", "kind": kind, "name": "o", "uid": "u", "controller": true})).collect();
        json!({"apiVersion": "v1", "kind": "Pod", "spec": spec,
               "metadata": {"name": name, "namespace": "d", "uid": format!("uid-{name}"), "ownerReferences": owners}})
    }

    fn read(pods: &[Value]) -> Vec<Pod> {
        pods.iter().map(|pod| serde_json::from_value(pod.clone()).unwrap()).collect()
    }

    #[test]
    fn pods_that_would_lose_something_need_an_option() {
        let plain = json!({"containers": []});
        let data = json!({"containers": [], "volumes": [{"name": "v", "emptyDir": {}}]});
        let mut mirror = pod("mirror", Some("Node"), plain.clone());
        mirror["metadata"]["annotations"] = json!({MIRROR: "x"});
        let mut done = pod("done", None, data.clone());
        done["status"] = json!({"phase": "Succeeded"});
        let harmless = [pod("web", Some("ReplicaSet"), plain.clone()), pod("proxy", Some("DaemonSet"), data.clone()), mirror, done];
        let names = |victims: Vec<Victim>| victims.into_iter().map(|victim| victim.name).collect::<Vec<_>>();
        assert_eq!(names(victims(&read(&harmless), Options::default()).unwrap()), ["web", "done"]);
        let alone = read(&[pod("alone", None, plain)]);
        let blocked = victims(&alone, Options::default()).unwrap_err();
        assert!(blocked[0].starts_with("d/alone has no controller"), "{blocked:?}");
        assert_eq!(names(victims(&alone, Options { is_forced: true, ..Options::default() }).unwrap()), ["alone"]);
        let cache = read(&[pod("cache", Some("ReplicaSet"), data)]);
        assert!(victims(&cache, Options { is_forced: true, ..Options::default() }).unwrap_err()[0].contains("--delete-emptydir-data"));
        assert_eq!(names(victims(&cache, Options { deletes_empty_dir_data: true, ..Options::default() }).unwrap()), ["cache"]);
    }

    /// An API server with two pods, one of which a disruption budget keeps for a while.
    #[tokio::test(start_paused = true)]
    async fn refused_evictions_are_tried_again_until_all_pods_are_gone() {
        let left = Arc::new(Mutex::new((BTreeSet::from(["a", "b"]), 2, false)));
        let state = left.clone();
        let client = fake_client(move |seen| {
            let mut state = state.lock().unwrap();
            match (seen.method.as_str(), seen.path.as_str()) {
                ("PATCH", "/api/v1/nodes/n") => {
                    state.2 = seen.body["spec"]["unschedulable"] == true;
                    Reply::json(200, json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}))
                }
                ("GET", "/api/v1/pods") => {
                    let items: Vec<Value> = state.0.iter().map(|name| pod(name, Some("ReplicaSet"), json!({"containers": []}))).collect();
                    Reply::json(200, json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": items}))
                }
                ("POST", "/api/v1/namespaces/d/pods/b/eviction") if state.1 > 0 => {
                    state.1 -= 1;
                    Reply::status(429, "Cannot evict pod as it would violate the pod's disruption budget.")
                }
                ("POST", path) => {
                    let name = path.trim_start_matches("/api/v1/namespaces/d/pods/").trim_end_matches("/eviction");
                    assert!(state.2, "the node is cordoned first");
                    assert!(state.0.remove(name), "{path}");
                    Reply::json(201, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
                }
                other => panic!("{other:?}"),
            }
        });
        drain(&client, "n", Options::default(), Duration::from_secs(60)).await.unwrap();
        assert!(left.lock().unwrap().0.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_that_takes_too_long_names_the_pods() {
        let client = fake_client(|seen| match seen.method.as_str() {
            "PATCH" => Reply::json(200, json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})),
            "GET" => Reply::json(
                200,
                json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [pod("b", Some("Job"), json!({"containers": []}))]}),
            ),
            _ => Reply::status(429, "budget"),
        });
        let error = drain(&client, "n", Options::default(), Duration::from_secs(30)).await.unwrap_err();
        assert!(error.to_string().contains("after 30s: d/b"), "{error}");
    }
}
