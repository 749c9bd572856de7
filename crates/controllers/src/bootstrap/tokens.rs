//! Bootstrap tokens and their signatures. Pure.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use k8s_openapi::api::core::v1::Secret;
use kube_rules::bootstrap_token::{SIGNATURE, Token};
use ring::hmac;

/// The member of `cluster-info` that is signed.
const SIGNED: &str = "kubeconfig";

/// What is kept of a token's Secret.
#[derive(Clone, PartialEq, Eq, Default)]
pub(super) struct Row {
    pub uid: String,
    pub token: Token,
}

impl Row {
    pub fn new(secret: &Secret) -> Self {
        let text = |member: &str| {
            let bytes = secret.data.as_ref().and_then(|data| data.get(member));
            bytes.map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned()).unwrap_or_default()
        };
        Self { uid: secret.metadata.uid.clone().unwrap_or_default(), token: Token::new(text) }
    }
}

/// A JWS of `content` without the content itself (cluster-bootstrap's `ComputeDetachedSignature`).
fn signature(content: &str, id: &str, secret: &str) -> String {
    // An id has letters and digits only, so that it needs no quoting.
    let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"HS256","kid":"{id}"}}"#));
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let tag = hmac::sign(&key, format!("{header}.{}", URL_SAFE_NO_PAD.encode(content)).as_bytes());
    format!("{header}..{}", URL_SAFE_NO_PAD.encode(tag))
}

/// The members of `cluster-info` that have to change: new and corrected signatures, `None` for those that go. `tokens`: ids and secrets.
pub(super) fn changes<'a>(data: &BTreeMap<String, String>, tokens: impl Iterator<Item = (&'a str, &'a str)>) -> BTreeMap<String, Option<String>> {
    let Some(content) = data.get(SIGNED) else { return BTreeMap::new() };
    let wanted: BTreeMap<String, String> = tokens.map(|(id, secret)| (format!("{SIGNATURE}{id}"), signature(content, id, secret))).collect();
    let gone = data.keys().filter(|member| member.starts_with(SIGNATURE) && !wanted.contains_key(*member));
    let gone: Vec<(String, Option<String>)> = gone.map(|member| (member.clone(), None)).collect();
    let changed = wanted.into_iter().filter(|(member, signature)| data.get(member) != Some(signature));
    changed.map(|(member, signature)| (member, Some(signature))).chain(gone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTENT: &str = "Hello from the other side. I must have called a thousand times.";

    #[test]
    fn signatures_are_upstreams() {
        for (content, secret, expected) in [
            (CONTENT, "my voice is my passcode", "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8"),
            ("", "my voice is my passcode", "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..7Ui1ALizW4jXphVUB7xUqC9vLYLL9RZeOFfVLoB7Tgk"),
            (CONTENT, "", "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..UfkqvDGiIFxrMnFseDj9LYJOLNrvjW8aHhF71mvvAs8"),
        ] {
            assert_eq!(signature(content, "joshua", secret), expected);
        }
    }

    #[test]
    fn signatures_follow_tokens_and_content() {
        let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect::<BTreeMap<_, _>>();
        let right = signature("config", "abcdef", "secret");
        let none: [(&str, &str); 0] = [];
        let info = map(&[("kubeconfig", "config"), ("jws-kubeconfig-abcdef", &right), ("other", "x")]);
        let tokens = || [("abcdef", "secret")].into_iter();
        assert!(changes(&info, tokens()).is_empty());
        assert_eq!(changes(&info, none.into_iter()), BTreeMap::from([("jws-kubeconfig-abcdef".into(), None)]));
        assert_eq!(changes(&map(&[("kubeconfig", "config")]), tokens()), BTreeMap::from([("jws-kubeconfig-abcdef".into(), Some(right.clone()))]));
        let old = map(&[("kubeconfig", "config"), ("jws-kubeconfig-abcdef", "wrong")]);
        assert_eq!(changes(&old, tokens()), BTreeMap::from([("jws-kubeconfig-abcdef".into(), Some(right))]));
        assert!(changes(&map(&[("jws-kubeconfig-abcdef", "wrong")]), tokens()).is_empty(), "there is nothing to sign");
    }
}
