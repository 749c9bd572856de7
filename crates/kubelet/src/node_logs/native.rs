//! What services log to the system itself: systemd's journal on Linux.

use std::io;

use host::HostRoot;

use super::journal;
use super::query::Query;

/// Whether a service logs there.
pub(super) fn logs(root: &HostRoot, service: &str) -> bool {
    !root.os().is_windows() && journal::has(root, service)
}

/// Hands the lines on until `send` says that it is enough.
pub(super) fn copy(root: &HostRoot, services: &[String], query: &Query, send: &mut dyn FnMut(&str) -> bool) -> io::Result<()> {
    journal::copy(root, services, query, send)
}
