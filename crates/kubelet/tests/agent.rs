//! The node agent as a whole: API server real, runtime in memory, one simulated Windows node.

#[path = "agent/access.rs"]
mod access;
#[path = "agent/adoption.rs"]
mod adoption;
#[path = "agent/certificates.rs"]
mod certificates;
mod common;
#[path = "agent/credentials.rs"]
mod credentials;
#[path = "agent/csi.rs"]
mod csi;
#[path = "agent/devices.rs"]
mod devices;
#[path = "agent/eviction.rs"]
mod eviction;
#[path = "agent/explain.rs"]
mod explain;
#[path = "agent/garbage.rs"]
mod garbage;
#[path = "agent/image_volumes.rs"]
mod image_volumes;
#[path = "agent/images.rs"]
mod images;
#[path = "agent/network_gate.rs"]
mod network_gate;
#[path = "agent/node_logs.rs"]
mod node_logs;
#[path = "agent/preemption.rs"]
mod preemption;
#[path = "agent/probes.rs"]
mod probes;
#[path = "agent/resize.rs"]
mod resize;
#[path = "agent/secrets.rs"]
mod secrets;
#[path = "agent/settings.rs"]
mod settings;
#[path = "agent/shutdown.rs"]
mod shutdown;
#[path = "agent/static_pods.rs"]
mod static_pods;
#[path = "agent/stats.rs"]
mod stats;
#[path = "agent/users.rs"]
mod users;

use std::time::{Duration, Instant};

use common::World;
use cri::v1::ContainerState;
use kube::api::DeleteParams;
use serde_json::json;
use test_lab::in_time;

async fn ready_world() -> World {
    started(World::new().await).await
}

async fn world_without_polls() -> World {
    let mut world = World::new().await;
    world.polls = no_polls();
    started(world).await
}

async fn started(mut world: World) -> World {
    world.start_agent();
    world.eventually("node Ready", async || world.node_is_ready().await).await;
    world
}

/// An agent that never looks again by itself: what waits for a poll waits for ever.
fn no_polls() -> kubelet::Polls {
    let never = Duration::from_secs(1 << 25);
    kubelet::Polls {
        runtime: never,
        patience: never,
        objects: never,
        node: never,
        pod: never,
        failed_start: never,
        restart: kubelet::Polls::default().restart,
    }
}

#[tokio::test]
async fn the_node_is_ready_as_soon_as_its_network_is() {
    let mut world = World::new().await;
    world.polls = no_polls();
    world.runtime.state.lock().unwrap().network_ready = false;
    world.start_agent();
    world.eventually("a Node", async || world.node().await.is_some()).await;
    assert!(!world.node_is_ready().await);
    world.pod("early", json!({})).await;
    // Time in which it must not start.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(world.runtime.state.lock().unwrap().sandboxes.is_empty(), "no pod before the network");
    world.runtime.state.lock().unwrap().network_ready = true;
    world.eventually("node Ready", async || world.node_is_ready().await).await;
    world.until_running("early").await;

    let node = serde_json::to_value(world.node().await.unwrap()).unwrap();
    assert_eq!(node["metadata"]["labels"]["node.kubernetes.io/windows-build"], "10.0.20348");
    assert_eq!(node["metadata"]["labels"]["beta.kubernetes.io/os"], "windows");
    assert_eq!(node["status"]["nodeInfo"]["containerRuntimeVersion"], "fake://1.0");
    assert_eq!(node["status"]["capacity"]["cpu"], "4");
    let managers = node["metadata"]["managedFields"].as_array().unwrap().iter().map(|m| m["manager"].as_str().unwrap()).collect::<Vec<_>>();
    assert!(managers.iter().all(|m| *m == "kubelet"), "{managers:?}");
    world.eventually("NodeReady event", async || world.events().await.iter().any(|e| e.starts_with("NodeReady:"))).await;
}

#[tokio::test]
async fn conditions_of_other_writers_survive_each_status_of_the_node() {
    let world = ready_world().await;
    let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(world.admin());
    for round in 0..10 {
        // Both write at once: the agent because its network comes and goes.
        world.runtime.state.lock().unwrap().network_ready = round % 2 == 1;
        let type_ = format!("example.com/{round}");
        let patch = json!({"status": {"conditions": [{"type": type_, "status": "True"}]}});
        nodes.patch_status("win01", &Default::default(), &kube::api::Patch::Strategic(patch)).await.unwrap();
        world.eventually("the agent's turn", async || world.node_is_ready().await == (round % 2 == 1)).await;
    }
    let conditions = world.node().await.unwrap().status.unwrap().conditions.unwrap();
    let foreign = conditions.iter().filter(|c| c.type_.starts_with("example.com/")).count();
    assert_eq!(foreign, 10, "{conditions:?}");
    let addresses = world.node().await.unwrap().status.unwrap().addresses.unwrap();
    assert_eq!(addresses.len(), 2, "{addresses:?}");
}

