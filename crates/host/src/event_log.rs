//! Windows' event log.

use std::io;
use std::time::SystemTime;

#[cfg(windows)]
#[path = "event_log/windows.rs"]
mod imp;

#[cfg(windows)]
mod report;

#[cfg(windows)]
pub use imp::WindowsEventLog;
#[cfg(windows)]
pub use report::report_event;

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedEvent {
    pub at: SystemTime,
    pub provider: String,
    pub id: u16,
    /// 1 critical, 2 error, 3 warning, 4 information, 5 verbose; 0 is always logged.
    pub level: u8,
    /// In the machine's language; empty where its provider is not installed any more.
    pub message: String,
}

/// Events of a machine.
pub trait EventLog {
    /// Whether a provider of this name is installed.
    fn has_provider(&self, name: &str) -> bool;
    /// Hands on the events of a channel that an XPath selects, the newest first, until `each` says that it is enough.
    ///
    /// # Errors
    /// When the channel cannot be read.
    fn read(&self, channel: &str, xpath: &str, each: &mut dyn FnMut(LoggedEvent) -> bool) -> io::Result<()>;
}
