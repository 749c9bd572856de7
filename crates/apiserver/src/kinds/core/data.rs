//! What Secrets and ConfigMaps have in common: keys, size, immutability (pkg/apis/core/validation).

use crate::validation::field::{Errors, Field};
use crate::validation::names;

/// A Secret's or ConfigMap's data, all of it.
pub const DATA_LIMIT: usize = 1024 * 1024;

pub fn keys(data: &Field, key: &str, errors: &mut Errors) {
    for problem in names::config_key(key) {
        errors.invalid_value(&data.key(key), key, problem);
    }
}

/// With `immutable` set, neither it nor the data change.
pub fn frozen(new: &Field, old: &Field, members: &[&str], errors: &mut Errors) {
    const WHY: &str = "field is immutable when `immutable` is set";
    if !old.get("immutable").is_true() {
        return;
    }
    if !new.get("immutable").is_true() {
        errors.forbidden(&new.get("immutable"), WHY);
    }
    for member in members {
        if new.get(member).value != old.get(member).value {
            errors.forbidden(&new.get(member), WHY);
        }
    }
}
