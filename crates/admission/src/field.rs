//! A field's error as upstream prints it (apimachinery pkg/util/validation/field/errors.go), and the list that errors go to.

use serde_json::Value;
use std::fmt;

/// What is wrong with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    Required,
    Invalid,
    NotSupported,
    Duplicate,
    Forbidden,
    TooLong,
    TooMany,
}

impl ErrorKind {
    fn text(self) -> &'static str {
        match self {
            ErrorKind::Required => "Required value",
            ErrorKind::Invalid => "Invalid value",
            ErrorKind::NotSupported => "Unsupported value",
            ErrorKind::Duplicate => "Duplicate value",
            ErrorKind::Forbidden => "Forbidden",
            ErrorKind::TooLong => "Too long",
            ErrorKind::TooMany => "Too many",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    pub kind: ErrorKind,
    /// The field's path, such as `webhooks[0].name`.
    pub field: String,
    /// The value, for kinds that show it.
    pub bad_value: Value,
    /// The rest of the sentence; may be empty.
    pub detail: String,
}

impl FieldError {
    pub fn new(kind: ErrorKind, field: impl Into<String>, bad_value: Value, detail: impl Into<String>) -> Self {
        Self { kind, field: field.into(), bad_value, detail: detail.into() }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.field, self.kind.text())?;
        if !matches!(self.kind, ErrorKind::Required | ErrorKind::Forbidden | ErrorKind::TooLong) {
            match &self.bad_value {
                Value::String(value) => write!(formatter, ": {value:?}")?,
                other => write!(formatter, ": {other}")?,
            }
        }
        if self.detail.is_empty() { Ok(()) } else { write!(formatter, ": {}", self.detail) }
    }
}
