//! The one way to start a process in namespaces.
//!
//! [`Spawn`] forks by clone3 from any process, threads or not: everything that the child needs is
//! prepared before, and between clone and exec it makes system calls only. A failure there reaches
//! the caller with the name of the step.
//!
//! ```no_run
//! use linux_sys::spawn::{Namespaces, Spawn, Step};
//! let child = Spawn::new("/bin/sh")
//!     .args(["-c", "hostname"])
//!     .new_namespaces(Namespaces::USER | Namespaces::MOUNT | Namespaces::UTS)
//!     .map_users()
//!     .step(Step::SetHostname("box".into()))
//!     .spawn()?;
//! assert!(child.wait()?.success());
//! # Ok::<(), std::io::Error>(())
//! ```

mod child;
mod fork;
mod idmap;
mod process;
mod step;

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;

use crate::ns::NetNs;

pub use fork::{Forked, OneThread};
pub use idmap::{UNPRIVILEGED, is_machine_root};
pub use process::{Child, PidFd};
pub use step::Step;

/// Kinds of namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Namespaces(u64);

impl Namespaces {
    /// Users and capabilities.
    pub const USER: Self = Self(libc::CLONE_NEWUSER as u64);
    pub const MOUNT: Self = Self(libc::CLONE_NEWNS as u64);
    /// Network.
    pub const NET: Self = Self(libc::CLONE_NEWNET as u64);
    /// Processes: the child is its pid 1, and its end ends them all.
    pub const PID: Self = Self(libc::CLONE_NEWPID as u64);
    /// System V and POSIX queues.
    pub const IPC: Self = Self(libc::CLONE_NEWIPC as u64);
    /// Host name.
    pub const UTS: Self = Self(libc::CLONE_NEWUTS as u64);

    /// Whether all of `other` are in this set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for Namespaces {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Where a standard stream goes.
#[derive(Debug)]
pub enum Stdio {
    /// As the parent's.
    Inherit,
    /// `/dev/null`.
    Null,
    /// This descriptor.
    Fd(OwnedFd),
}

/// Mapping of users into a new user namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UserMap {
    None,
    OnlyMe,
    AllOrMe,
    UnprivilegedOrMe,
}

/// A process to be started. Without further calls it inherits the environment, the standard streams,
/// the directory and the namespaces, and no other descriptor.
#[derive(Debug)]
pub struct Spawn {
    program: Program,
    arg0: Option<OsString>,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    cwd: Option<PathBuf>,
    stdio: [Stdio; 3],
    keep: Vec<(OwnedFd, RawFd)>,
    namespaces: Namespaces,
    users: UserMap,
    net: Option<NetNs>,
    new_session: bool,
    death_signal: Option<Signal>,
    steps: Vec<Step>,
}

#[derive(Debug)]
enum Program {
    Path(PathBuf),
    File(OwnedFd),
    Nothing,
}

impl Spawn {
    /// A program by its path as the child sees it after the last step; a name without a slash is
    /// looked up in the `PATH` of the child's environment.
    pub fn new(program: impl AsRef<Path>) -> Self {
        Self::with(Program::Path(program.as_ref().to_owned()))
    }

    /// A program by its open file: it starts even where its path is not visible.
    pub fn from_file(program: OwnedFd) -> Self {
        Self::with(Program::File(program))
    }

    /// No program: the process ends with success after its steps. `name` stands in errors.
    pub fn steps_only(name: &str) -> Self {
        Self::with(Program::Nothing).arg0(name)
    }

