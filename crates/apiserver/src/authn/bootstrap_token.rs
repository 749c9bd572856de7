//! Bootstrap tokens: `ID.SECRET`, held in Secrets of kube-system (plugin/pkg/auth/authenticator/token/bootstrap).

use super::{AUTHENTICATED, UserInfo};
use crate::kinds;
use crate::object;
use crate::store::Store;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use kube_rules::bootstrap_token::{SECRET_NAME, SECRET_TYPE, Token, USER, parse};
use ring::digest::{SHA256, digest};
use serde_json::Map;

/// The user of a token that a live Secret says is good for requests.
pub fn user(store: &Store, bearer: &str, now: Timestamp) -> Option<UserInfo> {
    let (id, secret) = parse(bearer)?;
    let kind = kinds::by_resource("", "v1", "secrets")?;
    let stored = store.get(&kind.key("kube-system", &format!("{SECRET_NAME}{id}")))?.value();
    if object::text(&stored, &["type"]) != SECRET_TYPE || !object::text(&stored, &["metadata", "deletionTimestamp"]).is_empty() {
        return None;
    }
    let token = Token::new(|member| {
        let bytes = STANDARD.decode(object::text(&stored, &["data", member])).unwrap_or_default();
        String::from_utf8(bytes).unwrap_or_default()
    });
    let groups = token.for_requests(id, now)?;
    // Of digests: how long the comparison takes says nothing of the secret.
    if digest(&SHA256, token.secret.as_bytes()).as_ref() != digest(&SHA256, secret.as_bytes()).as_ref() {
        return None;
    }
    let groups = groups.into_iter().chain([AUTHENTICATED.to_string()]).collect();
    Some(UserInfo { name: format!("{USER}{id}"), uid: String::new(), groups, extra: Map::new() })
}
