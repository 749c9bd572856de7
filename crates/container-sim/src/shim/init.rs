//! Stage 3: makes the container's root and becomes its first program.

use std::fs::File;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::program::Ready;
use super::report::Report;
use super::stage::Entry;
use super::{StartSpec, program, read_json, root, security, windows};
use thiserror_ext::AsReport as _;
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
        Ok(ready) => ready.run(report),
        Err(error) => {
            report.failed(&error.to_report_string());
            ExitCode::from(128)
        }
    }
}

fn prepare(dir: &Path, report: &Report) -> Result<Ready> {
    let place = windows::Place::inherited()?;
    let entry = Entry::inherited()?;
    let numbers = entry.iter().flat_map(Entry::numbers).chain([report.number(), place.number()]);
    program::close_others(&numbers.collect::<Vec<_>>())?;
    security::set_dumpable(false)?;
    let spec: StartSpec = read_json(&dir.join("start.json"))?;
    program::fresh_session()?;
    Account::find(&spec.account)?;
    spec.limits.join()?;
    let proc = entry.as_ref().map(Entry::proc).transpose()?;
    unshare(CloneFlags::CLONE_NEWNS).context("cannot make a mount namespace")?;
    let has_terminals = spec.root.has_system_mounts();
    if spec.tty && !has_terminals {
        program::take_terminal(report)?;
    }
    root::enter(dir, &spec, proc).context("cannot make the container's root")?;
    if let Some(entry) = entry {
        entry.enter(report)?;
        program::fresh_session()?;
    }
    if spec.tty && has_terminals {
        program::take_terminal(report)?;
    }
    if spec.tty && spec.root.has_console() {
        console()?;
    }
    spec.limits.bound()?;
    let tty = spec.tty;
    spec.program.clone().prepare(spec, tty, place, report)
}

/// Lets the container's terminal be found as `/dev/console`, as runc does.
fn console() -> Result<()> {
    let name = nix::unistd::ttyname(std::io::stdin()).context("the terminal has no name")?;
    File::options().write(true).create(true).truncate(false).open("/dev/console").context("cannot make /dev/console")?;
    mount(Some(name.as_path()), "/dev/console", None::<&str>, MsFlags::MS_BIND, None::<&str>).context("cannot bind /dev/console")
}
