//! Graceful node shutdown (upstream pkg/kubelet/nodeshutdown): when the machine is about to go down, pods end in groups by priority before it
//! does.
//!
//! Flow: somebody announces the shutdown ([`Announcement`]) → the Node is not Ready and takes no pod any more → [`plan`] groups the pods by
//! priority → [`manager`] ends one group after the other, each within its period → the announcement's hold is dropped, and the machine goes
//! on. Guarantees: the shutdown is never held longer than the sum of the periods and [`NOTED`]; a pod ends within its own grace where that is shorter.
//! Assumptions: whoever announces holds the machine up for that long. [`logind`] does on Linux;
//! others are the program's: a signal, or on Windows the service control manager.

#[cfg(target_os = "linux")]
pub mod logind;
pub(crate) mod manager;
mod plan;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::time::Duration;

use tokio::sync::mpsc;

/// The period of the pods from a priority on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownPeriod {
    /// Pods from this priority on, up to that of the next period.
    pub priority: i32,
    /// How long they have, in seconds.
    pub seconds: u64,
}

impl ShutdownPeriod {
    /// The periods that `shutdownGracePeriod` and `shutdownGracePeriodCriticalPods` stand for: critical pods end last, in their part of the
    /// whole. None without a period.
    pub fn of(total: Duration, critical: Duration) -> Vec<Self> {
        let Some(others) = total.checked_sub(critical).filter(|_| !total.is_zero()) else { return Vec::new() };
        vec![Self { priority: 0, seconds: others.as_secs() }, Self { priority: CRITICAL, seconds: critical.as_secs() }]
    }

    /// How long the machine has to be held up: for all periods, and until the API knows of the last ends.
    pub fn total(all: &[Self]) -> Duration {
        Duration::from_secs(all.iter().map(|period| period.seconds).fold(0, u64::saturating_add)).saturating_add(NOTED)
    }
}

/// How long pods may take, after the last period, until the API knows of their end. A container that does not end by itself takes all of
/// the period, and an agent that left then would find the pod running after the restart, and start it again. Upstream's kubelet lives on until
/// its service is stopped.
pub(crate) const NOTED: Duration = Duration::from_secs(1);

/// The priority of `system-cluster-critical`.
const CRITICAL: i32 = 2_000_000_000;

/// What the agent is told of its machine.
pub enum Announcement {
    /// It is about to go down, as soon as `hold` is dropped.
    Begins {
        /// What the event calls it: `shutdown`, on Windows `preshutdown`.
        name: &'static str,
        hold: Box<dyn Any + Send>,
    },
    /// It stays up after all.
    Cancelled,
}

/// Graceful shutdown of a node.
pub struct Shutdown {
    /// In whatever order; not empty.
    pub periods: Vec<ShutdownPeriod>,
    pub announcements: mpsc::UnboundedReceiver<Announcement>,
}
