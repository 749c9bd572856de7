//! MutatingAdmissionPolicies.

use super::{named, policies};
use crate::kind::Kind;
use crate::table::{AGE, NAME, number, text};
use k8s_openapi::api::admissionregistration::v1;

pub fn kind() -> Kind {
    let schema = "io.k8s.api.admissionregistration.v1.MutatingAdmissionPolicy";
    named("MutatingAdmissionPolicy", "mutatingadmissionpolicies", schema)
        .described_by::<v1::MutatingAdmissionPolicy>()
        .counts_generations()
        .defaults(policies::defaults)
        .validate(policies::mutating)
        .table([NAME, number("Mutations"), text("ParamKind"), AGE], |policy, now| policies::cells(policy, "/spec/mutations", now))
}
