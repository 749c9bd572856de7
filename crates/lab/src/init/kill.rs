//! Which processes run on a host, and their end.
//!
//! A host's processes are those in its network namespace and all that descend from them: pods have namespaces of their own. A sandbox's shim
//! is nobody's descendant any more, and is known by its command line: `mullion shim STAGE DIR`, with a DIR in the host's directory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use linux_sys::ns::NetNs;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long the end of a host's processes is waited for. Only one that the kernel holds outlives its SIGKILL by so much.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two looks for those that have been killed.
const LOOK: Duration = Duration::from_millis(2);

/// A process as `/proc` has it.
#[derive(Debug)]
struct Found {
    parent: i32,
    /// Whether it is the host's by itself.
    is_own: bool,
}

/// Kills all that runs on a host, and waits for its end.
pub(super) fn kill_all(namespace: &NetNs, host_dir: &Path) {
    let Ok(own) = nix::sys::stat::fstat(namespace) else { return };
    let deadline = Instant::now() + PATIENCE;
    let mut stopped = BTreeSet::new();
    loop {
        let doomed = belonging(&processes((own.st_dev, own.st_ino), host_dir));
        let is_late = deadline <= Instant::now();
        if doomed.is_empty() {
            return;
        }
        // What is stopped starts no others and ends not, so that no child loses its parent before all are known.
        let are_known = is_late || doomed.is_subset(&stopped);
        let signal = if are_known { Signal::SIGKILL } else { Signal::SIGSTOP };
        for pid in doomed.iter().filter(|pid| are_known || !stopped.contains(*pid)) {
            let _ = kill(Pid::from_raw(*pid), signal);
        }
        if is_late {
            eprintln!("lab init: processes of a host still end: {doomed:?}");
            return;
        }
        if are_known {
            std::thread::sleep(LOOK);
        }
        stopped.extend(doomed);
    }
}

/// All processes that live, but init.
fn processes(namespace: (u64, u64), host_dir: &Path) -> BTreeMap<i32, Found> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let read = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse::<i32>().ok().filter(|pid| *pid > 1)?;
        let parent = living_parent(&fs::read_to_string(entry.path().join("stat")).ok()?)?;
        let is_there = fs::metadata(entry.path().join("ns/net")).is_ok_and(|net| (net.dev(), net.ino()) == namespace);
        let is_own = is_there || is_shim(&fs::read(entry.path().join("cmdline")).unwrap_or_default(), host_dir);
        Some((pid, Found { parent, is_own }))
    };
    entries.filter_map(read).collect()
}

/// The parent of a process that has not ended, by its `stat`. The name in it may hold anything.
fn living_parent(stat: &str) -> Option<i32> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    fields.next()?.parse().ok().filter(|_| !matches!(state, "Z" | "X"))
}

fn is_shim(cmdline: &[u8], host_dir: &Path) -> bool {
    let mut args = cmdline.split(|byte| *byte == 0).skip(1);
    let is_stage = args.next() == Some(b"shim") && args.next().is_some();
    is_stage && args.next().is_some_and(|dir| Path::new(std::ffi::OsStr::from_bytes(dir)).starts_with(host_dir))
}

/// The host's own processes, and their descendants.
fn belonging(all: &BTreeMap<i32, Found>) -> BTreeSet<i32> {
    let mut known: BTreeSet<i32> = all.iter().filter(|(_, found)| found.is_own).map(|(pid, _)| *pid).collect();
    loop {
        let more: Vec<i32> = all.iter().filter(|(pid, found)| !known.contains(pid) && known.contains(&found.parent)).map(|(pid, _)| *pid).collect();
        if more.is_empty() {
            return known;
        }
        known.extend(more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hosts_processes_are_its_own_and_their_descendants() {
        let found = |parent, is_own| Found { parent, is_own };
        // The numbers of children may be smaller than their parents'.
        let all = BTreeMap::from([(2, found(7, false)), (5, found(1, false)), (6, found(5, false)), (7, found(9, false)), (9, found(1, true))]);
        assert_eq!(belonging(&all), BTreeSet::from([2, 7, 9]));
        assert_eq!(belonging(&BTreeMap::from([(5, found(1, false))])), BTreeSet::new());
    }

    #[test]
    fn what_has_ended_is_none_and_names_may_hold_anything() {
        assert_eq!(living_parent("12 (a) Z 1 (b) S 7 12 12 0"), Some(7));
        assert_eq!((living_parent("12 (sh) Z 7 12"), living_parent("12 (sh"), living_parent("")), (None, None, None));
    }

    #[test]
    fn shims_are_known_by_the_directory_of_their_host() {
        let is = |line: &str| is_shim(line.replace(' ', "\0").as_bytes(), Path::new("/d/hosts/n1"));
        assert!(is("mullion shim serve /d/hosts/n1/cri/sandboxes/a ") && is("mullion shim launch /d/hosts/n1/cri/sandboxes/a"));
        assert!(!is("mullion shim serve /d/hosts/n10/cri/sandboxes/a ") && !is("mullion container-sim --state-dir /d/hosts/n1 ") && !is(""));
    }
}
