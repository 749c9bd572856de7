//! Windows calls that the tools need and std does not have.
#![allow(unsafe_code, reason = "echo requests, console events and named events have no safe form in std")]

use std::ffi::OsStr;
use std::net::Ipv4Addr;
use std::os::windows::ffi::OsStrExt as _;
use std::os::windows::io::{AsRawHandle as _, FromRawHandle as _, OwnedHandle};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use windows_sys::Win32::Foundation::{
    ERROR_ALREADY_EXISTS, FALSE, GetLastError, INVALID_HANDLE_VALUE, SetLastError, TRUE, WAIT_OBJECT_0, WAIT_TIMEOUT,
};
use windows_sys::Win32::NetworkManagement::IpHelper::{
    ICMP_ECHO_REPLY, IP_FLAG_DF, IP_OPTION_INFORMATION, IcmpCloseHandle, IcmpCreateFile, IcmpSendEcho,
};
use windows_sys::Win32::System::Console::{
    CTRL_BREAK_EVENT, CTRL_C_EVENT, GetStdHandle, INPUT_RECORD, KEY_EVENT, ReadConsoleInputW, STD_INPUT_HANDLE, SetConsoleCtrlHandler,
};
use windows_sys::Win32::System::Threading::{CreateEventW, EVENT_MODIFY_STATE, INFINITE, OpenEventW, SetEvent, WaitForSingleObject};
use windows_sys::Win32::System::WindowsProgramming::GetUserNameW;

use crate::tools::{Echo, Request};

/// Sends one echo request and waits for what comes back.
///
/// # Errors
/// The system's error when nothing could be sent, or nothing came in time (`IP_REQ_TIMED_OUT`, 11010).
pub(crate) fn echo(target: Ipv4Addr, request: &Request) -> Result<Echo, u32> {
    let options = IP_OPTION_INFORMATION {
        Ttl: request.ttl,
        Tos: 0,
        Flags: if request.whole { u8::try_from(IP_FLAG_DF).unwrap_or(2) } else { 0 },
        OptionsSize: 0,
        OptionsData: std::ptr::null_mut(),
    };
    let data: Vec<u8> = (b'a'..=b'w').cycle().take(usize::from(request.size)).collect();
    // The largest answer: the reply with its data, and the eight bytes of an ICMP error.
    let mut buffer = vec![0_u64; (size_of::<ICMP_ECHO_REPLY>() + data.len() + 64).div_ceil(8)];
    let timeout = u32::try_from(request.timeout.as_millis()).unwrap_or(u32::MAX);
    // SAFETY: the handle is checked and closed; data, options and buffer outlive the call, and their sizes are given. The
    // buffer is aligned for the reply at its begin, which is there when the count is not zero.
    unsafe {
        let handle = IcmpCreateFile();
        if handle == INVALID_HANDLE_VALUE {
            return Err(GetLastError());
        }
        let count = IcmpSendEcho(
            handle,
            u32::from_ne_bytes(target.octets()),
            data.as_ptr().cast(),
            request.size,
            &raw const options,
            buffer.as_mut_ptr().cast(),
            u32::try_from(buffer.len() * 8).unwrap_or(0),
            timeout,
        );
        let error = GetLastError();
        IcmpCloseHandle(handle);
        if count == 0 {
            return Err(error);
        }
        let reply = &*buffer.as_ptr().cast::<ICMP_ECHO_REPLY>();
        Ok(Echo {
            from: Ipv4Addr::from(reply.Address.to_ne_bytes()),
            status: reply.Status,
            millis: reply.RoundTripTime,
            size: reply.DataSize,
            ttl: reply.Options.Ttl,
        })
    }
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Has Ctrl-C noted instead of ending the program.
pub(crate) fn note_interrupts() {
    extern "system" fn control(event: u32) -> windows_sys::core::BOOL {
        match event {
            CTRL_C_EVENT => {
                INTERRUPTED.store(true, Ordering::Relaxed);
                TRUE
            }
            CTRL_BREAK_EVENT => TRUE,
            // A shutdown ends the program.
            _ => FALSE,
        }
    }
    // SAFETY: the handler is a function that lives as long as the program.
    unsafe { SetConsoleCtrlHandler(Some(control), TRUE) };
}

/// Whether Ctrl-C was pressed since [`note_interrupts`].
pub(crate) fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Waits for a key on the console that standard input is.
pub(crate) fn key_within(time: Duration) -> bool {
    let millis = u32::try_from(time.as_millis()).unwrap_or(INFINITE);
    // SAFETY: the record is plain data of the type the call fills, one of them; the union is read as what its kind says.
    unsafe {
        let input = GetStdHandle(STD_INPUT_HANDLE);
        if WaitForSingleObject(input, millis) != WAIT_OBJECT_0 {
            return false;
        }
        let (mut record, mut count): (INPUT_RECORD, u32) = (std::mem::zeroed(), 0);
        ReadConsoleInputW(input, &raw mut record, 1, &raw mut count) != 0
            && count == 1
            && u32::from(record.EventType) == KEY_EVENT
            && record.Event.KeyEvent.bKeyDown != 0
    }
}

/// The account of this process.
pub(crate) fn user_name() -> Option<String> {
    let mut buffer = [0_u16; 257];
    let mut length = 257;
    // SAFETY: the buffer has the length that is given, and both outlive the call.
    let known = unsafe { GetUserNameW(buffer.as_mut_ptr(), &raw mut length) };
    // The length counts the closing NUL.
    let length = usize::try_from(length).ok()?.checked_sub(1)?;
    (known != 0).then(|| String::from_utf16_lossy(&buffer[..length]))
}

fn wide(text: &str) -> Vec<u16> {
    OsStr::new(text).encode_wide().chain([0]).collect()
}

/// Waits until the named event is set; false when the time is over.
///
/// # Errors
/// The system's error; `ERROR_ALREADY_EXISTS` when somebody waits for it already.
pub(crate) fn await_event(name: &str, time: Option<Duration>) -> Result<bool, u32> {
    let name = wide(name);
    // SAFETY: the name ends with NUL and outlives the call; the handle is checked and then owned.
    unsafe {
        SetLastError(0);
        let event = CreateEventW(std::ptr::null(), FALSE, FALSE, name.as_ptr());
        let error = GetLastError();
        if event.is_null() {
            return Err(error);
        }
        let event = OwnedHandle::from_raw_handle(event);
        if error == ERROR_ALREADY_EXISTS {
            return Err(error);
        }
        let millis = time.map_or(INFINITE, |time| u32::try_from(time.as_millis()).unwrap_or(INFINITE));
        match WaitForSingleObject(event.as_raw_handle(), millis) {
            WAIT_OBJECT_0 => Ok(true),
            WAIT_TIMEOUT => Ok(false),
            _ => Err(GetLastError()),
        }
    }
}

/// Sets the named event, if somebody waits for it.
pub(crate) fn set_event(name: &str) {
    let name = wide(name);
    // SAFETY: the name ends with NUL and outlives the call; the handle is checked and then owned.
    unsafe {
        let event = OpenEventW(EVENT_MODIFY_STATE, FALSE, name.as_ptr());
        if !event.is_null() {
            let event = OwnedHandle::from_raw_handle(event);
            SetEvent(event.as_raw_handle());
        }
    }
}
