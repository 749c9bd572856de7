//! Dead containers go by the node's rules, and links to logs with them.

use std::collections::BTreeSet;
use std::time::Duration;

use cri::v1::ContainerState;
use host::NodeOs;
use kubelet::{Amount, DeadContainers, Eviction, Signal, Threshold};
use serde_json::json;

use crate::common::World;
use crate::ready_world;

/// Attempts of containers that the runtime holds, by pod.
fn attempts(world: &World, pod: &str) -> usize {
    let state = world.runtime.state.lock().unwrap();
    let sandboxes: BTreeSet<&String> = state.sandboxes.values().filter(|s| s.config.metadata.as_ref().unwrap().name == pod).map(|s| &s.id).collect();
    state.containers.values().filter(|c| sandboxes.contains(&c.sandbox)).count()
}

fn links(world: &World) -> Vec<String> {
    let listed = std::fs::read_dir(world.drive().join("var/log/containers"));
    let mut names: Vec<String> = listed.into_iter().flatten().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn dead_containers_of_ended_pods_go_when_the_disk_is_full() {
    // The disk is that full, for whoever asks.
    let hard = Threshold { signal: Signal::Nodefs, value: Amount::Percent(100.0), grace: None, reclaim: None };
    let mut world = World::new().await;
    world.runtime.state.lock().unwrap().images.insert("exit-0:1".into());
    world.start_agent();
    world.pod("done", json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "exit-0:1"}]})).await;
    world.until("done", "succeeded", |s| s["phase"] == "Succeeded").await;
    assert_eq!(attempts(&world, "done"), 1, "its log can be read");
    world.stop_agent().await;
    world.eviction = Eviction { thresholds: vec![hard], interval: Duration::from_millis(100), ..Eviction::default() };
    world.start_agent();
    world.eventually("its container gone", async || attempts(&world, "done") == 0).await;
    let status = world.status("done").await;
    assert_eq!((&status["phase"], &status["containerStatuses"][0]["state"]["terminated"]["exitCode"]), (&json!("Succeeded"), &json!(0)));
}

#[tokio::test]
async fn links_lead_to_logs_and_go_with_their_containers() {
    let mut world = World::new().await;
    world.os = NodeOs::Linux;
    world.dead_containers = DeadContainers { per_container: Some(1), ..DeadContainers::default() };
    let foreign = world.drive().join("var/log/containers/notes.txt");
    std::fs::create_dir_all(foreign.parent().unwrap()).unwrap();
    std::fs::write(&foreign, "mine").unwrap();
    world.start_agent();
    world.eventually("node Ready", async || world.node_is_ready().await).await;
    world.pod("web", json!({})).await;
    world.until_running("web").await;
    let id = {
        let state = world.runtime.state.lock().unwrap();
        state.containers.values().find(|c| c.state == ContainerState::ContainerRunning).unwrap().id.clone()
    };
    let link = format!("web_default_c-{id}.log");
    world.eventually("a link", async || links(&world) == ["notes.txt".to_owned(), link.clone()]).await;
    let target = std::fs::read_link(world.drive().join("var/log/containers").join(&link)).unwrap();
    let uid = world.pods().get("web").await.unwrap().metadata.uid.unwrap();
    assert_eq!(target.to_str().unwrap(), format!("/var/log/pods/default_web_{uid}/c/0.log"));
    world.pods().delete("web", &kube::api::DeleteParams::default().grace_period(1)).await.unwrap();
    world.eventually("the link gone", async || links(&world) == ["notes.txt".to_owned()]).await;
}

#[tokio::test]
async fn a_container_whose_rule_says_so_has_all_of_its_pod_start_again() {
    let world = ready_world().await;
    let rule = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]);
    let hook = json!({"preStop": {"exec": {"command": ["bye"]}}});
    let spec = json!({"restartPolicy": "Never", "initContainers": [{"name": "i", "image": "exit-0:1"}], "containers": [
        {"name": "c", "image": "serve:1", "restartPolicy": "Never", "restartPolicyRules": rule},
        {"name": "d", "image": "serve:1", "lifecycle": hook}]});
    world.pod("web", spec).await;
    world.until_running("web").await;
    let sandbox = world.runtime.state.lock().unwrap().named("c")[0].sandbox.clone();
    let id = world.runtime.state.lock().unwrap().named("c")[0].id.clone();
    world.runtime.exit(&id, 42);
    let again = |s: &serde_json::Value| {
        let all = s["containerStatuses"].as_array().into_iter().chain(s["initContainerStatuses"].as_array()).flatten();
        all.clone().count() == 3 && all.clone().all(|c| c["restartCount"] == 1 && c["ready"] == true)
    };
    let status = world.until("web", "started again", again).await;
    for c in status["containerStatuses"].as_array().unwrap() {
        assert_eq!(c["lastState"]["terminated"]["reason"], "RestartingAllContainers", "{c}");
    }
    let of = |type_: &str| status["conditions"].as_array().unwrap().iter().find(|c| c["type"] == type_).unwrap()["status"].clone();
    assert_eq!((of("AllContainersRestarting"), of("Initialized")), (json!("False"), json!("True")));
    world.until_event("Killing: killing").await;
    let state = world.runtime.state.lock().unwrap();
    assert!(state.execs.is_empty(), "no preStop hook runs");
    assert!(state.containers.len() == 3 && state.containers.values().all(|c| c.sandbox == sandbox), "in the same sandbox, and the old ones are gone");
}

#[tokio::test]
async fn logs_of_pods_are_where_the_configuration_says() {
    let mut world = World::new().await;
    world.os = NodeOs::Linux;
    world.pod_logs_dir = "/data/logs".into();
    world.start_agent();
    world.eventually("node Ready", async || world.node_is_ready().await).await;
    world.pod("web", json!({})).await;
    world.until_running("web").await;
    let uid = world.pods().get("web").await.unwrap().metadata.uid.unwrap();
    let dir = world.drive().join(format!("data/logs/default_web_{uid}"));
    assert!(dir.join("c").is_dir() && !world.drive().join("var/log/pods").exists());
    std::fs::write(dir.join("c/0.log"), "2026-01-01T00:00:00Z stdout F hello\n").unwrap();
    let (status, text) = world.get("/containerLogs/default/web/c", Some(("admin", "system:masters")), None).await;
    assert_eq!((status, text.as_str()), (200, "hello\n"));
    world.pods().delete("web", &kube::api::DeleteParams::default().grace_period(1)).await.unwrap();
    world.eventually("the logs gone", async || !dir.exists()).await;
}
