//! Statistics: the summary and cAdvisor's metrics, of real containers with control groups.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::cluster::{Cluster, NODE, kubectl};

/// Reads a path of the agent's server.
async fn read(path: &str) -> Result<String, String> {
    kubectl(&["get", "--raw", &format!("/api/v1/nodes/{NODE}/proxy{path}")]).await
}

/// The value of a sample whose labels contain all of these.
fn sample(text: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let line =
        text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{')) && labels.iter().all(|l| line.contains(l)))?;
    line.rsplit_once("} ")?.1.split(' ').next()?.parse().ok()
}

pub async fn usage_of_containers_pods_and_the_node_is_measured(cluster: Arc<Cluster>) {
    let script = "head -c 3000000 /dev/zero > /tmp/written; i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; while :; do sleep 0.2; done";
    let limits = json!({"limits": {"cpu": "200m", "memory": "64Mi"}});
    let containers = json!([{"name": "busy", "command": ["sh", "-c", script], "resources": limits}]);
    cluster.pod("measured", json!({"containers": containers})).await;
    cluster.until_ready("measured").await;
    let own = ["container=\"busy\"", "namespace=\"default\"", "pod=\"measured\"", "id=\"/kubepods"];
    let text = cluster
        .until("cAdvisor's metrics of the container", async || {
            let text = read("/metrics/cadvisor").await?;
            let cpu = sample(&text, "container_cpu_usage_seconds_total", &own).unwrap_or(0.0);
            let throttled = sample(&text, "container_cpu_cfs_periods_total", &own).unwrap_or(0.0);
            // containerd looks at its snapshots every ten seconds.
            let written = sample(&text, "container_fs_usage_bytes", &own).unwrap_or(0.0);
            let is_all = cpu > 0.02 && throttled > 0.0 && written >= 3_000_000.0;
            if is_all { Ok(text) } else { Err(format!("{cpu} s, {throttled} periods, {written} bytes in\n{text}")) }
        })
        .await;
    let value = |name: &str, labels: &[&str]| sample(&text, name, labels).unwrap_or_else(|| panic!("{name} of {labels:?} is missing in\n{text}"));
    assert_eq!(value("container_spec_memory_limit_bytes", &own), f64::from(64 << 20));
    assert_eq!((value("container_spec_cpu_quota", &own), value("container_spec_cpu_period", &own)), (20_000.0, 100_000.0));
    assert!(value("container_memory_working_set_bytes", &own) > 4096.0);
    assert!(value("container_processes", &own) >= 1.0 && value("container_last_seen", &own) > 1.6e9);
    let image = text.lines().find(|line| line.starts_with("container_memory_rss{") && own.iter().all(|l| line.contains(l))).unwrap();
    assert!(!image.contains("image=\"\"") && !image.contains("name=\"\""), "{image}");
    // The network is the sandbox's, the pod's group has its name, and the machine is the root.
    let sandbox = ["container=\"\"", "namespace=\"default\"", "pod=\"measured\"", "interface=\"eth0\""];
    assert!(value("container_network_receive_bytes_total", &sandbox) >= 0.0);
    let machine = value("container_cpu_usage_seconds_total", &["id=\"/\""]);
    assert!(machine > value("container_cpu_usage_seconds_total", &own));
    assert!(value("machine_memory_bytes", &[]) > f64::from(64 << 20) && value("machine_cpu_cores", &[]) >= 1.0);

    let summary: Value = serde_json::from_str(&read("/stats/summary").await.unwrap()).unwrap();
    let node = &summary["node"];
    for (path, least) in [
        ("/cpu/usageCoreNanoSeconds", 1_000_000),
        ("/memory/workingSetBytes", 1 << 20),
        ("/memory/availableBytes", 1 << 20),
        ("/fs/capacityBytes", 1 << 20),
        ("/runtime/imageFs/capacityBytes", 1 << 20),
        ("/rlimit/maxpid", 100),
        ("/rlimit/curproc", 1),
    ] {
        assert!(node.pointer(path).and_then(Value::as_u64) >= Some(least), "{path} in {node:#}");
    }
    let system = node["systemContainers"].as_array().unwrap();
    assert!(system.iter().any(|own| own["name"] == "pods" && own["memory"]["workingSetBytes"].as_u64() > Some(4096)), "{system:#?}");
    let pods = summary["pods"].as_array().unwrap();
    let pod = pods.iter().find(|pod| pod["podRef"]["name"] == "measured").unwrap_or_else(|| panic!("{summary:#}"));
    let busy = &pod["containers"][0];
    assert!(busy["rootfs"]["usedBytes"].as_u64() >= Some(3_000_000) && busy["memory"]["workingSetBytes"].as_u64() > Some(4096), "{busy:#}");
    let cpu = |own: &Value| own["cpu"]["usageCoreNanoSeconds"].as_u64().unwrap_or_else(|| panic!("no processor time in {own:#}"));
    assert!(cpu(pod) >= cpu(busy) && cpu(busy) > 0, "the sandbox counts too: {pod:#}");
    assert_eq!(pod["network"]["name"], "eth0", "{pod:#}");
    assert!(pod["ephemeral-storage"]["usedBytes"].as_u64() >= Some(3_000_000), "{pod:#}");
    cluster.delete("measured").await;
    cluster.until_gone("measured").await;
}
