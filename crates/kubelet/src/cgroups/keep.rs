//! The groups that all pods of the node share: their limits, kept true.

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster::EventType;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube_rules::{Amounts, Quantity, pod_requests};
use thiserror_ext::AsReport as _;
use tokio::sync::Notify;
use tokio::time::{Interval, MissedTickBehavior};

use super::limits::{self, LEAST_SHARES, Limits};
use super::plan::{Site, Step};
use super::{Groups, Name, PAUSE, PERIOD, apply, class, text};
use crate::agent::Agent;
use crate::config::Cgroups;

const DONE: &str = "NodeAllocatableEnforced";
const FAILED: &str = "FailedNodeAllocatableEnforcement";

/// What pods of a class ask for together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    /// Thousandths of a processor that Burstable pods request.
    pub burstable_cpu: i64,
    /// Bytes.
    pub burstable_memory: i64,
    pub guaranteed_memory: i64,
}

impl Sums {
    pub(super) fn of<'a>(pods: impl Iterator<Item = &'a Pod>) -> Self {
        let mut sums = Sums::default();
        for spec in pods.filter_map(|pod| pod.spec.as_ref()) {
            let of = |requests: &Amounts, name: &str| requests.get(name).copied();
            match kube_rules::qos_class(spec) {
                "Burstable" => {
                    let requests = pod_requests(spec);
                    let (cpu, memory) = (of(&requests, "cpu"), of(&requests, "memory"));
                    sums.burstable_cpu = sums.burstable_cpu.saturating_add(cpu.map_or(0, Quantity::milli_value));
                    sums.burstable_memory = sums.burstable_memory.saturating_add(memory.map_or(0, Quantity::value));
                }
                "Guaranteed" => {
                    let memory = of(&pod_requests(spec), "memory");
                    sums.guaranteed_memory = sums.guaranteed_memory.saturating_add(memory.map_or(0, Quantity::value));
                }
                _ => {}
            }
        }
        sums
    }
}

/// What the groups of classes get.
pub(super) fn of_classes(pods: &Name, sums: Sums, allocatable: i64, percent: Option<u8>, sizes: &[u64]) -> Vec<(Name, Limits)> {
    let memory = percent.filter(|_| allocatable > 0).map(|percent| {
        let (burstable, best_effort) = limits::reserve(allocatable, sums.guaranteed_memory, sums.burstable_memory, percent.into());
        // A group without any memory runs nothing, not even what ends.
        (burstable.max(1), best_effort.max(1))
    });
    let burstable = Limits::of_class(limits::shares(sums.burstable_cpu), memory.map(|(burstable, _)| burstable), sizes);
    let best_effort = Limits::of_class(LEAST_SHARES, memory.map(|(_, best_effort)| best_effort), sizes);
    vec![(class(pods, "Burstable"), burstable), (class(pods, "BestEffort"), best_effort)]
}

/// When the node's groups are looked at.
pub(super) struct Turns(Interval);

impl Turns {
    pub(super) fn new() -> Self {
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Turns(ticks)
    }

    /// Waits for the next look: true at once and each [`PERIOD`], false when pods have changed.
    pub(super) async fn next(&mut self, changed: &Notify) -> bool {
        let gathered = async {
            changed.notified().await;
            tokio::time::sleep(PAUSE).await;
        };
        tokio::select! {
            _ = self.0.tick() => true,
            () = gathered => false,
        }
    }
}

impl Groups {
    /// Makes the groups once the runtime has said how it makes them, and keeps those of all pods true, for ever.
    pub(crate) async fn keep(self: Arc<Self>, agent: Arc<Agent>) {
        let mut health = agent.health.clone();
        if health.wait_for(|health| !health.name.is_empty()).await.is_err() {
            return;
        }
        let mut written = BTreeMap::new();
        let mut open = self.node_work();
        let mut turns = Turns::new();
        loop {
            let is_due = turns.next(&self.changed).await;
            match self.site().await {
                Ok(Some(site)) => {
                    if is_due {
                        self.enforce(site, &agent, &mut open).await;
                        self.shrink_late().await;
                        // Repairs what others changed.
                        written.clear();
                    }
                    self.update_classes(site, &agent, &mut written).await;
                }
                // Nothing is to be kept.
                Ok(None) => std::future::pending().await,
                Err(error) if is_due => tracing::warn!(error = %error.as_report(), "cannot make the control groups of pods; trying again"),
                Err(_) => {}
            }
        }
    }

