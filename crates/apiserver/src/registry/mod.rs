//! What happens to an object between the request and the store: the generic create, update and delete of upstream's registry, and each
//! kind's strategy.

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
use serde_json::Value;

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

/// The value without the members that a write sets itself: for telling whether an update changes anything.
fn without_resource_version(object: &Value) -> Value {
    let mut object = object.clone();
    crate::object::metadata(&mut object).shift_remove("resourceVersion");
    object
}