#[tokio::test]
async fn a_pod_lives_and_dies() {
    let world = ready_world().await;
    world.config_map("cm", json!({"greeting": "hello"})).await;
    world.secret("s", json!({"password": "p4ss"})).await;
    world
        .pod(
            "web",
            json!({
                "terminationGracePeriodSeconds": 7,
                "containers": [{"name": "c", "image": "serve:1", "command": ["serve", "$(GREETING)"],
                    "env": [{"name": "GREETING", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "greeting"}}},
                            {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "s", "key": "password"}}},
                            {"name": "ME", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                    "volumeMounts": [{"name": "conf", "mountPath": "/etc/conf"}, {"name": "data", "mountPath": "D:\\data"}]}],
                "volumes": [{"name": "conf", "configMap": {"name": "cm"}}, {"name": "data", "emptyDir": {}}]
            }),
        )
        .await;
    let status = world.until_running("web").await;
    assert_eq!(status["podIP"], "192.168.1.10");
    assert_eq!(status["hostIP"], "10.240.0.12");
    let container = world.runtime.state.lock().unwrap().named("c").remove(0);
    let env = |n: &str| container.config.envs.iter().find(|e| e.key == n).map(|e| e.value.clone());
    assert_eq!(container.config.command, ["serve", "hello"]);
    assert_eq!((env("PASSWORD").as_deref(), env("ME").as_deref()), (Some("p4ss"), Some("192.168.1.10")));
    let mount = |p: &str| container.config.mounts.iter().find(|m| m.container_path == p).unwrap_or_else(|| panic!("no mount {p}"));
    let read = |p: &str, file: &str| std::fs::read_to_string(world.runtime.path(&mount(p).host_path).join(file)).unwrap();
    assert_eq!(read(r"C:\etc\conf", "greeting"), "hello");
    assert!(mount(r"C:\etc\conf").readonly && !mount(r"D:\data").readonly);
    let account = r"C:\var\run\secrets\kubernetes.io\serviceaccount";
    assert_eq!(read(account, "namespace"), "default");
    assert!(read(account, "token").split('.').count() == 3, "a JWT");

    // A changed ConfigMap arrives in the volume.
    world.config_map("cm", json!({"greeting": "bonjour"})).await;
    world.eventually("new content", async || read(r"C:\etc\conf", "greeting") == "bonjour").await;

    let pod_dir = world.drive().join("var/lib/kubelet/pods").join(world.pods().get("web").await.unwrap().metadata.uid.unwrap());
    assert!(pod_dir.is_dir());
    world.pods().delete("web", &DeleteParams::default()).await.unwrap();
    world.eventually("pod gone", async || world.pods().get_opt("web").await.unwrap().is_none()).await;
    {
        let state = world.runtime.state.lock().unwrap();
        assert!(state.sandboxes.is_empty() && state.containers.is_empty());
        assert!(!pod_dir.exists(), "directories go before the API forgets the pod");
    }
    for event in [
        "Pulled: Container image \"serve:1\" already present on machine and can be accessed by the pod",
        "Created: Container created: c",
        "Started: Container started: c",
        "Killing: Stopping container c",
    ] {
        world.until_event(event).await;
    }
}

#[tokio::test]
async fn crashing_containers_back_off_and_count() {
    let world = ready_world().await;
    world.pod("crash", json!({"containers": [{"name": "c", "image": "exit-3:1"}]})).await;
    let waiting = |s: &serde_json::Value| s["containerStatuses"][0]["state"]["waiting"]["reason"] == "CrashLoopBackOff";
    let status = world.until("crash", "CrashLoopBackOff", waiting).await;
    let c = &status["containerStatuses"][0];
    assert_eq!((c["restartCount"].as_i64(), c["lastState"]["terminated"]["exitCode"].as_i64()), (Some(1), Some(3)));
    assert!(c["state"]["waiting"]["message"].as_str().unwrap().starts_with("back-off 10s restarting failed container=c pod=crash_default("));
    assert_eq!(world.runtime.state.lock().unwrap().named("c").len(), 2, "one restart at once, then the wait");

    world.pod("job", json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "exit-0:1"}]})).await;
    world.until("job", "Succeeded", |s| s["phase"] == "Succeeded").await;
    world.pod("failed", json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "exit-9:1"}]})).await;
    let status = world.until("failed", "Failed", |s| s["phase"] == "Failed").await;
    assert_eq!(status["containerStatuses"][0]["state"]["terminated"]["exitCode"], 9);
}

#[tokio::test]
async fn pods_with_kernel_settings_of_the_node_are_rejected() {
    let world = ready_world().await;
    let sysctls = json!([{"name": "kernel/panic", "value": "1"}]);
    let spec = json!({"securityContext": {"sysctls": sysctls}, "containers": [{"name": "c", "image": "serve:1"}]});
    world.pod("forbidden", spec).await;
    let status = world.until("forbidden", "Failed", |s| s["phase"] == "Failed").await;
    assert_eq!(status["reason"], "SysctlForbidden");
    assert_eq!(status["message"], "Pod was rejected: forbidden sysctl: \"kernel.panic\" not allowlisted");
    world.until_event("SysctlForbidden: forbidden sysctl: \"kernel.panic\" not allowlisted").await;
    assert!(world.runtime.state.lock().unwrap().sandboxes.is_empty());
}

#[tokio::test]
async fn missing_keys_wait_and_heal() {
    let world = world_without_polls().await;
    world.pod("waits", json!({"containers": [{"name": "c", "image": "serve:1", "envFrom": [{"secretRef": {"name": "late"}}]}]})).await;
    let reason = |s: &serde_json::Value| s["containerStatuses"][0]["state"]["waiting"]["reason"] == "CreateContainerConfigError";
    let status = world.until("waits", "CreateContainerConfigError", reason).await;
    assert_eq!(status["containerStatuses"][0]["state"]["waiting"]["message"], "secret \"late\" not found");
    world.secret("late", json!({"A": "1"})).await;
    world.until_running("waits").await;
}

