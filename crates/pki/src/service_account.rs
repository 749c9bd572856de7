//! The ServiceAccount signing key: ES256 JSON web tokens as upstream's API server issues them.

use crate::Error;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, UnparsedPublicKey};
use serde_json::{Value, json};

/// The DER header of a P-256 SubjectPublicKeyInfo; the uncompressed point follows.
const P256_SPKI_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03,
    0x42, 0x00,
];

/// An ES256 key that signs and verifies ServiceAccount tokens.
pub struct SigningKey {
    pair: EcdsaKeyPair,
    random: SystemRandom,
    pem: String,
    key_id: String,
}

impl SigningKey {
    /// Makes a new key.
    pub fn generate() -> Result<Self, Error> {
        let key = rcgen::KeyPair::generate().map_err(|source| Error::Generate { subject: "ServiceAccount signing key".into(), source })?;
        Self::from_pem(&key.serialize_pem())
    }

    /// Reads a key from PKCS#8 PEM.
    pub fn from_pem(pem: &str) -> Result<Self, Error> {
        let der = crate::private_key_der(pem)?;
        let random = SystemRandom::new();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der.secret_der(), &random)
            .map_err(|rejected| Error::SigningKey { reason: rejected.to_string() })?;
        let mut spki = P256_SPKI_PREFIX.to_vec();
        spki.extend_from_slice(pair.public_key().as_ref());
        let key_id = URL_SAFE_NO_PAD.encode(ring::digest::digest(&ring::digest::SHA256, &spki));
        Ok(Self { pair, random, pem: pem.to_string(), key_id })
    }

    /// The key, PKCS#8 PEM: for writing it to disk with [`crate::write_private`].
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Upstream's key id: the SHA-256 of the public key's DER form, base64url
    /// (pkg/serviceaccount/jwt.go, `keyIDFromPublicKey`).
    pub fn key_id(&self) -> &str {
        &self.key_id
    }

    /// Signs `claims` as a compact JSON web token.
    pub fn sign(&self, claims: &Value) -> Result<String, Error> {
        let header = json!({"alg": "ES256", "kid": self.key_id});
        let message = format!("{}.{}", URL_SAFE_NO_PAD.encode(header.to_string()), URL_SAFE_NO_PAD.encode(claims.to_string()));
        let signature = self.pair.sign(&self.random, message.as_bytes()).map_err(|_| Error::SigningKey { reason: "signing failed".into() })?;
        Ok(format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// The claims of a token that this key signed; `None` for any other text. Times, audience and issuer are the caller's to check.
    pub fn verify(&self, token: &str) -> Option<Value> {
        let (message, signature) = token.rsplit_once('.')?;
        let (header, claims) = message.split_once('.')?;
        let header: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(header).ok()?).ok()?;
        if header.get("alg").and_then(Value::as_str) != Some("ES256") {
            return None;
        }
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.pair.public_key().as_ref());
        public.verify(message.as_bytes(), &signature).ok()?;
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
    }

    /// The public key as a JSON web key set, as `/openid/v1/jwks` serves it.
    pub fn key_set(&self) -> Value {
        let point = self.pair.public_key().as_ref();
        let (x, y) = point.get(1..).unwrap_or_default().split_at(32);
        json!({"keys": [{
            "use": "sig", "kty": "EC", "kid": self.key_id, "crv": "P-256", "alg": "ES256",
            "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y),
        }]})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_verifies_with_its_key_only() {
        let key = SigningKey::generate().unwrap();
        let claims = json!({"sub": "system:serviceaccount:default:default"});
        let token = key.sign(&claims).unwrap();
        assert_eq!(key.verify(&token), Some(claims));
        assert_eq!(SigningKey::generate().unwrap().verify(&token), None);
        assert_eq!(SigningKey::from_pem(key.pem()).unwrap().key_id(), key.key_id());
    }

    #[test]
    fn changed_and_unsigned_tokens_are_refused() {
        let key = SigningKey::generate().unwrap();
        let token = key.sign(&json!({"sub": "a"})).unwrap();
        let mut parts: Vec<&str> = token.split('.').collect();
        let forged = URL_SAFE_NO_PAD.encode(r#"{"sub":"b"}"#);
        parts[1] = &forged;
        assert_eq!(key.verify(&parts.join(".")), None);
        let none = format!("{}.{}.", URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#), forged);
        assert_eq!(key.verify(&none), None);
        assert_eq!(key.verify("garbage"), None);
    }
}
