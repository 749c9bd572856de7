//! Eviction: pods end before the node runs out of memory, disk or process ids, and when they take more local storage than they may
//! (upstream pkg/kubelet/eviction).
//!
//! Flow: [`manager`] observes signals and the pods' usage → [`plan`] says which thresholds are met for long enough, and what the Node's
//! conditions say → images are removed, or the pod that [`rank`] names first ends. Guarantees: one pod at a time; static and critical pods
//! never; a condition holds until the pressure has been gone for the transition period.

pub(crate) mod manager;
mod plan;
mod rank;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Taint};
use kube_rules::{Quantity, Refusal, taints};

pub(crate) use rank::is_critical;

/// What a threshold watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// Memory of the node; on Windows what is left below the commit limit.
    Memory,
    /// What pods may take of memory without what is reserved.
    AllocatableMemory,
    /// The file system of the agent's directory.
    Nodefs,
    NodefsInodes,
    /// The file system of images.
    Imagefs,
    ImagefsInodes,
    /// Process ids.
    Pids,
}

impl Signal {
    pub const ALL: [Self; 7] =
        [Self::Memory, Self::AllocatableMemory, Self::Nodefs, Self::NodefsInodes, Self::Imagefs, Self::ImagefsInodes, Self::Pids];

    /// Upstream's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory.available",
            Self::AllocatableMemory => "allocatableMemory.available",
            Self::Nodefs => "nodefs.available",
            Self::NodefsInodes => "nodefs.inodesFree",
            Self::Imagefs => "imagefs.available",
            Self::ImagefsInodes => "imagefs.inodesFree",
            Self::Pids => "pid.available",
        }
    }

    /// What pods give back, in the words of messages.
    fn resource(self) -> &'static str {
        match self {
            Self::Memory | Self::AllocatableMemory => "memory",
            Self::Nodefs | Self::Imagefs => "ephemeral-storage",
            Self::NodefsInodes | Self::ImagefsInodes => "inodes",
            Self::Pids => "pids",
        }
    }

    fn pressure(self) -> Pressure {
        match self {
            Self::Memory | Self::AllocatableMemory => Pressure::Memory,
            Self::Nodefs | Self::NodefsInodes | Self::Imagefs | Self::ImagefsInodes => Pressure::Disk,
            Self::Pids => Pressure::Pid,
        }
    }
}

/// What a node is short of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pressure {
    Memory,
    Disk,
    Pid,
}

impl fmt::Display for Pressure {
    /// The Node's condition.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "MemoryPressure",
            Self::Disk => "DiskPressure",
            Self::Pid => "PIDPressure",
        })
    }
}

/// An amount of what a signal watches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// So many bytes, inodes or process ids.
    Absolute(u64),
    /// This share of the whole, in percent.
    Percent(f64),
}

impl Amount {
    /// Of so much.
    pub fn of(self, capacity: u64) -> u64 {
        match self {
            Self::Absolute(amount) => amount,
            Self::Percent(percent) => (capacity as f64 * percent / 100.0) as u64,
        }
    }
}

/// When pods end for a signal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    pub signal: Signal,
    /// Less than that is too little.
    pub value: Amount,
    /// How long it may be too little; None for a hard threshold, which gives pods no time either.
    pub grace: Option<Duration>,
    /// How much more than `value` has to be there before it is enough again.
    pub reclaim: Option<Amount>,
}

/// When and how pods are evicted.
#[derive(Clone, Debug, PartialEq)]
pub struct Eviction {
    pub thresholds: Vec<Threshold>,
    /// How long a condition stays after its cause (`evictionPressureTransitionPeriod`).
    pub transition: Duration,
    /// The longest that a pod gets to end at a soft threshold, in seconds (`evictionMaxPodGracePeriod`).
    pub max_pod_grace: u64,
    /// How often signals are looked at.
    pub interval: Duration,
}

impl Default for Eviction {
    /// No thresholds; limits of local storage hold all the same.
    fn default() -> Self {
        Self { thresholds: Vec::new(), transition: Duration::from_secs(300), max_pod_grace: 0, interval: Duration::from_secs(10) }
    }
}

/// Why texts are no eviction thresholds.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum EvictionError {
    /// An amount that is neither a quantity nor a share.
    #[error("invalid amount {amount:?} of {signal}: write it as 100Mi or 10%")]
    Amount { signal: String, amount: String },
    /// A signal that the node agent does not watch.
    #[error("unknown eviction signal {0:?}: there are {all}", all = Signal::ALL.map(Signal::name).join(", "))]
    Signal(String),
    /// A soft threshold without a grace period.
    #[error("the soft threshold of {0} has no grace period: give it one in evictionSoftGracePeriod")]
    NoGrace(&'static str),
}

