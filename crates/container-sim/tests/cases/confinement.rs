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

/// A program whose file is gone (replaced by an update, while the cluster runs) still starts pods, from a copy that
/// containers cannot write. Played by a copy of this executable, which removes itself.
pub async fn replaced(dir: PathBuf) {
    let own = std::env::current_exe().unwrap();
    if own.file_name().is_none_or(|name| name != "copy") {
        let copy = dir.join("copy");
        std::fs::copy(own, &copy).unwrap();
        let ended = std::process::Command::new(copy).args(["inside", "whose_file_is_gone"]).status().unwrap();
        assert!(ended.success());
        return;
    }
    std::fs::remove_file(own).unwrap();
    let node = Node::linux(&dir).await;
    node.store().load(&image_archive(&dir), &Default::default()).unwrap();
    let pod = node.run(sandbox("replaced")).await;
    let id = node.start(&pod, container("main", "demo:1", &["/bin/sleep", "1000"])).await;
    let answer = node.client.exec_sync(&id, &["/bin/true".to_owned()], Duration::ZERO).await.unwrap();
    assert_eq!(answer.exit_code, 0);
    let request = cri::v1::PodSandboxStatusRequest { pod_sandbox_id: pod.clone(), verbose: true };
    let info = node.client.pod_sandbox_status(request).await.unwrap().info["info"].clone();
    let shim = serde_json::from_str::<serde_json::Value>(&info).unwrap()["pid"].as_i64().unwrap();
    assert!(statvfs(&PathBuf::from(format!("/proc/{shim}/exe"))).unwrap().flags().contains(FsFlags::ST_RDONLY));
    assert!(!dir.join("state/cri/sandboxes").join(&pod).join("program").exists(), "no copy is left to lie about");
    node.remove(&pod).await;
}

pub async fn filters(dir: PathBuf) {
    use cri::v1::security_profile::ProfileType;
    let node = Node::linux(&dir).await;
    node.store().load(&image_archive(&dir), &Default::default()).unwrap();
    std::fs::create_dir_all(dir.join("host/profiles")).unwrap();
    let profile = r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["chmod","fchmodat"],"action":"SCMP_ACT_ERRNO"}]}"#;
    std::fs::write(dir.join("host/profiles/no-chmod.json"), profile).unwrap();
    let pod = node.run(sandbox("filters")).await;
    let with = |name: &str, kind: ProfileType, file: &str, no_new_privs: bool| {
        let seccomp = Some(cri::v1::SecurityProfile { profile_type: kind as i32, localhost_ref: file.into() });
        let security = cri::v1::LinuxContainerSecurityContext { seccomp, no_new_privs, ..Default::default() };
        let linux = Some(cri::v1::LinuxContainerConfig { security_context: Some(security), resources: None });
        cri::v1::ContainerConfig { linux, ..container(name, "demo:1", &["/bin/sleep", "1000"]) }
    };
    let run = async |id: &str, text: &str| {
        let command = ["/bin/sh", "-c", text].map(str::to_owned);
        node.client.exec_sync(id, &command, Duration::from_secs(10)).await.unwrap()
    };
    let mode = "grep Seccomp: /proc/1/status /proc/self/status | grep -c";
    for (name, no_new_privs) in [("plain", false), ("no-new-privs", true)] {
        let standard = node.start(&pod, with(name, ProfileType::RuntimeDefault, "", no_new_privs)).await;
        assert_eq!(run(&standard, &format!("{mode} 2$")).await.stdout, b"2\n", "the first program and later ones");
        assert_ne!(run(&standard, "unshare -U true").await.exit_code, 0);
        assert_eq!(run(&standard, "chmod 700 /etc && echo still | cat && sleep 0.01").await.exit_code, 0, "ordinary programs do not notice");
    }
    let local = node.start(&pod, with("local", ProfileType::Localhost, "/profiles/no-chmod.json", false)).await;
    let refused = run(&local, "chmod 700 /etc").await;
    assert!(refused.exit_code != 0 && String::from_utf8(refused.stderr).unwrap().contains("Operation not permitted"));
    let unconfined = node.start(&pod, with("free", ProfileType::Unconfined, "", false)).await;
    assert_eq!(run(&unconfined, &format!("{mode} 0$")).await.stdout, b"2\n");
    for (file, reason) in [("/profiles/missing.json", "no such file"), ("/etc/../../../../etc/passwd", "seccomp profile")] {
        let error = node.create(&pod, with("wrong", ProfileType::Localhost, file, false)).await.unwrap_err().to_string();
        assert!(error.contains("cannot load seccomp profile") && error.contains(reason), "{error}");
    }
    node.remove(&pod).await;
}
