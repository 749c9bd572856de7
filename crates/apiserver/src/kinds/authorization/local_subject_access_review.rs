//! LocalSubjectAccessReviews: answered at once, never stored.

use crate::kind::Kind;
use k8s_openapi::api::authorization;

pub fn kind() -> Kind {
    Kind::new(
        "authorization.k8s.io",
        "v1",
        "LocalSubjectAccessReview",
        "localsubjectaccessreviews",
        "io.k8s.api.authorization.v1.LocalSubjectAccessReview",
    )
    .described_by::<authorization::v1::LocalSubjectAccessReview>()
    .review()
}
