//! Values of columns: atoms, sets and maps, and their JSON form (RFC 7047, section 5.1).
//!
//! A scalar is a set of one, an optional value a set of at most one, as the protocol has it.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::schema::{AtomType, ColumnType};

/// A real number, ordered as `f64::total_cmp` has it, so that sets of them are sets.
#[derive(Clone, Copy, Debug)]
pub struct Real(pub f64);

impl PartialEq for Real {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Real {}

impl PartialOrd for Real {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Real {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// An atomic value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Atom {
    /// An integer of 64 bits.
    Integer(i64),
    /// A real number.
    Real(Real),
    /// A boolean.
    Boolean(bool),
    /// A text.
    String(String),
    /// A row.
    Uuid(Uuid),
    /// A row that the same transaction inserts under this name; never in a replica.
    Named(String),
}

impl From<&str> for Atom {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

impl From<String> for Atom {
    fn from(text: String) -> Self {
        Self::String(text)
    }
}

impl From<i64> for Atom {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

impl From<bool> for Atom {
    fn from(value: bool) -> Self {
        Self::Boolean(value)
    }
}

impl From<Uuid> for Atom {
    fn from(uuid: Uuid) -> Self {
        Self::Uuid(uuid)
    }
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(number) => write!(f, "{number}"),
            Self::Real(number) => write!(f, "{}", number.0),
            Self::Boolean(value) => write!(f, "{value}"),
            Self::String(text) if text.is_empty() || text.contains(|c: char| c.is_whitespace() || c.is_control() || ",={}[]\"".contains(c)) => {
                write!(f, "{text:?}")
            }
            Self::String(text) => f.write_str(text),
            Self::Uuid(uuid) => write!(f, "{uuid}"),
            Self::Named(name) => write!(f, "@{name}"),
        }
    }
}

/// Why a JSON value is none of a column.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found} is no value of type {expected}")]
pub struct ValueError {
    /// The type, as the schema has it.
    pub expected: String,
    /// The beginning of what was found.
    pub found: String,
}

/// The longest part of a foreign value in a message.
const LONGEST_EXCERPT: usize = 80;

impl ValueError {
    fn new(expected: &impl fmt::Display, found: &Value) -> Self {
        Self { expected: expected.to_string(), found: excerpt(found) }
    }
}

/// The beginning of a JSON value, for messages.
pub(crate) fn excerpt(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(LONGEST_EXCERPT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

impl Atom {
    fn parse(value: &Value, kind: AtomType) -> Option<Self> {
        let reference = |tag: &str| match value.as_array()?.as_slice() {
            [name, text] if name == tag => text.as_str(),
            _ => None,
        };
        match kind {
            AtomType::Integer => value.as_i64().map(Self::Integer),
            AtomType::Real => value.as_f64().map(|number| Self::Real(Real(number))),
            AtomType::Boolean => value.as_bool().map(Self::Boolean),
            AtomType::String => value.as_str().map(|text| Self::String(text.to_owned())),
            AtomType::Uuid => match reference("named-uuid") {
                Some(name) => Some(Self::Named(name.to_owned())),
                None => reference("uuid").and_then(|text| text.parse().ok()).map(Self::Uuid),
            },
        }
    }

    fn bytes(&self) -> usize {
        let text = match self {
            Self::String(text) | Self::Named(text) => text.len(),
            Self::Integer(_) | Self::Real(_) | Self::Boolean(_) | Self::Uuid(_) => 0,
        };
        size_of::<Self>() + text
    }

    /// Its JSON form.
    #[must_use]
    pub fn to_json(&self) -> Value {
        match self {
            Self::Integer(number) => json!(number),
            Self::Real(number) => json!(number.0),
            Self::Boolean(value) => json!(value),
            Self::String(text) => json!(text),
            Self::Uuid(uuid) => json!(["uuid", uuid.to_string()]),
            Self::Named(name) => json!(["named-uuid", name]),
        }
    }
}

/// The value of a column.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Datum {
    /// A set; a scalar is a set of one.
    Set(BTreeSet<Atom>),
    /// A map.
    Map(BTreeMap<Atom, Atom>),
}

impl<T: Into<Atom>> From<T> for Datum {
    fn from(atom: T) -> Self {
        Self::Set([atom.into()].into())
    }
}

impl Datum {
    /// A set of these.
    pub fn set<T: Into<Atom>>(atoms: impl IntoIterator<Item = T>) -> Self {
        Self::Set(atoms.into_iter().map(Into::into).collect())
    }

    /// A map of these.
    pub fn map<K: Into<Atom>, V: Into<Atom>>(pairs: impl IntoIterator<Item = (K, V)>) -> Self {
        Self::Map(pairs.into_iter().map(|(key, value)| (key.into(), value.into())).collect())
    }

    /// How many bytes it takes, about.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Set(atoms) => atoms.iter().map(Atom::bytes).sum(),
            Self::Map(pairs) => pairs.iter().map(|(key, value)| key.bytes() + value.bytes()).sum(),
        }
    }

