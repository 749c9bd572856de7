//! JSON values as structured-merge-diff sees them: one order over all types, numbers compared by value, Go's ways to print.

use serde_json::{Map, Number, Value};
use std::cmp::Ordering;
use std::fmt::Write;

fn rank(value: &Value) -> u8 {
    match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    }
}

fn compare_numbers(left: &Number, right: &Number) -> Ordering {
    match (left.as_i64(), right.as_i64()) {
        (Some(left), Some(right)) => left.cmp(&right),
        _ => {
            let (left, right) = (left.as_f64().unwrap_or_default(), right.as_f64().unwrap_or_default());
            left.partial_cmp(&right).unwrap_or(Ordering::Equal)
        }
    }
}

/// A total order: numbers, strings, booleans, lists, objects, null.
pub(crate) fn compare(left: &Value, right: &Value) -> Ordering {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => compare_numbers(left, right),
        (Value::String(left), Value::String(right)) => left.cmp(right),
        (Value::Bool(left), Value::Bool(right)) => left.cmp(right),
        (Value::Array(left), Value::Array(right)) => {
            let mut pairs = left.iter().zip(right).map(|(left, right)| compare(left, right));
            pairs.find(|order| order.is_ne()).unwrap_or_else(|| left.len().cmp(&right.len()))
        }
        (Value::Object(left), Value::Object(right)) => compare_objects(left, right),
        _ => rank(left).cmp(&rank(right)),
    }
}

fn compare_objects(left: &Map<String, Value>, right: &Map<String, Value>) -> Ordering {
    let sorted = |members: &Map<String, Value>| {
        let mut names: Vec<String> = members.keys().cloned().collect();
        names.sort();
        names
    };
    let (left_names, right_names) = (sorted(left), sorted(right));
    let mut pairs = left_names.iter().zip(&right_names).map(|(name, other)| name.cmp(other).then_with(|| compare(&left[name], &right[other])));
    pairs.find(|order| order.is_ne()).unwrap_or_else(|| left.len().cmp(&right.len()))
}

/// Whether the values are the same: `1` and `1.0` are, objects are in any order of members.
pub fn equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Array(left), Value::Array(right)) => left.len() == right.len() && left.iter().zip(right).all(|(left, right)| equal(left, right)),
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len() && left.iter().all(|(name, value)| right.get(name).is_some_and(|other| equal(value, other)))
        }
        _ => compare(left, right).is_eq(),
    }
}

/// A value in a path, as messages print it.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number_text(number),
        Value::String(text) => quoted(text),
        Value::Array(items) => format!("[{}]", items.iter().map(text).collect::<Vec<_>>().join(",")),
        Value::Object(members) => members.iter().map(|(name, value)| format!("{name}={}", text(value))).collect(),
    }
}

fn number_text(number: &Number) -> String {
    match number.as_f64() {
        Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 1e15 => format!("{float:.0}"),
        _ => number.to_string(),
    }
}

/// Go's `%q`.
pub(crate) fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for letter in text.chars() {
        match letter {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            control if control.is_control() => drop(write!(quoted, "\\x{:02x}", control as u32)),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

/// JSON as Go's encoder writes it: members sorted, `<`, `>` and `&` escaped.
pub(crate) fn go_json(value: &Value, out: &mut String) {
    match value {
        Value::String(text) => go_json_string(text, out),
        Value::Number(number) => out.push_str(&number_text(number)),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                go_json(item, out);
            }
            out.push(']');
        }
        Value::Object(members) => {
            let mut names: Vec<&String> = members.keys().collect();
            names.sort();
            out.push('{');
            for (index, name) in names.into_iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                go_json_string(name, out);
                out.push(':');
                go_json(&members[name], out);
            }
            out.push('}');
        }
        Value::Null | Value::Bool(_) => out.push_str(&value.to_string()),
    }
}

pub(crate) fn go_json_string(text: &str, out: &mut String) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => drop(write!(out, "\\u{:04x}", letter as u32)),
            other => out.push(other),
        }
    }
    out.push('"');
}

/// Go's `%v` of an untyped value.
pub(crate) fn go_text(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".into(),
        Value::String(text) => text.clone(),
        Value::Number(number) => number_text(number),
        Value::Bool(flag) => flag.to_string(),
        Value::Array(items) => format!("[{}]", items.iter().map(go_text).collect::<Vec<_>>().join(" ")),
        Value::Object(members) => go_map(members),
    }
}

pub(crate) fn go_map(members: &Map<String, Value>) -> String {
    let mut parts: Vec<String> = members.iter().map(|(name, value)| format!("{name}:{}", go_text(value))).collect();
    parts.sort();
    format!("map[{}]", parts.join(" "))
}

/// Go's `%#v` of an untyped value.
pub(crate) fn go_syntax(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".into(),
        Value::String(text) => quoted(text),
        Value::Array(items) => format!("[]interface {{}}{{{}}}", items.iter().map(go_syntax).collect::<Vec<_>>().join(", ")),
        Value::Object(members) => {
            let mut parts: Vec<String> = members.iter().map(|(name, value)| format!("{}:{}", quoted(name), go_syntax(value))).collect();
            parts.sort();
            format!("map[string]interface {{}}{{{}}}", parts.join(", "))
        }
        other => go_text(other),
    }
}

/// How Go's reflection names the type of an untyped value.
pub(crate) fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}
