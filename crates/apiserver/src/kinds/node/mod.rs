//! The kinds of `node.k8s.io`.

pub mod runtime_class;

use crate::kind::Kind;

pub fn kinds() -> Vec<Kind> {
    vec![runtime_class::kind()]
}
