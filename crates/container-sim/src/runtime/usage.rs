//! Processes of a container, and the processor time of all that ever ran in it, read from `/proc`: ordinary users have no control groups
//! that count.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use crate::shim::children;

/// One process at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub pid: i32,
    pub parent: i32,
    /// Ticks since the machine's start: numbers of processes are used again.
    pub started: u64,
    /// Its own processor time and that of the children that it has waited for.
    pub cpu_nanos: u64,
    pub resident: u64,
    pub private: u64,
    pub faults: u64,
    pub major_faults: u64,
}

impl Process {
    fn read(pid: i32) -> Option<Self> {
        let proc = PathBuf::from(format!("/proc/{pid}"));
        let stat = std::fs::read_to_string(proc.join("stat")).ok()?;
        let status = std::fs::read_to_string(proc.join("status")).unwrap_or_default();
        Self::parse(pid, &stat, &status)
    }

    fn parse(pid: i32, stat: &str, status: &str) -> Option<Self> {
        // The name may hold anything, so fields are counted behind its closing parenthesis: field 3 is at 0.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
        let kib = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
        };
        Some(Self {
            pid,
            parent: fields.get(1)?.parse().ok()?,
            started: number(19),
            // Ticks are 1/100 s on every Linux.
            cpu_nanos: (number(11) + number(12) + number(13) + number(14)) * 10_000_000,
            resident: kib("VmRSS:"),
            private: kib("RssAnon:") + kib("RssShmem:"),
            faults: number(7),
            major_faults: number(9),
        })
    }
}

/// What runs in a container: its first process, second programs, which are the shim's children, and what any of these left behind, which
/// pid 1 of a shared pid namespace adopts. They all have the container's mounts. `first` is the container's first process.
pub(super) fn pids(shim: i32, first: i32) -> Vec<i32> {
    let mounts = |pid: i32| std::fs::read_link(Path::new("/proc").join(pid.to_string()).join("ns/mnt")).ok();
    let own = mounts(first).filter(|own| mounts(shim).as_ref() != Some(own));
    let belongs = |pid: i32| pid == first || (own.is_some() && mounts(pid) == own);
    let mut open = vec![(first, true), (shim, false)];
    open.retain(|(pid, _)| *pid > 0);
    let (mut found, mut seen) = (Vec::new(), HashSet::new());
    while let Some((pid, parent_belongs)) = open.pop() {
        let is_in = parent_belongs || (pid != shim && belongs(pid));
        if is_in && seen.insert(pid) {
            found.push(pid);
        }
        open.extend(children(pid).into_iter().filter(|child| !seen.contains(child)).map(|child| (child, is_in)));
    }
    found
}

/// The same as [`pids`], with what each process uses.
pub(super) fn processes(shim: i32, first: i32) -> Vec<Process> {
    pids(shim, first).into_iter().filter_map(Process::read).collect()
}

/// Processor time of a container that only grows, like a job object's or a control group's. What a process did after the last reading
/// and before its end is counted only if its parent is in the container, since the kernel adds it there.
#[derive(Debug, Default)]
pub(super) struct Counter {
    total: u64,
    last: HashMap<(i32, u64), Process>,
    /// When it was read and what it was, for the rate.
    reading: Option<(i64, u64)>,
}

/// A reading of a [`Counter`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    pub total_nanos: u64,
    /// Since the reading before, in billionths of a core.
    pub nano_cores: u64,
}

