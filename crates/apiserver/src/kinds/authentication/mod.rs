//! The kinds of `authentication.k8s.io`.

pub mod self_subject_review;
pub mod token_review;

use crate::kind::Kind;

pub fn kinds() -> Vec<Kind> {
    vec![self_subject_review::kind(), token_review::kind()]
}
