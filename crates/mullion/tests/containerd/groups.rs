//! Control groups of pods, on the kernel's own.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::cluster::{Cluster, container};

/// How many processes a pod of this node may have (`podPidsLimit`).
pub const PIDS: u32 = 64;

/// The directories of a pod's group: by its class, `""` for Guaranteed.
fn directories(class: &str, uid: &str) -> Vec<PathBuf> {
    let hierarchies: Vec<PathBuf> = match PathBuf::from("/sys/fs/cgroup/cgroup.controllers").exists() {
        true => vec!["/sys/fs/cgroup".into()],
        false => {
            let all = std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten();
            // Controllers' own names are links to their hierarchies.
            all.filter(|entry| entry.file_type().unwrap().is_dir()).map(|entry| entry.path()).collect()
        }
    };
    hierarchies.into_iter().map(|mount| mount.join("kubepods").join(class).join(format!("pod{uid}"))).collect()
}

/// A value of a pod's group, in version 1 or 2.
fn value(groups: &[PathBuf], v1: &str, v2: &str) -> String {
    let file = groups.iter().flat_map(|group| [group.join(v1), group.join(v2)]).find(|file| file.exists());
    std::fs::read_to_string(file.unwrap_or_else(|| panic!("no {v1} in {groups:?}"))).unwrap().trim().to_owned()
}

async fn uid(cluster: &Cluster, pod: &str) -> String {
    cluster.pods().get(pod).await.unwrap().metadata.uid.unwrap()
}

fn memory(groups: &[PathBuf]) -> String {
    value(groups, "memory.limit_in_bytes", "memory.max")
}

pub async fn pods_have_groups_of_their_own_that_are_gone_after_them(cluster: Arc<Cluster>) {
    let full = |cpu: &str, memory: &str| json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}});
    let part = |name: &str, resources: Value| json!({"name": name, "command": ["sleep", "1000"], "resources": resources});
    let two = json!({"containers": [part("a", full("100m", "16Mi")), part("b", full("200m", "32Mi"))]});
    let burstable = json!({"containers": [part("c", json!({"requests": {"cpu": "300m"}}))]});
    let effortless = json!({"containers": [part("c", json!({}))]});
    for (pod, class, spec) in [("grouped", "", two), ("grouped-burstable", "burstable", burstable), ("grouped-besteffort", "besteffort", effortless)]
    {
        cluster.pod(pod, spec).await;
        cluster.until_ready(pod).await;
        let groups = directories(class, &uid(&cluster, pod).await);
        let missing: Vec<_> = groups.iter().filter(|group| !group.is_dir()).collect();
        assert!(missing.is_empty(), "{pod}: {missing:?}");
        // Its processes are in groups below it.
        let id = cluster.exec(pod, if pod == "grouped" { "a" } else { "c" }, "echo reached").await;
        assert_eq!(id, "reached\n");
        let inside = groups.iter().any(|group| std::fs::read_dir(group).unwrap().flatten().filter(|entry| entry.path().is_dir()).count() >= 2);
        assert!(inside, "{pod}: sandbox and container are elsewhere");
        match class {
            "" => {
                assert_eq!(memory(&groups), (48 << 20).to_string(), "the sum of its containers");
                assert!(value(&groups, "cpu.cfs_quota_us", "cpu.max").starts_with("30000"));
            }
            "burstable" => assert!(["307", "12"].contains(&value(&groups, "cpu.shares", "cpu.weight").as_str())),
            _ => assert!(["2", "1"].contains(&value(&groups, "cpu.shares", "cpu.weight").as_str())),
        }
        assert_eq!(value(&groups, "pids.max", "pids.max"), PIDS.to_string());
        cluster.delete(pod).await;
        cluster.until_gone(pod).await;
        let left: Vec<_> = groups.iter().filter(|group| group.exists()).collect();
        assert!(left.is_empty(), "{pod}: {left:?}");
    }
}

pub async fn a_fork_bomb_ends_at_the_pods_number_of_processes(cluster: Arc<Cluster>) {
    // A shell that cannot fork ends; what it has started stays. It waits, and is started last: threads of runc count too until a moment after
    // the start, and would leave places that nothing fills.
    let bomb = "(sleep 2; i=0; while [ $i -lt 500 ]; do sleep 1000 & i=$((i + 1)); done) & exec sleep 1000";
    let spec = json!({"containers": [{"name": "other", "command": ["sleep", "1000"]}, {"name": "c", "command": ["sh", "-c", bomb]}]});
    cluster.pod("bomb", spec).await;
    let uid = uid(&cluster, "bomb").await;
    let groups = directories("besteffort", &uid);
    let files = || groups.iter().map(|group| group.join("pids.current")).find(|file| file.exists());
    let count = || files().and_then(|file| std::fs::read_to_string(file).ok()?.trim().parse::<u32>().ok());
    // The shell that could not fork may still be there.
    let is_full = |count: Option<u32>| count.is_some_and(|count| (PIDS - 1..=PIDS).contains(&count));
    cluster.until("the pod to be full", async || if is_full(count()) { Ok(()) } else { Err(format!("{:?} processes", count())) }).await;
    // The kernel counts a process before it refuses it, and without a bound there would be 500 by now.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert!(is_full(count()), "{:?} processes", count());
    cluster.delete("bomb").await;
    cluster.until_gone("bomb").await;
    assert_eq!(files(), None);
}

