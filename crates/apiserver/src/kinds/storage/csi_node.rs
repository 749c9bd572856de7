//! CSINodes: the CSI drivers of a node (pkg/apis/storage/validation, pkg/registry/storage/csinode).

#[cfg(test)]
mod tests;

use super::driver_name;
use crate::kind::Kind;
use crate::table::text::list;
use crate::table::{AGE, NAME, age, name, number};
use crate::validation::field::{Errors, Field};
use crate::validation::names;
use jiff::Timestamp;
use k8s_openapi::api::storage;
use serde_json::Value;

const LONGEST_ID: usize = 256;

pub fn kind() -> Kind {
    Kind::new("storage.k8s.io", "v1", "CSINode", "csinodes", "io.k8s.api.storage.v1.CSINode")
        .described_by::<storage::v1::CSINode>()
        .cluster()
        .validate(validate)
        .table([NAME, number("Drivers"), AGE], cells)
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), list(object, "/spec/drivers").len().into(), age(object, now)]
}

fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let drivers = new.get("spec").get("drivers");
    let found = drivers.items();
    let mut seen = Vec::new();
    for driver in &found {
        let name = driver.get("name");
        check_driver(driver, errors);
        if seen.contains(&name.text()) {
            errors.duplicate(&name, name.text());
        }
        seen.push(name.text());
        check_keys(driver, errors);
    }
    // What a driver says of itself stays, but for how many volumes it takes.
    let fixed = |driver: &Field<'_>| {
        let mut members = driver.value.as_object().cloned().unwrap_or_default();
        members.shift_remove("allocatable");
        members
    };
    for before in old.map(|old| old.get("spec").get("drivers").items()).unwrap_or_default() {
        for driver in found.iter().filter(|driver| driver.get("name").value == before.get("name").value) {
            if fixed(driver) != fixed(&before) {
                errors.invalid_value(&drivers, fixed(driver), "field is immutable");
            }
        }
    }
}

fn check_driver(driver: &Field, errors: &mut Errors) {
    driver_name(&driver.get("name"), errors);
    let id = driver.get("nodeID");
    if id.is_empty() {
        errors.required(&id, "");
    }
    if id.text().len() > LONGEST_ID {
        errors.invalid(&id, format!("must be {LONGEST_ID} characters or less"));
    }
    errors.not_negative(&driver.get("allocatable").get("count"));
}

fn check_keys(driver: &Field, errors: &mut Errors) {
    let mut seen = Vec::new();
    for key in driver.get("topologyKeys").items() {
        if key.is_empty() {
            errors.required(driver, "");
        }
        if seen.contains(&key.text()) {
            errors.duplicate(driver, key.text());
        }
        seen.push(key.text());
        names::qualified(key.text()).into_iter().for_each(|problem| errors.invalid_value(driver, key.text(), problem));
    }
}
