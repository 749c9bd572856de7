//! Equality and order of values.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::shape::ListKind;
use crate::value::{Fault, List, Map, Value, no_overload};

/// Equality as `==` has it: numbers compare across their kinds; values of different types differ.
pub fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Null, Value::Null) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Int(_) | Value::Uint(_) | Value::Double(_), Value::Int(_) | Value::Uint(_) | Value::Double(_)) => {
            numbers(a, b) == Some(Ordering::Equal)
        }
        (Value::String(a), Value::String(b)) => **a == **b,
        (Value::Bytes(a), Value::Bytes(b)) => a == b,
        (Value::Duration(a), Value::Duration(b)) => a == b,
        (Value::Timestamp(a), Value::Timestamp(b)) => a == b,
        (Value::Type(a), Value::Type(b)) => a == b,
        (Value::Opaque(a), Value::Opaque(b)) => a == b,
        (Value::Authz(a), Value::Authz(b)) => a.same(b),
        (Value::Optional(None), Value::Optional(None)) => true,
        (Value::Optional(Some(a)), Value::Optional(Some(b))) => equal(a, b),
        (Value::List(a), Value::List(b)) => lists(a, b),
        (Value::Map(a), Value::Map(b)) => maps(a, b),
        _ => false,
    }
}

fn lists(a: &List, b: &List) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let kind = if *a.kind() == ListKind::Atomic { b.kind() } else { a.kind() };
    if *kind == ListKind::Atomic {
        return (0..a.len()).all(|index| match (a.get(index), b.get(index)) {
            (Ok(a), Ok(b)) => equal(&a, &b),
            _ => false,
        });
    }
    let (Ok(mine), Ok(theirs)) = (a.items(), b.items()) else { return false };
    let mine: BTreeMap<String, Value> = mine.into_iter().map(|item| (identity(&item, kind), item)).collect();
    theirs.iter().all(|item| mine.get(&identity(item, kind)).is_some_and(|mine| equal(mine, item)))
}

/// What tells an element of a set or of a keyed list from the others.
pub(crate) fn identity(item: &Value, kind: &ListKind) -> String {
    let text = |value: &Value| value.to_json().map(|json| json.to_string()).unwrap_or_default();
    match (kind, item) {
        (ListKind::Map(keys), Value::Map(map)) => {
            let key = |key: &String| match map.get(&Value::string(key.as_str())) {
                Ok(Some(value)) => text(&value),
                _ => String::new(),
            };
            keys.iter().map(key).collect::<Vec<_>>().join("\u{0}")
        }
        _ => text(item),
    }
}

fn maps(a: &Map, b: &Map) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let Ok(entries) = a.entries() else { return false };
    entries.iter().all(|(key, value)| {
        let key = match key {
            Value::String(text) => Value::string(&**text),
            Value::Int(value) => Value::Int(*value),
            Value::Uint(value) => Value::Uint(*value),
            Value::Bool(value) => Value::Bool(*value),
            _ => return false,
        };
        matches!(b.get(&key), Ok(Some(other)) if equal(value, &other))
    })
}

/// None when a number is not a number.
fn numbers(a: &Value, b: &Value) -> Option<Ordering> {
    let whole = |value: &Value| match value {
        Value::Int(value) => Some(i128::from(*value)),
        Value::Uint(value) => Some(i128::from(*value)),
        _ => None,
    };
    match (whole(a), whole(b), a, b) {
        (Some(a), Some(b), ..) => Some(a.cmp(&b)),
        (_, _, Value::Double(a), Value::Double(b)) => a.partial_cmp(b),
        (Some(a), _, _, Value::Double(b)) => compare_mixed(a, *b),
        (_, Some(b), Value::Double(a), _) => compare_mixed(b, *a).map(Ordering::reverse),
        _ => None,
    }
}

fn compare_mixed(whole: i128, double: f64) -> Option<Ordering> {
    if double.is_nan() {
        return None;
    }
    // Beyond 64 bits the double decides; within, its integer part is exact.
    if double >= 1.9e19 {
        return Some(Ordering::Less);
    }
    if double <= -1.9e19 {
        return Some(Ordering::Greater);
    }
    let floor = double.floor();
    Some(whole.cmp(&(floor as i128)).then(if double > floor { Ordering::Less } else { Ordering::Equal }))
}

/// Order as `<` has it.
pub fn compare(a: &Value, b: &Value) -> Result<Ordering, Fault> {
    match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => Ok(a.cmp(b)),
        (Value::String(a), Value::String(b)) => Ok((**a).cmp(b)),
        (Value::Bytes(a), Value::Bytes(b)) => Ok(a.cmp(b)),
        (Value::Duration(a), Value::Duration(b)) => Ok(a.cmp(b)),
        (Value::Timestamp(a), Value::Timestamp(b)) => Ok(a.cmp(b)),
        (Value::Int(_) | Value::Uint(_) | Value::Double(_), Value::Int(_) | Value::Uint(_) | Value::Double(_)) => {
            numbers(a, b).ok_or_else(|| Fault::Error("NaN values cannot be ordered".into()))
        }
        _ => no_overload(),
    }
}
