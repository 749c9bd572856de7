//! From the system's own counters, without performance counters of a language.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io;

use windows_sys::Win32::Foundation::FILETIME;
use windows_sys::Win32::NetworkManagement::IpHelper::{FreeMibTable, GetIfTable2, IF_TYPE_SOFTWARE_LOOPBACK, MIB_IF_ROW2, MIB_IF_TABLE2};
use windows_sys::Win32::NetworkManagement::Ndis::IfOperStatusUp;
use windows_sys::Win32::System::ProcessStatus::{GetPerformanceInfo, GetProcessMemoryInfo, PERFORMANCE_INFORMATION, PROCESS_MEMORY_COUNTERS};
use windows_sys::Win32::System::SystemInformation::GetTickCount64;
use windows_sys::Win32::System::Threading::{
    ALL_PROCESSOR_GROUPS, GetActiveProcessorCount, GetCurrentProcess, GetProcessHandleCount, GetProcessTimes, GetSystemTimes,
};

use super::{Available, Counters, Load, Machine, Process, Traffic};

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

pub(super) fn counters() -> io::Result<Counters> {
    let information = information()?;
    let used = information.PhysicalTotal.saturating_sub(information.PhysicalAvailable);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.as_secs());
    // SAFETY: the call takes no pointers.
    let up = unsafe { GetTickCount64() } / 1000;
    Ok(Counters {
        cpu_nanos: worked()?,
        working_set: bytes(&information, used),
        available: bytes(&information, information.PhysicalAvailable),
        interfaces: traffic()?,
        started: now.saturating_sub(up),
    })
}

pub(super) fn process() -> io::Result<Process> {
    let [mut made, mut ended, mut kernel, mut user] = [FILETIME::default(); 4];
    let size = size_of::<PROCESS_MEMORY_COUNTERS>() as u32;
    let mut memory = PROCESS_MEMORY_COUNTERS { cb: size, ..Default::default() };
    let mut handles = 0;
    // SAFETY: the handle of the process itself needs no closing, and all places are valid.
    let ok = unsafe {
        let process = GetCurrentProcess();
        GetProcessTimes(process, &mut made, &mut ended, &mut kernel, &mut user) != 0
            && GetProcessMemoryInfo(process, &mut memory, size) != 0
            && GetProcessHandleCount(process, &mut handles) != 0
    };
    if !ok {
        return Err(io::Error::last_os_error());
    }
    // Units of 100 ns since 1601.
    const UNIX: u64 = 116_444_736_000_000_000;
    Ok(Process {
        cpu_nanos: units(kernel).saturating_add(units(user)).saturating_mul(100),
        resident: memory.WorkingSetSize as u64,
        virtual_bytes: memory.PagefileUsage as u64,
        started: units(made).saturating_sub(UNIX) as f64 / 1e7,
        open: handles.into(),
        most_open: None,
    })
}

fn units(time: FILETIME) -> u64 {
    u64::from(time.dwHighDateTime) << 32 | u64::from(time.dwLowDateTime)
}

/// Nanoseconds in which processors worked.
fn worked() -> io::Result<u64> {
    let (mut idle, mut kernel, mut user) = (FILETIME::default(), FILETIME::default(), FILETIME::default());
    // SAFETY: three valid places.
    let ok = unsafe { GetSystemTimes(&mut idle, &mut kernel, &mut user) };
    if ok == 0 {
        return Err(io::Error::last_os_error());
    }
    // Time of the kernel has the idle time in it; units are 100 ns.
    Ok(units(kernel).saturating_add(units(user)).saturating_sub(units(idle)).saturating_mul(100))
}

/// Interfaces that are up, but for the loopback and for filters, which count what their interface counts.
fn traffic() -> io::Result<Vec<Traffic>> {
    let mut table: *mut MIB_IF_TABLE2 = std::ptr::null_mut();
    // SAFETY: `table` is a valid place for the pointer that the call returns.
    let code = unsafe { GetIfTable2(&mut table) };
    if code != 0 {
        return Err(io::Error::from_raw_os_error(code as i32));
    }
    // SAFETY: on success the table holds NumEntries rows, valid until FreeMibTable.
    let rows = unsafe { std::slice::from_raw_parts((*table).Table.as_ptr(), (*table).NumEntries as usize) };
    const FILTER: u8 = 2;
    let is_shown = |row: &&MIB_IF_ROW2| {
        row.OperStatus == IfOperStatusUp && row.Type != IF_TYPE_SOFTWARE_LOOPBACK && row.InterfaceAndOperStatusFlags._bitfield & FILTER == 0
    };
    let of = |row: &MIB_IF_ROW2| {
        let length = row.Alias.iter().position(|unit| *unit == 0).unwrap_or(row.Alias.len());
        Traffic {
            name: String::from_utf16_lossy(&row.Alias[..length]),
            received: [row.InOctets, row.InUcastPkts.saturating_add(row.InNUcastPkts), row.InErrors, row.InDiscards],
            sent: [row.OutOctets, row.OutUcastPkts.saturating_add(row.OutNUcastPkts), row.OutErrors, row.OutDiscards],
        }
    };
    let traffic = rows.iter().filter(is_shown).map(of).collect();
    // SAFETY: the table came from GetIfTable2 and `rows` is not used again.
    unsafe { FreeMibTable(table.cast()) };
    Ok(traffic)
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
