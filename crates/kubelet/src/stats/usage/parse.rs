//! The kernel's files, read.

use host::Traffic;

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

impl From<Traffic> for Interface {
    fn from(own: Traffic) -> Self {
        Interface { name: own.name, received: own.received.map(Some), sent: own.sent.map(Some) }
    }
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
    let is_shown = |own: &Traffic| !HIDDEN.iter().any(|prefix| own.name.starts_with(prefix));
    Traffic::parse(text).into_iter().filter(is_shown).map(Interface::from).take(MOST).collect()
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
    fn groups_are_named_for_containers() {
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
    fn the_group_of_a_process_is_read() {
        let text = "9:name=systemd:/a\n4:cpu,memory:/b:c\n0::/d\n";
        assert_eq!((own_group(text, false).as_deref(), own_group(text, true).as_deref()), (Some("/b:c"), Some("/d")));
        assert_eq!(own_group("x\n", true), None);
    }

    #[test]
    fn texts_of_another_form_are_left_out() {
        let zeros = " 0".repeat(16);
        let dev = format!("a\nb\n lo:{zeros}\n veth1:{zeros}\n eth0:{zeros}\n");
        assert_eq!(interfaces(&dev), [Interface { name: "eth0".into(), received: [Some(0); 4], sent: [Some(0); 4] }]);
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
