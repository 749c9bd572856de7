//! Conversions between types, and the text of values.

use std::sync::Arc;

use crate::kube::Opaque;
use crate::time;
use crate::value::{Result, Value, error, no_overload};

fn failed<'a>(value: &Value<'a>, to: &str) -> Result<Value<'a>> {
    error(format!("type conversion error from '{}' to '{to}'", value.type_name()))
}

pub fn to_bool<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Bool(value)] => Ok(Value::Bool(*value)),
        [value @ Value::String(text)] => match &**text {
            "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(Value::Bool(true)),
            "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(Value::Bool(false)),
            _ => failed(value, "bool"),
        },
        _ => no_overload(),
    }
}

pub fn to_bytes<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Bytes(bytes)] => Ok(Value::Bytes(bytes.clone())),
        [Value::String(text)] => Ok(Value::Bytes(text.as_bytes().into())),
        _ => no_overload(),
    }
}

pub fn to_double<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Double(value)] => Ok(Value::Double(*value)),
        [Value::Int(value)] => Ok(Value::Double(*value as f64)),
        [Value::Uint(value)] => Ok(Value::Double(*value as f64)),
        [value @ Value::String(text)] => text.parse().map(Value::Double).or_else(|_| failed(value, "double")),
        _ => no_overload(),
    }
}

pub fn to_int<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let overflow = || error("integer overflow");
    match args {
        [Value::Int(value)] => Ok(Value::Int(*value)),
        [Value::Uint(value)] => i64::try_from(*value).map(Value::Int).or_else(|_| overflow()),
        [Value::Double(value)] if value.abs() < 9_223_372_036_854_775_808.0 => Ok(Value::Int(*value as i64)),
        [Value::Double(_)] => overflow(),
        [Value::Duration(nanos)] => Ok(Value::Int(*nanos)),
        [Value::Timestamp(at)] => Ok(Value::Int(at.as_second())),
        [value @ Value::String(text)] => text.parse().map(Value::Int).or_else(|_| failed(value, "int")),
        _ => no_overload(),
    }
}

pub fn to_uint<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let overflow = || error("unsigned integer overflow");
    match args {
        [Value::Uint(value)] => Ok(Value::Uint(*value)),
        [Value::Int(value)] => u64::try_from(*value).map(Value::Uint).or_else(|_| overflow()),
        [Value::Double(value)] if *value >= 0.0 && *value < 18_446_744_073_709_551_616.0 => Ok(Value::Uint(*value as u64)),
        [Value::Double(_)] => overflow(),
        [value @ Value::String(text)] => text.parse().map(Value::Uint).or_else(|_| failed(value, "uint")),
        _ => no_overload(),
    }
}

pub fn to_duration<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Duration(nanos)] | [Value::Int(nanos)] => Ok(Value::Duration(*nanos)),
        [value @ Value::String(text)] => time::parse_duration(text).map(Value::Duration).or_else(|_| failed(value, "google.protobuf.Duration")),
        _ => no_overload(),
    }
}

pub fn to_timestamp<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Timestamp(at)] => Ok(Value::Timestamp(*at)),
        [Value::Int(seconds)] => time::moment(i128::from(*seconds) * 1_000_000_000).map(Value::Timestamp),
        [value @ Value::String(text)] => match time::parse_timestamp(text) {
            Some(at) => Ok(Value::Timestamp(at)),
            None => failed(value, "google.protobuf.Timestamp"),
        },
        _ => no_overload(),
    }
}

pub fn to_string<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [value] = args else { return no_overload() };
    Ok(match value {
        Value::String(_) => value.clone(),
        Value::Bytes(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => Value::string(text),
            Err(_) => return error("invalid UTF-8 in bytes, cannot convert to string"),
        },
        Value::Bool(_) | Value::Int(_) | Value::Uint(_) | Value::Double(_) | Value::Duration(_) | Value::Timestamp(_) | Value::Opaque(_) => {
            match value {
                Value::Opaque(opaque) if !matches!(**opaque, Opaque::Ip(_) | Opaque::Cidr(_)) => return no_overload(),
                value => Value::string(display(value)),
            }
        }
        _ => return no_overload(),
    })
}

