//! ResourceQuota: what a Namespace's objects may use together (apiserver/pkg/admission/plugin/resourcequota).

use super::{Plugin, adapt};
use crate::kind::{Attributes, Cluster, Operation};
use crate::object;
use crate::status::ApiError;
use crate::store::{Expect, WriteError};
use ::admission::Refusal;
use ::admission::quota::{Quotas, Reservations, UpdateError};
use futures::future::BoxFuture;
use serde_json::Value;

/// The last plug-in: what it has taken from a quota, nobody after it may refuse.
#[derive(Default)]
pub struct ResourceQuota(Reservations);

/// The quotas in the store.
struct Stored<'a>(&'a Cluster);

impl Quotas for Stored<'_> {
    fn list(&self, namespace: &str) -> Vec<Value> {
        let (_, rows) = self.0.store.list(&format!("core/resourcequotas/{namespace}/"));
        rows.into_iter().map(|(_, entry)| entry.value()).collect()
    }

    async fn update_status(&self, quota: Value) -> Result<(), UpdateError> {
        let key = format!("core/resourcequotas/{}/{}", object::namespace(&quota), object::name(&quota));
        let revision = object::resource_version(&quota).parse().map_err(|_| UpdateError::Conflict)?;
        match self.0.store.put(&key, Expect::Revision(revision), quota).await {
            Ok(_) => Ok(()),
            Err(WriteError::Changed) if self.0.store.get(&key).is_none() => Err(UpdateError::Gone),
            Err(WriteError::Changed | WriteError::Exists) => Err(UpdateError::Conflict),
            Err(WriteError::Disk(why)) => Err(UpdateError::Other(Refusal::Internal(format!("writing to the store failed: {why}")))),
        }
    }
}

impl Plugin for ResourceQuota {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.kind.namespaced && matches!(attributes.operation, Operation::Create | Operation::Update)
    }

    fn charges(&self) -> bool {
        true
    }

    fn validate<'a>(&'a self, attributes: &'a Attributes<'a>, object: &'a Value) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            let user = adapt::user(attributes);
            let request = adapt::request(attributes, &user, object);
            let reserved = self.0.reserve(&Stored(attributes.cluster), &request, jiff::Timestamp::now()).await;
            reserved.map_err(|refusal| adapt::error(attributes, object, refusal))
        })
    }
}
