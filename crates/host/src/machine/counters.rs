//! What the machine counts since its start: processor time, memory and networks, each from cumulative counts of the system. Upstream samples
//! rates of performance counters on Windows, which makes its sums a tenth of the truth; these are sums already.

use std::io;

/// What went through an interface: bytes, packets, errors and packets that were dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub name: String,
    pub received: [u64; 4],
    pub sent: [u64; 4],
}

impl Traffic {
    /// The interfaces in a text of the form of `/proc/net/dev`.
    pub fn parse(text: &str) -> Vec<Self> {
        let of = |line: &str| {
            let (name, numbers) = line.split_once(':')?;
            let numbers: Vec<u64> = numbers.split_whitespace().map(|word| word.parse().ok()).collect::<Option<_>>()?;
            let four = |at: usize| numbers.get(at..at + 4)?.try_into().ok();
            Some(Traffic { name: name.trim().to_owned(), received: four(0)?, sent: four(8)? })
        };
        text.lines().skip(2).filter_map(of).collect()
    }
}

/// A member of a text of the form of `/proc/meminfo`, in bytes.
pub fn meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What the machine counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Nanoseconds in which processors worked, of all processors together.
    pub cpu_nanos: u64,
    /// Bytes of memory in use that cannot be given back at once.
    pub working_set: u64,
    /// Bytes of memory available.
    pub available: u64,
    pub interfaces: Vec<Traffic>,
    /// When the machine started, in seconds since 1970.
    pub started: u64,
}

impl Counters {
    /// Those of the machine that we run on.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn read() -> io::Result<Self> {
        super::imp::counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_texts_are_parsed() {
        let dev = "a\nb\neth0: 9 8 7 6 0 0 0 0 5 4 3 2 0 0 0 0\n bad: 1\n  eth1: x 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n";
        assert_eq!(Traffic::parse(dev), [Traffic { name: "eth0".into(), received: [9, 8, 7, 6], sent: [5, 4, 3, 2] }]);
        assert_eq!((meminfo("SwapTotal:  4 kB\nSwapFree: x kB\n", "SwapTotal"), meminfo("SwapFree: x kB\n", "SwapFree")), (Some(4096), None));
    }
}