/// How many processes of a pod the kernel has killed for want of memory: by the pod's group, which counts all in version 2, and by each group
/// below it, which count their own in version 1.
fn killed(groups: &[PathBuf]) -> Vec<u64> {
    let below = |group: &PathBuf| std::fs::read_dir(group).into_iter().flatten().flatten().map(|entry| entry.path()).collect::<Vec<_>>();
    let all = groups.iter().flat_map(|group| below(group).into_iter().chain([group.clone()]));
    let texts = all.flat_map(|group| ["memory.oom_control", "memory.events"].map(|file| std::fs::read_to_string(group.join(file))));
    texts.flatten().filter_map(|text| text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok())).collect()
}

pub async fn a_pods_memory_limit_holds_for_its_containers_together(cluster: Arc<Cluster>) {
    // Each may have all of it, and both have more.
    let part = |name: &str| json!({"name": name, "command": ["sh", "-c", "head -c 24m /dev/zero | tail | sleep 1000"]});
    let spec = json!({
        "restartPolicy": "Never",
        "resources": {"requests": {"cpu": "100m", "memory": "32Mi"}, "limits": {"cpu": "500m", "memory": "32Mi"}},
        "containers": [part("a"), part("b")],
    });
    cluster.pod("hungry-together", spec).await;
    let uid = uid(&cluster, "hungry-together").await;
    let groups = directories("burstable", &uid);
    cluster
        .until("a process to be killed for the pod's memory", async || {
            let counts = killed(&groups);
            if counts.iter().any(|count| *count > 0) { Ok(()) } else { Err(format!("{counts:?}")) }
        })
        .await;
    assert_eq!(memory(&groups), (32 << 20).to_string());
    let peak = value(&groups, "memory.max_usage_in_bytes", "memory.peak").parse::<u64>().unwrap();
    assert!(peak <= 32 << 20, "{peak} bytes");
    cluster.delete("hungry-together").await;
    cluster.until_gone("hungry-together").await;
}

pub async fn a_resized_pods_group_has_the_new_limits(cluster: Arc<Cluster>) {
    let resources = |cpu: &str, memory: &str| json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}});
    cluster.pod("regrouped", json!({"containers": [{"name": "c", "command": ["sleep", "1000"], "resources": resources("100m", "32Mi")}]})).await;
    cluster.until_ready("regrouped").await;
    let groups = directories("", &uid(&cluster, "regrouped").await);
    for (cpu, size, quota) in [("200m", "48Mi", "20000"), ("100m", "24Mi", "10000")] {
        let patch = json!({"spec": {"containers": [{"name": "c", "resources": resources(cpu, size)}]}}).to_string();
        crate::cluster::kubectl(&["patch", "pod", "regrouped", "--subresource", "resize", "--patch", &patch]).await.unwrap();
        let resized = |status: &Value| container(status, "c")["resources"]["limits"] == json!({"cpu": cpu, "memory": size});
        cluster.until_status("regrouped", "the new limits", resized).await;
        let bytes = size.trim_end_matches("Mi").parse::<u64>().unwrap() << 20;
        cluster
            .until("the limits of the pod's group", async || {
                let now = (memory(&groups), value(&groups, "cpu.cfs_quota_us", "cpu.max"));
                if now.0 == bytes.to_string() && now.1.starts_with(quota) { Ok(()) } else { Err(format!("{now:?}")) }
            })
            .await;
    }
    cluster.delete("regrouped").await;
    cluster.until_gone("regrouped").await;
}

pub async fn groups_are_gone_of_pods_that_end_while_no_agent_runs(cluster: Arc<Cluster>) {
    cluster.pod("orphaned", json!({"containers": [{"name": "c", "command": ["sleep", "1000"]}]})).await;
    cluster.until_ready("orphaned").await;
    let orphaned = directories("besteffort", &uid(&cluster, "orphaned").await);
    cluster.pod("finished", json!({"restartPolicy": "Never", "containers": [{"name": "c", "command": ["true"]}]})).await;
    cluster.until_phase("finished", "Succeeded").await;
    let finished = directories("besteffort", &uid(&cluster, "finished").await);
    let gone = |groups: &[PathBuf]| {
        let left: Vec<_> = groups.iter().filter(|group| group.exists()).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    };
    cluster.until("the end of the group of a pod that has ended", async || gone(&finished)).await;
    cluster.node.kill();
    cluster.delete("orphaned").await;
    // A process that no runtime knows, in the group of a pod that nobody knows.
    let stray = directories("besteffort", "00000000-dead-dead-dead-000000000000");
    stray.iter().for_each(|group| std::fs::create_dir_all(group).unwrap());
    let mut process = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let group = stray.iter().find(|group| group.join("pids.current").exists()).unwrap();
    std::fs::write(group.join("cgroup.procs"), process.id().to_string()).unwrap();
    cluster.node.start();
    cluster.until_gone("orphaned").await;
    cluster.until("the end of groups that no pod has", async || gone(&orphaned).and_then(|()| gone(&stray))).await;
    let status = process.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    cluster.delete("finished").await;
    cluster.until_gone("finished").await;
}

pub async fn a_runtime_classs_overhead_is_in_the_pods_group(cluster: Arc<Cluster>) {
    let class = json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "heavy"}, "handler": crate::runtimes::HANDLER,
        "overhead": {"podFixed": {"cpu": "50m", "memory": "16Mi"}}});
    cluster.create_whole(class).await;
    let resources = json!({"limits": {"cpu": "100m", "memory": "32Mi"}});
    let spec = json!({"runtimeClassName": "heavy", "containers": [{"name": "c", "command": ["sleep", "1000"], "resources": resources}]});
    cluster.pod("heavy", spec).await;
    cluster.until_ready("heavy").await;
    let groups = directories("", &uid(&cluster, "heavy").await);
    assert_eq!(memory(&groups), (48 << 20).to_string());
    assert!(value(&groups, "cpu.cfs_quota_us", "cpu.max").starts_with("15000"));
}
