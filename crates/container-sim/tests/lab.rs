//! The runtime in real namespaces, through the CRI client: Linux containers, stand-ins, restarts, and what is refused.
//!
//! This executable plays three parts: started plainly it makes the namespaces of a lab (single-uid map, as for an
//! ordinary user) and runs itself inside as their pid 1; there it runs the tests; and the runtime starts it as its shim
//! and as its CNI plug-ins.

mod cases;
mod support;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use cri::v1;
use support::{Node, container, describe, get, http, image_archive, play, sandbox};
use test_lab::{LIMIT, in_time, until_async};

fn main() -> ExitCode {
    play(
        &[
            ("linux_image_runs_as_requested", |dir| Box::pin(linux_container(dir))),
            ("containers_stop_by_signal_and_by_force", |dir| Box::pin(stopping(dir))),
            ("streams_terminals_and_pid_namespaces_are_as_asked", |dir| Box::pin(streams(dir))),
            ("second_programs_run_as_the_container_does", |dir| Box::pin(cases::exec::sync(dir))),
            ("second_programs_are_killed_in_time_and_end_with_their_container", |dir| Box::pin(cases::exec::ends(dir))),
            ("second_programs_count_as_their_containers", |dir| Box::pin(cases::exec::usage(dir))),
            ("sessions_hand_streams_and_terminals_over", |dir| Box::pin(cases::exec::sessions(dir))),
            ("clients_attach_to_running_containers", |dir| Box::pin(cases::exec::attach(dir))),
            ("a_program_whose_file_is_gone_starts_pods", |dir| Box::pin(cases::confinement::replaced(dir))),
            ("system_calls_are_filtered_as_asked", |dir| Box::pin(cases::confinement::filters(dir))),
            ("mounts_below_volumes_are_seen_as_asked", |dir| Box::pin(cases::volumes::propagation(dir))),
            ("devices_are_shown_where_the_host_has_them", |dir| Box::pin(cases::volumes::devices(dir))),
            ("images_are_volumes_too", |dir| Box::pin(cases::volumes::images(dir))),
            ("limits_hold_or_are_reported_as_unsupported", |dir| Box::pin(cases::limits::linux(dir))),
            ("windows_memory_limits_make_allocations_fail", |dir| Box::pin(cases::limits::windows(dir))),
            ("containers_reach_nothing_of_the_lab", |dir| Box::pin(cases::confinement::reach(dir))),
            ("containers_that_share_processes_reach_nothing_of_the_machine", |dir| Box::pin(cases::confinement::shared_processes(dir))),
            ("kernel_settings_of_the_machine_are_refused", |dir| Box::pin(cases::confinement::settings(dir))),
            ("privileged_containers_change_settings_of_their_pod_alone", |dir| Box::pin(cases::confinement::privileged(dir))),
            ("isolated_pods_run_what_is_older_than_their_node", |dir| Box::pin(cases::windows::isolation(dir))),
            ("stand_in_answers_and_identifies_itself", |dir| Box::pin(stand_in(dir))),
            ("a_restarted_runtime_finds_its_pods", |dir| Box::pin(restart(dir))),
            ("a_dead_shim_makes_the_sandbox_not_ready", |dir| Box::pin(dead_shim(dir))),
            ("impossible_requests_are_refused_with_the_reason", |dir| Box::pin(refusals(dir))),
            ("networks_are_added_and_deleted_by_cni", |dir| Box::pin(network(dir))),
            ("windows_pods_have_compartments_of_hns", |dir| Box::pin(compartments(dir))),
            ("networks_that_hns_lost_are_repaired_or_the_sandbox_is_not_ready", |dir| Box::pin(cases::networks::lost_networks(dir))),
            ("images_are_copied_where_overlays_are_refused", |dir| Box::pin(copied(dir))),
        ],
        || {},
    )
}

