//! Which old element belongs to which new one.

use std::collections::HashMap;

use serde_json::Value;

use crate::schema::Schema;

/// The old element of each new one: in lists with keys the one of the same keys, in other lists none.
pub fn items<'a>(new: &[Value], old: Option<&'a Value>, schema: &Schema) -> Vec<Option<&'a Value>> {
    let none = vec![None; new.len()];
    let Some(Value::Array(old)) = old else { return none };
    if schema.list_type.as_deref() != Some("map") || schema.list_map_keys.is_empty() {
        return none;
    }
    let mut known: HashMap<String, Option<&Value>> = HashMap::with_capacity(old.len());
    for item in old {
        // Keys that occur twice identify nothing.
        known.entry(identity(item, schema)).and_modify(|found| *found = None).or_insert(Some(item));
    }
    new.iter().map(|item| known.get(&identity(item, schema)).copied().flatten()).collect()
}

fn identity(item: &Value, schema: &Schema) -> String {
    let values = schema.list_map_keys.iter().map(|key| {
        let value = item.get(key).or_else(|| {
            // A key that is left out has its default.
            schema.items.as_ref()?.properties.get(key)?.default.as_ref()
        });
        value.map(Value::to_string).unwrap_or_default()
    });
    values.collect::<Vec<_>>().join("\u{0}")
}
