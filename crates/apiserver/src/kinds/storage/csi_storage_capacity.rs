//! CSIStorageCapacities: how much storage there is for a class where (pkg/apis/storage/validation).

#[cfg(test)]
mod tests;

use crate::kind::Kind;
use crate::table::text::{get, get_or};
use crate::table::{NAME, name, text};
use crate::validation::field::{Errors, Field};
use crate::validation::{meta, names};
use jiff::Timestamp;
use k8s_openapi::api::storage;
use kube_rules::Quantity;
use serde_json::Value;

pub fn kind() -> Kind {
    Kind::new("storage.k8s.io", "v1", "CSIStorageCapacity", "csistoragecapacities", "io.k8s.api.storage.v1.CSIStorageCapacity")
        .described_by::<storage::v1::CSIStorageCapacity>()
        .validate(validate)
        .table([NAME, text("StorageClassName"), text("Capacity")], cells)
}

fn cells(object: &Value, _: Timestamp) -> Vec<Value> {
    vec![name(object), get(object, "/storageClassName").into(), get_or(object, "/capacity", "<unset>").into()]
}

fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let (topology, class, capacity) = (new.get("nodeTopology"), new.get("storageClassName"), new.get("capacity"));
    if old.is_none_or(|old| old.get("nodeTopology").value != topology.value) {
        meta::selector(&topology, errors);
    }
    for problem in names::dns_subdomain(class.text()) {
        errors.invalid_value(&class, class.text(), problem);
    }
    if capacity.text().parse::<Quantity>().is_ok_and(|amount| amount < Quantity::ZERO) {
        errors.invalid(&capacity, "must be greater than or equal to 0");
    }
    if let Some(old) = old {
        errors.immutable(&topology, &old.get("nodeTopology"));
        errors.immutable(&class, &old.get("storageClassName"));
    }
}
