//! Rows of pods and nodes for the scheduler.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, PodSpec, Taint, Toleration};

use super::{disks::Disk, neighbours::Rules};
use crate::view::{Controller, PodClaim, claims_of, controller_of};
use kube_rules::{Amounts, HostPort, Labels, NodeTerm, Quantity, RequiredNodeAffinity, Resources, host_ports, pod_requests, requests};

/// Requests that a container without requests counts with when nodes are scored (upstream: `schedutil.DefaultMilliCPURequest`,
/// `DefaultMemoryRequest`).
const DEFAULT_CPU: Quantity = Quantity::from_millis(100);
const DEFAULT_MEMORY: Quantity = Quantity::from_bytes(200 * 1024 * 1024);

/// The scheduler of pods that name none.
pub(super) const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// Row of a pod, for the scheduler.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PodRow {
    pub ns: String,
    pub uid: String,
    pub labels: Labels,
    /// Its controller, by which its siblings are found.
    pub owner: Option<Controller>,
    pub node: String,
    /// The node where others make room for it.
    pub nominated: Option<String>,
    pub deleting: bool,
    /// It goes because the scheduler wants its place for another pod.
    pub preempted: bool,
    pub finished: bool,
    /// `schedulerName`.
    pub scheduler: String,
    /// Held back by a scheduling gate.
    pub gated: bool,
    pub requests: Resources,
    /// The same, with defaults for containers without requests: for comparing nodes.
    pub weight: Resources,
    pub ports: Vec<HostPort>,
    pub node_affinity: RequiredNodeAffinity,
    pub preferred: Vec<(i32, NodeTerm)>,
    pub tolerations: Vec<Toleration>,
    pub rules: Rules,
    pub claims: Vec<PodClaim>,
    /// Disks that it names itself.
    pub disks: Vec<Disk>,
    /// The images of its containers and volumes, in the form that nodes report.
    pub images: Vec<String>,
    pub containers: usize,
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
        let condition = |type_: &str, state: &str| {
            status.and_then(|status| status.conditions.iter().flatten().find(|one| one.type_ == type_ && one.status == state))
        };
        let unscheduled = condition("PodScheduled", "False");
        let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
        let preferred = affinity.and_then(|affinity| affinity.preferred_during_scheduling_ignored_during_execution.as_ref());
        let deleting = pod.metadata.deletion_timestamp.is_some();
        let defaults = Amounts::from([("cpu".to_owned(), DEFAULT_CPU), ("memory".to_owned(), DEFAULT_MEMORY)]);
        Self {
            ns: pod.metadata.namespace.clone().unwrap_or_default(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            labels: pod.metadata.labels.clone().unwrap_or_default(),
            owner: controller_of(&pod.metadata),
            node: spec.node_name.clone().unwrap_or_default(),
            nominated: status.and_then(|status| status.nominated_node_name.clone()).filter(|node| !node.is_empty()),
            deleting,
            preempted: deleting && condition("DisruptionTarget", "True").is_some_and(|one| one.reason.as_deref() == Some("PreemptionByScheduler")),
            finished: matches!(status.and_then(|status| status.phase.as_deref()), Some("Succeeded" | "Failed")),
            scheduler: spec.scheduler_name.clone().filter(|name| !name.is_empty()).unwrap_or_else(|| DEFAULT_SCHEDULER.to_owned()),
            gated: spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty()),
            requests: requests::counts(&pod_requests(&spec)),
            weight: requests::counts(&requests::pod_requests_with(&spec, &defaults)),
            ports: host_ports(&spec).collect(),
            node_affinity: RequiredNodeAffinity::new(&spec),
            preferred: preferred.into_iter().flatten().map(|one| (one.weight, NodeTerm::new(&one.preference))).collect(),
            tolerations: spec.tolerations.clone().unwrap_or_default(),
            rules: Rules::new(pod, &spec),
            claims: claims_of(pod).collect(),
            disks: Disk::all(&spec),
            images: images(&spec),
            containers: spec.containers.len() + spec.init_containers.as_ref().map_or(0, Vec::len),
            priority: spec.priority.unwrap_or_default(),
            preempts: spec.preemption_policy.as_deref() != Some("Never"),
            started: status.and_then(|status| status.start_time.as_ref()).map(|time| time.0),
            unschedulable: unscheduled.and_then(|one| one.message.clone()),
            unscheduled_since: unscheduled.and_then(|one| one.last_transition_time.as_ref()).map(|time| time.0),
        }
    }

    /// The same pod without what tells it from others of its workload, and without what has become of it: nothing that a node is chosen by.
    pub fn without_identity(&self) -> Self {
        Self { uid: String::new(), node: String::new(), nominated: None, started: None, unschedulable: None, unscheduled_since: None, ..self.clone() }
    }

    /// Whether it waits for a node, from whichever scheduler.
    pub fn is_pending(&self) -> bool {
        self.node.is_empty() && !self.deleting && !self.finished && !self.gated
    }
}

/// Images of the containers and of image volumes (upstream: `sumImageScores`).
fn images(spec: &PodSpec) -> Vec<String> {
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers).filter_map(|container| container.image.as_deref());
    let volumes = spec.volumes.iter().flatten().filter_map(|volume| volume.image.as_ref()?.reference.as_deref());
    containers.chain(volumes).map(with_tag).collect()
}

/// An image name in the form that nodes report (upstream: `normalizedImageName`).
fn with_tag(name: &str) -> String {
    let tagged = name.rfind(':').is_some_and(|colon| name.rfind('/').is_none_or(|slash| colon > slash));
    if tagged { name.to_owned() } else { format!("{name}:latest") }
}

/// Row of a node, for the scheduler.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct NodeRow {
    pub labels: Labels,
    pub unschedulable: bool,
    pub taints: Vec<Taint>,
    pub allocatable: Resources,
    /// The sizes of the images that it holds, by each of their names.
    pub images: BTreeMap<String, i64>,
}

impl NodeRow {
    pub fn new(node: &Node) -> Self {
        let spec = node.spec.clone().unwrap_or_default();
        let status = node.status.as_ref();
        let allocatable = status.and_then(|status| status.allocatable.as_ref().or(status.capacity.as_ref()));
        let images = status.iter().flat_map(|status| status.images.iter().flatten());
        let named = images.flat_map(|image| image.names.iter().flatten().map(|name| (name.clone(), image.size_bytes.unwrap_or_default())));
        Self {
            labels: node.metadata.labels.clone().unwrap_or_default(),
            unschedulable: spec.unschedulable.unwrap_or_default(),
            taints: spec.taints.unwrap_or_default(),
            allocatable: allocatable.map(|all| requests::counts(&requests::amounts(all))).unwrap_or_default(),
            images: named.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_names_get_the_tag_that_nodes_report() {
        for (name, expected) in [
            ("nginx", "nginx:latest"),
            ("nginx:1", "nginx:1"),
            ("host:5000/nginx", "host:5000/nginx:latest"),
            ("host:5000/nginx:1", "host:5000/nginx:1"),
            ("nginx@sha256:abc", "nginx@sha256:abc"),
        ] {
            assert_eq!(with_tag(name), expected);
        }
    }
}
