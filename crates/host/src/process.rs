//! Processes of the machine.

#[cfg(test)]
mod tests;

use std::io;

use linux_sys::spawn::PidFd;
use nix::sys::signal::Signal;

/// Ends a process at once, which cannot refuse it. One that has ended already is fine.
///
/// `is_it` is asked once no other process can get the number any more: whether this is the one that was meant.
///
/// # Errors
/// When it belongs to somebody else.
pub fn end_process(pid: u32, is_it: impl FnOnce() -> bool) -> io::Result<()> {
    match PidFd::open(pid) {
        Ok(process) if is_it() => process.kill(Signal::SIGKILL),
        Ok(_) => Ok(()),
        Err(error) if error.raw_os_error() == Some(nix::errno::Errno::ESRCH as i32) => Ok(()),
        Err(error) => Err(error),
    }
}
