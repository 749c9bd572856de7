//! What has to be done for a control group to be there and to have its limits, as data.

use std::fmt;

use super::limits::Limits;
use super::names::Name;
use super::systemd::{self, Property};
use super::tree::{Tree, UNIFIED};
use crate::config::Cgroups;
use crate::pod::resources::page_size;

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Makes a group where it is missing.
    Make(String),
    /// Gives a group of version 1 the processors and the memory nodes of the group above it where it has none: no process can join it else.
    Inherit {
        group: String,
        file: &'static str,
    },
    /// Passes controllers of version 2 on to the groups below.
    Enable {
        group: String,
        controllers: Vec<String>,
    },
    Write {
        file: String,
        value: String,
        need: Need,
    },
    /// Has systemd make a slice.
    Start {
        unit: String,
        properties: Vec<Property>,
    },
    /// Tells systemd what a slice has, which else it would set back.
    Set {
        unit: String,
        properties: Vec<Property>,
    },
    /// Has systemd remove a slice.
    Stop {
        unit: String,
    },
}

/// What a failed write means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Always,
    /// Kernels without the file are fine.
    IfThere,
    /// `InvalidInput` is fine: the kernel checks the value against another one that is not written yet. A later step writes it again.
    Again,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |properties: &[Property]| properties.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        match self {
            Step::Make(group) => write!(f, "make {group}"),
            Step::Inherit { group, file } => write!(f, "copy {file} into {group} from the group above it"),
            Step::Enable { group, controllers } => write!(f, "pass {} on from {group}", controllers.join(" ")),
            Step::Write { file, value, .. } => write!(f, "write {value} into {file}"),
            Step::Start { unit, properties } => write!(f, "start {unit} with {}", list(properties)),
            Step::Set { unit, properties } => write!(f, "set {} of {unit}", list(properties)),
            Step::Stop { unit } => write!(f, "stop {unit}"),
        }
    }
}

/// What a plan is made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    pub tree: Tree,
    pub driver: Cgroups,
    /// Sizes of the machine's huge pages, in bytes.
    pub page_sizes: Vec<u64>,
}

impl Site {
    /// The directories of a group, one in each hierarchy.
    pub(crate) fn groups(&self, name: &Name) -> Vec<String> {
        let path = name.path(self.driver);
        self.tree.mounts().into_iter().map(|mount| join(mount, &path)).collect()
    }

    /// The file of a controller in a group.
    pub(crate) fn file(&self, name: &Name, controller: &str, file: &str) -> Option<String> {
        Some(format!("{}/{file}", join(self.tree.mount_of(controller)?, &name.path(self.driver))))
    }

