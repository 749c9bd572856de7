//! Carrying out steps.

use std::io;
use std::time::Duration;

use host::{FileKind, HostError, HostRoot, PodPath};

use super::limits::Limits;
use super::names::Name;
use super::path;
use super::plan::{Need, Site, Step};
use super::tree::Tree;
use crate::config::Cgroups;

/// Bytes of a control group's file.
const FILE: u64 = 1 << 20;
/// How often a group that is in use is tried, with pauses that double: a second in all. Processes that were killed take a while.
const TRIES: u32 = 10;
/// Deeper than groups below a pod's are.
const DEPTH: u32 = 32;

/// Why a control group is not as it should be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GroupError {
    #[error("cannot {step}")]
    Step {
        step: String,
        #[source]
        source: io::Error,
    },
    #[error("unable to set memory limit to {wanted} (current usage: {used})")]
    InUse { wanted: String, used: String },
    #[error("cannot read {file}")]
    Read {
        file: String,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Path(#[from] HostError),
    #[cfg(target_os = "linux")]
    #[error("cannot {step}")]
    Bus {
        step: String,
        #[source]
        source: Box<super::bus::BusError>,
    },
    #[error("invalid configuration: cgroup {name} has some missing paths: {paths}; make it, or leave cgroupRoot out")]
    Missing { name: Name, paths: String },
    #[error("failed to create container for {name}")]
    Create {
        name: Name,
        #[source]
        source: Box<GroupError>,
    },
    #[error("the pod's UID {0:?} names no control group: it may have letters, digits and hyphens")]
    Uid(String),
    #[error("failed to delete cgroup paths for {name}: {left} is in use")]
    Left { name: Name, left: String },
}

impl GroupError {
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, GroupError::Step { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Whether the agent has no right to make groups.
    pub(crate) fn is_denied(&self) -> bool {
        match self {
            GroupError::Step { source, .. } => matches!(source.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem),
            #[cfg(target_os = "linux")]
            GroupError::Bus { source, .. } => source.is_denied(),
            _ => false,
        }
    }
}

/// The operating system's part of an error.
fn system(error: HostError) -> io::Error {
    match error {
        HostError::Io { source, .. } => source,
        other => io::Error::other(other),
    }
}

fn failed(step: &Step) -> impl FnOnce(HostError) -> GroupError {
    let step = step.to_string();
    move |error| GroupError::Step { step, source: system(error) }
}

pub(super) async fn run(root: &HostRoot, steps: &[Step]) -> Result<(), GroupError> {
    for step in steps {
        match step {
            Step::Make(group) => make(root, group).map_err(failed(step))?,
            Step::Inherit { group, file } => inherit(root, group, file).map_err(failed(step))?,
            Step::Enable { group, controllers } => enable(root, group, controllers),
            Step::Write { file, value, need } => write(root, step, file, value, *need)?,
            Step::Start { .. } | Step::Set { .. } | Step::Stop { .. } => call(step).await?,
        }
    }
    Ok(())
}

#[cfg(target_os = "linux")]
async fn call(step: &Step) -> Result<(), GroupError> {
    super::bus::call(step).await.map_err(|source| GroupError::Bus { step: step.to_string(), source: Box::new(source) })
}

#[cfg(not(target_os = "linux"))]
async fn call(step: &Step) -> Result<(), GroupError> {
    let source = io::Error::new(io::ErrorKind::Unsupported, "systemd is on Linux alone");
    Err(GroupError::Step { step: step.to_string(), source })
}

fn make(root: &HostRoot, group: &str) -> Result<(), HostError> {
    root.make_dir(&path(root, group)?, 0o755).map(drop)
}

/// The first line of a file.
fn read(root: &HostRoot, file: &PodPath) -> Result<String, HostError> {
    let bytes = root.read(file, FILE)?.unwrap_or_default();
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}

fn inherit(root: &HostRoot, group: &str, file: &str) -> Result<(), HostError> {
    let group = path(root, group)?;
    let own = group.join(file)?;
    if !read(root, &own)?.is_empty() {
        return Ok(());
    }
    let above = group.parent().unwrap_or_else(|| group.clone()).join(file)?;
    let value = read(root, &above)?;
    if value.is_empty() { Ok(()) } else { root.write_into(&own, value.as_bytes()) }
}

/// Turns controllers on for the groups below. A failure is only logged: a write into a file of a missing controller fails later, and says which.
fn enable(root: &HostRoot, group: &str, controllers: &[String]) {
    let Ok(file) = path(root, group).and_then(|group| Ok(group.join("cgroup.subtree_control")?)) else { return };
    let all: Vec<String> = controllers.iter().map(|name| format!("+{name}")).collect();
    if root.write_into(&file, all.join(" ").as_bytes()).is_err() {
        for one in all {
            if let Err(error) = root.write_into(&file, one.as_bytes()) {
                tracing::debug!(group, controller = one, %error, "a controller of control groups is not passed on");
            }
        }
    }
}

fn write(root: &HostRoot, step: &Step, file: &str, value: &str, need: Need) -> Result<(), GroupError> {
    let Err(error) = path(root, file).and_then(|file| root.write_into(&file, value.as_bytes())) else { return Ok(()) };
    let source = system(error);
    match (need, source.kind()) {
        (Need::IfThere, io::ErrorKind::NotFound) | (Need::Again, io::ErrorKind::InvalidInput) => Ok(()),
        (_, io::ErrorKind::ResourceBusy) if file.ends_with("memory.limit_in_bytes") => {
            let usage = file.replace("limit_in_bytes", "usage_in_bytes");
            let used = path(root, &usage).and_then(|file| read(root, &file)).unwrap_or_default();
            Err(GroupError::InUse { wanted: value.to_owned(), used })
        }
        _ => Err(GroupError::Step { step: step.to_string(), source }),
    }
}

/// The names of the directories in one; none where it is gone.
pub(super) fn directories(root: &HostRoot, at: &str) -> Vec<String> {
    let listed = path(root, at).and_then(|path| root.read_dir(&path)).unwrap_or_default();
    listed.into_iter().filter(|(_, kind)| *kind == FileKind::Directory).map(|(name, _)| name).collect()
}

/// What a pod's group has, of that which resizes change.
pub(super) fn current(root: &HostRoot, site: &Site, name: &Name) -> Result<Limits, GroupError> {
    let value = |controller: &str, file: &str| -> Result<Option<String>, GroupError> {
        let Some(file) = site.file(name, controller, file) else { return Ok(None) };
        let text = path(root, &file).and_then(|file| read(root, &file));
        text.map(Some).map_err(|error| GroupError::Read { file, source: system(error) })
    };
    let number = |text: Option<String>| text.and_then(|text| text.parse::<i64>().ok());
    let unsigned = |text: Option<String>| text.and_then(|text| text.parse::<u64>().ok());
    Ok(match &site.tree {
        Tree::Split(_) => Limits {
            shares: unsigned(value("cpu", "cpu.shares")?),
            quota: number(value("cpu", "cpu.cfs_quota_us")?),
            // More than a number holds is no bound.
            memory: value("memory", "memory.limit_in_bytes")?.map(|text| text.parse().unwrap_or(i64::MAX)),
            ..Limits::default()
        },
        Tree::Unified(_) => Limits {
            shares: unsigned(value("cpu", "cpu.weight")?).map(|weight| (weight.saturating_sub(1) * 262_142) / 9999 + 2),
            quota: value("cpu", "cpu.max")?.map(|text| text.split(' ').next().and_then(|quota| quota.parse().ok()).unwrap_or(-1)),
            memory: value("memory", "memory.max")?.map(|text| text.parse().unwrap_or(i64::MAX)),
            ..Limits::default()
        },
    })
}

/// Bytes of memory that a group uses, with those below it.
pub(super) fn usage(root: &HostRoot, site: &Site, name: &Name) -> Option<i64> {
    let file = match site.tree {
        Tree::Split(_) => "memory.usage_in_bytes",
        Tree::Unified(_) => "memory.current",
    };
    let file = site.file(name, "memory", file)?;
    path(root, &file).and_then(|file| read(root, &file)).ok()?.parse().ok()
}

/// The memory limit of a group that is about to shrink, and what the group uses where that is known; None where the limit does not shrink.
pub(super) fn shrinking(root: &HostRoot, site: &Site, name: &Name, limits: &Limits) -> Result<Option<(i64, Option<i64>)>, GroupError> {
    let Some(wanted) = limits.memory.filter(|memory| *memory > 0) else { return Ok(None) };
    let has = current(root, site, name)?.memory;
    Ok(has.filter(|has| wanted < *has).map(|_| (wanted, usage(root, site, name))))
}

/// Refuses a memory limit below what the group uses: version 1 answers so itself, but version 2 kills processes until the rest fits.
pub(super) fn check_usage(root: &HostRoot, site: &Site, name: &Name, limits: &Limits) -> Result<(), GroupError> {
    match shrinking(root, site, name, limits)? {
        Some((wanted, Some(used))) if used >= wanted => Err(GroupError::InUse { wanted: wanted.to_string(), used: used.to_string() }),
        _ => Ok(()),
    }
}

/// The part of `wanted` that is more than a group has.
pub(super) fn growth(has: &Limits, wanted: &Limits) -> Limits {
    let bound = |quota: i64| if quota < 0 { i64::MAX } else { quota };
    let quota = wanted.quota.filter(|wanted| has.quota.is_none_or(|has| bound(*wanted) > bound(has)));
    Limits {
        shares: wanted.shares.filter(|wanted| has.shares.is_none_or(|has| *wanted > has)),
        quota,
        period: wanted.period.filter(|_| quota.is_some()),
        memory: wanted.memory.filter(|wanted| has.memory.is_none_or(|has| *wanted > has)),
        ..Limits::default()
    }
}

/// Removes a group in each hierarchy, with the processes that are left in it.
pub(super) async fn remove(root: &HostRoot, site: &Site, name: &Name) -> Result<(), GroupError> {
    if site.driver == Cgroups::Systemd {
        // The directories go in any case.
        if let Err(error) = run(root, &[Step::Stop { unit: name.unit() }]).await {
            tracing::debug!(%name, %error, "systemd did not remove a slice");
        }
    }
    let mut left: Vec<PodPath> = site.groups(name).iter().map(|group| path(root, group)).collect::<Result<_, _>>()?;
    for attempt in 0..TRIES {
        left.retain(|group| !remove_below(root, group, DEPTH));
        if left.is_empty() {
            return Ok(());
        }
        for group in &left {
            kill_below(root, group, DEPTH);
        }
        tokio::time::sleep(Duration::from_millis(1 << attempt)).await;
    }
    Err(GroupError::Left { name: name.clone(), left: left[0].to_string() })
}

/// Whether a group is gone, with those below it.
fn remove_below(root: &HostRoot, group: &PodPath, depth: u32) -> bool {
    if root.remove_dir(group).is_ok() {
        return true;
    }
    let below = root.read_dir(group).unwrap_or_default().into_iter().filter(|(_, kind)| *kind == FileKind::Directory);
    for (name, _) in below.filter(|_| depth > 0) {
        let Ok(inner) = group.join(&name) else { return false };
        if !remove_below(root, &inner, depth - 1) {
            return false;
        }
    }
    root.remove_dir(group).is_ok()
}

/// Ends the processes of a group and of those below it.
fn kill_below(root: &HostRoot, group: &PodPath, depth: u32) {
    let members = || -> Vec<u32> {
        let listed = group.join("cgroup.procs").ok().and_then(|file| read(root, &file).ok()).unwrap_or_default();
        // Those of other pid namespaces have the number 0 here.
        listed.lines().filter_map(|line| line.trim().parse().ok()).filter(|pid| *pid > 1 && *pid != std::process::id()).collect()
    };
    for pid in members() {
        // Its number may be another process's by now.
        end(pid, || members().contains(&pid));
    }
    let below = root.read_dir(group).unwrap_or_default().into_iter().filter(|(_, kind)| *kind == FileKind::Directory);
    for (name, _) in below.filter(|_| depth > 0) {
        if let Ok(inner) = group.join(&name) {
            kill_below(root, &inner, depth - 1);
        }
    }
}

#[cfg(target_os = "linux")]
fn end(pid: u32, is_it: impl FnOnce() -> bool) {
    match host::end_process(pid, is_it) {
        Ok(()) => tracing::info!(pid, "a process that was left in a pod's control group is ended"),
        Err(error) => tracing::debug!(pid, %error, "a process in a pod's control group could not be ended"),
    }
}

/// Other systems have no control groups.
#[cfg(not(target_os = "linux"))]
fn end(_pid: u32, _is_it: impl FnOnce() -> bool) {}
