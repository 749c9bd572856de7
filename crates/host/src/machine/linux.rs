//! From /proc and /sys.

use std::collections::BTreeMap;
use std::{fs, io};

use super::{Available, Counters, Load, Machine, Process, Traffic, meminfo};

/// The kernel's bound on process ids where it says none.
const PID_MAX: u64 = 32_768;

pub(super) fn machine() -> io::Result<Machine> {
    let processors = fs::read_to_string("/sys/devices/system/cpu/online")?;
    let memory = fs::read_to_string("/proc/meminfo")?;
    Ok(Machine {
        processors: count(processors.trim()).ok_or_else(|| wrong("/sys/devices/system/cpu/online"))?,
        memory: meminfo(&memory, "MemTotal").ok_or_else(|| wrong("/proc/meminfo"))?,
        huge_pages: huge_pages(),
    })
}

pub(super) fn load() -> io::Result<Load> {
    let memory = available(&fs::read_to_string("/proc/meminfo")?).ok_or_else(|| wrong("/proc/meminfo"))?;
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let most = [number("/proc/sys/kernel/pid_max"), number("/proc/sys/kernel/threads-max")];
    let capacity = most.into_iter().flatten().min().unwrap_or(PID_MAX);
    let running = running(&fs::read_to_string("/proc/loadavg")?).ok_or_else(|| wrong("/proc/loadavg"))?;
    Ok(Load { memory, pids: Some(Available { capacity, available: capacity.saturating_sub(running) }) })
}

pub(super) fn counters() -> io::Result<Counters> {
    let stat = fs::read_to_string("/proc/stat")?;
    let memory = available(&fs::read_to_string("/proc/meminfo")?).ok_or_else(|| wrong("/proc/meminfo"))?;
    Ok(Counters {
        cpu_nanos: worked(&stat).ok_or_else(|| wrong("/proc/stat"))?,
        working_set: memory.capacity.saturating_sub(memory.available),
        available: memory.available,
        interfaces: traffic(&fs::read_to_string("/proc/net/dev")?),
        started: stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok()).ok_or_else(|| wrong("/proc/stat"))?,
    })
}

pub(super) fn process() -> io::Result<Process> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let machine = fs::read_to_string("/proc/stat")?;
    let status = fs::read_to_string("/proc/self/status")?;
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let (ticks, since_boot) = times(&stat).ok_or_else(|| wrong("/proc/self/stat"))?;
    let boot: u64 = machine.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok()).ok_or_else(|| wrong("/proc/stat"))?;
    let most = limits.lines().find_map(|line| line.strip_prefix("Max open files")?.split_whitespace().next()?.parse().ok());
    Ok(Process {
        cpu_nanos: ticks.saturating_mul(TICK),
        resident: meminfo(&status, "VmRSS").unwrap_or(0),
        virtual_bytes: meminfo(&status, "VmSize").unwrap_or(0),
        started: boot as f64 + since_boot as f64 / 100.0,
        // The directory that is read is one of them.
        open: (fs::read_dir("/proc/self/fd")?.count() as u64).saturating_sub(1),
        most_open: most,
    })
}

/// Ticks of processor time, user and system, and ticks from the machine's start to the process's, in /proc/PID/stat. The name of the program
/// may hold anything.
fn times(stat: &str) -> Option<(u64, u64)> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some((number(11)?.saturating_add(number(12)?), number(19)?))
}

/// Nanoseconds of a tick of the clock that user space sees.
const TICK: u64 = 10_000_000;

/// Nanoseconds of the first line of /proc/stat but for those in which processors had nothing to do: ticks of user, nice, system, idle,
/// iowait, irq, softirq and steal.
fn worked(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().take(8).map(|word| word.parse().ok()).collect::<Option<_>>()?;
    let idle = ticks.get(3..5)?.iter().fold(0, |sum: u64, ticks| sum.saturating_add(*ticks));
    Some(ticks.iter().fold(0, |sum: u64, ticks| sum.saturating_add(*ticks)).saturating_sub(idle).saturating_mul(TICK))
}

/// Interfaces of /proc/net/dev but for the loopback.
fn traffic(text: &str) -> Vec<Traffic> {
    Traffic::parse(text).into_iter().filter(|own| own.name != "lo").collect()
}

