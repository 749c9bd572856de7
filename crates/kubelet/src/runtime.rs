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
    let filter = v1::ContainerFilter { label_selector: of_pod(uid), ..Default::default() };
    for c in client.list_containers(v1::ListContainersRequest { filter: Some(filter) }).await? {
        let request = v1::ContainerStatusRequest { container_id: c.id, ..Default::default() };
        match client.container_status_with(request).await {
            Ok((answer, stop_signal)) => {
                out.containers.extend(answer.status.map(|s| Container { stop_signal, ..container(s, c.pod_sandbox_id) }));
            }
            Err(e) if e.is_not_found() => {}
            Err(e) => return Err(e),
        }
    }
    sort(&mut out);
    Ok(out)
}

/// The newest first: by their numbers, which only grow. The clock by which they were made may have been set back.
fn sort(observed: &mut Observed) {
    observed.sandboxes.sort_by_key(|s| std::cmp::Reverse((s.attempt, s.created_at)));
    observed.containers.sort_by_key(|c| std::cmp::Reverse((c.restarts, c.created_at)));
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
        handler: s.runtime_handler,
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
        stop_signal: None,
        id: s.id,
        sandbox,
        name: s.labels.get(CONTAINER_NAME).cloned().unwrap_or_default(),
        state: match v1::ContainerState::try_from(s.state) {
            // Its start was given up: it never ran.
            Ok(v1::ContainerState::ContainerExited) if is_abandoned(&s.reason, &s.message) => State::Created,
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

/// Whether a container ended because its making was given up (containerd's words): with the agent that called, or as a machine that is
/// overloaded took too long for it. No program of it was begun.
fn is_abandoned(reason: &str, message: &str) -> bool {
    let given_up = ["context canceled", "context deadline exceeded"].iter().any(|why| message.contains(why));
    reason == "StartError" && message.starts_with("failed to create containerd task") && given_up
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_is_found_though_the_clock_was_set_back() {
        let at = |second: i64| Some(Timestamp::from_second(second).unwrap());
        let sandbox = |attempt: u32, second: i64| Sandbox { id: format!("s{attempt}"), attempt, created_at: at(second), ..Default::default() };
        let container = |id: &str, restarts: u32, second: i64| Container {
            id: id.into(),
            name: "c".into(),
            restarts,
            created_at: at(second),
            ..Default::default()
        };
        // The second attempts were made after an hour had been taken back; the third was made twice.
        let containers = vec![container("first", 0, 7200), container("third", 2, 3700), container("second", 1, 3600), container("again", 2, 3800)];
        let mut observed = Observed { sandboxes: vec![sandbox(0, 7200), sandbox(1, 3600)], containers };
        sort(&mut observed);
        assert_eq!(observed.sandboxes[0].id, "s1");
        let order: Vec<&str> = observed.containers.iter().map(|c| c.id.as_str()).collect();
        assert_eq!(order, ["again", "third", "second", "first"]);
    }

    #[test]
    fn a_start_that_was_given_up_was_none() {
        let state = |reason: &str, message: &str| {
            let exited = v1::ContainerState::ContainerExited as i32;
            let status = v1::ContainerStatus { state: exited, reason: reason.into(), message: message.into(), exit_code: 128, ..Default::default() };
            container(status, "s".into()).state
        };
        let task = |why: &str| format!("failed to create containerd task: failed to create shim task: {why}: unknown");
        assert_eq!(state("StartError", &task("context canceled")), State::Created);
        assert_eq!(state("StartError", &task("context deadline exceeded")), State::Created);
        assert_eq!(state("StartError", &task("OCI runtime create failed: runc create failed: exec: no such file")), State::Exited);
        assert_eq!(state("StartError", "failed to start containerd task: context canceled"), State::Exited, "it may have run");
        assert_eq!(state("Error", &task("context canceled")), State::Exited);
    }
}
