//! Processes of a program, and how much memory is theirs.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

/// A process and its share of memory.
#[derive(Debug, PartialEq, Eq)]
pub struct Process {
    /// What it is: `node win01`.
    pub role: String,
    /// Proportional set size, in KiB: pages that several processes map count in parts.
    pub pss_kib: u64,
}

/// Sub-commands that belong to pods.
const OF_PODS: [&str; 2] = ["shim", "guest"];

/// All processes of the program at `exe`, pods' apart, largest first.
///
/// # Errors
/// When `/proc` cannot be read. A process that ends meanwhile is left out.
pub fn list(exe: &Path) -> Result<Vec<Process>> {
    let exe = exe.canonicalize().with_context(|| format!("finding {} failed", exe.display()))?;
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("reading /proc failed")?.flatten() {
        let dir = entry.path();
        if fs::read_link(dir.join("exe")).ok().as_deref() != Some(&exe) {
            continue;
        }
        let (Ok(line), Ok(rollup)) = (fs::read(dir.join("cmdline")), fs::read_to_string(dir.join("smaps_rollup"))) else { continue };
        let line = String::from_utf8_lossy(&line).into_owned();
        let arguments: Vec<&str> = line.trim_end_matches('\0').split('\0').collect();
        if let (Some(role), Some(pss_kib)) = (role(&arguments), pss(&rollup)) {
            found.push(Process { role, pss_kib });
        }
    }
    found.sort_by(|a, b| b.pss_kib.cmp(&a.pss_kib).then_with(|| a.role.cmp(&b.role)));
    Ok(found)
}

/// The process of the cluster in `dir` that runs this sub-command.
pub fn find(dir: &Path, command: &str) -> Option<u32> {
    let pids = fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.into_iter().find(|pid| {
        let line = arguments(*pid);
        line.get(1).is_some_and(|first| first == command) && line.iter().any(|argument| Path::new(argument).starts_with(dir))
    })
}

/// The KiB that the pods of the cluster in `dir` hold beyond their programs: each shim and all below it, without processes
/// named `program`. A shim is known by its arguments, since it has left the file system with its executable.
///
/// # Errors
/// When `/proc` cannot be read, when no pod runs, or when no process is named `program`.
pub fn of_pods(dir: &Path, program: &str) -> Result<u64> {
    let (mut parents, mut members) = (Vec::new(), BTreeSet::new());
    for entry in fs::read_dir("/proc").context("reading /proc failed")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Ok(status) = fs::read_to_string(entry.path().join("status")) else { continue };
        let line = arguments(pid);
        if matches!(line.get(1..4), Some([shim, serve, sandbox]) if shim == "shim" && serve == "serve" && Path::new(sandbox).starts_with(dir)) {
            members.insert(pid);
        }
        parents.push((pid, status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse::<u32>().ok())));
    }
    loop {
        let before = members.len();
        members.extend(
            parents.iter().filter(|(_, parent)| parent.is_some_and(|parent| members.contains(&parent))).map(|(pid, _)| *pid).collect::<Vec<_>>(),
        );
        if members.len() == before {
            break;
        }
    }
    let all = members.len();
    members.retain(|pid| !arguments(*pid).first().is_some_and(|name| is_named(name, program)));
    if all == members.len() {
        bail!("no pod runs {program}");
    }
    members.iter().map(|pid| share(*pid)).sum()
}

/// A process that ends with this value.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a process holds, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Its proportional set size.
    pub all: u64,
    /// As much of that as are pages of its program file.
    pub program: u64,
    /// The most that was ever resident.
    pub peak: u64,
}

impl Running {
    /// Its memory; `program` is the file that it runs.
    pub fn memory(&self, program: &Path) -> Result<Memory> {
        let read = |name: &str| {
            let path = format!("/proc/{}/{name}", self.0.id());
            fs::read_to_string(&path).with_context(|| format!("reading {path} failed"))
        };
        let program = program.canonicalize().unwrap_or_else(|_| program.to_owned());
        let peak = kib(&read("status")?, "VmHWM:").context("the kernel reports no peak of a process")?;
        Ok(Memory { all: share(self.0.id())? * 1024, program: of_file(&read("smaps")?, &program) * 1024, peak: peak * 1024 })
    }

    /// Asks it to end, as Ctrl-C does.
    pub fn interrupt(&self) -> Result<()> {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).context("asking a program to end failed")
    }

    /// Time on processors so far.
    pub fn cpu(&self) -> Result<Duration> {
        cpu(self.0.id())
    }
}

/// A process' time on processors so far.
pub fn cpu(pid: u32) -> Result<Duration> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<&str> = text.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).context("reading a process' time failed");
    // Hundredths of a second, on every machine.
    Ok(Duration::from_millis((ticks(11)? + ticks(12)?) * 10))
}

