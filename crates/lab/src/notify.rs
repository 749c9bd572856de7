//! Readiness message of a supervised process.

use std::fs::File;
use std::io::{self, Write};

/// Holds the number of the descriptor to write to.
pub const VARIABLE: &str = "MULLION_NOTIFY_FD";
/// The number that init gives it.
pub(crate) const NUMBER: i32 = 9;

/// Says that this process is ready, with a line for the supervisor's progress. Does nothing in a
/// process which nobody asked. Once only: the descriptor is closed.
///
/// # Errors
/// When the descriptor is not there, or was used already.
pub fn ready(detail: &str) -> io::Result<()> {
    let Some(number) = std::env::var(VARIABLE).ok().and_then(|n| n.parse().ok()) else { return Ok(()) };
    let mut pipe = File::from(linux_sys::fdpass::inherited(number)?);
    writeln!(pipe, "{}", detail.replace('\n', " "))
}
