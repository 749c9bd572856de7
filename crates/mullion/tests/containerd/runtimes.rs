//! Which of containerd's runtimes a pod gets, and what it is refused.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::cluster::{Cluster, container};
use crate::image::IMAGE;

/// A second handler: runc, with a directory of its own for what it knows of its containers.
pub const HANDLER: &str = "other";
pub const ROOT: &str = "/run/other-runc";

/// Whether the second handler has a pod's container.
fn is_other(status: &Value) -> bool {
    let id = container(status, "c")["containerID"].as_str().and_then(|id| id.strip_prefix("containerd://")).expect("a container of containerd");
    let known = |root: &str| Path::new(root).join("k8s.io").join(id).is_dir();
    let (usual, other) = (known("/run/containerd/runc"), known(ROOT));
    assert_ne!(usual, other, "one of them has it");
    other
}

pub async fn a_runtime_class_chooses_the_handler(cluster: Arc<Cluster>) {
    let class =
        |name: &str, handler: &str| json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": handler});
    cluster.create_whole(class("other", HANDLER)).await;
    cluster.create_whole(class("absent", "absent-handler")).await;
    let containers = json!([{"name": "c", "command": ["sleep", "1000"]}]);
    cluster.pod("class-none", json!({"containers": containers})).await;
    cluster.pod("class-other", json!({"runtimeClassName": "other", "containers": containers})).await;
    cluster.pod("class-absent", json!({"runtimeClassName": "absent", "containers": containers})).await;
    assert!(!is_other(&cluster.until_ready("class-none").await));
    assert!(is_other(&cluster.until_ready("class-other").await));
    assert_eq!(cluster.exec("class-other", "c", "echo inside").await, "inside\n");
    cluster.until_event("class-absent", "no runtime for \"absent-handler\" is configured").await;
    assert_eq!(cluster.status("class-absent").await["phase"], "Pending");
}

/// containerd has them from 2.0 on.
pub async fn users_of_their_own_are_refused_by_a_runtime_without_them(cluster: Arc<Cluster>) {
    cluster.pod("own-users", json!({"hostUsers": false, "containers": [{"name": "c", "command": ["sleep", "1000"]}]})).await;
    let why = "FailedCreatePodSandBox: Failed to create pod sandbox: can't set `spec.hostUsers: false`, runtime does not support user namespaces";
    cluster.until_event("own-users", why).await;
    let status = cluster.status("own-users").await;
    assert_eq!((status["phase"].as_str(), container(&status, "c")["containerID"].as_str()), (Some("Pending"), None), "{status}");
}

/// containerd has volumes of images from 2.1 on, and announces mounts that are read-only all the way down from 2.0 on.
pub async fn mounts_that_the_runtime_cannot_make_are_refused(cluster: Arc<Cluster>) {
    let with = |volume: Value, mount: Value| {
        let mut mount = mount;
        mount["name"] = json!("v");
        mount["mountPath"] = json!("/v");
        let mut volume = volume;
        volume["name"] = json!("v");
        json!({"volumes": [volume], "containers": [{"name": "c", "command": ["sleep", "1000"], "volumeMounts": [mount]}]})
    };
    let image = json!({"image": {"reference": IMAGE, "pullPolicy": "IfNotPresent"}});
    cluster.pod("image-volume", with(image, json!({}))).await;
    let recursive = |mode: &str| with(json!({"emptyDir": {}}), json!({"readOnly": true, "recursiveReadOnly": mode}));
    cluster.pod("recursive", recursive("Enabled")).await;
    cluster.pod("if-possible", recursive("IfPossible")).await;
    let refused = async |pod: &str| {
        let waits = |status: &Value| {
            container(status, "c")["state"]["waiting"]["reason"].as_str().is_some_and(|reason| reason.starts_with("CreateContainer"))
        };
        let status = cluster.until_status(pod, "its refusal", waits).await;
        container(&status, "c")["state"]["waiting"]["message"].as_str().unwrap_or_default().to_owned()
    };
    let message = refused("recursive").await;
    let why = "failed to resolve recursive read-only mode: volume \"v\" requested recursive read-only mode, but it is not supported by the runtime";
    assert_eq!(message, why);
    let message = refused("image-volume").await;
    // It takes the image for a directory of the node that has no name.
    assert!(message.contains("failed to mkdir \"\""), "{message}");
    cluster.until_ready("if-possible").await;
    assert_eq!(cluster.exec("if-possible", "c", "touch /v/x 2>/dev/null || echo fixed").await, "fixed\n");
}
