//! The kinds of `coordination.k8s.io`.

pub mod lease;

use crate::kind::Kind;

pub fn kinds() -> Vec<Kind> {
    vec![lease::kind()]
}
