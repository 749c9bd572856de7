//! Errors of fields and the paths of fields.

use std::fmt;

pub use kube_rules::{ErrorKind, FieldError};
use serde_json::Value;

pub type Errors = Vec<FieldError>;

pub fn required(field: impl Into<String>, detail: impl Into<String>) -> FieldError {
    FieldError::new(ErrorKind::Required, field, None, detail)
}

pub fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> FieldError {
    FieldError::new(ErrorKind::Forbidden, field, None, detail)
}

pub fn invalid(field: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> FieldError {
    FieldError::new(ErrorKind::Invalid, field, Some(value.into()), detail)
}

pub fn type_invalid(field: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> FieldError {
    FieldError::new(ErrorKind::TypeInvalid, field, Some(value.into()), detail)
}

/// An invalid object or list, whose value is left out.
pub fn invalid_omitted(field: impl Into<String>, detail: impl Into<String>) -> FieldError {
    FieldError::new(ErrorKind::Invalid, field, None, detail)
}

pub fn duplicate(field: impl Into<String>, value: impl Into<Value>) -> FieldError {
    FieldError::new(ErrorKind::Duplicate, field, Some(value.into()), "")
}

pub fn unsupported(field: impl Into<String>, value: impl Into<Value>, supported: &[&str]) -> FieldError {
    let supported: Vec<String> = supported.iter().map(|value| format!("{value:?}")).collect();
    let detail = format!("supported values: {}", supported.join(", "));
    FieldError::new(ErrorKind::NotSupported, field, Some(value.into()), detail)
}

pub fn too_long(field: impl Into<String>, most: u64) -> FieldError {
    let unit = if most == 1 { "byte" } else { "bytes" };
    FieldError::new(ErrorKind::TooLong, field, None, format!("may not be more than {most} {unit}"))
}

pub fn too_many(field: impl Into<String>, found: u64, most: u64) -> FieldError {
    let unit = if most == 1 { "item" } else { "items" };
    FieldError::new(ErrorKind::TooMany, field, Some(found.into()), format!("must have at most {most} {unit}"))
}

/// `path.name`, or the name alone.
pub fn child(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// `path[key]`.
pub fn key(path: &str, key: impl fmt::Display) -> String {
    format!("{path}[{key}]")
}
