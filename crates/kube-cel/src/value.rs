//! Values of expressions. JSON is borrowed and read lazily, never copied whole.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value as Json;

use crate::authz;
use crate::equality;
use crate::kube::Opaque;
use crate::shape::{DYN, Form, ListKind, Object, Shape};
use crate::time;

/// Why an evaluation has no value.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// An error of the expression, with upstream's text; `||` and `&&` may absorb it.
    Error(String),
    /// The cost limit was passed, which ends everything.
    CostLimit,
}

pub type Result<T> = std::result::Result<T, Fault>;

pub(crate) fn error<T>(message: impl Into<String>) -> Result<T> {
    Err(Fault::Error(message.into()))
}

pub(crate) fn no_overload<T>() -> Result<T> {
    error("no such overload")
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Error(message) => f.write_str(message),
            Fault::CostLimit => f.write_str("operation cancelled: actual cost limit exceeded"),
        }
    }
}

impl std::error::Error for Fault {}

#[derive(Clone)]
pub enum Text<'a> {
    Borrowed(&'a str),
    Shared(Arc<str>),
}

impl std::ops::Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Text::Borrowed(text) => text,
            Text::Shared(text) => text,
        }
    }
}

#[derive(Clone)]
pub enum Value<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Text<'a>),
    Bytes(Arc<[u8]>),
    /// Nanoseconds.
    Duration(i64),
    Timestamp(jiff::Timestamp),
    /// The name of a type.
    Type(Arc<str>),
    List(List<'a>),
    Map(Map<'a>),
    Optional(Option<Arc<Value<'a>>>),
    Opaque(Arc<Opaque>),
    Authz(authz::Check<'a>),
}

#[derive(Clone)]
pub enum List<'a> {
    Json { items: &'a [Json], shape: &'a Shape, kind: &'a ListKind },
    Owned(Arc<Vec<Value<'a>>>),
}

/// Keys of maps, equal across the kinds of numbers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    Bool(bool),
    Number(i128),
    String(String),
}

/// Fields that are computed when they are first read.
pub trait Fields<'a>: Send + Sync {
    /// None when there is no such field.
    fn get(&self, name: &str) -> Option<Result<Value<'a>>>;
    fn names(&self) -> Vec<String>;
}

#[derive(Clone)]
pub enum Map<'a> {
    Json {
        map: &'a serde_json::Map<String, Json>,
        values: &'a Shape,
    },
    Object {
        map: &'a serde_json::Map<String, Json>,
        object: &'a Object,
    },
    Owned(Arc<BTreeMap<Key, (Value<'a>, Value<'a>)>>),
    /// Made by `Object{…}`: the name of its type and its fields.
    Message(Arc<str>, Arc<BTreeMap<Key, (Value<'a>, Value<'a>)>>),
    Lazy(&'a dyn Fields<'a>),
}

impl<'a> Value<'a> {
    pub fn string(text: impl Into<Arc<str>>) -> Self {
        Value::String(Text::Shared(text.into()))
    }

    pub fn str(text: &'a str) -> Self {
        Value::String(Text::Borrowed(text))
    }

    pub fn list(items: Vec<Value<'a>>) -> Self {
        Value::List(List::Owned(Arc::new(items)))
    }

    pub fn map(entries: impl IntoIterator<Item = (Value<'a>, Value<'a>)>) -> Self {
        let entries = entries.into_iter().filter_map(|(key, value)| Some((Key::of(&key)?, (key, value))));
        Value::Map(Map::Owned(Arc::new(entries.collect())))
    }

    pub fn optional(value: Option<Value<'a>>) -> Self {
        Value::Optional(value.map(Arc::new))
    }

    /// A JSON value of unknown form: whole numbers are integers.
    pub fn json(json: &'a Json) -> Self {
        Value::shaped(json, &DYN).unwrap_or(Value::Null)
    }

    /// A JSON value of a declared form.
    pub fn shaped(json: &'a Json, shape: &'a Shape) -> Result<Self> {
        if json.is_null() {
            return match shape.form {
                Form::Dyn => Ok(Value::Null),
                _ if shape.nullable => Ok(Value::Null),
                _ => error("invalid data, got null for schema with nullable=false"),
            };
        }
        let wrong = |wanted: &str| error(format!("invalid data, expected {wanted}, got {}", go_type(json)));
        let wrong_container = |wanted: &str, ty: &str| error(format!("invalid data, expected {wanted} for the provided schema with type={ty}"));
        match &shape.form {
            Form::Dyn => Ok(Value::untyped(json)),
            Form::Bool => json.as_bool().map(Value::Bool).map_or_else(|| wrong("bool"), Ok),
            Form::Int => match whole(json) {
                Some(number) => Ok(Value::Int(number)),
                None => wrong("int"),
            },
            Form::Double => json.as_f64().map(Value::Double).map_or_else(|| wrong("float"), Ok),
            Form::List(items, kind) => match json.as_array() {
                Some(list) => Ok(Value::List(List::Json { items: list, shape: items, kind })),
                None => wrong_container("an array", "array"),
            },
            Form::Map(values) => match json.as_object() {
                Some(map) => Ok(Value::Map(Map::Json { map, values })),
                None => wrong_container("a map", "object"),
            },
            Form::Object(object) => match json.as_object() {
                Some(map) => Ok(Value::Map(Map::Object { map, object })),
                None => wrong_container("a map", "object"),
            },
            Form::String | Form::Bytes | Form::Duration | Form::Timestamp | Form::Date => {
                json.as_str().map_or_else(|| wrong("string"), |text| Value::formatted(text, &shape.form))
            }
        }
    }

    fn formatted(text: &'a str, form: &Form) -> Result<Self> {
        match form {
            Form::Bytes => match STANDARD.decode(text) {
                Ok(bytes) => Ok(Value::Bytes(bytes.into())),
                Err(reason) => error(format!("Invalid byte formatted string {text}: {reason}")),
            },
            Form::Duration => match time::parse_duration(text) {
                Ok(nanos) => Ok(Value::Duration(nanos)),
                Err(reason) => error(format!("Invalid duration {text}: {reason}")),
            },
            Form::Timestamp => match time::parse_timestamp(text) {
                Some(at) => Ok(Value::Timestamp(at)),
                None => error(format!("Invalid date-time formatted string {text}: unable to parse date-time")),
            },
            Form::Date => match time::parse_timestamp(&format!("{text}T00:00:00Z")) {
                Some(at) => Ok(Value::Timestamp(at)),
                None => error(format!("Invalid date formatted string {text}: unable to parse date")),
            },
            _ => Ok(Value::str(text)),
        }
    }

    fn untyped(json: &'a Json) -> Self {
        match json {
            Json::Null => Value::Null,
            Json::Bool(value) => Value::Bool(*value),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(value), _) => Value::Int(value),
                (None, Some(value)) => Value::Uint(value),
                (None, None) => Value::Double(number.as_f64().unwrap_or_default()),
            },
            Json::String(text) => Value::str(text),
            Json::Array(items) => Value::List(List::Json { items, shape: &DYN, kind: &ListKind::Atomic }),
            Json::Object(map) => Value::Map(Map::Json { map, values: &DYN }),
        }
    }

    pub(crate) fn is_true(&self) -> bool {
        matches!(self, Value::Bool(true))
    }

    /// The name of the value's type, as `type(x)` gives it.
    pub fn type_name(&self) -> Arc<str> {
        let name = match self {
            Value::Null => "null_type",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Uint(_) => "uint",
            Value::Double(_) => "double",
            Value::String(_) => "string",
            Value::Bytes(_) => "bytes",
            Value::Duration(_) => "google.protobuf.Duration",
            Value::Timestamp(_) => "google.protobuf.Timestamp",
            Value::Type(_) => "type",
            Value::List(_) => "list",
            Value::Map(Map::Message(name, _)) => return name.clone(),
            Value::Map(Map::Object { object, .. }) => object.name.as_str(),
            Value::Map(_) => "map",
            Value::Optional(_) => "optional_type",
            Value::Opaque(opaque) => opaque.type_name(),
            Value::Authz(check) => check.type_name(),
        };
        name.into()
    }

    /// Upstream's size of a value: characters, bytes, elements, entries; one for everything else.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Value::String(text) => text.chars().count() as u64,
            Value::Bytes(bytes) => bytes.len() as u64,
            Value::List(list) => list.len() as u64,
            Value::Map(map) => map.len() as u64,
            Value::Optional(Some(inner)) => inner.size(),
            Value::Opaque(opaque) => opaque.size(),
            _ => 1,
        }
    }

    /// The value as JSON; none for values that JSON cannot hold.
    pub fn to_json(&self) -> Option<Json> {
        Some(match self {
            Value::Null => Json::Null,
            Value::Bool(value) => Json::Bool(*value),
            Value::Int(value) => (*value).into(),
            Value::Uint(value) => (*value).into(),
            Value::Double(value) => Json::Number(serde_json::Number::from_f64(*value)?),
            Value::String(text) => Json::String(text.to_string()),
            Value::Bytes(bytes) => Json::String(STANDARD.encode(bytes)),
            Value::Duration(nanos) => Json::String(time::format_duration(*nanos)),
            Value::Timestamp(at) => Json::String(at.to_string()),
            Value::List(list) => {
                let items: Option<Vec<Json>> = (0..list.len()).map(|index| list.get(index).ok()?.to_json()).collect();
                Json::Array(items?)
            }
            Value::Map(map) => {
                let mut out = serde_json::Map::new();
                for (key, value) in map.entries().ok()? {
                    let Value::String(key) = key else { return None };
                    // An optional field without value is left out.
                    match value {
                        Value::Optional(None) => {}
                        value => {
                            out.insert(key.to_string(), value.to_json()?);
                        }
                    }
                }
                Json::Object(out)
            }
            Value::Optional(Some(inner)) => inner.to_json()?,
            Value::Opaque(opaque) => Json::String(opaque.to_string()),
            Value::Optional(None) | Value::Type(_) | Value::Authz(_) => return None,
        })
    }
}

