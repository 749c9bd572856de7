//! Pods end when the node is short of memory or disk, and when they take more local storage than they may.

use std::time::Duration;

use kubelet::{Amount, Eviction, Signal, Threshold};
use serde_json::{Value, json};

use crate::common::World;

async fn world(eviction: Eviction) -> World {
    let mut world = World::new().await;
    world.eviction = Eviction { interval: Duration::from_millis(100), transition: Duration::from_millis(300), ..eviction };
    world.start_agent();
    world.eventually("node Ready", async || world.node_is_ready().await).await;
    world
}

async fn condition(world: &World, type_: &str) -> Value {
    let node = serde_json::to_value(world.node().await).unwrap();
    let all = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    all.into_iter().find(|c| c["type"] == type_).unwrap_or_default()
}

fn pod_condition(status: &Value, type_: &str) -> Value {
    let all = status["conditions"].as_array().cloned().unwrap_or_default();
    all.into_iter().find(|c| c["type"] == type_).unwrap_or_default()
}

#[tokio::test]
async fn a_node_short_of_memory_ends_the_pod_that_takes_most() {
    let hard = Threshold { signal: Signal::Memory, value: Amount::Absolute(1 << 30), grace: None, reclaim: None };
    let world = world(Eviction { thresholds: vec![hard], ..Eviction::default() }).await;
    let with = |request: &str| json!({"containers": [{"name": "c", "image": "serve:1", "resources": {"requests": {"memory": request}}}]});
    world.pod("modest", with("4Gi")).await;
    world.pod("greedy", with("1Gi")).await;
    world.until_running("modest").await;
    world.until_running("greedy").await;
    // Each takes 4 GiB of the node's 8.
    world.runtime.state.lock().unwrap().memory_used = 4 << 30;
    let status = world.until("greedy", "evicted", |s| s["phase"] == "Failed").await;
    assert_eq!(status["reason"], "Evicted");
    let message = "The node was low on resource: memory. Threshold quantity: 1Gi, available: 0. \
                   Container c was using 4Gi, request is 1Gi, has larger consumption of memory. ";
    assert_eq!(status["message"], message);
    let disrupted = pod_condition(&status, "DisruptionTarget");
    assert_eq!((&disrupted["status"], &disrupted["reason"]), (&json!("True"), &json!("TerminationByKubelet")));
    world.until_event(&format!("Evicted: {message}")).await;
    world.until_event("EvictionThresholdMet: Attempting to reclaim memory").await;
    let stopped = world.runtime.state.lock().unwrap().containers.values().find_map(|c| c.stopped_with);
    assert_eq!(stopped, Some(1));
    // The other one alone leaves enough.
    assert_eq!(world.status("modest").await["phase"], "Running");
    world.eventually("relief", async || condition(&world, "MemoryPressure").await["status"] == "False").await;
    world.until_event("NodeHasInsufficientMemory: Node win01 status is now: NodeHasInsufficientMemory").await;
    world.until_event("NodeHasSufficientMemory: Node win01 status is now: NodeHasSufficientMemory").await;
}

#[tokio::test]
async fn a_node_under_pressure_refuses_pods_that_request_nothing() {
    let hour = Some(Duration::from_secs(3600));
    let soft = Threshold { signal: Signal::Memory, value: Amount::Absolute(1 << 30), grace: hour, reclaim: None };
    let world = world(Eviction { thresholds: vec![soft], ..Eviction::default() }).await;
    let requested = json!({"containers": [{"name": "c", "image": "serve:1", "resources": {"requests": {"memory": "1Gi"}}}]});
    world.pod("early", requested.clone()).await;
    world.until_running("early").await;
    world.runtime.state.lock().unwrap().memory_used = 15 << 29;
    world.eventually("pressure", async || condition(&world, "MemoryPressure").await["status"] == "True").await;
    world.pod("late", json!({})).await;
    let status = world.until("late", "refused", |s| s["phase"] == "Failed").await;
    assert_eq!((&status["reason"], &status["message"]), (&json!("Evicted"), &json!("Pod was rejected: The node had condition: [MemoryPressure]. ")));
    world.pod("requested", requested).await;
    world.until_running("requested").await;
    assert_eq!(world.status("early").await["phase"], "Running", "the threshold has its grace");
}

