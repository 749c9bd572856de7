//! ValidatingWebhookConfigurations.

use super::{named, webhooks};
use crate::kind::Kind;
use crate::table::{AGE, NAME, number};
use k8s_openapi::api::admissionregistration::v1;

pub fn kind() -> Kind {
    let schema = "io.k8s.api.admissionregistration.v1.ValidatingWebhookConfiguration";
    named("ValidatingWebhookConfiguration", "validatingwebhookconfigurations", schema)
        .described_by::<v1::ValidatingWebhookConfiguration>()
        .counts_generations_by(|old, new| old.get("webhooks") != new.get("webhooks"))
        .defaults(|configuration| webhooks::defaults(configuration, false))
        .validate(|new, old, errors| webhooks::validate(new, old, false, errors))
        .table([NAME, number("Webhooks"), AGE], webhooks::cells)
}