async fn linux_container(dir: std::path::PathBuf) {
    let node = Node::linux(&dir).await;
    node.store().load(&image_archive(&dir), &Default::default()).unwrap();
    std::fs::create_dir_all(dir.join("host/data")).unwrap();
    std::fs::write(dir.join("host/data/x"), "from the node\n").unwrap();
    let pod = node.run(sandbox("linux-pod")).await;
    let script = "echo out; echo err >&2; cat /etc/motd /data/x; hostname; id -u; echo $GREETING $PATH; pwd; ls /proc/1/root >/dev/null && echo pid $$; \
        touch /data/y 2>/dev/null || echo read-only; echo kept > /kept && cat /kept; cat /etc/resolv.conf; touch /proc/sys/kernel/x 2>/dev/null; \
        ls /dev/null /dev/fd >/dev/null && echo devices; grep CapEff /proc/self/status; printf unfinished; exit 3";
    let mut request = container("main", "demo:1", &["/bin/sh", "-c", script]);
    request.envs.push(v1::KeyValue { key: "GREETING".into(), value: "hello".into() });
    request.mounts.push(v1::Mount { container_path: "/data".into(), host_path: "/data".into(), readonly: true, ..Default::default() });
    let id = node.start(&pod, request).await;
    let status = node.wait_exit(&id).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (3, "Error"), "{}", describe(&status));
    assert!(status.started_at > 0 && status.finished_at >= status.started_at);
    let log = std::fs::read_to_string(dir.join("host/var/log/pods/linux-pod/main/0.log")).unwrap();
    let text: Vec<&str> = log.lines().map(|line| line.split_once(' ').unwrap().1).collect();
    for line in [
        "stdout F out",
        "stderr F err",
        "stdout F Mullion's test image",
        "stdout F from the node",
        "stdout F linux-pod",
        "stdout F 0",
        "stdout F hello /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "stdout F /work",
        "stdout F pid 1",
        "stdout F read-only",
        "stdout F kept",
        "stdout F nameserver 10.96.0.10",
        "stdout F devices",
        "stdout P unfinished",
    ] {
        assert!(text.contains(&line), "no {line:?} in the log:\n{log}");
    }
    assert!(log.contains("CapEff:\t00000000a80425fb"), "capabilities are runc's:\n{log}");
    let verbose = node.client.container_status(v1::ContainerStatusRequest { container_id: id.clone(), verbose: true }).await.unwrap();
    assert!(verbose.info["info"].contains("no limit"));
    // A second container writes to a layer of its own, and stays alive for the statistics.
    let second = node.start(&pod, container("second", "demo:1", &["/bin/sh", "-c", "test ! -e /kept && echo fresh; sleep 1000"])).await;
    let log = dir.join("host/var/log/pods/linux-pod/second/0.log");
    until_async("the second container's line", async || std::fs::read_to_string(&log).is_ok_and(|log| log.contains("F fresh"))).await;
    let stats = node.client.list_container_stats(Default::default()).await.unwrap();
    assert_eq!(stats.len(), 1);
    assert!(stats[0].memory.as_ref().unwrap().rss_bytes.as_ref().unwrap().value > 0);
    assert!(stats[0].writable_layer.as_ref().unwrap().inodes_used.is_some());
    std::fs::rename(&log, log.with_extension("old")).unwrap();
    node.client.reopen_container_log(v1::ReopenContainerLogRequest { container_id: second.clone() }).await.unwrap();
    assert!(log.exists(), "the log was opened again");
    node.remove(&pod).await;
    assert!(node.client.list_containers(Default::default()).await.unwrap().is_empty());
    assert_eq!(std::fs::read_dir(dir.join("state/cri/sandboxes")).unwrap().count(), 0, "nothing is left on disk");
}

/// A container is asked to end by the signal that its pod names.
async fn asked_by_signal(node: &Node, pod: &str, dir: &std::path::Path) {
    let text = "trap 'exit 9' TERM; trap 'exit 8' USR1; echo up; while :; do sleep 0.05; done";
    let config = container("signalled", "demo:1", &["/bin/sh", "-c", text]);
    let request = v1::CreateContainerRequest { pod_sandbox_id: pod.to_owned(), config: Some(config), sandbox_config: None };
    let extras = cri::Extras { stop_signal: cri::Signal::named("SIGUSR1"), ..Default::default() };
    let id = node.client.create_container_with(request, &extras).await.unwrap();
    node.client.start_container(v1::StartContainerRequest { container_id: id.clone() }).await.unwrap();
    let log = dir.join("host/var/log/pods/stopping/signalled/0.log");
    until_async("the traps are set", async || std::fs::read_to_string(&log).is_ok_and(|log| log.contains("F up"))).await;
    node.client.stop_container(&id, LIMIT).await.unwrap();
    assert_eq!(node.status(&id).await.exit_code, 8);
    let (_, signal) = node.client.container_status_with(v1::ContainerStatusRequest { container_id: id, verbose: false }).await.unwrap();
    assert_eq!(signal, extras.stop_signal);
}

