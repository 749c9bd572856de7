//! Stage 3: becomes a container.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, anyhow, bail};
use nix::sched::{CloneFlags, unshare};

use super::{Program, StartSpec, read_json, root, security};

/// Runs in the container's directory `dir`; returns only for a stand-in, or after a failure that was reported.
pub(super) fn main(dir: &Path) -> ExitCode {
    let mut report = match open_report() {
        Ok(report) => report,
        Err(error) => {
            eprintln!("shim: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    match prepare(dir) {
        Ok(Ready::StandIn(options)) => {
            // The end of the report says: started.
            drop(report);
            guest::run(options)
        }
        Ok(Ready::Exec(mut command, program)) => {
            let error = command.exec();
            let _ = write!(report, "exec: {program:?}: {error}");
            ExitCode::from(127)
        }
        Err(error) => {
            let _ = write!(report, "{error:#}");
            ExitCode::from(128)
        }
    }
}

enum Ready {
    Exec(Command, PathBuf),
    StandIn(guest::Options),
}

/// The pipe on which a failure is told, closed by a successful exec.
fn open_report() -> Result<File> {
    let number: i32 = std::env::var("MULLION_SHIM_REPORT").ok().and_then(|text| text.parse().ok()).context("no report descriptor was given")?;
    // Opened anew the descriptor is ours and closes on exec.
    let report = File::options().write(true).open(format!("/proc/self/fd/{number}")).context("cannot open the report descriptor")?;
    nix::unistd::close(number).context("cannot close the report descriptor")?;
    Ok(report)
}

fn prepare(dir: &Path) -> Result<Ready> {
    let spec: StartSpec = read_json(&dir.join("start.json"))?;
    // The shim blocks the signals it reads from a descriptor; programs start with none blocked.
    nix::sys::signal::SigSet::empty().thread_set_mask().context("cannot unblock signals")?;
    // Ignored when this process leads a session already.
    let _ = nix::unistd::setsid();
    if spec.tty {
        rustix::process::ioctl_tiocsctty(std::io::stdin()).context("cannot take the terminal")?;
    }
    unshare(CloneFlags::CLONE_NEWNS).context("cannot make a mount namespace")?;
    root::enter(dir, &spec).context("cannot make the container's root")?;
    let user = security::User::find(&spec.security)?;
    match &spec.program {
        Program::StandIn { name, dns } => {
            security::drop_privileges(&spec.security, &user)?;
            let options = guest::Options { program: name.parse().map_err(|error| anyhow!("{error}"))?, env: spec.env, dns: dns.clone() };
            Ok(Ready::StandIn(options))
        }
        Program::Exec { argv, cwd } => {
            let (Some(name), cwd) = (argv.first(), if cwd.is_empty() { "/" } else { cwd }) else {
                bail!("no command specified: neither the image nor the pod names one");
            };
            std::env::set_current_dir(cwd).with_context(|| format!("cannot enter the working directory {cwd}"))?;
            let path = spec.env.iter().find(|(name, _)| name == "PATH").map_or("", |(_, value)| value);
            let program = find_program(name, path)?;
            let mut command = Command::new(&program);
            command.arg0(name).args(&argv[1..]).env_clear().envs(spec.env.iter().map(|(name, value)| (name, value)));
            if !spec.env.iter().any(|(name, _)| name == "HOME") {
                command.env("HOME", &user.home);
            }
            security::drop_privileges(&spec.security, &user)?;
            Ok(Ready::Exec(command, program))
        }
    }
}

/// What execvp does, with runc's words when it fails.
fn find_program(name: &str, path: &str) -> Result<PathBuf> {
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
