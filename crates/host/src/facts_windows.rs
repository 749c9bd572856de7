//! Facts of a real Windows machine, from the registry keys upstream's winstats reads.
#![allow(unsafe_code)]

use std::io;
use std::path::Path;
use std::ptr;

use windows_sys::Win32::Storage::FileSystem::GetDiskFreeSpaceExW;
use windows_sys::Win32::System::Registry::{HKEY_LOCAL_MACHINE, RRF_RT_REG_DWORD, RRF_RT_REG_SZ, RegGetValueW};

use super::{HostFacts, architecture};
use crate::root::Space;

const VERSION: &str = r"SOFTWARE\Microsoft\Windows NT\CurrentVersion";

fn wide(text: &str) -> Vec<u16> {
    text.encode_utf16().chain([0]).collect()
}

pub(crate) fn string(key: &str, value: &str) -> Option<String> {
    let mut buffer = [0u16; 512];
    let mut size = size_of_val(&buffer) as u32;
    // SAFETY: both names end with NUL; the buffer has `size` bytes.
    let code = unsafe {
        RegGetValueW(
            HKEY_LOCAL_MACHINE,
            wide(key).as_ptr(),
            wide(value).as_ptr(),
            RRF_RT_REG_SZ,
            ptr::null_mut(),
            buffer.as_mut_ptr().cast(),
            &mut size,
        )
    };
    let length = (size as usize / 2).saturating_sub(1);
    (code == 0).then(|| String::from_utf16_lossy(&buffer[..length]))
}

fn number(key: &str, value: &str) -> Option<u32> {
    let mut out = 0u32;
    let mut size = size_of::<u32>() as u32;
    // SAFETY: both names end with NUL; the result has room for the four bytes announced.
    let code = unsafe {
        RegGetValueW(
            HKEY_LOCAL_MACHINE,
            wide(key).as_ptr(),
            wide(value).as_ptr(),
            RRF_RT_REG_DWORD,
            ptr::null_mut(),
            ptr::from_mut(&mut out).cast(),
            &mut size,
        )
    };
    (code == 0).then_some(out)
}

pub(super) fn read() -> HostFacts {
    let boot = r"SYSTEM\CurrentControlSet\Control\Session Manager\Memory Management\PrefetchParameters";
    let build = string(VERSION, "CurrentBuildNumber").unwrap_or_default();
    let major = number(VERSION, "CurrentMajorVersionNumber").unwrap_or(10);
    let minor = number(VERSION, "CurrentMinorVersionNumber").unwrap_or(0);
    let revision = number(VERSION, "UBR").unwrap_or(0);
    HostFacts {
        machine_id: std::env::var("COMPUTERNAME").unwrap_or_default().to_lowercase(),
        system_uuid: string(r"SYSTEM\HardwareConfig", "LastConfig").unwrap_or_default(),
        boot_id: number(boot, "BootId").map(|n| n.to_string()).unwrap_or_default(),
        kernel_version: format!("{major}.{minor}.{build}.{revision}"),
        os_image: string(VERSION, "ProductName").unwrap_or_else(|| "Windows Server".into()),
        architecture: architecture(),
    }
}

pub(crate) fn disk_space(path: &Path) -> io::Result<Space> {
    let name = wide(&path.to_string_lossy());
    let (mut available, mut capacity) = (0u64, 0u64);
    // SAFETY: the name ends with NUL and both results are valid places.
    let ok = unsafe { GetDiskFreeSpaceExW(name.as_ptr(), &mut available, &mut capacity, ptr::null_mut()) };
    if ok == 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Space { capacity, available, inodes: 0, inodes_free: 0 })
}
