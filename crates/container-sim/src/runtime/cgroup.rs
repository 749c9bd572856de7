//! Control groups of containers, where the machine allows the user to make any: in version 1 below the runtime's own group, in
//! version 2 below the nearest group above it that may have children with limits (those with processes of their own may
//! not), such as a slice of the user's own service manager.
//!
//! One flat group per limited container and controller, `mullion-NODE-CONTAINER`; NODE separates ours from those of other
//! runtimes, and what a runtime that was killed left behind goes when the next one starts.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Limits of a container, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amounts {
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Thousandths of a processor.
    pub cpu_milli: Option<u64>,
    /// Weight against others, in version 1's unit (1024 a processor).
    pub shares: Option<u64>,
}

/// Microseconds over which processor time is counted.
const PERIOD: u64 = 100_000;

/// Version 2's bound on swap.
const SWAP: &str = "memory.swap.max";

/// Where groups can be made.
#[derive(Debug, Default)]
pub(super) struct Cgroups {
    prefix: String,
    memory: Option<Parent>,
    cpu: Option<Parent>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Parent {
    dir: PathBuf,
    unified: bool,
    /// Whether it is this process's own group.
    own: bool,
}

/// Removes the control groups of a node whose containers have all ended, and whose runtime will not come back to do it:
/// for `down`. `state_dir` is the runtime's.
pub fn remove_control_groups(state_dir: &Path) {
    let (own, mounts) = own_groups();
    for parent in ["memory", "cpu"].into_iter().flat_map(|controller| parents(controller, &own, &mounts)) {
        Cgroups { prefix: prefix(state_dir), memory: Some(parent), cpu: None }.clean(&[]);
    }
}

/// What this process is in, and where that can be seen.
fn own_groups() -> (String, String) {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    (read("/proc/self/cgroup"), read("/proc/self/mountinfo"))
}

fn prefix(state_dir: &Path) -> String {
    let id = uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_URL, state_dir.as_os_str().as_encoded_bytes()).simple().to_string();
    format!("mullion-{}-", &id[..8])
}

impl Cgroups {
    /// Looks for what there is, and removes what runtimes of the same `state_dir` left, but for the groups of `alive`.
    pub(super) fn find(state_dir: &Path, alive: &[String]) -> Self {
        let (own, mounts) = own_groups();
        let prefix = prefix(state_dir);
        let usable = |controller: &str| parents(controller, &own, &mounts).into_iter().find(|parent| parent.is_usable(controller, &prefix));
        let found = Self { memory: usable("memory"), cpu: usable("cpu"), prefix };
        found.clean(alive);
        found
    }

    fn clean(&self, alive: &[String]) {
        for parent in self.memory.iter().chain(&self.cpu) {
            for entry in std::fs::read_dir(&parent.dir).into_iter().flatten().flatten() {
                let name = entry.file_name();
                let ours = name.to_str().and_then(|name| name.strip_prefix(&self.prefix));
                if ours.is_some_and(|id| !alive.iter().any(|alive| alive.starts_with(id))) {
                    let _ = std::fs::remove_dir(entry.path());
                }
            }
        }
    }

    fn dir(&self, parent: &Parent, container: &str) -> PathBuf {
        parent.dir.join(format!("{}{}", self.prefix, container.get(..16).unwrap_or(container)))
    }

    pub(super) fn has_memory(&self) -> bool {
        self.memory.is_some()
    }

    pub(super) fn has_cpu(&self) -> bool {
        self.cpu.is_some()
    }

    /// Makes or changes a container's groups as far as there can be any, and returns their directories.
    pub(super) fn set(&self, container: &str, amounts: Amounts) -> Result<Vec<PathBuf>> {
        let mut dirs = Vec::new();
        // A container with an amount of one kind is in groups of both: a limit that comes later is then seen inside it.
        let grouped = amounts != Amounts::default();
        let mut write = |parent: &Parent, files: Vec<(&str, String)>| -> Result<()> {
            let dir = self.dir(parent, container);
            if !grouped && !dir.is_dir() {
                return Ok(());
            }
            match std::fs::create_dir(&dir) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(error).with_context(|| format!("cannot make {}", dir.display()));
                }
                _ => {}
            }
            for (file, value) in files {
                let path = dir.join(file);
                match std::fs::write(&path, &value) {
                    // Kernels without accounting of swap do not have the file.
                    Err(error) if file == SWAP && error.kind() == io::ErrorKind::NotFound => {}
                    written => written.with_context(|| format!("cannot write {value:?} to {}", path.display()))?,
                }
            }
            if !dirs.contains(&dir) {
                dirs.push(dir);
            }
            Ok(())
        };
        if let Some(parent) = &self.memory {
            write(parent, memory_files(parent.unified, amounts))?;
        }
        if let Some(parent) = &self.cpu {
            write(parent, cpu_files(parent.unified, amounts))?;
        }
        Ok(dirs)
    }

    /// Takes a container's groups away, once nothing is in them.
    pub(super) fn remove(&self, container: &str) {
        for parent in self.memory.iter().chain(&self.cpu) {
            let _ = std::fs::remove_dir(self.dir(parent, container));
        }
    }
}

impl Parent {
    /// Whether groups with limits can be made here, and this user's processes moved there.
    fn is_usable(&self, controller: &str, prefix: &str) -> bool {
        if self.unified && !self.lends(controller) {
            return false;
        }
        let probe = self.dir.join(format!("{prefix}probe"));
        if std::fs::create_dir(&probe).is_err() && !probe.is_dir() {
            return false;
        }
        let writable = |path: PathBuf| std::fs::OpenOptions::new().write(true).open(path).is_ok();
        let settable = probe.join(if self.unified { format!("{controller}.max") } else { "cgroup.procs".to_owned() });
        // Moving a process takes the right to do so in the group that its old and its new one have in common.
        let usable = writable(settable) && (!self.unified || writable(self.dir.join("cgroup.procs")));
        let _ = std::fs::remove_dir(&probe);
        usable
    }

