//! MutatingWebhookConfigurations.

use super::{named, webhooks};
use crate::kind::Kind;
use crate::table::{AGE, NAME, number};
use k8s_openapi::api::admissionregistration::v1;

pub fn kind() -> Kind {
    let schema = "io.k8s.api.admissionregistration.v1.MutatingWebhookConfiguration";
    named("MutatingWebhookConfiguration", "mutatingwebhookconfigurations", schema)
        .described_by::<v1::MutatingWebhookConfiguration>()
        .counts_generations_by(|old, new| old.get("webhooks") != new.get("webhooks"))
        .defaults(|configuration| webhooks::defaults(configuration, true))
        .validate(|new, old, errors| webhooks::validate(new, old, true, errors))
        .table([NAME, number("Webhooks"), AGE], webhooks::cells)
}
