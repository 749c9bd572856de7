//! How upstream's printers put values into words.

use crate::selectors::LabelSelector;
use jiff::Timestamp;
use serde_json::{Map, Value};

/// A text by JSON pointer; empty when it is missing.
pub fn get<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// A text by JSON pointer, or what stands for nothing.
pub fn get_or<'a>(object: &'a Value, pointer: &str, missing: &'a str) -> &'a str {
    Some(get(object, pointer)).filter(|text| !text.is_empty()).unwrap_or(missing)
}

/// A whole number by JSON pointer; 0 when it is missing.
pub fn integer(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or_default()
}

/// A list by JSON pointer; empty when it is missing.
pub fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The number of members of an object by JSON pointer.
pub fn count(object: &Value, pointer: &str) -> usize {
    object.pointer(pointer).and_then(Value::as_object).map_or(0, Map::len)
}

/// The time since the timestamp at the pointer, as columns show it.
pub fn since(object: &Value, pointer: &str, now: Timestamp) -> String {
    time(object, pointer).map_or_else(|| "<unknown>".into(), |then| human_duration(now.as_second() - then.as_second()))
}

pub fn time(object: &Value, pointer: &str) -> Option<Timestamp> {
    get(object, pointer).parse().ok()
}

/// A number of seconds in at most two units, as upstream's `duration.HumanDuration` prints it.
pub fn human_duration(seconds: i64) -> String {
    let two = |large: i64, large_unit: &str, small: i64, small_unit: &str| match small {
        0 => format!("{large}{large_unit}"),
        small => format!("{large}{large_unit}{small}{small_unit}"),
    };
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    match () {
        _ if seconds < -1 => "<invalid>".into(),
        _ if seconds < 0 => "0s".into(),
        _ if seconds < 120 => format!("{seconds}s"),
        _ if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => two(hours, "h", minutes % 60, "m"),
        _ if hours < 48 => format!("{hours}h"),
        _ if hours < 24 * 8 => two(hours / 24, "d", hours % 24, "h"),
        _ if hours < 24 * 365 * 2 => format!("{}d", hours / 24),
        _ if hours < 24 * 365 * 8 => two(hours / 24 / 365, "y", hours / 24 % 365, "d"),
        _ => format!("{}y", hours / 24 / 365),
    }
}

/// Labels as `a=b,c=d` in order; `<none>` without any.
pub fn labels(object: &Value, pointer: &str) -> String {
    let mut parts: Vec<String> = object
        .pointer(pointer)
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    parts.sort();
    or_none(parts.join(","))
}

/// A label selector as `a=b,c in (d,e),!f`; `<none>` when it selects nothing or everything.
pub fn selector(object: &Value, pointer: &str) -> String {
    let Some(selector) = object.pointer(pointer) else { return "<none>".into() };
    or_none(LabelSelector::from_value(selector).to_string())
}

/// The text, or `<none>` for an empty one.
pub fn or_none(text: String) -> String {
    if text.is_empty() { "<none>".into() } else { text }
}

/// The first three items, and how many more there are; `missing` stands for none.
pub fn first_three(items: &[String], missing: &str) -> String {
    const MOST: usize = 3;
    match items.len() {
        0 => missing.to_string(),
        count if count > MOST => format!("{} + {} more...", items[..MOST].join(","), count - MOST),
        _ => items.join(","),
    }
}

/// An address with a port, an IPv6 address in brackets.
pub fn host_port(host: &str, port: i64) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}
