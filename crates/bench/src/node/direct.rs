//! Pods by calls of CRI alone, the ones that an agent makes for them: what containerd takes, without an agent.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use cri::v1;
use tokio::task::JoinSet;

use super::containerd::{Containerd, IMAGE};

/// How long pods took to come and to go.
pub struct Took {
    pub up: Duration,
    pub down: Duration,
}

/// Makes so many pods at once, and removes them.
pub async fn crowd(containerd: &Containerd, count: usize) -> Result<Took> {
    let logs = tempfile::tempdir()?;
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for number in 0..count {
        tasks.spawn(start(containerd.client.clone(), number, logs.path().display().to_string()));
    }
    let mut all = Vec::new();
    while let Some(done) = tasks.join_next().await {
        all.push(done??);
    }
    let up = begun.elapsed();
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for (sandbox, container) in all {
        tasks.spawn(end(containerd.client.clone(), sandbox, container));
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(Took { up, down: begun.elapsed() })
}

async fn start(client: cri::Client, number: usize, logs: String) -> Result<(String, String)> {
    let metadata =
        v1::PodSandboxMetadata { name: format!("direct-{number}"), uid: format!("direct-{number}"), namespace: "direct".to_owned(), attempt: 0 };
    let config = v1::PodSandboxConfig {
        hostname: metadata.name.clone(),
        metadata: Some(metadata),
        log_directory: logs,
        labels: HashMap::from([(cri::labels::POD_NAMESPACE.to_owned(), "direct".to_owned())]),
        linux: Some(v1::LinuxPodSandboxConfig { cgroup_parent: format!("/kubepods/besteffort/poddirect-{number}"), ..Default::default() }),
        ..Default::default()
    };
    let request = v1::RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: String::new() };
    let sandbox = client.run_pod_sandbox(request).await?;
    let spec = v1::ImageSpec { image: IMAGE.to_owned(), ..Default::default() };
    let status = client.image_status(v1::ImageStatusRequest { image: Some(spec), verbose: false }).await?;
    let Some(image) = status.image else { bail!("containerd has no image {IMAGE}") };
    let container = v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: "wait".to_owned(), attempt: 0 }),
        image: Some(v1::ImageSpec { image: image.id, ..Default::default() }),
        log_path: format!("{number}.log"),
        linux: Some(v1::LinuxContainerConfig::default()),
        ..Default::default()
    };
    let request = v1::CreateContainerRequest { pod_sandbox_id: sandbox.clone(), config: Some(container), sandbox_config: Some(config) };
    let container = client.create_container(request).await?;
    client.start_container(v1::StartContainerRequest { container_id: container.clone() }).await?;
    // Its address and state, without which no agent calls a pod Ready.
    client.pod_sandbox_status(v1::PodSandboxStatusRequest { pod_sandbox_id: sandbox.clone(), verbose: false }).await?;
    client.container_status(v1::ContainerStatusRequest { container_id: container.clone(), verbose: false }).await?;
    Ok((sandbox, container))
}

async fn end(client: cri::Client, sandbox: String, container: String) -> Result<()> {
    client.stop_container(&container, Duration::from_secs(5)).await?;
    client.stop_pod_sandbox(v1::StopPodSandboxRequest { pod_sandbox_id: sandbox.clone() }).await?;
    client.remove_container(v1::RemoveContainerRequest { container_id: container }).await?;
    client.remove_pod_sandbox(v1::RemovePodSandboxRequest { pod_sandbox_id: sandbox }).await?;
    Ok(())
}
