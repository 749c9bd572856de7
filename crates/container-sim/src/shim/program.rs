//! Programs of containers, first and later ones: how each kind is prepared and started.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, anyhow, bail};
use nix::fcntl::OFlag;

use super::report::Report;
use super::security::{self, User};
use super::{Program, StartSpec, windows};

impl Program {
    /// Its working directory; empty: the default one.
    pub(super) fn cwd(&self) -> &str {
        match self {
            Self::Exec { cwd, .. } | Self::Windows { cwd, .. } => cwd,
            Self::StandIn { .. } => "",
        }
    }

    /// Whether the sum of its processes is held to a memory limit, as in a job object.
    pub(super) fn has_job_limit(&self) -> bool {
        matches!(self, Self::Windows { .. })
    }

    /// Makes everything ready in the container's root. Privileges of Linux programs and stand-ins are gone afterwards.
    pub(super) fn prepare(self, spec: StartSpec, tty: bool, place: windows::Place, report: &Report) -> Result<Ready> {
        match self {
            Self::Exec { argv, cwd } => linux(&spec, &argv, &cwd, tty, report),
            Self::Windows { line, cwd } => Ok(Ready::Windows { spec: Box::new(spec), line, cwd, place }),
            Self::StandIn { name, dns } => {
                let user = User::find(&spec.security)?;
                security::drop_privileges(&spec.security, &user)?;
                let program = name.parse().map_err(|error| anyhow!("{error}"))?;
                Ok(Ready::StandIn(guest::Options { program, env: spec.env, dns }))
            }
        }
    }
}

/// A program that is ready to start in this process.
pub(super) enum Ready {
    /// A Linux program, and its path.
    Exec(Command, PathBuf),
    StandIn(guest::Options),
    Windows {
        spec: Box<StartSpec>,
        line: String,
        cwd: String,
        place: windows::Place,
    },
}

impl Ready {
    /// Becomes the program, or runs it to its end. Returns after a failure, which was reported, and at the end of a stand-in or a Windows
    /// program.
    pub(super) fn run(self, report: Report) -> ExitCode {
        match self {
            Self::Exec(mut command, program) => {
                let error = command.exec();
                report.failed(&format!("exec: {program:?}: {error}"));
                ExitCode::from(127)
            }
            Self::StandIn(options) => {
                // The end of the report says: started.
                drop(report);
                guest::run(options)
            }
            Self::Windows { spec, line, cwd, place } => windows::line(&spec, &line, &cwd, report, &place),
        }
    }
}

/// Closes all descriptors but the standard streams and `keep`: nothing of the lab reaches a container, whatever the
/// process that started this one left open.
pub(super) fn close_others(keep: &[i32]) -> Result<()> {
    let mut open = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").context("cannot list descriptors")? {
        open.extend(entry?.file_name().to_string_lossy().parse::<i32>().ok());
    }
    for number in open.into_iter().filter(|number| *number > 2 && !keep.contains(number)) {
        // The directory's own descriptor is gone already.
        let _ = nix::unistd::close(number);
    }
    Ok(())
}

/// A session of its own with no signal blocked or ignored, whatever the shim does.
pub(super) fn fresh_session() -> Result<()> {
    // The shim blocks the signals it reads from a descriptor; programs start with none blocked.
    nix::sys::signal::SigSet::empty().thread_set_mask().context("cannot unblock signals")?;
    linux_sys::signal::reset().context("cannot give signals their default meaning")?;
    // Ignored when this process leads a session already.
    let _ = nix::unistd::setsid();
    Ok(())
}

/// Makes a terminal in the devpts that is mounted here, hands its master over, and makes it the controlling one.
pub(super) fn take_terminal(report: &Report) -> Result<()> {
    let master = nix::pty::posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).context("cannot make a terminal")?;
    nix::pty::unlockpt(&master).context("cannot unlock the terminal")?;
    let name = nix::pty::ptsname_r(&master).context("the terminal has no name")?;
    let noctty = OFlag::O_NOCTTY.bits();
    let slave = File::options().read(true).write(true).custom_flags(noctty).open(&name).with_context(|| format!("cannot open {name}"))?;
    report.terminal(master.as_fd())?;
    let slave = OwnedFd::from(slave);
    rustix::process::ioctl_tiocsctty(&slave).context("cannot take the terminal")?;
    nix::unistd::dup2_stdin(&slave).context("cannot connect the terminal")?;
    nix::unistd::dup2_stdout(&slave).context("cannot connect the terminal")?;
    nix::unistd::dup2_stderr(&slave).context("cannot connect the terminal")
}

/// Gives the standard streams to the container's user, so that it may open them again by name (`/dev/stdout`).
fn own_streams(user: &User) -> Result<()> {
    if user.uid == 0 {
        return Ok(());
    }
    let null = rustix::fs::stat("/dev/null").map(|stat| stat.st_rdev).ok();
    for stream in [std::io::stdin().as_fd(), std::io::stdout().as_fd(), std::io::stderr().as_fd()] {
        let stat = rustix::fs::fstat(stream)?;
        if stat.st_rdev == 0 || Some(stat.st_rdev) != null {
            nix::unistd::fchown(stream, Some(nix::unistd::Uid::from_raw(user.uid)), None).context("cannot hand the standard streams to the user")?;
        }
    }
    Ok(())
}

/// A Linux program. Called inside the container's root; privileges are gone afterwards.
fn linux(spec: &StartSpec, argv: &[String], cwd: &str, tty: bool, report: &Report) -> Result<Ready> {
    let (Some(name), cwd) = (argv.first(), if cwd.is_empty() { "/" } else { cwd }) else {
        bail!("no command specified: neither the image nor the pod names one");
    };
    let user = User::find(&spec.security)?;
    std::env::set_current_dir(cwd).with_context(|| format!("cannot enter the working directory {cwd}"))?;
    let path = spec.env.iter().find(|(name, _)| name == "PATH").map_or("", |(_, value)| value);
    let program = find(name, path)?;
    let mut command = Command::new(&program);
    command.arg0(name).args(&argv[1..]).env_clear();
    command.envs(spec.env.iter().map(|(name, value)| (name, value)));
    let missing = |variable: &str| !spec.env.iter().any(|(name, _)| name == variable);
    if missing("HOME") {
        command.env("HOME", &user.home);
    }
    if tty && missing("TERM") {
        command.env("TERM", "xterm");
    }
    own_streams(&user)?;
    report.user(&user.identity());
    security::drop_privileges(&spec.security, &user)?;
    Ok(Ready::Exec(command, program))
}

/// What execvp does, with runc's message when it fails.
fn find(name: &str, path: &str) -> Result<PathBuf> {
    let executable = |path: &Path| {
        let found = nix::unistd::access(path, nix::unistd::AccessFlags::X_OK).is_ok();
        found && path.is_file()
    };
    if name.contains('/') {
        let path = PathBuf::from(name);
        return match std::fs::metadata(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => bail!("exec: {name:?}: stat {name}: no such file or directory"),
            _ if executable(&path) => Ok(path),
            _ => bail!("exec: {name:?}: permission denied"),
        };
    }
    let found = path.split(':').map(|dir| Path::new(if dir.is_empty() { "." } else { dir }).join(name)).find(|path| executable(path));
    found.with_context(|| format!("exec: {name:?}: executable file not found in $PATH"))
}
