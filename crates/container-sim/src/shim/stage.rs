//! Starts stage 3 from the shim: pid namespace, standard streams, report.

use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use linux_sys::spawn::{Forked, OneThread};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::Pid;
use rustix::fs::OFlags;
use rustix::mount::{OpenTreeFlags, open_tree};

use super::report::{self, Report};
use super::windows::Watch;

/// Which processes a new one sees.
#[derive(Debug)]
pub(super) enum PidNamespace {
    /// The shim's. Only for programs of ours: a process that sees the shim can ask for its files.
    Shim,
    /// None: it is pid 1 of a namespace of its own.
    Own,
    /// Those of another namespace, which it enters by [`Entry::enter`].
    Of(Place),
}

/// Where a process goes that does not get a pid namespace of its own.
#[derive(Debug)]
pub(super) struct Place {
    /// A pidfd of a process whose pid namespace is entered.
    pub pids: OwnedFd,
    /// A pidfd, or a mount namespace's descriptor: in these mounts, `/proc` is of that pid namespace.
    pub mounts: OwnedFd,
}

impl Place {
    /// The namespaces of a container's first process.
    pub(super) fn of(pidfd: &OwnedFd) -> Result<Self> {
        Self::copy(pidfd, pidfd)
    }

    /// A copy, to be handed on.
    pub(super) fn copy(pids: &OwnedFd, mounts: &OwnedFd) -> Result<Self> {
        let copy = |fd: &OwnedFd| fd.try_clone().context("cannot copy a namespace's descriptor");
        Ok(Self { pids: copy(pids)?, mounts: copy(mounts)? })
    }
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

/// Names of the variables with the numbers of a [`Place`]'s descriptors.
const PIDS: &str = "MULLION_SHIM_PIDS";
const MOUNTS: &str = "MULLION_SHIM_MOUNTS";

/// Starts `mullion shim STAGE DIR ARGS…`, which inherits the descriptors of `pids`. `home` is the shim's own pid namespace.
pub(super) fn launch(stage: &str, dir: &Path, args: &[&str], streams: Streams, pids: PidNamespace, home: &File) -> Result<Launched> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("mullion").args(["shim", stage]).arg(dir).args(args).env_clear();
    let ends = connect(&mut command, streams)?;
    let (report, theirs) = report::channel(&mut command)?;
    let (watch, _place) = Watch::hand_down(&mut command)?;
    if let PidNamespace::Of(place) = &pids {
        report::hand_down(&mut command, PIDS, &place.pids)?;
        report::hand_down(&mut command, MOUNTS, &place.mounts)?;
    }
    if matches!(pids, PidNamespace::Own) {
        unshare(CloneFlags::CLONE_NEWPID).context("cannot make a pid namespace")?;
    }
    let child = command.spawn();
    if matches!(pids, PidNamespace::Own) {
        setns(home, CloneFlags::CLONE_NEWPID).context("cannot return to the sandbox's pid namespace")?;
    }
    drop((theirs, pids));
    let pid = Pid::from_raw(i32::try_from(child.context("cannot start a process")?.id())?);
    Ok(Launched { pid, pidfd: hold(pid)?, report, ends, watch })
}

/// A descriptor of a child of this process that was not waited for.
pub(super) fn hold(pid: Pid) -> Result<OwnedFd> {
    let number = rustix::process::Pid::from_raw(pid.as_raw()).context("a process without a number")?;
    rustix::process::pidfd_open(number, rustix::process::PidfdFlags::empty()).context("cannot hold a process")
}

/// The way of a process into the pid namespace of its container, from outside of which it has been started.
///
/// Every process of that namespace can reach the files of each process in it, by `/proc/PID/root` and `/proc/PID/fd`. So the process first
/// enters the container's mounts and closes what it does not need, and only then puts its copy into the namespace and ends.
#[derive(Debug)]
pub(super) struct Entry {
    place: Place,
    alone: OneThread,
}

impl Entry {
    /// Takes over what [`launch`] handed to this process; none without [`PidNamespace::Of`].
    pub(super) fn inherited() -> Result<Option<Self>> {
        if std::env::var_os(PIDS).is_none() {
            return Ok(None);
        }
        let place = Place { pids: report::inherited(PIDS)?, mounts: report::inherited(MOUNTS)? };
        Ok(Some(Self { place, alone: OneThread::check().context("cannot fork")? }))
    }

    /// The numbers of its descriptors.
    pub(super) fn numbers(&self) -> [i32; 2] {
        [self.place.pids.as_raw_fd(), self.place.mounts.as_raw_fd()]
    }

    /// Enters the place's mounts.
    pub(super) fn mounts(&self) -> Result<()> {
        setns(&self.place.mounts, CloneFlags::CLONE_NEWNS).context("cannot enter the container: it has ended")
    }

    /// A `/proc` of the pid namespace, mounted nowhere yet. This process stays in its mounts.
    pub(super) fn proc(&self) -> Result<OwnedFd> {
        let home = File::open("/proc/self/ns/mnt").context("cannot open the mount namespace")?;
        self.mounts()?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let proc = open_tree(rustix::fs::CWD, "/proc", flags);
        setns(home, CloneFlags::CLONE_NEWNS).context("cannot return to the node's mounts")?;
        let proc = proc.context("cannot copy /proc of the processes to be shared")?;
        if rustix::fs::fstatfs(&proc)?.f_type != rustix::fs::PROC_SUPER_MAGIC {
            bail!("cannot share the processes of a container which has mounted something over its /proc");
        }
        Ok(proc)
    }

    /// Goes on in the pid namespace: returns there, in a copy of this process, which ends here and never returns.
    pub(super) fn enter(self, report: &Report) -> Result<()> {
        let Self { place, alone } = self;
        setns(&place.pids, CloneFlags::CLONE_NEWPID).context("cannot enter the container's pid namespace: it has ended")?;
        drop(place);
        let (mut reader, mut writer) = std::io::pipe().context("cannot make a pipe")?;
        match alone.fork().context("cannot fork")? {
            Forked::Child => {
                drop(writer);
                // Until the shim can know of this process; if it cannot, there shall be none.
                if reader.read_exact(&mut [0]).is_err() {
                    std::process::exit(1);
                }
                Ok(())
            }
            Forked::Parent(pid) => {
                let moved = report.moved(pid).and_then(|()| Ok(writer.write_all(&[1])?));
                std::process::exit(i32::from(moved.is_err()))
            }
        }
    }
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
