//! Errors of the API server and of the container runtime, in the words that events and statuses show.

use std::error::Error;
use std::fmt;

/// A failed call to the API server. Its text is the server's own message, without the client's words around it.
#[derive(Debug)]
pub(crate) struct ApiError(kube::Error);

impl From<kube::Error> for ApiError {
    fn from(error: kube::Error) -> Self {
        Self(error)
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            kube::Error::Api(status) => f.write_str(&status.message),
            other => other.fmt(f),
        }
    }
}

impl Error for ApiError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.0 {
            // The message is the whole answer.
            kube::Error::Api(_) => None,
            other => other.source(),
        }
    }
}

/// A failed call to the container runtime. Its text is the runtime's own message without the call's name, as
/// upstream's kubelet shows it.
#[derive(Debug)]
pub(crate) struct RuntimeError(cri::Error);

impl From<cri::Error> for RuntimeError {
    fn from(error: cri::Error) -> Self {
        Self(error)
    }
}

impl RuntimeError {
    /// Whether the runtime answered, rather than was lost.
    pub(crate) fn is_answer(&self) -> bool {
        matches!(self.0, cri::Error::Answered { .. })
    }
}

impl fmt::Display for RuntimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message())
    }
}

impl Error for RuntimeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

#[cfg(test)]
mod tests {
    use thiserror_ext::AsReport as _;

    use super::*;

    #[test]
    fn api_error_shows_the_message_of_the_api_server_once() {
        let status = kube::core::Status { message: "secrets \"s\" is forbidden".into(), reason: "Forbidden".into(), code: 403, ..Default::default() };
        let error = ApiError::from(kube::Error::Api(Box::new(status)));
        assert_eq!(error.to_report_string(), "secrets \"s\" is forbidden");
    }

    #[test]
    fn runtime_error_leaves_out_the_name_of_the_call() {
        let error = cri::Error::Answered { call: "StartContainer", kind: cri::Kind::Failed, message: "no such file".into() };
        assert_eq!(RuntimeError::from(error).to_report_string(), "no such file");
    }
}
