//! VolumeAttributesClasses (pkg/apis/storage/validation, pkg/registry/storage/volumeattributesclass).

#[cfg(test)]
mod tests;

use crate::kind::Kind;
use crate::table::text::get;
use crate::table::{AGE, NAME, age, text};
use crate::validation::field::{Errors, Field};
use crate::validation::names;
use jiff::Timestamp;
use k8s_openapi::api::storage;
use serde_json::Value;

const MOST_PARAMETERS: usize = 512;
const PARAMETERS_LIMIT: usize = 256 * 1024;

pub fn kind() -> Kind {
    Kind::new("storage.k8s.io", "v1", "VolumeAttributesClass", "volumeattributesclasses", "io.k8s.api.storage.v1.VolumeAttributesClass")
        .described_by::<storage::v1::VolumeAttributesClass>()
        .cluster()
        .short(&["vac"])
        .validate(validate)
        .table([NAME, text("DriverName"), AGE], cells)
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![get(object, "/metadata/name").into(), get(object, "/driverName").into(), age(object, now)]
}

fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let (driver, parameters) = (new.get("driverName"), new.get("parameters"));
    for field in [&driver, &parameters] {
        if old.is_some_and(|old| old.get(&field.path).value != field.value) {
            errors.forbidden(field, format!("updates to {} are forbidden.", field.path));
        }
    }
    if driver.is_empty() {
        errors.required(&driver, "");
    } else {
        errors.invalid_each(&driver, names::qualified(&driver.text().to_lowercase()));
    }
    if parameters.members().count() > MOST_PARAMETERS {
        return errors.too_long(&parameters, MOST_PARAMETERS);
    }
    if parameters.members().any(|(key, _)| key.is_empty()) {
        errors.invalid_value(&parameters, "", "field can not be empty.");
    }
    let size: usize = parameters.members().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
    if size > PARAMETERS_LIMIT {
        errors.too_long(&parameters, PARAMETERS_LIMIT);
    }
    if parameters.is_empty() {
        errors.required(&parameters, "must contain at least one key/value pair");
    }
}
