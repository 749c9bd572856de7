//! The pod machine: from events to the next actions and the status, without I/O, clock or async.
//!
//! Flow: the worker hands each event to [`on`], carries out the actions, and hands their outcomes
//! back as events. Guarantees: the same events at the same times give the same actions; an action
//! under way is not repeated; one that failed leaves the time of its next try in [`Memory`], so
//! that nothing repeats at once for ever; a state that is rebuilt from the API's pod and from what
//! the runtime holds goes on where the lost one was. Mirrors pkg/kubelet/kuberuntime
//! (computePodActions) and kubelet_pods.go.

mod action;
pub(crate) mod admit;
mod backoff;
pub(crate) mod explain;
pub(crate) mod features;
mod machine;
mod memory;
mod plan;
mod recursive;
pub(crate) mod resize;
pub(crate) mod resources;
mod restart;
pub(crate) mod status;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container as Spec, Pod, PodSpec, PodStatus};

pub(crate) use action::{Action, Kill, Prepare, ResizeNews, Start, Why};
pub(crate) use backoff::Backoffs;
pub(crate) use machine::{Event, Failed, Outcome, PodState, on};
pub(crate) use memory::{
    Attempt, Content, Evicted, Failure, Health, Hook, ImageState, Memory, PreStop, Reason, Removal, Retry, SandboxWork, Stop, Volumes, WaitingReason,
};
pub(crate) use recursive::{RecursiveError, is_recursive};
pub(crate) use resize::{Pending, PendingReason, Record, Update};

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
    /// The runtime's way of running it; empty for the usual one.
    pub handler: String,
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
    /// Where the runtime says that the container writes its termination message: a path of the node.
    pub message_file: Option<String>,
    pub image: String,
    pub image_id: String,
    /// What the runtime says that it enforces.
    pub resources: Option<Enforced>,
    /// The signal that asks it to end, where the runtime says so.
    pub stop_signal: Option<cri::Signal>,
}

/// Resources of a container as the runtime has them (Linux).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Enforced {
    /// Thousandths of a processor, from the container's weight.
    pub cpu_request: Option<i64>,
    pub cpu_limit: Option<i64>,
    /// Bytes.
    pub memory_limit: Option<i64>,
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

/// Everything one plan looks at.
pub(crate) struct Input<'a> {
    pub pod: &'a Pod,
    pub observed: &'a Observed,
    pub memory: &'a Memory,
    /// The API does not know the pod any more.
    pub gone: bool,
    /// What the runtime was told of resources.
    pub record: &'a Record,
    /// The pod's ephemeral containers, as containers.
    pub ephemeral: &'a [Spec],
    pub now: Timestamp,
    pub node: &'a NodeInfo,
}

/// What a pod needs to know about the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeInfo {
    /// The runtime's network is ready.
    pub network_ready: bool,
    /// Addresses of the host; the first is primary.
    pub host_ips: Vec<String>,
    /// Prefix of container IDs: `containerd`.
    pub runtime: String,
    /// So many dead attempts of each container stay, when a further one dies; None where they are removed by other rules.
    pub dead_kept: Option<usize>,
    /// The runtime's handlers that have recursive read-only mounts.
    pub recursive: Vec<String>,
    /// Pods can be resized in place, which upstream refuses on Windows.
    pub resizes: bool,
}

/// What an event leads to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Output {
    pub actions: Vec<Action>,
    /// None while what is known of the runtime is out of date: the status follows the next look.
    pub status: Option<PodStatus>,
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

/// A container of the pod, of whatever kind.
pub(crate) fn spec_of(pod: &Pod, name: &str) -> Option<Spec> {
    let own = containers(pod.spec.as_ref()?).map(|(_, c)| c).find(|c| c.name == name).cloned();
    own.or_else(|| ephemeral(pod).into_iter().find(|c| c.name == name))
}

/// Hash of the fields whose change restarts a container, as upstream's kubelet writes it (container/helpers.go `HashContainer`): a node that
/// changes its agent keeps its containers. FNV-1a of 32 bits, over the JSON of name and image as Go prints a slice of bytes.
pub(crate) fn container_hash(spec: &Spec) -> String {
    let fields = BTreeMap::from([("image", spec.image.as_deref().unwrap_or_default()), ("name", &spec.name)]);
    let json = serde_json::to_string(&fields).unwrap_or_default();
    let bytes: Vec<String> = json.bytes().map(|byte| byte.to_string()).collect();
    let text = format!("([]uint8)[{}]", bytes.join(" "));
    let hash = text.bytes().fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
    format!("{hash:x}")
}

/// Whether the pod's API object asks for its end.
pub(crate) fn is_deleted(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Whether the pod's status says that it has ended.
pub(crate) fn is_terminal(pod: &Pod) -> bool {
    status::is_terminal(pod)
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

impl NodeInfo {
    /// Whether mounts of a pod can be read-only at every level. A pod without a sandbox has the usual handler, unless it names a class.
    pub(crate) fn is_recursive(&self, pod: &Pod, observed: &Observed) -> bool {
        let class = pod.spec.as_ref().and_then(|spec| spec.runtime_class_name.as_deref()).unwrap_or_default();
        let handler = observed.sandboxes.first().map(|sandbox| sandbox.handler.as_str()).or(class.is_empty().then_some(""));
        handler.is_some_and(|handler| self.recursive.iter().any(|offers| offers == handler))
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
        let replaced = |c: &Container| memory.stops.contains_key(&c.id) && sandbox != Some(c.sandbox.as_str());
        self.newest(name).filter(|c| c.state == State::Exited && !replaced(c))
    }
}
