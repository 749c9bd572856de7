//! Which pod ends first, and what is said of it (upstream pkg/kubelet/eviction/helpers.go); pure.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube_rules::{Quantity, pod_requests};

use super::plan::Observations;
use super::{Eviction, Signal, Threshold};
use crate::pod::{Evicted, Reason};

/// From this priority on a pod is critical (`system-cluster-critical`).
const CRITICAL: i32 = 2_000_000_000;
/// Seconds that a pod gets at a hard threshold, and when it is over a limit.
const AT_ONCE: i64 = 1;

/// What a container takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ContainerUse {
    pub name: String,
    /// Working set, in bytes.
    pub memory: u64,
    /// Its writable layer, in bytes.
    pub rootfs: u64,
    pub rootfs_inodes: u64,
    /// Its logs, in bytes.
    pub logs: u64,
}

/// What a pod takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PodUse {
    pub containers: Vec<ContainerUse>,
    /// Volumes emptyDir on the disk or in memory: bytes by name.
    pub empty_dirs: BTreeMap<String, u64>,
    /// Those on the disk alone, and the agent's own files for the pod.
    pub local: u64,
    /// Inodes of these, and of logs.
    pub local_inodes: u64,
    pub pids: u64,
}

/// A pod that may be evicted.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub uid: String,
    pub pod: Arc<Pod>,
    pub is_static: bool,
    /// None where the runtime knows nothing of the pod.
    pub usage: Option<PodUse>,
}

/// Whether a pod runs whatever the node is short of.
pub(crate) fn is_critical(pod: &Pod, is_static: bool) -> bool {
    is_static || priority(pod) >= CRITICAL
}

fn priority(pod: &Pod) -> i32 {
    pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0)
}

fn request(pod: &Pod, resource: &str) -> i64 {
    let requests = pod.spec.as_ref().map(pod_requests).unwrap_or_default();
    requests.get(resource).map_or(0, |q| q.value())
}

fn signed(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

/// What a pod takes of what a signal watches. Where images have a file system of their own, writable layers are there and the rest is not.
fn usage(of: &PodUse, signal: Signal, dedicated_imagefs: bool) -> i64 {
    let sum = |each: fn(&ContainerUse) -> u64| of.containers.iter().map(each).fold(0, u64::saturating_add);
    let (layers, local) = match signal {
        _ if !dedicated_imagefs => (true, true),
        Signal::Imagefs | Signal::ImagefsInodes => (true, false),
        _ => (false, true),
    };
    let part = |is: bool, amount: u64| if is { amount } else { 0 };
    signed(match signal {
        Signal::Memory | Signal::AllocatableMemory => sum(|c| c.memory),
        Signal::Nodefs | Signal::Imagefs => part(layers, sum(|c| c.rootfs)).saturating_add(part(local, sum(|c| c.logs).saturating_add(of.local))),
        Signal::NodefsInodes | Signal::ImagefsInodes => part(layers, sum(|c| c.rootfs_inodes)).saturating_add(part(local, of.local_inodes)),
        Signal::Pids => of.pids,
    })
}

/// Sorts pods, the first to end first: those of which nothing is known, those above their requests, the less important, and those that take
/// most above their requests.
pub(super) fn rank(pods: &mut [Candidate], signal: Signal, dedicated_imagefs: bool) {
    let above = |c: &Candidate| c.usage.as_ref().map(|u| usage(u, signal, dedicated_imagefs).saturating_sub(request(&c.pod, signal.resource())));
    let by_use = |a: Option<i64>, b: Option<i64>| match (a, b) {
        (Some(a), Some(b)) => b.cmp(&a),
        (None, None) => Ordering::Equal,
        (a, _) => a.is_some().cmp(&true).then(Ordering::Less),
    };
    let exceeds = |use_: Option<i64>| use_.is_none_or(|above| above > 0);
    pods.sort_by(|a, b| {
        let (used_a, used_b) = (above(a), above(b));
        let excess = match signal {
            // Nobody requests process ids.
            Signal::Pids => Ordering::Equal,
            _ => used_a.is_some().cmp(&used_b.is_some()).then(exceeds(used_b).cmp(&exceeds(used_a))),
        };
        excess.then(priority(&a.pod).cmp(&priority(&b.pod))).then(by_use(used_a, used_b))
    });
}

/// The pod to evict for a threshold, of pods in their order; None when only critical ones are left.
pub(super) fn choose(pods: &[Candidate], threshold: &Threshold, seen: &Observations, config: &Eviction) -> Option<(String, Evicted)> {
    let first = pods.iter().find(|c| !is_critical(&c.pod, c.is_static))?;
    let grace = match threshold.grace {
        None => AT_ONCE,
        Some(_) => {
            let own = first.pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds);
            let most = signed(config.max_pod_grace);
            own.map_or(most, |own| own.min(most)).max(AT_ONCE)
        }
    };
    let message = message(first, threshold, seen);
    let disruption = Some(message.clone());
    Some((first.uid.clone(), Evicted { reason: Reason::Evicted, message, grace, disruption }))
}

