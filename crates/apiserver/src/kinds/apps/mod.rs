//! The kinds of `apps`.

pub mod controller_revision;
pub mod daemon_set;
pub mod deployment;
pub mod replica_set;
pub mod stateful_set;

use crate::kind::Kind;
use crate::table::text::{get, list, selector, since};
use jiff::Timestamp;
use serde_json::Value;

pub fn kinds() -> Vec<Kind> {
    vec![controller_revision::kind(), daemon_set::kind(), deployment::kind(), replica_set::kind(), stateful_set::kind()]
}

/// Age, containers, images, selector.
pub fn tail(object: &Value, now: Timestamp) -> [Value; 4] {
    let containers = list(object, "/spec/template/spec/containers");
    let joined = |member: &str| containers.iter().map(|container| get(container, member)).collect::<Vec<_>>().join(",");
    [
        since(object, "/metadata/creationTimestamp", now).into(),
        joined("/name").into(),
        joined("/image").into(),
        selector(object, "/spec/selector").into(),
    ]
}
