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

/// What the machine counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Nanoseconds in which processors worked, of all processors together.
    pub cpu_nanos: u64,
    /// Bytes of memory in use that cannot be given back at once.
    pub working_set: u64,
    /// Bytes of memory that are not.
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
