//! Lists that are sets, or that have keys: no element twice.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::field::{Errors, child, duplicate, invalid, key};
use crate::schema::Schema;

/// The errors of lists with `x-kubernetes-list-type`.
pub fn validate(value: &Value, schema: &Schema) -> Errors {
    let mut errors = Errors::new();
    walk(value, schema, "", &mut errors);
    errors
}

fn walk(value: &Value, schema: &Schema, path: &str, errors: &mut Errors) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                match (schema.properties.get(name), schema.additional_schema()) {
                    (Some(inner), _) => walk(value, inner, &child(path, name), errors),
                    (None, Some(inner)) => walk(value, inner, &key(path, name), errors),
                    _ => {}
                }
            }
        }
        Value::Array(items) => {
            match schema.list_type.as_deref() {
                Some("set") => {
                    for index in repeated(items) {
                        errors.push(duplicate(key(path, index), items[index].clone()));
                    }
                }
                Some("map") => keyed(items, schema, path, errors),
                _ => {}
            }
            if let Some(inner) = &schema.items {
                for (index, item) in items.iter().enumerate() {
                    walk(item, inner, &key(path, index), errors);
                }
            }
        }
        _ => {}
    }
}

/// The places at which values occur for the second time.
fn repeated(items: &[Value]) -> Vec<usize> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut places = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let times = seen.entry(canonical(item)).or_default();
        *times += 1;
        if *times == 2 {
            places.push(index);
        }
    }
    places
}

/// The text of a value, with the members of objects in order.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let mut members: Vec<String> = map.iter().map(|(name, value)| format!("{name:?}:{}", canonical(value))).collect();
            members.sort();
            format!("{{{}}}", members.join(","))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(",")),
        other => other.to_string(),
    }
}

fn keyed(items: &[Value], schema: &Schema, path: &str, errors: &mut Errors) {
    if let Some((index, item)) = items.iter().enumerate().find(|(_, item)| !item.is_null() && !item.is_object()) {
        errors.push(invalid(key(path, index), item.clone(), "must be an object for an array of list-type map"));
        return;
    }
    let keys: Vec<Value> = items
        .iter()
        .map(|item| {
            let found = schema.list_map_keys.iter().filter_map(|name| Some((name.clone(), item.get(name)?.clone())));
            Value::Object(found.collect::<Map<String, Value>>())
        })
        .collect();
    for index in repeated(&keys) {
        errors.push(duplicate(key(path, index), keys[index].clone()));
    }
}
