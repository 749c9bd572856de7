//! Pods end in order before their machine goes down.

use std::time::Duration;

use kubelet::{Announcement, ShutdownPeriod};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::common::World;

const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";

async fn world() -> World {
    let mut world = World::new().await;
    world.shutdown = ShutdownPeriod::of(Duration::from_secs(40), Duration::from_secs(10));
    world.start_agent();
    world.eventually("node Ready", async || world.node_is_ready().await).await;
    world
}

/// Announces a shutdown; completes when the machine may go down.
pub fn announce(world: &World, name: &'static str) -> oneshot::Receiver<()> {
    let (hold, released) = oneshot::channel::<()>();
    world.machine.as_ref().unwrap().send(Announcement::Begins { name, hold: Box::new(hold) }).unwrap_or_else(|_| panic!("no agent"));
    released
}

fn pod_condition(status: &Value, type_: &str) -> Value {
    let all = status["conditions"].as_array().cloned().unwrap_or_default();
    all.into_iter().find(|c| c["type"] == type_).unwrap_or_default()
}

#[tokio::test]
async fn pods_end_by_priority_with_the_grace_of_their_group_before_the_machine_goes_down() {
    let world = world().await;
    let hook = json!({"preStop": {"exec": {"command": ["say", "goodbye"]}}});
    world.pod("slow", json!({"terminationGracePeriodSeconds": 90, "containers": [{"name": "c", "image": "serve:1", "lifecycle": hook}]})).await;
    world.pod("quick", json!({"terminationGracePeriodSeconds": 5})).await;
    world.pod("critical", json!({"priorityClassName": "system-node-critical", "terminationGracePeriodSeconds": 90})).await;
    world.runtime.state.lock().unwrap().images.insert("exit-0:1".into());
    world.pod("done", json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "exit-0:1"}]})).await;
    for name in ["slow", "quick", "critical"] {
        world.until_running(name).await;
    }
    world.until("done", "succeeded", |s| s["phase"] == "Succeeded").await;

    let released = announce(&world, "shutdown");
    // The hold is dropped, not sent anything.
    assert!(test_lab::in_time("the machine is let go", released).await.is_err());
    for name in ["slow", "quick", "critical"] {
        let status = world.status(name).await;
        assert_eq!((&status["phase"], &status["reason"], &status["message"]), (&json!("Failed"), &json!("Terminated"), &json!(MESSAGE)), "{name}");
        let disrupted = pod_condition(&status, "DisruptionTarget");
        assert_eq!((&disrupted["status"], &disrupted["reason"]), (&json!("True"), &json!("TerminationByKubelet")));
        assert_eq!(disrupted["message"], MESSAGE);
        assert_eq!(pod_condition(&status, "PodReadyToStartContainers")["status"], "False", "{name}");
    }
    assert_eq!(world.status("done").await["phase"], "Succeeded", "it had ended before");
    {
        let state = world.runtime.state.lock().unwrap();
        let of = |pod: &str| {
            let sandbox = state.sandboxes.values().find(|s| s.config.metadata.as_ref().unwrap().name == pod).unwrap();
            state.containers.values().find(|c| c.sandbox == sandbox.id).unwrap()
        };
        assert_eq!((of("quick").stopped_with, of("critical").stopped_with), (Some(5), Some(10)));
        assert!(of("slow").stopped_with.unwrap() <= 30, "its group has 30 s, and the hook took some of it");
        assert!(of("critical").finished_at > of("slow").finished_at.max(of("quick").finished_at), "critical pods end last");
        assert!(state.execs.iter().any(|e| e.contains("goodbye")), "{:?}", state.execs);
    }
    let ready = world.ready_condition().await.unwrap();
    assert_eq!(
        (ready.status.as_str(), ready.reason.as_deref(), ready.message.as_deref()),
        ("False", Some("KubeletNotReady"), Some("node is shutting down"))
    );
    world.until_event("NodeShutdown: Shutdown manager detected shutdown event").await;
    let (status, metrics) = world.get("/metrics", Some(("admin", "system:masters")), None).await;
    assert_eq!(status, 200);
    let value = |name: &str| metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok()).unwrap();
    let (start, end) = (value("kubelet_graceful_shutdown_start_time_seconds "), value("kubelet_graceful_shutdown_end_time_seconds "));
    assert!(start > 1e9 && end >= start, "{start} {end}");
    let state: Value = serde_json::from_slice(&std::fs::read(world.drive().join("var/lib/kubelet/graceful_node_shutdown_state")).unwrap()).unwrap();
    assert!(state["startTime"].is_string() && state["endTime"].is_string(), "{state}");
}

#[tokio::test]
async fn a_node_that_goes_down_takes_no_pod_until_the_shutdown_is_cancelled() {
    let world = world().await;
    let released = announce(&world, "shutdown");
    assert!(test_lab::in_time("the machine is let go: there is no pod", released).await.is_err());
    world.pod("late", json!({"restartPolicy": "Never"})).await;
    let status = world.until("late", "refused", |s| s["phase"] == "Failed").await;
    let message = "Pod was rejected: Pod was rejected as the node is shutting down.";
    assert_eq!((&status["reason"], &status["message"]), (&json!("NodeShutdown"), &json!(message)));
    assert!(!world.node_is_ready().await);
    world.machine.as_ref().unwrap().send(Announcement::Cancelled).unwrap_or_else(|_| panic!("no agent"));
    world.eventually("node Ready again", async || world.node_is_ready().await).await;
    world.until_event("NodeShutdown: Shutdown manager detected shutdown cancellation").await;
    world.pod("again", json!({})).await;
    world.until_running("again").await;
}

