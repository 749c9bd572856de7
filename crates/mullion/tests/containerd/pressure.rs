//! Pods that end because the node's disk, or their part of it, is full. The node's is a file system in memory that tools/containerd makes.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::cluster::{self, Cluster, condition};
use crate::image;
use crate::machine::SOCKET;

const MIB: u64 = 1 << 20;

pub async fn containers_that_take_more_disk_than_they_may_end_their_pods(cluster: Arc<Cluster>) {
    let mounts = json!([{"name": "v", "mountPath": "/v"}]);
    let writes = |path: &str| json!(["sh", "-c", format!("head -c 4m /dev/zero > {path}; sleep 1000")]);
    let volume = json!({"containers": [{"name": "c", "command": writes("/v/file"), "volumeMounts": mounts}],
        "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}]});
    let limited =
        |name: &str, script: Value, limit: &str| json!({"name": name, "command": script, "resources": {"limits": {"ephemeral-storage": limit}}});
    // What the pod may take in all is enough.
    let layer = json!({"containers": [limited("c", writes("/file"), "1Mi"), limited("other", json!(["sleep", "1000"]), "64Mi")]});
    let whole = json!({"containers": [limited("c", writes("/file"), "1Mi")]});
    let free = json!({"containers": [{"name": "c", "command": writes("/file"), "volumeMounts": mounts}],
        "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}]});
    for (name, spec) in [("disk-volume", volume), ("disk-layer", layer), ("disk-whole", whole), ("disk-free", free)] {
        cluster.pod(name, spec).await;
    }
    cluster.until_ready("disk-free").await;
    for (name, why) in [
        ("disk-volume", "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". "),
        ("disk-layer", "Container c exceeded its local ephemeral storage limit \"1Mi\". "),
        ("disk-whole", "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. "),
    ] {
        let status = cluster.until_phase(name, "Failed").await;
        assert_eq!((status["reason"].as_str(), status["message"].as_str()), (Some("Evicted"), Some(why)));
    }
    assert_eq!(cluster.status("disk-free").await["phase"], "Running");
}

/// Bytes that are free below the agent's directory.
fn free() -> u64 {
    let found = nix::sys::statvfs::statvfs("/var/lib/kubelet").unwrap();
    found.blocks_available() * found.fragment_size()
}

/// Restarts the agent with other members of its configuration.
async fn configure(cluster: &Cluster, members: Value) {
    cluster.node.kill();
    cluster::write_node_config_with(&format!("unix://{SOCKET}"), members);
    cluster.node.start();
    cluster.until_node_is("True").await;
}

/// Pods of which the runtime knows nothing, such as those without an image, would go first, as upstream: none is there.
pub async fn a_full_disk_ends_the_pod_of_the_lowest_priority(cluster: Arc<Cluster>) {
    for (name, value) in [("disk-low", -10), ("disk-high", 1000)] {
        let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value});
        cluster.create_whole(class).await;
    }
    let hard = json!({"memory.available": "1Mi", "nodefs.available": (free() - 100 * MIB).to_string(), "imagefs.available": "0%"});
    configure(&cluster, json!({"evictionHard": hard, "evictionPressureTransitionPeriod": "1s"})).await;
    let writer = |class: &str, mib: u32| {
        let script = format!("head -c {mib}m /dev/zero > /v/file; touch /v/done; sleep 1000");
        let done = json!({"exec": {"command": ["test", "-e", "/v/done"]}, "periodSeconds": 1});
        json!({"priorityClassName": class, "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [{"name": "c", "command": ["sh", "-c", script], "readinessProbe": done, "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]})
    };
    // The one that stays has taken more.
    cluster.pod("disk-precious", writer("disk-high", 70)).await;
    cluster.until_ready("disk-precious").await;
    cluster.pod("disk-cheap", writer("disk-low", 60)).await;
    let status = cluster.until_phase("disk-cheap", "Failed").await;
    let message = status["message"].as_str().unwrap_or_default();
    assert!(status["reason"] == "Evicted" && message.starts_with("The node was low on resource: ephemeral-storage. "), "{status}");
    assert_eq!(condition(&status, "DisruptionTarget"), "True");
    // Its end made room, so that nobody else has to go.
    cluster.until_node_has("DiskPressure", "False").await;
    let left: Value = cluster.status("disk-precious").await;
    assert_eq!(left["phase"], "Running", "{left}");
    cluster.delete("disk-precious").await;
    cluster.until_gone("disk-precious").await;
    configure(&cluster, json!({})).await;
    // Those that no container used went first.
    image::import_all();
}