/// A process of this program with a part to do.
pub struct Helper {
    _running: Running,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Helper {
    pub fn start(args: &[&str]) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?).args(args).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().context("a child has no output")?;
        Ok(Self { _running: Running(child), lines: BufReader::new(output).lines() })
    }

    /// The next line that it says.
    pub fn line(&mut self) -> Result<String> {
        self.lines.next().context("the child ended")?.context("reading from the child failed")
    }
}

/// The share of one process, in KiB.
pub fn share(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let rollup = fs::read_to_string(&path).with_context(|| format!("reading {path} failed"))?;
    // A process that has ended but not been waited for has no memory.
    Ok(pss(&rollup).unwrap_or(0))
}

fn arguments(pid: u32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).trim_end_matches('\0').split('\0').map(str::to_owned).collect()
}

/// Whether a command's first word, with either system's separators, is `program`, with `.exe` or without.
fn is_named(word: &str, program: &str) -> bool {
    let name = word.rsplit(['/', '\\']).next().unwrap_or(word).to_ascii_lowercase();
    name.trim_end_matches(".exe") == program.trim_end_matches(".exe")
}

/// Sub-command and node; `None` for what runs in or for a pod.
fn role(arguments: &[&str]) -> Option<String> {
    let command = *arguments.get(1)?;
    if OF_PODS.contains(&command) {
        return None;
    }
    let value = |flag: &str| arguments.iter().position(|a| *a == flag).and_then(|at| arguments.get(at + 1));
    let node = value("--node").or_else(|| value("--hostname-override"));
    Some(node.map_or_else(|| command.to_owned(), |node| format!("{command} {node}")))
}

fn pss(rollup: &str) -> Option<u64> {
    kib(rollup, "Pss:")
}

fn kib(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// The KiB of the mappings of one file.
fn of_file(smaps: &str, file: &Path) -> u64 {
    let (mut inside, mut sum) = (false, 0);
    for line in smaps.lines() {
        // A mapping begins with its addresses: `55d0-55e0 r-xp 00000000 fe:00 1234   /path`.
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.first().is_some_and(|word| !word.ends_with(':')) {
            inside = words.get(5).is_some_and(|path| Path::new(path) == file);
        } else if inside {
            sum += kib(line, "Pss:").unwrap_or(0);
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_name_command_and_node() {
        assert_eq!(role(&["mullion", "node", "--hostname-override", "win01"]).as_deref(), Some("node win01"));
        assert_eq!(role(&["mullion", "hns-sim", "--node", "win02", "--uplink", "eth0"]).as_deref(), Some("hns-sim win02"));
        assert_eq!(role(&["mullion", "control-plane"]).as_deref(), Some("control-plane"));
        assert_eq!(role(&["mullion", "shim", "--node", "win02"]), None);
        assert_eq!(role(&["win-bridge"]), None);
    }

    #[test]
    fn programs_are_known_by_their_last_part() {
        assert!(is_named(r"C:\windows\system32\CMD.EXE", "cmd.exe") && is_named("cmd", "cmd.exe"));
        assert!(!is_named("services.exe", "cmd.exe"));
    }

    #[test]
    fn only_the_sum_of_shares_is_read() {
        let rollup = "5581 ---p 00000000 [rollup]\nRss:   900 kB\nPss:                 412 kB\nPss_Dirty:  7 kB\n";
        assert_eq!(pss(rollup), Some(412));
        assert_eq!(pss("Rss: 1 kB\n"), None);
    }

    #[test]
    fn mappings_of_the_program_file_are_recognised() {
        let smaps = "5581-5582 r--p 00000000 fe:00 12  /bin/mullion\nRss: 9 kB\nPss:  4 kB\nVmFlags: rd mr\n\
            5582-5583 r-xp 00001000 fe:00 12  /bin/mullion\nPss:  5 kB\n5590-5591 rw-p 00000000 00:00 0\nPss:  100 kB\n\
            7f00-7f01 r-xp 00000000 fe:00 13  /lib/libc.so.6\nPss:  7 kB\n";
        assert_eq!(of_file(smaps, Path::new("/bin/mullion")), 9);
    }

    #[test]
    fn a_running_process_has_memory_and_time() {
        let running = Running(Command::new("sleep").arg("60").spawn().unwrap());
        let memory = running.memory(Path::new("/nowhere")).unwrap();
        assert!(memory.all > 0 && memory.peak > 0 && memory.program == 0, "{memory:?}");
        assert!(running.cpu().unwrap() < Duration::from_secs(5));
    }

    #[test]
    fn this_process_is_found() {
        let exe = std::env::current_exe().unwrap();
        let found = list(&exe).unwrap();
        // The test harness is run with an argument or without; only with one does it have a role.
        if std::env::args().count() > 1 {
            assert!(found.iter().any(|process| process.pss_kib > 100), "{found:?}");
        }
    }
}