    /// What a column has where nobody has written it.
    #[must_use]
    pub fn default_of(kind: &ColumnType) -> Self {
        let default = |atom: AtomType| match atom {
            AtomType::Integer => Atom::Integer(0),
            AtomType::Real => Atom::Real(Real(0.0)),
            AtomType::Boolean => Atom::Boolean(false),
            AtomType::String => Atom::String(String::new()),
            AtomType::Uuid => Atom::Uuid(Uuid::nil()),
        };
        match (kind.value, kind.min) {
            (None, 0) => Self::Set(BTreeSet::new()),
            (None, _) => Self::Set([default(kind.key)].into()),
            (Some(_), 0) => Self::Map(BTreeMap::new()),
            (Some(value), _) => Self::Map([(default(kind.key), default(value))].into()),
        }
    }

    /// Reads the JSON form of a value of a column.
    ///
    /// # Errors
    /// It is of another type.
    pub fn parse(value: &Value, kind: &ColumnType) -> Result<Self, ValueError> {
        let wrong = || ValueError::new(kind, value);
        let tagged = |tag: &str| match value.as_array().map(Vec::as_slice) {
            Some([name, Value::Array(items)]) if name == tag => Some(items),
            _ => None,
        };
        let Some(kind_of_value) = kind.value else {
            return match tagged("set") {
                Some(items) => items.iter().map(|item| Atom::parse(item, kind.key)).collect::<Option<_>>().map(Self::Set).ok_or_else(wrong),
                None => Atom::parse(value, kind.key).map(Self::from).ok_or_else(wrong),
            };
        };
        let pair = |item: &Value| match item.as_array()?.as_slice() {
            [key, value] => Some((Atom::parse(key, kind.key)?, Atom::parse(value, kind_of_value)?)),
            _ => None,
        };
        tagged("map").and_then(|items| items.iter().map(pair).collect::<Option<_>>()).map(Self::Map).ok_or_else(wrong)
    }

    /// Its JSON form.
    #[must_use]
    pub fn to_json(&self) -> Value {
        match self {
            Self::Set(atoms) => match self.only() {
                Some(atom) => atom.to_json(),
                None => json!(["set", atoms.iter().map(Atom::to_json).collect::<Vec<_>>()]),
            },
            Self::Map(pairs) => json!(["map", pairs.iter().map(|(key, value)| json!([key.to_json(), value.to_json()])).collect::<Vec<_>>()]),
        }
    }

