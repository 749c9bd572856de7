//! Pruning: fields that the schema does not declare are removed.

use serde_json::Value;

use crate::field::{child, key};
use crate::schema::{Additional, Schema};

const META: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Removes the fields that the schema does not know, and returns their paths in order. `root` spares `apiVersion`,
/// `kind` and `metadata`.
pub fn prune(object: &mut Value, schema: &Schema, root: bool) -> Vec<String> {
    let mut removed = Vec::new();
    walk(object, Some(schema), root, "", false, &mut removed);
    removed.sort();
    removed
}

fn walk(value: &mut Value, schema: Option<&Schema>, resource: bool, path: &str, skip: bool, removed: &mut Vec<String>) {
    let preserves = schema.is_some_and(Schema::preserves) || skip;
    let resource = resource || schema.is_some_and(|schema| schema.embedded);
    match value {
        Value::Object(map) => map.retain(|name, value| {
            if resource && META.contains(&name.as_str()) {
                return true;
            }
            let property = schema.and_then(|schema| schema.properties.get(name));
            let additional = schema.and_then(|schema| schema.additional.as_ref());
            match (property, additional) {
                (Some(property), _) => walk(value, Some(property), false, &child(path, name), false, removed),
                (None, Some(Additional::Schema(inner))) => {
                    walk(value, Some(inner), false, &child(path, name), false, removed);
                }
                // Upstream has no schema for what `additionalProperties: true` allows, and prunes below it.
                (None, Some(Additional::Allowed(_))) => walk(value, None, false, &child(path, name), false, removed),
                (None, None) if preserves => {}
                (None, None) => {
                    removed.push(child(path, name));
                    return false;
                }
            }
            true
        }),
        Value::Array(items) => {
            let inner = schema.and_then(|schema| schema.items.as_deref());
            if preserves && inner.is_none() {
                return;
            }
            for (index, item) in items.iter_mut().enumerate() {
                // Below a list that preserves its fields, objects preserve theirs.
                walk(item, inner, false, &key(path, index), preserves, removed);
            }
        }
        _ => {}
    }
}