impl Counter {
    /// Counts what the processes did since the last call. `at` is in nanoseconds.
    pub(super) fn read(&mut self, at: i64, processes: &[Process]) -> Reading {
        let now: HashMap<(i32, u64), Process> = processes.iter().map(|process| ((process.pid, process.started), *process)).collect();
        let alive: HashSet<i32> = now.keys().filter(|key| self.last.contains_key(key)).map(|(pid, _)| *pid).collect();
        let parents: BTreeMap<i32, i32> = self.last.values().map(|process| (process.pid, process.parent)).collect();
        // Its parent, or theirs, has it among the children that it waited for.
        let is_inherited = |process: &Process| {
            let above = std::iter::successors(parents.get(&process.pid), |pid| parents.get(pid));
            above.take(parents.len()).any(|pid| alive.contains(pid))
        };
        let sum = |processes: &mut dyn Iterator<Item = &Process>| processes.map(|process| process.cpu_nanos).sum::<u64>();
        let lost = sum(&mut self.last.iter().filter(|(key, process)| !now.contains_key(key) && !is_inherited(process)).map(|(_, process)| process));
        let grown = (sum(&mut now.values()) + lost).saturating_sub(sum(&mut self.last.values()));
        self.total += grown;
        self.last = now;
        let before = self.reading.replace((at, self.total));
        let rate = before.filter(|(then, _)| at > *then).map(|(then, before)| {
            let nanos = u128::from(self.total - before) * 1_000_000_000 / u128::from(at.abs_diff(then));
            u64::try_from(nanos).unwrap_or(u64::MAX)
        });
        Reading { total_nanos: self.total, nano_cores: rate.unwrap_or(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_read() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let found = processes(0, pid);
        let own = found.iter().find(|process| process.pid == pid).unwrap();
        assert!(own.resident > 1 << 20 && own.private > 0 && own.parent > 0 && own.started > 0, "{found:?}");
        assert_eq!(processes(0, 0), []);
    }

    #[test]
    fn children_of_every_thread_belong_to_a_process() {
        let (sender, pids) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
            sender.send(child.id()).unwrap();
            child.wait().unwrap();
        });
        let child = i32::try_from(pids.recv().unwrap()).unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let found = super::pids(0, own);
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(child), nix::sys::signal::Signal::SIGKILL).unwrap();
        thread.join().unwrap();
        assert!(found.contains(&child), "{child} is not in {found:?}");
    }

    #[test]
    fn a_name_with_parentheses_is_skipped() {
        let stat = "9 (a) b (c)) S 4 9 9 0 -1 0 11 12 13 14 1 2 3 4 20 0 1 0 777 0 0";
        let process = Process::parse(9, stat, "VmRSS:\t 8 kB\nRssAnon:\t 2 kB\nRssShmem:\t 1 kB\n").unwrap();
        assert_eq!((process.parent, process.started, process.cpu_nanos), (4, 777, 100_000_000));
        assert_eq!((process.resident, process.private, process.faults, process.major_faults), (8192, 3072, 11, 13));
    }

    const SECOND: u64 = 1_000_000_000;

    fn process(pid: i32, parent: i32, seconds: u64) -> Process {
        let (resident, private, faults, major_faults) = (0, 0, 0, 0);
        Process { pid, parent, started: 1, cpu_nanos: seconds * SECOND, resident, private, faults, major_faults }
    }

    #[test]
    fn a_container_keeps_the_time_of_what_has_ended() {
        let mut counter = Counter::default();
        let mut seconds = |at: i64, processes: &[Process]| counter.read(at * 1_000_000_000, processes).total_nanos / SECOND;
        assert_eq!(seconds(0, &[process(10, 1, 5)]), 5);
        // A second program beside the first, adopted from outside, with a child of its own.
        assert_eq!(seconds(10, &[process(10, 1, 6), process(20, 1, 8), process(21, 20, 2)]), 16);
        // Its child has ended, and it has waited for it.
        assert_eq!(seconds(20, &[process(10, 1, 6), process(20, 1, 12)]), 18);
        assert_eq!(seconds(30, &[process(10, 1, 7)]), 19, "the second program is gone, its time is not");
        assert_eq!(seconds(40, &[process(10, 1, 9)]), 21, "and the first goes on from there");
        let again = Process { started: 2, ..process(10, 1, 4) };
        assert_eq!(seconds(50, &[again]), 25, "another process by the same number");
        assert_eq!(seconds(60, &[]), 25);
    }

    #[test]
    fn time_that_a_parent_waited_for_counts_once() {
        let mut counter = Counter::default();
        let mut seconds = |processes: &[Process]| counter.read(0, processes).total_nanos / SECOND;
        assert_eq!(seconds(&[process(10, 1, 0), process(20, 10, 3), process(30, 20, 4)]), 7);
        // 20 waited for 30, and 10 for 20.
        assert_eq!(seconds(&[process(10, 1, 8)]), 8);
        // A child that begins and ends between two readings.
        assert_eq!(seconds(&[process(10, 1, 11)]), 11);
    }

    #[test]
    fn the_rate_is_of_the_time_between_readings() {
        let mut counter = Counter::default();
        let mut rate = |at: i64, seconds: u64| counter.read(at * 1_000_000_000, &[process(10, 1, seconds)]).nano_cores;
        assert_eq!([rate(0, 5), rate(10, 10), rate(10, 10), rate(20, 30)], [0, SECOND / 2, 0, 2 * SECOND]);
    }
}