    fn with(program: Program) -> Self {
        Self {
            program,
            arg0: None,
            args: Vec::new(),
            env: std::env::vars_os().collect(),
            cwd: None,
            stdio: [Stdio::Inherit, Stdio::Inherit, Stdio::Inherit],
            keep: Vec::new(),
            namespaces: Namespaces::default(),
            users: UserMap::None,
            net: None,
            new_session: false,
            death_signal: None,
            steps: Vec::new(),
        }
    }

    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.args.extend(args.into_iter().map(|a| a.as_ref().to_owned()));
        self
    }

    /// The name that the program finds as its own (default: its path).
    pub fn arg0(mut self, name: impl AsRef<OsStr>) -> Self {
        self.arg0 = Some(name.as_ref().to_owned());
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.retain(|(k, _)| k != key.as_ref());
        self.env.push((key.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Forgets the inherited environment and what was set before.
    pub fn env_clear(mut self) -> Self {
        self.env.clear();
        self
    }

    /// The directory that the program starts in, as seen after the last step.
    pub fn cwd(mut self, dir: impl AsRef<Path>) -> Self {
        self.cwd = Some(dir.as_ref().to_owned());
        self
    }

    /// Standard input.
    pub fn stdin(mut self, to: Stdio) -> Self {
        self.stdio[0] = to;
        self
    }

    /// Standard output.
    pub fn stdout(mut self, to: Stdio) -> Self {
        self.stdio[1] = to;
        self
    }

    /// Standard error.
    pub fn stderr(mut self, to: Stdio) -> Self {
        self.stdio[2] = to;
        self
    }

    /// Hands a descriptor to the program under this number (3 or more).
    pub fn keep_fd(mut self, fd: OwnedFd, number: RawFd) -> Self {
        self.keep.push((fd, number));
        self
    }

    /// New namespaces for the process.
    pub fn new_namespaces(mut self, kinds: Namespaces) -> Self {
        self.namespaces = self.namespaces | kinds;
        self
    }

    /// In the new user namespace, root is the caller and there is nobody else.
    pub fn map_current_user_to_root(mut self) -> Self {
        self.users = UserMap::OnlyMe;
        self
    }

    /// In the new user namespace all users keep their numbers, when the caller is root and may do so;
    /// else as [`Self::map_current_user_to_root`].
    pub fn map_users(mut self) -> Self {
        self.users = UserMap::AllOrMe;
        self
    }

    /// In the new user namespace users 0 to 65,535 are [`UNPRIVILEGED`] ones of the machine, when the caller is the machine's root; else as
    /// [`Self::map_users`].
    pub fn map_unprivileged_users(mut self) -> Self {
        self.users = UserMap::UnprivilegedOrMe;
        self
    }

    /// Starts in an existing network namespace.
    pub fn enter_net(mut self, ns: &NetNs) -> Self {
        self.net = Some(ns.clone());
        self
    }

    /// Starts a session of its own: no terminal, and a process group that can be signalled.
    pub fn new_session(mut self) -> Self {
        self.new_session = true;
        self
    }

    /// The signal that the process gets when the *thread* that started it ends. For lifelines use a
    /// pid namespace instead.
    pub fn pdeathsig(mut self, signal: Signal) -> Self {
        self.death_signal = Some(signal);
        self
    }

    /// Adds something to do in the child before the program starts; steps run in order.
    pub fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    pub fn steps(mut self, steps: impl IntoIterator<Item = Step>) -> Self {
        self.steps.extend(steps);
        self
    }

    /// Starts it. Returns when the program runs: what fails before is this call's error, and nothing
    /// is left of the process then.
    pub fn spawn(self) -> io::Result<Child> {
        let prepared = self.prepare()?;
        process::start(&prepared)
    }

    fn prepare(self) -> io::Result<child::Prepared> {
        let name = match &self.program {
            Program::Path(path) => path.display().to_string(),
            Program::File(_) | Program::Nothing => self.arg0.as_deref().unwrap_or(OsStr::new("program")).to_string_lossy().into_owned(),
        };
        let arg0 = self.arg0.clone().unwrap_or_else(|| name.clone().into());
        let argv = std::iter::once(&arg0).chain(&self.args).map(|a| cstring(a)).collect::<io::Result<Vec<_>>>()?;
        let env = self.env.iter().map(|(k, v)| {
            let mut pair = k.clone().into_vec();
            pair.push(b'=');
            pair.extend_from_slice(v.as_bytes());
            cstring(OsStr::from_bytes(&pair))
        });
        let null = if self.stdio.iter().any(|s| matches!(s, Stdio::Null)) {
            Some(OwnedFd::from(std::fs::File::options().read(true).write(true).open("/dev/null")?))
        } else {
            None
        };
        let mut fds = Vec::new();
        for (number, stdio) in (0..).zip(self.stdio) {
            match stdio {
                Stdio::Inherit => {}
                Stdio::Null => fds.extend(null.as_ref().map(|n| n.as_fd().try_clone_to_owned().map(|fd| (fd, number)))),
                Stdio::Fd(fd) => fds.push(Ok((fd, number))),
            }
        }
        let mut fds = fds.into_iter().collect::<io::Result<Vec<_>>>()?;
        if let Some((_, bad)) = self.keep.iter().find(|(_, n)| *n < 3) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("descriptor {bad} is a standard stream")));
        }
        fds.extend(self.keep);
        let program = match self.program {
            Program::Path(path) => child::Executable::Paths(candidates(&path, &self.env)?),
            Program::File(fd) => child::Executable::File(fd),
            Program::Nothing => child::Executable::Nothing,
        };
        let mut steps = self.steps.into_iter().map(step::prepare).collect::<io::Result<Vec<_>>>()?.concat();
        if let Some(cwd) = self.cwd {
            steps.extend(step::prepare(Step::Chdir(cwd))?);
        }
        let users = match self.users {
            UserMap::None => None,
            UserMap::OnlyMe => Some(idmap::only_me()),
            UserMap::AllOrMe => Some(idmap::all_or_me()?),
            UserMap::UnprivilegedOrMe => Some(idmap::unprivileged_or_me()?),
        };
        Ok(child::Prepared {
            name,
            program,
            argv,
            env: env.collect::<io::Result<_>>()?,
            fds,
            namespaces: self.namespaces.0,
            users,
            net: self.net,
            new_session: self.new_session,
            death_signal: self.death_signal.map(|s| s as libc::c_int),
            steps,
        })
    }
}

pub(crate) fn cstring(text: &OsStr) -> io::Result<CString> {
    CString::new(text.as_bytes()).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, format!("{} contains a NUL", text.to_string_lossy())))
}

/// The paths to try for a program.
fn candidates(program: &Path, env: &[(OsString, OsString)]) -> io::Result<Vec<CString>> {
    if program.as_os_str().as_bytes().contains(&b'/') {
        return Ok(vec![cstring(program.as_os_str())?]);
    }
    let path = env.iter().find(|(k, _)| k == "PATH").map_or_else(|| "/usr/local/bin:/usr/bin:/bin".into(), |(_, v)| v.clone());
    std::env::split_paths(&path).map(|dir| cstring(dir.join(program).as_os_str())).collect()
}
