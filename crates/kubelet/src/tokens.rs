//! Service account tokens for projected volumes, renewed after 80 % of their life or a day, up to ten seconds earlier: the tokens of pods that
//! started together are not all asked for at once (upstream pkg/kubelet/token/token_manager.go).

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::PostParams;

use crate::error::ApiError;
use crate::volumes::Tokens;

/// What a token is for: pod UID, account UID where only that account's will do, audience, seconds.
type Key = (String, Option<String>, String, Option<i64>);

/// A token that was issued.
#[derive(Clone, Debug)]
struct Held {
    token: String,
    issued: Timestamp,
    expires: Timestamp,
    /// How much earlier it is renewed. Drawn once: drawn at each look, the earliest would win for all.
    early: SignedDuration,
}

type Cache = HashMap<Key, Held>;

/// How much earlier a token is renewed at most, in seconds.
const MAX_EARLY: f64 = 10.0;

/// A token that the API server did not give, and that no older one stands in for.
#[derive(Debug, thiserror::Error)]
#[error("failed to fetch token")]
pub(crate) struct TokenError {
    source: ApiError,
}

/// Tokens in use.
pub(crate) struct TokenCache {
    client: kube::Client,
    cache: Mutex<Cache>,
}

impl TokenCache {
    pub(crate) fn new(client: kube::Client) -> Self {
        TokenCache { client, cache: Mutex::default() }
    }

    /// The tokens a pod's volumes need, bound to the pod. An old token serves on while a new one
    /// cannot be had and it still lives.
    pub(crate) async fn get(&self, pod: &Pod, wanted: &[(String, i64)], now: Timestamp) -> Result<Tokens, TokenError> {
        let mut out = Tokens::new();
        for (audience, seconds) in wanted {
            let (token, _) = self.one(pod, audience, Some(*seconds), now).await?;
            out.insert((audience.clone(), *seconds), token);
        }
        Ok(out)
    }

    /// Forgets a pod's tokens.
    pub(crate) fn release(&self, uid: &str) {
        self.lock().retain(|(u, ..), _| u != uid);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A token, bound to the pod, and when it ends; without `seconds` the API server says how long it lives.
    pub(crate) async fn one(&self, pod: &Pod, audience: &str, seconds: Option<i64>, now: Timestamp) -> Result<(String, Timestamp), TokenError> {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        self.held(pod, (uid, None, audience.to_owned(), seconds), now).await
    }

    /// A token of the pod's account as it is now: one that has been made again under the same name gives none for the `account` before it.
    pub(crate) async fn of_account(&self, pod: &Pod, account: &str, audience: &str, now: Timestamp) -> Result<String, TokenError> {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let key = (uid, Some(account.to_owned()), audience.to_owned(), None);
        Ok(self.held(pod, key, now).await?.0)
    }

    async fn held(&self, pod: &Pod, key: Key, now: Timestamp) -> Result<(String, Timestamp), TokenError> {
        let held = self.lock().get(&key).cloned();
        if let Some(held) = &held
            && !due(held, now)
        {
            return Ok((held.token.clone(), held.expires));
        }
        match self.request(pod, &key).await {
            Ok((token, expires)) => {
                let held = Held { token: token.clone(), issued: now, expires, early: early(backoff::jitter()) };
                self.lock().insert(key, held);
                Ok((token, expires))
            }
            Err(error) => match held {
                Some(held) if held.expires > now => Ok((held.token, held.expires)),
                _ => Err(TokenError { source: error.into() }),
            },
        }
    }

    async fn request(&self, pod: &Pod, (_, account_uid, audience, seconds): &Key) -> kube::Result<(String, Timestamp)> {
        let meta = &pod.metadata;
        let account = pod.spec.as_ref().and_then(|s| s.service_account_name.clone());
        let account = account.filter(|a| !a.is_empty()).unwrap_or_else(|| "default".into());
        let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), meta.namespace.as_deref().unwrap_or_default());
        let request = TokenRequest {
            metadata: ObjectMeta { uid: account_uid.clone(), ..ObjectMeta::default() },
            spec: Some(TokenRequestSpec {
                audiences: (!audience.is_empty()).then(|| vec![audience.clone()]),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".into()),
                    kind: Some("Pod".into()),
                    name: meta.name.clone(),
                    uid: meta.uid.clone(),
                }),
                expiration_seconds: *seconds,
            }),
            ..Default::default()
        };
        let answer = api.create_token_request(&account, &PostParams::default(), &request).await?;
        let status = answer.status.unwrap_or_default();
        let expires = status.expiration_timestamp.map(|t| t.0);
        let expires = expires.unwrap_or_else(|| Timestamp::now() + SignedDuration::from_secs(seconds.unwrap_or(3600)));
        Ok((status.token.unwrap_or_default(), expires))
    }
}

/// How much earlier a token is renewed, for a number in [0, 1).
fn early(drawn: f64) -> SignedDuration {
    SignedDuration::try_from_secs_f64(drawn * MAX_EARLY).unwrap_or_default()
}

fn due(held: &Held, now: Timestamp) -> bool {
    let life = held.expires.duration_since(held.issued);
    let old = (life.checked_div(5).unwrap_or_default() * 4).min(SignedDuration::from_hours(24));
    now > held.issued + old.saturating_sub(held.early)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewal() {
        let t = |s: i64| Timestamp::from_second(s).unwrap();
        let held = |life: i64, early: i64| Held { token: String::new(), issued: t(0), expires: t(life), early: SignedDuration::from_secs(early) };
        for (life, early, last) in
            [(3600, 0, 2880), (3600, 7, 2873), (600, 9, 471), (86_400 * 365, 0, 86_400), (86_400 * 365, 5, 86_395), (108_000, 0, 86_400)]
        {
            let held = held(life, early);
            assert!(!due(&held, t(last)) && due(&held, t(last + 1)), "{life} s, {early} s early");
        }
        assert_eq!([early(0.0), early(0.5)], [SignedDuration::ZERO, SignedDuration::from_secs(5)]);
        let drawn: std::collections::BTreeSet<_> = (0..16).map(|_| early(backoff::jitter())).collect();
        assert!(drawn.len() > 1 && drawn.iter().all(|early| *early < SignedDuration::from_secs(10)), "{drawn:?}");
    }
}