    /// Makes a group below one that is there.
    pub(crate) fn make(&self, name: &Name) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.driver == Cgroups::Systemd {
            let unified = matches!(self.tree, Tree::Unified(_));
            steps.push(Step::Start { unit: name.unit(), properties: systemd::start(name, unified) });
        }
        let path = name.path(self.driver);
        match &self.tree {
            Tree::Unified(_) => steps.push(Step::Make(join(UNIFIED, &path))),
            Tree::Split(all) => {
                for hierarchy in all {
                    let has = |controller: &str| hierarchy.controllers.iter().any(|own| own == controller);
                    // systemd keeps its own.
                    if self.driver == Cgroups::Systemd && has("name=systemd") {
                        continue;
                    }
                    let group = join(&hierarchy.mount, &path);
                    steps.push(Step::Make(group.clone()));
                    if has("cpuset") {
                        steps.extend(["cpuset.cpus", "cpuset.mems"].map(|file| Step::Inherit { group: group.clone(), file }));
                    }
                }
            }
        }
        steps
    }

    /// Makes a group and those above it, and passes controllers on to it and to groups below it.
    pub(crate) fn make_whole(&self, name: &Name) -> Vec<Step> {
        let enable = |group: &Name| match &self.tree {
            Tree::Unified(controllers) => Some(Step::Enable { group: join(UNIFIED, &group.path(self.driver)), controllers: controllers.clone() }),
            Tree::Split(_) => None,
        };
        let mut steps: Vec<Step> = enable(&Name::parse("/")).into_iter().collect();
        for part in name.with_parents() {
            steps.extend(self.make(&part));
            steps.extend(enable(&part));
        }
        steps
    }

    /// Gives a group its limits.
    pub(crate) fn set(&self, name: &Name, limits: &Limits) -> Vec<Step> {
        let mut limits = limits.clone();
        let mut steps = Vec::new();
        if self.driver == Cgroups::Systemd {
            let unified = matches!(self.tree, Tree::Unified(_));
            let properties = systemd::limits(&mut limits, unified);
            if !properties.is_empty() {
                steps.push(Step::Set { unit: name.unit(), properties });
            }
        }
        let write =
            |controller: &str, file: &str, value: String, need: Need| self.file(name, controller, file).map(|file| Step::Write { file, value, need });
        match &self.tree {
            Tree::Split(_) => self.set_split(&limits, &mut steps, write),
            Tree::Unified(_) => self.set_unified(&limits, &mut steps, write),
        }
        steps
    }

    fn set_split(&self, limits: &Limits, steps: &mut Vec<Step>, write: impl Fn(&str, &str, String, Need) -> Option<Step>) {
        let mut put = |controller: &str, file: &str, value: Option<String>, need| {
            steps.extend(value.and_then(|value| write(controller, file, value, need)));
        };
        put("cpu", "cpu.shares", limits.shares.map(|shares| shares.to_string()), Need::Always);
        let period = limits.period.map(|period| period.to_string());
        let quota = limits.quota.filter(|quota| *quota != 0).map(|quota| quota.to_string());
        if quota.is_some() {
            put("cpu", "cpu.cfs_period_us", period.clone(), Need::Again);
            put("cpu", "cpu.cfs_quota_us", quota, Need::Always);
        }
        put("cpu", "cpu.cfs_period_us", period, Need::Always);
        let memory = limits.memory.filter(|memory| *memory != 0).map(|memory| memory.to_string());
        put("memory", "memory.limit_in_bytes", memory, Need::Always);
        put("pids", "pids.max", limits.pids.map(pids), Need::Always);
        for (size, bytes) in self.huge_pages(limits) {
            put("hugetlb", &format!("hugetlb.{size}.limit_in_bytes"), Some(bytes.clone()), Need::Always);
            put("hugetlb", &format!("hugetlb.{size}.rsvd.limit_in_bytes"), Some(bytes), Need::IfThere);
        }
        put("cpuset", "cpuset.cpus", limits.cpus.clone(), Need::Always);
    }

    fn set_unified(&self, limits: &Limits, steps: &mut Vec<Step>, write: impl Fn(&str, &str, String, Need) -> Option<Step>) {
        let mut put = |controller: &str, file: &str, value: Option<String>, need| {
            steps.extend(value.and_then(|value| write(controller, file, value, need)));
        };
        put("cpu", "cpu.weight", limits.shares.map(|shares| weight(shares).to_string()), Need::Always);
        let quota = limits.quota.unwrap_or(0);
        if quota != 0 || limits.period.is_some() {
            let quota = if quota > 0 { quota.to_string() } else { "max".to_owned() };
            put("cpu", "cpu.max", Some(format!("{quota} {}", limits.period.unwrap_or(100_000))), Need::Always);
        }
        put("memory", "memory.max", limits.memory.filter(|memory| *memory != 0).map(|memory| memory.to_string()), Need::Always);
        put("pids", "pids.max", limits.pids.map(pids), Need::Always);
        for (size, bytes) in self.huge_pages(limits) {
            put("hugetlb", &format!("hugetlb.{size}.max"), Some(bytes.clone()), Need::Always);
            put("hugetlb", &format!("hugetlb.{size}.rsvd.max"), Some(bytes), Need::IfThere);
        }
        put("cpuset", "cpuset.cpus", limits.cpus.clone(), Need::Always);
    }

    /// The bound of each of the machine's sizes, where the limits are about huge pages.
    fn huge_pages(&self, limits: &Limits) -> Vec<(String, String)> {
        let of = |size: &u64| limits.huge_pages.as_ref().map(|all| all.get(size).copied().unwrap_or(0).to_string());
        self.page_sizes.iter().filter_map(|size| Some((page_size(*size), of(size)?))).collect()
    }
}

fn join(mount: &str, path: &str) -> String {
    format!("{}{}", mount.trim_end_matches('/'), if path == "/" { "" } else { path })
}

/// The kernel takes no 0: upstream's 1 has the same effect on a group that no process starts in.
fn pids(most: i64) -> String {
    match most {
        0 => "1".to_owned(),
        most if most < 0 => "max".to_owned(),
        most => most.to_string(),
    }
}

/// Shares of version 1, 2 to 262144, as a weight of version 2, 1 to 10000 (upstream `getCPUWeight`).
pub(crate) fn weight(shares: u64) -> u64 {
    if shares >= 262_144 { 10_000 } else { 1 + (shares.saturating_sub(2) * 9999) / 262_142 }
}

#[cfg(test)]
mod tests;
