//! Removes fields and items from a value.

use super::item_element;
use crate::path::PathElement;
use crate::schema::{List, ListMerge, Object, Schema, Shape, Type, TypeRef};
use crate::set::FieldSet;
use serde_json::{Map, Value};

impl Type<'_> {
    /// The value without the fields and items of the set. Objects and lists that lose all they had stay, empty.
    pub fn remove(self, value: &Value, gone: &FieldSet) -> Value {
        remove(self.schema, Some(self.at), value, gone)
    }
}

fn remove(schema: &Schema, at: Option<TypeRef>, value: &Value, gone: &FieldSet) -> Value {
    match (schema.atom(at).deduce(Some(value)).shape(), value) {
        (Shape::Scalar(_) | Shape::Nothing, _) => value.clone(),
        (Shape::List(list), Value::Array(items)) if list.merge != ListMerge::Atomic && !items.is_empty() => items_left(schema, list, items, gone),
        (Shape::Object(object, false), Value::Object(members)) if !members.is_empty() => members_left(schema, object, members, gone),
        _ => Value::Null,
    }
}

/// What is left of a value that the set reaches into; an emptied object or list stays as an empty one.
fn inside(schema: &Schema, at: Option<TypeRef>, value: &Value, gone: &FieldSet) -> Value {
    match (remove(schema, at, value, gone), value) {
        (Value::Null, Value::Object(_)) => Value::Object(Map::new()),
        (Value::Null, Value::Array(_)) => Value::Array(Vec::new()),
        (left, _) => left,
    }
}

fn items_left(schema: &Schema, list: &List, items: &[Value], gone: &FieldSet) -> Value {
    let (mut left, mut reached) = (Vec::with_capacity(items.len()), false);
    for item in items {
        let element = item_element(schema, list, item).ok();
        if element.as_ref().is_some_and(|element| gone.has_member(element)) {
            continue;
        }
        match element.and_then(|element| gone.below(&element)) {
            Some(below) => {
                reached = true;
                left.push(inside(schema, Some(list.items), item, below));
            }
            None => left.push(item.clone()),
        }
    }
    if left.is_empty() && !reached { Value::Null } else { Value::Array(left) }
}

fn members_left(schema: &Schema, object: &Object, members: &Map<String, Value>, gone: &FieldSet) -> Value {
    let (mut left, mut reached) = (Map::new(), false);
    for (name, value) in members {
        let element = PathElement::field(name);
        if gone.has_member(&element) {
            continue;
        }
        let value = match gone.below(&element) {
            Some(below) => {
                reached = true;
                inside(schema, object.member(name), value, below)
            }
            None => value.clone(),
        };
        left.insert(name.clone(), value);
    }
    if left.is_empty() && !reached { Value::Null } else { Value::Object(left) }
}
