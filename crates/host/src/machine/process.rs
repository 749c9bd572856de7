//! What this process takes, as Prometheus' libraries report it.

use std::io;

/// What this process takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Process {
    /// Nanoseconds of processor time.
    pub cpu_nanos: u64,
    /// Bytes in memory.
    pub resident: u64,
    /// Bytes of addresses.
    pub virtual_bytes: u64,
    /// When it started, in seconds since 1970.
    pub started: f64,
    /// Descriptors, or handles on Windows.
    pub open: u64,
    /// Most that it may have open; None for no limit.
    pub most_open: Option<u64>,
}

impl Process {
    /// This process.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn read() -> io::Result<Self> {
        super::imp::process()
    }
}