async fn stopping(dir: std::path::PathBuf) {
    let node = Node::linux(&dir).await;
    node.store().load(&image_archive(&dir), &Default::default()).unwrap();
    let pod = node.run(sandbox("stopping")).await;
    let polite = node
        .start(&pod, container("polite", "demo:1", &["/bin/sh", "-c", "trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.05; done"]))
        .await;
    let log = dir.join("host/var/log/pods/stopping/polite/0.log");
    until_async("the trap is set", async || std::fs::read_to_string(&log).is_ok_and(|log| log.contains("F up"))).await;
    node.client.stop_container(&polite, LIMIT).await.unwrap();
    assert_eq!(node.status(&polite).await.exit_code, 7);
    let (_, signal) = node.client.container_status_with(v1::ContainerStatusRequest { container_id: polite, verbose: false }).await.unwrap();
    assert_eq!(signal.map(cri::Signal::name), Some("SIGTERM"));
    asked_by_signal(&node, &pod, &dir).await;
    // Pid 1 without a handler ignores SIGTERM, as everywhere.
    let deaf = node.start(&pod, container("deaf", "demo:1", &["/bin/sleep", "1000"])).await;
    let began = Instant::now();
    node.client.stop_container(&deaf, Duration::from_secs(1)).await.unwrap();
    assert!(began.elapsed() >= Duration::from_secs(1));
    let status = node.status(&deaf).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (137, "Error"));
    // Again, and for what does not exist, is fine.
    node.client.stop_container(&deaf, Duration::ZERO).await.unwrap();
    node.client.remove_container(v1::RemoveContainerRequest { container_id: deaf.clone() }).await.unwrap();
    node.client.remove_container(v1::RemoveContainerRequest { container_id: deaf }).await.unwrap();
    // A program that does not exist fails at start, with runc's message.
    let request = container("wrong", "demo:1", &["no-such-program"]);
    let id = node.create(&pod, request).await.unwrap();
    let error = node.client.start_container(v1::StartContainerRequest { container_id: id.clone() }).await.unwrap_err().to_string();
    assert!(error.contains("exec: \"no-such-program\": executable file not found in $PATH"), "{error}");
    let status = node.status(&id).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (128, "StartError"), "{}", describe(&status));
    // A user that the single-uid map does not have is refused with the way out.
    let mut request = container("user", "demo:1", &["/bin/true"]);
    let security = v1::LinuxContainerSecurityContext { run_as_user: Some(v1::Int64Value { value: 1000 }), ..Default::default() };
    request.linux = Some(v1::LinuxContainerConfig { security_context: Some(security), resources: None });
    let id = node.create(&pod, request).await.unwrap();
    let error = node.client.start_container(v1::StartContainerRequest { container_id: id }).await.unwrap_err().to_string();
    assert!(error.contains("user 1000 does not exist here") && error.contains("runAsUser: 0"), "{error}");
    node.remove(&pod).await;
}

