//! Signals as descriptors, and the reaping of children by pid 1.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};

pub use nix::sys::signal::Signal;

/// Gives every signal its default meaning again: what a program ignores, the programs it becomes ignore too, and a shell
/// cannot even catch it (`nohup` ignores SIGHUP for all that it starts). SIGPIPE stays as it is: Rust's programs ignore it,
/// and std gives it back to what they become. Call it where one thread is.
///
/// # Errors
/// The kernel's; none is known.
#[allow(unsafe_code)]
pub fn reset() -> nix::Result<()> {
    use nix::sys::signal::{SigHandler, signal};
    for each in Signal::iterator().filter(|each| !matches!(each, Signal::SIGKILL | Signal::SIGSTOP | Signal::SIGPIPE)) {
        // SAFETY: the default action runs no code of this process.
        unsafe { signal(each, SigHandler::SigDfl) }?;
    }
    Ok(())
}

/// Signals that arrive on a descriptor instead of interrupting.
#[derive(Debug)]
pub struct Signals(SignalFd);

impl Signals {
    /// Blocks these signals for the calling thread (and threads it starts) and delivers them here.
    /// Call it before threads exist. Started processes do not inherit the block
    /// ([`crate::spawn::Spawn`] clears it).
    pub fn catch(signals: &[Signal]) -> io::Result<Self> {
        let set: SigSet = signals.iter().copied().collect();
        set.thread_block()?;
        Ok(Self(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?))
    }

    /// Waits for the next signal.
    pub fn wait(&self) -> io::Result<Signal> {
        loop {
            if let Some(signal) = self.next()? {
                return Ok(signal);
            }
            let mut fds = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, PollTimeout::NONE) {
                Err(nix::Error::EINTR) => {}
                other => drop(other?),
            }
        }
    }

    /// The next signal that has arrived; `None` when there is none.
    pub fn next(&self) -> io::Result<Option<Signal>> {
        let Some(info) = self.0.read_signal()? else { return Ok(None) };
        Ok(Signal::try_from(info.ssi_signo as i32).ok())
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// All children that have ended, orphans that were handed to us among them. To be called by the one
/// loop of a pid 1 that waits for everything; it takes the status from every other waiter.
#[allow(unsafe_code)]
pub fn reap() -> Vec<(u32, ExitStatus)> {
    let mut ended = Vec::new();
    loop {
        let mut status = 0;
        // SAFETY: `status` is valid for writing during the call.
        match unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) } {
            pid if pid > 0 => ended.push((pid as u32, ExitStatus::from_raw(status))),
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            _ => return ended,
        }
    }
}
