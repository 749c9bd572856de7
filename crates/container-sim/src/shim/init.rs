//! Stage 3: becomes a container.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, anyhow};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::report::Report;
use super::stage::Entry;
use super::{Program, RootSpec, StartSpec, program, read_json, root, security, windows};
use wine::Account;

/// Runs in the container's directory `dir`; returns only for a stand-in, or after a failure that was reported.
pub(super) fn main(dir: &Path) -> ExitCode {
    let report = match Report::open() {
        Ok(report) => report,
        Err(error) => {
            eprintln!("shim: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    match prepare(dir, &report) {
        Ok(Ready::StandIn(options)) => {
            // The end of the report says: started.
            drop(report);
            guest::run(options)
        }
        Ok(Ready::Exec(command, program)) => exec(command, &program, &report),
        Ok(Ready::Windows(spec, place)) => match &spec.program {
            Program::Windows { line, cwd } => windows::line(&spec, line, cwd, report, &place),
            _ => ExitCode::FAILURE,
        },
        Err(error) => {
            report.failed(&format!("{error:#}"));
            ExitCode::from(128)
        }
    }
}

/// Becomes the program; returns when that failed.
pub(super) fn exec(mut command: Command, program: &Path, report: &Report) -> ExitCode {
    let error = command.exec();
    report.failed(&format!("exec: {program:?}: {error}"));
    ExitCode::from(127)
}

enum Ready {
    Exec(Command, PathBuf),
    StandIn(guest::Options),
    Windows(Box<StartSpec>, windows::Place),
}

fn prepare(dir: &Path, report: &Report) -> Result<Ready> {
    let place = windows::Place::inherited()?;
    let entry = Entry::inherited()?;
    let numbers = entry.iter().flat_map(Entry::numbers).chain([report.number(), place.number()]);
    program::close_others(&numbers.collect::<Vec<_>>())?;
    security::set_dumpable(false)?;
    let spec: StartSpec = read_json(&dir.join("start.json"))?;
    program::fresh_session()?;
    if spec.os.is_windows() {
        Account::find(&spec.account).map_err(anyhow::Error::msg)?;
    }
    spec.limits.join()?;
    let proc = entry.as_ref().map(Entry::proc).transpose()?;
    unshare(CloneFlags::CLONE_NEWNS).context("cannot make a mount namespace")?;
    // A root of drives alone has no terminals of its own.
    let own = !matches!(spec.root, RootSpec::Drives);
    if spec.tty && !own {
        program::take_terminal(report)?;
    }
    root::enter(dir, &spec, proc).context("cannot make the container's root")?;
    if let Some(entry) = entry {
        entry.enter(report)?;
        program::fresh_session()?;
    }
    if spec.tty && own {
        program::take_terminal(report)?;
    }
    if spec.tty && matches!(spec.root, RootSpec::Layers { .. }) {
        console()?;
    }
    spec.limits.bound()?;
    match &spec.program {
        Program::StandIn { name, dns } => {
            let user = security::User::find(&spec.security)?;
            security::drop_privileges(&spec.security, &user)?;
            let options = guest::Options { program: name.parse().map_err(|error| anyhow!("{error}"))?, env: spec.env, dns: dns.clone() };
            Ok(Ready::StandIn(options))
        }
        Program::Windows { .. } => Ok(Ready::Windows(Box::new(spec), place)),
        Program::Exec { argv, cwd } => {
            let (command, path) = program::linux(&spec, argv, cwd, spec.tty, report)?;
            Ok(Ready::Exec(command, path))
        }
    }
}

/// Lets the container's terminal be found as `/dev/console`, as runc does.
fn console() -> Result<()> {
    let name = nix::unistd::ttyname(std::io::stdin()).context("the terminal has no name")?;
    File::options().write(true).create(true).truncate(false).open("/dev/console").context("cannot make /dev/console")?;
    mount(Some(name.as_path()), "/dev/console", None::<&str>, MsFlags::MS_BIND, None::<&str>).context("cannot bind /dev/console")
}
