//! What happens to an object between the request and the store: the generic create, update and delete of upstream's registry, and each
//! kind's strategy.

mod aggregate;
pub mod create;
pub mod delete;
pub mod events;
pub mod expiry;
mod namespace;
mod pod;
pub mod read;
pub mod service;
pub mod strategy;
pub mod update;

use crate::alloc::Allocators;
use crate::authn::UserInfo;
use crate::authz::Authorizer;
use crate::kinds::KindInfo;
use crate::status::ApiError;
use crate::store::{Store, WriteError};
use serde_json::Value;
use std::sync::{Arc, Mutex, PoisonError};

pub struct Registry {
    /// Where objects live.
    pub store: Arc<Store>,
    /// ClusterIPs and ports that are taken.
    pub allocators: Allocators,
    /// The authorizer: role writes are checked against it.
    pub authorizer: Arc<Authorizer>,
}

/// The writer of an object, and the options of the request.
pub struct WriteContext {
    pub user: UserInfo,
    /// `dryRun=All`: everything but the write.
    pub dry_run: bool,
    /// Sent back as Warning headers.
    pub warnings: Mutex<Vec<String>>,
}

impl WriteContext {
    /// A context for `user`.
    pub fn new(user: UserInfo, dry_run: bool) -> Self {
        Self { user, dry_run, warnings: Mutex::new(Vec::new()) }
    }

    /// Adds a warning for the client, once.
    pub fn warn(&self, text: impl Into<String>) {
        let text = text.into();
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        if !warnings.contains(&text) {
            warnings.push(text);
        }
    }

    /// Takes the warnings collected so far.
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut *self.warnings.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Which part of an object a request writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The object itself: everything but status.
    Main,
    /// The status subresource.
    Status,
    /// A Namespace's `finalize` subresource: spec.finalizers only.
    Finalize,
    /// A pod's `ephemeralcontainers` subresource: spec.ephemeralContainers only.
    EphemeralContainers,
    /// A write of the server itself (binding, eviction, scale …): taken as it is.
    Internal,
}

/// `v1`, or `apps/v1`.
pub fn api_version(kind: &KindInfo) -> String {
    if kind.group.is_empty() { kind.version.to_string() } else { format!("{}/{}", kind.group, kind.version) }
}

fn storage_group(kind: &KindInfo) -> &'static str {
    if kind.group.is_empty() || events::is_view(kind) { "core" } else { kind.group }
}

/// The store's prefix of a kind, or of a kind in a namespace.
pub fn prefix(kind: &KindInfo, namespace: &str) -> String {
    let group = storage_group(kind);
    if namespace.is_empty() || !kind.namespaced { format!("{group}/{}/", kind.plural) } else { format!("{group}/{}/{namespace}/", kind.plural) }
}

/// The store's key of an object.
pub fn storage_key(kind: &KindInfo, namespace: &str, name: &str) -> String {
    let group = storage_group(kind);
    let namespace = if kind.namespaced { namespace } else { "" };
    format!("{group}/{}/{namespace}/{name}", kind.plural)
}

/// What a failed write means for the client.
fn write_error(kind: &KindInfo, name: &str, error: &WriteError) -> ApiError {
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