#[tokio::test]
async fn a_restarted_agent_adopts_and_a_rebooted_host_restarts() {
    let mut world = ready_world().await;
    world.pod("keeps", json!({})).await;
    world.pod("orphan", json!({})).await;
    let before = world.until_running("keeps").await;
    world.until_running("orphan").await;
    world.stop_agent().await;
    let now = DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
    world.pods().delete("orphan", &now).await.unwrap();
    world.start_agent();
    world.eventually("orphan ended", async || world.runtime.state.lock().unwrap().sandboxes.len() == 1).await;
    let after = world.status("keeps").await;
    assert_eq!(after["containerStatuses"][0]["containerID"], before["containerStatuses"][0]["containerID"]);
    assert_eq!(world.runtime.state.lock().unwrap().named("c").len(), 1, "nothing was restarted");

    world.stop_agent().await;
    world.reboot();
    world.start_agent();
    let restarted = |s: &serde_json::Value| s["containerStatuses"][0]["restartCount"] == 1 && s["containerStatuses"][0]["ready"] == true;
    world.until("keeps", "one restart", restarted).await;
    {
        let state = world.runtime.state.lock().unwrap();
        let ready: Vec<_> = state.sandboxes.values().filter(|s| s.ready).collect();
        assert_eq!(ready.len(), 1);
        assert_eq!(ready[0].config.metadata.as_ref().unwrap().attempt, 1, "a new sandbox");
    }
    world.eventually("Rebooted event", async || world.events().await.iter().any(|e| e.starts_with("Rebooted: Node win01 has been rebooted"))).await;
}

#[tokio::test]
async fn a_pod_whose_network_is_lost_is_not_ready_says_why_and_gets_another_sandbox() {
    let world = ready_world().await;
    world.pod("web", json!({"terminationGracePeriodSeconds": 1})).await;
    world.until_running("web").await;
    let condition = |s: &serde_json::Value, type_: &str| {
        let all = s["conditions"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|c| c["type"] == type_).map(|c| c["status"].clone()).unwrap_or_default()
    };
    // The runtime repairs it: the containers stay.
    world.runtime.change_sandboxes(|s| drop(s.config.annotations.insert("mullion.io/network-problem".into(), "HNS has lost the endpoint".into())));
    let broken = world.until("web", "unready", |s| condition(s, "Ready") == "False" && condition(s, "PodReadyToStartContainers") == "False").await;
    assert_eq!((broken["containerStatuses"][0]["ready"].as_bool(), broken["containerStatuses"][0]["restartCount"].as_i64()), (Some(false), Some(0)));
    world.until_event("NetworkNotReady: network is not ready: HNS has lost the endpoint").await;
    world.runtime.change_sandboxes(|s| drop(s.config.annotations.remove("mullion.io/network-problem")));
    let whole = world.until("web", "ready again", |s| condition(s, "Ready") == "True").await;
    assert_eq!(whole["containerStatuses"][0]["restartCount"], 0);
    // The runtime cannot: the sandbox is replaced.
    world.runtime.change_sandboxes(|s| {
        s.ready = false;
        s.config.annotations.insert("mullion.io/network-problem".into(), "HNS has lost namespace x".into());
    });
    world.until("web", "one restart", |s| s["containerStatuses"][0]["restartCount"] == 1 && condition(s, "Ready") == "True").await;
    world.until_event("NetworkNotReady: network is not ready: HNS has lost namespace x").await;
    world.until_event("SandboxChanged: Pod sandbox changed, it will be killed and re-created.").await;
}

#[tokio::test]
async fn the_node_says_whether_its_host_networking_service_answers() {
    use hcn::watch::Health;
    let mut world = World::new().await;
    let (health, told) = tokio::sync::watch::channel(Health::Answering);
    world.host_network = Some(told);
    world.start_agent();
    world.eventually("node Ready", async || world.node_is_ready().await).await;
    let condition = async || {
        let conditions = world.node().await.and_then(|n| n.status?.conditions).unwrap_or_default();
        let found = conditions.into_iter().find(|c| c.type_ == "HNSUnavailable");
        found.map(|c| (c.status, c.reason.unwrap_or_default())).unwrap_or_default()
    };
    let is = async |status: &str, reason: &str| condition().await == (status.to_owned(), reason.to_owned());
    world.eventually("answering", async || is("False", "HNSResponding").await).await;
    // A restart: no sandbox is started, and the node stays Ready.
    health.send_replace(Health::Failing { reason: "0x6d9".into() });
    let admin = Some(("admin", "system:masters"));
    let failing = async || world.get("/metrics", admin, None).await.1.contains("mullion_hns_state{state=\"failing\"} 1");
    world.eventually("the agent knows", failing).await;
    world.pod("early", json!({})).await;
    // Time in which it must not start.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(world.node_is_ready().await && world.runtime.state.lock().unwrap().sandboxes.is_empty());
    health.send_replace(Health::Slow { reason: "HcnEnumerateNetworks has not been answered for 5 s".into() });
    world.eventually("slow", async || is("Unknown", "HNSSlow").await).await;
    assert!(world.node_is_ready().await, "slow is not down");
    health.send_replace(Health::Down { reason: "no endpoints available (0x6d9)".into() });
    world.eventually("down", async || is("True", "HNSDown").await).await;
    world.eventually("not Ready", async || !world.node_is_ready().await).await;
    let (_, text) = world.get("/metrics", Some(("kube-apiserver-kubelet-client", "system:masters")), None).await;
    assert!(text.contains("mullion_hns_state{state=\"down\"} 1") && text.contains("mullion_hns_state{state=\"answering\"} 0"), "{text}");
    world.until_event("HNSDown: the Host Networking Service does not answer: no endpoints available (0x6d9)").await;
    health.send_replace(Health::Answering);
    world.eventually("Ready again", async || world.node_is_ready().await && is("False", "HNSResponding").await).await;
    world.until_event("HNSResponding: the Host Networking Service answers").await;
    world.until_running("early").await;
}

