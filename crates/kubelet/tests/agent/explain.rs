//! What the agent says of pods that are not Ready, and of a runtime that hangs.

use std::time::Duration;

use kubelet::Polls;
use serde_json::{Value, json};

use crate::common::World;
use crate::{ready_world, started};

const ADMIN: Option<(&str, &str)> = Some(("admin", "system:masters"));

/// The explanation of a pod.
async fn explain(world: &World, name: &str) -> Value {
    let (status, body) = world.get(&format!("/explain/default/{name}"), ADMIN, None).await;
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

/// The step of a name in an explanation.
fn step<'a>(explanation: &'a Value, name: &str) -> &'a Value {
    explanation["steps"].as_array().unwrap().iter().find(|step| step["step"] == name).unwrap_or(&Value::Null)
}

#[tokio::test]
async fn a_pod_is_explained_from_the_agents_own_plan() {
    let world = ready_world().await;
    world.pod("web", json!({})).await;
    world.until_running("web").await;
    let explanation = explain(&world, "web").await;
    assert_eq!((&explanation["ready"], &explanation["phase"]), (&json!(true), &json!("Running")), "{explanation}");
    assert!(explanation["steps"].as_array().unwrap().iter().all(|step| step["progress"] == "done"), "{explanation}");
    let volume = json!([{"name": "v", "secret": {"secretName": "missing"}}]);
    world.pod("stuck", json!({"volumes": volume})).await;
    world.eventually("a failed mount", async || step(&explain(&world, "stuck").await, "volumes")["progress"] == "failed").await;
    let explanation = explain(&world, "stuck").await;
    let detail = step(&explanation, "volumes")["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("secret \"missing\" not found") && detail.contains("tried again"), "{detail}");
    assert_eq!(step(&explanation, "start")["progress"], "not-yet");
    assert_eq!(world.get("/explain/default/nosuch", ADMIN, None).await.0, 404);
    assert_eq!(world.get("/explain/default/web", Some(("someone", "people")), None).await.0, 403);
}

#[tokio::test]
async fn a_runtime_that_hangs_is_named_with_the_call_and_its_age() {
    let mut world = World::new().await;
    world.polls = Polls { runtime: Duration::from_millis(50), patience: Duration::from_millis(200), ..Polls::default() };
    let world = started(world).await;
    world.runtime.state.lock().unwrap().hangs.extend(["Status", "RunPodSandbox"]);
    let message = async || world.ready_condition().await.and_then(|c| c.message).unwrap_or_default();
    world.eventually("NotReady for the call", async || message().await.contains("hangs: it has not answered Status for")).await;
    world.runtime.state.lock().unwrap().hangs.remove("Status");
    world.eventually("node Ready", async || world.node_is_ready().await).await;
    world.pod("web", json!({})).await;
    let held = |explanation: &Value| {
        let action = explanation["busy"]["action"].as_str().unwrap_or_default() == "create sandbox, attempt 0";
        action && explanation["runtimeCalls"].as_array().unwrap().iter().any(|call| call["call"] == "RunPodSandbox")
    };
    world.eventually("the call of the sandbox", async || held(&explain(&world, "web").await)).await;
    world.runtime.state.lock().unwrap().hangs.clear();
    world.until_running("web").await;
}