async fn streams(dir: std::path::PathBuf) {
    let node = Node::linux(&dir).await;
    node.store().load(&image_archive(&dir), &Default::default()).unwrap();
    let pod = node.run(sandbox("streams")).await;
    let log = |name: &str| std::fs::read_to_string(dir.join(format!("host/var/log/pods/streams/{name}/0.log"))).unwrap_or_default();
    // Standard input held open keeps its reader alive; without it there is nothing to read.
    let held = node.start(&pod, v1::ContainerConfig { stdin: true, ..container("held", "demo:1", &["/bin/cat"]) }).await;
    let none = node.start(&pod, container("none", "demo:1", &["/bin/cat"])).await;
    assert_eq!(node.wait_exit(&none).await.exit_code, 0);
    assert_eq!(node.status(&held).await.state, v1::ContainerState::ContainerRunning as i32);
    let terminal = v1::ContainerConfig {
        tty: true,
        ..container("tty", "demo:1", &["/bin/sh", "-c", "test -t 0 && test -t 1 && echo a terminal $TERM; exit 4"])
    };
    let terminal = node.start(&pod, terminal).await;
    assert_eq!(node.wait_exit(&terminal).await.exit_code, 4);
    assert!(log("tty").contains("stdout F a terminal xterm"), "{}", log("tty"));
    // In the pod's own pid namespace a process that only holds it is pid 1.
    let mut shared = container("shared", "demo:1", &["/bin/sh", "-c", "test $$ != 1 && echo shared; echo gone > /dev/termination-log"]);
    let options = v1::NamespaceOption { pid: v1::NamespaceMode::Pod as i32, ..Default::default() };
    let security = v1::LinuxContainerSecurityContext { namespace_options: Some(options), readonly_rootfs: true, ..Default::default() };
    shared.linux = Some(v1::LinuxContainerConfig { security_context: Some(security), resources: None });
    std::fs::write(dir.join("host/message"), "").unwrap();
    let file = v1::Mount { container_path: "/dev/termination-log".into(), host_path: "/message".into(), ..Default::default() };
    shared.mounts.push(file);
    let shared = node.start(&pod, shared).await;
    let status = node.wait_exit(&shared).await;
    assert_eq!(status.exit_code, 0, "{} {}", describe(&status), log("shared"));
    assert!(log("shared").contains("F shared"));
    assert_eq!(std::fs::read_to_string(dir.join("host/message")).unwrap(), "gone\n");
    // A debugger sees the processes of the container that it names, and can signal them.
    let debugger = |name: &str, target: &str, script: &str| {
        let options = v1::NamespaceOption { pid: v1::NamespaceMode::Target as i32, target_id: target.into(), ..Default::default() };
        let security = v1::LinuxContainerSecurityContext { namespace_options: Some(options), ..Default::default() };
        let linux = Some(v1::LinuxContainerConfig { security_context: Some(security), resources: None });
        v1::ContainerConfig { linux, ..container(name, "demo:1", &["/bin/sh", "-c", script]) }
    };
    let looks = node.start(&pod, debugger("looks", &held, "cat /proc/1/comm; test $$ != 1 && echo beside it")).await;
    assert_eq!(node.wait_exit(&looks).await.exit_code, 0, "{}", log("looks"));
    assert!(log("looks").contains("F cat\n") && log("looks").contains("F beside it\n"), "{}", log("looks"));
    assert_eq!(node.status(&held).await.state, v1::ContainerState::ContainerRunning as i32, "the debugger's end is its own");
    let stays = node.start(&pod, debugger("stays", &held, "sleep 1000")).await;
    node.client.stop_container(&held, Duration::ZERO).await.unwrap();
    assert_eq!(node.wait_exit(&stays).await.exit_code, 137, "processes end with their namespace");
    for (target, reason) in [(held.as_str(), "is not running"), ("nobody", "is not in this pod")] {
        let error = node.create(&pod, debugger("late", target, "true")).await.unwrap_err().to_string();
        assert!(error.contains("invalid target container") && error.contains(reason), "{error}");
    }
    node.remove(&pod).await;
}