#[tokio::test]
async fn the_server_shows_the_calls_to_the_host_networking_service() {
    let mut world = World::new().await;
    let nowhere = format!("unix:{}", world.drive().join("no-service").display());
    let client = hcn::HcnClient::connect(&nowhere).unwrap();
    client.networks().await.unwrap_err();
    world.hcn = Some(client);
    world.start_agent();
    world.eventually("node Ready", async || world.node_is_ready().await).await;
    let (_, metrics) = world.get("/metrics", Some(("kube-apiserver-kubelet-client", "system:masters")), None).await;
    for line in ["mullion_hns_calls_failed_total{function=\"HcnEnumerateNetworks\"} 1", "mullion_hns_operations{state=\"hung\"} 0"] {
        assert!(metrics.contains(line), "no {line} in {metrics}");
    }
    let (status, text) = world.get("/debug/hcn", Some(("kube-apiserver-kubelet-client", "system:masters")), None).await;
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &document["calls"], &document["failed"], &document["hung"]), (200, &json!(1), &json!(1), &json!([])), "{text}");
    let (status, _) = world.get("/debug/hcn", Some(("somebody", "system:authenticated")), None).await;
    assert_eq!(status, 403);
}

#[tokio::test]
async fn init_containers_come_first_and_a_stubborn_one_is_killed() {
    let world = ready_world().await;
    world
        .pod(
            "two",
            json!({
                "terminationGracePeriodSeconds": 1,
                "initContainers": [{"name": "i", "image": "exit-0:1"}],
                "containers": [{"name": "c", "image": "stubborn:1"}]
            }),
        )
        .await;
    let status = world.until_running("two").await;
    assert_eq!(status["initContainerStatuses"][0]["state"]["terminated"]["exitCode"], 0);
    let (i, c) = {
        let state = world.runtime.state.lock().unwrap();
        (state.named("i").remove(0), state.named("c").remove(0))
    };
    assert!(i.finished_at < c.started_at);
    assert_eq!(c.state, ContainerState::ContainerRunning);
    let began = Instant::now();
    world.pods().delete("two", &DeleteParams::default()).await.unwrap();
    world.eventually("pod gone", async || world.pods().get_opt("two").await.unwrap().is_none()).await;
    assert!(began.elapsed() > Duration::from_millis(900), "it has its grace period");
}

#[tokio::test]
async fn a_pod_that_does_not_fit_is_refused() {
    let world = ready_world().await;
    let big = json!({"containers": [{"name": "c", "image": "serve:1", "resources": {"requests": {"cpu": "3"}}}]});
    world.pod("first", big.clone()).await;
    world.until_running("first").await;
    world.pod("second", big).await;
    let status = world.until("second", "OutOfcpu", |s| s["reason"] == "OutOfcpu").await;
    assert_eq!(status["message"], "Pod was rejected: Node didn't have enough resource: cpu, requested: 3000, used: 3000, capacity: 4000");
    assert_eq!(status["phase"], "Failed");
}

