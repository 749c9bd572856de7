//! In-place resize of a pod (upstream pkg/kubelet/allocation, and computePodResizeAction of kuberuntime).
//!
//! Three values per container: what the API asks for, what the node has allocated, and what the
//! runtime was told last. The pod that the machine works with carries the allocated ones. The
//! record of the last two is kept on disk, so that an agent's restart neither grants a resize that
//! waits nor forgets one under way.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container as Spec, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kube_rules::Quantity;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Container, Kind, containers};

/// Resources by container name; those of the pod as a whole have the name [`POD`].
pub(crate) type Resources = BTreeMap<String, ResourceRequirements>;

/// No container has it.
const POD: &str = "";

/// What the node has allocated to a pod's containers, and what the runtime was told of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    #[serde(with = "shared")]
    pub allocated: Arc<Resources>,
    /// Mostly the same, and then one value with it.
    #[serde(with = "shared")]
    pub actuated: Arc<Resources>,
}

impl Record {
    /// The runtime has been told of the same.
    pub(crate) fn of(resources: Resources) -> Self {
        let told = told(&resources);
        let allocated = Arc::new(resources);
        Self { actuated: if told == *allocated { allocated.clone() } else { told.into() }, allocated }
    }

    /// The runtime was told of a container's allocated resources.
    pub(crate) fn actuate(&mut self, container: &str) {
        let Some(allocated) = self.allocated.get(container) else { return };
        let told = told_of(allocated, self.allocated.get(POD));
        if self.actuated.get(container) != Some(&told) {
            Arc::make_mut(&mut self.actuated).insert(container.to_owned(), told);
        }
    }
}

/// Shared resources as JSON.
mod shared {
    use std::sync::Arc;

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    use super::Resources;

    pub(super) fn serialize<S: Serializer>(resources: &Arc<Resources>, serializer: S) -> Result<S::Ok, S::Error> {
        resources.as_ref().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<Resources>, D::Error> {
        Resources::deserialize(deserializer).map(Arc::new)
    }
}

/// A resource that is changed in a running container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    Memory,
    Cpu,
}

impl Resource {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Resource::Memory => "memory",
            Resource::Cpu => "cpu",
        }
    }
}

/// Processor time and memory of a container; 0 where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amounts {
    /// Thousandths of a processor.
    pub cpu_request: i64,
    pub cpu_limit: i64,
    /// Bytes.
    pub memory_request: i64,
    pub memory_limit: i64,
}

impl Amounts {
    pub(crate) fn of(resources: &ResourceRequirements) -> Self {
        let of = |list: &Option<BTreeMap<String, ApiQuantity>>, name: &str| Quantity::parse(&list.as_ref()?.get(name)?.0).ok();
        Amounts {
            cpu_request: of(&resources.requests, "cpu").map_or(0, Quantity::milli_value),
            cpu_limit: of(&resources.limits, "cpu").map_or(0, Quantity::milli_value),
            memory_request: of(&resources.requests, "memory").map_or(0, Quantity::value),
            memory_limit: of(&resources.limits, "memory").map_or(0, Quantity::value),
        }
    }

    /// Of a container: where it has no limit its pod's holds (upstream `containerResourcesFromRequirements`).
    pub(crate) fn of_container(c: &ResourceRequirements, pod: Option<&ResourceRequirements>) -> Self {
        let (own, pod) = (Self::of(c), pod.map(Self::of).unwrap_or_default());
        let or = |own: i64, pods: i64| if own == 0 { pods } else { own };
        Amounts { cpu_limit: or(own.cpu_limit, pod.cpu_limit), memory_limit: or(own.memory_limit, pod.memory_limit), ..own }
    }

    /// (limit, request) of one resource.
    fn pair(self, resource: Resource) -> (i64, i64) {
        match resource {
            Resource::Memory => (self.memory_limit, self.memory_request),
            Resource::Cpu => (self.cpu_limit, self.cpu_request),
        }
    }

    /// These, but for one resource, which is as in `other`.
    fn with(self, resource: Resource, other: Amounts) -> Self {
        match resource {
            Resource::Memory => Amounts { memory_request: other.memory_request, memory_limit: other.memory_limit, ..self },
            Resource::Cpu => Amounts { cpu_request: other.cpu_request, cpu_limit: other.cpu_limit, ..self },
        }
    }