/// An integer, or a number that upstream's decoding made an integer of.
fn whole(json: &Json) -> Option<i64> {
    json.as_i64().or_else(|| {
        let number = json.as_f64()?;
        (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64)
    })
}

/// The name of Go's type for a JSON value.
fn go_type(json: &Json) -> &'static str {
    match json {
        Json::Null => "<nil>",
        Json::Bool(_) => "bool",
        Json::Number(number) if number.is_f64() => "float64",
        Json::Number(_) => "int64",
        Json::String(_) => "string",
        Json::Array(_) => "[]interface {}",
        Json::Object(_) => "map[string]interface {}",
    }
}

impl<'a> List<'a> {
    pub fn len(&self) -> usize {
        match self {
            List::Json { items, .. } => items.len(),
            List::Owned(items) => items.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get(&self, index: usize) -> Result<Value<'a>> {
        let out_of_bounds = || error(format!("index out of bounds: {index}"));
        match self {
            List::Json { items, shape, .. } => items.get(index).map_or_else(out_of_bounds, |item| Value::shaped(item, shape)),
            List::Owned(items) => items.get(index).cloned().map_or_else(out_of_bounds, Ok),
        }
    }

    pub fn items(&self) -> Result<Vec<Value<'a>>> {
        (0..self.len()).map(|index| self.get(index)).collect()
    }