#[tokio::test]
async fn the_server_answers_those_who_may() {
    let world = ready_world().await;
    world.pod("web", json!({})).await;
    world.until_running("web").await;
    let admin = Some(("admin", "system:masters"));
    let logs = "/containerLogs/default/web/c";
    let (status, text) = world.get(logs, admin, None).await;
    assert_eq!(status, 200, "{text}");
    assert!(text.ends_with("says hello\n") && !text.contains("stdout"), "{text}");
    let (_, stamped) = world.get(&format!("{logs}?timestamps=true&tailLines=1"), admin, None).await;
    assert!(stamped.starts_with("20"), "{stamped}");

    // The API server's client is in no group that may do anything.
    let through_api = world.get(logs, Some(("kube-apiserver-kubelet-client", "none")), None).await;
    assert_eq!(through_api.0, 200, "{}", through_api.1);

    assert_eq!(world.get(logs, None, None).await.0, 401);
    assert_eq!(world.get(logs, None, Some("nonsense")).await.0, 401);
    let (status, text) = world.get(logs, Some(("nobody", "users")), None).await;
    assert_eq!(status, 403);
    assert!(text.contains("user=nobody, verb=get, resource=nodes"), "{text}");
    // A pod's own token is nobody special.
    let container = world.runtime.state.lock().unwrap().named("c").remove(0);
    let account = container.config.mounts.iter().find(|m| m.container_path.contains("serviceaccount")).unwrap();
    let token = std::fs::read_to_string(world.runtime.path(&account.host_path).join("token")).unwrap();
    let (status, text) = world.get(logs, None, Some(&token)).await;
    assert_eq!(status, 403);
    assert!(text.contains("system:serviceaccount:default:default"), "{text}");

    let (status, text) = world.get("/containerLogs/default/web/nope", admin, None).await;
    assert_eq!((status, text.as_str()), (404, "container \"nope\" not found in pod \"web\"\n"));
    assert_eq!(world.get("/containerLogs/default/nope/c", admin, None).await.0, 404);
    assert_eq!(world.get(&format!("{logs}?previous=true"), admin, None).await.0, 400);
    assert!(world.get("/pods", admin, None).await.1.contains("\"kind\":\"PodList\""));
    let configz: serde_json::Value = serde_json::from_str(&world.get("/configz", admin, None).await.1).unwrap();
    let configz = &configz["kubeletconfig"];
    assert_eq!((&configz["port"], &configz["maxPods"]), (&10250.into(), &20.into()), "what was given, and what is in effect");
    assert_eq!(world.get("/healthz", admin, None).await, (200, "ok".into()));
    let counted = async || world.get("/metrics", admin, None).await.1.contains("kubelet_running_pods 1");
    world.eventually("the agent's own view counts the pod as running", counted).await;
    assert_eq!(world.get("/nope", admin, None).await.0, 404);
}

#[tokio::test]
async fn a_followed_log_ends_with_its_container() {
    let world = ready_world().await;
    world.pod("web", json!({"restartPolicy": "Never"})).await;
    world.until_running("web").await;
    let container = world.runtime.state.lock().unwrap().named("c").remove(0);
    let sandbox = world.runtime.state.lock().unwrap().sandboxes[&container.sandbox].clone();
    let log = world.runtime.path(&sandbox.config.log_directory).join(&container.config.log_path);
    let runtime = world.runtime.clone();
    let writer = async {
        // The reader mostly follows by then; what it hears is the same if it does not.
        tokio::time::sleep(Duration::from_millis(150)).await;
        use std::io::Write;
        let mut file = std::fs::OpenOptions::new().append(true).open(log).unwrap();
        writeln!(file, "2026-01-01T00:00:00Z stdout F later").unwrap();
        runtime.exit(&container.id, 0);
    };
    let reader = world.get("/containerLogs/default/web/c?follow=true", Some(("admin", "system:masters")), None);
    let ((), (status, text)) = tokio::join!(writer, reader);
    assert_eq!(status, 200);
    assert!(text.ends_with("says hello\nlater\n"), "{text}");
}

#[tokio::test]
async fn pods_start_and_end_without_a_poll() {
    let world = world_without_polls().await;
    for name in ["first", "second", "third"] {
        world.pod(name, json!({})).await;
        world.until_running(name).await;
    }
    for name in ["first", "second", "third"] {
        world.pods().delete(name, &DeleteParams::default()).await.unwrap();
        world.eventually("pod gone", async || world.pods().get_opt(name).await.unwrap().is_none()).await;
    }
}

/// Answers one HTTP request after another with what `code` holds.
#[tokio::test]
async fn a_large_log_is_rotated() {
    let world = ready_world().await;
    world.pod("web", json!({})).await;
    world.until_running("web").await;
    let container = world.runtime.state.lock().unwrap().named("c").remove(0);
    let sandbox = world.runtime.state.lock().unwrap().sandboxes[&container.sandbox].clone();
    let log = world.runtime.path(&sandbox.config.log_directory).join(&container.config.log_path);
    let dir = log.parent().unwrap();
    for old in ["0.log.20250101-000000.gz", "0.log.20250102-000000", "1.log.20250102-000000"] {
        std::fs::write(dir.join(old), "old").unwrap();
    }
    std::fs::write(&log, "x".repeat(999)).unwrap();
    // More than one interval of the rotation, in which nothing must happen.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(std::fs::metadata(&log).unwrap().len(), 999, "not large enough yet");
    std::fs::write(&log, "x".repeat(1000)).unwrap();
    world.eventually("a fresh log", async || std::fs::metadata(&log).is_ok_and(|m| m.len() == 0)).await;
    let mut names: Vec<String> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let rotated = names.remove(2);
    assert_eq!(names, ["0.log", "0.log.20250102-000000.gz", "1.log.20250102-000000"].map(str::to_owned), "{rotated}");
    assert_eq!(std::fs::metadata(dir.join(&rotated)).unwrap().len(), 1000, "{rotated}");
}

async fn http_server(code: std::sync::Arc<std::sync::atomic::AtomicU16>) -> u16 {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 1024];
            let n = stream.read(&mut request).await.unwrap();
            assert!(String::from_utf8_lossy(&request[..n]).contains("kube-probe/1.36"));
            let code = code.load(std::sync::atomic::Ordering::Relaxed);
            let answer = format!("HTTP/1.1 {code} x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    port
}