    /// The value after a change, as `update2` notifications describe it: for a column of at most one value the new value, else the
    /// elements that came or went, and the pairs that came, went or have another value.
    pub(crate) fn changed_by(&mut self, difference: Self, kind: &ColumnType) {
        if !kind.is_composite() {
            *self = difference;
            return;
        }
        match (self, difference) {
            (Self::Set(atoms), Self::Set(changed)) => {
                for atom in changed {
                    if !atoms.remove(&atom) {
                        atoms.insert(atom);
                    }
                }
            }
            (Self::Map(pairs), Self::Map(changed)) => {
                for (key, value) in changed {
                    if pairs.get(&key) == Some(&value) {
                        pairs.remove(&key);
                    } else {
                        pairs.insert(key, value);
                    }
                }
            }
            (this, other) => *this = other,
        }
    }

    fn only(&self) -> Option<&Atom> {
        match self {
            Self::Set(atoms) if atoms.len() == 1 => atoms.first(),
            _ => None,
        }
    }

    /// The text of a column of one.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self.only()? {
            Atom::String(text) => Some(text),
            _ => None,
        }
    }

    /// The number of a column of one.
    #[must_use]
    pub fn as_integer(&self) -> Option<i64> {
        match self.only()? {
            Atom::Integer(number) => Some(*number),
            _ => None,
        }
    }

    /// The boolean of a column of one.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        match self.only()? {
            Atom::Boolean(value) => Some(*value),
            _ => None,
        }
    }

    /// The texts of a set.
    pub fn strings(&self) -> impl Iterator<Item = &str> {
        self.atoms().filter_map(|atom| match atom {
            Atom::String(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// The rows of a set.
    pub fn uuids(&self) -> impl Iterator<Item = Uuid> {
        self.atoms().filter_map(|atom| match atom {
            Atom::Uuid(uuid) => Some(*uuid),
            _ => None,
        })
    }

    fn atoms(&self) -> impl Iterator<Item = &Atom> {
        let set = match self {
            Self::Set(atoms) => Some(atoms),
            Self::Map(_) => None,
        };
        set.into_iter().flatten()
    }

    /// The pairs of a map of texts.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        let map = match self {
            Self::Map(pairs) => Some(pairs),
            Self::Set(_) => None,
        };
        map.into_iter().flatten().filter_map(|pair| match pair {
            (Atom::String(key), Atom::String(value)) => Some((key.as_str(), value.as_str())),
            _ => None,
        })
    }

    /// The value of a key of a map of texts.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs().find(|(found, _)| *found == key).map(|(_, value)| value)
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Set(atoms) => atoms.is_empty(),
            Self::Map(pairs) => pairs.is_empty(),
        }
    }
}

