//! What is particular to Windows nodes.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cri::v1;
use test_lab::until_async;

use crate::support::{Node, container, http_at, windows_sandbox};

const ANNOTATION: &str = "experimental.windows.kubernetes.io/isolation-type";

pub async fn isolation(dir: PathBuf) {
    let node = Node::windows(&dir, 20348, true).await;
    let handlers = node.client.status(Default::default()).await.unwrap().runtime_handlers;
    let names: Vec<&str> = handlers.iter().map(|handler| handler.name.as_str()).collect();
    assert_eq!(names[..3], ["", "runhcs-wcow-process", "runhcs-wcow-hypervisor"]);
    assert!(names.contains(&"runhcs-wcow-hypervisor-17763") && !names.contains(&"runhcs-wcow-hypervisor-26100"), "{names:?}");
    let old = "microsoft/iis:windowsservercore-1709";
    assert!(node.pull(old).await.unwrap_err().to_string().contains("no match for platform"));
    // By annotation, as dockershim did.
    let mut config = windows_sandbox("annotated");
    config.annotations.insert(ANNOTATION.into(), "hyperv".into());
    let pull = |handler: &str, sandbox: &v1::PodSandboxConfig| {
        let image = v1::ImageSpec { image: old.into(), runtime_handler: handler.into(), ..Default::default() };
        node.client.pull_image(v1::PullImageRequest { image: Some(image), auth: None, sandbox_config: Some(sandbox.clone()) })
    };
    pull("", &config).await.unwrap();
    let pod = node.run(config).await;
    let id = node.start(&pod, container("iis", old, &[])).await;
    assert_eq!(node.status(&id).await.state, v1::ContainerState::ContainerRunning as i32);
    node.remove(&pod).await;
    // Without isolation the image that is here now is still refused.
    let pod = node.run(windows_sandbox("plain")).await;
    let error = node.create(&pod, container("iis", old, &[])).await.unwrap_err().to_string();
    assert!(error.contains("10.0.16299") && error.contains("10.0.20348"), "{error}");
    node.remove(&pod).await;
    // By handler.
    let with = |handler: &str, name: &str| v1::RunPodSandboxRequest { config: Some(windows_sandbox(name)), runtime_handler: handler.into() };
    pull("runhcs-wcow-hypervisor-16299", &windows_sandbox("x")).await.unwrap();
    for (handler, runs) in [("runhcs-wcow-hypervisor", true), ("runhcs-wcow-hypervisor-16299", true), ("runhcs-wcow-hypervisor-17763", false)] {
        let pod = node.client.run_pod_sandbox(with(handler, handler)).await.unwrap();
        assert_eq!(node.sandbox(&pod).await.runtime_handler, handler);
        // Kubelets say the handler when the pod is made, not when its image is pulled.
        node.store().remove(old).unwrap();
        assert_eq!(pull("", &windows_sandbox(handler)).await.is_ok(), runs, "{handler}");
        if !runs {
            pull("runhcs-wcow-hypervisor", &windows_sandbox(handler)).await.unwrap();
        }
        assert_eq!(node.create(&pod, container("iis", old, &[])).await.is_ok(), runs, "{handler}");
        node.remove(&pod).await;
    }
    let error = node.client.run_pod_sandbox(with("gvisor", "unknown")).await.unwrap_err().to_string();
    assert!(error.contains("no runtime for \"gvisor\" is configured") && error.contains("runhcs-wcow-process"), "{error}");
    assert!(node.client.list_pod_sandbox(Default::default()).await.unwrap().is_empty());
}