/// Amounts by signal, as `evictionHard` has them. As upstream, 0%, 100% and 0 switch a signal off.
///
/// # Errors
/// [`EvictionError::Signal`], [`EvictionError::Amount`].
pub fn amounts(texts: &BTreeMap<String, String>) -> Result<BTreeMap<Signal, Amount>, EvictionError> {
    let mut all = BTreeMap::new();
    for (name, text) in texts {
        let signal = Signal::ALL.into_iter().find(|s| s.name() == name).ok_or_else(|| EvictionError::Signal(name.clone()))?;
        let amount = amount(text).ok_or_else(|| EvictionError::Amount { signal: name.clone(), amount: text.clone() })?;
        if !matches!(amount, Amount::Absolute(0)) && !matches!(amount, Amount::Percent(p) if p <= 0.0 || p >= 100.0) {
            all.insert(signal, amount);
        }
    }
    Ok(all)
}

fn amount(text: &str) -> Option<Amount> {
    match text.strip_suffix('%') {
        Some(percent) => percent.parse().ok().filter(|p| (0.0..=100.0).contains(p)).map(Amount::Percent),
        None => Quantity::parse(text).ok().and_then(|q| q.value().try_into().ok()).map(Amount::Absolute),
    }
}

impl Eviction {
    /// Thresholds from upstream's members: hard and soft ones, grace periods of the soft ones, and minimum reclaims.
    ///
    /// # Errors
    /// Unknown signals, wrong amounts, a soft threshold without a grace period.
    pub fn thresholds(
        hard: &BTreeMap<String, String>,
        soft: &BTreeMap<String, String>,
        graces: &BTreeMap<String, Duration>,
        reclaims: &BTreeMap<String, String>,
    ) -> Result<Vec<Threshold>, EvictionError> {
        let reclaims = amounts(reclaims)?;
        let of = |(signal, value): (Signal, Amount), grace| Threshold { signal, value, grace, reclaim: reclaims.get(&signal).copied() };
        let mut all: Vec<Threshold> = amounts(hard)?.into_iter().map(|t| of(t, None)).collect();
        for t in amounts(soft)? {
            let grace = graces.get(t.0.name()).ok_or(EvictionError::NoGrace(t.0.name()))?;
            all.push(of(t, Some(*grace)));
        }
        Ok(all)
    }

    /// As upstream where the sum of pods is bound by `enforceNodeAllocatable: [pods]`, its default on Linux: what holds for the node's memory
    /// at a hard threshold holds for that of pods too.
    #[must_use]
    pub fn with_allocatable_memory(mut self) -> Self {
        let memory = self.thresholds.iter().find(|t| t.signal == Signal::Memory && t.grace.is_none()).copied();
        let is_given = self.thresholds.iter().any(|t| t.signal == Signal::AllocatableMemory && t.grace.is_none());
        self.thresholds.extend(memory.filter(|_| !is_given).map(|t| Threshold { signal: Signal::AllocatableMemory, ..t }));
        self
    }

    /// What has to stay free of a signal in any case, of so much.
    pub(crate) fn kept_free(&self, signal: Signal, capacity: u64) -> u64 {
        let hard = self.thresholds.iter().find(|t| t.signal == signal && t.grace.is_none());
        hard.map_or(0, |t| t.value.of(capacity))
    }
}

/// Whether a node that is short of something refuses a pod (upstream eviction_manager.go `Admit`).
pub(crate) fn admit(pod: &Pod, is_static: bool, pressures: &BTreeSet<Pressure>) -> Option<Refusal> {
    if pressures.is_empty() || is_critical(pod, is_static) {
        return None;
    }
    if pressures.len() == 1 && pressures.contains(&Pressure::Memory) {
        let spec = pod.spec.as_ref()?;
        let taint = Taint { key: "node.kubernetes.io/memory-pressure".to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() };
        let tolerations = spec.tolerations.as_deref().unwrap_or_default();
        if kube_rules::qos_class(spec) != "BestEffort" || taints::find_untolerated(&[taint], tolerations, |_| true).is_none() {
            return None;
        }
    }
    let names: Vec<String> = pressures.iter().map(ToString::to_string).collect();
    Some(Refusal { reason: "Evicted".into(), message: format!("The node had condition: [{}]. ", names.join(" ")) })
}
