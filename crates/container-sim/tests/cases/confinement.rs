//! What a container must not reach.

use std::path::PathBuf;
use std::time::Duration;

use nix::sys::statvfs::{FsFlags, statvfs};
use test_lab::{LIMIT, same, until_async};

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
        let answer = node.client.exec_sync(&id, &command, LIMIT).await.unwrap();
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
        node.client.exec_sync(id, &command, LIMIT).await.unwrap()
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

/// A container that may look into every process it sees, beside others that come and go.
pub async fn shared_processes(dir: PathBuf) {
    let node = Node::linux(&dir).await;
    node.store().load(&image_archive(&dir), &Default::default()).unwrap();
    let canary = dir.join("canary");
    std::fs::write(&canary, "of the machine").unwrap();
    let pod = node.run(sandbox("shared")).await;
    let shared = |name: &str, capability: &str, command: &[&str]| {
        let namespaces = cri::v1::NamespaceOption { pid: cri::v1::NamespaceMode::Pod as i32, ..Default::default() };
        let capabilities = cri::v1::Capability { add_capabilities: vec![capability.into()], ..Default::default() };
        let security =
            cri::v1::LinuxContainerSecurityContext { namespace_options: Some(namespaces), capabilities: Some(capabilities), ..Default::default() };
        let linux = Some(cri::v1::LinuxContainerConfig { security_context: Some(security), resources: None });
        cri::v1::ContainerConfig { linux, ..container(name, "demo:1", command) }
    };
    // Each process that is ever seen is asked for the machine's files.
    let canary = canary.to_str().unwrap();
    let watch = format!(
        "while test ! -e /enough; do for p in /proc/[0-9]*; do test -e $p/root{canary} && echo $p sees the machine; \
         test -e $p/cwd/canary && echo $p stands in it; done; done; echo over"
    );
    let watcher = node.start(&pod, shared("watcher", "SYS_PTRACE", &["/bin/sh", "-c", &watch])).await;
    let run = async |id: &str, text: &str| {
        let command = ["/bin/sh", "-c", text].map(str::to_owned);
        let answer = node.client.exec_sync(id, &command, LIMIT).await.unwrap();
        String::from_utf8(answer.stdout).unwrap() + &String::from_utf8(answer.stderr).unwrap()
    };
    let first = run(&watcher, "ls -A /proc/1/root/; echo files; ls /proc/1/fd; grep Cap /proc/1/status").await;
    let (files, rest) = first.split_once("files\n").unwrap();
    assert_eq!(files, "", "the root of pid 1 is empty: {first}");
    assert_eq!(rest.matches("0000000000000000").count(), 5, "pid 1 has no capabilities: {rest}");
    assert!(rest.starts_with("CapInh"), "pid 1 holds no descriptor: {rest}");
    let mounts = run(&watcher, "cat /proc/1/mountinfo").await;
    assert_eq!(mounts.lines().count(), 1, "{mounts}");
    for number in 0..20 {
        assert_eq!(run(&watcher, "echo in").await, "in\n");
        let other = node.start(&pod, shared(&format!("other-{number}"), "KILL", &["/bin/true"])).await;
        assert_eq!(node.wait_exit(&other).await.exit_code, 0);
    }
    // What has lost its parent is buried by pid 1, and does not end the container that left it.
    run(&watcher, "(sleep 0.01 & exec true) & exit 0").await;
    let zombies = async || run(&watcher, "grep -l 'State:.Z' /proc/[0-9]*/status 2>/dev/null").await;
    until_async("no zombies", async || same(zombies().await, &"")).await;
    run(&watcher, "touch /enough").await;
    assert_eq!(node.wait_exit(&watcher).await.exit_code, 0);
    let log = std::fs::read_to_string(dir.join("host/var/log/pods/shared/watcher/0.log")).unwrap();
    assert!(log.ends_with(" stdout F over\n") && log.lines().count() == 1, "{log}");
    // An exec into a container with processes of its own hides the machine from it as well.
    let alone = node.start(&pod, container("alone", "demo:1", &["/bin/sh", "-c", &watch])).await;
    for _ in 0..20 {
        assert_eq!(run(&alone, "echo in").await, "in\n");
    }
    run(&alone, "touch /enough").await;
    assert_eq!(node.wait_exit(&alone).await.exit_code, 0);
    let log = std::fs::read_to_string(dir.join("host/var/log/pods/shared/alone/0.log")).unwrap();
    assert!(log.ends_with(" stdout F over\n") && log.lines().count() == 1, "{log}");
    node.remove(&pod).await;
}

