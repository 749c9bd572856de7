//! The last steps of stage 3, for a container's first program and for every later one.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use nix::fcntl::OFlag;

use super::StartSpec;
use super::report::Report;
use super::security::{self, User};

/// Closes whatever this process was given besides its standard streams and `keep`: nothing of the lab reaches a
/// container, whatever whoever started us left open.
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

/// Gives the standard streams to the container's user, who may open them again by name (`/dev/stdout`).
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

/// A Linux program, ready for exec, and its path. Called inside the container's root; privileges are gone afterwards.
pub(super) fn linux(spec: &StartSpec, argv: &[impl AsRef<str>], cwd: &str, tty: bool, report: &Report) -> Result<(Command, PathBuf)> {
    let (Some(name), cwd) = (argv.first().map(AsRef::as_ref), if cwd.is_empty() { "/" } else { cwd }) else {
        bail!("no command specified: neither the image nor the pod names one");
    };
    let user = User::find(&spec.security)?;
    std::env::set_current_dir(cwd).with_context(|| format!("cannot enter the working directory {cwd}"))?;
    let path = spec.env.iter().find(|(name, _)| name == "PATH").map_or("", |(_, value)| value);
    let program = find(name, path)?;
    let mut command = Command::new(&program);
    command.arg0(name).args(argv[1..].iter().map(AsRef::as_ref)).env_clear();
    command.envs(spec.env.iter().map(|(name, value)| (name, value)));
    let missing = |wanted: &str| !spec.env.iter().any(|(name, _)| name == wanted);
    if missing("HOME") {
        command.env("HOME", &user.home);
    }
    if tty && missing("TERM") {
        command.env("TERM", "xterm");
    }
    own_streams(&user)?;
    report.user(&user.identity());
    security::drop_privileges(&spec.security, &user)?;
    Ok((command, program))
}

/// What execvp does, with runc's words when it fails.
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