#[tokio::test]
async fn a_probe_that_fails_all_the_time_does_not_hold_up_the_pods_other_work() {
    let mut world = World::new().await;
    // Longer than the time between two probes.
    world.polls = kubelet::Polls { failed_start: Duration::from_millis(1500), ..no_polls() };
    let world = started(world).await;
    let probe = json!({"exec": {"command": ["false"]}, "periodSeconds": 1});
    let containers = json!([
        {"name": "unready", "image": "serve:1", "readinessProbe": probe},
        {"name": "c", "image": "serve:1", "volumeMounts": [{"name": "v", "mountPath": "C:\\v"}]}
    ]);
    world.pod("web", json!({"containers": containers, "volumes": [{"name": "v", "hostPath": {"path": "C:\\late"}}]})).await;
    let c = |s: &serde_json::Value| s["containerStatuses"].as_array().unwrap().iter().find(|c| c["name"] == "c").unwrap().clone();
    world
        .until("web", "CreateContainerError", |s| s["containerStatuses"].is_array() && c(s)["state"]["waiting"]["reason"] == "CreateContainerError")
        .await;
    world.eventually("a failed probe", async || world.events().await.iter().any(|e| e.starts_with("Unhealthy: Readiness probe failed"))).await;
    std::fs::create_dir(world.drive().join("late")).unwrap();
    world.until("web", "running", |s| c(s)["ready"] == true).await;
    let (code, metrics) = world.get("/metrics/probes", Some(("admin", "system:masters")), None).await;
    let counted = r#"prober_probe_total{probe_type="Readiness",result="failed",container="unready",pod="web",namespace="default""#;
    assert!(code == 200 && metrics.contains(counted), "{metrics}");
}

#[tokio::test]
async fn logs_of_gone_pods_are_removed_and_those_of_others_stay() {
    let mut world = World::new().await;
    let logs = world.drive().join("var/log/pods");
    for name in ["default_gone_0000-1", "not-ours", "default_gone_0000-1/c"] {
        std::fs::create_dir_all(logs.join(name)).unwrap();
    }
    std::fs::write(logs.join("default_gone_0000-1/c/0.log"), "old").unwrap();
    world.pod("web", json!({})).await;
    world.start_agent();
    world.until_running("web").await;
    world.eventually("logs of the gone pod removed", async || !logs.join("default_gone_0000-1").exists()).await;
    let uid = world.pods().get("web").await.unwrap().metadata.uid.unwrap();
    assert!(logs.join("not-ours").is_dir() && logs.join(format!("default_web_{uid}")).is_dir());
}

#[tokio::test]
async fn readiness_follows_its_probe() {
    let mut world = ready_world().await;
    let code = std::sync::Arc::new(std::sync::atomic::AtomicU16::new(503));
    let port = http_server(code.clone()).await;
    let probe =
        json!({"httpGet": {"host": "127.0.0.1", "port": port, "path": "/ready"}, "periodSeconds": 1, "timeoutSeconds": 60, "failureThreshold": 1});
    world.pod("web", json!({"containers": [{"name": "c", "image": "serve:1", "readinessProbe": probe}]})).await;
    world.until("web", "Running", |s| s["phase"] == "Running").await;
    world
        .eventually("an Unhealthy event", async || {
            world.events().await.iter().any(|e| e == "Unhealthy: Readiness probe failed: HTTP probe failed with statuscode: 503")
        })
        .await;
    assert_eq!(world.status("web").await["containerStatuses"][0]["ready"], false);
    code.store(200, std::sync::atomic::Ordering::Relaxed);
    world.until_running("web").await;
    let version = async |world: &World| world.pods().get("web").await.unwrap().metadata.resource_version;
    let before = version(&world).await;
    world.stop_agent().await;
    world.start_agent();
    // Time in which it must not write.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(version(&world).await, before, "an agent that starts again takes no readiness away");
    code.store(500, std::sync::atomic::Ordering::Relaxed);
    world.until("web", "unready", |s| s["containerStatuses"][0]["ready"] == false).await;
}

#[tokio::test]
async fn a_failed_liveness_probe_restarts_the_container() {
    let world = ready_world().await;
    let closed = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().port()
    };
    let probe =
        json!({"tcpSocket": {"host": "127.0.0.1", "port": closed}, "periodSeconds": 1, "failureThreshold": 1, "terminationGracePeriodSeconds": 3});
    world.pod("sick", json!({"containers": [{"name": "c", "image": "serve:1", "livenessProbe": probe}]})).await;
    let status = world.until("sick", "a restart", |s| s["containerStatuses"][0]["restartCount"] == 1).await;
    assert_eq!(status["containerStatuses"][0]["lastState"]["terminated"]["exitCode"], 0);
    assert_eq!(world.runtime.state.lock().unwrap().named("c")[0].stopped_with, Some(3));
    world.until_event("Killing: Container c failed liveness probe, will be restarted").await;
}

