//! Values with a type (structured-merge-diff typed): check, compare, merge, remove, and the set of fields that a value has.

mod compare;
mod merge;
mod reconcile;
mod remove;
mod validate;

pub use compare::Comparison;
pub use validate::{Duplicates, Invalid};

use crate::path::PathElement;
use crate::schema::{List, ListMerge, Object, Schema, Shape, Type, TypeRef};
use crate::set::FieldSet;
use serde_json::Value;
use std::collections::BTreeMap;

/// The value as an object; null and absent ones are none.
fn object_of(value: Option<&Value>) -> Option<&serde_json::Map<String, Value>> {
    value.and_then(Value::as_object)
}

/// The value as a list; null and absent ones are none.
fn list_of(value: Option<&Value>) -> Option<&Vec<Value>> {
    value.and_then(Value::as_array)
}

/// The step to a list's item, by its keys or its value.
fn item_element(schema: &Schema, list: &List, item: &Value) -> Result<PathElement, String> {
    match &list.merge {
        ListMerge::Atomic => Err("invalid indexing of non-associative list".into()),
        ListMerge::Set => match item {
            Value::Object(_) => Err("associative list without keys has an element that's a map type".into()),
            Value::Array(_) => Err("not supported: associative list with lists as elements".into()),
            Value::Null => Err("associative list without keys has an element that's an explicit null".into()),
            scalar => Ok(PathElement::Value(Box::new(scalar.clone()))),
        },
        ListMerge::Map(keys) => keyed_element(schema, list, keys, item),
    }
}

fn keyed_element(schema: &Schema, list: &List, keys: &[Box<str>], item: &Value) -> Result<PathElement, String> {
    let members = match item {
        Value::Object(members) => members,
        Value::Null => return Err("associative list with keys may not have a null element".into()),
        _ => return Err("associative list with keys may not have non-map elements".into()),
    };
    let mut found = Vec::with_capacity(keys.len());
    for key in keys {
        if let Some(value) = members.get(&**key) {
            found.push((key.clone(), value.clone()));
            continue;
        }
        let Some(object) = &schema.node(list.items).object else {
            return Err(format!("couldn't find default value for {key}: associative list may not have non-map types"));
        };
        if let Some(default) = object.field(key).and_then(|field| field.default.as_ref()).filter(|default| !default.is_null()) {
            found.push((key.clone(), default.clone()));
        }
    }
    if found.is_empty() {
        let keys = keys.iter().map(|key| crate::value::quoted(key)).collect::<Vec<_>>().join(" ");
        return Err(format!(
            "associative list with keys has an element that omits all key fields [{keys}] (and doesn't have default values for any key fields)"
        ));
    }
    Ok(PathElement::key(found))
}

impl Type<'_> {
    /// Every leaf field and item that the value has. The value must be valid.
    pub fn field_set(self, value: &Value) -> FieldSet {
        let mut walk = Collect { schema: self.schema, path: Vec::new(), set: FieldSet::default() };
        walk.value(Some(self.at), value);
        walk.set
    }
}

struct Collect<'a> {
    schema: &'a Schema,
    path: Vec<PathElement>,
    set: FieldSet,
}

impl Collect<'_> {
    fn value(&mut self, at: Option<TypeRef>, value: &Value) {
        match self.schema.atom(at).deduce(Some(value)).shape() {
            Shape::Scalar(_) | Shape::Object(_, true) | Shape::Nothing => self.set.insert(&self.path),
            Shape::List(list) if list.merge == ListMerge::Atomic => self.set.insert(&self.path),
            Shape::List(list) => self.list(list, value),
            Shape::Object(object, false) => self.object(object, value),
        }
    }

    fn object(&mut self, object: &Object, value: &Value) {
        for (name, value) in object_of(Some(value)).into_iter().flatten() {
            self.path.push(PathElement::field(name));
            self.value(object.member(name), value);
            let empty = value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
            if empty || object.field(name).is_none() {
                self.set.insert(&self.path);
            }
            self.path.pop();
        }
    }

    fn list(&mut self, list: &List, value: &Value) {
        let items = list_of(Some(value)).map_or(&[][..], |items| items);
        let elements: Vec<Option<PathElement>> = items.iter().map(|item| item_element(self.schema, list, item).ok()).collect();
        let mut seen: BTreeMap<&PathElement, usize> = BTreeMap::new();
        for element in elements.iter().flatten() {
            *seen.entry(element).or_default() += 1;
        }
        for (element, item) in elements.iter().zip(items) {
            let Some(element) = element else { continue };
            self.path.push(element.clone());
            // Items that share their keys belong to one owner as a whole.
            if seen.get(element) == Some(&1) {
                self.value(Some(list.items), item);
            }
            self.set.insert(&self.path);
            self.path.pop();
        }
    }
}
