//! What happens to an object between the request and the store: the generic create, update and delete of upstream's registry, and each
//! kind's strategy.

pub mod addresses;
mod aggregate;
pub mod create;
mod custom;
pub mod delete;
pub mod expiry;
pub mod read;
pub mod service;
pub mod update;

use crate::admission::Chain;
use crate::kind::{Cluster, Kind};
use crate::status::ApiError;
use crate::store::WriteError;
use serde_json::{Map, Value};

/// The objects of a server, with what writes need.
pub struct Registry {
    pub cluster: Cluster,
    pub admission: Chain,
}

impl std::ops::Deref for Registry {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

/// What a failed write means for the client.
fn write_error(kind: &Kind, name: &str, error: &WriteError) -> ApiError {
    match error {
        WriteError::Exists => ApiError::already_exists(kind, name),
        WriteError::Changed => ApiError::modified(kind, name),
        WriteError::Disk(reason) => ApiError::internal(format!("writing to the store failed: {reason}")),
    }
}

/// Whether an update changes nothing: every member is the same but the resourceVersion, which a write sets itself.
fn is_unchanged(old: &Value, new: &Value) -> bool {
    let same = |old: &Value, new: &Value, apart: &str| match (old.as_object(), new.as_object()) {
        (Some(old), Some(new)) => {
            let others = |map: &Map<String, Value>| map.len() - usize::from(map.contains_key(apart));
            others(old) == others(new) && old.iter().all(|(name, value)| name == apart || new.get(name) == Some(value))
        }
        _ => old == new,
    };
    same(old, new, "metadata") && same(&old["metadata"], &new["metadata"], "resourceVersion")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_the_resource_version_is_no_change() {
        let old = json!({"metadata": {"name": "a", "resourceVersion": "1", "labels": {"b": "c"}}, "spec": {"d": [1, {"e": null}]}});
        let with = |pointer: &str, value: Value| {
            let mut new = old.clone();
            *new.pointer_mut(pointer).unwrap() = value;
            new
        };
        assert!(is_unchanged(&old, &with("/metadata/resourceVersion", json!("2"))));
        assert!(is_unchanged(&old, &json!({"spec": {"d": [1, {"e": null}]}, "metadata": {"labels": {"b": "c"}, "name": "a"}})));
        assert!(!is_unchanged(&old, &with("/metadata/labels/b", json!("d"))));
        assert!(!is_unchanged(&old, &with("/spec/d/1/e", json!(1))));
        assert!(!is_unchanged(&old, &with("/spec", json!({}))));
        let mut more = old.clone();
        more["status"] = json!({});
        assert!(!is_unchanged(&old, &more) && !is_unchanged(&more, &old));
        more = old.clone();
        more["metadata"]["annotations"] = json!({});
        assert!(!is_unchanged(&old, &more) && !is_unchanged(&more, &old));
    }
}
