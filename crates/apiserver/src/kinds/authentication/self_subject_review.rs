//! SelfSubjectReviews: answered at once, never stored.

use crate::kind::Kind;
use k8s_openapi::api::authentication;

pub fn kind() -> Kind {
    Kind::new("authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews", "io.k8s.api.authentication.v1.SelfSubjectReview")
        .described_by::<authentication::v1::SelfSubjectReview>()
        .review()
        .cluster()
}
