//! Errors of calls, by what a node agent does about them.

use std::error::Error as _;
use std::time::Duration;

use thiserror::Error;
use tonic::{Code, Status};

/// What a caller can do about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The object does not exist: for stop and remove that is success.
    NotFound,
    /// The runtime cannot be reached, or went away during the call.
    Unavailable,
    /// The call took longer than it may; the runtime may still carry it out.
    Deadline,
    /// This runtime has no such call.
    Unimplemented,
    /// The request contradicts the state of the runtime or is wrong in itself.
    Invalid,
    /// The runtime tried and failed.
    Failed,
}

/// A failed call.
#[derive(Clone, Debug, Error)]
pub enum Error {
    /// The runtime answered with an error.
    #[error("{call}: {message}")]
    Answered {
        /// CRI method.
        call: &'static str,
        /// What can be done about it.
        kind: Kind,
        /// The runtime's own message.
        message: String,
    },
    /// No answer in time.
    #[error("{call}: {endpoint} gave no answer within {within:?}")]
    Deadline {
        /// CRI method.
        call: &'static str,
        /// Where the runtime listens.
        endpoint: String,
        /// How long the call may take.
        within: Duration,
    },
    /// The runtime could not be reached.
    #[error("{call}: container runtime at {endpoint} cannot be reached ({message}); is it running?")]
    Unreachable {
        /// CRI method.
        call: &'static str,
        /// Where the runtime should listen.
        endpoint: String,
        /// The transport's message.
        message: String,
    },
    /// A part that CRI requires is missing in the answer.
    #[error("{call}: the runtime's answer has no {missing}")]
    Incomplete {
        /// CRI method.
        call: &'static str,
        /// The message field.
        missing: &'static str,
    },
}

impl Error {
    pub(crate) fn from_status(call: &'static str, endpoint: &str, status: &Status) -> Self {
        let kind = match status.code() {
            Code::NotFound => Kind::NotFound,
            Code::Unavailable => {
                return Self::Unreachable { call, endpoint: endpoint.to_owned(), message: innermost(status) };
            }
            Code::DeadlineExceeded | Code::Cancelled => Kind::Deadline,
            Code::Unimplemented => Kind::Unimplemented,
            Code::InvalidArgument | Code::FailedPrecondition | Code::AlreadyExists | Code::OutOfRange => Kind::Invalid,
            _ => Kind::Failed,
        };
        Self::Answered { call, kind, message: status.message().to_owned() }
    }

    /// What can be done about it.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Answered { kind, .. } => *kind,
            Self::Deadline { .. } => Kind::Deadline,
            Self::Unreachable { .. } => Kind::Unavailable,
            Self::Incomplete { .. } => Kind::Failed,
        }
    }

    /// Whether the object asked for does not exist.
    pub fn is_not_found(&self) -> bool {
        self.kind() == Kind::NotFound
    }

    /// The runtime's own message, without the call's name: what upstream's kubelet puts into events and container states.
    pub fn message(&self) -> String {
        match self {
            Self::Answered { message, .. } => message.clone(),
            other => other.to_string(),
        }
    }
}

/// tonic wraps a refused connection three times; the innermost says what happened.
fn innermost(status: &Status) -> String {
    let innermost = std::iter::successors(status.source(), |&error| error.source()).last();
    innermost.map_or_else(|| status.message().to_owned(), ToString::to_string)
}
