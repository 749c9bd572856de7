//! Pods by calls of CRI alone, the ones that an agent makes for them: what containerd takes, without an agent.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use cri::v1;
use tokio::task::JoinSet;

use super::containerd::{Containerd, IMAGE};

/// How long pods took to come and to go.
pub struct Took {
    pub up: Duration,
    pub down: Duration,
    /// Of each pod, its calls: that of the sandbox, and those that create and start the container.
    pub calls: Vec<[Duration; 3]>,
}

/// A pod that runs.
struct Made {
    sandbox: String,
    container: String,
    calls: [Duration; 3],
}

/// Makes so many pods at once, and removes them.
pub async fn crowd(containerd: &Containerd, count: usize) -> Result<Took> {
    let files = tempfile::tempdir()?;
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for number in 0..count {
        tasks.spawn(start(containerd.client.clone(), number, files.path().join(number.to_string())));
    }
    let mut all = Vec::new();
    while let Some(done) = tasks.join_next().await {
        all.push(done??);
    }
    let up = begun.elapsed();
    let calls = all.iter().map(|made| made.calls).collect();
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for made in all {
        tasks.spawn(end(containerd.client.clone(), made.sandbox, made.container));
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(Took { up, down: begun.elapsed(), calls })
}

async fn start(client: cri::Client, number: usize, files: PathBuf) -> Result<Made> {
    std::fs::create_dir_all(files.join("wait"))?;
    let config = sandbox(number, &files);
    let begun = Instant::now();
    let request = v1::RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: String::new() };
    let sandbox = client.run_pod_sandbox(request).await?;
    let ran = begun.elapsed();
    let spec = v1::ImageSpec { image: IMAGE.to_owned(), ..Default::default() };
    let status = client.image_status(v1::ImageStatusRequest { image: Some(spec), verbose: false }).await?;
    let Some(image) = status.image else { bail!("containerd has no image {IMAGE}") };
    let begun = Instant::now();
    let container = container(image.id, &config, &files)?;
    let request = v1::CreateContainerRequest { pod_sandbox_id: sandbox.clone(), config: Some(container), sandbox_config: Some(config) };
    let container = client.create_container(request).await?;
    let created = begun.elapsed();
    let begun = Instant::now();
    client.start_container(v1::StartContainerRequest { container_id: container.clone() }).await?;
    let started = begun.elapsed();
    // Its address and state, without which no agent calls a pod Ready.
    client.pod_sandbox_status(v1::PodSandboxStatusRequest { pod_sandbox_id: sandbox.clone(), verbose: false }).await?;
    client.container_status(v1::ContainerStatusRequest { container_id: container.clone(), verbose: false }).await?;
    Ok(Made { sandbox, container, calls: [ran, created, started] })
}

/// The sandbox as the agent asks for it: with seccomp, and what resolves names.
fn sandbox(number: usize, files: &Path) -> v1::PodSandboxConfig {
    let metadata =
        v1::PodSandboxMetadata { name: format!("direct-{number}"), uid: format!("direct-{number}"), namespace: "direct".to_owned(), attempt: 0 };
    let text = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let security = v1::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces()),
        seccomp: Some(profile(v1::security_profile::ProfileType::RuntimeDefault)),
        ..Default::default()
    };
    v1::PodSandboxConfig {
        hostname: metadata.name.clone(),
        labels: labels(&metadata),
        metadata: Some(metadata),
        log_directory: files.display().to_string(),
        dns_config: Some(v1::DnsConfig {
            servers: text(&["10.96.0.10"]),
            searches: text(&["direct.svc.cluster.local", "svc.cluster.local", "cluster.local"]),
            options: text(&["ndots:5"]),
        }),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: format!("/kubepods/besteffort/poddirect-{number}"),
            security_context: Some(security),
            resources: Some(v1::LinuxContainerResources::default()),
            overhead: Some(v1::LinuxContainerResources::default()),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// The container as the agent asks for it: with processes of its own, its share, and the two files that the agent mounts into each one.
fn container(image: String, sandbox: &v1::PodSandboxConfig, files: &Path) -> Result<v1::ContainerConfig> {
    let mut labels = sandbox.labels.clone();
    labels.insert(cri::labels::CONTAINER_NAME.to_owned(), "wait".to_owned());
    let mut mounts = Vec::new();
    for (name, content, inside) in [("hosts", "127.0.0.1 localhost\n", "/etc/hosts"), ("message", "", "/dev/termination-log")] {
        let file = files.join(name);
        std::fs::write(&file, content)?;
        mounts.push(v1::Mount { container_path: inside.to_owned(), host_path: file.display().to_string(), ..Default::default() });
    }
    let paths = |all: &[&str]| all.iter().map(|path| (*path).to_owned()).collect();
    let security = v1::LinuxContainerSecurityContext {
        capabilities: Some(v1::Capability::default()),
        namespace_options: Some(namespaces()),
        run_as_user: Some(v1::Int64Value { value: 0 }),
        masked_paths: paths(cri::defaults::MASKED_PATHS),
        readonly_paths: paths(cri::defaults::READONLY_PATHS),
        seccomp: Some(profile(v1::security_profile::ProfileType::Unconfined)),
        ..Default::default()
    };
    let resources = v1::LinuxContainerResources { cpu_shares: 2, oom_score_adj: 1000, ..Default::default() };
    Ok(v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: "wait".to_owned(), attempt: 0 }),
        image: Some(v1::ImageSpec { image, ..Default::default() }),
        mounts,
        labels,
        log_path: "wait/0.log".to_owned(),
        linux: Some(v1::LinuxContainerConfig { resources: Some(resources), security_context: Some(security) }),
        ..Default::default()
    })
}

fn labels(of: &v1::PodSandboxMetadata) -> HashMap<String, String> {
    let named = [(cri::labels::POD_NAME, &of.name), (cri::labels::POD_NAMESPACE, &of.namespace), (cri::labels::POD_UID, &of.uid)];
    named.into_iter().map(|(label, value)| (label.to_owned(), value.clone())).collect()
}

fn namespaces() -> v1::NamespaceOption {
    let (pod, own) = (v1::NamespaceMode::Pod as i32, v1::NamespaceMode::Container as i32);
    v1::NamespaceOption { network: pod, pid: own, ipc: pod, ..Default::default() }
}

fn profile(kind: v1::security_profile::ProfileType) -> v1::SecurityProfile {
    v1::SecurityProfile { profile_type: kind as i32, ..Default::default() }
}

async fn end(client: cri::Client, sandbox: String, container: String) -> Result<()> {
    client.stop_container(&container, Duration::from_secs(5)).await?;
    client.stop_pod_sandbox(v1::StopPodSandboxRequest { pod_sandbox_id: sandbox.clone() }).await?;
    client.remove_container(v1::RemoveContainerRequest { container_id: container }).await?;
    client.remove_pod_sandbox(v1::RemovePodSandboxRequest { pod_sandbox_id: sandbox }).await?;
    Ok(())
}
