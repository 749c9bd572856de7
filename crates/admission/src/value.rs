//! Reading members of objects as plain JSON; `null` counts as absent.

use kube_rules::{Amounts, Quantity};
use serde_json::{Map, Value};

/// The value at a path.
pub(crate) fn lookup<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    let found = path.iter().try_fold(value, |value, member| value.get(member))?;
    if found.is_null() { None } else { Some(found) }
}

/// The text at a path; empty when absent.
pub(crate) fn text<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    lookup(value, path).and_then(Value::as_str).unwrap_or_default()
}

/// The list at a path; empty when absent.
pub(crate) fn list<'a>(value: &'a Value, path: &[&str]) -> &'a [Value] {
    lookup(value, path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The texts of the list at a path.
pub(crate) fn texts<'a>(value: &'a Value, path: &[&str]) -> Vec<&'a str> {
    list(value, path).iter().filter_map(Value::as_str).collect()
}

/// The members of the map at a path.
pub(crate) fn members<'a>(value: &'a Value, path: &[&str]) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
    lookup(value, path).and_then(Value::as_object).into_iter().flatten()
}

/// Whether the value at a path is `true`.
pub(crate) fn is_true(value: &Value, path: &[&str]) -> bool {
    lookup(value, path) == Some(&Value::Bool(true))
}

/// `metadata.name`.
pub(crate) fn name(object: &Value) -> &str {
    text(object, &["metadata", "name"])
}

/// Whether a deletion has begun.
pub(crate) fn is_deleting(object: &Value) -> bool {
    lookup(object, &["metadata", "deletionTimestamp"]).is_some()
}

/// The quantities of the map at a path. The API server refuses others before admission; one that gets here is left out.
pub(crate) fn amounts(value: &Value, path: &[&str]) -> Amounts {
    let quantity = |value: &Value| match value {
        Value::String(text) => Quantity::parse(text).ok(),
        Value::Number(number) => Quantity::parse(&number.to_string()).ok(),
        _ => None,
    };
    members(value, path).filter_map(|(name, value)| Some((name.clone(), quantity(value)?))).collect()
}

/// The map at a path below an object, made where it is absent.
pub(crate) fn map_mut<'a>(value: &'a mut Value, path: &[&str]) -> &'a mut Map<String, Value> {
    let slot = path.iter().fold(value, |value, member| {
        if !value.is_object() {
            *value = Value::Object(Map::new());
        }
        &mut value[*member]
    });
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    slot.as_object_mut().expect("was made a map above")
}
