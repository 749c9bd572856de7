//! Defaulting of custom resources, and removal of nulls that the schema does not allow.

use serde_json::Value;

use crate::schema::{Additional, Schema};

/// Sets the defaults of the schema wherever their field is missing, or null without being nullable.
pub fn set(value: &mut Value, schema: &Schema) {
    match value {
        Value::Object(map) => {
            for (name, property) in &schema.properties {
                let Some(default) = &property.default else { continue };
                let missing = map.get(name).is_none_or(|found| found.is_null() && !property.nullable);
                if missing {
                    map.insert(name.clone(), default.clone());
                }
            }
            for (name, value) in map.iter_mut() {
                match (schema.properties.get(name), &schema.additional) {
                    (Some(property), _) => set(value, property),
                    (None, Some(Additional::Schema(inner))) => set_item(value, inner),
                    _ => {}
                }
            }
        }
        Value::Array(items) => {
            if let Some(inner) = &schema.items {
                items.iter_mut().for_each(|item| set_item(item, inner));
            }
        }
        _ => {}
    }
}

fn set_item(value: &mut Value, schema: &Schema) {
    if value.is_null() && !schema.nullable {
        *value = schema.default.clone().unwrap_or(Value::Null);
    }
    set(value, schema);
}

/// Removes null fields that are not nullable and have no default.
pub fn prune_nulls(value: &mut Value, schema: &Schema) {
    match value {
        Value::Object(map) => map.retain(|name, value| {
            let inner = schema.properties.get(name).or_else(|| schema.additional_schema());
            let Some(inner) = inner else { return true };
            if value.is_null() && !inner.nullable && inner.default.is_none() {
                return false;
            }
            prune_nulls(value, inner);
            true
        }),
        Value::Array(items) => {
            if let Some(inner) = &schema.items {
                items.iter_mut().for_each(|item| prune_nulls(item, inner));
            }
        }
        _ => {}
    }
}