    /// The limits of groups that stay: (who they are for, its group, its limits).
    fn node_work(&self) -> Vec<Work> {
        let pods = Work { whose: Whose::Pods, amounts: self.amounts.clone(), compressible: false };
        let others = self.settings.reserved.iter().map(|reserved| Work {
            whose: Whose::Others { kind: reserved.kind, group: reserved.group.clone() },
            amounts: reserved.amounts.clone(),
            compressible: reserved.compressible,
        });
        [pods].into_iter().chain(others).collect()
    }

    /// Does what is open, and keeps what failed for the next time (upstream `enforceNodeAllocatableCgroups`).
    async fn enforce(&self, site: &Site, agent: &Agent, open: &mut Vec<Work>) {
        let mut again = Vec::new();
        for work in open.drain(..) {
            let (type_, reason, message) = match self.enforce_one(site, &work).await {
                Ok(()) => (EventType::Normal, DONE, work.whose.done()),
                Err(error) => {
                    let message = format!("{}: {}", work.whose.failed(&self.pods), error.as_report());
                    tracing::warn!("{message}; trying again");
                    again.push(work);
                    (EventType::Warning, FAILED, message)
                }
            };
            let name = agent.side.node_name.clone();
            let node = ObjectReference { kind: Some("Node".into()), name: Some(name.clone()), uid: Some(name), ..Default::default() };
            agent.recorder.event(&node, type_, reason, None, message);
        }
        *open = again;
    }

    async fn enforce_one(&self, site: &Site, work: &Work) -> Result<(), apply::GroupError> {
        let name = match &work.whose {
            Whose::Pods => self.pods.clone(),
            Whose::Others { group, .. } => Name::parse_as(site.driver, group),
        };
        self.check_there(site, &name)?;
        let mut limits = Limits::of_amounts(&work.amounts, work.compressible);
        if matches!(work.whose, Whose::Pods) && site.driver == Cgroups::Systemd {
            // Else systemd does not know that pods have the controller, and takes it away.
            limits.cpus = text(&self.root, "/sys/devices/system/cpu/online").map(|list| list.trim().to_owned());
        }
        self.run(&site.set(&name, &limits)).await
    }

    /// Writes what the groups of classes have to have, where that is not what was written last.
    async fn update_classes(&self, site: &Site, agent: &Agent, written: &mut BTreeMap<Name, Limits>) {
        let sums = Sums::of(agent.admitted().values().map(|pod| &**pod));
        let allocatable = self.amounts.get("memory").map_or(0, |amount| amount.value());
        for (name, limits) in of_classes(&self.pods, sums, allocatable, self.settings.reserved_memory, &site.page_sizes) {
            if written.get(&name) == Some(&limits) {
                continue;
            }
            match self.run(&self.of_class(site, &name, &limits)).await {
                Ok(()) => drop(written.insert(name, limits)),
                Err(error) => tracing::warn!(group = %name, error = %error.as_report(), "cannot set the limits of a class of pods; trying again"),
            }
        }
    }

    /// A class that has more memory already gets no more than that (upstream `retrySetMemoryReserve`).
    fn of_class(&self, site: &Site, name: &Name, limits: &Limits) -> Vec<Step> {
        let memory = limits.memory.map(|memory| apply::usage(&self.root, site, name).map_or(memory, |used| used.max(memory)));
        site.set(name, &Limits { memory, ..limits.clone() })
    }

    /// Tries again to shrink groups that could not.
    pub(super) async fn shrink_late(&self) {
        let Ok(Some(site)) = self.site().await else { return };
        let names: Vec<Name> = self.late.lock().await.keys().cloned().collect();
        for name in names {
            let mut late = self.late.lock().await;
            // A resize since then has removed or replaced the entry.
            let Some(limits) = late.get(&name) else { continue };
            if self.set(site, &name, limits).await.is_ok() {
                late.remove(&name);
            }
        }
    }
}

/// Limits of a group that stays.
pub(super) struct Work {
    whose: Whose,
    amounts: Amounts,
    compressible: bool,
}

enum Whose {
    Pods,
    /// A group that somebody else makes.
    Others {
        kind: crate::config::ReservedKind,
        group: String,
    },
}

impl Whose {
    fn done(&self) -> String {
        match self {
            Whose::Pods => "Updated Node Allocatable limit across pods".to_owned(),
            Whose::Others { kind, group } => format!("Updated limits on {} reserved cgroup {group}", kind.word()),
        }
    }

    fn failed(&self, pods: &Name) -> String {
        match self {
            Whose::Pods => format!("Failed to update Node Allocatable Limits {pods}"),
            Whose::Others { kind, group } => format!("Failed to enforce {} Reserved Cgroup Limits on {group:?}", kind.title()),
        }
    }
}
