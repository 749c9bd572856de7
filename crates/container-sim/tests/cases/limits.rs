//! Limits. Whether control groups can be made depends on who runs this and where; either way a limit holds, or the status
//! says that it does not.

use std::path::PathBuf;
use std::time::Duration;

use cri::v1;
use serde_json::Value;

use crate::support::{Node, container, describe, image_archive, sandbox, windows_sandbox};

const UNENFORCED: &str = "mullion.io/unenforced-limits";

async fn info(node: &Node, id: &str) -> Value {
    let request = v1::ContainerStatusRequest { container_id: id.into(), verbose: true };
    serde_json::from_str(&node.client.container_status(request).await.unwrap().info["info"]).unwrap()
}

fn limited(name: &str, command: &[&str], resources: v1::LinuxContainerResources) -> v1::ContainerConfig {
    v1::ContainerConfig {
        linux: Some(v1::LinuxContainerConfig { resources: Some(resources), security_context: None }),
        ..container(name, "demo:1", command)
    }
}

pub async fn linux(dir: PathBuf) {
    let node = Node::linux(&dir).await;
    node.store().load(&image_archive(&dir), &Default::default()).unwrap();
    let pod = node.run(sandbox("limits")).await;
    let resources = v1::LinuxContainerResources { memory_limit_in_bytes: 32 << 20, cpu_quota: 20_000, cpu_period: 100_000, ..Default::default() };
    let id = node.start(&pod, limited("idle", &["/bin/sleep", "1000"], resources.clone())).await;
    let enforced = info(&node, &id).await["resources"]["memory"].as_str().unwrap().starts_with("enforced by a control group");
    println!("    control groups can be made here: {enforced}");
    assert_eq!(node.status(&id).await.annotations.get(UNENFORCED).map(String::as_str), (!enforced).then_some("cpu,memory"));
    let groups = node.client.exec_sync(&id, &["/bin/cat".into(), "/proc/self/cgroup".into()], Duration::ZERO).await.unwrap();
    let groups = String::from_utf8(groups.stdout).unwrap();
    assert_eq!(groups.contains(&format!("-{}", &id[..16])), enforced, "what runs beside the container is bound with it: {groups}");
    if enforced {
        // A program that wants all there is.
        let greedy = node.start(&pod, limited("greedy", &["/bin/tail", "/dev/zero"], resources.clone())).await;
        let status = node.wait_exit(&greedy).await;
        assert_eq!((status.exit_code, status.reason.as_str()), (137, "OOMKilled"), "{}", describe(&status));
        // A fifth of a processor, however much there is to do.
        let work = "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done; cat /proc/$$/schedstat";
        let busy = node.start(&pod, limited("busy", &["/bin/sh", "-c", work], resources.clone())).await;
        let status = node.wait_exit(&busy).await;
        let log = std::fs::read_to_string(dir.join("host/var/log/pods/limits/busy/0.log")).unwrap();
        let worked: i64 = log.split_whitespace().nth(3).unwrap().parse().unwrap();
        let share = worked as f64 / (status.finished_at - status.started_at) as f64;
        println!("    a program limited to 0.2 processors had {share:.2}");
        assert!(share < 0.4, "{share}");
        let stats = node.client.container_stats(v1::ContainerStatsRequest { container_id: id.clone() }).await.unwrap();
        let available = stats.memory.unwrap().available_bytes.unwrap().value;
        assert!(available > 16 << 20 && available <= 32 << 20, "{available}");
    }
    // An update changes what it names, for what runs too.
    let update = v1::LinuxContainerResources { memory_limit_in_bytes: 48 << 20, ..Default::default() };
    let request = v1::UpdateContainerResourcesRequest { container_id: id.clone(), linux: Some(update), ..Default::default() };
    node.client.update_container_resources(request).await.unwrap();
    let expected = v1::LinuxContainerResources { memory_limit_in_bytes: 48 << 20, ..resources };
    assert_eq!(node.status(&id).await.resources.unwrap().linux, Some(expected));
    if enforced {
        let memory = groups.lines().find(|line| line.contains(":memory:") || line.starts_with("0::")).unwrap().rsplit(':').next().unwrap().to_owned();
        let file = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].map(|root| PathBuf::from(format!("{root}{memory}")));
        let value = file
            .iter()
            .flat_map(|dir| ["memory.limit_in_bytes", "memory.max"].map(|name| dir.join(name)))
            .find_map(|path| std::fs::read_to_string(path).ok());
        assert_eq!(value.unwrap().trim(), (48u64 << 20).to_string());
        // A program finds its own limits where it looks for them.
        let look = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max; \
                    cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu.max; echo x > /sys/fs/cgroup/cpu/cpu.shares || echo protected";
        let seen = node.client.exec_sync(&id, &["/bin/sh".into(), "-c".into(), look.into()], Duration::ZERO).await.unwrap();
        let seen = String::from_utf8(seen.stdout).unwrap();
        assert!(seen.starts_with("50331648\n20000") && seen.ends_with("protected\n"), "{seen}");
    }
    node.create(
        &pod,
        limited("never-started", &["/bin/true"], v1::LinuxContainerResources { memory_limit_in_bytes: 32 << 20, ..Default::default() }),
    )
    .await
    .unwrap();
    node.remove(&pod).await;
    if enforced {
        let left = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        let memory = left.lines().find_map(|line| line.split_once(":memory:")).map(|(_, path)| format!("/sys/fs/cgroup/memory{path}"));
        let names = std::fs::read_dir(memory.unwrap()).unwrap().flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        // Runtimes of other tests, and of the machine's clusters, have groups beside these.
        let (own, _) = groups.split_once(&format!("-{}", &id[..16])).unwrap();
        let own = own.rsplit('/').next().unwrap();
        assert!(own.starts_with("mullion-") && own.len() == "mullion-01234567".len(), "{own}");
        let names: Vec<String> = names.filter(|name| name.starts_with(own)).collect();
        assert!(names.is_empty(), "control groups are left: {names:?}");
    }
    let gone = v1::UpdateContainerResourcesRequest { container_id: id, linux: Some(Default::default()), ..Default::default() };
    assert!(node.client.update_container_resources(gone).await.unwrap_err().is_not_found());
}

pub async fn windows(dir: PathBuf) {
    let node = Node::windows(&dir, 20348, true).await;
    node.pull("microsoft/iis").await.unwrap();
    let pod = node.run(windows_sandbox("job")).await;
    let resources = |memory: i64| v1::WindowsContainerResources { memory_limit_in_bytes: memory, cpu_maximum: 625, ..Default::default() };
    let mut config = container("iis", "microsoft/iis", &[]);
    config.windows = Some(v1::WindowsContainerConfig { resources: Some(resources(200 << 20)), security_context: None });
    let id = node.start(&pod, config).await;
    let info = info(&node, &id).await;
    assert!(info["resources"]["memory"].as_str().unwrap().contains("allocations fail"), "{info}");
    let pid = info["pid"].as_i64().unwrap();
    let bound = || {
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max data size")).unwrap().to_owned();
        line.split_whitespace().nth(3).unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(bound(), 200 << 20);
    let update = v1::UpdateContainerResourcesRequest { container_id: id.clone(), windows: Some(resources(300 << 20)), ..Default::default() };
    node.client.update_container_resources(update).await.unwrap();
    assert_eq!(bound(), 300 << 20);
    assert_eq!(node.status(&id).await.resources.unwrap().windows, Some(resources(300 << 20)));
    node.remove(&pod).await;
}
