//! Report of a process to the shim before it becomes a container's program.
//!
//! A socket that keeps message boundaries and is closed on exec: its end without a failure says that the program runs.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use anyhow::{Context as _, Result};
use linux_sys::fdpass;
use nix::unistd::Pid;
use rustix::io::FdFlags;

use super::Identity;

/// In the new process: the number of its descriptor.
const VARIABLE: &str = "MULLION_SHIM_REPORT";

/// Longest reason that arrives whole.
const LONGEST: usize = 64 * 1024;

const TERMINAL: &[u8] = b"terminal";
const FAILED: &[u8] = b"failed ";
const USER: &[u8] = b"user ";
const MOVED: &[u8] = b"moved ";
const MOUNTS: &[u8] = b"mounts";

/// The side of the process.
#[derive(Debug)]
pub(super) struct Report(OwnedFd);

impl Report {
    /// Takes over what [`channel`] handed to this process.
    pub(super) fn open() -> Result<Self> {
        inherited(VARIABLE).context("no report descriptor was given").map(Self)
    }

    pub(super) fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Hands over the master of the program's terminal.
    pub(super) fn terminal(&self, master: BorrowedFd<'_>) -> Result<()> {
        fdpass::send(&self.0, TERMINAL, &[master]).context("cannot hand over the terminal")
    }

    /// Reports the user that the program runs as.
    pub(super) fn user(&self, user: &Identity) {
        let mut message = USER.to_vec();
        message.extend(serde_json::to_vec(user).unwrap_or_default());
        let _ = fdpass::send(&self.0, &message, &[]);
    }

    /// Reports that this process goes on as another child of the shim, by its number there.
    pub(super) fn moved(&self, pid: u32) -> Result<()> {
        fdpass::send(&self.0, &[MOVED, pid.to_string().as_bytes()].concat(), &[]).context("cannot report a process to the shim")
    }

    /// Hands over a mount namespace.
    pub(super) fn mounts(&self, namespace: BorrowedFd<'_>) -> Result<()> {
        fdpass::send(&self.0, MOUNTS, &[namespace]).context("cannot hand over a mount namespace")
    }

    /// Reports why there will be no program.
    pub(super) fn failed(&self, reason: &str) {
        let mut message = FAILED.to_vec();
        message.extend(reason.bytes().take(LONGEST - FAILED.len()));
        let _ = fdpass::send(&self.0, &message, &[]);
    }
}

/// The side of the shim.
#[derive(Debug)]
pub(super) struct Reader {
    socket: OwnedFd,
    outcome: Outcome,
    /// The process as which the one that was started goes on, until [`Self::moved`] takes it.
    moved: Option<Pid>,
}

/// Result of a start.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub terminal: Option<OwnedFd>,
    pub user: Option<Identity>,
    pub mounts: Option<OwnedFd>,
    /// Why there is no program, if so.
    pub reason: Option<String>,
}

/// Both sides, the process's as one to be inherited, with its number in `command`'s environment.
pub(super) fn channel(command: &mut std::process::Command) -> Result<(Reader, OwnedFd)> {
    let (ours, theirs) = fdpass::pair().context("cannot make a socket")?;
    rustix::fs::fcntl_setfl(&ours, rustix::fs::OFlags::NONBLOCK)?;
    hand_down(command, VARIABLE, &theirs)?;
    Ok((Reader { socket: ours, outcome: Outcome::default(), moved: None }, theirs))
}

/// Lets the process inherit `fd`, under a number that it finds in its environment.
pub(super) fn hand_down(command: &mut std::process::Command, variable: &str, fd: &OwnedFd) -> Result<()> {
    rustix::io::fcntl_setfd(fd, FdFlags::empty())?;
    command.env(variable, fd.as_raw_fd().to_string());
    Ok(())
}

/// The other side of [`hand_down`].
pub(super) fn inherited(variable: &str) -> Result<OwnedFd> {
    let number: i32 = std::env::var(variable).ok().and_then(|text| text.parse().ok()).with_context(|| format!("{variable} is not set"))?;
    Ok(fdpass::inherited(number)?)
}

impl Reader {
    /// Reads the report; the outcome once it is complete.
    pub(super) fn read(&mut self) -> Option<Outcome> {
        let mut buffer = vec![0; LONGEST];
        loop {
            match fdpass::receive(&self.socket, &mut buffer) {
                Ok((0, _)) => break,
                Ok((length, fds)) => match buffer[..length].strip_prefix(MOVED) {
                    Some(number) => self.moved = std::str::from_utf8(number).ok().and_then(|number| number.parse().ok()).map(Pid::from_raw),
                    None => self.outcome.add(&buffer[..length], fds),
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(error) => {
                    self.outcome.reason = Some(format!("cannot read the report of the container's first process: {error}"));
                    break;
                }
            }
        }
        Some(std::mem::take(&mut self.outcome))
    }

    /// The process as which the one that was started goes on, if [`Self::read`] has read so since the last time.
    pub(super) fn moved(&mut self) -> Option<Pid> {
        self.moved.take()
    }
}

impl Outcome {
    fn add(&mut self, message: &[u8], fds: Vec<OwnedFd>) {
        if message == TERMINAL {
            self.terminal = fds.into_iter().next();
        } else if message == MOUNTS {
            self.mounts = fds.into_iter().next();
        } else if let Some(user) = message.strip_prefix(USER) {
            self.user = serde_json::from_slice(user).ok();
        } else {
            let reason = message.strip_prefix(FAILED).unwrap_or(message);
            self.reason = Some(String::from_utf8_lossy(reason).into_owned());
        }
    }
}

impl AsFd for Reader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
