//! What the agent asks of its own Windows machine beside facts: drives, resolver, priority.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::io;
use std::ptr;

use windows_sys::Win32::Foundation::{CloseHandle, ERROR_BUFFER_OVERFLOW, ERROR_NO_DATA, ERROR_SUCCESS, HANDLE};
use windows_sys::Win32::NetworkManagement::IpHelper::{FIXED_INFO_W2KSP1, GetNetworkParams, IP_ADDR_STRING};
use windows_sys::Win32::Security::{GetTokenInformation, TOKEN_ELEVATION, TOKEN_QUERY, TokenElevation};
use windows_sys::Win32::Storage::FileSystem::{GetDriveTypeW, GetLogicalDrives};
use windows_sys::Win32::System::JobObjects::{
    AssignProcessToJobObject, CreateJobObjectW, JOB_OBJECT_LIMIT_PRIORITY_CLASS, JOBOBJECT_BASIC_LIMIT_INFORMATION, JobObjectBasicLimitInformation,
    SetInformationJobObject,
};
use windows_sys::Win32::System::Registry::{HKEY, HKEY_LOCAL_MACHINE, KEY_READ, RegCloseKey, RegEnumKeyExW, RegOpenKeyExW};
use windows_sys::Win32::System::Threading::{
    ABOVE_NORMAL_PRIORITY_CLASS, BELOW_NORMAL_PRIORITY_CLASS, GetCurrentProcess, HIGH_PRIORITY_CLASS, IDLE_PRIORITY_CLASS, NORMAL_PRIORITY_CLASS,
    OpenProcessToken, REALTIME_PRIORITY_CLASS, SetPriorityClass,
};

use crate::facts::registry_text;

/// `DRIVE_FIXED`
const FIXED: u32 = 3;
/// Adapters that are looked at.
const ADAPTERS: u32 = 1024;
const PARAMETERS: &str = r"SYSTEM\CurrentControlSet\Services\Tcpip\Parameters";

fn wide(text: &str) -> Vec<u16> {
    text.encode_utf16().chain([0]).collect()
}

/// Whether this process has the rights of an administrator in full: user account control gives programs of one fewer.
///
/// # Errors
/// When the system does not say.
pub fn is_elevated() -> io::Result<bool> {
    let mut token: HANDLE = ptr::null_mut();
    // SAFETY: the handle of the process needs no closing, and the token's is written to a local.
    if unsafe { OpenProcessToken(GetCurrentProcess(), TOKEN_QUERY, &mut token) } == 0 {
        return Err(io::Error::last_os_error());
    }
    let mut elevation = TOKEN_ELEVATION { TokenIsElevated: 0 };
    let (size, mut written) = (size_of::<TOKEN_ELEVATION>() as u32, 0);
    // SAFETY: the buffer is as long as it is said to be, and the token is open.
    let done = unsafe { GetTokenInformation(token, TokenElevation, ptr::from_mut(&mut elevation).cast(), size, &mut written) };
    let outcome = if done == 0 { Err(io::Error::last_os_error()) } else { Ok(elevation.TokenIsElevated != 0) };
    // SAFETY: the token is open, and used no more.
    unsafe { CloseHandle(token) };
    outcome
}