#[tokio::test]
async fn exec_probes_say_what_their_program_said() {
    let world = ready_world().await;
    let probe = |command: &[&str]| json!({"exec": {"command": command}, "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 2});
    let container = |name: &str, command: &[&str]| json!({"name": name, "image": "serve:1", "readinessProbe": probe(command)});
    let containers =
        [container("good", &["true"]), container("bad", &["false", "1"]), container("slow", &["hang", "on"]), container("odd", &["nosuch"])];
    world.pod("probed", json!({"containers": containers})).await;
    for event in [
        "Unhealthy: Readiness probe failed: ran false 1",
        "Unhealthy: Readiness probe failed: command timed out: \"hang on\" timed out after 2s",
        "Unhealthy: Readiness probe errored and resulted in unknown state: executable file not found in $PATH",
    ] {
        world.until_event(event).await;
    }
    let of = |status: &serde_json::Value, name: &str| {
        let all = status["containerStatuses"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|c| c["name"] == name).map(|c| c["ready"] == true)
    };
    world
        .until("probed", "one of four is ready", |s| {
            ["good", "bad", "slow", "odd"].map(|name| of(s, name) == Some(true)) == [true, false, false, false]
        })
        .await;
    // What cannot be tried is no reason to restart; what fails is.
    let spec = |name: &str, command: &[&str]| json!({"name": name, "image": "serve:1", "livenessProbe": probe(command)});
    world.pod("lives", json!({"containers": [spec("odd", &["nosuch"]), spec("bad", &["false", "2"])]})).await;
    world.until_event("Unhealthy: Liveness probe failed: ran false 2").await;
    world.until_event("Killing: Container bad failed liveness probe, will be restarted").await;
    world.until_event("Unhealthy: Liveness probe errored and resulted in unknown state: executable file not found in $PATH").await;
    let state = world.runtime.state.lock().unwrap();
    assert_eq!(state.named("odd").iter().filter(|c| c.stopped_with.is_some()).count(), 0, "nothing stopped it");
}

#[tokio::test]
async fn hooks_run_around_a_containers_life() {
    let world = ready_world().await;
    let lifecycle = json!({"postStart": {"exec": {"command": ["hello"]}}, "preStop": {"exec": {"command": ["false", "bye"]}}});
    world.pod("web", json!({"terminationGracePeriodSeconds": 5, "containers": [{"name": "c", "image": "serve:1", "lifecycle": lifecycle}]})).await;
    world.until_running("web").await;
    assert_eq!(world.runtime.state.lock().unwrap().execs, ["hello"]);
    world.pods().delete("web", &DeleteParams::default()).await.unwrap();
    world.eventually("pod gone", async || world.pods().get_opt("web").await.unwrap().is_none()).await;
    assert_eq!(world.runtime.state.lock().unwrap().execs, ["hello", "false bye"]);
    world.eventually("the event", async || world.events().await.iter().any(|e| e == "FailedPreStopHook: PreStopHook failed")).await;
}

#[tokio::test]
async fn an_ended_container_leaves_its_message() {
    let world = ready_world().await;
    world.pod("says", json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "serve:1"}]})).await;
    world.until_running("says").await;
    let container = world.runtime.state.lock().unwrap().named("c").remove(0);
    let file = container.config.mounts.iter().find(|m| m.container_path == r"C:\dev\termination-log").unwrap();
    std::fs::write(world.runtime.path(&file.host_path), "out of cheese").unwrap();
    world.runtime.exit(&container.id, 4);
    let status = world.until("says", "Failed", |s| s["phase"] == "Failed").await;
    assert_eq!(status["containerStatuses"][0]["state"]["terminated"]["message"], "out of cheese");

    let spec = json!({"name": "c", "image": "exit-5:1", "terminationMessagePolicy": "FallbackToLogsOnError"});
    world.pod("logs", json!({"restartPolicy": "Never", "containers": [spec]})).await;
    let status = world.until("logs", "Failed", |s| s["phase"] == "Failed").await;
    let message = status["containerStatuses"][0]["state"]["terminated"]["message"].as_str().unwrap();
    assert!(message.ends_with("says hello\n"), "{message}");
}

#[tokio::test]
async fn a_claimed_volume_is_awaited_and_mounted() {
    use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
    use kube::Api;
    use kube::api::{Patch, PatchParams, PostParams};
    let world = ready_world().await;
    let mounted = json!([{"name": "data", "mountPath": "/data"}]);
    let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "claim", "readOnly": true}}]);
    world.pod("uses", json!({"containers": [{"name": "c", "image": "serve:1", "volumeMounts": mounted}], "volumes": volumes})).await;
    let missing = "error processing PVC default/claim: failed to fetch PVC from API server: persistentvolumeclaims \"claim\" not found";
    world.eventually("the missing claim", async || world.events().await.iter().any(|e| e.starts_with("FailedMount:") && e.ends_with(missing))).await;

    let claims: Api<PersistentVolumeClaim> = Api::namespaced(world.admin(), "default");
    let claim = json!({"metadata": {"name": "claim"}, "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": "pv",
        "resources": {"requests": {"storage": "1Gi"}}}});
    let claim = claims.create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
    let volumes: Api<PersistentVolume> = Api::all(world.admin());
    let volume = json!({"metadata": {"name": "pv"}, "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
        "hostPath": {"path": "E:/"}, "claimRef": {"name": "claim", "namespace": "default", "uid": claim.metadata.uid}}});
    volumes.create(&PostParams::default(), &serde_json::from_value(volume).unwrap()).await.unwrap();
    let bound = json!({"status": {"phase": "Bound"}});
    claims.patch_status("claim", &PatchParams::default(), &Patch::Merge(&bound)).await.unwrap();
    // The node has no drive E: and says so; a pod beside it, on C:, runs.
    let drive = "MountVolume.SetUp failed for volume \"pv\" : no drive E: on this node; it has C";
    world.eventually("the missing drive", async || world.events().await.iter().any(|e| e == &format!("FailedMount: {drive}"))).await;

    let claim = json!({"metadata": {"name": "other"}, "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": "local",
        "resources": {"requests": {"storage": "1Gi"}}}});
    let claim = claims.create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
    std::fs::create_dir(world.drive().join("disk")).unwrap();
    let affinity =
        json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "kubernetes.io/os", "operator": "In", "values": ["windows"]}]}]}});
    let volume = json!({"metadata": {"name": "local"}, "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
        "local": {"path": "C:\\disk"}, "nodeAffinity": affinity,
        "claimRef": {"name": "other", "namespace": "default", "uid": claim.metadata.uid}}});
    volumes.create(&PostParams::default(), &serde_json::from_value(volume).unwrap()).await.unwrap();
    claims.patch_status("other", &PatchParams::default(), &Patch::Merge(&bound)).await.unwrap();
    let containers = json!([{"name": "d", "image": "serve:1", "volumeMounts": mounted}]);
    let own = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "other", "readOnly": true}}]);
    world.pod("runs", json!({"containers": containers, "volumes": own})).await;
    world.until_running("runs").await;
    let container = world.runtime.state.lock().unwrap().named("d").remove(0);
    let mount = container.config.mounts.iter().find(|m| m.container_path == r"C:\data").unwrap();
    assert_eq!((mount.host_path.as_str(), mount.readonly), (r"C:\disk", true));
}

