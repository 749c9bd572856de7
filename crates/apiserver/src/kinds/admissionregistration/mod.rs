//! The kinds of `admissionregistration.k8s.io` (pkg/apis/admissionregistration, pkg/registry/admissionregistration).

mod expressions;
pub mod mutating_admission_policy;
pub mod mutating_admission_policy_binding;
pub mod mutating_webhook_configuration;
mod policies;
mod rules;
#[cfg(test)]
mod tests;
pub mod validating_admission_policy;
pub mod validating_admission_policy_binding;
pub mod validating_webhook_configuration;
mod webhooks;

use crate::kind::Kind;

pub fn kinds() -> Vec<Kind> {
    vec![
        mutating_admission_policy::kind(),
        mutating_admission_policy_binding::kind(),
        mutating_webhook_configuration::kind(),
        validating_admission_policy::kind(),
        validating_admission_policy_binding::kind(),
        validating_webhook_configuration::kind(),
    ]
}

fn named(kind: &str, plural: &str, schema_type: &'static str) -> Kind {
    Kind::new("admissionregistration.k8s.io", "v1", kind, plural, schema_type).cluster().category("api-extensions")
}
