//! Rows of pods and nodes for the scheduler.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Node, Pod, PodSpec, Taint, Toleration};

use super::neighbours::Rules;
use crate::view::{PodClaim, claims_of, controller_of};
use kube_rules::{HostPort, Labels, NodeTerm, RequiredNodeAffinity, Resources, host_ports, pod_requests, requests};

/// Requests that a pod without requests counts with when nodes are scored (upstream: `schedutil.DefaultMilliCPURequest`, `DefaultMemoryRequest`).
const DEFAULT_CPU: i64 = 100;
const DEFAULT_MEMORY: i64 = 200 * 1024 * 1024;

/// Row of a pod, for the scheduler.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PodRow {
    pub ns: String,
    pub uid: String,
    pub labels: Labels,
    /// The uid of its controller, by which its siblings are found.
    pub owner: Option<String>,
    pub node: String,
    pub deleting: bool,
    pub finished: bool,
    /// Meant for another scheduler, or held back by a gate.
    pub not_ours: bool,
    pub requests: Resources,
    /// cpu and memory for comparing nodes.
    pub weight: (i64, i64),
    pub ports: Vec<HostPort>,
    pub node_affinity: RequiredNodeAffinity,
    pub preferred: Vec<(i32, NodeTerm)>,
    pub tolerations: Vec<Toleration>,
    pub rules: Rules,
    pub claims: Vec<PodClaim>,
    pub priority: i32,
    /// Whether less important pods may be asked to make room.
    pub preempts: bool,
    pub started: Option<Timestamp>,
    /// The message of `PodScheduled=False`, and since when it is so.
    pub unschedulable: Option<String>,
    pub unscheduled_since: Option<Timestamp>,
}

impl PodRow {
    pub fn new(pod: &Pod) -> Self {
        let spec = pod.spec.clone().unwrap_or_default();
        let status = pod.status.as_ref();
        let condition = status.and_then(|status| status.conditions.iter().flatten().find(|one| one.type_ == "PodScheduled" && one.status == "False"));
        let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
        let preferred = affinity.and_then(|affinity| affinity.preferred_during_scheduling_ignored_during_execution.as_ref());
        let gated = spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty());
        Self {
            ns: pod.metadata.namespace.clone().unwrap_or_default(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            labels: pod.metadata.labels.clone().unwrap_or_default(),
            owner: controller_of(&pod.metadata).map(|owner| owner.uid),
            node: spec.node_name.clone().unwrap_or_default(),
            deleting: pod.metadata.deletion_timestamp.is_some(),
            finished: matches!(status.and_then(|status| status.phase.as_deref()), Some("Succeeded" | "Failed")),
            not_ours: gated || spec.scheduler_name.as_deref().is_some_and(|name| name != "default-scheduler"),
            requests: requests::counts(&pod_requests(&spec)),
            weight: weight(&spec),
            ports: host_ports(&spec).collect(),
            node_affinity: RequiredNodeAffinity::new(&spec),
            preferred: preferred.into_iter().flatten().map(|one| (one.weight, NodeTerm::new(&one.preference))).collect(),
            tolerations: spec.tolerations.clone().unwrap_or_default(),
            rules: Rules::new(pod, &spec),
            claims: claims_of(pod).collect(),
            priority: spec.priority.unwrap_or_default(),
            preempts: spec.preemption_policy.as_deref() != Some("Never"),
            started: status.and_then(|status| status.start_time.as_ref()).map(|time| time.0),
            unschedulable: condition.and_then(|one| one.message.clone()),
            unscheduled_since: condition.and_then(|one| one.last_transition_time.as_ref()).map(|time| time.0),
        }
    }

    /// Whether it waits for a node from us.
    pub fn is_pending(&self) -> bool {
        self.node.is_empty() && !self.deleting && !self.finished && !self.not_ours
    }
}

/// Row of a node, for the scheduler.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct NodeRow {
    pub labels: Labels,
    pub unschedulable: bool,
    pub taints: Vec<Taint>,
    pub allocatable: Resources,
}

impl NodeRow {
    pub fn new(node: &Node) -> Self {
        let spec = node.spec.clone().unwrap_or_default();
        let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref().or(status.capacity.as_ref()));
        Self {
            labels: node.metadata.labels.clone().unwrap_or_default(),
            unschedulable: spec.unschedulable.unwrap_or_default(),
            taints: spec.taints.unwrap_or_default(),
            allocatable: allocatable.map(|all| requests::counts(&requests::amounts(all))).unwrap_or_default(),
        }
    }
}

fn weight(spec: &PodSpec) -> (i64, i64) {
    let of = |container: &Container| {
        let requests = requests::counts(&requests::container_requests(container));
        (requests.get("cpu").copied().unwrap_or(DEFAULT_CPU), requests.get("memory").copied().unwrap_or(DEFAULT_MEMORY))
    };
    spec.containers.iter().map(of).fold((0, 0), |(cpu, memory), (more, much)| (cpu + more, memory + much))
}
