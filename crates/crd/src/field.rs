//! Errors of fields, as upstream prints them, and the paths of fields.

use std::fmt;

use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Required,
    Invalid,
    NotSupported,
    Duplicate,
    Forbidden,
    TooLong,
    TooMany,
    TypeInvalid,
    Internal,
}

#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    pub kind: Kind,
    /// Empty for errors of the whole object.
    pub field: String,
    /// None where the value is left out of the message.
    pub value: Option<Value>,
    pub detail: String,
}

pub type Errors = Vec<FieldError>;

impl Kind {
    /// The text in messages.
    pub fn text(self) -> &'static str {
        match self {
            Kind::Required => "Required value",
            Kind::Invalid | Kind::TypeInvalid => "Invalid value",
            Kind::NotSupported => "Unsupported value",
            Kind::Duplicate => "Duplicate value",
            Kind::Forbidden => "Forbidden",
            Kind::TooLong => "Too long",
            Kind::TooMany => "Too many",
            Kind::Internal => "Internal error",
        }
    }

    /// The reason in the causes of a Status.
    pub fn reason(self) -> &'static str {
        match self {
            Kind::Required => "FieldValueRequired",
            Kind::Invalid => "FieldValueInvalid",
            Kind::NotSupported => "FieldValueNotSupported",
            Kind::Duplicate => "FieldValueDuplicate",
            Kind::Forbidden => "FieldValueForbidden",
            Kind::TooLong => "FieldValueTooLong",
            Kind::TooMany => "FieldValueTooMany",
            Kind::TypeInvalid => "FieldValueTypeInvalid",
            Kind::Internal => "InternalError",
        }
    }
}

impl FieldError {
    /// The message without the field.
    pub fn body(&self) -> String {
        let mut out = self.kind.text().to_owned();
        match &self.value {
            Some(Value::String(text)) => out.push_str(&format!(": {text:?}")),
            Some(value) => out.push_str(&format!(": {value}")),
            None => {}
        }
        if !self.detail.is_empty() {
            out.push_str(": ");
            out.push_str(&self.detail);
        }
        out
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = if self.field.is_empty() { "<nil>" } else { &self.field };
        write!(f, "{field}: {}", self.body())
    }
}

fn make(kind: Kind, field: impl Into<String>, value: Option<Value>, detail: impl Into<String>) -> FieldError {
    FieldError { kind, field: field.into(), value, detail: detail.into() }
}

pub fn required(field: impl Into<String>, detail: impl Into<String>) -> FieldError {
    make(Kind::Required, field, None, detail)
}

pub fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> FieldError {
    make(Kind::Forbidden, field, None, detail)
}

pub fn invalid(field: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> FieldError {
    make(Kind::Invalid, field, Some(value.into()), detail)
}

pub fn type_invalid(field: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> FieldError {
    make(Kind::TypeInvalid, field, Some(value.into()), detail)
}

/// An invalid object or list, whose value is left out.
pub fn invalid_omitted(field: impl Into<String>, detail: impl Into<String>) -> FieldError {
    make(Kind::Invalid, field, None, detail)
}

pub fn duplicate(field: impl Into<String>, value: impl Into<Value>) -> FieldError {
    make(Kind::Duplicate, field, Some(value.into()), "")
}

pub fn unsupported(field: impl Into<String>, value: impl Into<Value>, supported: &[&str]) -> FieldError {
    let supported: Vec<String> = supported.iter().map(|value| format!("{value:?}")).collect();
    let detail = format!("supported values: {}", supported.join(", "));
    make(Kind::NotSupported, field, Some(value.into()), detail)
}

pub fn too_long(field: impl Into<String>, most: u64) -> FieldError {
    let unit = if most == 1 { "byte" } else { "bytes" };
    make(Kind::TooLong, field, None, format!("may not be more than {most} {unit}"))
}

pub fn too_many(field: impl Into<String>, found: u64, most: u64) -> FieldError {
    let unit = if most == 1 { "item" } else { "items" };
    make(Kind::TooMany, field, Some(found.into()), format!("must have at most {most} {unit}"))
}

/// `path.name`, or the name alone.
pub fn child(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// `path[key]`.
pub fn key(path: &str, key: impl fmt::Display) -> String {
    format!("{path}[{key}]")
}
