//! Delays between attempts, and updates that survive a concurrent writer.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use kube::{Api, Resource, api::PostParams};
use serde::{Serialize, de::DeserializeOwned};

use crate::{Error, Result};

/// Doubling delays with up to 20 % of jitter, from `base` to `max`.
#[derive(Debug, Clone)]
pub struct Backoff {
    base: Duration,
    max: Duration,
    attempt: u32,
}

impl Backoff {
    /// Delays that start at `base` and never exceed `max` (jitter apart).
    pub fn new(base: Duration, max: Duration) -> Self {
        Self { base, max, attempt: 0 }
    }

    /// The next delay; each call lengthens the one after it.
    pub fn next_delay(&mut self) -> Duration {
        let delay = self.base.saturating_mul(1u32.checked_shl(self.attempt).unwrap_or(u32::MAX)).min(self.max);
        self.attempt = self.attempt.saturating_add(1);
        delay + delay.mul_f64(jitter() * 0.2)
    }

    /// Starts again at `base`: call it after a success.
    pub fn reset(&mut self) {
        self.attempt = 0;
    }

    /// How many delays were asked for since the last reset.
    pub fn attempts(&self) -> u32 {
        self.attempt
    }
}

/// A number in [0, 1) that differs between processes and calls.
fn jitter() -> f64 {
    let bits = RandomState::new().hash_one(0u8) >> 11;
    #[expect(clippy::cast_precision_loss, reason = "53 bits are exact in an f64")]
    let fraction = bits as f64 / (1u64 << 53) as f64;
    fraction
}

/// Whether the server answered that there is no such object.
pub fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// Whether the server answered 409: the object changed meanwhile, or exists already.
pub fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_maximum() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        for expected in [100, 200, 400, 800, 1000, 1000] {
            let delay = backoff.next_delay().as_millis();
            assert!((expected..=expected + expected / 5).contains(&delay), "{delay} instead of {expected}");
        }
        assert_eq!(backoff.attempts(), 6);
        backoff.reset();
        assert!(backoff.next_delay() < Duration::from_millis(121));
    }

    #[test]
    fn a_long_outage_does_not_overflow() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
        for _ in 0..100 {
            assert!(backoff.next_delay() <= Duration::from_secs(36));
        }
    }
}
