//! Images as volumes: pulled by the agent, mounted by the runtime.

use host::NodeOs;
use serde_json::{Value, json};

use crate::common::World;

fn spec(reference: &str, mount: Value) -> Value {
    json!({"volumes": [{"name": "model", "image": {"reference": reference, "pullPolicy": "IfNotPresent"}}],
        "containers": [{"name": "c", "image": "serve:1", "volumeMounts": [mount]}]})
}

#[tokio::test]
async fn an_image_is_pulled_and_mounted_and_stays_while_it_is_used() {
    let mut world = World::new().await;
    world.os = NodeOs::Linux;
    world.runtime.state.lock().unwrap().images.insert("unused:1".into());
    std::fs::create_dir_all(world.drive().join("etc")).unwrap();
    world.start_agent();
    world.pod("web", spec("reg.io/model:1", json!({"name": "model", "mountPath": "/model"}))).await;
    world.until_running("web").await;
    let mounts = world.runtime.state.lock().unwrap().named("c").remove(0).config.mounts;
    let mount = mounts.iter().find(|m| m.container_path == "/model").unwrap();
    let image = mount.image.clone().unwrap();
    assert_eq!((image.image.as_str(), image.user_specified_image.as_str()), ("reg.io/model:1", "reg.io/model:1"));
    assert!(mount.readonly && mount.host_path.is_empty());
    world.until_event("Pulling: Pulling image \"reg.io/model:1\"").await;

    // An image that is there and not used yet is removed too, when it need not stay for a while: what removes images starts when both are
    // used. It does not wait for static pods whose source is away.
    world.stop_agent().await;
    world.static_pods.url = "http://127.0.0.1:1/".into();
    let soon = std::time::Duration::from_millis(100);
    world.images = kubelet::ImageCollection { high_percent: 0, low_percent: 0, min_age: std::time::Duration::ZERO, interval: soon, ..world.images };
    world.start_agent();
    let has = |name: &str| world.runtime.state.lock().unwrap().images.contains(name);
    world.eventually("the unused image gone", async || !has("unused:1")).await;
    assert!(has("reg.io/model:1") && has("serve:1"), "both are used");

    // A missing image of a volume keeps its container, and the back-off names it.
    world.pod("lost", spec("missing:1", json!({"name": "model", "mountPath": "/model"}))).await;
    let reason = |s: &Value| s["containerStatuses"][0]["state"]["waiting"]["reason"].clone();
    let status = world.until("lost", "ImagePullBackOff", |s| reason(s) == "ImagePullBackOff").await;
    let message = status["containerStatuses"][0]["state"]["waiting"]["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("Back-off pulling image \"missing:1\": ErrImagePull: "), "{message}");
    world.until_event("BackOff: Back-off pulling image \"missing:1\"").await;
    let mut part = spec("reg.io/model:1", json!({"name": "model", "mountPath": "/part", "subPath": "a"}));
    part["os"] = json!({"name": "linux"});
    part["containers"][0]["lifecycle"] = json!({"stopSignal": "SIGUSR1"});
    world.pod("part", part).await;
    world.until_running("part").await;
    let signal = |s: &Value| s["containerStatuses"][0]["stopSignal"].clone();
    world.until("part", "its stop signal", |s| signal(s) == "SIGUSR1").await;
    let shown = |path: &str| {
        let runs = world.runtime.state.lock().unwrap().named("c");
        runs.iter().any(|run| run.config.mounts.iter().any(|m| m.container_path == path && m.image.as_ref() == Some(&image)))
    };
    assert!(shown("/model") && shown("/part"));
    let parts = world.runtime.state.lock().unwrap().parts.clone();
    assert_eq!(
        parts.last(),
        Some(&cri::Extras { sub_paths: [("/part".to_owned(), "a".to_owned())].into(), stop_signal: cri::Signal::named("SIGUSR1") })
    );
    assert_eq!(parts.first(), Some(&cri::Extras::default()));
}

#[tokio::test]
async fn a_windows_node_refuses_image_volumes_by_name() {
    let mut world = World::new().await;
    world.start_agent();
    world.pod("web", spec("reg.io/model:1", json!({"name": "model", "mountPath": "C:\\model"}))).await;
    world
        .eventually("FailedMount", async || {
            world
                .events()
                .await
                .iter()
                .any(|e| e.starts_with("FailedMount: MountVolume.SetUp failed for volume \"model\" : volumes of type image are not supported"))
        })
        .await;
}
