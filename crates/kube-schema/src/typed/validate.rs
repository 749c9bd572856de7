//! Checks that a value fits its type, with structured-merge-diff's messages.

use super::item_element;
use crate::DEEPEST;
use crate::path::{PathElement, Step};
use crate::schema::{List, ListMerge, Object, Scalar, Schema, Shape, Type, TypeRef};
use crate::value::{go_syntax, go_text, go_type};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};

/// Whether items of sets and map lists may repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duplicates {
    /// In objects that are stored.
    Allowed,
    /// In objects that are applied.
    Refused,
}

/// Why a value does not fit its type: a text for each place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid(Vec<String>);

impl Display for Invalid {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match &self.0[..] {
            [one] => out.write_str(one),
            several => write!(out, "errors:\n  {}", several.join("\n  ")),
        }
    }
}

impl std::error::Error for Invalid {}

/// Most errors that one check reports.
const MOST_ERRORS: usize = 100;

impl Type<'_> {
    /// Checks that the value fits.
    pub fn validate(self, value: &Value, duplicates: Duplicates) -> Result<(), Invalid> {
        let mut walk = Walk { schema: self.schema, duplicates, path: Vec::new(), errors: Vec::new() };
        walk.value(Some(self.at), value);
        if walk.errors.is_empty() { Ok(()) } else { Err(Invalid(walk.errors)) }
    }
}

struct Walk<'a, 'v> {
    schema: &'a Schema,
    duplicates: Duplicates,
    path: Vec<Step<'v>>,
    errors: Vec<String>,
}

impl<'v> Walk<'_, 'v> {
    fn error(&mut self, text: impl Display) {
        if self.errors.len() >= MOST_ERRORS {
            return;
        }
        let path = crate::path::path_text(&Step::path(&self.path));
        self.errors.push(if path.is_empty() { text.to_string() } else { format!("{path}: {text}") });
    }

    fn value(&mut self, at: Option<TypeRef>, value: &'v Value) {
        if self.path.len() > DEEPEST {
            return self.error("exceeded max depth");
        }
        match self.schema.atom(at).deduce(Some(value)).shape() {
            Shape::Scalar(scalar) => {
                if let Some(text) = mismatch(scalar, value) {
                    self.error(text);
                }
            }
            Shape::List(list) => match value {
                Value::Null => {}
                Value::Array(items) => self.list(list, items),
                other => self.error(format!("expected list, got &{{{}}}", go_text(other))),
            },
            Shape::Object(object, _) => match value {
                Value::Null => {}
                Value::Object(members) => self.object(object, members),
                other => self.error(format!("expected map, got &{{{}}}", go_text(other))),
            },
            Shape::Nothing => self.error("schema error: invalid atom: inlined"),
        }
    }

    fn object(&mut self, object: &Object, members: &'v serde_json::Map<String, Value>) {
        for (name, value) in members {
            self.path.push(Step::Field(name));
            let at = object.member(name);
            if at.is_none() {
                self.error("field not declared in schema");
                self.path.pop();
                return;
            }
            self.value(at, value);
            self.path.pop();
        }
    }

    fn list(&mut self, list: &List, items: &'v [Value]) {
        let mut seen = BTreeSet::new();
        for (index, item) in items.iter().enumerate() {
            let element = match &list.merge {
                ListMerge::Atomic => PathElement::Index(i64::try_from(index).unwrap_or(i64::MAX)),
                _ => match item_element(self.schema, list, item) {
                    Ok(element) => element,
                    Err(text) => return self.error(format!("element {index}: {text}")),
                },
            };
            if list.merge != ListMerge::Atomic && !seen.insert(element.clone()) && self.duplicates == Duplicates::Refused {
                self.error(format!("duplicate entries for key {element}"));
            }
            self.path.push(Step::Item(element));
            self.value(Some(list.items), item);
            self.path.pop();
        }
    }
}

/// What is wrong with a scalar; null fits always.
fn mismatch(scalar: Scalar, value: &Value) -> Option<String> {
    let fits = match scalar {
        Scalar::Numeric => value.is_number(),
        Scalar::String => value.is_string(),
        Scalar::Boolean => value.is_boolean(),
        Scalar::Untyped => value.is_number() || value.is_string() || value.is_boolean(),
    };
    if fits || value.is_null() {
        return None;
    }
    Some(match scalar {
        Scalar::Numeric => format!("expected numeric (int or float), got {}", go_type(value)),
        Scalar::String => format!("expected string, got &value.valueUnstructured{{Value:{}}}", go_syntax(value)),
        Scalar::Boolean => format!("expected boolean, got &{{{}}}", go_text(value)),
        Scalar::Untyped => format!("expected any scalar, got &{{{}}}", go_text(value)),
    })
}
