//! Pid 1 of a pod whose containers share their processes, like `pause`: it reaps orphans.
//!
//! Containers see this process, and with `SYS_PTRACE` one of them can do in it whatever it could do itself. So it has an empty root, no
//! descriptors, no capabilities and no way to any.

use std::convert::Infallible;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use thiserror_ext::AsReport as _;

use super::report::Report;
use super::{program, security};

const NONE: Option<&str> = None;

/// Runs as pid 1 of a pid namespace of its own; returns only after a failure that was reported.
pub(super) fn main() -> ExitCode {
    let report = match Report::open() {
        Ok(report) => report,
        Err(error) => {
            eprintln!("shim: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    match prepare(&report) {
        Ok(signals) => {
            // The end of the report says: ready.
            drop(report);
            match reap(&signals) {
                Ok(never) => match never {},
                Err(_) => ExitCode::FAILURE,
            }
        }
        Err(error) => {
            report.failed(&error.to_report_string());
            ExitCode::FAILURE
        }
    }
}

fn prepare(report: &Report) -> Result<SigSet> {
    program::close_others(&[report.number()])?;
    program::fresh_session()?;
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGCHLD);
    signals.thread_block().context("cannot block signals")?;
    // First mounts with nothing but the pod's /proc, which only the shim can reach: containers get copies of it.
    unshare(CloneFlags::CLONE_NEWNS).context("cannot make a mount namespace")?;
    linux_sys::mount::make_rprivate()?;
    // On /proc, since that is there on every machine. A new /proc may be mounted while the old one is still below.
    tmpfs("/proc", MsFlags::empty())?;
    std::fs::create_dir("/proc/proc")?;
    linux_sys::mount::proc(Path::new("/proc/proc"))?;
    root("/proc")?;
    let mounts = File::open("/proc/self/ns/mnt").context("cannot open the mount namespace")?;
    report.mounts(mounts.as_fd())?;
    drop(mounts);
    // Then this process's own mounts, with nothing at all.
    unshare(CloneFlags::CLONE_NEWNS).context("cannot make a mount namespace")?;
    tmpfs("/proc", MsFlags::MS_RDONLY)?;
    root("/proc")?;
    security::give_up()?;
    for stream in 0..3 {
        let _ = nix::unistd::close(stream);
    }
    Ok(signals)
}

fn tmpfs(place: &str, flags: MsFlags) -> Result<()> {
    let flags = flags | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("tmpfs"), place, Some("tmpfs"), flags, Some("mode=555,size=4k")).context("cannot mount an empty root")
}

/// Makes what is mounted at `place` the root, and the only thing there is.
fn root(place: &str) -> Result<()> {
    std::env::set_current_dir(place)?;
    nix::unistd::pivot_root(".", ".").context("cannot change the root")?;
    umount2(".", MntFlags::MNT_DETACH).context("cannot let go of the old root")?;
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE).context("cannot part the root from other mounts")?;
    Ok(std::env::set_current_dir("/")?)
}

/// Reaps orphans for ever: the sandbox's end is the end of this process.
fn reap(signals: &SigSet) -> Result<Infallible> {
    loop {
        signals.wait()?;
        while !matches!(waitpid(None, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive) | Err(_)) {}
    }
}