async fn stand_in(dir: std::path::PathBuf) {
    let node = Node::windows(&dir, 20348, true).await;
    let began = Instant::now();
    let image = node.pull("mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc2022").await.unwrap();
    assert!(image.starts_with("sha256:"));
    std::fs::create_dir_all(dir.join("host/etc/foo")).unwrap();
    std::fs::write(dir.join("host/etc/foo/x"), "node's file").unwrap();
    let pod = node.run(support::windows_sandbox("web-0")).await;
    let mut request = container("iis", "mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc2022", &[]);
    let env = |key: &str, value: &str| v1::KeyValue { key: key.into(), value: value.into() };
    request.envs.extend([env("how_special", "very"), env("MULLION_STAND_IN_PAGES", "env,fetch,files")]);
    let mount = |path: &str, readonly| v1::Mount { container_path: path.into(), host_path: r"C:\etc\foo".into(), readonly, ..Default::default() };
    request.mounts.extend([mount(r"C:\etc\foo", true), mount("D:/rw", false), mount("/relative", false)]);
    let id = node.start(&pod, request).await;
    println!("    sandbox, container and start of a stand-in: {:?}", began.elapsed());
    until_async("the stand-in listens", async || http("GET", "/", "").is_some()).await;
    let page = get("/");
    assert!(page.starts_with("HTTP/1.1 200") && page.to_lowercase().contains("server: microsoft-iis/10.0"), "{page}");
    assert!(page.contains("IIS") && page.contains("stand-in"), "{page}");
    assert!(get("/hostname").ends_with("web-0\n"));
    assert!(get("/env").contains("how_special=very\n"));
    assert!(get("/files/C:/ETC/foo/X").ends_with("node's file"));
    let put = |path: &str| http("PUT", path, "new").unwrap();
    assert!(put("/files/C:/etc/foo/x").starts_with("HTTP/1.1 403"), "a read-only volume cannot be written");
    assert!(put("/files/D:/rw/y").starts_with("HTTP/1.1 201"));
    assert_eq!(std::fs::read_to_string(dir.join("host/etc/foo/y")).unwrap(), "new");
    assert!(get("/files/C:/relative").ends_with("x\ny\n"));
    assert!(put("/files/C:/inetpub/wwwroot/index.html").starts_with("HTTP/1.1 201"));
    assert!(get("/").ends_with("new"), "the site's own page wins");
    assert!(get("/files/C:/proc").starts_with("HTTP/1.1 404"), "nothing of the machine outside is in sight");
    assert!(get("/fetch?url=http://127.0.0.1/hostname").ends_with("web-0\n"));
    let status = node.status(&id).await;
    assert_eq!(status.annotations["mullion.io/stand-in"], "iis");
    assert_eq!(status.image.unwrap().annotations["mullion.io/stand-in"], "iis");
    node.client.stop_container(&id, LIMIT).await.unwrap();
    let status = node.status(&id).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (0, "Completed"), "{}", describe(&status));
    assert_eq!(status.log_path, r"C:\var\log\pods\web-0\iis\0.log");
    let log = std::fs::read_to_string(dir.join("host/var/log/pods/web-0/iis/0.log")).unwrap();
    assert!(log.contains("GET /hostname - 80 - 127.0.0.1") && log.contains("the service has stopped"), "{log}");
    // One that is not asked shows nobody the inside of its pod.
    let mut request = container("unasked", "mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc2022", &[]);
    request.envs.push(env("PASSWORD", "s3cret"));
    request.mounts.push(mount(r"C:\etc\foo", false));
    node.start(&pod, request).await;
    until_async("the stand-in listens", async || http("GET", "/hostname", "").is_some_and(|page| page.ends_with("web-0\n"))).await;
    for path in ["/env", "/files/C:/etc/foo/x", "/files/C:/etc", "/fetch?url=http://127.0.0.1/hostname"] {
        let page = get(path);
        assert!(page.starts_with("HTTP/1.1 404") && page.contains("MULLION_STAND_IN_PAGES"), "{path}: {page}");
    }
    assert!(!put("/files/C:/etc/foo/x").starts_with("HTTP/1.1 2"));
    assert_eq!(std::fs::read_to_string(dir.join("host/etc/foo/x")).unwrap(), "node's file");
    assert!(get("/headers").starts_with("HTTP/1.1 200"));
    node.remove(&pod).await;
}

