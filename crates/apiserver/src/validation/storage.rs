//! What the rules of volumes and claims have in common (pkg/apis/core/validation).

use super::field::{Errors, Field};
use super::{meta, names};
use kube_rules::Quantity;

const ACCESS_MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
pub const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];

pub fn access_modes(modes: &Field, errors: &mut Errors) {
    for mode in modes.items() {
        if !ACCESS_MODES.contains(&mode.text()) {
            errors.not_supported(&Field { path: modes.path.clone(), value: mode.value }, &ACCESS_MODES);
        }
    }
    let single = modes.items().iter().any(|mode| mode.text() == "ReadWriteOncePod");
    if single && modes.items().iter().any(|mode| mode.text() != "ReadWriteOncePod") {
        errors.forbidden(modes, "may not use ReadWriteOncePod with other access modes");
    }
}

pub fn positive(quantity: &Field, errors: &mut Errors) {
    if Quantity::parse(quantity.text()).is_ok_and(|amount| amount <= Quantity::ZERO) {
        errors.invalid(quantity, "must be greater than zero");
    }
}

pub fn class_name(class: &Field, errors: &mut Errors) {
    if !class.is_empty() {
        errors.invalid_each(class, names::dns_subdomain(class.text()));
    }
}

pub fn storage<'a>(spec: &Field<'a>) -> Field<'a> {
    spec.get("resources").get("requests").key("storage")
}

/// The specification of a claim, also of one that a pod brings along.
pub fn claim_spec(spec: &Field, errors: &mut Errors) {
    let modes = spec.get("accessModes");
    if modes.is_empty() {
        errors.required(&modes, "at least 1 access mode is required");
    }
    meta::selector(&spec.get("selector"), errors);
    access_modes(&modes, errors);
    let size = storage(spec);
    let shown = Field { path: format!("{}[storage]", spec.get("resources").path), value: size.value };
    if size.is_set() {
        positive(&shown, errors);
    } else {
        errors.required(&shown, "");
    }
    class_name(&spec.get("storageClassName"), errors);
    errors.one_of_if_set(&spec.get("volumeMode"), &VOLUME_MODES);
}
