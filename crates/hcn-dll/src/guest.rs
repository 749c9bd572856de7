//! The functions for the service inside a virtual machine. No simulated host has one: reservations are refused.
#![allow(non_snake_case)]

use std::ffi::c_void;

use hcn::HResult;

use crate::exports::RawHandle;

const NOT_SUPPORTED: i32 = HResult::NOT_SUPPORTED.0.cast_signed();

/// Refuses: no virtual machine has a service to listen to.
///
/// # Safety
/// `handle` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn HcnRegisterGuestNetworkServiceCallback(
    _service: RawHandle,
    _callback: *const c_void,
    _context: *mut c_void,
    handle: *mut *mut c_void,
) -> i32 {
    // SAFETY: the caller vouches for it.
    unsafe { refuse(handle) }
}

/// Refuses: there is no such registration.
#[unsafe(no_mangle)]
pub extern "system" fn HcnUnregisterGuestNetworkServiceCallback(_handle: *mut c_void) -> i32 {
    HResult::INVALID_HANDLE.0.cast_signed()
}

/// Refuses: ports are shared with virtual machines only.
///
/// # Safety
/// `handle` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn HcnReserveGuestNetworkServicePort(
    _service: RawHandle,
    _protocol: u32,
    _access: u32,
    _port: u16,
    handle: *mut *mut c_void,
) -> i32 {
    // SAFETY: the caller vouches for it.
    unsafe { refuse(handle) }
}

/// Refuses: ports are shared with virtual machines only.
///
/// # Safety
/// `handle` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn HcnReserveGuestNetworkServicePortRange(
    _service: RawHandle,
    _count: u16,
    _range: *mut c_void,
    handle: *mut *mut c_void,
) -> i32 {
    // SAFETY: the caller vouches for it.
    unsafe { refuse(handle) }
}

/// Refuses: nothing was reserved.
#[unsafe(no_mangle)]
pub extern "system" fn HcnReleaseGuestNetworkServicePortReservationHandle(_handle: *mut c_void) -> i32 {
    HResult::INVALID_HANDLE.0.cast_signed()
}

/// Lists reservations: there are none.
///
/// # Safety
/// Both must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn HcnEnumerateGuestNetworkPortReservations(count: *mut u32, entries: *mut *mut c_void) -> i32 {
    if count.is_null() || entries.is_null() {
        return HResult::INVALID_PARAMETER.0.cast_signed();
    }
    // SAFETY: checked for null; the caller vouches for the rest.
    unsafe {
        count.write(0);
        entries.write(std::ptr::null_mut());
    }
    HResult::OK.0.cast_signed()
}

/// Frees a list of reservations: there is never one to free.
#[unsafe(no_mangle)]
pub extern "system" fn HcnFreeGuestNetworkPortReservations(_entries: *mut c_void) {}

/// # Safety
/// `handle` must be null or writable.
unsafe fn refuse(handle: *mut *mut c_void) -> i32 {
    if !handle.is_null() {
        // SAFETY: checked for null; the caller vouches for the rest.
        unsafe { handle.write(std::ptr::null_mut()) };
    }
    NOT_SUPPORTED
}
