//! Lesser pods end so that a critical one has room.

use serde_json::{Value, json};

use crate::common::World;

const MESSAGE: &str = "Preempted in order to admit critical pod";

fn requesting(cpu: &str, more: Value) -> Value {
    let mut spec = json!({"containers": [{"name": "c", "image": "serve:1", "resources": {"requests": {"cpu": cpu}}}]});
    for (name, value) in more.as_object().unwrap() {
        spec[name] = value.clone();
    }
    spec
}

#[tokio::test]
async fn a_critical_pod_takes_the_room_of_the_lesser_pods_that_fit_best() {
    let mut world = World::new().await;
    world.start_agent();
    world.eventually("node Ready", async || world.node_is_ready().await).await;
    // The node has 4 CPUs.
    world.pod("small", requesting("500m", json!({}))).await;
    world.pod("big", requesting("3", json!({"terminationGracePeriodSeconds": 7}))).await;
    for name in ["small", "big"] {
        world.until_running(name).await;
    }
    world.pod("plain", requesting("1", json!({}))).await;
    let status = world.until("plain", "refused", |s| s["phase"] == "Failed").await;
    assert_eq!(status["reason"], "OutOfcpu", "a pod that is not critical ends no other");

    world.pod("critical", requesting("3", json!({"priorityClassName": "system-node-critical"}))).await;
    world.until_running("critical").await;
    let status = world.until("big", "preempted", |s| s["phase"] == "Failed").await;
    assert_eq!((&status["reason"], &status["message"]), (&json!("Preempting"), &json!(MESSAGE)));
    let conditions = status["conditions"].as_array().unwrap();
    let disrupted = conditions.iter().find(|c| c["type"] == "DisruptionTarget").unwrap();
    assert_eq!((&disrupted["status"], &disrupted["reason"]), (&json!("True"), &json!("TerminationByKubelet")));
    assert_eq!(disrupted["message"], "Pod was preempted by Kubelet to accommodate a critical pod.");
    world.until_event(&format!("Preempting: {MESSAGE}")).await;
    assert_eq!(world.status("small").await["phase"], "Running", "its end would not have been enough");
    let stopped = world.runtime.state.lock().unwrap().containers.values().find_map(|c| c.stopped_with);
    assert_eq!(stopped, Some(7), "it had its own grace");
    let (_, metrics) = world.get("/metrics", Some(("admin", "system:masters")), None).await;
    assert!(metrics.contains("\nkubelet_preemptions{preemption_signal=\"cpu\"} 1\n"), "{metrics}");

    // What is left belongs to pods that are as important.
    world.pod("too-big", requesting("3500m", json!({"priorityClassName": "system-node-critical"}))).await;
    let status = world.until("too-big", "refused", |s| s["phase"] == "Failed").await;
    assert_eq!(status["reason"], "UnexpectedAdmissionError");
    let message = status["message"].as_str().unwrap();
    assert!(message.ends_with("no set of running pods found to reclaim resources: [(res: cpu, q: 2500), ]"), "{message}");
    assert_eq!(world.status("small").await["phase"], "Running", "nothing ends in vain");
}

#[tokio::test]
async fn a_critical_pod_that_the_node_refuses_for_another_reason_ends_no_other() {
    let mut world = World::new().await;
    world.start_agent();
    world.eventually("node Ready", async || world.node_is_ready().await).await;
    world.pod("big", requesting("4", json!({}))).await;
    world.until_running("big").await;
    let spec = json!({"priorityClassName": "system-node-critical", "nodeSelector": {"rack": "none"}});
    world.pod("elsewhere", requesting("1", spec)).await;
    let status = world.until("elsewhere", "refused", |s| s["phase"] == "Failed").await;
    assert_eq!(status["reason"], "NodeAffinity");
    assert_eq!(world.status("big").await["phase"], "Running");
}