    /// As the API writes them.
    pub(crate) fn requirements(self) -> ResourceRequirements {
        let list = |cpu: i64, memory: i64| {
            let mut list = BTreeMap::new();
            let mut put = |name: &str, value: i64, quantity: Quantity| {
                if value != 0 {
                    list.insert(name.to_owned(), ApiQuantity(quantity.to_string()));
                }
            };
            put("cpu", cpu, Quantity::from_millis(cpu));
            put("memory", memory, Quantity::from_bytes(memory));
            (!list.is_empty()).then_some(list)
        };
        let (requests, limits) = (list(self.cpu_request, self.memory_request), list(self.cpu_limit, self.memory_limit));
        ResourceRequirements { claims: None, limits, requests }
    }
}

/// A resize that the node cannot grant now, or never.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    pub reason: PendingReason,
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PendingReason {
    /// It is tried again when other pods leave or shrink.
    Deferred,
    Infeasible,
}

impl fmt::Display for PendingReason {
    /// Upstream's reasons are the names of the variants.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What the machine knows of a pod's resize.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Resize {
    pub work: Work,
    /// A granted resize, until the runtime has it.
    pub progress: Option<Progress>,
    /// The update of a container that is under way: its id.
    pub updating: Option<String>,
    pub retry_at: Option<Timestamp>,
}

/// The decision about what the API asks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Work {
    #[default]
    Decided,
    /// The node is asked.
    Asked,
    /// It said no to the pod of this generation.
    Pending { pending: Pending, generation: i64 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    pub generation: i64,
    /// Why the last step failed.
    pub error: Option<String>,
}

/// One change of a running container at the runtime.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Update {
    pub id: String,
    pub container: String,
    pub resource: Resource,
    /// What it has, and what it shall have.
    pub from: Amounts,
    pub to: Amounts,
}

impl fmt::Display for Update {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((limit, request), (old_limit, old_request)) = (self.to.pair(self.resource), self.from.pair(self.resource));
        write!(f, "{} of {}: request {old_request} to {request}, limit {old_limit} to {limit}", self.resource.name(), self.container)
    }
}

/// What can change in place: the resources of the pod as a whole, and of all containers but ephemeral ones.
pub(crate) fn resources(pod: &Pod) -> Resources {
    let whole = pod.spec.iter().map(|spec| (POD.to_owned(), spec.resources.clone().unwrap_or_default()));
    let all = pod.spec.iter().flat_map(containers);
    whole.chain(all.map(|(_, c)| (c.name.clone(), c.resources.clone().unwrap_or_default()))).collect()
}

/// What the runtime is told of the containers of a pod that has `allocated`.
fn told(allocated: &Resources) -> Resources {
    let pod = allocated.get(POD);
    allocated.iter().map(|(name, c)| (name.clone(), told_of(c, pod))).collect()
}

/// A container's own resources, with the limits of its pod where it has none.
fn told_of(c: &ResourceRequirements, pod: Option<&ResourceRequirements>) -> ResourceRequirements {
    let all = Amounts::of_container(c, pod);
    if all == Amounts::of(c) { c.clone() } else { all.requirements() }
}

/// A record of an agent that knew of no resources of the pod as a whole: they are what the pod asks for, and containers without limits of
/// their own were made with those.
pub(crate) fn completed(mut record: Record, asked: &Resources) -> Record {
    if let Some(whole) = asked.get(POD).filter(|_| !record.allocated.contains_key(POD)) {
        Arc::make_mut(&mut record.allocated).insert(POD.to_owned(), whole.clone());
        let actuated = Arc::make_mut(&mut record.actuated);
        actuated.values_mut().for_each(|c| *c = told_of(c, Some(whole)));
        actuated.insert(POD.to_owned(), whole.clone());
    }
    record
}

/// The pod with other resources for its containers.
pub(crate) fn with_resources(pod: &Arc<Pod>, allocated: &Resources) -> Arc<Pod> {
    let differs = |c: &Spec| allocated.get(&c.name).is_some_and(|a| *a != c.resources.clone().unwrap_or_default());
    let whole = allocated.get(POD).filter(|whole| pod.spec.as_ref().is_some_and(|spec| **whole != spec.resources.clone().unwrap_or_default()));
    if whole.is_none() && !pod.spec.iter().flat_map(containers).any(|(_, c)| differs(c)) {
        return pod.clone();
    }
    let mut changed = (**pod).clone();
    if let Some(spec) = &mut changed.spec {
        if let Some(whole) = whole {
            spec.resources = Some(whole.clone()).filter(|whole| *whole != ResourceRequirements::default());
        }
        let all = spec.init_containers.iter_mut().flatten().chain(&mut spec.containers);
        for c in all.filter(|c| differs(c)) {
            c.resources = allocated.get(&c.name).cloned();
        }
    }
    Arc::new(changed)
}