/// Upstream's case GracefulNodeShutdown of sig-windows (test/e2e/windows/node_shutdown.go) with all periods shorter: programs that do not end by
/// themselves, pods with longer and shorter periods than their group's.
#[tokio::test]
async fn windows_pods_end_by_their_grace_periods_and_critical_ones_last() {
    let mut world = World::new().await;
    world.shutdown = ShutdownPeriod::of(Duration::from_secs(6), Duration::from_secs(3));
    world.runtime.state.lock().unwrap().images.insert("stubborn:1".into());
    world.start_agent();
    world.eventually("node Ready", async || world.node_is_ready().await).await;
    let pods = [("period-6", 6, false), ("period-8", 8, false), ("critical-2", 2, true), ("critical-3", 3, true), ("delay-6", 6, true)];
    for (name, grace, critical) in pods {
        let mut spec = json!({"terminationGracePeriodSeconds": grace, "containers": [{"name": "c", "image": "stubborn:1"}]});
        if critical {
            spec["priorityClassName"] = "system-node-critical".into();
        }
        world.pod(name, spec).await;
    }
    for (name, ..) in pods {
        world.until_running(name).await;
    }
    let released = announce(&world, "preshutdown");
    assert!(test_lab::in_time("the machine is let go", released).await.is_err());
    for (name, ..) in pods {
        // Nobody writes it after the machine went down: also that of a pod that took all of the last period is there already.
        let status = world.status(name).await;
        assert_eq!((&status["phase"], &status["reason"], &status["message"]), (&json!("Failed"), &json!("Terminated"), &json!(MESSAGE)), "{name}");
        assert_eq!(pod_condition(&status, "Ready")["status"], "False", "{name}");
        assert_eq!(pod_condition(&status, "PodReadyToStartContainers")["status"], "False", "{name}");
    }
    world.until_event("NodeShutdown: Shutdown manager detected preshutdown event").await;
    let state = world.runtime.state.lock().unwrap();
    let of = |pod: &str| {
        let sandbox = state.sandboxes.values().find(|s| s.config.metadata.as_ref().unwrap().name == pod).unwrap();
        let container = state.containers.values().find(|c| c.sandbox == sandbox.id).unwrap();
        (container.stopped_with.unwrap(), container.finished_at)
    };
    let graces: Vec<i64> = pods.iter().map(|(name, ..)| of(name).0).collect();
    assert_eq!(graces, [3, 3, 2, 3, 3]);
    let first = pods.iter().filter(|(.., critical)| *critical).map(|(name, ..)| of(name).1).min().unwrap();
    let last = pods.iter().filter(|(.., critical)| !critical).map(|(name, ..)| of(name).1).max().unwrap();
    assert!(first > last, "critical pods run until the others have ended");
}

#[tokio::test]
async fn a_pod_that_took_all_of_its_period_is_noted_though_the_last_group_ends_at_once() {
    let mut world = World::new().await;
    world.shutdown = ShutdownPeriod::of(Duration::from_secs(4), Duration::from_secs(2));
    world.runtime.state.lock().unwrap().images.insert("stubborn:1".into());
    world.start_agent();
    world.eventually("node Ready", async || world.node_is_ready().await).await;
    world.pod("slow", json!({"terminationGracePeriodSeconds": 30, "containers": [{"name": "c", "image": "stubborn:1"}]})).await;
    world.pod("critical", json!({"priorityClassName": "system-node-critical"})).await;
    for name in ["slow", "critical"] {
        world.until_running(name).await;
    }
    let released = announce(&world, "shutdown");
    assert!(test_lab::in_time("the machine is let go", released).await.is_err());
    for name in ["slow", "critical"] {
        assert_eq!(world.status(name).await["phase"], "Failed", "{name}");
    }
}

#[tokio::test]
async fn static_pods_run_again_when_a_shutdown_is_cancelled() {
    let mut world = World::new().await;
    let manifests = world.drive().join("etc/kubernetes/manifests");
    std::fs::create_dir_all(&manifests).unwrap();
    let manifest = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {"terminationGracePeriodSeconds": 1,
        "containers": [{"name": "c", "image": "serve:1"}]}});
    std::fs::write(manifests.join("web.yaml"), manifest.to_string()).unwrap();
    world.static_pods.path = "/etc/kubernetes/manifests".into();
    world.shutdown = ShutdownPeriod::of(Duration::from_secs(40), Duration::from_secs(10));
    world.start_agent();
    world.until_running("web-win01").await;
    world.pod("api", json!({"terminationGracePeriodSeconds": 1})).await;
    world.until_running("api").await;

    let released = announce(&world, "shutdown");
    assert!(test_lab::in_time("the machine is let go", released).await.is_err());
    for name in ["web-win01", "api"] {
        assert_eq!(world.status(name).await["reason"], "Terminated", "{name}");
    }
    world.machine.as_ref().unwrap().send(Announcement::Cancelled).unwrap_or_else(|_| panic!("no agent"));
    let again = world.until_running("web-win01").await;
    assert_eq!((&again["reason"], &again["message"]), (&Value::Null, &Value::Null));
    assert_eq!(world.status("api").await["phase"], "Failed", "its controller makes another one in its place");
}
