//! Leases.

use crate::kind::Kind;
use crate::table::text::get;
use crate::table::{AGE, NAME, age, name, text};
use crate::validation::field::{Errors, Field};
use jiff::Timestamp;
use k8s_openapi::api::coordination;
use serde_json::Value;

pub fn kind() -> Kind {
    Kind::new("coordination.k8s.io", "v1", "Lease", "leases", "io.k8s.api.coordination.v1.Lease")
        .described_by::<coordination::v1::Lease>()
        .create_on_update()
        .validate(|new, _, errors| validate(new, errors))
        .table([NAME, text("Holder"), AGE], cells)
}

fn validate(new: &Field, errors: &mut Errors) {
    let spec = new.get("spec");
    let duration = spec.get("leaseDurationSeconds");
    if duration.number().is_some_and(|seconds| seconds <= 0) {
        errors.invalid(&duration, "must be greater than 0");
    }
    errors.not_negative(&spec.get("leaseTransitions"));
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), get(object, "/spec/holderIdentity").into(), age(object, now)]
}
