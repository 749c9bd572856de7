//! The pod machine: from the pod and what the runtime holds of it to the next actions and the
//! status, without I/O, clock or async.
//!
//! Flow: the worker observes, calls [`step`], applies the actions, reports the status, and waits
//! for a change or for `wake`. Guarantees: the same input gives the same output; an action that
//! fails leaves its trace in [`Memory`] with the time of the next try, so that no input repeats
//! at once for ever. Mirrors pkg/kubelet/kuberuntime (computePodActions) and kubelet_pods.go.

pub(crate) mod admit;
pub(crate) mod backoff;
mod plan;
pub(crate) mod resources;
pub(crate) mod status;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container as Spec, Pod, PodSpec, PodStatus};
use kube_rules::Refusal;

pub(crate) use backoff::Backoffs;
pub(crate) use plan::step;

/// What the runtime holds of one pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Observed {
    /// Newest first.
    pub sandboxes: Vec<Sandbox>,
    /// Newest first; all attempts that still exist.
    pub containers: Vec<Container>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sandbox {
    pub id: String,
    pub attempt: u32,
    pub ready: bool,
    pub created_at: Option<Timestamp>,
    pub ips: Vec<String>,
    /// Why its network does not work, where the runtime says so.
    pub problem: Option<String>,
}

/// State of a container in the runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    #[default]
    Created,
    Running,
    Exited,
    Unknown,
}

/// A container in the runtime.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Container {
    pub id: String,
    pub sandbox: String,
    pub name: String,
    pub state: State,
    /// How often it had been restarted when this attempt was made.
    pub restarts: u32,
    pub hash: String,
    pub created_at: Option<Timestamp>,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub exit_code: i32,
    pub reason: String,
    /// Termination message, or what the runtime says.
    pub message: String,
    pub image: String,
    pub image_id: String,
}

/// What a container is in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Runs once, before the rest.
    Init,
    /// An init container with restartPolicy Always.
    Sidecar,
    /// One of `spec.containers`.
    Main,
}

/// What the worker remembers between steps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    /// The node's refusal; final.
    pub refused: Option<Refusal>,
    pub volumes: Volumes,
    pub sandbox_failure: Option<Failure>,
    /// By container name.
    pub images: BTreeMap<String, ImageState>,
    /// The failure before a pull that is under way, by container name.
    pub pull_failures: BTreeMap<String, Failure>,
    /// Failed creates and starts, by container name.
    pub failures: BTreeMap<String, Failure>,
    /// Restart back-off, by container name and hash.
    pub restarts: Backoffs,
    /// Containers being stopped: id → grace in seconds.
    pub stopping: BTreeMap<String, i64>,
    /// Sandboxes whose stop succeeded.
    pub stopped: BTreeSet<String>,
    /// Probe verdicts, by container id. A container without probes has none.
    pub health: BTreeMap<String, Health>,
    /// Runtime objects, volumes and directories are gone.
    pub cleaned: bool,
    /// Volumes were torn down after the pod ended.
    pub volumes_down: bool,
}

/// The pod's volumes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Volumes {
    #[default]
    NotReady,
    Ready,
    Failed(Failure),
}

/// Something that failed, and when to try again.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    /// CamelCase, as shown in `waiting.reason`.
    pub reason: String,
    pub message: String,
    pub failed_at: Timestamp,
    pub retry_at: Timestamp,
    /// How often in a row.
    pub count: u32,
}

/// Where a container's image is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ImageState {
    Pulling,
    /// Ready to be used once: the reference to create the container from.
    Present(String),
    Failed(Failure),
}

/// What probes say about a running container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Health {
    pub started: bool,
    pub ready: bool,
    pub alive: bool,
}

/// Everything one step looks at.
pub(crate) struct Input<'a> {
    pub pod: &'a Pod,
    pub observed: &'a Observed,
    pub memory: &'a Memory,
    /// The runtime's network is ready.
    pub network_ready: bool,
    /// The API does not know the pod any more.
    pub gone: bool,
    /// The pod's ephemeral containers, as containers.
    pub ephemeral: &'a [Spec],
    pub now: Timestamp,
    pub node: &'a NodeInfo,
}

/// What a status says about the node.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeInfo {
    /// Addresses of the host; the first is primary.
    pub host_ips: Vec<String>,
    /// Prefix of container IDs: `containerd`.
    pub runtime: String,
}

/// What to do next, in order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Make the volumes ready.
    MountVolumes,
    /// Make a sandbox; `attempt` counts from 0.
    CreateSandbox { attempt: u32 },
    /// Stop a sandbox and what is left in it.
    StopSandbox { id: String },
    /// Find or pull the image of a container.
    EnsureImage { container: String },
    /// Say that the next pull of a container's image waits.
    BackOffPull { container: String },
    /// Create and start a container. `restarts` 0 is the first time.
    Start { container: String, restarts: u32 },
    /// Stop a container with a grace in seconds.
    Kill { id: String, container: String, grace: i64, why: Why },
    /// Remove an old attempt.
    Remove { id: String },
    /// Unmount volumes of an ended pod, keeping its containers for their logs.
    TearDownVolumes,
    /// Remove containers, sandboxes, volumes and directories.
    CleanUp,
    /// Let the API forget the pod, after the status has arrived there.
    DeleteFromApi,
}

