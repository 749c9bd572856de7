//! The kinds of `certificates.k8s.io`.

pub mod certificate_signing_request;
pub mod cluster_trust_bundle;

use crate::authz;
use crate::kind::{Attributes, Kind};

pub fn kinds() -> Vec<Kind> {
    vec![certificate_signing_request::kind(), cluster_trust_bundle::kind()]
}

/// Whether who asks may do this for a signer, or for all of the signer's domain (pkg/certauthorization).
fn is_authorized(attributes: &Attributes<'_>, verb: &str, signer: &str) -> bool {
    let domain = signer.split('/').next().unwrap_or_default();
    [signer, &format!("{domain}/*")].into_iter().any(|name| {
        let asked = authz::Attributes {
            user: attributes.context.user.clone(),
            verb: verb.into(),
            is_resource: true,
            group: "certificates.k8s.io".into(),
            resource: "signers".into(),
            name: name.into(),
            ..authz::Attributes::default()
        };
        matches!(attributes.cluster.authorizer.decide(&asked), authz::Decision::Allow(_))
    })
}
