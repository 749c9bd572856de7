//! Images of pods: pulled, refused, and removed when nobody uses them.

use std::time::Duration;

use serde_json::json;

use crate::common::World;
use crate::{ready_world, started};

#[tokio::test]
async fn images_are_pulled_or_refused() {
    let world = ready_world().await;
    world.pod("new", json!({"containers": [{"name": "c", "image": "serve-new:1"}]})).await;
    world.until_running("new").await;
    world.pod("gone", json!({"containers": [{"name": "c", "image": "missing:1"}]})).await;
    let reason = |s: &serde_json::Value| s["containerStatuses"][0]["state"]["waiting"]["reason"].clone();
    let status = world.until("gone", "ErrImagePull", |s| reason(s) == "ErrImagePull").await;
    assert!(status["containerStatuses"][0]["state"]["waiting"]["message"].as_str().unwrap().contains("not found"));
    let backed = world.until("gone", "ImagePullBackOff", |s| reason(s) == "ImagePullBackOff").await;
    let message = backed["containerStatuses"][0]["state"]["waiting"]["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("Back-off pulling image \"missing:1\": ErrImagePull: "), "{message}");
    world.pod("misnamed", json!({"containers": [{"name": "c", "image": "UPPER/case"}]})).await;
    world.until("misnamed", "InvalidImageName", |s| reason(s) == "InvalidImageName").await;
    world.until_event("InspectFailed: Failed to apply default image tag \"UPPER/case\": couldn't parse image name \"UPPER/case\": invalid reference format: repository name must be lowercase").await;
    world.pod("never", json!({"containers": [{"name": "c", "image": "absent:1", "imagePullPolicy": "Never"}]})).await;
    world.until("never", "ErrImageNeverPull", |s| reason(s) == "ErrImageNeverPull").await;
    world.pod("build", json!({"containers": [{"name": "c", "image": "mcr.microsoft.com/windows/nanoserver:1809"}]})).await;
    let status = world.until("build", "Failed", |s| s["phase"] == "Failed").await;
    let message = status["message"].as_str().unwrap();
    assert!(
        message.starts_with("Pod was rejected: ") && message.contains("17763") && message.contains("20348") && message.contains("ltsc2022"),
        "{message}"
    );
    let mut pulls = world.runtime.state.lock().unwrap().pulls.clone();
    // What is missing is tried again after 10 s.
    pulls.dedup();
    assert_eq!(pulls, ["serve-new:1", "missing:1"]);
}

#[tokio::test]
async fn unused_images_go_when_their_disk_is_full_and_used_ones_stay() {
    let mut world = World::new().await;
    // Every disk is that full.
    let soon = Duration::from_millis(100);
    world.images = kubelet::ImageCollection { high_percent: 0, low_percent: 0, min_age: Duration::from_secs(1), interval: soon, ..world.images };
    let world = started(world).await;
    world.pod("web", json!({})).await;
    world.until_running("web").await;
    world.runtime.state.lock().unwrap().images.insert("unused:1".into());
    let images = || world.runtime.state.lock().unwrap().images.iter().cloned().collect::<Vec<_>>();
    world.eventually("the unused image gone", async || !images().contains(&"unused:1".to_owned())).await;
    assert_eq!(images(), ["serve:1"]);
}
