//! The parent's side: clone, wait until the program runs, and hold the process by a descriptor.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use super::child::{self, Prepared, Tables};

/// A process held by a descriptor: its number cannot come to mean another process.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// Holds process `pid` of this pid namespace.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn open(pid: u32) -> io::Result<Self> {
        // SAFETY: plain numbers; a good answer is a new descriptor that nobody else knows.
        unsafe {
            let fd = libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self(OwnedFd::from_raw_fd(fd as i32)))
        }
    }

    /// Sends a signal; that the process has ended is fine.
    ///
    /// # Errors
    /// When it belongs to somebody else.
    pub fn kill(&self, signal: Signal) -> io::Result<()> {
        // SAFETY: plain numbers, no siginfo.
        let result = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), signal as libc::c_int, 0usize, 0u32) };
        match io::Error::last_os_error() {
            _ if result == 0 => Ok(()),
            e if e.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            e => Err(e),
        }
    }

    /// Waits until the process has ended, at most `limit`; whether it has.
    ///
    /// # Errors
    /// When the system cannot wait.
    pub fn wait_end(&self, limit: Duration) -> io::Result<bool> {
        let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        loop {
            match poll(&mut fds, limit) {
                Err(nix::Error::EINTR) => {}
                other => return Ok(other? > 0),
            }
        }
    }
}

/// Readable once the process has ended.
impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<PidFd> for OwnedFd {
    fn from(fd: PidFd) -> Self {
        fd.0
    }
}

/// A started process. Dropping it leaves the process running.
#[derive(Debug)]
pub struct Child {
    pid: u32,
    pidfd: PidFd,
}

impl Child {
    /// Its number in the caller's pid namespace.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Its descriptor, which becomes readable when it has ended.
    pub fn pidfd(&self) -> &PidFd {
        &self.pidfd
    }

    /// Sends a signal; that it has ended is fine.
    ///
    /// # Errors
    /// When it became somebody else's.
    pub fn kill(&self, signal: Signal) -> io::Result<()> {
        self.pidfd.kill(signal)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When somebody else waited for it.
    pub fn wait(&self) -> io::Result<ExitStatus> {
        self.wait_with(0).map(|status| status.expect("waiting without a limit returns a status"))
    }

    /// Its status when it has ended.
    ///
    /// # Errors
    /// When somebody else waited for it.
    pub fn try_wait(&self) -> io::Result<Option<ExitStatus>> {
        self.wait_with(libc::WNOHANG)
    }

    fn wait_with(&self, options: libc::c_int) -> io::Result<Option<ExitStatus>> {
        loop {
            let mut status = 0;
            // SAFETY: `status` is valid for writing; the number is our child's until this call reaps it.
            match unsafe { libc::waitpid(self.pid as libc::pid_t, &raw mut status, options) } {
                0 => return Ok(None),
                n if n > 0 => return Ok(Some(ExitStatus::from_raw(status))),
                _ => match io::Error::last_os_error() {
                    e if e.kind() == io::ErrorKind::Interrupted => {}
                    e => return Err(e),
                },
            }
        }
    }
}

impl AsFd for Child {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// Clones, lets the child go on once its users are mapped, and waits until it has become its program.
pub(super) fn start(prepared: &Prepared) -> io::Result<Child> {
    let mut tables = Tables::new(prepared);
    let (go_read, go_write) = io::pipe()?;
    let (report_read, report_write) = io::pipe()?;
    let mut pidfd: libc::c_int = -1;
    // SAFETY: `clone_args` is plain numbers, all zero is valid.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = prepared.namespaces | libc::CLONE_PIDFD as u64;
    args.pidfd = (&raw mut pidfd) as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    // SAFETY: without CLONE_VM the child has its own copy of all memory. It runs `child::run` only,
    // which makes system calls and takes no lock, whatever other threads held when we cloned.
    let pid = unsafe {
        let pid = libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<libc::clone_args>());
        if pid == 0 {
            child::run(prepared, &mut tables, go_read.as_raw_fd(), report_write.as_raw_fd());
        }
        pid
    };
    if pid < 0 {
        let e = io::Error::last_os_error();
        return Err(io::Error::new(e.kind(), format!("start {}: clone: {e}{}", prepared.name, clone_hint(&e, prepared.namespaces))));
    }
    drop((go_read, report_write));
    // SAFETY: the kernel has just made this descriptor for us.
    let child = Child { pid: pid as u32, pidfd: PidFd(unsafe { OwnedFd::from_raw_fd(pidfd) }) };
    match let_go(prepared, &child, go_write, report_read) {
        Ok(()) => Ok(child),
        Err(e) => {
            let _ = child.kill(Signal::SIGKILL);
            let _ = child.wait();
            Err(e)
        }
    }
}

fn clone_hint(e: &io::Error, namespaces: u64) -> &'static str {
    let user = namespaces & libc::CLONE_NEWUSER as u64 != 0;
    match e.raw_os_error() {
        Some(libc::ENOSPC) => " (the limit in /proc/sys/user/max_*_namespaces is reached)",
        Some(libc::EPERM) if user => " (user namespaces are switched off for this user)",
        _ => "",
    }
}

fn let_go(prepared: &Prepared, child: &Child, go: io::PipeWriter, report: io::PipeReader) -> io::Result<()> {
    if let Some(users) = &prepared.users {
        users.apply(child.pid).map_err(|e| io::Error::new(e.kind(), format!("start {}: {e}", prepared.name)))?;
    }
    let mut go = File::from(OwnedFd::from(go));
    // The report's end and the status show a child that died already (killed from outside).
    let _ = go.write_all(b"g");
    let mut message = [0; 8];
    let mut report = File::from(OwnedFd::from(report));
    let mut got = 0;
    while got < message.len() {
        match report.read(&mut message[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    if got < message.len() {
        return Ok(());
    }
    let number = |at: usize| u32::from_ne_bytes([message[at], message[at + 1], message[at + 2], message[at + 3]]);
    let step = match number(0) {
        child::WAIT => "wait for its users",
        child::SESSION => "set up the process",
        child::NAMESPACE => "enter the network namespace",
        child::DESCRIPTORS => "place descriptors",
        child::EXEC => "execute",
        n => prepared.steps.get((n - child::FIRST_STEP) as usize).map_or("unknown step", |op| op.name.as_str()),
    };
    let e = io::Error::from_raw_os_error(number(4) as i32);
    Err(io::Error::new(e.kind(), format!("start {}: {step}: {e}", prepared.name)))
}
