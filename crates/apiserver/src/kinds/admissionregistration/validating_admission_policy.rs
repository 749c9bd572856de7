//! ValidatingAdmissionPolicies.

use super::{named, policies};
use crate::kind::Kind;
use crate::object;
use crate::table::{AGE, NAME, number, text};
use k8s_openapi::api::admissionregistration::v1;
use serde_json::json;

pub fn kind() -> Kind {
    let schema = "io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicy";
    named("ValidatingAdmissionPolicy", "validatingadmissionpolicies", schema)
        .described_by::<v1::ValidatingAdmissionPolicy>()
        .status()
        .counts_generations()
        .defaults(policies::defaults)
        .prepare_create(|policy| object::set(policy, "status", json!({})))
        .validate(policies::validating)
        .validate_status(|_, _, _| {})
        .table([NAME, number("Validations"), text("ParamKind"), AGE], |policy, now| policies::cells(policy, "/spec/validations", now))
}
