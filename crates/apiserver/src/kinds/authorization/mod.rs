//! The kinds of `authorization.k8s.io`.

pub mod local_subject_access_review;
pub mod self_subject_access_review;
pub mod self_subject_rules_review;
pub mod subject_access_review;

use crate::kind::Kind;

pub fn kinds() -> Vec<Kind> {
    vec![local_subject_access_review::kind(), self_subject_access_review::kind(), self_subject_rules_review::kind(), subject_access_review::kind()]
}
