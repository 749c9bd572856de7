//! The event log through wevtapi.dll.
#![allow(unsafe_code)]

use std::io;
use std::ptr;
use std::time::{Duration, SystemTime};

use windows_sys::Win32::Foundation::{ERROR_INSUFFICIENT_BUFFER, ERROR_NO_MORE_ITEMS, GetLastError, SetLastError};
use windows_sys::Win32::System::EventLog::{
    EVT_HANDLE, EVT_VARIANT, EvtClose, EvtCreateRenderContext, EvtFormatMessage, EvtFormatMessageEvent, EvtNext, EvtOpenPublisherMetadata, EvtQuery,
    EvtQueryChannelPath, EvtQueryReverseDirection, EvtRender, EvtRenderContextSystem, EvtRenderEventValues, EvtSystemEventID, EvtSystemLevel,
    EvtSystemProviderName, EvtSystemTimeCreated, EvtVarTypeFileTime, EvtVarTypeString,
};

use super::{EventLog, LoggedEvent};

/// Bytes of an event's fixed values, and letters of its message, that are read.
const MAX_VALUES: usize = 64 << 10;
const MAX_MESSAGE: usize = 64 << 10;
/// How long the next events may take.
const WAIT: u32 = 10_000;
/// 100 ns from 1601 to 1970.
const EPOCH: u64 = 116_444_736_000_000_000;

/// This machine's log.
#[derive(Clone, Copy, Debug)]
pub struct WindowsEventLog;

/// A handle that is closed in the end.
struct Handle(EVT_HANDLE);

impl Handle {
    fn of(handle: EVT_HANDLE) -> io::Result<Self> {
        if handle == 0 { Err(refused()) } else { Ok(Handle(handle)) }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and nobody else closes it.
        unsafe { EvtClose(self.0) };
    }
}

fn wide(text: &str) -> Vec<u16> {
    text.encode_utf16().chain([0]).collect()
}

/// Opens a query. Of Wine's library this function alone can be called, and does nothing: other calls would end the process, so this one
/// comes first.
fn query(channel: &str, xpath: &str) -> io::Result<Handle> {
    // SAFETY: no memory is passed.
    unsafe { SetLastError(0) };
    // SAFETY: both texts end with NUL.
    Handle::of(unsafe { EvtQuery(0, wide(channel).as_ptr(), wide(xpath).as_ptr(), EvtQueryChannelPath | EvtQueryReverseDirection) })
}

/// Why a call failed. Wine's does nothing, and says not even that.
fn refused() -> io::Error {
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(0) | None => io::Error::new(io::ErrorKind::Unsupported, "this system has no event log that can be read, as Wine; real Windows has"),
        Some(_) => error,
    }
}

/// What tells an event's message.
fn publisher(name: &str) -> io::Result<Handle> {
    // SAFETY: the name ends with NUL.
    Handle::of(unsafe { EvtOpenPublisherMetadata(0, wide(name).as_ptr(), ptr::null(), 0, 0) })
}

/// The text at a pointer of the rendered values, which lie in `buffer`.
fn text_in(buffer: &[u64], at: *const u16) -> String {
    let range = buffer.as_ptr_range();
    let (start, end) = (range.start as usize, range.end as usize);
    let offset = (at as usize).wrapping_sub(start);
    if at.is_null() || (at as usize) < start || (at as usize) >= end || !offset.is_multiple_of(2) {
        return String::new();
    }
    // SAFETY: the values were written into `buffer`, from where `u16`s are read up to its end.
    let units = unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast::<u16>().add(offset / 2), (end - at as usize) / 2) };
    let length = units.iter().position(|unit| *unit == 0).unwrap_or(units.len());
    String::from_utf16_lossy(&units[..length])
}

