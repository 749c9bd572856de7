//! Hard eviction thresholds, as upstream's `--eviction-hard` writes them.
//!
//! They are kept out of what pods may use, and below `nodefs.available` the node says DiskPressure.

use std::fmt;
use std::str::FromStr;

use kube_rules::Quantity;

const MEMORY: &str = "memory.available";
const NODEFS: &str = "nodefs.available";

/// How much of something has to stay free.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// This many bytes.
    Bytes(u64),
    /// This share of the whole, in percent.
    Percent(f64),
}

impl Threshold {
    /// In bytes, of so much.
    pub fn of(self, capacity: u64) -> u64 {
        match self {
            Threshold::Bytes(bytes) => bytes,
            Threshold::Percent(percent) => (capacity as f64 * percent / 100.0) as u64,
        }
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Threshold::Bytes(bytes) => write!(f, "{}", Quantity::from_bytes(i64::try_from(*bytes).unwrap_or(i64::MAX))),
            Threshold::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// Why a text is no list of eviction thresholds.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum EvictionError {
    /// A part without `<`.
    #[error("invalid eviction threshold {0:?}: write SIGNAL<AMOUNT")]
    NoAmount(String),
    /// A part whose amount is neither a quantity nor a share.
    #[error("invalid amount in {0:?}: write it as 100Mi or 10%")]
    Amount(String),
    /// A signal that the node agent does not watch.
    #[error("unknown eviction signal {0:?}: there are {MEMORY} and {NODEFS}")]
    Signal(String),
}

/// What has to stay free on a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EvictionHard {
    /// `memory.available`
    pub memory: Threshold,
    /// `nodefs.available`: the file system of the agent's directory.
    pub nodefs: Threshold,
}

impl Default for EvictionHard {
    /// As upstream: 100Mi of memory, a tenth of the file system.
    fn default() -> Self {
        Self { memory: Threshold::Bytes(100 << 20), nodefs: Threshold::Percent(10.0) }
    }
}

impl FromStr for EvictionHard {
    type Err = EvictionError;

    /// `memory.available<100Mi,nodefs.available<10%`; what is not named has no threshold, as upstream.
    fn from_str(text: &str) -> Result<Self, EvictionError> {
        let mut all = Self { memory: Threshold::Bytes(0), nodefs: Threshold::Bytes(0) };
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (signal, value) = part.split_once('<').ok_or_else(|| EvictionError::NoAmount(part.to_owned()))?;
            let threshold = threshold(value).ok_or_else(|| EvictionError::Amount(part.to_owned()))?;
            match signal {
                MEMORY => all.memory = threshold,
                NODEFS => all.nodefs = threshold,
                _ => return Err(EvictionError::Signal(signal.to_owned())),
            }
        }
        Ok(all)
    }
}

fn threshold(text: &str) -> Option<Threshold> {
    match text.strip_suffix('%') {
        Some(percent) => percent.parse().ok().filter(|p| (0.0..=100.0).contains(p)).map(Threshold::Percent),
        None => Quantity::parse(text).ok().and_then(|q| q.value().try_into().ok()).map(Threshold::Bytes),
    }
}

impl fmt::Display for EvictionHard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MEMORY}<{},{NODEFS}<{}", self.memory, self.nodefs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_read_as_upstream_writes_them() {
        let default = EvictionHard::default();
        assert_eq!(default.to_string(), "memory.available<100Mi,nodefs.available<10%");
        assert_eq!(default.to_string().parse(), Ok(default));
        let off: EvictionHard = "nodefs.available<0%".parse().unwrap();
        assert_eq!((off.nodefs.of(1 << 40), off.memory.of(1 << 40)), (0, 0));
        assert_eq!("nodefs.available<12.5%".parse::<EvictionHard>().unwrap().nodefs.of(800), 100);
        for wrong in ["nodefs.available", "nodefs.available<120%", "nodefs.available<x", "disk<1Gi", "memory.available<-1"] {
            assert!(wrong.parse::<EvictionHard>().is_err(), "{wrong} was accepted");
        }
    }
}
