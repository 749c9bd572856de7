//! Limits of containers: what CRI requests, and what enforces it.

use anyhow::Result;
use k8s_cri::v1;
use rustix::process::{Resource, prlimit};
use serde::{Deserialize, Serialize};

use super::cgroup::{Amounts, Cgroups};
use super::kind::System;
use crate::shim::Limits;

/// Annotation of CRI's container status with the limits that nothing enforces.
pub const UNENFORCED: &str = "mullion.io/unenforced-limits";

/// What enforces a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Holder {
    /// There is no limit.
    #[default]
    Unlimited,
    /// A control group.
    Cgroup,
    /// Bounds on processes' private memory, kept to what is left of the sum: allocations fail.
    Allocations,
    /// Nothing: the limit is remembered and reported.
    Nobody,
}

impl Holder {
    fn text(self) -> &'static str {
        match self {
            Self::Unlimited => "no limit",
            Self::Cgroup => "enforced by a control group",
            Self::Allocations => "enforced for the sum of the container's processes: allocations fail, as in a Windows job",
            Self::Nobody => "unenforced: an ordinary user's processes have no control groups here, so the limit is remembered and reported only",
        }
    }
}

/// What enforces the limits of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holders {
    pub memory: Holder,
    pub cpu: Holder,
}

impl Holders {
    /// For the verbose status.
    pub(super) fn info(self) -> serde_json::Value {
        serde_json::json!({ "memory": self.memory.text(), "cpu": self.cpu.text() })
    }

    /// The limits that nothing enforces, if any.
    pub(super) fn unenforced(self) -> Option<String> {
        let all = [("cpu", self.cpu), ("memory", self.memory)];
        let names: Vec<&str> = all.into_iter().filter(|(_, holder)| *holder == Holder::Nobody).map(|(name, _)| name).collect();
        (!names.is_empty()).then(|| names.join(","))
    }
}

/// A number of a CRI message where zero and less mean that there is none.
pub(super) fn positive(number: i64) -> Option<u64> {
    u64::try_from(number).ok().filter(|number| *number > 0)
}

/// Enforces `amounts` as far as the machine allows.
pub(super) fn set(cgroups: &Cgroups, system: &dyn System, id: &str, amounts: Amounts) -> Result<(Limits, Holders)> {
    let holder = |requested: bool, available: bool| match (requested, available) {
        (false, _) => Holder::Unlimited,
        (true, true) => Holder::Cgroup,
        (true, false) => Holder::Nobody,
    };
    let mut holders =
        Holders { memory: holder(amounts.memory.is_some(), cgroups.has_memory()), cpu: holder(amounts.cpu_milli.is_some(), cgroups.has_cpu()) };
    let mut by_cgroup = amounts;
    let data = system.allocation_limit(&amounts);
    if data.is_some() {
        (holders.memory, by_cgroup.memory) = (Holder::Allocations, None);
    }
    Ok((Limits { data, cgroups: cgroups.set(id, by_cgroup)? }, holders))
}

/// Merges an update; fields that it leaves out (zero or empty) stay, as in containerd.
pub(super) fn merge(known: &mut v1::LinuxContainerResources, update: v1::LinuxContainerResources) {
    let update_number = |known: &mut i64, new: i64| *known = if new == 0 { *known } else { new };
    update_number(&mut known.cpu_period, update.cpu_period);
    update_number(&mut known.cpu_quota, update.cpu_quota);
    update_number(&mut known.cpu_shares, update.cpu_shares);
    update_number(&mut known.memory_limit_in_bytes, update.memory_limit_in_bytes);
    update_number(&mut known.memory_swap_limit_in_bytes, update.memory_swap_limit_in_bytes);
    update_number(&mut known.oom_score_adj, update.oom_score_adj);
    for (known, new) in [(&mut known.cpuset_cpus, update.cpuset_cpus), (&mut known.cpuset_mems, update.cpuset_mems)] {
        if !new.is_empty() {
            *known = new;
        }
    }
    if !update.hugepage_limits.is_empty() {
        known.hugepage_limits = update.hugepage_limits;
    }
    known.unified.extend(update.unified);
}

/// Applies limits to running processes. One that ends meanwhile needs none.
pub(super) fn bind(limits: &Limits, pids: &[i32]) {
    for pid in pids {
        for dir in &limits.cgroups {
            let _ = std::fs::write(dir.join("cgroup.procs"), pid.to_string());
        }
        let _ = prlimit(rustix::process::Pid::from_raw(*pid), Resource::Data, limits.data_bound());
    }
}

#[cfg(test)]
mod tests {
    use kube_rules::NodeOs;

    use super::*;
    use crate::runtime::kind::system;

    #[test]
    fn holders_of_limits_are_reported() {
        let (linux, windows) = (system(NodeOs::Linux), system(NodeOs::Windows { build: 20348 }));
        let none = Cgroups::default();
        let asked = Amounts { memory: Some(1 << 20), cpu_milli: Some(100), shares: Some(2) };
        let (limits, holders) = set(&none, windows, "x", asked).unwrap();
        assert_eq!((limits.data, holders.memory, holders.cpu), (Some(1 << 20), Holder::Allocations, Holder::Nobody));
        assert_eq!(holders.unenforced().as_deref(), Some("cpu"));
        let (limits, holders) = set(&none, linux, "x", asked).unwrap();
        assert_eq!((limits, holders.unenforced().as_deref()), (Limits::default(), Some("cpu,memory")));
        assert_eq!(Holders::default().unenforced(), None);
        // A weight alone is no limit.
        assert_eq!(set(&none, linux, "x", Amounts { shares: Some(2), ..Amounts::default() }).unwrap().1, Holders::default());
    }
}
