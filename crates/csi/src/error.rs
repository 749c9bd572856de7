//! Why a call to a plug-in failed.

use std::time::Duration;

use tonic::{Code, Status};

/// Bytes of a plug-in's message that are passed on.
const MAX_MESSAGE: usize = 4096;

/// A failed call. Its text is that of upstream's node agent.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The plug-in, or the connection to it, answered with an error.
    #[error("rpc error: code = {} desc = {message}", name(*.code))]
    Answered {
        code: Code,
        /// The plug-in's own words, cut at 4 KiB.
        message: String,
    },
    /// No answer came in time.
    #[error("rpc error: code = DeadlineExceeded desc = {call} did not answer within {}s; look at its logs", within.as_secs())]
    Late { call: &'static str, within: Duration },
}

impl Error {
    /// Of a plug-in's answer.
    pub fn of(status: &Status) -> Self {
        let mut message = status.message().to_owned();
        if message.len() > MAX_MESSAGE {
            let end = (0..=MAX_MESSAGE).rev().find(|at| message.is_char_boundary(*at)).unwrap_or(0);
            message.truncate(end);
        }
        // What is shown on a terminal must not steer it.
        let message = message.chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c }).collect();
        Self::Answered { code: status.code(), message }
    }

    /// Whether the call is over: the driver did not do it, and is not at it any more (upstream: `isFinalError`).
    pub fn is_final(&self) -> bool {
        match self {
            Self::Answered { code, .. } => {
                !matches!(code, Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::ResourceExhausted | Code::Aborted)
            }
            Self::Late { .. } => false,
        }
    }

    /// Whether the driver does not know the call.
    pub fn is_unimplemented(&self) -> bool {
        matches!(self, Self::Answered { code: Code::Unimplemented, .. })
    }
}

/// A code as gRPC for Go names it.
fn name(code: Code) -> String {
    match code {
        Code::Ok => "OK".into(),
        Code::Cancelled => "Canceled".into(),
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_read_as_upstreams_and_are_bounded() {
        let error = Error::of(&Status::internal("no\u{1b}[31m disk"));
        assert_eq!(error.to_string(), "rpc error: code = Internal desc = no [31m disk");
        assert!(Error::of(&Status::cancelled("x")).to_string().contains("code = Canceled"));
        let long = Error::of(&Status::internal("ä".repeat(5000))).to_string();
        assert!(long.len() < 4200, "{}", long.len());
    }

    #[test]
    fn only_an_answer_that_ends_the_work_is_final() {
        for (status, is_final) in [
            (Status::internal(""), true),
            (Status::not_found(""), true),
            (Status::invalid_argument(""), true),
            (Status::unavailable(""), false),
            (Status::aborted(""), false),
            (Status::deadline_exceeded(""), false),
            (Status::cancelled(""), false),
            (Status::resource_exhausted(""), false),
        ] {
            assert_eq!(Error::of(&status).is_final(), is_final, "{status}");
        }
        assert!(!Error::Late { call: "NodePublishVolume", within: Duration::from_secs(1) }.is_final());
    }
}
