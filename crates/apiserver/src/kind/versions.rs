//! Kinds of several versions: what is stored is brought into the version of the request, and back. A webhook may have to do it, so it can
//! take time and fail.

use super::{Cluster, Kind, Storage};
use crate::status::ApiError;
use crate::store::Entry;
use futures::future::BoxFuture;
use serde_json::Value;

/// The versions of one kind.
pub trait Versions: Send + Sync {
    /// What objects say as `apiVersion` when they are written.
    fn stored(&self) -> &str;

    /// Removes what the object's own version does not know, and sets its defaults.
    fn complete(&self, object: &mut Value);

    /// Brings objects into the version `to` (an `apiVersion`); those that are in it stay as they are. The error is the message for clients.
    fn convert<'a>(&'a self, cluster: &'a Cluster, objects: Vec<Value>, to: &'a str) -> BoxFuture<'a, Result<Vec<Value>, String>>;
}

/// What failed to be converted has no reason of its own (`ErrorToAPIStatus`).
fn failed(message: String) -> ApiError {
    ApiError::new(500, "", message)
}

impl Kind {
    /// The versions, of a kind that has several.
    pub fn versions(&self) -> Option<&dyn Versions> {
        match &self.storage {
            Storage::Versioned(versions) => Some(&**versions),
            _ => None,
        }
    }
}

impl Cluster {
    /// Stored objects in the version of the kind.
    pub async fn read(&self, kind: &Kind, mut objects: Vec<Value>) -> Result<Vec<Value>, ApiError> {
        let Some(versions) = kind.versions() else { return Ok(objects) };
        objects.iter_mut().for_each(|object| versions.complete(object));
        versions.convert(self, objects, &kind.api_version()).await.map_err(failed)
    }

    /// A stored object in the version of the kind.
    pub async fn read_one(&self, kind: &Kind, object: Value) -> Result<Value, ApiError> {
        Ok(self.read(kind, vec![object]).await?.pop().unwrap_or_default())
    }

    /// Stored objects as they are sent to clients of the kind, but for those of views.
    pub async fn shown(&self, kind: &Kind, entries: Vec<Entry>) -> Result<Vec<Entry>, ApiError> {
        if kind.versions().is_none() {
            return Ok(entries);
        }
        let objects = self.read(kind, entries.iter().map(Entry::value).collect()).await?;
        let encoded = |object: &Value| serde_json::to_vec(object).map_err(ApiError::internal);
        entries.iter().zip(&objects).map(|(entry, object)| Ok(Entry { revision: entry.revision, bytes: encoded(object)?.into() })).collect()
    }

    /// An object of the kind's version as it is written to the store.
    pub async fn to_store(&self, kind: &Kind, object: Value) -> Result<Value, ApiError> {
        let Some(versions) = kind.versions() else { return Ok(object) };
        let stored = versions.convert(self, vec![object], versions.stored()).await.map_err(failed)?;
        Ok(stored.into_iter().next().unwrap_or_default())
    }
}
