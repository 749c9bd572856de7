//! The kinds of `certificates.k8s.io`.

pub mod certificate_signing_request;

use crate::kind::Kind;

pub fn kinds() -> Vec<Kind> {
    vec![certificate_signing_request::kind()]
}
