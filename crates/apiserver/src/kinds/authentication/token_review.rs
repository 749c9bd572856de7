//! TokenReviews: answered at once, never stored.

use crate::kind::Kind;
use k8s_openapi::api::authentication;

pub fn kind() -> Kind {
    Kind::new("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", "io.k8s.api.authentication.v1.TokenReview")
        .described_by::<authentication::v1::TokenReview>()
        .review()
        .cluster()
}