/// The containers of a pod have one compartment, whose end does not come with one of theirs.
pub async fn shared(node: &Node) {
    let redis = "redis:3.0-nanoserver";
    node.pull(redis).await.unwrap();
    let pod = node.run(v1::PodSandboxConfig { windows: None, ..windows_sandbox("both") }).await;
    node.start(&pod, container("iis", "microsoft/iis", &[])).await;
    let first = node.start(&pod, container("redis", redis, &[])).await;
    let ip = node.sandbox(&pod).await.network.unwrap().ip;
    let ping = || {
        let mut stream = std::net::TcpStream::connect((ip.as_str(), 6379)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        stream.write_all(b"PING\r\n").ok()?;
        let mut answer = [0; 7];
        stream.read_exact(&mut answer).ok()?;
        (&answer == b"+PONG\r\n").then_some(())
    };
    until_async("both answer at the pod's address", async || ping().is_some() && http_at(&format!("{ip}:80"), "GET", "/hostname", "").is_some())
        .await;
    node.client.stop_container(&first, Duration::ZERO).await.unwrap();
    assert!(ping().is_none() && http_at(&format!("{ip}:80"), "GET", "/hostname", "").is_some(), "the other one goes on");
    let again = v1::ContainerConfig { metadata: Some(v1::ContainerMetadata { name: "redis".into(), attempt: 1 }), ..container("redis", redis, &[]) };
    node.start(&pod, again).await;
    until_async("it answers again at the same address", async || ping().is_some()).await;
    assert_eq!(node.sandbox(&pod).await.network.unwrap().ip, ip);
    let stats = node.client.pod_sandbox_stats(v1::PodSandboxStatsRequest { pod_sandbox_id: pod.clone() }).await.unwrap().windows.unwrap();
    assert_eq!(stats.containers.len(), 2);
    assert!(stats.process.unwrap().process_count.unwrap().value >= 2 && stats.memory.unwrap().working_set_bytes.unwrap().value > 0);
    assert!(stats.network.unwrap().default_interface.unwrap().rx_bytes.unwrap().value > 0);
    node.remove(&pod).await;
}

/// Many pods at once, each with its compartment, and all of them gone again.
pub async fn many(node: &Node) {
    const PODS: usize = 60;
    let began = Instant::now();
    let one = async |number: usize| {
        let began = Instant::now();
        let pod = node.run(v1::PodSandboxConfig { windows: None, ..windows_sandbox(&format!("web-{number}")) }).await;
        let id = node.start(&pod, container("iis", "microsoft/iis", &[])).await;
        (pod, id, began.elapsed())
    };
    let pods = futures::future::join_all((0..PODS).map(one)).await;
    let all = began.elapsed();
    let slowest = pods.iter().map(|(_, _, took)| *took).max().unwrap();
    println!("    {PODS} pods run after {all:?}, the slowest took {slowest:?}");
    let running = node.client.list_containers(Default::default()).await.unwrap();
    assert_eq!(running.iter().filter(|container| container.state == v1::ContainerState::ContainerRunning as i32).count(), PODS);
    let began = Instant::now();
    futures::future::join_all(pods.iter().map(|(pod, _, _)| node.remove(pod))).await;
    println!("    and are gone {:?} later", began.elapsed());
    assert!(node.client.list_pod_sandbox(Default::default()).await.unwrap().is_empty());
}

/// HNS makes a compartment late, or half of an endpoint: a pod waits for the one and fails with the other, with a message for users of the node.
pub async fn faults(node: &Node, dir: &Path) {
    let admin = hns_sim::admin::AdminClient::new(dir.join("hcn-admin"));
    let config = |name: &str| v1::PodSandboxConfig { windows: None, ..windows_sandbox(name) };
    let run = async |name: &str| {
        let request = v1::RunPodSandboxRequest { config: Some(config(name)), runtime_handler: String::new() };
        node.client.run_pod_sandbox(request).await
    };

    admin.add_fault(&"ns-late-compartment=3s".parse().unwrap()).unwrap();
    let began = Instant::now();
    let late = node.run(config("late")).await;
    assert!(began.elapsed() >= Duration::from_secs(3), "it waited {:?}", began.elapsed());
    admin.clear_faults().unwrap();
    node.start(&late, container("iis", "microsoft/iis", &[])).await;
    let ip = node.sandbox(&late).await.network.unwrap().ip;
    until_async("the late pod answers", async || http_at(&format!("{ip}:80"), "GET", "/hostname", "").unwrap_or_default().ends_with("late\n")).await;

    let here = dir.to_string_lossy().into_owned();
    for (fault, words) in [
        ("ep-stuck", "in state 1 (created), without a network adapter"),
        ("lost-object,call=HcnModifyNamespace", "namespace"),
        ("ep-dup-ip", "0x1392"),
        ("svc-down,call=HcnCreateNamespace,count=1", "cannot create the pod's namespace in HNS"),
    ] {
        admin.add_fault(&fault.parse().unwrap()).unwrap();
        let error = run("broken").await.unwrap_err().to_string();
        assert!(error.contains(words) && !error.contains(&here), "{fault}: {error}");
        admin.clear_faults().unwrap();
        let repaired = node.run(config("broken")).await;
        node.remove(&repaired).await;
    }

    // Files of the node are named as the node names them.
    std::fs::remove_dir_all(dir.join("net.d")).unwrap();
    let error = run("unconnected").await.unwrap_err().to_string();
    assert!(error.contains("no network configuration in the directory of CNI configurations") && !error.contains(&here), "{error}");
    node.remove(&late).await;
}
