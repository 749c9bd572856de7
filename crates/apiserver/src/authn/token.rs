//! ServiceAccount tokens: issued by the TokenRequest subresource, checked against the live objects they are bound to
//! (pkg/serviceaccount/claims.go, pkg/registry/core/serviceaccount/storage/token.go).

use super::{AUTHENTICATED, SERVICE_ACCOUNT_USER, UserInfo};
use crate::object;
use crate::store::Store;
use serde_json::{Map, Value, json};

/// The issuer named in tokens and by the discovery document.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// What a token is bound to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Binding {
    /// "Pod", "Secret" or "Node".
    pub kind: String,
    pub name: String,
    pub uid: String,
    /// The node a bound pod runs on: (name, uid).
    pub node: Option<(String, String)>,
}

/// The claims of a new token. `now` and `seconds` are in seconds.
pub fn claims(namespace: &str, account: &Value, audiences: &[String], binding: Option<&Binding>, now: i64, seconds: i64) -> Value {
    let name = object::name(account);
    let mut kubernetes = json!({"namespace": namespace, "serviceaccount": {"name": name, "uid": object::uid(account)}});
    if let Some(binding) = binding {
        kubernetes[binding.kind.to_ascii_lowercase()] = json!({"name": binding.name, "uid": binding.uid});
        if let Some((name, uid)) = &binding.node {
            kubernetes["node"] = json!({"name": name, "uid": uid});
        }
    }
    json!({
        "aud": audiences, "exp": now + seconds, "iat": now, "iss": ISSUER, "jti": uuid::Uuid::new_v4().to_string(),
        "kubernetes.io": kubernetes, "nbf": now, "sub": format!("{SERVICE_ACCOUNT_USER}{namespace}:{name}"),
    })
}

/// How long a token outlives the deletion of what it is bound to (go-jose's `DefaultLeeway`, in seconds).
const LEEWAY: i64 = 60;

/// The user of verified claims, and those of `audiences` that the token is meant for: the times, issuer and audience fit and everything
/// the token is bound to still lives.
pub fn user(store: &Store, claims: &Value, audiences: &[&str], now: i64) -> Option<(UserInfo, Vec<String>)> {
    let time = |name: &str| claims.get(name).and_then(Value::as_i64);
    let in_time = now < time("exp")? && now >= time("nbf").unwrap_or_default();
    let meant: Vec<&str> = object::list(claims, &["aud"]).iter().filter_map(Value::as_str).collect();
    let fitting: Vec<String> = audiences.iter().filter(|audience| meant.contains(audience)).map(ToString::to_string).collect();
    if !in_time || fitting.is_empty() || object::text(claims, &["iss"]) != ISSUER {
        return None;
    }
    let bound = claims.get("kubernetes.io")?;
    let namespace = object::text(bound, &["namespace"]);
    let (name, uid) = (object::text(bound, &["serviceaccount", "name"]), object::text(bound, &["serviceaccount", "uid"]));
    alive(store, "serviceaccounts", namespace, name, uid, now)?;
    let mut extra = Map::new();
    if let Some(jti) = claims.get("jti").and_then(Value::as_str) {
        extra.insert(super::CREDENTIAL_ID.into(), json!([format!("JTI={jti}")]));
    }
    for (member, plural, scope) in [("pod", "pods", namespace), ("secret", "secrets", namespace), ("node", "nodes", "")] {
        let Some(reference) = bound.get(member) else { continue };
        let (name, uid) = (object::text(reference, &["name"]), object::text(reference, &["uid"]));
        // A pod's node may have gone while the pod still runs; upstream checks the node only when the token is bound to it alone.
        if member != "node" || bound.get("pod").is_none() {
            alive(store, plural, scope, name, uid, now)?;
        }
        if member != "secret" {
            extra.insert(format!("authentication.kubernetes.io/{member}-name"), json!([name]));
            extra.insert(format!("authentication.kubernetes.io/{member}-uid"), json!([uid]));
        }
    }
    let groups = vec!["system:serviceaccounts".to_string(), format!("system:serviceaccounts:{namespace}"), AUTHENTICATED.to_string()];
    Some((UserInfo { name: format!("{SERVICE_ACCOUNT_USER}{namespace}:{name}"), uid: uid.to_string(), groups, extra }, fitting))
}

fn alive(store: &Store, plural: &str, namespace: &str, name: &str, uid: &str, now: i64) -> Option<()> {
    let stored = store.get(&format!("core/{plural}/{namespace}/{name}"))?.value();
    let deleted: Option<jiff::Timestamp> = object::text(&stored, &["metadata", "deletionTimestamp"]).parse().ok();
    let gone = deleted.is_some_and(|deleted| deleted.as_second() < now - LEEWAY);
    (object::uid(&stored) == uid && !gone).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Expect;

    async fn store_with(dir: &std::path::Path) -> Store {
        let store = Store::open(dir).unwrap();
        let account = json!({"metadata": {"name": "default", "namespace": "a", "uid": "u1"}});
        let pod = json!({"metadata": {"name": "p", "namespace": "a", "uid": "u2"}});
        store.put("core/serviceaccounts/a/default", Expect::Absent, account).await.unwrap();
        store.put("core/pods/a/p", Expect::Absent, pod).await.unwrap();
        store
    }

    #[tokio::test]
    async fn a_token_lives_as_long_as_its_pod() {
        let dir = tempfile::tempdir().unwrap();
        let store = store_with(dir.path()).await;
        let account = store.get("core/serviceaccounts/a/default").unwrap().value();
        let binding = Binding { kind: "Pod".into(), name: "p".into(), uid: "u2".into(), node: Some(("n".into(), "u3".into())) };
        let claims = claims("a", &account, &[ISSUER.to_string()], Some(&binding), 1000, 600);
        let user = |now| user(&store, &claims, &[ISSUER], now);
        let (found, fitting) = user(1000).unwrap();
        assert_eq!(fitting, [ISSUER]);
        assert_eq!(found.name, "system:serviceaccount:a:default");
        assert_eq!(found.extra["authentication.kubernetes.io/pod-name"], json!(["p"]));
        assert!(user(1600).is_none() && user(999).is_none());
        assert!(super::user(&store, &claims, &["other"], 1000).is_none());
        let entry = store.get("core/pods/a/p").unwrap();
        let mut deleting = entry.value();
        // A finalizer keeps it: the token ends a minute after the time by which the pod should be gone.
        deleting["metadata"]["deletionTimestamp"] = "1970-01-01T00:17:00Z".into();
        store.put("core/pods/a/p", Expect::Revision(entry.revision), deleting).await.unwrap();
        assert!(user(1020 + LEEWAY).is_some() && user(1021 + LEEWAY).is_none());
        let entry = store.get("core/pods/a/p").unwrap();
        store.delete("core/pods/a/p", Expect::Revision(entry.revision), entry.value()).await.unwrap();
        assert!(user(1000).is_none());
    }
}