async fn restart(dir: std::path::PathBuf) {
    let mut node = Node::linux(&dir).await;
    node.store().load(&image_archive(&dir), &Default::default()).unwrap();
    let pod = node.run(sandbox("stays")).await;
    let stays = node.start(&pod, container("stays", "demo:1", &["/bin/sh", "-c", "sleep 1000"])).await;
    let ends = node.start(&pod, container("ends", "demo:1", &["/bin/sh", "-c", "while [ ! -e /data/end ]; do sleep 0.05; done; exit 5"])).await;
    let before = node.status(&stays).await;
    node.stop().await;
    std::fs::create_dir_all(dir.join("host/data")).unwrap();
    std::fs::write(dir.join("host/data/end"), "").unwrap();
    let exit = dir.join("state/cri/sandboxes").join(&pod).join("containers").join(&ends).join("exit.json");
    until_async("the container ends without its runtime", async || exit.exists()).await;
    node.restart().await;
    assert_eq!(node.sandbox(&pod).await.state, v1::PodSandboxState::SandboxReady as i32);
    let after = node.status(&stays).await;
    assert_eq!((after.state, after.started_at), (v1::ContainerState::ContainerRunning as i32, before.started_at), "the pod was not touched");
    assert_eq!(node.status(&ends).await.exit_code, 5);
    // A sandbox that was never finished is not ready, and goes with its shim.
    let half = node.run(sandbox("half")).await;
    node.stop().await;
    let file = dir.join("state/cri/sandboxes").join(&half).join("sandbox.json");
    let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let shim = std::mem::replace(&mut record["shim_pid"], 0.into());
    std::fs::write(&file, record.to_string()).unwrap();
    node.restart().await;
    assert_eq!(node.sandbox(&half).await.state, v1::PodSandboxState::SandboxNotready as i32);
    until_async("its shim has ended", async || !std::path::Path::new(&format!("/proc/{shim}/ns/net")).exists()).await;
    node.remove(&half).await;
    // The other one is in hand again: it stops on request.
    node.client.stop_container(&stays, Duration::ZERO).await.unwrap();
    assert_eq!(node.status(&stays).await.exit_code, 137);
    node.remove(&pod).await;
}

async fn dead_shim(dir: std::path::PathBuf) {
    let node = Node::linux(&dir).await;
    node.store().load(&image_archive(&dir), &Default::default()).unwrap();
    let mut events = node.client.events();
    assert!(matches!(events.next().await, Some(cri::Notice::Relist)));
    let pod = node.run(sandbox("dies")).await;
    let id = node.start(&pod, container("main", "demo:1", &["/bin/sleep", "1000"])).await;
    let verbose = v1::PodSandboxStatusRequest { pod_sandbox_id: pod.clone(), verbose: true };
    let info = node.client.pod_sandbox_status(verbose).await.unwrap().info["info"].clone();
    let pid = serde_json::from_str::<serde_json::Value>(&info).unwrap()["pid"].as_i64().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap()), nix::sys::signal::Signal::SIGKILL).unwrap();
    let status = node.wait_exit(&id).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (255, "Unknown"), "{}", describe(&status));
    assert_eq!(node.sandbox(&pod).await.state, v1::PodSandboxState::SandboxNotready as i32);
    let error = node.create(&pod, container("late", "demo:1", &["/bin/true"])).await.unwrap_err().to_string();
    assert!(error.contains("is not running"), "{error}");
    node.remove(&pod).await;
    let mut kinds = Vec::new();
    while !kinds.contains(&(v1::ContainerEventType::ContainerDeletedEvent, pod.clone())) {
        match in_time("events", events.next()).await {
            Some(cri::Notice::Event(event)) => kinds.push((event.container_event_type(), event.container_id)),
            other => panic!("{other:?} after {kinds:?}"),
        }
    }
    use v1::ContainerEventType::{ContainerCreatedEvent, ContainerStartedEvent, ContainerStoppedEvent};
    let expected = [
        (ContainerCreatedEvent, &pod),
        (ContainerStartedEvent, &pod),
        (ContainerCreatedEvent, &id),
        (ContainerStartedEvent, &id),
        (ContainerStoppedEvent, &id),
        (ContainerStoppedEvent, &pod),
    ];
    for (kind, of) in expected {
        assert!(kinds.contains(&(kind, of.clone())), "no {kind:?} of {of} in {kinds:?}");
    }
}