/// Whether two sets of resources give some container other amounts.
pub(crate) fn differ(a: &Resources, b: &Resources) -> bool {
    a.iter().any(|(name, a)| b.get(name).is_some_and(|b| Amounts::of(a) != Amounts::of(b)))
}

/// Whether the resize policy of a container makes it restart for a change.
pub(crate) fn restarts(c: &Spec, from: Amounts, to: Amounts) -> bool {
    let asks = |resource: Resource| {
        let mut policies = c.resize_policy.iter().flatten();
        from.pair(resource) != to.pair(resource) && policies.any(|p| p.resource_name == resource.name() && p.restart_policy == "RestartContainer")
    };
    asks(Resource::Memory) || asks(Resource::Cpu)
}

/// Running containers and what they have, which is not what they shall have: (kind, spec, run, from, to).
pub(crate) type Change<'a> = (Kind, &'a Spec, &'a Container, Amounts, Amounts);

/// The containers in `running` whose runtime values are not the allocated ones.
pub(crate) fn changes<'a>(spec: &'a PodSpec, record: &Record, running: impl Fn(&str) -> Option<&'a Container>) -> Vec<Change<'a>> {
    let one = |(kind, c): (Kind, &'a Spec)| {
        let run = running(&c.name)?;
        let to = Amounts::of_container(&c.resources.clone().unwrap_or_default(), spec.resources.as_ref());
        let from = record.actuated.get(&c.name).map_or(to, Amounts::of);
        (from != to).then_some((kind, c, run, from, to))
    };
    containers(spec).filter_map(one).collect()
}

/// The next change at the runtime, in upstream's order: memory before processors, and of each the decreases before the increases.
pub(crate) fn next_update(changes: &[Change<'_>]) -> Option<Update> {
    [Resource::Memory, Resource::Cpu].into_iter().find_map(|resource| {
        let mut order = VecDeque::new();
        for (_, c, run, from, to) in changes {
            let (old, new) = (from.pair(resource), to.pair(resource));
            // The limit decides the direction, if it changes.
            let (old, new) = if old.0 == new.0 { (old.1, new.1) } else { (old.0, new.0) };
            let update = || Update { id: run.id.clone(), container: c.name.clone(), resource, from: *from, to: from.with(resource, *to) };
            match new.cmp(&old) {
                std::cmp::Ordering::Greater => order.push_back(update()),
                std::cmp::Ordering::Less => order.push_front(update()),
                std::cmp::Ordering::Equal => {}
            }
        }
        order.pop_front()
    })
}

/// The order in which waiting resizes are granted, the first first: those that take nothing more, then by priority, QoS and age.
pub(crate) fn rank(wanted: &Pod, allocated: &Pod, since: Timestamp) -> (bool, i64, bool, Timestamp) {
    let requests = |pod: &Pod| pod.spec.as_ref().map(|s| kube_rules::requests::counts(&kube_rules::pod_requests(s))).unwrap_or_default();
    let (new, old) = (requests(wanted), requests(allocated));
    let grows = ["cpu", "memory"].iter().any(|name| new.get(*name).unwrap_or(&0) > old.get(*name).unwrap_or(&0));
    let spec = wanted.spec.as_ref();
    let priority = spec.and_then(|s| s.priority).unwrap_or(0);
    let guaranteed = spec.is_some_and(|s| kube_rules::qos_class(s) == "Guaranteed");
    (grows, -i64::from(priority), !guaranteed, since)
}

/// The message of an event about a resize: what happened, then the resources in JSON, as upstream writes them.
pub(crate) fn message(what: &str, pod: &Pod, generation: i64, error: Option<&str>) -> String {
    let list = |containers: &mut dyn Iterator<Item = &Spec>| -> Vec<serde_json::Value> {
        containers.map(|c| json!({"name": c.name, "resources": c.resources.clone().unwrap_or_default()})).collect()
    };
    let spec = pod.spec.clone().unwrap_or_default();
    let mut document = json!({});
    let init = list(&mut spec.init_containers.iter().flatten());
    if !init.is_empty() {
        document["initContainers"] = init.into();
    }
    document["containers"] = list(&mut spec.containers.iter()).into();
    document["generation"] = generation.into();
    if let Some(error) = error {
        document["error"] = error.into();
    }
    format!("{what}: {document}")
}

#[cfg(test)]
mod tests;
