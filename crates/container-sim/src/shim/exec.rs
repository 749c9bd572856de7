//! Stage 3 of a second program: enters a running container's namespaces and becomes the program there.
//!
//! The process starts in the network, IPC and UTS namespaces of the shim, which are the pod's. What it has to know of the container it reads
//! before it enters; nothing is read from inside but users and the program itself. The container's mounts come first and its pid namespace
//! last ([`Entry`]): nobody in the container ever sees a process that sees the node.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};

use super::report::Report;
use super::stage::Entry;
use super::{Program, RootSpec, StartSpec, init, program, read_json, security, windows};

/// Returns only after a failure that was reported. `dir` is the container's.
pub(super) fn main(dir: &Path, tty: bool, argv: &[&str]) -> ExitCode {
    let report = match Report::open() {
        Ok(report) => report,
        Err(error) => {
            eprintln!("shim: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    match prepare(dir, tty, argv, &report) {
        Ok(Ready::Exec(command, program)) => init::exec(command, &program, &report),
        Ok(Ready::Windows(spec, place)) => {
            let cwd = if let Program::Windows { cwd, .. } = &spec.program { cwd } else { "" };
            windows::line(&spec, &windows::second(argv), cwd, report, &place)
        }
        Err(error) => {
            report.failed(&format!("{error:#}"));
            ExitCode::from(126)
        }
    }
}

enum Ready {
    Exec(Command, PathBuf),
    Windows(Box<StartSpec>, windows::Place),
}

fn prepare(dir: &Path, tty: bool, argv: &[&str], report: &Report) -> Result<Ready> {
    let place = windows::Place::inherited()?;
    let entry = Entry::inherited()?.context("no container was given")?;
    let [pids, mounts] = entry.numbers();
    program::close_others(&[report.number(), place.number(), pids, mounts])?;
    security::set_dumpable(false)?;
    let spec: StartSpec = read_json(&dir.join("start.json"))?;
    spec.limits.join()?;
    let enter = || {
        entry.mounts()?;
        entry.enter(report)?;
        program::fresh_session()
    };
    match &spec.root {
        RootSpec::Layers { .. } => {
            enter()?;
            if tty {
                program::take_terminal(report)?;
            }
            spec.limits.bound()?;
            let cwd = if let Program::Exec { cwd, .. } = &spec.program { cwd } else { "" };
            program::linux(&spec, argv, cwd, tty, report).map(|(command, program)| Ready::Exec(command, program))
        }
        RootSpec::Wine(_) => {
            enter()?;
            if tty {
                program::take_terminal(report)?;
            }
            spec.limits.bound()?;
            Ok(Ready::Windows(Box::new(spec), place))
        }
        RootSpec::Drives => bail!(
            "this container is Mullion's stand-in for a Windows program and holds no Windows programs to run: install Wine on this machine \
             (Debian: apt install wine64), then create the pod anew"
        ),
    }
}
