//! A field's error as upstream prints it (apimachinery pkg/util/validation/field/errors.go).

use serde_json::Value;
use std::fmt;

/// What is wrong with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Missing.
    Required,
    /// Malformed or out of bounds.
    Invalid,
    /// The same, of a value that is not shown.
    InvalidOmitted,
    /// Not one of the known values.
    NotSupported,
    /// Another field has the same value, which must be unique.
    Duplicate,
    /// Not allowed in these circumstances.
    Forbidden,
    /// Refers to something that is not there.
    NotFound,
    /// Too long; the value is not shown.
    TooLong,
    /// A list with too many items; the count is shown.
    TooMany,
    /// Not the client's fault.
    Internal,
}

impl ErrorKind {
    fn text(self) -> &'static str {
        match self {
            ErrorKind::Required => "Required value",
            ErrorKind::Invalid | ErrorKind::InvalidOmitted => "Invalid value",
            ErrorKind::NotSupported => "Unsupported value",
            ErrorKind::Duplicate => "Duplicate value",
            ErrorKind::Forbidden => "Forbidden",
            ErrorKind::NotFound => "Not found",
            ErrorKind::TooLong => "Too long",
            ErrorKind::TooMany => "Too many",
            ErrorKind::Internal => "Internal error",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    /// What is wrong.
    pub kind: ErrorKind,
    /// The field's path, such as `spec.containers[0].name`.
    pub field: String,
    /// The value, for kinds that show it.
    pub bad_value: Value,
    /// The rest of the sentence; may be empty.
    pub detail: String,
}

impl FieldError {
    /// Any error.
    pub fn new(kind: ErrorKind, field: impl Into<String>, bad_value: Value, detail: impl Into<String>) -> Self {
        Self { kind, field: field.into(), bad_value, detail: detail.into() }
    }

    /// A malformed or impossible value.
    pub fn invalid(field: &str, bad_value: Value, detail: &str) -> Self {
        Self::new(ErrorKind::Invalid, field, bad_value, detail)
    }

    /// An error on our side.
    pub fn internal(field: &str, detail: &str) -> Self {
        Self::new(ErrorKind::Internal, field, Value::Null, detail)
    }

    /// The reason in a Status cause.
    pub fn reason(&self) -> &'static str {
        match self.kind {
            ErrorKind::Required => "FieldValueRequired",
            ErrorKind::Invalid | ErrorKind::InvalidOmitted => "FieldValueInvalid",
            ErrorKind::NotSupported => "FieldValueNotSupported",
            ErrorKind::Duplicate => "FieldValueDuplicate",
            ErrorKind::Forbidden => "FieldValueForbidden",
            ErrorKind::NotFound => "FieldValueNotFound",
            ErrorKind::TooLong => "FieldValueTooLong",
            ErrorKind::TooMany => "FieldValueTooMany",
            ErrorKind::Internal => "InternalError",
        }
    }

    /// The message without the field's path, as Status causes have it.
    pub fn body(&self) -> String {
        let mut text = self.kind.text().to_string();
        let shown =
            !matches!(self.kind, ErrorKind::Required | ErrorKind::Forbidden | ErrorKind::TooLong | ErrorKind::Internal | ErrorKind::InvalidOmitted);
        if shown {
            let value = match &self.bad_value {
                Value::String(value) => format!("{value:?}"),
                other => other.to_string(),
            };
            text = format!("{text}: {value}");
        }
        if !self.detail.is_empty() {
            text = format!("{text}: {}", self.detail);
        }
        text
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.field, self.body())
    }
}
