//! Reservations: a request that quotas allow raises their `status.used` before its object is stored (resourcequota/controller.go).

use super::check::check;
use crate::value::name;
use crate::{Attributes, Refusal};
use jiff::Timestamp;
use serde_json::Value;
use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// After so many lost races more a request is refused.
const RETRIES: usize = 3;

/// Why a quota was not written.
#[derive(Clone, Debug, PartialEq)]
pub enum UpdateError {
    /// Somebody else wrote it first.
    Conflict,
    /// The quota is gone.
    Gone,
    /// The request is refused with this.
    Other(Refusal),
}

/// The quotas of a cluster.
pub trait Quotas: Sync {
    /// The latest ResourceQuotas of a Namespace.
    fn list(&self, namespace: &str) -> Vec<Value>;

    /// Writes the status of a quota that [`Quotas::list`] gave, unless it was changed since.
    fn update_status(&self, quota: Value) -> impl Future<Output = Result<(), UpdateError>> + Send;
}

type Lock = tokio::sync::Mutex<()>;

/// Lets the requests of a Namespace reserve one after another, so that they do not race for its quotas.
#[derive(Debug, Default)]
pub struct Reservations {
    namespaces: Mutex<HashMap<String, Weak<Lock>>>,
}

impl Reservations {
    fn lock(&self, namespace: &str) -> Arc<Lock> {
        let mut namespaces = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = namespaces.get(namespace).and_then(Weak::upgrade) {
            return lock;
        }
        namespaces.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::new(Lock::default());
        namespaces.insert(namespace.to_owned(), Arc::downgrade(&lock));
        lock
    }

    /// Refuses a request that exceeds a quota; else raises the quotas' usage, but not for a dry run.
    pub async fn reserve(&self, quotas: &impl Quotas, request: &Attributes<'_>, now: Timestamp) -> Result<(), Refusal> {
        let listed = quotas.list(request.namespace);
        if listed.is_empty() {
            return Ok(());
        }
        if request.dry_run {
            return check(&listed, request, now).map(|_| ());
        }
        let lock = self.lock(request.namespace);
        let _turn = lock.lock().await;
        let mut pending: Option<Vec<String>> = None;
        for _ in 0..=RETRIES {
            let mut current = quotas.list(request.namespace);
            // Quotas that were written already are not charged again.
            current.retain(|quota| pending.as_ref().is_none_or(|names| names.iter().any(|one| one == name(quota))));
            let mut lost = Vec::new();
            for quota in check(&current, request, now)? {
                let name = name(&quota).to_owned();
                match quotas.update_status(quota).await {
                    Ok(()) | Err(UpdateError::Gone) => {}
                    Err(UpdateError::Conflict) => lost.push(name),
                    Err(UpdateError::Other(refusal)) => return Err(refusal),
                }
            }
            if lost.is_empty() {
                return Ok(());
            }
            pending = Some(lost);
        }
        let name = pending.and_then(|names| names.into_iter().next()).unwrap_or_default();
        let why = "the object has been modified; please apply your changes to the latest version and try again".to_owned();
        Err(Refusal::Conflict { resource: "resourcequotas", name, why })
    }
}
