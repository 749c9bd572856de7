//! In-place resizes on a simulated Linux node.

use host::NodeOs;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::common::World;
use crate::started;

fn both(cpu: &str, memory: &str) -> Value {
    json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}})
}

fn pod(cpu: &str, memory: &str) -> Value {
    json!({"containers": [{"name": "c", "image": "serve:1", "resources": both(cpu, memory)}]})
}

async fn resize(world: &World, name: &str, cpu: &str, memory: &str) {
    let patch = json!({"spec": {"containers": [{"name": "c", "resources": both(cpu, memory)}]}});
    world.pods().patch_subresource("resize", name, &PatchParams::default(), &Patch::Strategic(patch)).await.unwrap();
}

/// (reason, message) of a condition; None where there is none.
fn condition(status: &Value, type_: &str) -> Option<(String, String)> {
    let text = |c: &Value, k: &str| c[k].as_str().unwrap_or_default().to_owned();
    let all = status["conditions"].as_array()?;
    all.iter().find(|c| c["type"] == type_).map(|c| (text(c, "reason"), text(c, "message")))
}

/// Waits until the pod's container has these resources and nothing is under way.
async fn until_resized(world: &World, name: &str, generation: i64, cpu: &str) -> Value {
    let done = |s: &Value| {
        let c = &s["containerStatuses"][0];
        s["observedGeneration"] == generation
            && condition(s, "PodResizePending").is_none()
            && condition(s, "PodResizeInProgress").is_none()
            && c["resources"]["limits"]["cpu"] == cpu
            && c["ready"] == true
    };
    world.until(name, "resized", done).await
}

async fn linux_world() -> World {
    let mut world = World::new().await;
    world.os = NodeOs::Linux;
    started(world).await
}

#[tokio::test]
async fn a_running_pod_gets_the_resources_that_it_asks_for() {
    let mut world = linux_world().await;
    world.pod("web", pod("100m", "64Mi")).await;
    let status = world.until_running("web").await;
    assert_eq!(status["containerStatuses"][0]["allocatedResources"], json!({"cpu": "100m", "memory": "64Mi"}));
    assert_eq!(status["containerStatuses"][0]["resources"], both("100m", "64Mi"));
    resize(&world, "web", "200m", "32Mi").await;
    let status = until_resized(&world, "web", 2, "200m").await;
    assert_eq!(status["containerStatuses"][0]["restartCount"], 0);
    assert_eq!(status["containerStatuses"][0]["resources"]["limits"]["memory"], "32Mi");
    let updates = std::mem::take(&mut world.runtime.state.lock().unwrap().updates);
    assert_eq!(updates, [("c".to_owned(), 32 << 20, 10_000), ("c".to_owned(), 32 << 20, 20_000)], "memory, then processors");
    world
        .eventually("ResizeCompleted", async || world.events().await.iter().any(|e| e.starts_with("ResizeCompleted: Pod resize completed: {")))
        .await;

    // The agent's restart changes nothing, and a resize goes on after it.
    world.stop_agent().await;
    resize(&world, "web", "300m", "32Mi").await;
    world.start_agent();
    until_resized(&world, "web", 3, "300m").await;
    assert_eq!(world.runtime.state.lock().unwrap().updates, [("c".to_owned(), 32 << 20, 30_000)]);
}

#[tokio::test]
async fn a_resize_waits_for_resources_and_for_memory_that_is_in_use() {
    let world = linux_world().await;
    world.pod("large", pod("3", "64Mi")).await;
    world.pod("small", pod("500m", "64Mi")).await;
    world.until_running("large").await;
    world.until_running("small").await;
    resize(&world, "small", "2", "64Mi").await;
    let status = world.until("small", "deferred", |s| condition(s, "PodResizePending").is_some()).await;
    let (reason, message) = condition(&status, "PodResizePending").unwrap();
    assert_eq!(reason, "Deferred");
    assert_eq!(message, "Node didn't have enough resource: cpu, requested: 2000, used: 3000, capacity: 4000");
    assert_eq!(status["containerStatuses"][0]["allocatedResources"]["cpu"], "500m");
    world.eventually("ResizeDeferred", async || world.events().await.iter().any(|e| e.starts_with("ResizeDeferred: Pod resize Deferred: {"))).await;
    resize(&world, "large", "1", "64Mi").await;
    until_resized(&world, "large", 2, "1").await;
    until_resized(&world, "small", 2, "2").await;

    world.runtime.state.lock().unwrap().memory_used = 48 << 20;
    resize(&world, "small", "2", "32Mi").await;
    let failed = |s: &Value| condition(s, "PodResizeInProgress").is_some_and(|c| c.0 == "Error");
    let status = world.until("small", "failed", failed).await;
    let message = condition(&status, "PodResizeInProgress").unwrap().1;
    let expected = "cannot decrease memory limits: attempting to set container \"c\" memory limit (33554432) below current usage (50331648)";
    assert_eq!(message, expected);
    assert_eq!(status["containerStatuses"][0]["resources"]["limits"]["memory"], "64Mi");
}

#[tokio::test]
async fn a_pods_resources_as_a_whole_change_in_place() {
    let world = linux_world().await;
    let containers = json!([{"name": "c", "image": "serve:1"}]);
    world.pod("web", json!({"resources": both("100m", "64Mi"), "containers": containers})).await;
    let status = world.until_running("web").await;
    assert_eq!(status["allocatedResources"], json!({"cpu": "100m", "memory": "64Mi"}));
    let resize = async |cpu: &str, memory: &str| {
        let patch = json!({"spec": {"resources": both(cpu, memory)}});
        world.pods().patch_subresource("resize", "web", &PatchParams::default(), &Patch::Strategic(patch)).await.unwrap();
    };
    let done = |s: &Value, generation: i64| {
        s["observedGeneration"] == generation && condition(s, "PodResizePending").is_none() && condition(s, "PodResizeInProgress").is_none()
    };
    resize("200m", "32Mi").await;
    let status = world.until("web", "resized", |s| done(s, 2) && s["allocatedResources"]["cpu"] == "200m").await;
    assert_eq!(status["allocatedResources"], json!({"cpu": "200m", "memory": "32Mi"}));
    assert_eq!(status["containerStatuses"][0]["restartCount"], 0);
    world.eventually("ResizeCompleted", async || world.events().await.iter().any(|e| e.starts_with("ResizeCompleted: "))).await;
    // The container has no limits of its own: its pod's hold, and change with them.
    assert_eq!(world.runtime.state.lock().unwrap().updates, [("c".to_owned(), 32 << 20, 10_000), ("c".to_owned(), 32 << 20, 20_000)]);
    assert_eq!(world.runtime.state.lock().unwrap().whole.last(), Some(&(20_000, 32 << 20)));

    // A runtime that does not know the call.
    world.runtime.state.lock().unwrap().refuses.insert("UpdatePodSandboxResources");
    resize("300m", "32Mi").await;
    world.until("web", "resized", |s| done(s, 3) && s["allocatedResources"]["cpu"] == "300m").await;
    assert_eq!(world.runtime.state.lock().unwrap().updates.last(), Some(&("c".to_owned(), 32 << 20, 30_000)));
}
