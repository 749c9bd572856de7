//! A node changes from upstream's kubelet to this agent while pods run.

use std::collections::HashMap;

use cri::v1;
use host::NodeOs;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::common::World;
use crate::common::runtime::{Container, Sandbox};

const IMAGE: &str = "registry.k8s.io/e2e-test-images/agnhost:2.63.0";

/// What upstream's kubelet 1.36.2 wrote about the container of [`spec`], which had restarted twice.
const ANNOTATIONS: [(&str, &str); 7] = [
    ("io.kubernetes.container.hash", "8cd7e80f"),
    ("io.kubernetes.container.ports", r#"[{"name":"http","containerPort":8080,"protocol":"TCP"},{"containerPort":9090,"protocol":"UDP"}]"#),
    ("io.kubernetes.container.preStopHandler", r#"{"httpGet":{"path":"/healthz","port":"http","scheme":"HTTP"}}"#),
    ("io.kubernetes.container.restartCount", "2"),
    ("io.kubernetes.container.terminationMessagePath", "/dev/termination-log"),
    ("io.kubernetes.container.terminationMessagePolicy", "File"),
    ("io.kubernetes.pod.terminationGracePeriod", "5"),
];

fn spec() -> serde_json::Value {
    json!({
        "terminationGracePeriodSeconds": 5,
        "containers": [{"name": "c", "image": IMAGE,
            "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}, {"containerPort": 9090, "protocol": "UDP"}],
            "lifecycle": {"preStop": {"httpGet": {"path": "/healthz", "port": "http"}}}}],
    })
}

/// Puts the pod into the runtime and the API as upstream's kubelet left it.
async fn leave(world: &World) {
    let uid = world.pods().get("web").await.unwrap().metadata.uid.unwrap();
    leave_in_runtime(world, "web", &uid, &[("kubernetes.io/config.seen", "2026-11-25T03:47:09.324Z"), ("kubernetes.io/config.source", "api")]);
    let status = json!({"status": {"phase": "Running", "podIP": "192.168.1.77", "podIPs": [{"ip": "192.168.1.77"}], "containerStatuses": [{
        "name": "c", "image": IMAGE, "imageID": "", "ready": true, "started": true, "restartCount": 2, "containerID": "fake://running",
        "state": {"running": {"startedAt": "2026-11-25T03:47:12Z"}}}]}});
    world.pods().patch_status("web", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

fn leave_in_runtime(world: &World, name: &str, uid: &str, annotations: &[(&str, &str)]) {
    let text = |pairs: &[(&str, &str)]| pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<HashMap<_, _>>();
    let labels = text(&[("io.kubernetes.pod.name", name), ("io.kubernetes.pod.namespace", "default"), ("io.kubernetes.pod.uid", uid)]);
    let logs = format!("/var/log/pods/default_{name}_{uid}");
    // Its file names are random.
    let message = format!("/var/lib/kubelet/pods/{uid}/containers/c/cd3eacce");
    for (path, content) in [(&message, "ended under another agent"), (&format!("{logs}/c/2.log"), "")] {
        let path = world.runtime.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    let now = jiff::Timestamp::now().as_nanosecond() as i64;
    let sandbox = Sandbox {
        id: "theirs".into(),
        config: v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata { name: name.into(), uid: uid.into(), namespace: "default".into(), attempt: 0 }),
            log_directory: logs,
            labels: labels.clone(),
            annotations: text(annotations),
            ..Default::default()
        },
        ready: true,
        created_at: now,
        ip: "192.168.1.77".into(),
    };
    let mut container_labels = labels;
    container_labels.insert("io.kubernetes.container.name".into(), "c".into());
    let container = Container {
        id: "running".into(),
        sandbox: "theirs".into(),
        config: v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata { name: "c".into(), attempt: 2 }),
            image: Some(v1::ImageSpec { image: IMAGE.into(), ..Default::default() }),
            mounts: vec![v1::Mount { container_path: "/dev/termination-log".into(), host_path: message, ..Default::default() }],
            labels: container_labels,
            annotations: text(&ANNOTATIONS),
            log_path: "c/2.log".into(),
            ..Default::default()
        },
        state: v1::ContainerState::ContainerRunning,
        created_at: now,
        started_at: now,
        finished_at: 0,
        exit_code: 0,
        stopped_with: None,
        stop_signal: None,
    };
    let mut state = world.runtime.state.lock().unwrap();
    state.images.insert(IMAGE.into());
    state.sandboxes.insert("theirs".into(), sandbox);
    state.containers.insert("running".into(), container);
}

#[tokio::test]
async fn pods_of_upstreams_kubelet_go_on() {
    let mut world = World::new().await;
    world.os = NodeOs::Linux;
    std::fs::create_dir_all(world.drive().join("etc")).unwrap();
    world.pod("web", spec()).await;
    leave(&world).await;
    world.start_agent();
    world.eventually("node Ready", async || world.node_is_ready().await).await;
    // The agent has looked at the pod once its status says which generation it is of.
    let status = world.until("web", "the agent's own status", |s| !s["observedGeneration"].is_null()).await;
    let c = &status["containerStatuses"][0];
    assert_eq!((c["containerID"].as_str(), c["restartCount"].as_i64(), c["ready"].as_bool()), (Some("fake://running"), Some(2), Some(true)));
    assert_eq!(status["podIP"], "192.168.1.77");
    assert_eq!(world.runtime.state.lock().unwrap().named("c").len(), 1, "nothing was restarted");

    world.runtime.exit("running", 3);
    let restarted = |s: &serde_json::Value| s["containerStatuses"][0]["restartCount"] == 3 && s["containerStatuses"][0]["ready"] == true;
    let status = world.until("web", "its next run", restarted).await;
    let last = &status["containerStatuses"][0]["lastState"]["terminated"];
    assert_eq!((last["exitCode"].as_i64(), last["message"].as_str()), (Some(3), Some("ended under another agent")));
    // What this agent writes is what upstream's would read.
    let next = world.runtime.state.lock().unwrap().named("c").pop().unwrap().config;
    assert_eq!((next.log_path.as_str(), next.metadata.unwrap().attempt), ("c/3.log", 3));
    let written = |key: &str| serde_json::from_str(&next.annotations[key]).unwrap_or_else(|_| json!(next.annotations[key]));
    for (key, theirs) in ANNOTATIONS {
        let theirs = if key.ends_with("restartCount") { json!(3) } else { serde_json::from_str(theirs).unwrap_or_else(|_| json!(theirs)) };
        assert_eq!(written(key), theirs, "{key}");
    }
    assert_eq!(next.annotations.len(), ANNOTATIONS.len(), "{:?}", next.annotations);
}

/// What upstream's kubelet makes of the manifest of [`manifest`], in one release.
const STATIC_UID: &str = "9c3f6c2ab35cd5d4f1b9f6f1a3e1d0c7";

fn manifest(grace: u32) -> String {
    let mut spec = spec();
    spec["terminationGracePeriodSeconds"] = grace.into();
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec}).to_string()
}

