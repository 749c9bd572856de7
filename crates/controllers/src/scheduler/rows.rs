//! What the scheduler keeps of pods and nodes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Container, Node, Pod, PodSpec, Taint, Toleration},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use kube_rules::Quantity;

use super::neighbours::Rules;
use crate::{
    selector::{Labels, NodeTerm, Selector},
    view::{PodClaim, claims_of, controller_of},
};

/// Amounts by resource: cpu in thousandths, everything else in units.
pub(super) type Resources = BTreeMap<String, i64>;

/// What a pod without requests counts as when nodes are compared (upstream: `schedutil.DefaultMilliCPURequest`, `DefaultMemoryRequest`).
const DEFAULT_CPU: i64 = 100;
const DEFAULT_MEMORY: i64 = 200 * 1024 * 1024;

/// A port that a pod takes on its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HostPort {
    pub address: String,
    pub protocol: String,
    pub port: i32,
}

impl HostPort {
    /// Whether both cannot be on one node.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        let any = |address: &str| address.is_empty() || address == "0.0.0.0";
        self.port == other.port && self.protocol == other.protocol && (self.address == other.address || any(&self.address) || any(&other.address))
    }
}

/// What the scheduler needs of a pod.
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
    pub selector: Selector,
    /// Required node affinity: one of these terms must match.
    pub required: Option<Vec<NodeTerm>>,
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
        let required = affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
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
            requests: requests(&spec),
            weight: weight(&spec),
            ports: host_ports(&spec),
            selector: spec.node_selector.as_ref().map(Selector::from_labels).unwrap_or_default(),
            required: required.map(|selector| selector.node_selector_terms.iter().map(NodeTerm::new).collect()),
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

/// What the scheduler needs of a node.
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
        let status = node.status.clone().unwrap_or_default();
        Self {
            labels: node.metadata.labels.clone().unwrap_or_default(),
            unschedulable: spec.unschedulable.unwrap_or_default(),
            taints: spec.taints.unwrap_or_default(),
            allocatable: status.allocatable.as_ref().or(status.capacity.as_ref()).map(amounts).unwrap_or_default(),
        }
    }
}

fn amounts(quantities: &BTreeMap<String, ApiQuantity>) -> Resources {
    let amount = |(name, quantity): (&String, &ApiQuantity)| {
        // The API server refuses quantities that cannot be read.
        let quantity = Quantity::parse(&quantity.0).unwrap_or(Quantity::ZERO);
        (name.clone(), if name == "cpu" { quantity.milli_value() } else { quantity.value() })
    };
    quantities.iter().map(amount).collect()
}

fn container_requests(container: &Container) -> Resources {
    let resources = container.resources.clone().unwrap_or_default();
    // Requests default to limits.
    let mut amount = resources.limits.as_ref().map(amounts).unwrap_or_default();
    amount.extend(resources.requests.as_ref().map(amounts).unwrap_or_default());
    amount
}

fn add(total: &mut Resources, more: &Resources) {
    for (name, amount) in more {
        let sum = total.entry(name.clone()).or_default();
        *sum = sum.saturating_add(*amount);
    }
}

fn raise(total: &mut Resources, least: &Resources) {
    for (name, amount) in least {
        let present = total.entry(name.clone()).or_default();
        *present = (*present).max(*amount);
    }
}

/// What a pod asks for (upstream: `component-helpers/resource` `PodRequests`): its containers together with its side-cars, or more if an
/// init container needs more, plus overhead; a request of the whole pod wins.
fn requests(spec: &PodSpec) -> Resources {
    let mut total = Resources::new();
    for container in &spec.containers {
        add(&mut total, &container_requests(container));
    }
    let (mut sidecars, mut start) = (Resources::new(), Resources::new());
    for container in spec.init_containers.iter().flatten() {
        let own = container_requests(container);
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut total, &own);
            add(&mut sidecars, &own);
            raise(&mut start, &sidecars);
        } else {
            let mut during = sidecars.clone();
            add(&mut during, &own);
            raise(&mut start, &during);
        }
    }
    raise(&mut total, &start);
    let of_pod = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref()).map(amounts);
    total.extend(of_pod.unwrap_or_default());
    add(&mut total, &spec.overhead.as_ref().map(amounts).unwrap_or_default());
    total
}

fn weight(spec: &PodSpec) -> (i64, i64) {
    let of = |container: &Container| {
        let requests = container_requests(container);
        (requests.get("cpu").copied().unwrap_or(DEFAULT_CPU), requests.get("memory").copied().unwrap_or(DEFAULT_MEMORY))
    };
    spec.containers.iter().map(of).fold((0, 0), |(cpu, memory), (more, much)| (cpu + more, memory + much))
}

fn host_ports(spec: &PodSpec) -> Vec<HostPort> {
    let ports = spec.containers.iter().flat_map(|container| container.ports.iter().flatten());
    ports
        .filter_map(|port| {
            Some(HostPort {
                address: port.host_ip.clone().unwrap_or_default(),
                protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
                port: port.host_port.filter(|port| *port > 0)?,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(cpu: &str, memory: &str, sidecar: bool) -> Container {
        let requests = BTreeMap::from([("cpu".to_owned(), ApiQuantity(cpu.to_owned())), ("memory".to_owned(), ApiQuantity(memory.to_owned()))]);
        Container {
            resources: Some(k8s_openapi::api::core::v1::ResourceRequirements { requests: Some(requests), ..Default::default() }),
            restart_policy: sidecar.then(|| "Always".to_owned()),
            ..Default::default()
        }
    }

    #[test]
    fn what_a_pod_asks_for() {
        for (what, containers, init, expected) in [
            ("the sum of its containers", vec![container("1", "1Gi", false), container("500m", "1Gi", false)], vec![], (1500, 2 << 30)),
            (
                "or its largest init container",
                vec![container("1", "1Gi", false)],
                vec![container("2", "1Mi", false), container("1", "3Gi", false)],
                (2000, 3 << 30),
            ),
            (
                "side-cars run beside both",
                vec![container("1", "1Gi", false)],
                vec![container("1", "1Gi", true), container("3", "1Mi", false)],
                (4000, 2 << 30),
            ),
            (
                "a side-car after an init container does not count for it",
                vec![container("1", "1Gi", false)],
                vec![container("3", "1Mi", false), container("1", "1Gi", true)],
                (3000, 2 << 30),
            ),
        ] {
            let spec = PodSpec { containers, init_containers: Some(init), ..Default::default() };
            let requests = requests(&spec);
            assert_eq!((requests["cpu"], requests["memory"]), expected, "{what}");
        }
    }

    #[test]
    fn host_ports_conflict_unless_their_addresses_differ() {
        let port = |address: &str, protocol: &str| HostPort { address: address.into(), protocol: protocol.into(), port: 80 };
        assert!(port("", "TCP").conflicts_with(&port("10.0.0.1", "TCP")));
        assert!(port("10.0.0.1", "TCP").conflicts_with(&port("10.0.0.1", "TCP")));
        assert!(!port("10.0.0.2", "TCP").conflicts_with(&port("10.0.0.1", "TCP")));
        assert!(!port("", "UDP").conflicts_with(&port("", "TCP")));
    }
}