/// Why a container is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    PodEnds,
    SandboxGone,
    Changed,
    Unhealthy,
    StartupFailed,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::MountVolumes => f.write_str("mount volumes"),
            Action::CreateSandbox { attempt } => write!(f, "create sandbox, attempt {attempt}"),
            Action::StopSandbox { id } => write!(f, "stop sandbox {id}"),
            Action::EnsureImage { container } => write!(f, "get image of {container}"),
            Action::BackOffPull { container } => write!(f, "wait before pulling the image of {container} again"),
            Action::Start { container, restarts } => write!(f, "start {container}, restart {restarts}"),
            Action::Kill { id, container, grace, why } => {
                write!(f, "stop {container} ({id}) within {grace} s: {why:?}")
            }
            Action::Remove { id } => write!(f, "remove container {id}"),
            Action::TearDownVolumes => f.write_str("tear down volumes"),
            Action::CleanUp => f.write_str("remove everything of the pod"),
            Action::DeleteFromApi => f.write_str("delete from the API"),
        }
    }
}

/// What a step decided.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Output {
    pub actions: Vec<Action>,
    pub status: PodStatus,
    /// When to look again although nothing changed.
    pub wake: Option<Timestamp>,
    /// Nothing is left to do for this pod, ever.
    pub finished: bool,
}

pub(crate) fn containers(spec: &PodSpec) -> impl DoubleEndedIterator<Item = (Kind, &Spec)> {
    let inits = spec.init_containers.iter().flatten().map(|c| {
        let sidecar = c.restart_policy.as_deref() == Some("Always");
        (if sidecar { Kind::Sidecar } else { Kind::Init }, c)
    });
    inits.chain(spec.containers.iter().map(|c| (Kind::Main, c)))
}

/// The pod's ephemeral containers in the form of all others.
pub(crate) fn ephemeral(pod: &Pod) -> Vec<Spec> {
    let all = pod.spec.iter().flat_map(|s| s.ephemeral_containers.iter().flatten());
    // Every field of theirs but the target is one of a container.
    all.filter_map(|e| serde_json::from_value(serde_json::to_value(e).ok()?).ok()).collect()
}

/// Hash of the fields whose change restarts a container.
pub(crate) fn container_hash(spec: &Spec) -> String {
    let text = serde_json::json!({"name": spec.name, "image": spec.image}).to_string();
    // FNV-1a, 32 bits, as upstream.
    let hash = text.bytes().fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
    format!("{hash:x}")
}

/// Whether the pod's API object asks for its end.
pub(crate) fn is_deleted(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Whether the pod uses the host's network.
pub(crate) fn is_host_network(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|s| s.host_network).unwrap_or(false)
}

/// Grace for stopping the pod's containers, in seconds.
pub(crate) fn grace(pod: &Pod) -> i64 {
    let spec = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds).unwrap_or(30);
    let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(spec);
    grace.max(1)
}

impl Failure {
    /// The failure after `before` (if any): retries after `first` doubling to `max`.
    pub(crate) fn next(
        before: Option<&Failure>,
        reason: &str,
        message: String,
        now: Timestamp,
        (first, max): (SignedDuration, SignedDuration),
    ) -> Failure {
        let count = before.map_or(0, |f| f.count) + 1;
        let delay = ::backoff::exponential(first.unsigned_abs(), max.unsigned_abs(), count - 1);
        Failure { reason: reason.to_owned(), message, failed_at: now, retry_at: now + delay, count }
    }
}

impl Observed {
    /// The newest attempt of a container, in whatever sandbox.
    pub(crate) fn newest(&self, name: &str) -> Option<&Container> {
        self.containers.iter().find(|c| c.name == name)
    }

    /// The newest attempt of a container in one sandbox.
    pub(crate) fn newest_in(&self, name: &str, sandbox: &str) -> Option<&Container> {
        self.containers.iter().find(|c| c.name == name && c.sandbox == sandbox)
    }

    /// The attempt of a container whose end counts towards its restart back-off. A container that was stopped because its sandbox was
    /// replaced did nothing wrong: upstream looks at its state before that, which is running (kuberuntime_manager.go, SyncPod and doBackOff).
    pub(crate) fn ended(&self, name: &str, memory: &Memory) -> Option<&Container> {
        let sandbox = self.sandboxes.first().map(|s| s.id.as_str());
        let replaced = |c: &Container| memory.stopping.contains_key(&c.id) && sandbox != Some(c.sandbox.as_str());
        self.newest(name).filter(|c| c.state == State::Exited && !replaced(c))
    }
}
