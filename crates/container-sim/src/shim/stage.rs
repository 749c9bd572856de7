//! Starting stage 3 from the shim: pid namespace, standard streams, report.

use std::fs::File;
use std::io::{PipeReader, PipeWriter};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::Pid;
use rustix::fs::OFlags;

use super::report;
use super::wine::Watch;

/// Which processes a new one sees.
#[derive(Debug)]
pub(super) enum PidNamespace<'a> {
    /// Those of the sandbox.
    Shared,
    /// None: it is pid 1 of a namespace of its own.
    Own,
    /// Those that this process sees.
    Of(&'a OwnedFd),
}

/// Which standard streams lead to the shim; the others lead nowhere, and with a terminal all do until it is made.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Streams {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
}

/// The shim's ends of a process's pipes. None of them blocks.
#[derive(Debug, Default)]
pub(super) struct Ends {
    pub stdin: Option<OwnedFd>,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
}

/// A process that is about to become a container's program.
#[derive(Debug)]
pub(super) struct Launched {
    pub pid: Pid,
    pub pidfd: OwnedFd,
    pub report: report::Reader,
    pub ends: Ends,
    /// Where a Windows program's exit code arrives whole.
    pub watch: Watch,
}

/// Name of the variable with the number of the descriptor by which `exec` finds its container.
pub(super) const TARGET: &str = "MULLION_SHIM_TARGET";

/// Starts `mullion shim STAGE DIR ARGS…`. `home` is the shim's own pid namespace.
pub(super) fn launch(stage: &str, dir: &Path, args: &[&str], streams: Streams, pids: &PidNamespace<'_>, home: &File) -> Result<Launched> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("mullion").args(["shim", stage]).arg(dir).args(args).env_clear();
    let ends = connect(&mut command, streams)?;
    let (report, theirs) = report::channel(&mut command)?;
    let (watch, _place) = Watch::hand_down(&mut command)?;
    let _target = match pids {
        PidNamespace::Of(target) => {
            let target = target.try_clone()?;
            report::hand_down(&mut command, TARGET, &target)?;
            Some(target)
        }
        _ => None,
    };
    match pids {
        PidNamespace::Shared => {}
        PidNamespace::Own => unshare(CloneFlags::CLONE_NEWPID).context("cannot make a pid namespace")?,
        PidNamespace::Of(target) => setns(target, CloneFlags::CLONE_NEWPID).context("cannot enter the container's pid namespace")?,
    }
    let child = command.spawn();
    if !matches!(pids, PidNamespace::Shared) {
        setns(home, CloneFlags::CLONE_NEWPID).context("cannot return to the sandbox's pid namespace")?;
    }
    drop(theirs);
    let pid = i32::try_from(child.context("cannot start a process")?.id())?;
    let number = rustix::process::Pid::from_raw(pid).context("a process without a number")?;
    let pidfd = rustix::process::pidfd_open(number, rustix::process::PidfdFlags::empty()).context("cannot hold a process")?;
    Ok(Launched { pid: Pid::from_raw(pid), pidfd, report, ends, watch })
}

fn connect(command: &mut Command, streams: Streams) -> Result<Ends> {
    let mut ends = Ends::default();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if streams.stdin {
        let (reader, writer) = pipe()?;
        command.stdin(reader);
        ends.stdin = Some(nonblocking(writer.into())?);
    }
    if streams.stdout {
        let (reader, writer) = pipe()?;
        command.stdout(writer);
        ends.stdout = Some(nonblocking(reader.into())?);
    }
    if streams.stderr {
        let (reader, writer) = pipe()?;
        command.stderr(writer);
        ends.stderr = Some(nonblocking(reader.into())?);
    }
    Ok(ends)
}

fn pipe() -> Result<(PipeReader, PipeWriter)> {
    std::io::pipe().context("cannot make a pipe")
}

/// The same descriptor, which from now on does not block.
pub(super) fn nonblocking(fd: OwnedFd) -> Result<OwnedFd> {
    let flags = rustix::fs::fcntl_getfl(fd.as_fd())?;
    rustix::fs::fcntl_setfl(fd.as_fd(), flags | OFlags::NONBLOCK)?;
    Ok(fd)
}
