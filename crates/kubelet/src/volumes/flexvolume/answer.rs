//! What a driver answers: one JSON object (upstream: `DriverStatus`).

use serde::Deserialize;

/// Bytes of an answer at most.
pub(super) const MAX_ANSWER: usize = 64 * 1024;
/// Characters of a message that are passed on.
const MAX_MESSAGE: usize = 1024;

/// Why what a driver wrote is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    #[error("it has more than {MAX_ANSWER} bytes")]
    TooLarge,
    #[error("it is no JSON object with a status")]
    Json(#[from] serde_json::Error),
    #[error("its status is {0:?}; it must be Success, Failure or Not supported")]
    Status(String),
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub status: Status,
    pub message: String,
    capabilities: Option<Capabilities>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Success,
    Failure,
    NotSupported,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
struct Capabilities {
    attach: Option<bool>,
}

impl Answer {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, AnswerError> {
        #[derive(Deserialize)]
        struct Wire {
            status: String,
            message: Option<String>,
            capabilities: Option<Capabilities>,
        }
        if bytes.len() > MAX_ANSWER {
            return Err(AnswerError::TooLarge);
        }
        let wire: Wire = serde_json::from_slice(bytes)?;
        let status = match wire.status.as_str() {
            "Success" => Status::Success,
            "Failure" => Status::Failure,
            "Not supported" => Status::NotSupported,
            other => return Err(AnswerError::Status(printable(other, 32))),
        };
        Ok(Answer { status, message: printable(&wire.message.unwrap_or_default(), MAX_MESSAGE), capabilities: wire.capabilities })
    }

    /// Whether the driver attaches volumes: it does unless it says that it does not.
    pub(super) fn attaches(&self) -> bool {
        self.capabilities.as_ref().and_then(|all| all.attach).unwrap_or(true)
    }
}

/// A text that cannot steer a terminal.
fn printable(text: &str, most: usize) -> String {
    text.chars().take(most).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Whether these bytes are an answer: for fuzzing.
///
/// # Errors
/// When they are none.
pub fn check(bytes: &[u8]) -> Result<(), AnswerError> {
    Answer::parse(bytes).map(drop)
}
