//! Secrets at rest in upstream's envelope (`k8s:enc:secretbox:v1:KEY:`, nonce, sealed box), with upstream's EncryptionConfiguration
//! beside the store, so that an upstream API server could read them with that file
//! (apiserver/pkg/storage/value/encrypt/secretbox/secretbox.go).

use super::OpenError;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crypto_secretbox::aead::{Aead, KeyInit};
use crypto_secretbox::{Nonce, XSalsa20Poly1305};
use rand::RngCore;
use serde_json::{Value, json};
use std::path::Path;

const PREFIX: &str = "k8s:enc:secretbox:v1:";
const NONCE: usize = 24;

pub(super) struct Cipher {
    name: String,
    cipher: XSalsa20Poly1305,
}

impl Cipher {
    /// Reads the first secretbox key of the configuration, or writes a configuration with a new key.
    pub(super) fn load_or_create(path: &Path) -> Result<Self, OpenError> {
        let wrong = |reason: String| OpenError::Encryption { path: path.to_path_buf(), reason };
        if !path.exists() {
            let mut secret = [0_u8; 32];
            rand::rng().fill_bytes(&mut secret);
            let configuration = json!({
                "apiVersion": "apiserver.config.k8s.io/v1",
                "kind": "EncryptionConfiguration",
                "resources": [{"resources": ["secrets"], "providers": [
                    {"secretbox": {"keys": [{"name": "key1", "secret": STANDARD.encode(secret)}]}},
                    {"identity": {}},
                ]}],
            });
            let text = serde_yaml_ng::to_string(&configuration).map_err(|error| wrong(error.to_string()))?;
            pki::write_private(path, &text).map_err(|error| wrong(error.to_string()))?;
        }
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let configuration: Value = serde_yaml_ng::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        let key = configuration.pointer("/resources/0/providers/0/secretbox/keys/0");
        let member = |name: &str| key.and_then(|key| key.get(name)).and_then(Value::as_str);
        let (Some(name), Some(secret)) = (member("name"), member("secret")) else {
            return Err(wrong("its first provider is not secretbox with a key".into()));
        };
        let secret = STANDARD.decode(secret).map_err(|error| wrong(error.to_string()))?;
        let cipher = XSalsa20Poly1305::new_from_slice(&secret).map_err(|_| wrong("the key is not 32 bytes long".into()))?;
        Ok(Self { name: name.to_string(), cipher })
    }

    /// Seals `plain` in the envelope.
    pub(super) fn seal(&self, plain: &[u8]) -> Vec<u8> {
        let mut nonce = [0_u8; NONCE];
        rand::rng().fill_bytes(&mut nonce);
        self.seal_with(plain, nonce)
    }

    fn seal_with(&self, plain: &[u8], nonce: [u8; NONCE]) -> Vec<u8> {
        let sealed = self.cipher.encrypt(Nonce::from_slice(&nonce), plain).expect("secretbox seals any length that fits in memory");
        [PREFIX.as_bytes(), self.name.as_bytes(), b":", &nonce, &sealed].concat()
    }

    /// Opens an envelope; what was stored before encryption (no envelope) is returned as it is.
    pub(super) fn open(&self, stored: &[u8]) -> Option<Vec<u8>> {
        let Some(rest) = stored.strip_prefix(PREFIX.as_bytes()) else { return Some(stored.to_vec()) };
        let rest = rest.strip_prefix(self.name.as_bytes())?.strip_prefix(b":")?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE>()?;
        self.cipher.decrypt(Nonce::from_slice(nonce), sealed).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_opens_with_the_same_file_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("encryption-configuration.yaml");
        let cipher = Cipher::load_or_create(&path).unwrap();
        let sealed = cipher.seal(b"attack at dawn");
        assert!(sealed.starts_with(b"k8s:enc:secretbox:v1:key1:"));
        assert!(!sealed.windows(6).any(|part| part == b"attack"));
        assert_eq!(Cipher::load_or_create(&path).unwrap().open(&sealed).unwrap(), b"attack at dawn");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(Cipher::load_or_create(&path).unwrap().open(&sealed), None);
    }

    /// The vector of NaCl's own test (tests/secretbox.c): Go's secretbox.Seal gives the same bytes, authenticator first.
    #[test]
    fn the_box_is_nacl_s() {
        let key = [
            0x1b, 0x27, 0x55, 0x64, 0x73, 0xe9, 0x85, 0xd4, 0x62, 0xcd, 0x51, 0x19, 0x7a, 0x9a, 0x46, 0xc7, 0x60, 0x09, 0x54, 0x9e, 0xac, 0x64, 0x74,
            0xf2, 0x06, 0xc4, 0xee, 0x08, 0x44, 0xf6, 0x83, 0x89,
        ];
        let nonce = [
            0x69, 0x69, 0x6e, 0xe9, 0x55, 0xb6, 0x2b, 0x73, 0xcd, 0x62, 0xbd, 0xa8, 0x75, 0xfc, 0x73, 0xd6, 0x82, 0x19, 0xe0, 0x03, 0x6b, 0x7a, 0x0b,
            0x37,
        ];
        let cipher = Cipher { name: "k".into(), cipher: XSalsa20Poly1305::new_from_slice(&key).unwrap() };
        let message = [
            0xbe, 0x07, 0x5f, 0xc5, 0x3c, 0x81, 0xf2, 0xd5, 0xcf, 0x14, 0x13, 0x16, 0xeb, 0xeb, 0x0c, 0x7b, 0x52, 0x28, 0xc5, 0x2a, 0x4c, 0x62, 0xcb,
            0xd4, 0x4b, 0x66, 0x84, 0x9b, 0x64, 0x24, 0x4f, 0xfc, 0xe5, 0xec, 0xba, 0xaf, 0x33, 0xbd, 0x75, 0x1a, 0x1a, 0xc7, 0x28, 0xd4, 0x5e, 0x6c,
            0x61, 0x29, 0x6c, 0xdc, 0x3c, 0x01, 0x23, 0x35, 0x61, 0xf4, 0x1d, 0xb6, 0x6c, 0xce, 0x31, 0x4a, 0xdb, 0x31, 0x0e, 0x3b, 0xe8, 0x25, 0x0c,
            0x46, 0xf0, 0x6d, 0xce, 0xea, 0x3a, 0x7f, 0xa1, 0x34, 0x80, 0x57, 0xe2, 0xf6, 0x55, 0x6a, 0xd6, 0xb1, 0x31, 0x8a, 0x02, 0x4a, 0x83, 0x8f,
            0x21, 0xaf, 0x1f, 0xde, 0x04, 0x89, 0x77, 0xeb, 0x48, 0xf5, 0x9f, 0xfd, 0x49, 0x24, 0xca, 0x1c, 0x60, 0x90, 0x2e, 0x52, 0xf0, 0xa0, 0x89,
            0xbc, 0x76, 0x89, 0x70, 0x40, 0xe0, 0x82, 0xf9, 0x37, 0x76, 0x38, 0x48, 0x64, 0x5e, 0x07, 0x05,
        ];
        let sealed = cipher.seal_with(&message, nonce);
        let boxed = &sealed[PREFIX.len() + 2 + NONCE..];
        assert_eq!(boxed[..8], [0xf3, 0xff, 0xc7, 0x70, 0x3f, 0x94, 0x00, 0xe5]);
        assert_eq!(boxed[16..20], [0x8e, 0x99, 0x3b, 0x9f]);
    }
}
