//! The container runtime in the pod machine's terms.

use std::collections::HashMap;

use cri::annotations::NETWORK_PROBLEM;
use cri::labels::{CONTAINER_NAME, POD_UID};
use cri::v1;
use jiff::Timestamp;

use crate::pod::{Container, Enforced, Observed, Sandbox, State};

/// Annotation keys of upstream's kubelet (kuberuntime/labels.go).
pub(crate) mod annotations {
    pub(crate) const HASH: &str = "io.kubernetes.container.hash";
    pub(crate) const RESTARTS: &str = "io.kubernetes.container.restartCount";
    pub(crate) const MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
    pub(crate) const MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
    pub(crate) const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
    pub(crate) const GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";
    pub(crate) const DELETION_GRACE: &str = "io.kubernetes.pod.deletionGracePeriod";
    pub(crate) const PORTS: &str = "io.kubernetes.container.ports";
}

/// Label selector for everything of one pod.
fn of_pod(uid: &str) -> HashMap<String, String> {
    HashMap::from([(POD_UID.to_owned(), uid.to_owned())])
}

/// Looks at one pod: its sandboxes with addresses, and each attempt of its containers.
pub(crate) async fn observe(client: &cri::Client, uid: &str) -> Result<Observed, cri::Error> {
    let filter = v1::PodSandboxFilter { label_selector: of_pod(uid), ..Default::default() };
    let sandboxes = client.list_pod_sandbox(v1::ListPodSandboxRequest { filter: Some(filter) }).await?;
    let mut out = Observed::default();
    for s in sandboxes {
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: s.id, ..Default::default() };
        match client.pod_sandbox_status(request).await {
            Ok(answer) => out.sandboxes.extend(answer.status.map(sandbox)),
            Err(e) if e.is_not_found() => {}
            Err(e) => return Err(e),
        }
    }
    out.sandboxes.sort_by_key(|s| std::cmp::Reverse((s.created_at, s.attempt)));
    let filter = v1::ContainerFilter { label_selector: of_pod(uid), ..Default::default() };
    for c in client.list_containers(v1::ListContainersRequest { filter: Some(filter) }).await? {
        let request = v1::ContainerStatusRequest { container_id: c.id, ..Default::default() };
        match client.container_status(request).await {
            Ok(answer) => {
                out.containers.extend(answer.status.map(|s| container(s, c.pod_sandbox_id)));
            }
            Err(e) if e.is_not_found() => {}
            Err(e) => return Err(e),
        }
    }
    out.containers.sort_by_key(|c| std::cmp::Reverse((c.created_at, c.restarts)));
    Ok(out)
}

fn sandbox(mut s: v1::PodSandboxStatus) -> Sandbox {
    let network = s.network.unwrap_or_default();
    let more = network.additional_ips.into_iter().map(|i| i.ip);
    Sandbox {
        problem: s.annotations.remove(NETWORK_PROBLEM),
        id: s.id,
        attempt: s.metadata.map_or(0, |m| m.attempt),
        ready: s.state == v1::PodSandboxState::SandboxReady as i32,
        created_at: time(s.created_at),
        ips: std::iter::once(network.ip).chain(more).filter(|ip| !ip.is_empty()).collect(),
    }
}

fn container(s: v1::ContainerStatus, sandbox: String) -> Container {
    let image = s.image.unwrap_or_default();
    let shown = if image.user_specified_image.is_empty() { image.image } else { image.user_specified_image };
    let resources = s.resources.and_then(|r| r.linux).map(|r| enforced(&r));
    // Each agent names the file in its own way.
    let message = s.annotations.get(annotations::MESSAGE_PATH);
    let message_file = s.mounts.into_iter().find(|mount| Some(&mount.container_path) == message).map(|mount| mount.host_path);
    Container {
        resources,
        message_file,
        id: s.id,
        sandbox,
        name: s.labels.get(CONTAINER_NAME).cloned().unwrap_or_default(),
        state: match v1::ContainerState::try_from(s.state) {
            Ok(v1::ContainerState::ContainerCreated) => State::Created,
            Ok(v1::ContainerState::ContainerRunning) => State::Running,
            Ok(v1::ContainerState::ContainerExited) => State::Exited,
            _ => State::Unknown,
        },
        restarts: s.annotations.get(annotations::RESTARTS).and_then(|r| r.parse().ok()).unwrap_or(0),
        hash: s.annotations.get(annotations::HASH).cloned().unwrap_or_default(),
        created_at: time(s.created_at),
        started_at: time(s.started_at),
        finished_at: time(s.finished_at),
        exit_code: s.exit_code,
        reason: s.reason,
        message: s.message,
        image: shown,
        image_id: if s.image_ref.is_empty() { s.image_id } else { s.image_ref },
    }
}

/// What a runtime says of a Linux container's resources (upstream toKubeContainerResources).
fn enforced(r: &v1::LinuxContainerResources) -> Enforced {
    let positive = |n: i64| (n > 0).then_some(n);
    let quota = positive(r.cpu_period).map(|period| r.cpu_quota.saturating_mul(1000) / period);
    Enforced {
        // A weight of 1024 is a processor; upstream rounds up.
        cpu_request: positive(r.cpu_shares).map(|shares| (shares.saturating_mul(1000) + 1023) / 1024),
        cpu_limit: quota.and_then(positive),
        memory_limit: positive(r.memory_limit_in_bytes),
    }
}

fn time(nanos: i64) -> Option<Timestamp> {
    if nanos == 0 { None } else { Timestamp::from_nanosecond(nanos.into()).ok() }
}
