//! Stage 3 of a second program: enters a running container's namespaces and becomes the program there.
//!
//! The process starts in the network, IPC and UTS namespaces of the shim, which are the pod's. What it has to know of the container it reads
//! before it enters; nothing is read from inside but users and the program itself. The container's mounts come first and its pid namespace
//! last ([`Entry`]): no process of the container ever sees a process that sees the node.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use thiserror_ext::AsReport as _;

use super::program::Ready;
use super::report::Report;
use super::stage::Entry;
use super::{StartSpec, program, read_json, security, windows};

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
        Ok(ready) => ready.run(report),
        Err(error) => {
            report.failed(&error.to_report_string());
            ExitCode::from(126)
        }
    }
}

fn prepare(dir: &Path, tty: bool, argv: &[&str], report: &Report) -> Result<Ready> {
    let place = windows::Place::inherited()?;
    let entry = Entry::inherited()?.context("no container was given")?;
    let [pids, mounts] = entry.numbers();
    program::close_others(&[report.number(), place.number(), pids, mounts])?;
    security::set_dumpable(false)?;
    let spec: StartSpec = read_json(&dir.join("start.json"))?;
    spec.limits.join()?;
    let program = spec.root.second_program(argv, spec.program.cwd())?;
    entry.mounts()?;
    entry.enter(report)?;
    program::fresh_session()?;
    if tty {
        program::take_terminal(report)?;
    }
    spec.limits.bound()?;
    program.prepare(spec, tty, place, report)
}
