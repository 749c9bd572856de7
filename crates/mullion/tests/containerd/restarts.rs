//! The agent and the runtime end and come back.

use std::sync::Arc;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::cluster::{self, Cluster, container};
use crate::machine::{SOCKET, TCP};

pub async fn an_agent_that_was_killed_adopts_its_pods(cluster: Arc<Cluster>) {
    let waits = |file: &str, then: &str| json!(["sh", "-c", format!("while [ ! -e /run/{file} ]; do sleep 0.1; done; {then}")]);
    let mounts = json!([{"name": "run", "mountPath": "/run"}]);
    let directory = "/var/lib/restarts";
    let volumes = json!([{"name": "run", "hostPath": {"path": directory, "type": "DirectoryOrCreate"}}]);
    let part = |name: &str, command: serde_json::Value| json!({"name": name, "command": command, "volumeMounts": mounts});
    let spec = |policy: &str, parts: Vec<serde_json::Value>| json!({"restartPolicy": policy, "containers": parts, "volumes": volumes});
    cluster.pod("stays", spec("Always", vec![part("c", json!(["sleep", "1000"]))])).await;
    cluster.pod("ends", spec("Never", vec![part("c", waits("end", "printf bye > /dev/termination-log; exit 5"))])).await;
    cluster.pod("goes", spec("Always", vec![part("c", json!(["sleep", "1000"]))])).await;
    let before = cluster.until_ready("stays").await;
    cluster.until_ready("ends").await;
    cluster.until_ready("goes").await;
    cluster.node.kill();
    // Meanwhile a pod ends, another is deleted, and a third is created.
    std::fs::write(format!("{directory}/end"), "").unwrap();
    cluster.delete("goes").await;
    cluster.pod("comes", json!({"containers": [{"name": "c", "command": ["sleep", "1000"]}]})).await;
    // The new one reaches the runtime over TCP.
    cluster::write_node_config(&format!("tcp://{TCP}"));
    cluster.node.start();
    cluster.until_ready("comes").await;
    let ended = cluster.until_phase("ends", "Failed").await;
    let state = &container(&ended, "c")["state"]["terminated"];
    assert_eq!((state["exitCode"].as_i64(), state["message"].as_str()), (Some(5), Some("bye")));
    cluster.until_gone("goes").await;
    let after = cluster.until_ready("stays").await;
    let same = |status: &serde_json::Value| {
        (container(status, "c")["containerID"].clone(), container(status, "c")["restartCount"].clone(), status["podIP"].clone())
    };
    assert_eq!(same(&after), same(&before));
    assert_eq!(cluster.exec("stays", "c", "echo reached").await, "reached\n");
}

pub async fn containerd_restarts_under_running_pods(cluster: Arc<Cluster>) {
    cluster.pod("survives", json!({"containers": [{"name": "c", "command": ["sleep", "1000"]}]})).await;
    let before = cluster.until_ready("survives").await;
    cluster.containerd.kill();
    cluster.until_node_is("False").await;
    cluster.pod("patient", json!({"containers": [{"name": "c", "command": ["sleep", "1000"]}]})).await;
    cluster.containerd.start();
    cluster.until_node_is("True").await;
    cluster.until_ready("patient").await;
    let after = cluster.until_ready("survives").await;
    assert_eq!(container(&after, "c")["containerID"], container(&before, "c")["containerID"]);
    assert_eq!(container(&after, "c")["restartCount"], 0);
    assert_eq!(cluster.exec("survives", "c", "echo reached").await, "reached\n");
    // Its events are followed again.
    cluster.exec("survives", "c", "kill 1; sleep 0.1; kill -9 1; true").await;
    cluster.delete("survives").await;
    cluster.until_gone("survives").await;
}

/// SIGPWR announces it, as to containers that are nodes; logind is not there.
pub async fn a_shutdown_ends_pods_by_priority_and_then_the_agent(cluster: Arc<Cluster>) {
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "shutdown-late"}, "value": 5000});
    cluster.create_whole(class).await;
    let groups = json!([{"priority": 0, "shutdownGracePeriodSeconds": 20}, {"priority": 5000, "shutdownGracePeriodSeconds": 20}]);
    cluster.node.kill();
    cluster::write_node_config_with(&format!("unix://{SOCKET}"), json!({"shutdownGracePeriodByPodPriority": groups}));
    cluster.node.start();
    let directory = "/var/lib/shutdown";
    let lasting = |name: &str, class: &str| {
        let script = format!("trap 'sleep 1; echo {name} >> /all/said; exit' TERM; while :; do sleep 0.1; done");
        json!({"priorityClassName": class, "terminationGracePeriodSeconds": 15, "volumes": [{"name": "all", "hostPath": {"path": directory, "type": "DirectoryOrCreate"}}],
            "containers": [{"name": "c", "command": ["sh", "-c", script], "volumeMounts": [{"name": "all", "mountPath": "/all"}]}]})
    };
    cluster.pod("shut-late", lasting("late", "shutdown-late")).await;
    cluster.pod("shut-early", lasting("early", "")).await;
    for name in ["shut-late", "shut-early"] {
        cluster.until_ready(name).await;
    }
    kill(Pid::from_raw(cluster.node.pid().unwrap().cast_signed()), Signal::SIGPWR).unwrap();
    let status = cluster.until("the end of the agent", async || cluster.node.ended().ok_or_else(|| "it runs".to_owned())).await;
    assert!(status.success(), "{status}");
    assert_eq!(std::fs::read_to_string(format!("{directory}/said")).unwrap(), "early\nlate\n");
    for name in ["shut-late", "shut-early"] {
        let status = cluster.status(name).await;
        let message = "Pod was terminated in response to imminent node shutdown.";
        let found = ["phase", "reason", "message"].map(|member| status[member].as_str().unwrap_or_default());
        assert_eq!(found, ["Failed", "Terminated", message], "{name}");
    }
    cluster.until_node_is("False").await;
    cluster::write_node_config(&format!("unix://{SOCKET}"));
    cluster.node.start();
    cluster.pod("shut-after", json!({"containers": [{"name": "c", "command": ["sleep", "1000"]}]})).await;
    cluster.until_ready("shut-after").await;
    assert_eq!(cluster.status("shut-early").await["phase"], "Failed");
}
