//! The kernel's files, read.

/// How the quota of processor time struck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Throttling {
    pub periods: u64,
    pub throttled: u64,
    pub nanos: u64,
    pub bursts: u64,
    pub burst_nanos: u64,
}

/// What went to and came from a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Io {
    /// Major and minor number.
    pub device: (u32, u32),
    pub read_bytes: u64,
    pub write_bytes: u64,
    pub reads: u64,
    pub writes: u64,
}

/// Microseconds in which some processes waited, or all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pressure {
    pub some: u64,
    pub full: u64,
}

/// Bytes, packets, errors and packets dropped; None where a runtime does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interface {
    pub name: String,
    pub received: [Option<u64>; 4],
    pub sent: [Option<u64>; 4],
}

/// Nanoseconds of one tick of the clock that user space sees.
const TICK: u64 = 10_000_000;
/// Interfaces that cAdvisor leaves out.
const HIDDEN: [&str; 4] = ["lo", "veth", "docker", "nerdctl"];
/// Most interfaces and devices that are read of one file.
const MOST: usize = 256;

/// A file that is one number; `max` is the largest.
pub(super) fn number(text: &str) -> Option<u64> {
    match text.trim() {
        "max" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

/// The number after a name at the beginning of a line.
pub(super) fn field(text: &str, name: &str) -> Option<u64> {
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix([' ', '\t'])?.trim().parse().ok();
    text.lines().find_map(value)
}

/// cpu.stat of version 2.
pub(super) fn cpu(stat: &str) -> Option<super::Cpu> {
    let of = |name: &str| field(stat, name).map(|micros| micros.saturating_mul(1000));
    Some(super::Cpu { total: of("usage_usec")?, user: of("user_usec"), system: of("system_usec") })
}

/// cpuacct.stat of version 1: user and system, in nanoseconds.
pub(super) fn ticks(stat: &str) -> (Option<u64>, Option<u64>) {
    let of = |name: &str| field(stat, name).map(|ticks| ticks.saturating_mul(TICK));
    (of("user"), of("system"))
}

/// cpu.stat of both versions.
pub(super) fn throttling(stat: &str) -> Throttling {
    let of = |name: &str| field(stat, name).unwrap_or(0);
    let nanos = |first: &str, second: &str| field(stat, first).or_else(|| field(stat, second).map(|micros| micros.saturating_mul(1000))).unwrap_or(0);
    Throttling {
        periods: of("nr_periods"),
        throttled: of("nr_throttled"),
        nanos: nanos("throttled_time", "throttled_usec"),
        bursts: of("nr_bursts"),
        burst_nanos: nanos("burst_time", "burst_usec"),
    }
}

/// cpu.max: quota and period in microseconds.
pub(super) fn quota(text: &str) -> (Option<u64>, u64) {
    let (quota, period) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
    (quota.parse().ok(), period.parse().unwrap_or(0))
}

/// The shares of version 1 that a weight stands for, as cAdvisor converts it.
pub(super) fn shares(weight: u64) -> u64 {
    if (1..=10_000).contains(&weight) { 2 + (weight - 1) * 262_142 / 9999 } else { 0 }
}

/// A file of pressure; None where the kernel measures none.
pub(super) fn pressure(text: &str) -> Option<Pressure> {
    let total = |kind: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '))?;
        line.split_whitespace().find_map(|word| word.strip_prefix("total=")?.parse().ok())
    };
    Some(Pressure { some: total("some")?, full: total("full").unwrap_or(0) })
}

fn device(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The files of version 1 for bytes and for operations: `8:0 Read 4096`.
pub(super) fn io_of_first(bytes: &str, counts: &str) -> Vec<Io> {
    let mut all: Vec<Io> = Vec::new();
    for (text, is_bytes) in [(bytes, true), (counts, false)] {
        for line in text.lines().take(MOST * 8) {
            let mut words = line.split_whitespace();
            let (Some(device), Some(kind), Some(value)) =
                (words.next().and_then(device), words.next(), words.next().and_then(|word| word.parse().ok()))
            else {
                continue;
            };
            let at = all.iter().position(|io| io.device == device).unwrap_or_else(|| {
                all.push(Io { device, ..Io::default() });
                all.len() - 1
            });
            let io = &mut all[at];
            match (kind, is_bytes) {
                ("Read", true) => io.read_bytes = value,
                ("Write", true) => io.write_bytes = value,
                ("Read", false) => io.reads = value,
                ("Write", false) => io.writes = value,
                _ => {}
            }
        }
    }
    all
}

/// io.stat: `8:0 rbytes=1 wbytes=2 rios=3 wios=4`.
pub(super) fn io_of_second(text: &str) -> Vec<Io> {
    let of = |line: &str| {
        let mut words = line.split_whitespace();
        let device = device(words.next()?)?;
        let mut io = Io { device, ..Io::default() };
        for (name, value) in words.filter_map(|word| word.split_once('=')) {
            let Ok(value) = value.parse() else { continue };
            match name {
                "rbytes" => io.read_bytes = value,
                "wbytes" => io.write_bytes = value,
                "rios" => io.reads = value,
                "wios" => io.writes = value,
                _ => {}
            }
        }
        Some(io)
    };
    text.lines().filter_map(of).take(MOST).collect()
}

/// /proc/PID/net/dev, without the interfaces that cAdvisor leaves out.
pub(crate) fn interfaces(text: &str) -> Vec<Interface> {
    let of = |line: &str| {
        let (name, rest) = line.split_once(':')?;
        let name = name.trim();
        let numbers: Vec<u64> = rest.split_whitespace().map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let four = |at: usize| Some(<[u64; 4]>::try_from(numbers.get(at..at + 4)?).ok()?.map(Some));
        let is_hidden = HIDDEN.iter().any(|prefix| name.starts_with(prefix));
        (!is_hidden).then_some(())?;
        Some(Interface { name: name.to_owned(), received: four(0)?, sent: four(8)? })
    };
    text.lines().skip(2).filter_map(of).take(MOST).collect()
}

/// A line of /proc/meminfo, in bytes.
pub(super) fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The group in /proc/PID/cgroup: the only one of version 2, or that of memory.
pub(super) fn own_group(text: &str, unified: bool) -> Option<String> {
    let of = |line: &str| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let is_it = if unified { controllers.is_empty() } else { controllers.split(',').any(|controller| controller == "memory") };
        is_it.then(|| path.to_owned())
    };
    text.lines().find_map(of)
}

/// The UID of the pod that a group is named for: `podUID`, or `kubepods-burstable-podUID.slice` with underscores.
pub(super) fn pod(name: &str) -> Option<String> {
    match name.strip_suffix(".slice") {
        Some(slice) => Some(slice.strip_prefix("kubepods")?.rsplit_once("-pod")?.1.replace('_', "-")),
        None => Some(name.strip_prefix("pod")?.to_owned()),
    }
}

/// Whether a group is of a class of pods.
pub(super) fn is_class(name: &str) -> bool {
    matches!(name, "besteffort" | "burstable" | "kubepods-besteffort.slice" | "kubepods-burstable.slice")
}

/// The id of the container that a group is named for: `ID`, or `cri-containerd-ID.scope`. CRI-O's own helper processes are none.
pub(super) fn container(name: &str) -> Option<&str> {
    match name.strip_suffix(".scope") {
        Some(scope) if scope.starts_with("crio-conmon-") => None,
        Some(scope) => scope.rsplit_once('-').map(|(_, id)| id),
        None => (!name.ends_with(".slice") && !name.starts_with("crio-conmon-")).then(|| name.strip_prefix("crio-").unwrap_or(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_both_drivers_tell_whose_a_group_is() {
        for (name, owner) in [
            ("pod123-4", Some("123-4")),
            ("kubepods-pod123_4.slice", Some("123-4")),
            ("kubepods-besteffort-pod123_4.slice", Some("123-4")),
            ("kubepods-besteffort.slice", None),
            ("besteffort", None),
            ("system.slice", None),
        ] {
            assert_eq!(pod(name).as_deref(), owner, "{name}");
        }
        for (name, id) in [
            ("0abc", Some("0abc")),
            ("cri-containerd-0abc.scope", Some("0abc")),
            ("crio-0abc.scope", Some("0abc")),
            ("crio-0abc", Some("0abc")),
            ("crio-conmon-0abc.scope", None),
            ("nested.slice", None),
        ] {
            assert_eq!(container(name), id, "{name}");
        }
    }

    #[test]
    fn processes_and_swap_are_read() {
        let text = "9:name=systemd:/a\n4:cpu,memory:/b:c\n0::/d\n";
        assert_eq!((own_group(text, false).as_deref(), own_group(text, true).as_deref()), (Some("/b:c"), Some("/d")));
        assert_eq!(own_group("x\n", true), None);
        assert_eq!((kibibytes("SwapTotal:  4 kB\nSwapFree: x kB\n", "SwapTotal"), kibibytes("SwapFree: x kB\n", "SwapFree")), (Some(4096), None));
    }

    #[test]
    fn texts_of_another_form_are_left_out() {
        assert_eq!(interfaces("a\nb\n  eth0: 1 2\n bad\n eth1: x 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n"), []);
        assert_eq!(
            io_of_second("8:0\nx rbytes=1\n8:1 rbytes=x wbytes=2\n"),
            [Io { device: (8, 0), ..Io::default() }, Io { device: (8, 1), write_bytes: 2, ..Io::default() }]
        );
        assert_eq!((pressure(""), quota("max 100000\n"), quota("")), (None, (None, 100_000), (None, 0)));
        assert_eq!((number("max\n"), number("7\n"), number("-1\n")), (Some(u64::MAX), Some(7), None));
        assert_eq!((field("ab 1\na 2\n", "a"), field("a2", "a")), (Some(2), None));
        assert_eq!((shares(1), shares(10_000), shares(0)), (2, 262_144, 0));
    }
}
