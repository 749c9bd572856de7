//! Paths to fields and list items (structured-merge-diff fieldpath), their order, and how fieldsV1 and messages write them.

use crate::value;
use serde_json::Value;
use std::cmp::Ordering;
use std::fmt::{self, Display, Formatter};

/// One step from an object or list to what is in it.
#[derive(Clone, Debug)]
pub enum PathElement {
    /// A member of an object.
    Field(Box<str>),
    /// The item of a list whose key members have these values; sorted by name.
    Key(Box<[(Box<str>, Value)]>),
    /// The item of a set that is this value.
    Value(Box<Value>),
    /// The item at this place.
    Index(i64),
}

/// Why a text in fieldsV1 is no step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ElementError {
    /// A kind of step that a later version may know.
    #[error("unknown path element type")]
    Unknown,
    #[error("key must be 2 characters long:")]
    Short,
    #[error("missing colon: {0}")]
    NoColon(String),
    #[error("cannot read path element {0:?}: its value is no JSON")]
    Value(String),
}

/// A step of a walk, which becomes a [`PathElement`] only when something is to be said of it: most of what is walked is as it should be.
pub(crate) enum Step<'a> {
    Field(&'a str),
    Item(PathElement),
}

impl Step<'_> {
    /// The path that these steps lead along.
    pub(crate) fn path(steps: &[Step<'_>]) -> Vec<PathElement> {
        let element = |step: &Step<'_>| match step {
            Step::Field(name) => PathElement::field(name),
            Step::Item(element) => element.clone(),
        };
        steps.iter().map(element).collect()
    }
}

impl PathElement {
    /// The step to a member of an object.
    pub fn field(name: &str) -> PathElement {
        PathElement::Field(name.into())
    }

    /// The step to the item with these key values.
    pub fn key(mut keys: Vec<(Box<str>, Value)>) -> PathElement {
        keys.sort_by(|(left, _), (right, _)| left.cmp(right));
        PathElement::Key(keys.into())
    }

    /// Reads a key of fieldsV1: `f:NAME`, `k:{…}`, `v:JSON` or `i:NUMBER`.
    pub(crate) fn parse(text: &str) -> Result<PathElement, ElementError> {
        let bad = || ElementError::Value(text.chars().take(80).collect());
        if text.len() < 2 {
            return Err(ElementError::Short);
        }
        let Some((kind, rest)) = text.split_once(':').filter(|(kind, _)| kind.len() == 1) else {
            return Err(ElementError::NoColon(text.to_string()));
        };
        match kind {
            "f" => Ok(PathElement::field(rest)),
            "v" => serde_json::from_str(rest).map(|value| PathElement::Value(Box::new(value))).map_err(|_| bad()),
            "k" => match serde_json::from_str(rest) {
                Ok(Value::Object(members)) => Ok(PathElement::key(members.into_iter().map(|(name, value)| (name.into(), value)).collect())),
                _ => Err(bad()),
            },
            "i" => rest.parse().map(PathElement::Index).map_err(|_| bad()),
            _ => Err(ElementError::Unknown),
        }
    }

    /// The key of fieldsV1 for this step.
    pub(crate) fn to_key(&self) -> String {
        match self {
            PathElement::Field(name) => format!("f:{name}"),
            PathElement::Value(value) => {
                let mut key = "v:".to_string();
                value::go_json(value, &mut key);
                key
            }
            PathElement::Key(keys) => {
                let mut key = "k:{".to_string();
                for (index, (name, value)) in keys.iter().enumerate() {
                    key.push_str(if index > 0 { "," } else { "" });
                    value::go_json_string(name, &mut key);
                    key.push(':');
                    value::go_json(value, &mut key);
                }
                key.push('}');
                key
            }
            PathElement::Index(index) => format!("i:{index}"),
        }
    }
}

impl Ord for PathElement {
    fn cmp(&self, other: &PathElement) -> Ordering {
        use PathElement::{Field, Index, Key, Value};
        let rank = |element: &PathElement| match element {
            Field(_) => 0,
            Key(_) => 1,
            Value(_) => 2,
            Index(_) => 3,
        };
        match (self, other) {
            (Field(left), Field(right)) => left.cmp(right),
            (Key(left), Key(right)) => {
                let pairs = left.iter().zip(right.iter());
                let mut orders = pairs.map(|((name, value), (other, right))| name.cmp(other).then_with(|| value::compare(value, right)));
                orders.find(|order| order.is_ne()).unwrap_or_else(|| left.len().cmp(&right.len()))
            }
            (Value(left), Value(right)) => value::compare(left, right),
            (Index(left), Index(right)) => left.cmp(right),
            _ => rank(self).cmp(&rank(other)),
        }
    }
}

impl PartialOrd for PathElement {
    fn partial_cmp(&self, other: &PathElement) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PathElement {
    fn eq(&self, other: &PathElement) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for PathElement {}

impl Display for PathElement {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            PathElement::Field(name) => write!(out, ".{name}"),
            PathElement::Key(keys) => {
                let keys: Vec<String> = keys.iter().map(|(name, value)| format!("{name}={}", value::text(value))).collect();
                write!(out, "[{}]", keys.join(","))
            }
            PathElement::Value(value) => write!(out, "[={}]", value::text(value)),
            PathElement::Index(index) => write!(out, "[{index}]"),
        }
    }
}

/// A path as conflicts print it: `.spec.containers[name="web"].image`.
pub fn path_text(path: &[PathElement]) -> String {
    path.iter().map(PathElement::to_string).collect()
}
