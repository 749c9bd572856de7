//! Which devices there are, and which container has which: pure (upstream cm/devicemanager/manager.go).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use device_plugin::HEALTHY;
use device_plugin::v1beta1::{self, ContainerAllocateResponse};

/// How long a resource without a plug-in is kept (upstream: `endpointStopGracePeriod`).
const STOPPED: Duration = Duration::from_secs(5 * 60);
/// The place of devices that are near no NUMA node.
pub(super) const NO_NODE: i64 = -1;

/// Why a container gets no devices. The texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AllocateError {
    #[error("pod {pod:?} container {container:?} changed request for resource {resource:?} from {before} to {now}")]
    Changed { pod: String, container: String, resource: String, before: usize, now: usize },
    #[error("cannot allocate unregistered device {0}")]
    Unregistered(String),
    #[error("no healthy devices present; cannot allocate unhealthy devices {0}")]
    NoneHealthy(String),
    #[error("previously allocated devices are no longer healthy; cannot allocate unhealthy devices {0}")]
    NoLongerHealthy(String),
    #[error("requested number of devices unavailable for {resource}. Requested: {needed}, Available: {available}")]
    TooFew { resource: String, needed: usize, available: usize },
}

/// A device as its plug-in described it last.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Device {
    healthy: bool,
    /// NUMA nodes that it is near.
    nodes: Vec<i64>,
}

/// What the devices of one kind are.
#[derive(Clone, Debug, Default)]
struct Resource {
    devices: BTreeMap<String, Device>,
    /// Since when it has no plug-in.
    stopped: Option<Instant>,
}

impl Resource {
    /// Devices that can be given away.
    fn usable(&self) -> BTreeSet<&String> {
        let all = self.devices.iter().filter(|(_, device)| device.healthy && self.stopped.is_none());
        all.map(|(id, _)| id).collect()
    }
}

/// What a container got of one resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Allocation {
    /// Device ids by NUMA node.
    pub devices: BTreeMap<i64, Vec<String>>,
    pub response: ContainerAllocateResponse,
}

impl Allocation {
    pub(super) fn ids(&self) -> BTreeSet<String> {
        self.devices.values().flatten().cloned().collect()
    }
}

/// By resource.
pub(super) type OfContainer = BTreeMap<String, Allocation>;

/// What a container asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want<'a> {
    pub pod: &'a str,
    pub container: &'a str,
    pub resource: &'a str,
    pub count: usize,
}

/// The next step of an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The container has what it needs.
    Nothing,
    /// These are its devices.
    Take(BTreeSet<String>),
    /// The plug-in may say which of `available` it would rather give, beside those that are `taken`.
    Prefer { taken: BTreeSet<String>, available: BTreeSet<String>, needed: usize },
}

/// Ends an allocation with what the plug-in prefers, as far as it is available; the rest by name.
pub(super) fn settle(taken: BTreeSet<String>, available: &BTreeSet<String>, needed: usize, preferred: &[String]) -> BTreeSet<String> {
    let mut all = taken;
    let wanted = preferred.iter().filter(|id| available.contains(*id)).chain(available);
    let mut left = needed;
    for id in wanted {
        if left == 0 {
            break;
        }
        if all.insert(id.clone()) {
            left -= 1;
        }
    }
    all
}

/// How many devices of a resource a node shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count {
    pub capacity: usize,
    pub allocatable: usize,
}

/// Everything that is known of devices.
#[derive(Debug, Default)]
pub(super) struct Book {
    resources: BTreeMap<String, Resource>,
    /// By pod UID and container.
    held: BTreeMap<String, BTreeMap<String, OfContainer>>,
    /// Resources that had a plug-in once: the Node shows none of them.
    removed: BTreeSet<String>,
}

