//! What plug-ins answer: refusals, warnings, audit annotations.

use crate::FieldError;
use serde_json::Value;
use std::collections::BTreeMap;

/// Why a request is refused. The API server makes the Status of it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// 403; the API server puts `RESOURCE "NAME" is forbidden: ` before it.
    #[error("{0}")]
    Forbidden(String),
    /// 422 with these errors.
    #[error("{}", crate::refusal::aggregate(.0))]
    Invalid(Vec<FieldError>),
    /// 400.
    #[error("{0}")]
    BadRequest(String),
    /// 409 on an object of another resource.
    #[error("Operation cannot be fulfilled on {resource} {name:?}: {why}")]
    Conflict { resource: &'static str, name: String, why: String },
    /// 500; the API server puts `Internal error occurred: ` before it.
    #[error("{0}")]
    Internal(String),
    /// What a policy denies. With `prefixed` the API server puts `RESOURCE "NAME" is forbidden: ` before the message. The causes stand in the
    /// details, beside the object's name and resource.
    #[error("{message}")]
    Denied { message: String, prefixed: bool, code: u16, reason: String, causes: Vec<String> },
    /// A Status as it stands.
    #[error("{message}")]
    Status { code: u16, reason: String, message: String, details: Option<Value> },
}

/// What a plug-in leaves beside its decision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// `Warning` headers of the response.
    pub warnings: Vec<String>,
    /// Annotations of the audit event, with whole keys.
    pub audit: BTreeMap<String, String>,
}

impl Notes {
    pub(crate) fn warn(&mut self, warning: impl Into<String>) {
        self.warnings.push(warning.into());
    }

    pub(crate) fn annotate(&mut self, key: impl Into<String>, value: impl Into<String>) {
        self.audit.insert(key.into(), value.into());
    }
}

/// Several messages as one (upstream: `utilerrors.NewAggregate`): each once, in brackets when there are several.
pub(crate) fn aggregate<T: ToString>(errors: &[T]) -> String {
    let mut seen = Vec::<String>::new();
    for error in errors.iter().map(T::to_string) {
        if !seen.contains(&error) {
            seen.push(error);
        }
    }
    match seen.as_slice() {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}
