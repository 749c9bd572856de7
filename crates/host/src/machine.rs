//! Size and load of the machine: processors, memory, huge pages, processes (upstream gets them from cAdvisor on Linux and from
//! pkg/kubelet/winstats on Windows).

mod counters;
mod process;

use std::collections::BTreeMap;
use std::io;

pub use counters::{Counters, Traffic, meminfo};
pub use process::Process;

#[cfg(not(windows))]
#[path = "machine/linux.rs"]
mod imp;
#[cfg(windows)]
#[path = "machine/windows.rs"]
mod imp;

/// What the machine has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Logical processors, of all processor groups on Windows.
    pub processors: u32,
    /// Physical memory, in bytes.
    pub memory: u64,
    /// Huge pages: number by size in bytes. Windows has none.
    pub huge_pages: BTreeMap<u64, u64>,
}

/// An amount of something, and what of it is available.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Available {
    pub capacity: u64,
    pub available: u64,
}

/// What is left of the machine now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Memory in bytes, as upstream's signal `memory.available`: on Linux what is neither in use nor held by active file cache; on Windows
    /// the commit limit, page files included, and what of it is not committed.
    pub memory: Available,
    /// Process ids; None where the system has no limit (Windows).
    pub pids: Option<Available>,
}

impl Machine {
    /// The machine that we run on.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn read() -> io::Result<Self> {
        imp::machine()
    }
}

impl Load {
    /// The load of the machine that we run on.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn read() -> io::Result<Self> {
        imp::load()
    }
}