fn wrong(path: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{path} has another form than expected"))
}

/// Members of a list such as `0-3,8`.
fn count(list: &str) -> Option<u32> {
    let of = |part: &str| -> Option<u32> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        last.parse::<u32>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)
    };
    list.split(',').map(of).try_fold(0u32, |sum, n| sum.checked_add(n?))
}

/// What is free, and what file cache would give back at once: the complement of cAdvisor's working set of the root.
fn available(text: &str) -> Option<Available> {
    let capacity = meminfo(text, "MemTotal")?;
    let available = meminfo(text, "MemFree")?.saturating_add(meminfo(text, "Inactive(file)")?);
    Some(Available { capacity, available: available.min(capacity) })
}

/// Processes and threads: the number after the slash in /proc/loadavg.
fn running(loadavg: &str) -> Option<u64> {
    loadavg.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
}

fn huge_pages() -> BTreeMap<u64, u64> {
    let Ok(sizes) = fs::read_dir("/sys/kernel/mm/hugepages") else { return BTreeMap::new() };
    let of = |entry: io::Result<fs::DirEntry>| {
        let entry = entry.ok()?;
        let size = entry.file_name().to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<u64>().ok()?;
        let number = fs::read_to_string(entry.path().join("nr_hugepages")).ok()?.trim().parse().ok()?;
        Some((size.checked_mul(1024)?, number))
    };
    sizes.filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_processors_memory_and_process_ids() {
        let machine = machine().unwrap();
        assert!(machine.processors >= 1 && machine.memory > 64 << 20, "{machine:?}");
        let load = load().unwrap();
        assert_eq!(load.memory.capacity, machine.memory);
        assert!(load.memory.available > 0 && load.memory.available < load.memory.capacity, "{load:?}");
        let pids = load.pids.unwrap();
        assert!(pids.available > 0 && pids.available < pids.capacity, "{load:?}");
    }

    #[test]
    fn this_machine_counts_since_its_start() {
        let (before, now) = (counters().unwrap(), std::time::SystemTime::now());
        let now = now.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        assert!(before.started > 1_600_000_000 && before.started <= now + 1, "{before:?}");
        assert!(before.cpu_nanos > 0 && before.working_set > 0 && before.available > 0, "{before:?}");
        assert_eq!(worked("cpu  10 1 5 1000 7 2 3 1 99 99\ncpu0 1 1 1 1\n"), Some(220_000_000));
        assert_eq!(worked("cpu  10 x 5 1000 7 2 3 1\n"), None);
        let dev = "a\nb\n  lo: 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1\neth0: 9 8 7 6 0 0 0 0 5 4 3 2 0 0 0 0\n bad: 1\n";
        assert_eq!(traffic(dev), [Traffic { name: "eth0".into(), received: [9, 8, 7, 6], sent: [5, 4, 3, 2] }]);
    }

    #[test]
    fn this_process_is_measured() {
        let process = process().unwrap();
        assert!(process.resident > 1 << 16 && process.virtual_bytes > process.resident && process.open > 2, "{process:?}");
        assert!(process.started > 1.6e9 && process.most_open > Some(2), "{process:?}");
        let stat = "12 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 30 12 0 0 20 0 1 0 777 0 0\n";
        assert_eq!(times(stat), Some((42, 777)));
        assert_eq!(times("12 (a) S 1"), None);
    }

    #[test]
    fn lists_of_processors_are_counted() {
        for (list, want) in [("0", Some(1)), ("0-3", Some(4)), ("0-3,8,10-11", Some(7)), ("", None), ("3-0", None), ("x", None)] {
            assert_eq!(count(list), want, "{list}");
        }
    }

    #[test]
    fn memory_and_processes_are_read_from_the_kernels_texts() {
        let text = "MemTotal:        8000 kB\nMemFree:         1000 kB\nActive(file):     500 kB\nInactive(file):   250 kB\n";
        assert_eq!(available(text), Some(Available { capacity: 8000 << 10, available: 1250 << 10 }));
        assert_eq!(available("MemTotal: 8000 kB\n"), None);
        assert_eq!(running("0.20 0.18 0.12 1/345 11206\n"), Some(345));
        assert_eq!(running("0.20"), None);
    }
}
