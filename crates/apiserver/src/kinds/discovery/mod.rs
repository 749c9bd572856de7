//! The kinds of `discovery.k8s.io`.

pub mod endpoint_slice;

use crate::kind::Kind;

pub fn kinds() -> Vec<Kind> {
    vec![endpoint_slice::kind()]
}
