//! The kind of `apiextensions.k8s.io`, and the kinds that its objects define.

mod conversion;
pub mod custom_resource_definition;

use crate::kind::Kind;

pub fn kinds() -> Vec<Kind> {
    vec![custom_resource_definition::kind()]
}