#[tokio::test]
async fn an_ephemeral_container_joins_once() {
    let world = ready_world().await;
    world.pod("web", json!({})).await;
    world.until_running("web").await;
    let mut pod = world.pods().get("web").await.unwrap();
    let debugger = json!([{"name": "debugger", "image": "exit-0:1", "targetContainerName": "c"}]);
    pod.spec.as_mut().unwrap().ephemeral_containers = serde_json::from_value(debugger).unwrap();
    world.pods().replace_ephemeral_containers("web", &kube::api::PostParams::default(), &pod).await.unwrap();
    let ended = |s: &serde_json::Value| s["ephemeralContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 0;
    let status = world.until("web", "an ended debugger", ended).await;
    assert_eq!((status["phase"].as_str(), status["containerStatuses"][0]["restartCount"].as_i64()), (Some("Running"), Some(0)));
    // Time in which it must not start.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(world.runtime.state.lock().unwrap().named("debugger").len(), 1, "it never starts again");
    world.until_event("Started: Container started: debugger").await;
}

/// Connections that say nothing, with and without TLS, keep nobody out of the agent's server.
#[tokio::test]
async fn idle_connections_do_not_starve_the_server() {
    let world = ready_world().await;
    let mut held = Vec::new();
    for _ in 0..300 {
        held.push(tokio::net::TcpStream::connect(("127.0.0.1", world.port)).await.unwrap());
    }
    let mut strangers = Vec::new();
    for _ in 0..300 {
        strangers.push(world.handshake(None).await);
    }
    let asked = in_time("an answer beside idle connections", world.get("/healthz", Some(("admin", "system:masters")), None)).await;
    assert_eq!(asked, (200, "ok".into()));
}

#[tokio::test]
async fn the_node_is_ready_once_it_knows_its_pods_and_services() {
    let mut world = World::new().await;
    world.pod("bound", json!({})).await;
    world.link.forbid(&["pods", "services"]);
    world.start_agent();
    let waits = async |what: &str| world.ready_condition().await.is_some_and(|c| c.status == "False" && c.message.unwrap_or_default().contains(what));
    world.eventually("what is waited for", async || waits("waiting for the first list of this node's pods from the API server").await).await;
    assert!(waits("waiting for the first list of services from the API server").await);
    assert_eq!(world.ready_condition().await.unwrap().reason.as_deref(), Some("KubeletNotReady"));
    world.link.forbid(&["pods"]);
    world.eventually("the refusal's words", async || waits("pods is forbidden: User \"system:node:win01\" cannot list").await).await;
    world.link.forbid(&["services"]);
    world.eventually("only services are waited for", async || waits("services").await && !waits("pods").await).await;
    world.link.forbid(&[]);
    world.eventually("node Ready", async || world.node_is_ready().await).await;
    world.until_running("bound").await;
}

#[tokio::test]
async fn a_node_works_where_the_api_server_streams_no_lists() {
    let mut world = World::new().await;
    world.link.answer_streams(500, "a watch stream was requested by the client but the required storage feature RequestWatchProgress is disabled");
    world.start_agent();
    world.eventually("node Ready", async || world.node_is_ready().await).await;
    world.config_map("settings", json!({"COLOUR": "blue"})).await;
    world.pod("web", json!({"containers": [{"name": "c", "image": "serve:1", "envFrom": [{"configMapRef": {"name": "settings"}}]}]})).await;
    world.until_running("web").await;
    let (_, metrics) = world.get("/metrics", Some(("admin", "system:masters")), None).await;
    for resource in ["pods", "services", "nodes", "configmaps"] {
        let line = format!("mullion_streaming_list_fallbacks_total{{resource={resource:?}}} ");
        let count = metrics.split_once(&line).and_then(|(_, rest)| rest.lines().next());
        assert!(count.is_some_and(|count| count != "0"), "{line} in {metrics}");
    }
}
