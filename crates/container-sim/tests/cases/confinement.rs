//! What a container must not reach.

use std::path::PathBuf;
use std::time::Duration;

use nix::sys::statvfs::{FsFlags, statvfs};

use crate::support::{Node, container, image_archive, sandbox, windows_sandbox};

pub async fn reach(dir: PathBuf) {
    // Whatever whoever starts the runtime leaves open.
    let left = std::fs::File::open(&dir).unwrap();
    rustix::io::fcntl_setfd(&left, rustix::io::FdFlags::empty()).unwrap();
    let node = Node::linux(&dir).await;
    node.store().load(&image_archive(&dir), &Default::default()).unwrap();
    std::fs::write(dir.join("host/secret"), "of the node").unwrap();
    let pod = node.run(sandbox("confined")).await;
    node.start(&pod, container("other", "demo:1", &["/bin/sh", "-c", "echo mine > /mine; exec sleep 1000"])).await;
    let id = node.start(&pod, container("main", "demo:1", &["/bin/sleep", "1000"])).await;
    let run = async |text: &str| {
        let command = ["/bin/sh", "-c", text].map(str::to_owned);
        let answer = node.client.exec_sync(&id, &command, Duration::from_secs(10)).await.unwrap();
        String::from_utf8(answer.stdout).unwrap() + &String::from_utf8(answer.stderr).unwrap()
    };
    for (what, held) in [("the first program", "ls -l /proc/1/fd"), ("a later one", "ls -l /proc/self/fd")] {
        let held = run(held).await;
        assert!(!held.contains(&*dir.to_string_lossy()) && !held.contains("socket:"), "{what} holds descriptors of the lab: {held}");
    }
    let seen = run("ls /; ls /proc | grep '^[0-9]'; cat /proc/self/mountinfo; cat /proc/1/environ; cat /mine /secret; ls /proc/1/root/../..").await;
    assert!(!seen.contains("of the node") && !seen.contains("mine\n"), "{seen}");
    // Mounts name where they come from, and nothing below that can be reached.
    assert!(!seen.contains("shim.sock") && !seen.contains("MULLION"), "{seen}");
    // runc's lists: what is hidden is empty, what is protected cannot be written.
    let hidden = "cat /proc/keys /proc/timer_list /proc/kcore 2>/dev/null; ls -A /proc/scsi /sys/firmware 2>/dev/null | grep -v :";
    assert_eq!(run(&format!("echo \"[$({hidden})]\"")).await, "[]\n");
    for attempt in ["echo 9 > /proc/sys/kernel/pid_max", "echo b > /proc/sysrq-trigger", "mount -t tmpfs x /etc", "cat /dev/mem"] {
        assert!(!run(&format!("({attempt}) 2>/dev/null && echo done")).await.contains("done"), "{attempt}");
    }
    drop(left);
    node.remove(&pod).await;
    node.stop().await;
    // The program of the lab itself, wherever a container's process can reach it, lies on a mount that cannot be written.
    let node = Node::windows(&dir.join("w"), 20348, true).await;
    node.pull("microsoft/iis").await.unwrap();
    let pod = node.run(windows_sandbox("read-only")).await;
    let id = node.start(&pod, container("iis", "microsoft/iis", &[])).await;
    let verbose = cri::v1::ContainerStatusRequest { container_id: id, verbose: true };
    let info = node.client.container_status(verbose).await.unwrap().info["info"].clone();
    let stand_in = serde_json::from_str::<serde_json::Value>(&info).unwrap()["pid"].as_i64().unwrap();
    let request = cri::v1::PodSandboxStatusRequest { pod_sandbox_id: pod.clone(), verbose: true };
    let info = node.client.pod_sandbox_status(request).await.unwrap().info["info"].clone();
    let shim = serde_json::from_str::<serde_json::Value>(&info).unwrap()["pid"].as_i64().unwrap();
    for pid in [stand_in, shim] {
        let flags = statvfs(&PathBuf::from(format!("/proc/{pid}/exe"))).unwrap().flags();
        assert!(flags.contains(FsFlags::ST_RDONLY), "process {pid} was started from a file that its container may write");
    }
    let fds = std::fs::read_dir(format!("/proc/{stand_in}/fd")).unwrap().filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
    let fds: Vec<PathBuf> = fds.collect();
    assert!(fds.iter().all(|target| !target.starts_with(&dir)), "a stand-in holds descriptors of the lab: {fds:?}");
    node.remove(&pod).await;
}