impl fmt::Display for Datum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Set(atoms) => match self.only() {
                Some(atom) => atom.fmt(f),
                None => write!(f, "[{}]", atoms.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
            },
            Self::Map(pairs) => {
                write!(f, "{{{}}}", pairs.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(text: &str) -> ColumnType {
        ColumnType::parse(&serde_json::from_str(text).unwrap()).unwrap()
    }

    const STRINGS: &str = r#"{"key": "string", "min": 0, "max": "unlimited"}"#;
    const STRING_MAP: &str = r#"{"key": "string", "value": "string", "min": 0, "max": "unlimited"}"#;

    #[test]
    fn every_notation_of_the_specification_is_read_and_written() {
        let cases = [
            (r#""integer""#, json!(-5), "-5"),
            (r#""real""#, json!(1.5), "1.5"),
            (r#""boolean""#, json!(true), "true"),
            (r#""string""#, json!("br 0"), "\"br 0\""),
            (r#""uuid""#, json!(["uuid", "550e8400-e29b-41d4-a716-446655440000"]), "550e8400-e29b-41d4-a716-446655440000"),
            (r#"{"key": "uuid", "min": 0, "max": 1}"#, json!(["set", []]), "[]"),
            (r#"{"key": "uuid", "min": 0, "max": 1}"#, json!(["named-uuid", "row1"]), "@row1"),
            (STRINGS, json!(["set", ["a", "b"]]), "[a, b]"),
            (STRINGS, json!("a"), "a"),
            (STRING_MAP, json!(["map", [["k", "v"], ["l", ""]]]), "{k=v, l=\"\"}"),
            (STRING_MAP, json!(["map", []]), "{}"),
        ];
        for (column, value, printed) in cases {
            let datum = Datum::parse(&value, &kind(column)).unwrap();
            assert_eq!(datum.to_json(), value, "{column}");
            assert_eq!(datum.to_string(), printed, "{column}");
        }
        // A set of one may be written as a set, and a real number without a fraction.
        assert_eq!(Datum::parse(&json!(["set", ["a"]]), &kind(STRINGS)).unwrap(), Datum::from("a"));
        assert_eq!(Datum::parse(&json!(2), &kind(r#""real""#)).unwrap(), Datum::from_real(2.0));
    }

    impl Datum {
        fn from_real(number: f64) -> Self {
            Self::Set([Atom::Real(Real(number))].into())
        }
    }

    #[test]
    fn values_of_another_type_are_refused_and_named() {
        let cases = [
            (r#""integer""#, json!("5")),
            (r#""integer""#, json!(1.5)),
            (r#""uuid""#, json!("550e8400-e29b-41d4-a716-446655440000")),
            (r#""uuid""#, json!(["uuid", "x"])),
            (STRINGS, json!(["map", [["a", "b"]]])),
            (STRINGS, json!(["set", ["a", 1]])),
            (STRING_MAP, json!(["set", []])),
            (STRING_MAP, json!(["map", [["a"]]])),
            (STRING_MAP, json!(["map", [["a", "b", "c"]]])),
        ];
        for (column, value) in cases {
            assert!(Datum::parse(&value, &kind(column)).is_err(), "{column} took {value}");
        }
        let error = Datum::parse(&json!(["set", vec!["x"; 100]]), &kind(r#""integer""#)).unwrap_err();
        assert!(error.to_string().len() < 200 && error.to_string().ends_with("… is no value of type integer"), "{error}");
    }

    #[test]
    fn differences_change_sets_and_maps_element_by_element() {
        let mut set = Datum::set(["a", "b"]);
        set.changed_by(Datum::set(["b", "c"]), &kind(STRINGS));
        assert_eq!(set, Datum::set(["a", "c"]));
        let mut map = Datum::map([("same", "1"), ("gone", "2"), ("other", "3")]);
        map.changed_by(Datum::map([("gone", "2"), ("other", "4"), ("new", "5")]), &kind(STRING_MAP));
        assert_eq!(map, Datum::map([("same", "1"), ("other", "4"), ("new", "5")]));
        // A column of at most one value is told whole.
        let mut optional = Datum::from("a");
        optional.changed_by(Datum::set(["b"; 1]), &kind(r#"{"key": "string", "min": 0, "max": 1}"#));
        assert_eq!(optional, Datum::from("b"));
        optional.changed_by(Datum::set([""; 0]), &kind(r#"{"key": "string", "min": 0, "max": 1}"#));
        assert!(optional.is_empty());
    }

    #[test]
    fn defaults_are_those_of_the_specification() {
        assert_eq!(Datum::default_of(&kind(r#""string""#)), Datum::from(""));
        assert_eq!(Datum::default_of(&kind(r#""boolean""#)), Datum::from(false));
        assert_eq!(Datum::default_of(&kind(STRINGS)), Datum::set([""; 0]));
        assert_eq!(Datum::default_of(&kind(STRING_MAP)), Datum::map([("", ""); 0]));
    }

    #[test]
    fn accessors_give_what_a_column_has() {
        let map = Datum::map([("k", "v")]);
        assert_eq!((map.get("k"), map.get("x"), map.as_str()), (Some("v"), None, None));
        assert_eq!(Datum::from(3).as_integer(), Some(3));
        assert_eq!(Datum::from(true).as_bool(), Some(true));
        assert_eq!(Datum::set(["b", "a"]).strings().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(Datum::set([Uuid::nil()]).uuids().collect::<Vec<_>>(), [Uuid::nil()]);
    }
}
