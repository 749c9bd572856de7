//! Forking a process that has one thread and goes on in its child.
#![allow(unsafe_code)]

use std::io;

/// Proof that this process has one thread. Its holder starts no thread.
#[derive(Debug)]
pub struct OneThread(());

/// In which of the two processes [`OneThread::fork`] has returned.
#[derive(Debug, PartialEq, Eq)]
pub enum Forked {
    /// The one that was there before; the child's number in its own pid namespace.
    Parent(u32),
    /// The new one.
    Child,
}

impl OneThread {
    /// Counts the threads of this process, by a `/proc` that shows it.
    ///
    /// # Errors
    /// When there are more, or `/proc` does not say.
    pub fn check() -> io::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        match status.lines().find_map(|line| line.strip_prefix("Threads:")).map(str::trim) {
            Some("1") => Ok(Self(())),
            count => Err(io::Error::other(format!("the process has {} threads, not 1", count.unwrap_or("an unknown number of")))),
        }
    }

    /// Copies this process. The copy starts in the pid namespace that was set for children (`setns`, `unshare`), and when this process
    /// ends before it, it becomes a child of pid 1 of this process's own pid namespace.
    ///
    /// # Errors
    /// The kernel's.
    pub fn fork(self) -> io::Result<Forked> {
        // SAFETY: with one thread, no lock is held and no memory is half-written by a thread that is missing in the child.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => Ok(Forked::Child),
            pid => Ok(Forked::Parent(pid.unsigned_abs())),
        }
    }
}