fn bytes(amount: u64) -> Quantity {
    Quantity::from_bytes(signed(amount))
}

/// What the pod's status and its event say.
fn message(candidate: &Candidate, threshold: &Threshold, seen: &Observations) -> String {
    let (signal, resource) = (threshold.signal, threshold.signal.resource());
    let mut text = format!("The node was low on resource: {resource}. ");
    if let Some(seen) = seen.get(&signal) {
        let amount = |amount: u64| match signal {
            Signal::Memory | Signal::AllocatableMemory | Signal::Nodefs | Signal::Imagefs => bytes(amount),
            Signal::NodefsInodes | Signal::ImagefsInodes | Signal::Pids => Quantity::from_units(signed(amount)),
        };
        let (wanted, left) = (amount(threshold.value.of(seen.capacity)), amount(seen.available));
        text.push_str(&format!("Threshold quantity: {wanted}, available: {left}. "));
    }
    let Some(spec) = &candidate.pod.spec else { return text };
    for used in candidate.usage.iter().flat_map(|u| &u.containers) {
        let mut all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        let Some(container) = all.find(|c| c.name == used.name) else { continue };
        let amount = match signal {
            Signal::Memory | Signal::AllocatableMemory => used.memory,
            Signal::Nodefs | Signal::Imagefs => used.rootfs.saturating_add(used.logs),
            Signal::NodefsInodes | Signal::ImagefsInodes | Signal::Pids => continue,
        };
        let requested = container.resources.as_ref().and_then(|r| r.requests.as_ref()?.get(resource));
        let requested = requested.and_then(|q| Quantity::parse(&q.0).ok()).unwrap_or(Quantity::from_units(0));
        if signed(amount) > requested.value() {
            let amount = bytes(amount);
            text.push_str(&format!("Container {} was using {amount}, request is {requested}, has larger consumption of {resource}. ", used.name));
        }
    }
    text
}

/// The eviction of a pod that takes more local storage than its volumes, its containers or it as a whole may, with upstream's name of that
/// limit.
pub(super) fn over_limit(candidate: &Candidate, dedicated_imagefs: bool) -> Option<(&'static str, Evicted)> {
    if is_critical(&candidate.pod, candidate.is_static) {
        return None;
    }
    let (spec, used) = (candidate.pod.spec.as_ref()?, candidate.usage.as_ref()?);
    let evicted = |limit, message: String| Some((limit, Evicted { reason: Reason::Evicted, message, grace: AT_ONCE, disruption: None }));
    for volume in spec.volumes.iter().flatten() {
        let limit = volume.empty_dir.as_ref().and_then(|e| e.size_limit.as_ref()).and_then(|q| Quantity::parse(&q.0).ok());
        let taken = used.empty_dirs.get(&volume.name).copied().unwrap_or(0);
        if let Some(limit) = limit.filter(|limit| limit.value() > 0 && signed(taken) > limit.value()) {
            return evicted("emptydirfs.limit", format!("Usage of EmptyDir volume {:?} exceeds the limit \"{limit}\". ", volume.name));
        }
    }
    let limit_of = |c: &k8s_openapi::api::core::v1::Container| {
        let limit = c.resources.as_ref()?.limits.as_ref()?.get("ephemeral-storage")?;
        Quantity::parse(&limit.0).ok().filter(|q| !q.is_zero())
    };
    let limits: Vec<Quantity> = spec.containers.iter().filter_map(limit_of).collect();
    let total = limits.iter().fold(0i64, |sum, q| sum.saturating_add(q.value()));
    let whole = used.containers.iter().map(|c| c.rootfs.saturating_add(c.logs)).fold(used.local, u64::saturating_add);
    if !limits.is_empty() && signed(whole) > total {
        let total = Quantity::from_bytes(total);
        return evicted("ephemeralpodfs.limit", format!("Pod ephemeral local storage usage exceeds the total limit of containers {total}. "));
    }
    for container in &spec.containers {
        let Some(limit) = limit_of(container) else { continue };
        let Some(used) = used.containers.iter().find(|c| c.name == container.name) else { continue };
        let taken = if dedicated_imagefs { used.logs } else { used.logs.saturating_add(used.rootfs) };
        if signed(taken) > limit.value() {
            return evicted(
                "ephemeralcontainerfs.limit",
                format!("Container {} exceeded its local ephemeral storage limit \"{limit}\". ", container.name),
            );
        }
    }
    None
}

/// Whether a pod's use of the disk has to be measured although the node has enough of it.
pub(super) fn has_limits(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let sized = spec.volumes.iter().flatten().any(|v| v.empty_dir.as_ref().is_some_and(|e| e.size_limit.is_some()));
    let limited = |c: &k8s_openapi::api::core::v1::Container| {
        c.resources.as_ref().and_then(|r| r.limits.as_ref()).is_some_and(|limits| limits.contains_key("ephemeral-storage"))
    };
    sized || spec.containers.iter().any(limited)
}