async fn refusals(dir: std::path::PathBuf) {
    let node = Node::windows(&dir, 20348, true).await;
    let error = node.pull("microsoft/iis:windowsservercore-1709").await.unwrap_err().to_string();
    assert!(error.contains("no match for platform in manifest") && error.contains("10.0.16299") && error.contains("10.0.20348"), "{error}");
    let error = node.pull("example.com/shop/app:1").await.unwrap_err().to_string();
    assert!(error.contains("failed to resolve reference") && error.contains("mullion image load"), "{error}");
    let pod = node.run(support::windows_sandbox("refused")).await;
    let error = node.create(&pod, container("main", "example.com/shop/app:1", &[])).await.unwrap_err();
    assert!(error.is_not_found(), "{error}");
    node.pull("microsoft/iis").await.unwrap();
    let mut request = container("main", "microsoft/iis", &[]);
    request.mounts.push(v1::Mount { container_path: r"C:\x".into(), host_path: r"E:\data".into(), ..Default::default() });
    let id = node.create(&pod, request).await.unwrap();
    let error = node.client.start_container(v1::StartContainerRequest { container_id: id.clone() }).await.unwrap_err().to_string();
    assert!(error.contains("no drive E: on this node"), "{error}");
    let error = node.client.exec_sync(&id, &["cmd".into()], Duration::ZERO).await.unwrap_err().to_string();
    assert!(error.contains("container is in CONTAINER_EXITED state"), "{error}");
    let twin = v1::RunPodSandboxRequest { config: Some(support::windows_sandbox("refused")), runtime_handler: String::new() };
    let error = node.client.run_pod_sandbox(twin).await.unwrap_err().to_string();
    assert!(error.contains("failed to reserve sandbox name"), "{error}");
    node.remove(&pod).await;
    node.stop().await;
    let off = Node::windows(&dir.join("off"), 20348, false).await;
    let error = off.pull("microsoft/iis").await.unwrap_err().to_string();
    assert!(error.contains("failed to resolve reference") && error.contains("mullion image load"), "no stand-in answers: {error}");
    let old = Node::windows(&dir.join("old"), 14393, true).await;
    old.pull("microsoft/iis:windowsservercore-ltsc2016").await.unwrap();
    let pod = old.run(support::windows_sandbox("single")).await;
    old.create(&pod, container("one", "microsoft/iis:windowsservercore-ltsc2016", &[])).await.unwrap();
    let error = old.create(&pod, container("two", "microsoft/iis:windowsservercore-ltsc2016", &[])).await.unwrap_err().to_string();
    assert!(error.contains("one container only"), "{error}");
    old.remove(&pod).await;
}

async fn network(dir: std::path::PathBuf) {
    let mut node = Node::linux(&dir).await;
    let ready = |status: v1::StatusResponse| status.status.unwrap().conditions.into_iter().find(|c| c.r#type == "NetworkReady").unwrap();
    let condition = ready(node.client.status(Default::default()).await.unwrap());
    assert!(!condition.status && condition.reason == "NetworkPluginNotReady" && condition.message.contains("cni plugin not initialized"));
    let mut config = sandbox("connected");
    config.linux = None; // the pod's own network
    let request = v1::RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: String::new() };
    let error = node.client.run_pod_sandbox(request.clone()).await.unwrap_err().to_string();
    assert!(error.contains("failed to setup network for sandbox"), "{error}");
    let namespaces = || std::fs::read_dir(dir.join("ns")).map_or(0, Iterator::count);
    assert_eq!(namespaces(), 0, "a failed sandbox leaves no namespace");
    assert!(node.client.list_pod_sandbox(Default::default()).await.unwrap().is_empty());
    support::stub_plugin(&dir);
    assert!(ready(node.client.status(Default::default()).await.unwrap()).status);
    let pod = node.client.run_pod_sandbox(request).await.unwrap();
    assert_eq!(node.sandbox(&pod).await.network.unwrap().ip, "192.168.7.9");
    assert_eq!(namespaces(), 1);
    node.store().load(&image_archive(&dir), &Default::default()).unwrap();
    let id = node.start(&pod, container("main", "demo:1", &["/bin/sh", "-c", "cat /proc/net/dev; cat /sys/class/net/lo/operstate"])).await;
    node.wait_exit(&id).await;
    let log = std::fs::read_to_string(dir.join("host/var/log/pods/connected/main/0.log")).unwrap();
    assert!(log.contains("lo:"), "{log}");
    node.remove(&pod).await;
    assert_eq!(namespaces(), 0);
    let calls = std::fs::read_to_string(dir.join("calls")).unwrap();
    let path = dir.join("ns").join(&pod);
    assert!(calls.contains(&format!("ADD {pod} {} eth0", path.display())) && calls.contains(&format!("DEL {pod}")), "{calls}");
    // A runtime that starts frees what belongs to no sandbox that it knows, and nothing else.
    let (kept, lost) = (
        node.run(v1::PodSandboxConfig { linux: None, ..sandbox("kept") }).await,
        node.run(v1::PodSandboxConfig { linux: None, ..sandbox("lost") }).await,
    );
    node.stop().await;
    std::fs::remove_dir_all(dir.join("state/cri/sandboxes").join(&lost)).unwrap();
    node.restart().await;
    let calls = std::fs::read_to_string(dir.join("calls")).unwrap();
    assert!(calls.contains(&format!("DEL {lost}")) && !calls.contains(&format!("DEL {kept}")), "{calls}");
    node.remove(&kept).await;
}