/// The letters of the machine's fixed drives that can be opened; C in any case.
pub fn fixed_drives() -> Vec<char> {
    // SAFETY: the call takes no pointers.
    let present = unsafe { GetLogicalDrives() };
    let is_fixed = |letter: char| {
        let root = format!(r"{letter}:\");
        // SAFETY: the name ends with NUL.
        let kind = unsafe { GetDriveTypeW(wide(&root).as_ptr()) };
        kind == FIXED && std::fs::metadata(root).is_ok()
    };
    let letters = ('A'..='Z').enumerate().filter(|(bit, letter)| *letter == 'C' || (present & (1 << bit) != 0 && is_fixed(*letter)));
    letters.map(|(_, letter)| letter).collect()
}

/// DNS servers and search domains of the machine (upstream pkg/kubelet/network/dns/dns_windows.go).
///
/// # Errors
/// When the system does not say.
pub fn resolver() -> io::Result<(Vec<String>, Vec<String>)> {
    let mut searches = Vec::new();
    let keys = std::iter::once(PARAMETERS.to_owned()).chain(adapters().into_iter().map(|name| format!(r"{PARAMETERS}\Interfaces\{name}")));
    let mut known = BTreeSet::new();
    for list in keys.filter_map(|key| registry_text(&key, "SearchList")) {
        let names = list.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
        searches.extend(names.filter(|name| known.insert(name.clone())));
    }
    Ok((servers()?, searches))
}

/// The keys of the adapters' settings.
fn adapters() -> Vec<String> {
    let mut names = Vec::new();
    let mut key: HKEY = ptr::null_mut();
    // SAFETY: names end with NUL; the buffer has the length that is told; the key is closed once.
    unsafe {
        if RegOpenKeyExW(HKEY_LOCAL_MACHINE, wide(&format!(r"{PARAMETERS}\Interfaces")).as_ptr(), 0, KEY_READ, &raw mut key) != ERROR_SUCCESS {
            return names;
        }
        for index in 0..ADAPTERS {
            let mut name = [0_u16; 256];
            let mut length = 256;
            let none = ptr::null_mut();
            let code = RegEnumKeyExW(key, index, name.as_mut_ptr(), &raw mut length, ptr::null(), none, ptr::null_mut(), ptr::null_mut());
            if code != ERROR_SUCCESS {
                break;
            }
            names.push(String::from_utf16_lossy(&name[..length as usize]));
        }
        RegCloseKey(key);
    }
    names
}

fn servers() -> io::Result<Vec<String>> {
    let mut size = 0;
    // SAFETY: without a buffer the call tells the size that it needs.
    match unsafe { GetNetworkParams(ptr::null_mut(), &raw mut size) } {
        ERROR_BUFFER_OVERFLOW => {}
        ERROR_SUCCESS | ERROR_NO_DATA => return Ok(Vec::new()),
        code => return Err(io::Error::from_raw_os_error(code as i32)),
    }
    let mut buffer = vec![0_u64; (size as usize).max(size_of::<FIXED_INFO_W2KSP1>()).div_ceil(8)];
    let info = buffer.as_mut_ptr().cast::<FIXED_INFO_W2KSP1>();
    let mut servers = Vec::new();
    // SAFETY: the buffer has at least the size that is told and is aligned; the list that is read lies in it, with texts that end with NUL.
    unsafe {
        match GetNetworkParams(info, &raw mut size) {
            ERROR_SUCCESS => {}
            code => return Err(io::Error::from_raw_os_error(code as i32)),
        }
        let mut at: *const IP_ADDR_STRING = &raw const (*info).DnsServerList;
        while !at.is_null() {
            let text = CStr::from_ptr((&raw const (*at).IpAddress.String).cast()).to_string_lossy().into_owned();
            servers.extend(Some(text).filter(|text| !text.is_empty()));
            at = (*at).Next;
        }
    }
    Ok(servers)
}

/// Gives this process, and those that it starts, a priority (upstream cmd/kubelet/app/init_windows.go: by a job object).
///
/// # Errors
/// An unknown class, and what the system says.
pub fn set_priority_class(name: &str) -> io::Result<()> {
    let class = match name {
        "IDLE_PRIORITY_CLASS" => IDLE_PRIORITY_CLASS,
        "BELOW_NORMAL_PRIORITY_CLASS" => BELOW_NORMAL_PRIORITY_CLASS,
        "NORMAL_PRIORITY_CLASS" => NORMAL_PRIORITY_CLASS,
        "ABOVE_NORMAL_PRIORITY_CLASS" => ABOVE_NORMAL_PRIORITY_CLASS,
        "HIGH_PRIORITY_CLASS" => HIGH_PRIORITY_CLASS,
        "REALTIME_PRIORITY_CLASS" => REALTIME_PRIORITY_CLASS,
        _ => {
            let words = "no such priority class: use IDLE_, BELOW_NORMAL_, NORMAL_, ABOVE_NORMAL_, HIGH_ or REALTIME_PRIORITY_CLASS";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, words));
        }
    };
    let mut limits = JOBOBJECT_BASIC_LIMIT_INFORMATION::default();
    limits.LimitFlags = JOB_OBJECT_LIMIT_PRIORITY_CLASS;
    limits.PriorityClass = class;
    let size = size_of_val(&limits) as u32;
    // SAFETY: the structure is plain data whose size is told. The job's handle stays open: it has to last as long as this process.
    unsafe {
        let job = CreateJobObjectW(ptr::null(), ptr::null());
        if job.is_null()
            || SetInformationJobObject(job, JobObjectBasicLimitInformation, (&raw const limits).cast(), size) == 0
            || AssignProcessToJobObject(job, GetCurrentProcess()) == 0
            // Of this process, where a job sets none (Wine).
            || SetPriorityClass(GetCurrentProcess(), class) == 0
        {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use windows_sys::Win32::System::Threading::GetPriorityClass;

    #[test]
    fn the_machine_has_drive_c_and_perhaps_dns_servers() {
        let drives = fixed_drives();
        assert!(drives.contains(&'C') && drives.is_sorted(), "{drives:?}");
        let (servers, searches) = resolver().unwrap();
        assert!(servers.iter().all(|server| server.parse::<std::net::IpAddr>().is_ok()), "{servers:?}");
        assert!(searches.iter().all(|name| !name.contains([',', ' '])), "{searches:?}");
    }

    #[test]
    fn priority_classes_have_upstreams_names() {
        assert!(set_priority_class("above_normal").unwrap_err().to_string().contains("ABOVE_NORMAL_"));
        set_priority_class("ABOVE_NORMAL_PRIORITY_CLASS").unwrap();
        // SAFETY: the handle is this process's own.
        let class = unsafe { GetPriorityClass(GetCurrentProcess()) };
        assert_eq!(class, ABOVE_NORMAL_PRIORITY_CLASS);
    }
}
