//! The audit of requests: what the policy asks for of each is kept while the request is handled, and written at its stages
//! (apiserver/pkg/endpoints/filters/audit.go). Without a policy no request has a [`Trail`], and nothing is kept.

mod trail;

pub use trail::{Completion, Trail, write_panic};

use ::audit::{Log, LogConfig, LogError, Policy};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// What is audited, and where it is written.
#[derive(Clone, Debug)]
pub struct AuditConfig {
    pub policy: Policy,
    pub log: LogConfig,
}

/// The policy and the open log.
pub struct Auditor {
    policy: Policy,
    log: Log,
}

impl Auditor {
    pub fn open(config: &AuditConfig) -> Result<Self, LogError> {
        Ok(Self { policy: config.policy.clone(), log: Log::open(&config.log)? })
    }

    /// Returns when every event is written.
    pub fn close(&self) {
        self.log.close();
    }
}

/// Annotations of a request's audit event. The first value of a key stays, as upstream.
#[derive(Default)]
pub struct Annotations(Mutex<BTreeMap<String, String>>);

impl Annotations {
    pub fn add(&self, key: impl Into<String>, value: impl Into<String>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(key.into()).or_insert_with(|| value.into());
    }

    /// All of them so far.
    pub fn all(&self) -> BTreeMap<String, String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