#[tokio::test]
async fn static_pods_of_upstreams_kubelet_go_on_until_their_manifest_changes() {
    let mut world = World::new().await;
    world.os = NodeOs::Linux;
    let manifests = world.drive().join("etc/kubernetes/manifests");
    std::fs::create_dir_all(&manifests).unwrap();
    std::fs::write(manifests.join("web.yaml"), manifest(5)).unwrap();
    world.static_pods.path = "/etc/kubernetes/manifests".into();
    let notes = [
        ("kubernetes.io/config.hash", STATIC_UID),
        ("kubernetes.io/config.seen", "2026-11-25T03:47:09.324Z"),
        ("kubernetes.io/config.source", "file"),
    ];
    leave_in_runtime(&world, "web-win01", STATIC_UID, &notes);
    world.start_agent();
    let running = |s: &serde_json::Value| s["containerStatuses"][0]["ready"] == true;
    let status = world.until("web-win01", "a mirror that is Running", running).await;
    assert_eq!((&status["containerStatuses"][0]["containerID"], &status["podIP"]), (&json!("fake://running"), &json!("192.168.1.77")));
    let mirrored =
        async |world: &World| world.pods().get("web-win01").await.unwrap().metadata.annotations.unwrap()["kubernetes.io/config.mirror"].clone();
    assert_eq!(mirrored(&world).await, STATIC_UID, "a mirror that upstream's kubelet made stays");

    // It is the same pod for the next agent, too.
    world.stop_agent().await;
    world.start_agent();
    world.eventually("node Ready", async || world.node_is_ready().await).await;
    world.until("web-win01", "the pod Running", running).await;
    assert_eq!(world.runtime.state.lock().unwrap().named("c").len(), 1, "nothing was restarted");

    // A manifest that changes while no agent runs is another pod.
    world.stop_agent().await;
    std::fs::write(manifests.join("web.yaml"), manifest(4)).unwrap();
    world.start_agent();
    let other = |s: &serde_json::Value| running(s) && s["containerStatuses"][0]["containerID"] != "fake://running";
    world.until("web-win01", "its next pod", other).await;
    assert_ne!(mirrored(&world).await, STATIC_UID);
    let state = world.runtime.state.lock().unwrap();
    assert!(state.sandboxes.get("theirs").is_none_or(|theirs| !theirs.ready), "the old sandbox has ended");
}
