//! Writing to the event log Application.
#![allow(unsafe_code)]

use std::io;
use std::ptr;

use windows_sys::Win32::System::EventLog::{
    DeregisterEventSource, EVENTLOG_ERROR_TYPE, EVENTLOG_INFORMATION_TYPE, RegisterEventSourceW, ReportEventW,
};

/// A message of EventCreate.exe, the library that installed sources name: its first parameter alone.
const MESSAGE: u32 = 1;
/// Letters of a text: the log refuses longer ones.
const LONGEST: usize = 30_000;

/// Writes an event of a source. Without the source's library Windows shows the text behind a remark.
///
/// # Errors
/// What the system says.
pub fn report_event(source: &str, is_error: bool, text: &str) -> io::Result<()> {
    let wide = |text: &str| text.encode_utf16().take(LONGEST).filter(|unit| *unit != 0).chain([0]).collect::<Vec<u16>>();
    let (source, text) = (wide(source), wide(text));
    // SAFETY: the name ends with NUL; the null pointer is this machine.
    let handle = unsafe { RegisterEventSourceW(ptr::null(), source.as_ptr()) };
    if handle.is_null() {
        return Err(io::Error::last_os_error());
    }
    let kind = if is_error { EVENTLOG_ERROR_TYPE } else { EVENTLOG_INFORMATION_TYPE };
    let texts = [text.as_ptr()];
    // SAFETY: one text that ends with NUL, as the count says; no user and no data.
    let written = unsafe { ReportEventW(handle, kind, 0, MESSAGE, ptr::null_mut(), 1, 0, texts.as_ptr(), ptr::null()) };
    let result = if written == 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    // SAFETY: the handle is open, and nobody else closes it.
    unsafe { DeregisterEventSource(handle) };
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_written_also_long_ones() {
        report_event("mullion-test", false, "a text\0 with everything").unwrap();
        report_event("mullion-test", true, &"x".repeat(100_000)).unwrap();
    }
}