#[tokio::test]
async fn a_volume_that_grows_beyond_its_limit_ends_its_pod() {
    let world = world(Eviction::default()).await;
    let volumes = json!([{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}]);
    let spec = |volumes: &Value| json!({"volumes": volumes, "containers": [{"name": "c", "image": "serve:1", "volumeMounts": [{"name": "v", "mountPath": "C:\\v"}]}]});
    world.pod("grows", spec(&volumes)).await;
    world.pod("free", spec(&json!([{"name": "v", "emptyDir": {}}]))).await;
    for name in ["grows", "free"] {
        world.until_running(name).await;
        let uid = world.pods().get(name).await.unwrap().metadata.uid.unwrap();
        let volume = world.drive().join(format!("var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/v"));
        std::fs::write(volume.join("file"), vec![7; 2 << 20]).unwrap();
    }
    let status = world.until("grows", "evicted", |s| s["phase"] == "Failed").await;
    assert_eq!((&status["reason"], &status["message"]), (&json!("Evicted"), &json!("Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". ")));
    assert_eq!(pod_condition(&status, "DisruptionTarget"), Value::Null, "it has itself to blame");
    assert_eq!(world.status("free").await["phase"], "Running");
}

#[tokio::test]
async fn unused_images_go_before_pods_do() {
    // The disk is that full, for whoever asks.
    let hard = Threshold { signal: Signal::Nodefs, value: Amount::Percent(100.0), grace: None, reclaim: None };
    let mut world = World::new().await;
    world.images = kubelet::ImageCollection { min_age: Duration::ZERO, ..world.images };
    world.eviction = Eviction { thresholds: vec![hard], interval: Duration::from_millis(100), ..Eviction::default() };
    world.runtime.state.lock().unwrap().images.insert("unused:1".into());
    world.pod("web", json!({"containers": [{"name": "c", "image": "serve:1"}]})).await;
    world.start_agent();
    world.eventually("the unused image gone", async || !world.runtime.state.lock().unwrap().images.contains("unused:1")).await;
    world.eventually("pressure", async || condition(&world, "DiskPressure").await["status"] == "True").await;
    let status = world.until("web", "evicted or refused", |s| s["phase"] == "Failed").await;
    assert_eq!(status["reason"], "Evicted");
}

#[tokio::test]
async fn disks_are_judged_while_the_runtime_does_not_say_what_containers_use() {
    let hard = Threshold { signal: Signal::Nodefs, value: Amount::Percent(100.0), grace: None, reclaim: None };
    let mut world = World::new().await;
    world.eviction = Eviction { thresholds: vec![hard], interval: Duration::from_millis(100), ..Eviction::default() };
    world.runtime.state.lock().unwrap().refuses.insert("ListContainerStats");
    world.pod("web", json!({})).await;
    world.start_agent();
    world.eventually("pressure", async || condition(&world, "DiskPressure").await["status"] == "True").await;
    let status = world.until("web", "evicted or refused", |s| s["phase"] == "Failed").await;
    assert_eq!(status["reason"], "Evicted");
}

/// CVE-2020-8557: what a pod wrote to its hosts file counted for nobody, and filled the node's disk.
#[tokio::test]
async fn a_hosts_file_that_grows_counts_to_its_pod() {
    let world = world(Eviction::default()).await;
    let limits = json!({"limits": {"ephemeral-storage": "1Mi"}});
    world.pod("web", json!({"containers": [{"name": "c", "image": "serve:1", "resources": limits}]})).await;
    world.until_running("web").await;
    let uid = world.pods().get("web").await.unwrap().metadata.uid.unwrap();
    let hosts = world.drive().join(format!("var/lib/kubelet/pods/{uid}/etc-hosts"));
    std::fs::write(hosts, vec![7; 2 << 20]).unwrap();
    let status = world.until("web", "evicted", |s| s["phase"] == "Failed").await;
    let message = "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. ";
    assert_eq!((&status["reason"], &status["message"]), (&json!("Evicted"), &json!(message)));
}
