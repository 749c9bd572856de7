//! What services log to the system itself: to systemd's journal on Linux, to the event log on Windows.

use std::io;

use host::HostRoot;

use super::query::Query;

/// Whether a service logs there.
#[cfg(unix)]
pub(super) fn logs(root: &HostRoot, service: &str) -> bool {
    // Simulated Windows hosts have neither.
    !root.os().is_windows() && super::journal::has(root, service)
}

/// Hands the lines on until `send` says that it is enough.
#[cfg(unix)]
pub(super) fn copy(root: &HostRoot, services: &[String], query: &Query, send: &mut dyn FnMut(&str) -> bool) -> io::Result<()> {
    super::journal::copy(root, services, query, send)
}

#[cfg(windows)]
pub(super) fn logs(_: &HostRoot, service: &str) -> bool {
    host::EventLog::has_provider(&host::WindowsEventLog, service)
}

#[cfg(windows)]
pub(super) fn copy(_: &HostRoot, services: &[String], query: &Query, send: &mut dyn FnMut(&str) -> bool) -> io::Result<()> {
    super::events::copy(&host::WindowsEventLog, services, query, send)
}
