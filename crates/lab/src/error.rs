//! Errors of a lab, each with its way out.

use std::path::PathBuf;
use std::{fmt, io};

use crate::dir::command_in;

/// Why there is no lab. Each message is one line with the way out.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Its description cannot be read.
    #[error("{} cannot be read ({reason}): restore it, or remove the directory to begin anew", .path.display())]
    Damaged {
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Somebody else runs it.
    #[error("a cluster runs on {} already{}: end it with `{}`", .dir.display(), .pid.map(|p| format!(" (process {p})")).unwrap_or_default(), command_in(.dir, "down"))]
    Running {
        dir: PathBuf,
        /// The supervisor.
        pid: Option<u32>,
    },
    /// It is no cluster's, and holds files.
    #[error("cannot make a cluster in {}: it holds other files; choose an empty or new directory with --dir", .0.display())]
    ForeignFiles(PathBuf),
    #[error("no cluster runs on {}: start one with `{}`", .0.display(), command_in(.0, "up"))]
    NotRunning(PathBuf),
    /// It was asked to end and did not.
    #[error("cannot end the cluster on {}: process {pid} still runs after {seconds} s; end it with `kill -9 {pid}`", .dir.display())]
    StillRuns {
        dir: PathBuf,
        /// The supervisor.
        pid: u32,
        /// How long it was waited for.
        seconds: u64,
    },
    /// The API server's port is taken.
    #[error("port {0} of 127.0.0.1 is in use: stop the program that uses it, or choose another with --port (0 takes a free one)")]
    PortTaken(u16),
    /// No user namespaces.
    #[error("user namespaces are not usable here: {0}")]
    Namespaces(Hint),
    /// No nf_tables.
    #[error("nf_tables is not usable here ({0}): load it with `sudo modprobe nf_tables nft_chain_nat`, or use a kernel that has it")]
    Nftables(String),
    /// No way to the outside.
    #[error("no way to the outside: {0}")]
    Outside(String),
    /// The disk is full.
    #[error("{} MiB are free at {}, a cluster needs {} MiB: make room or choose another --dir", .free >> 20, .dir.display(), .needed >> 20)]
    Disk {
        dir: PathBuf,
        /// Bytes that are free.
        free: u64,
        /// Bytes that are needed.
        needed: u64,
    },
    /// The runtime directory would make a socket's path too long, or belongs to somebody else.
    #[error("{} cannot hold the cluster's sockets: {reason}", .path.display())]
    RunDir {
        path: PathBuf,
        /// Why, and the way out.
        reason: String,
    },
    /// A file or directory cannot be used.
    #[error("{operation} {}", .path.display())]
    File {
        /// What was tried.
        operation: &'static str,
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The lab's init could not be started or ended early.
    #[error("the lab did not start: {0}")]
    Init(String),
}

impl LabError {
    /// A failed operation on a file: what was tried, with what.
    pub fn file(operation: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { operation, path, source }
    }
}

/// A reason and a way out, in one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hint {
    /// What the system refuses.
    pub reason: String,
    /// What to do about it.
    pub way_out: String,
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.reason, self.way_out)
    }
}
