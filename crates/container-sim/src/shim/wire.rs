//! Messages between the runtime and a shim: lines of JSON over the sandbox's socket.
//!
//! A connection is either the runtime's own (requests in order, exits are sent at any time), or it belongs to one session:
//! its first request is [`Request::Exec`] or [`Request::Attach`], the answer [`Message::Opened`] carries the session's
//! descriptors (SCM_RIGHTS), and [`Message::Exited`] comes last. Either side may be of another version of this program
//! after an update, so members are added, never changed.

use serde::{Deserialize, Serialize};

/// A request to a shim.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Request {
    /// Starts the container whose `start.json` lies in `containers/ID`.
    Start { id: String },
    /// Sends a signal to a container's first process. Fine when it is gone.
    Signal { id: String, signal: i32 },
    /// Opens the log again.
    Reopen { id: String },
    /// Checks that the shim answers.
    Ping,
    /// Kills every container and ends.
    Shutdown,
    /// Starts a second program in a container.
    Exec(ExecRequest),
    /// Copies a container's output from now on, and leads to its input.
    Attach(AttachRequest),
    /// Kills this session's program and what it started.
    Kill,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ExecRequest {
    pub id: String,
    pub argv: Vec<String>,
    pub tty: bool,
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct AttachRequest {
    pub id: String,
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
}

/// A message of a shim. Answers come in the order of the requests of a connection; exits at any time.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Message {
    Done,
    Started(Started),
    Failed(String),
    /// A session has begun; one descriptor comes with it for each.
    Opened(Vec<Handed>),
    /// A container, or the program of this session, has ended.
    Exited {
        id: String,
        exit: Exit,
    },
}

/// What a descriptor is that a shim hands over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Handed {
    /// Writes to the program.
    Stdin,
    /// Reads from the program.
    Stdout,
    Stderr,
    /// The master of the program's terminal: input, size, and output where no [`Handed::Stdout`] comes.
    Terminal,
}

/// `started.json`
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Started {
    /// Process id as the lab's `/proc` shows it.
    pub pid: i32,
    /// Nanoseconds since 1970.
    pub at: i64,
    /// User that a Linux program runs as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<Identity>,
}

/// User that a program runs as.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Identity {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// `exit.json`
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Exit {
    /// Exit code; 128 + signal for a program that a signal ended.
    pub code: i32,
    /// The signal, if any.
    pub signal: Option<i32>,
    /// Nanoseconds since 1970.
    pub at: i64,
    /// Whether the kernel killed one of its processes because memory ran out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub oom: bool,
    /// Reason, where the code does not show it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}