    pub(crate) fn kind(&self) -> &ListKind {
        match self {
            List::Json { kind, .. } => kind,
            List::Owned(_) => &ListKind::Atomic,
        }
    }

    pub(crate) fn contains(&self, wanted: &Value<'a>) -> Result<bool> {
        for index in 0..self.len() {
            if equality::equal(&self.get(index)?, wanted) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Key {
    /// None for values that cannot be keys.
    pub fn of(value: &Value) -> Option<Key> {
        Some(match value {
            Value::Bool(value) => Key::Bool(*value),
            Value::Int(value) => Key::Number(i128::from(*value)),
            Value::Uint(value) => Key::Number(i128::from(*value)),
            Value::Double(value) if value.fract() == 0.0 && value.abs() < 1.8e19 => Key::Number(*value as i128),
            Value::String(text) => Key::String(text.to_string()),
            _ => return None,
        })
    }
}

impl<'a> Map<'a> {
    pub fn len(&self) -> usize {
        match self {
            Map::Json { map, .. } => map.len(),
            Map::Object { map, object } => object.fields.values().filter(|property| map.contains_key(&property.name)).count(),
            Map::Owned(map) | Map::Message(_, map) => map.len(),
            Map::Lazy(fields) => fields.names().len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value of a key; none when the map does not have it.
    pub fn get(&self, key: &Value<'a>) -> Result<Option<Value<'a>>> {
        match (self, key) {
            (Map::Json { map, values }, Value::String(name)) => map.get(&**name).map(|value| Value::shaped(value, values)).transpose(),
            (Map::Object { map, object }, Value::String(name)) => {
                let property = object.fields.get(&**name);
                let found = property.and_then(|property| Some((map.get(&property.name)?, &*property.shape)));
                found.map(|(value, shape)| Value::shaped(value, shape)).transpose()
            }
            (Map::Owned(map) | Map::Message(_, map), key) => Ok(Key::of(key).and_then(|key| map.get(&key)).map(|(_, value)| value.clone())),
            (Map::Lazy(fields), Value::String(name)) => fields.get(name).transpose(),
            _ => Ok(None),
        }
    }

    pub fn keys(&self) -> Vec<Value<'a>> {
        match self {
            Map::Json { map, .. } => map.keys().map(|key| Value::str(key)).collect(),
            Map::Object { map, object } => {
                let present = object.fields.iter().filter(|(_, property)| map.contains_key(&property.name));
                present.map(|(name, _)| Value::str(name)).collect()
            }
            Map::Owned(map) | Map::Message(_, map) => map.values().map(|(key, _)| key.clone()).collect(),
            Map::Lazy(fields) => fields.names().into_iter().map(Value::string).collect(),
        }
    }

    pub fn entries(&self) -> Result<Vec<(Value<'a>, Value<'a>)>> {
        let mut out = Vec::new();
        for key in self.keys() {
            if let Some(value) = self.get(&key)? {
                out.push((key, value));
            }
        }
        Ok(out)
    }
}