fn event(context: &Handle, event: &Handle) -> io::Result<LoggedEvent> {
    // Of u64, so that the values are aligned.
    let mut buffer = vec![0u64; MAX_VALUES / 8];
    let (mut used, mut count) = (0, 0);
    // SAFETY: both handles are open; the buffer has MAX_VALUES bytes.
    let done = unsafe { EvtRender(context.0, event.0, EvtRenderEventValues, MAX_VALUES as u32, buffer.as_mut_ptr().cast(), &mut used, &mut count) };
    if done == 0 {
        return Err(refused());
    }
    let count = (count as usize).min(MAX_VALUES / size_of::<EVT_VARIANT>());
    // SAFETY: the call wrote `count` values at the buffer's beginning.
    let values = unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast::<EVT_VARIANT>(), count) };
    let value = |property: i32| values.get(property as usize);
    // SAFETY: the type says which member of the union was written.
    let provider =
        value(EvtSystemProviderName).filter(|v| v.Type == EvtVarTypeString as u32).map(|v| text_in(&buffer, unsafe { v.Anonymous.StringVal }));
    // SAFETY: as above; a file time is 64 bits.
    let ticks = value(EvtSystemTimeCreated).filter(|v| v.Type == EvtVarTypeFileTime as u32).map_or(EPOCH, |v| unsafe { v.Anonymous.FileTimeVal });
    // SAFETY: these properties are UInt16 and Byte; absent ones are zero.
    let id = value(EvtSystemEventID).map_or(0, |v| unsafe { v.Anonymous.UInt16Val });
    // SAFETY: as above.
    let level = value(EvtSystemLevel).map_or(0, |v| unsafe { v.Anonymous.ByteVal });
    let provider = provider.unwrap_or_default();
    let since = ticks.saturating_sub(EPOCH);
    let at = SystemTime::UNIX_EPOCH + Duration::new(since / 10_000_000, (since % 10_000_000) as u32 * 100);
    let message = publisher(&provider).map(|publisher| message(&publisher, event)).unwrap_or_default();
    Ok(LoggedEvent { at, provider, id, level, message })
}

fn message(publisher: &Handle, event: &Handle) -> String {
    let mut buffer = vec![0u16; 1024];
    loop {
        let mut used = 0;
        let size = buffer.len() as u32;
        // SAFETY: both handles are open; the buffer has `size` letters.
        let done = unsafe { EvtFormatMessage(publisher.0, event.0, 0, 0, ptr::null(), EvtFormatMessageEvent, size, buffer.as_mut_ptr(), &mut used) };
        // SAFETY: no arguments.
        let code = if done == 0 { unsafe { GetLastError() } } else { 0 };
        if code == ERROR_INSUFFICIENT_BUFFER && (used as usize) > buffer.len() && (used as usize) <= MAX_MESSAGE {
            buffer.resize(used as usize, 0);
            continue;
        }
        // Parts of a message may be missing: what there is counts.
        let length = buffer.iter().position(|unit| *unit == 0).unwrap_or(buffer.len());
        return String::from_utf16_lossy(&buffer[..length]);
    }
}

impl EventLog for WindowsEventLog {
    fn has_provider(&self, name: &str) -> bool {
        query("Application", "*").is_ok() && publisher(name).is_ok()
    }

    fn read(&self, channel: &str, xpath: &str, each: &mut dyn FnMut(LoggedEvent) -> bool) -> io::Result<()> {
        let query = query(channel, xpath)?;
        // SAFETY: no paths are given.
        let context = Handle::of(unsafe { EvtCreateRenderContext(0, ptr::null(), EvtRenderContextSystem as u32) })?;
        loop {
            let mut handles = [0isize; 32];
            let mut count = 0;
            // SAFETY: the query is open; there is room for as many handles as are asked for.
            let done = unsafe { EvtNext(query.0, handles.len() as u32, handles.as_mut_ptr(), WAIT, 0, &mut count) };
            if done == 0 {
                let error = refused();
                return if error.raw_os_error() == Some(ERROR_NO_MORE_ITEMS as i32) { Ok(()) } else { Err(error) };
            }
            let events: Vec<Handle> = handles[..(count as usize).min(handles.len())].iter().map(|handle| Handle(*handle)).collect();
            for found in &events {
                if !each(event(&context, found)?) {
                    return Ok(());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_or_refused_with_the_reason() {
        assert!(!WindowsEventLog.has_provider("no such provider"));
        let mut count = 0;
        let read = WindowsEventLog.read("Application", "*[System[Level<=4]]", &mut |event| {
            assert!(!event.provider.is_empty() && event.at > SystemTime::UNIX_EPOCH);
            count += 1;
            count < 10
        });
        match read {
            Ok(()) => {}
            Err(error) => assert!(error.to_string().contains("no event log that can be read, as Wine"), "{error}"),
        }
    }
}