/// A privileged container changes the kernel settings of its pod, not the machine's.
pub async fn privileged(dir: PathBuf) {
    let node = Node::linux(&dir).await;
    node.store().load(&image_archive(&dir), &Default::default()).unwrap();
    let pod = node.run(sandbox("privileged")).await;
    let security = cri::v1::LinuxContainerSecurityContext { privileged: true, ..Default::default() };
    let linux = Some(cri::v1::LinuxContainerConfig { security_context: Some(security), resources: None });
    let id = node.start(&pod, cri::v1::ContainerConfig { linux, ..container("main", "demo:1", &["/bin/sleep", "1000"]) }).await;
    let run = async |text: &str| {
        let command = ["/bin/sh", "-c", text].map(str::to_owned);
        node.client.exec_sync(&id, &command, LIMIT).await.unwrap()
    };
    for name in ["net/ipv4/ip_default_ttl", "kernel/shmmni", "kernel/hostname", "fs/mqueue/msg_max"] {
        let own = run(&format!("v=$(cat /proc/sys/{name}) && echo $v > /proc/sys/{name}")).await;
        assert_eq!(own.exit_code, 0, "{name}: {}", String::from_utf8_lossy(&own.stderr));
    }
    // Each gets the value that it has.
    for name in ["kernel/printk_delay", "kernel/panic", "vm/swappiness", "fs/file-max", "kernel/core_pattern"] {
        let machines = run(&format!("v=$(cat /proc/sys/{name}) && echo $v > /proc/sys/{name}")).await;
        let error = String::from_utf8_lossy(&machines.stderr).into_owned();
        assert!(machines.exit_code != 0 && (error.contains("Read-only file system") || error.contains("Permission denied")), "{name}: {error}");
    }
    node.remove(&pod).await;
}

/// A sandbox gets the kernel settings of its own namespaces, and is refused with any other.
pub async fn settings(dir: PathBuf) {
    let node = Node::linux(&dir).await;
    node.store().load(&image_archive(&dir), &Default::default()).unwrap();
    let with = |name: &str, sysctl: &str, value: &str, host: bool| {
        let mut config = sandbox(name);
        let linux = config.linux.as_mut().unwrap();
        linux.sysctls.insert(sysctl.into(), value.into());
        let mode = if host { cri::v1::NamespaceMode::Node } else { cri::v1::NamespaceMode::Pod };
        linux.security_context.as_mut().unwrap().namespace_options.as_mut().unwrap().ipc = mode as i32;
        config
    };
    let pod = node.run(with("own", "kernel/shmmni", "4001", false)).await;
    let id = node.start(&pod, container("main", "demo:1", &["/bin/cat", "/proc/sys/kernel/shmmni"])).await;
    assert_eq!(node.wait_exit(&id).await.exit_code, 0);
    let log = std::fs::read_to_string(dir.join("host/var/log/pods/own/main/0.log")).unwrap();
    assert!(log.ends_with(" 4001\n"), "{log}");
    node.remove(&pod).await;
    // Each has the value that it is to get.
    let now = |name: &str| std::fs::read_to_string(format!("/proc/sys/{name}")).unwrap().trim().to_owned();
    for (sysctl, value, host, reason) in [
        ("kernel.printk_delay", now("kernel/printk_delay"), false, "is not in a separate kernel namespace"),
        ("vm/swappiness", now("vm/swappiness"), false, "is not in a separate kernel namespace"),
        ("net.ipv4.ip_default_ttl", now("net/ipv4/ip_default_ttl"), false, "not allowed in host network namespace"),
        ("kernel.shmmni", now("kernel/shmmni"), true, "is not allowed in the hosts ipc namespace"),
        ("net.//.//.kernel.panic", now("kernel/panic"), false, "is not a valid name"),
    ] {
        let config = Some(with("machine", sysctl, &value, host));
        let request = cri::v1::RunPodSandboxRequest { config, runtime_handler: String::new() };
        let error = node.client.run_pod_sandbox(request).await.unwrap_err().to_string();
        assert!(error.contains(reason), "{sysctl}: {error}");
    }
}
