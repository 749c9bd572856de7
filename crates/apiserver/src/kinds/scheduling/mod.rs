//! The kinds of `scheduling.k8s.io`.

pub mod priority_class;

use crate::kind::Kind;

pub fn kinds() -> Vec<Kind> {
    vec![priority_class::kind()]
}
