//! The shim: one small process per sandbox that holds its containers, so that the runtime can come and go.
//!
//! Stages, each a fresh execution of this binary (`mullion shim STAGE DIR`), because namespaces are entered most safely
//! by a process that has just begun and has one thread:
//!
//! 1. `launch`: enters the pod's network namespace, makes the UTS, IPC and pid namespaces, starts `serve`, ends. Its
//!    child is adopted by the lab's init, so the runtime's end does not reach it.
//! 2. `serve`: pid 1 of the sandbox. One thread, one poll loop: requests, containers' output, exits. Its end is the end
//!    of every container, by the kernel's hand. No program of others sees it: containers have pid namespaces of their own
//!    below the sandbox's, or share one, whose pid 1 is `hold`.
//! 3. `init`: one per container. Makes the container's root in a mount namespace of its own, gives up privileges, and
//!    becomes the container's program. `exec` likewise for a second program: it enters the container's namespaces.
//!
//! Everything a stage has to know lies in files in DIR, written by the runtime before: a shim never asks back.

pub(crate) mod client;
mod connection;
mod exec;
mod flatten;
mod hold;
mod init;
mod launch;
mod limits;
mod log;
mod program;
mod pump;
mod report;
mod root;
mod seccomp;
mod security;
mod serve;
mod spec;
mod stage;
mod windows;
mod wire;

use std::path::Path;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

pub(crate) use launch::start;
pub(crate) use limits::Limits;
pub use log::LogWriter;
pub(crate) use seccomp::{Profile, Seccomp};
pub(crate) use serve::children;
pub use spec::HostDirs;
pub(crate) use spec::{MountSource, MountSpec, Pids, Program, Propagation, RootSpec, Security, ShimSpec, StartSpec, WineRoot};
pub(crate) use windows::IMAGE;
pub(crate) use wire::{AttachRequest, ExecRequest, Handed, Message, Request};
pub use wire::{Exit, Identity, Started};

/// Entry point of `mullion shim STAGE DIR`.
pub fn shim_main(args: impl IntoIterator<Item = String>) -> ExitCode {
    let args: Vec<String> = args.into_iter().collect();
    let result = match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["launch", dir] => launch::main(Path::new(dir)),
        ["serve", dir] => serve::main(Path::new(dir)),
        ["hold", _] => return hold::main(),
        ["init", dir] => return init::main(Path::new(dir)),
        ["exec", dir, terminal, argv @ ..] => return exec::main(Path::new(dir), *terminal == "tty", argv),
        _ => Err(anyhow::anyhow!("usage: mullion shim launch|serve|hold|init|exec DIR (container-sim starts it)")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shim: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Nanoseconds since 1970.
pub(crate) fn now() -> i64 {
    i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX)
}

pub(crate) fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> anyhow::Result<T> {
    use anyhow::Context as _;
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&bytes).with_context(|| format!("cannot understand {}", path.display()))
}

/// Not synced: a machine that crashes loses its pods anyway.
pub(crate) fn write_json<T: Serialize>(path: &Path, value: &T) -> anyhow::Result<()> {
    use anyhow::Context as _;
    let bytes = serde_json::to_vec(value)?;
    atomic_file::Options::new().mode(0o600).write(path, &bytes).with_context(|| format!("cannot write {}", path.display()))
}
