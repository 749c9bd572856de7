//! From the system's own counters, without performance counters of a language.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io;

use windows_sys::Win32::System::ProcessStatus::{GetPerformanceInfo, PERFORMANCE_INFORMATION};
use windows_sys::Win32::System::Threading::{ALL_PROCESSOR_GROUPS, GetActiveProcessorCount};

use super::{Available, Load, Machine};

pub(super) fn machine() -> io::Result<Machine> {
    let information = information()?;
    // SAFETY: the call takes no pointers.
    let processors = unsafe { GetActiveProcessorCount(ALL_PROCESSOR_GROUPS) };
    if processors == 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Machine { processors, memory: bytes(&information, information.PhysicalTotal), huge_pages: BTreeMap::new() })
}

pub(super) fn load() -> io::Result<Load> {
    let information = information()?;
    let free = information.CommitLimit.saturating_sub(information.CommitTotal);
    let memory = Available { capacity: bytes(&information, information.CommitLimit), available: bytes(&information, free) };
    Ok(Load { memory, pids: None })
}

/// Pages as bytes.
fn bytes(information: &PERFORMANCE_INFORMATION, pages: usize) -> u64 {
    (pages as u64).saturating_mul(information.PageSize as u64)
}

fn information() -> io::Result<PERFORMANCE_INFORMATION> {
    let size = size_of::<PERFORMANCE_INFORMATION>() as u32;
    let mut information = PERFORMANCE_INFORMATION { cb: size, ..Default::default() };
    // SAFETY: the place is valid and has the size that is announced.
    let ok = unsafe { GetPerformanceInfo(&mut information, size) };
    if ok == 0 { Err(io::Error::last_os_error()) } else { Ok(information) }
}
