//! ConfigMaps.

use super::data::{DATA_LIMIT, frozen, keys};
use crate::kind::Kind;
use crate::table::text::count;
use crate::table::{AGE, NAME, age, name, text};
use crate::validation::field::{Errors, Field};
use jiff::Timestamp;
use k8s_openapi::api::core;
use serde_json::Value;

pub fn kind() -> Kind {
    Kind::new("", "v1", "ConfigMap", "configmaps", "io.k8s.api.core.v1.ConfigMap")
        .described_by::<core::v1::ConfigMap>()
        .short(&["cm"])
        .validate(validate)
        .table([NAME, text("Data"), AGE], cells)
}

/// A new or changed ConfigMap.
fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let (data, binary) = (new.get("data"), new.get("binaryData"));
    let mut size = 0;
    for (key, value) in data.members() {
        keys(&data, key, errors);
        if binary.value.get(key).is_some() {
            errors.invalid_value(&data.key(key), key.as_str(), "duplicate of key present in binaryData");
        }
        size += value.as_str().map_or(0, str::len);
    }
    for (key, value) in binary.members() {
        keys(&binary, key, errors);
        size += value.as_str().map_or(0, |text| text.len() / 4 * 3);
    }
    if size > DATA_LIMIT {
        errors.too_long(&Field { path: String::new(), value: new.value }, DATA_LIMIT);
    }
    if let Some(old) = old {
        frozen(new, old, &["data", "binaryData"], errors);
    }
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), (count(object, "/data") + count(object, "/binaryData")).into(), age(object, now)]
}