impl Book {
    /// As an earlier agent left it: no plug-in is there yet.
    pub(super) fn restored(entries: impl IntoIterator<Item = (String, String, String, Allocation)>, registered: Vec<String>, now: Instant) -> Self {
        let mut book = Book::default();
        for (pod, container, resource, allocation) in entries {
            book.insert(&pod, &container, &resource, allocation);
        }
        let stopped = |resource| (resource, Resource { stopped: Some(now), ..Resource::default() });
        book.resources = registered.into_iter().map(stopped).collect();
        book
    }

    /// Takes in a plug-in's list. Returns the pods with a device whose health is another now.
    pub(super) fn update(&mut self, resource: &str, list: Vec<v1beta1::Device>) -> BTreeSet<String> {
        let device = |device: v1beta1::Device| {
            let nodes = device.topology.map(|topology| topology.nodes.iter().map(|node| node.id).collect()).unwrap_or_default();
            (device.id, Device { healthy: device.health == HEALTHY, nodes })
        };
        let new: BTreeMap<String, Device> = list.into_iter().map(device).collect();
        self.removed.remove(resource);
        let entry = self.resources.entry(resource.to_owned()).or_default();
        entry.stopped = None;
        let old = std::mem::replace(&mut entry.devices, new);
        let differs = |id: &String| {
            let new = self.resources[resource].devices.get(id);
            new.is_some_and(|new| old.get(id).is_none_or(|old| old.healthy != new.healthy))
        };
        let has = |containers: &BTreeMap<String, OfContainer>| {
            containers.values().filter_map(|all| all.get(resource)).flat_map(Allocation::ids).any(|id| differs(&id))
        };
        self.held.iter().filter(|(_, containers)| has(containers)).map(|(pod, _)| pod.clone()).collect()
    }

    /// A plug-in came, and will send its list.
    pub(super) fn connected(&mut self, resource: &str) {
        self.removed.remove(resource);
        self.resources.entry(resource.to_owned()).or_default();
    }

    /// The plug-in is gone.
    pub(super) fn disconnected(&mut self, resource: &str, now: Instant) {
        if let Some(resource) = self.resources.get_mut(resource) {
            resource.stopped.get_or_insert(now);
        }
    }