    /// In version 2 a group's children have the controllers that it lets them. Only our own group is changed.
    fn lends(&self, controller: &str) -> bool {
        let file = self.dir.join("cgroup.subtree_control");
        let given = std::fs::read_to_string(&file).unwrap_or_default();
        given.split_whitespace().any(|name| name == controller) || (self.own && std::fs::write(file, format!("+{controller}")).is_ok())
    }
}

fn memory_files(unified: bool, amounts: Amounts) -> Vec<(&'static str, String)> {
    let Some(bytes) = amounts.memory else { return Vec::new() };
    // Kubernetes gives containers no swap unless a node is configured to.
    if unified { vec![("memory.max", bytes.to_string()), (SWAP, "0".to_owned())] } else { vec![("memory.limit_in_bytes", bytes.to_string())] }
}

fn cpu_files(unified: bool, amounts: Amounts) -> Vec<(&'static str, String)> {
    let mut files = Vec::new();
    // Below a thousandth of the period the kernel refuses.
    let quota = amounts.cpu_milli.map(|milli| (milli * PERIOD / 1000).max(1000));
    match (unified, quota) {
        (true, Some(quota)) => files.push(("cpu.max", format!("{quota} {PERIOD}"))),
        (false, Some(quota)) => files.extend([("cpu.cfs_period_us", PERIOD.to_string()), ("cpu.cfs_quota_us", quota.to_string())]),
        (_, None) => {}
    }
    if let Some(shares) = amounts.shares {
        let shares = shares.clamp(2, 262_144);
        // Kubernetes' conversion between the versions' units.
        let weight = 1 + (shares - 2) * 9999 / 262_142;
        files.push(if unified { ("cpu.weight", weight.to_string()) } else { ("cpu.shares", shares.to_string()) });
    }
    files
}

/// Where groups with a controller might be made, best first.
fn parents(controller: &str, own: &str, mounts: &str) -> Vec<Parent> {
    let group = |unified: bool| {
        own.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            let matches = if unified { controllers.is_empty() } else { controllers.split(',').any(|name| name == controller) };
            matches.then_some(path)
        })
    };
    // The mount point, and the group's way from there.
    let mounted = |unified: bool| {
        let group = group(unified)?;
        mounts.lines().find_map(|line| {
            let (mount, system) = line.split_once(" - ")?;
            let mount: Vec<&str> = mount.split(' ').collect();
            let mut system = system.split(' ');
            let (kind, options) = (system.next()?, system.nth(1)?);
            let fits = if unified { kind == "cgroup2" } else { kind == "cgroup" && options.split(',').any(|name| name == controller) };
            let below = group.strip_prefix(mount.get(3)?.trim_end_matches('/'))?;
            fits.then(|| (PathBuf::from(mount[4]), below.trim_matches('/').to_owned()))
        })
    };
    if let Some((mount, below)) = mounted(false) {
        return vec![Parent { dir: mount.join(below), unified: false, own: true }];
    }
    let Some((mount, below)) = mounted(true) else { return Vec::new() };
    let own = mount.join(below);
    let up = own.ancestors().take_while(|dir| dir.starts_with(&mount));
    up.map(|dir| Parent { dir: dir.to_owned(), unified: true, own: dir == own }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "4:memory:/process_api/8cc\n2:cpu,cpuacct:/\n0::/user.slice/app.scope\n";
    const MOUNTS: &str = "30 24 0:27 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
                          31 24 0:28 /process_api /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n";

    #[test]
    fn groups_are_found_through_the_mount_table() {
        let found = |controller, mounts: &str| -> Vec<(String, bool, bool)> {
            let parents = parents(controller, OWN, mounts);
            parents.into_iter().map(|parent| (parent.dir.display().to_string(), parent.unified, parent.own)).collect()
        };
        assert_eq!(found("cpu", MOUNTS), [("/sys/fs/cgroup/cpu/".to_owned(), false, true)]);
        assert_eq!(found("memory", MOUNTS), [("/sys/fs/cgroup/memory/8cc".to_owned(), false, true)]);
        assert!(found("pids", MOUNTS).is_empty());
        let unified = "35 24 0:30 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
        let up = [("/sys/fs/cgroup/user.slice/app.scope", true), ("/sys/fs/cgroup/user.slice", false), ("/sys/fs/cgroup", false)];
        assert_eq!(found("memory", unified), up.map(|(dir, own)| (dir.to_owned(), true, own)));
    }

    #[test]
    fn amounts_are_written_for_both_versions() {
        let amounts = Amounts { memory: Some(64 << 20), cpu_milli: Some(500), shares: Some(1024) };
        assert_eq!(memory_files(false, amounts), [("memory.limit_in_bytes", "67108864".into())]);
        assert_eq!(memory_files(true, amounts), [("memory.max", "67108864".into()), (SWAP, "0".into())]);
        let v1 = [("cpu.cfs_period_us", "100000".into()), ("cpu.cfs_quota_us", "50000".into()), ("cpu.shares", "1024".into())];
        assert_eq!(cpu_files(false, amounts), v1);
        assert_eq!(cpu_files(true, amounts), [("cpu.max", "50000 100000".into()), ("cpu.weight", "39".into())]);
        assert!(cpu_files(true, Amounts::default()).is_empty() && memory_files(false, Amounts::default()).is_empty());
        assert_eq!(cpu_files(false, Amounts { cpu_milli: Some(1), ..Amounts::default() })[1].1, "1000");
    }
}
