//! ValidatingAdmissionPolicyBindings.

use super::{named, policies};
use crate::kind::Kind;
use crate::table::{AGE, NAME, text};
use k8s_openapi::api::admissionregistration::v1;

pub fn kind() -> Kind {
    let schema = "io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicyBinding";
    named("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", schema)
        .described_by::<v1::ValidatingAdmissionPolicyBinding>()
        .counts_generations()
        .defaults(policies::binding_defaults)
        .validate(|new, _, errors| policies::validating_binding(&new.get("spec"), errors))
        .table([NAME, text("PolicyName"), text("ParamRef"), AGE], policies::binding_cells)
}
