//! A field's error as upstream prints it (apimachinery pkg/util/validation/field/errors.go).

use std::fmt;

use serde_json::Value;

/// What is wrong with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    Required,
    /// Malformed or out of bounds.
    Invalid,
    /// Of another type.
    TypeInvalid,
    /// Not one of the known values.
    NotSupported,
    /// Another field has the same value, which must be unique.
    Duplicate,
    /// Not allowed in these circumstances.
    Forbidden,
    /// Refers to something that is not there.
    NotFound,
    TooLong,
    /// A list with too many items; the count is shown.
    TooMany,
    /// Not the client's fault.
    Internal,
}

impl ErrorKind {
    fn text(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Duplicate => "Duplicate value",
            Self::Forbidden => "Forbidden",
            Self::NotFound => "Not found",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::Internal => "Internal error",
        }
    }

    /// The reason in a cause of a Status.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Forbidden => "FieldValueForbidden",
            Self::NotFound => "FieldValueNotFound",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::Internal => "InternalError",
        }
    }

    fn shows_value(self) -> bool {
        !matches!(self, Self::Required | Self::Forbidden | Self::TooLong | Self::Internal)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    pub kind: ErrorKind,
    /// The field's path, such as `spec.containers[0].name`; empty for errors of the whole object.
    pub field: String,
    /// None where the message leaves the value out. Some kinds never show it.
    pub value: Option<Value>,
    /// The rest of the sentence; may be empty.
    pub detail: String,
}

impl FieldError {
    pub fn new(kind: ErrorKind, field: impl Into<String>, value: impl Into<Option<Value>>, detail: impl Into<String>) -> Self {
        Self { kind, field: field.into(), value: value.into(), detail: detail.into() }
    }

    /// A malformed or impossible value.
    pub fn invalid(field: &str, value: Value, detail: &str) -> Self {
        Self::new(ErrorKind::Invalid, field, value, detail)
    }

    /// An error on our side.
    pub fn internal(field: &str, detail: &str) -> Self {
        Self::new(ErrorKind::Internal, field, None, detail)
    }

    /// The field's path as messages have it: `<nil>` for the whole object.
    pub fn path(&self) -> &str {
        if self.field.is_empty() { "<nil>" } else { &self.field }
    }

    /// The message without the path, as causes of a Status have it.
    pub fn body(&self) -> String {
        let mut body = self.kind.text().to_owned();
        match &self.value {
            Some(Value::String(text)) if self.kind.shows_value() => body.push_str(&format!(": {text:?}")),
            Some(value) if self.kind.shows_value() => body.push_str(&format!(": {value}")),
            _ => {}
        }
        if !self.detail.is_empty() {
            body.push_str(": ");
            body.push_str(&self.detail);
        }
        body
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path(), self.body())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn messages_show_the_value_where_upstreams_do() {
        let text = |kind, value: Option<Value>, detail: &str| FieldError::new(kind, "spec.a", value, detail).to_string();
        assert_eq!(text(ErrorKind::Invalid, Some(json!("x\"y")), "must be z"), r#"spec.a: Invalid value: "x\"y": must be z"#);
        assert_eq!(text(ErrorKind::Invalid, Some(json!({"b": 1})), ""), r#"spec.a: Invalid value: {"b":1}"#);
        assert_eq!(text(ErrorKind::Invalid, Some(Value::Null), "why"), "spec.a: Invalid value: null: why");
        assert_eq!(text(ErrorKind::Invalid, None, "why"), "spec.a: Invalid value: why");
        assert_eq!(text(ErrorKind::Required, Some(json!("")), ""), "spec.a: Required value");
        assert_eq!(text(ErrorKind::TooMany, Some(json!(9)), "must have at most 8 items"), "spec.a: Too many: 9: must have at most 8 items");
        assert_eq!(FieldError::new(ErrorKind::Forbidden, "", None, "no").to_string(), "<nil>: Forbidden: no");
    }
}