pub fn to_dyn<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [value] = args else { return no_overload() };
    Ok(value.clone())
}

pub fn type_of<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [value] = args else { return no_overload() };
    Ok(Value::Type(value.type_name()))
}

/// A double as Go's `strconv.FormatFloat(x, 'g', -1, 64)` writes it.
pub fn double_text(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf".into() } else { "-Inf".into() };
    }
    let exponential = format!("{value:e}");
    let (mantissa, exponent) = exponential.split_once('e').unwrap_or((&exponential, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..21).contains(&exponent) {
        return format!("{value}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// The text that `string(x)` and `%s` give; containers as `[1, 2]` and `{key: value}`.
pub fn display(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Uint(value) => value.to_string(),
        Value::Double(value) => double_text(*value),
        Value::String(text) => text.to_string(),
        Value::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::Duration(nanos) => time::format_duration(*nanos),
        Value::Timestamp(at) => at.to_string(),
        Value::Type(name) => name.to_string(),
        Value::List(list) => {
            let items = list.items().unwrap_or_default();
            format!("[{}]", items.iter().map(display).collect::<Vec<_>>().join(", "))
        }
        Value::Map(map) => {
            let mut entries: Vec<String> =
                map.entries().unwrap_or_default().iter().map(|(key, value)| format!("{}: {}", display(key), display(value))).collect();
            entries.sort();
            format!("{{{}}}", entries.join(", "))
        }
        Value::Optional(None) => "optional.none()".into(),
        Value::Optional(Some(inner)) => format!("optional({})", display(inner)),
        Value::Opaque(opaque) => opaque.to_string(),
        Value::Authz(check) => check.type_name().to_string(),
    }
}

/// Whether a value is the zero of its type, as `optional.ofNonZeroValue` asks.
pub fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Optional(None) => true,
        Value::Bool(value) => !value,
        Value::Int(value) | Value::Duration(value) => *value == 0,
        Value::Uint(value) => *value == 0,
        Value::Double(value) => *value == 0.0,
        Value::String(text) => text.is_empty(),
        Value::Bytes(bytes) => bytes.is_empty(),
        Value::List(list) => list.is_empty(),
        Value::Map(map) => map.is_empty(),
        _ => false,
    }
}

/// The functions of optional values.
pub fn optional<'a>(name: &str, args: &[Value<'a>]) -> Result<Value<'a>> {
    match (name, args) {
        ("optional.of", [value]) => Ok(Value::optional(Some(value.clone()))),
        ("optional.ofNonZeroValue", [value]) => Ok(Value::optional((!is_zero(value)).then(|| value.clone()))),
        ("optional.none", []) => Ok(Value::optional(None)),
        ("hasValue", [Value::Optional(held)]) => Ok(Value::Bool(held.is_some())),
        ("value", [Value::Optional(held)]) => match held {
            Some(held) => Ok((**held).clone()),
            None => error("optional.none() dereference"),
        },
        ("or", [Value::Optional(Some(_)), _]) => Ok(args[0].clone()),
        ("or", [Value::Optional(None), other @ Value::Optional(_)]) => Ok(other.clone()),
        ("orValue", [Value::Optional(held), other]) => Ok(held.as_deref().unwrap_or(other).clone()),
        ("optional.unwrap" | "unwrapOpt", [Value::List(list)]) => {
            let mut out = Vec::new();
            for item in list.items()? {
                match item {
                    Value::Optional(Some(held)) => out.push(Arc::unwrap_or_clone(held)),
                    Value::Optional(None) => {}
                    other => return error(format!("value {} is not optional", display(&other))),
                }
            }
            Ok(Value::list(out))
        }
        ("first" | "last", [Value::List(list)]) => {
            let index = if name == "first" { 0 } else { list.len().wrapping_sub(1) };
            Ok(Value::optional(if list.is_empty() { None } else { Some(list.get(index)?) }))
        }
        _ => no_overload(),
    }
}