async fn compartments(dir: std::path::PathBuf) {
    let (hcn, _simulator) = support::hns(&dir);
    let node = Node::windows_over(&dir, 20348, &hcn).await;
    node.pull("microsoft/iis").await.unwrap();
    let mut pods = Vec::new();
    for name in ["web-0", "web-1"] {
        let pod = node.run(v1::PodSandboxConfig { windows: None, ..support::windows_sandbox(name) }).await;
        let mut request = container("iis", "microsoft/iis", &[]);
        request.envs.push(v1::KeyValue { key: "MULLION_STAND_IN_PAGES".into(), value: "fetch".into() });
        node.start(&pod, request).await;
        let ip = node.sandbox(&pod).await.network.unwrap().ip;
        pods.push((pod, ip));
    }
    assert_eq!([&pods[0].1, &pods[1].1], ["192.168.1.3", "192.168.1.4"]);
    let ask = |ip: &str, path: &str| support::http_at(&format!("{ip}:80"), "GET", path, "").unwrap_or_default();
    for (number, (_, ip)) in pods.iter().enumerate() {
        until_async("the pod answers its node", async || ask(ip, "/hostname").ends_with(&format!("web-{number}\n"))).await;
    }
    let (first, second) = (&pods[0].1, &pods[1].1);
    let answer = ask(first, &format!("/fetch?url=http://{second}/headers"));
    assert!(answer.contains(&format!("client: {first}:")), "pods see each other's own addresses: {answer}");
    let guids = || std::fs::read_dir(dir.join("ns")).unwrap().count();
    assert_eq!(guids(), 2);
    for (pod, _) in &pods {
        node.remove(pod).await;
    }
    cases::windows::shared(&node).await;
    cases::windows::many(&node).await;
    cases::windows::faults(&node, &dir).await;
    assert_eq!(guids(), 0, "no compartment is left");
    let hcn = hcn::HcnClient::connect(&hcn).unwrap();
    let local = hcn.endpoints().await.unwrap();
    assert!(local.is_empty() && hcn.namespaces().await.unwrap().iter().all(|namespace| namespace.is_default), "{local:?}");
}

async fn copied(dir: std::path::PathBuf) {
    // An overlay cannot be the writable part of another.
    for name in ["lower", "upper", "work", "over"] {
        std::fs::create_dir(dir.join(name)).unwrap();
    }
    let options = format!("lowerdir={0}/lower,upperdir={0}/upper,workdir={0}/work,userxattr", dir.display());
    nix::mount::mount(Some("overlay"), &dir.join("over"), Some("overlay"), nix::mount::MsFlags::empty(), Some(options.as_str())).unwrap();
    let over = dir.join("over");
    {
        let node = Node::linux(&over).await;
        node.store().load(&image_archive(&over), &Default::default()).unwrap();
        let pod = node.run(sandbox("copied")).await;
        let id = node.start(&pod, container("main", "demo:1", &["/bin/sh", "-c", "cat /etc/motd; echo x > /etc/motd; cat /etc/motd"])).await;
        assert_eq!(node.wait_exit(&id).await.exit_code, 0);
        let flat = over.join("state/cri/sandboxes").join(&pod).join("containers").join(&id).join("flat/etc/motd");
        assert_eq!(std::fs::read_to_string(flat).unwrap(), "x\n");
        let log = std::fs::read_to_string(over.join("host/var/log/pods/copied/main/0.log")).unwrap();
        assert!(log.contains("F Mullion's test image") && log.contains("F x"), "{log}");
        node.remove(&pod).await;
        node.stop().await;
    }
    nix::mount::umount2(&over, nix::mount::MntFlags::MNT_DETACH).unwrap();
}
