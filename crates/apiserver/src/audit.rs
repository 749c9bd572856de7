//! What is written down about a request for its audit event.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

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
