//! Updates that survive a concurrent writer.

use std::{fmt, time::Duration};

use backoff::Backoff;
use kube::{Api, Resource, api::PostParams};
use serde::{Serialize, de::DeserializeOwned};

use crate::{Error, Result};

/// Whether the server answered that there is no such object.
pub fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// Whether the server answered 409: the object changed meanwhile, or exists already.
pub fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

/// Whether the server answered 403: the caller may not do this, or not with this object.
pub fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

/// How often an update is tried against a concurrent writer (client-go's `retry.DefaultRetry` has 5 steps).
const ATTEMPTS: u32 = 5;

/// Reads an object, lets `change` edit it and writes it back; starts over when someone else wrote meanwhile.
/// `change` answers whether anything is left to write; nothing is written when it says no.
///
/// # Errors
/// [`Error::Request`] for a refusal, [`Error::Conflict`] after five conflicts in a row.
pub async fn update_with_retry<K>(api: &Api<K>, name: &str, mut change: impl FnMut(&mut K) -> bool) -> Result<K>
where
    K: Resource + Clone + Serialize + DeserializeOwned + fmt::Debug,
{
    retry(api, name, &mut change, false).await
}

/// Like [`update_with_retry`], for the status subresource.
///
/// # Errors
/// [`Error::Request`] for a refusal, [`Error::Conflict`] after five conflicts in a row.
pub async fn update_status_with_retry<K>(api: &Api<K>, name: &str, mut change: impl FnMut(&mut K) -> bool) -> Result<K>
where
    K: Resource + Clone + Serialize + DeserializeOwned + fmt::Debug,
{
    retry(api, name, &mut change, true).await
}

async fn retry<K>(api: &Api<K>, name: &str, change: &mut impl FnMut(&mut K) -> bool, status: bool) -> Result<K>
where
    K: Resource + Clone + Serialize + DeserializeOwned + fmt::Debug,
{
    let object = || format!("{}/{name}", api.resource_url());
    let mut backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(200));
    for _ in 0..ATTEMPTS {
        let failed = |operation| move |source| Error::Request { operation, object: object(), source: Box::new(source) };
        let mut current = api.get(name).await.map_err(failed("reading"))?;
        if !change(&mut current) {
            return Ok(current);
        }
        let written = if status {
            api.replace_status(name, &PostParams::default(), &current).await
        } else {
            api.replace(name, &PostParams::default(), &current).await
        };
        match written {
            Ok(written) => return Ok(written),
            Err(error) if is_conflict(&error) => tokio::time::sleep(backoff.next_delay()).await,
            Err(error) => return Err(failed("updating")(error)),
        }
    }
    Err(Error::Conflict { object: object(), attempts: ATTEMPTS })
}
