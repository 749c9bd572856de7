//! Memory limit of a Windows container: binds the sum of its programs, like a job object's.
//!
//! Linux offers users without rights a bound for each process only (`RLIMIT_DATA`: private memory that can be written, which
//! is what Windows calls committed). Here each program's bound is moved to what it has and what the limit leaves of it all.
//! One program alone is bound exactly; several that grow at once can pass the limit by what was left at the last look, a
//! tenth of a second ago, and get nothing more until enough is given back.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use super::start::lab_pid;
use crate::shim::{StartSpec, read_json};

/// Time between two looks.
pub(super) const INTERVAL: Duration = Duration::from_millis(100);

/// Committed memory of a program that is Wine's and not its own.
const OF_WINE: u64 = 16 << 20;

/// What a first process needs for itself, whatever is left.
const OF_INIT: u64 = 4 << 20;

/// Wine's own processes, by the names the kernel has for them (15 bytes): on Windows they are the system's.
const SYSTEM: &[&str] =
    &["wineserver", "wineserver64", "services.exe", "winedevice.exe", "wineboot.exe", "conhost.exe", "explorer.exe", "plugplay.exe", "rpcss.exe"];

/// The processes by which programs are started.
const INIT: &[&str] = &["mullion", "mullion-init.ex", "start.exe", "wine64"];

/// A container's limit and what is known of its processes.
#[derive(Debug)]
pub(super) struct Memory {
    /// `start.json`, which an update of the limit changes.
    spec: PathBuf,
    written: Option<SystemTime>,
    limit: Option<u64>,
    /// The container's first process.
    root: i32,
    looked: Option<Instant>,
    /// The youngest process at the last look; a new one is a reason to look again.
    youngest: String,
    programs: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Program,
    Init,
    System,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    /// As this process's namespace numbers it.
    pid: i32,
    role: Role,
    /// Private memory that can be written.
    data: u64,
}

impl Memory {
    /// For a container whose programs are Windows programs; none where the kernel does not say which process it is.
    pub(super) fn of(dir: &Path, spec: &StartSpec, pidfd: &OwnedFd) -> Option<Self> {
        spec.program.has_job_limit().then_some(())?;
        let root = lab_pid(pidfd)?;
        let (spec, written, limit) = (dir.join("start.json"), None, spec.limits.data);
        Some(Self { spec, written, limit, root, looked: None, youngest: String::new(), programs: 0 })
    }

    pub(super) fn is_limited(&self) -> bool {
        self.limit.is_some()
    }

    /// Looks at the processes, if it is time and something may have changed, and moves their bounds.
    pub(super) fn tick(&mut self) {
        if self.looked.is_some_and(|looked| looked.elapsed() < INTERVAL) {
            return;
        }
        self.looked = Some(Instant::now());
        let written = std::fs::metadata(&self.spec).and_then(|metadata| metadata.modified()).ok();
        let is_updated = written != self.written;
        if is_updated && let Ok(spec) = read_json::<StartSpec>(&self.spec) {
            (self.written, self.limit) = (written, spec.limits.data);
        }
        // The last number is the youngest process of this namespace and those below.
        let youngest = std::fs::read_to_string("/proc/loadavg").ok().and_then(|text| text.split_whitespace().last().map(str::to_owned));
        let is_still = youngest.as_ref() == Some(&self.youngest) && self.programs <= 1;
        let Some(limit) = self.limit else { return };
        if is_still && !is_updated {
            return;
        }
        self.youngest = youngest.unwrap_or_default();
        let found: Vec<Process> = processes(self.root).into_iter().filter_map(|pid| Process::read(Path::new(&format!("/proc/{pid}")))).collect();
        self.programs = found.iter().filter(|process| process.role == Role::Program).count();
        for (pid, bound) in plan(limit, &found) {
            let maximum = getrlimit(Resource::Data).maximum;
            // A process that has ended meanwhile needs no bound.
            let _ = prlimit(Pid::from_raw(pid), Resource::Data, Rlimit { current: bound, maximum });
        }
    }
}

/// The bound of each process: what it has and what is left.
fn plan(limit: u64, processes: &[Process]) -> Vec<(i32, Option<u64>)> {
    let own = |process: &Process| process.data.saturating_sub(OF_WINE);
    let used: u64 = processes.iter().filter(|process| process.role == Role::Program).map(own).sum();
    let left = limit.saturating_sub(used);
    let bound = |process: &Process| match process.role {
        Role::Program => Some(process.data.max(OF_WINE) + left),
        // What it starts begins with its bound.
        Role::Init => Some((OF_WINE + left).max(process.data + OF_INIT)),
        Role::System => None,
    };
    processes.iter().map(|process| (process.pid, bound(process))).collect()
}

impl Process {
    fn read(proc: &Path) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(proc.join("status")).ok()?)
    }

    fn parse(status: &str) -> Option<Self> {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let name = field("Name:")?;
        // Numbered by the lab, by the sandbox (where this process is), by the container.
        let pid = field("NSpid:")?.split_whitespace().nth(1)?.parse().ok()?;
        let data = field("VmData:")?.split_whitespace().next()?.parse::<u64>().ok()? * 1024;
        let role = match name {
            name if SYSTEM.contains(&name) => Role::System,
            name if INIT.contains(&name) => Role::Init,
            _ => Role::Program,
        };
        Some(Self { pid, role, data })
    }
}

/// A process and all its descendants.
fn processes(pid: i32) -> Vec<i32> {
    let (mut found, mut open) = (Vec::new(), vec![pid]);
    while let Some(pid) = open.pop().filter(|pid| *pid > 0) {
        found.push(pid);
        open.extend(children(pid));
    }
    found
}

/// The children of all threads of a process.
pub(crate) fn children(pid: i32) -> Vec<i32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let text: String = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok()).collect();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn programs_share_what_is_left() {
        let process = |pid, role, data: u64| Process { pid, role, data: data * MIB };
        let alone = [process(1, Role::Init, 18), process(2, Role::System, 40), process(3, Role::Program, 26)];
        assert_eq!(plan(100 * MIB, &alone), [(1, Some(106 * MIB)), (2, None), (3, Some(116 * MIB))], "one program has the limit to itself");
        let two = [process(3, Role::Program, 76), process(4, Role::Program, 12)];
        assert_eq!(plan(100 * MIB, &two), [(3, Some(116 * MIB)), (4, Some(56 * MIB))]);
        let beyond = [process(1, Role::Init, 18), process(3, Role::Program, 86), process(4, Role::Program, 66)];
        assert_eq!(plan(100 * MIB, &beyond), [(1, Some(22 * MIB)), (3, Some(86 * MIB)), (4, Some(66 * MIB))], "no process gets more");
    }

    #[test]
    fn processes_are_known_by_name() {
        let status = |name: &str| format!("Name:\t{name}\nPid:\t900\nNSpid:\t900\t12\t5\nVmData:\t   2048 kB\n");
        let role = |name: &str| Process::parse(&status(name)).unwrap().role;
        assert_eq!(Process::parse(&status("app.exe")), Some(Process { pid: 12, role: Role::Program, data: 2 * MIB }));
        assert_eq!([role("wineserver64"), role("mullion-init.ex"), role("cmd.exe")], [Role::System, Role::Init, Role::Program]);
        assert_eq!(Process::parse("Name:\tzombie\nNSpid:\t900\t12\n"), None, "without memory");
    }
}
