//! Detached signatures (JWS) of the ConfigMap `cluster-info`, as cluster-bootstrap makes them. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use serde::Deserialize;

use crate::token::BootstrapToken;

/// Bytes that a signature may have; upstream's have about 100.
const LONGEST: usize = 4096;

/// Why a signature proves nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JwsError {
    #[error("it is no detached JWS of three parts")]
    Form,
    #[error("its header is damaged")]
    Header,
    #[error("its algorithm is {0:?}, not HS256")]
    Algorithm(String),
    #[error("it is of token {0:?}")]
    OtherToken(String),
    #[error("it was not made with this token, or the content was changed")]
    Mismatch,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: String,
}

/// Checks that somebody who has the token signed the content.
///
/// # Errors
/// [`JwsError`]; nothing of the content may be trusted then.
pub fn verify(jws: &str, content: &str, token: &BootstrapToken) -> Result<(), JwsError> {
    if jws.len() > LONGEST {
        return Err(JwsError::Form);
    }
    let parts: Vec<&str> = jws.split('.').collect();
    let [header, "", signature] = parts[..] else { return Err(JwsError::Form) };
    let decoded = URL_SAFE_NO_PAD.decode(header).map_err(|_| JwsError::Header)?;
    let read: Header = serde_json::from_slice(&decoded).map_err(|_| JwsError::Header)?;
    // Another algorithm ("none" above all) would let the server choose how it is checked.
    if read.alg != "HS256" {
        return Err(JwsError::Algorithm(read.alg));
    }
    if read.kid != token.id() {
        return Err(JwsError::OtherToken(read.kid));
    }
    let tag = URL_SAFE_NO_PAD.decode(signature).map_err(|_| JwsError::Form)?;
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.secret().as_bytes());
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(content));
    hmac::verify(&key, signed.as_bytes(), &tag).map_err(|_| JwsError::Mismatch)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn token() -> BootstrapToken {
        "abcdef.0123456789abcdef".parse().unwrap()
    }

    pub(crate) fn sign(header: &str, content: &str, secret: &str) -> String {
        let header = URL_SAFE_NO_PAD.encode(header);
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        let tag = hmac::sign(&key, format!("{header}.{}", URL_SAFE_NO_PAD.encode(content)).as_bytes());
        format!("{header}..{}", URL_SAFE_NO_PAD.encode(tag))
    }

    pub(crate) const HEADER: &str = r#"{"alg":"HS256","kid":"abcdef"}"#;
    pub(crate) const SECRET: &str = "0123456789abcdef";

    #[test]
    fn only_the_tokens_signature_of_this_content_counts() {
        let good = sign(HEADER, "content", SECRET);
        assert_eq!(verify(&good, "content", &token()), Ok(()));
        let other_kid = sign(r#"{"alg":"HS256","kid":"ghijkl"}"#, "content", SECRET);
        let none = sign(r#"{"alg":"none","kid":"abcdef"}"#, "content", SECRET);
        let longer = format!("{good}{}", "A".repeat(LONGEST));
        for (jws, content, expected) in [
            (good.as_str(), "changed", JwsError::Mismatch),
            (&sign(HEADER, "content", "fedcba9876543210"), "content", JwsError::Mismatch),
            (&other_kid, "content", JwsError::OtherToken("ghijkl".into())),
            (&none, "content", JwsError::Algorithm("none".into())),
            (&good[..good.len() - 4], "content", JwsError::Form),
            (&good.replace("..", ".Y29udGVudA."), "content", JwsError::Form),
            ("", "content", JwsError::Form),
            ("a.b", "content", JwsError::Form),
            ("!..x", "content", JwsError::Header),
            ("e30..x", "content", JwsError::Header),
            (&longer, "content", JwsError::Form),
        ] {
            assert_eq!(verify(jws, content, &token()), Err(expected), "{jws:.40} of {content}");
        }
    }
}
