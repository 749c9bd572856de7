//! Resources of containers, in the kernel's control groups.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::cluster::{Cluster, container, kubectl};

/// Reads a limit inside a container, where version 1 or version 2 of control groups has it.
fn limit(v1: &str, v2: &str) -> String {
    format!("cat /sys/fs/cgroup/{v1} 2>/dev/null || cat /sys/fs/cgroup/{v2}")
}

fn memory() -> String {
    limit("memory/memory.limit_in_bytes", "memory.max")
}

/// In hundredths of a processor.
fn processor() -> String {
    "if [ -e /sys/fs/cgroup/cpu.max ]; then cut -d' ' -f1 /sys/fs/cgroup/cpu.max; else cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us; fi".to_owned()
}

fn resources(cpu: &str, memory: &str) -> Value {
    json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}})
}

pub async fn limits_are_in_the_control_groups(cluster: Arc<Cluster>) {
    let spec = json!({"containers": [{"name": "c", "command": ["sleep", "1000"], "resources": resources("150m", "32Mi")}]});
    cluster.pod("limited", spec).await;
    let status = cluster.until_ready("limited").await;
    assert_eq!(status["qosClass"], "Guaranteed");
    assert_eq!(cluster.exec("limited", "c", &memory()).await.trim(), (32 << 20).to_string());
    assert_eq!(cluster.exec("limited", "c", &processor()).await.trim(), "15000");
}

pub async fn a_program_that_takes_too_much_memory_is_killed(cluster: Arc<Cluster>) {
    let greedy = json!({"name": "c", "command": ["sh", "-c", "head -c 100m /dev/zero | tail"], "resources": resources("500m", "16Mi")});
    cluster.pod("greedy", json!({"restartPolicy": "Never", "containers": [greedy]})).await;
    let status = cluster.until_phase("greedy", "Failed").await;
    let ended = &container(&status, "c")["state"]["terminated"];
    assert_eq!(ended["reason"], "OOMKilled", "{ended}");
}

pub async fn containers_are_resized_in_place(cluster: Arc<Cluster>) {
    let spec = json!({"containers": [{"name": "c", "command": ["sleep", "1000"], "resources": resources("100m", "32Mi")}]});
    cluster.pod("resized", spec).await;
    let before = cluster.until_ready("resized").await;
    let patch = json!({"spec": {"containers": [{"name": "c", "resources": resources("200m", "48Mi")}]}}).to_string();
    kubectl(&["patch", "pod", "resized", "--subresource", "resize", "--patch", &patch]).await.unwrap();
    let resized = |status: &Value| container(status, "c")["resources"]["limits"] == json!({"cpu": "200m", "memory": "48Mi"});
    let after = cluster.until_status("resized", "the new limits", resized).await;
    assert_eq!(container(&after, "c")["containerID"], container(&before, "c")["containerID"], "no restart");
    assert_eq!(cluster.exec("resized", "c", &memory()).await.trim(), (48 << 20).to_string());
    assert_eq!(cluster.exec("resized", "c", &processor()).await.trim(), "20000");
}