    /// Forgets resources that had no plug-in for long. Returns whether there were any.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let is_old = |resource: &Resource| resource.stopped.is_some_and(|since| now.saturating_duration_since(since) > STOPPED);
        let gone: Vec<String> = self.resources.iter().filter(|(_, resource)| is_old(resource)).map(|(name, _)| name.clone()).collect();
        for name in &gone {
            self.resources.remove(name);
            self.removed.insert(name.clone());
        }
        !gone.is_empty()
    }

    /// What the Node shows.
    pub(super) fn counts(&self) -> BTreeMap<String, Count> {
        let count = |resource: &Resource| Count { capacity: resource.devices.len(), allocatable: resource.usable().len() };
        let known = self.resources.iter().map(|(name, resource)| (name.clone(), count(resource)));
        let removed = self.removed.iter().map(|name| (name.clone(), Count { capacity: 0, allocatable: 0 }));
        known.chain(removed).collect()
    }

    /// Names of the resources that have or had plug-ins, for the checkpoint: with the devices that can be given away.
    pub(super) fn registered(&self) -> BTreeMap<String, Vec<String>> {
        self.resources.iter().map(|(name, resource)| (name.clone(), resource.usable().into_iter().cloned().collect())).collect()
    }

    /// Whether devices of this resource are given away here.
    pub(super) fn manages(&self, resource: &str) -> bool {
        self.resources.contains_key(resource) || self.allocations().any(|(_, _, name, _)| name == resource)
    }

    /// Every allocation: pod, container, resource.
    pub(super) fn allocations(&self) -> impl Iterator<Item = (&String, &String, &String, &Allocation)> {
        self.held.iter().flat_map(|(pod, containers)| {
            containers.iter().flat_map(move |(container, all)| all.iter().map(move |(resource, allocation)| (pod, container, resource, allocation)))
        })
    }

    pub(super) fn of_container(&self, pod: &str, container: &str) -> Option<&OfContainer> {
        self.held.get(pod)?.get(container)
    }

    fn ids(&self, want: &Want<'_>) -> Option<BTreeSet<String>> {
        Some(self.of_container(want.pod, want.container)?.get(want.resource)?.ids())
    }

    /// Devices of a resource that containers have.
    pub(super) fn in_use(&self, resource: &str) -> BTreeSet<String> {
        self.allocations().filter(|(_, _, name, _)| *name == resource).flat_map(|(.., allocation)| allocation.ids()).collect()
    }

    /// How a container gets its devices: those that an earlier init container of its pod had (`reusable`) come first.
    pub(super) fn choose(&self, want: &Want<'_>, reusable: &BTreeSet<String>) -> Result<Step, AllocateError> {
        let name = || want.resource.to_owned();
        let before = self.ids(want);
        if let Some(before) = before.as_ref().filter(|before| before.len() != want.count) {
            let (pod, container) = (want.pod.to_owned(), want.container.to_owned());
            return Err(AllocateError::Changed { pod, container, resource: name(), before: before.len(), now: want.count });
        }
        let resource = self.resources.get(want.resource).ok_or_else(|| AllocateError::Unregistered(name()))?;
        let usable = resource.usable();
        if usable.is_empty() {
            return Err(AllocateError::NoneHealthy(name()));
        }
        if let Some(before) = before {
            let all_healthy = before.iter().all(|id| usable.contains(id));
            return if all_healthy { Ok(Step::Nothing) } else { Err(AllocateError::NoLongerHealthy(name())) };
        }
        if want.count == 0 {
            return Ok(Step::Nothing);
        }
        let taken: BTreeSet<String> = reusable.iter().take(want.count).cloned().collect();
        let needed = want.count - taken.len();
        if needed == 0 {
            return Ok(Step::Take(taken));
        }
        let in_use = self.in_use(want.resource);
        let available: BTreeSet<String> = usable.into_iter().filter(|id| !in_use.contains(*id)).cloned().collect();
        match available.len() {
            few if few < needed => Err(AllocateError::TooFew { resource: name(), needed, available: few }),
            _ => Ok(Step::Prefer { taken, available, needed }),
        }
    }

    /// The devices by the NUMA nodes that they are near.
    pub(super) fn by_node(&self, resource: &str, ids: &BTreeSet<String>) -> BTreeMap<i64, Vec<String>> {
        let mut all: BTreeMap<i64, Vec<String>> = BTreeMap::new();
        for id in ids {
            let device = self.resources.get(resource).and_then(|resource| resource.devices.get(id));
            let nodes = device.map(|device| device.nodes.clone()).filter(|nodes| !nodes.is_empty());
            for node in nodes.unwrap_or_else(|| vec![NO_NODE]) {
                all.entry(node).or_default().push(id.clone());
            }
        }
        all
    }

    pub(super) fn insert(&mut self, pod: &str, container: &str, resource: &str, allocation: Allocation) {
        let containers = self.held.entry(pod.to_owned()).or_default();
        containers.entry(container.to_owned()).or_default().insert(resource.to_owned(), allocation);
    }

    /// Frees what a pod has. Returns whether it had anything.
    pub(super) fn release(&mut self, pod: &str) -> bool {
        self.held.remove(pod).is_some()
    }

    /// What a plug-in said last of a device's health; healthy where it said nothing (upstream assumes the same).
    pub(super) fn is_healthy(&self, resource: &str, id: &str) -> bool {
        self.resources.get(resource).and_then(|resource| resource.devices.get(id)).is_none_or(|device| device.healthy)
    }

    /// Healthy devices of all resources, with their NUMA nodes.
    pub(super) fn usable(&self) -> impl Iterator<Item = (&String, &String, &[i64])> {
        self.resources.iter().flat_map(|(name, resource)| {
            let usable = resource.usable();
            usable.into_iter().map(move |id| (name, id, resource.devices[id].nodes.as_slice()))
        })
    }
}
