//! Private keys of others' making, and signing requests for them.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{CertificateParams, KeyPair, PublicKeyData as _};
use ring::digest::{Context, SHA512_256};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::Error;
use crate::ca::{alt_names, subject};
use crate::der::{SEQUENCE, element, elements, encoded};

const INTEGER: u8 = 0x02;
const OCTET_STRING: u8 = 0x04;
/// `AlgorithmIdentifier` of RSA keys: rsaEncryption, NULL.
const RSA: [u8; 15] = [0x30, 13, 0x06, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1, 0x05, 0];
/// The identifier of elliptic keys: id-ecPublicKey.
const ELLIPTIC: [u8; 9] = [0x06, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];
/// Curves: prime256v1, secp384r1.
const CURVES: [&[u8]; 2] = [&[0x06, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7], &[0x06, 5, 0x2b, 0x81, 4, 0, 34]];
/// The tag of the curve's name in a SEC1 key.
const CURVE_NAME: u8 = 0xa0;

/// A private key: ECDSA on P-256 or P-384, Ed25519, or RSA.
pub struct Key(KeyPair);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

/// What a signing request says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    pub common_name: String,
    /// At most two.
    pub organisations: Vec<String>,
    pub dns: Vec<String>,
    pub ips: Vec<IpAddr>,
}

impl Key {
    /// A new ECDSA key on P-256.
    ///
    /// # Errors
    /// [`Error::Generate`] when the system has no random numbers.
    pub fn generate() -> Result<Self, Error> {
        KeyPair::generate().map(Self).map_err(|source| Error::Generate { subject: "a new key".to_owned(), source })
    }

    /// The first key of a PEM text, in PKCS#8, SEC1 (as Go writes ECDSA keys) or PKCS#1 (as it writes RSA keys).
    ///
    /// # Errors
    /// [`Error::Missing`] when there is none, [`Error::Parse`] when it is of a kind that is not known here.
    pub fn from_pem(text: &str) -> Result<Self, Error> {
        let key = PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|_| Error::Missing { what: "private key" })?;
        let unusable = Error::Parse { what: "the private key", source: rcgen::Error::CouldNotParseKeyPair };
        let der = match &key {
            PrivateKeyDer::Pkcs8(der) => der.secret_pkcs8_der().to_vec(),
            PrivateKeyDer::Pkcs1(der) => encoded(SEQUENCE, &[&[INTEGER, 1, 0], &RSA, &encoded(OCTET_STRING, &[der.secret_pkcs1_der()])]),
            PrivateKeyDer::Sec1(der) => match sec1(der.secret_sec1_der()) {
                Some(der) => der,
                None => return Err(unusable),
            },
            _ => return Err(unusable),
        };
        let der = PrivatePkcs8KeyDer::from(der);
        KeyPair::try_from(&der).map(Self).map_err(|source| Error::Parse { what: "the private key", source })
    }

    /// The key as PKCS#8 PEM: for writing it to disk with [`crate::write_private`].
    pub fn pem(&self) -> String {
        self.0.serialize_pem()
    }

    /// The public key as a SubjectPublicKeyInfo.
    pub fn public_der(&self) -> Vec<u8> {
        self.0.subject_public_key_info()
    }

    pub fn is_rsa(&self) -> bool {
        self.0.algorithm() == &rcgen::PKCS_RSA_SHA256
    }

    /// A PEM signing request of this key.
    ///
    /// # Errors
    /// When there are more than two organisations, or a DNS name is none.
    pub fn request(&self, wanted: &Subject) -> Result<String, Error> {
        let failed = |source| Error::Generate { subject: wanted.common_name.clone(), source };
        let mut params = CertificateParams::default();
        params.distinguished_name = subject(&wanted.common_name, &wanted.organisations)?;
        params.subject_alt_names = alt_names(&wanted.dns, &wanted.ips).map_err(failed)?;
        params.serialize_request(&self.0).and_then(|request| request.pem()).map_err(failed)
    }

    /// The name of a node's first signing request: it follows from key, subject and usages, so that a node that starts again finds the
    /// request that it made before (upstream: `digestedName`).
    pub fn request_name(&self, wanted: &Subject, usages: &[&str]) -> String {
        let mut digest = Context::new(&SHA512_256);
        // The delimiter is no digit of Base64: no two inputs write the same text.
        let mut write = |part: &[u8]| digest.update(format!("{}|", URL_SAFE_NO_PAD.encode(part)).as_bytes());
        write(&self.public_der());
        write(wanted.common_name.as_bytes());
        wanted.organisations.iter().for_each(|organisation| write(organisation.as_bytes()));
        usages.iter().for_each(|usage| write(usage.as_bytes()));
        format!("node-csr-{}", URL_SAFE_NO_PAD.encode(digest.finish()))
    }
}

/// PKCS#8 of a SEC1 key that names its curve.
fn sec1(der: &[u8]) -> Option<Vec<u8>> {
    let members = elements(element(der)?.1)?;
    let curve = members.iter().find(|member| member.first() == Some(&CURVE_NAME))?;
    let curve = element(curve)?.1;
    let curve = CURVES.into_iter().find(|known| *known == curve)?;
    let algorithm = encoded(SEQUENCE, &[&ELLIPTIC, curve]);
    Some(encoded(SEQUENCE, &[&[INTEGER, 1, 0], &algorithm, &encoded(OCTET_STRING, &[der])]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SigningRequest;

    /// As `openssl ecparam -name prime256v1 -genkey -noout` writes it, and Go.
    const SEC1: &str = include_str!("../tests/keys/p256-sec1.pem");
    const SEC1_384: &str = include_str!("../tests/keys/p384-sec1.pem");
    const PKCS1: &str = include_str!("../tests/keys/rsa-pkcs1.pem");
    /// What `openssl pkey -pubout -outform DER` says of the first one, in Base64.
    const SEC1_PUBLIC: &str = include_str!("../tests/keys/p256-public.base64");

    fn node() -> Subject {
        Subject { common_name: "system:node:win01".into(), organisations: vec!["system:nodes".into()], ..Subject::default() }
    }

    #[test]
    fn keys_are_read_in_the_forms_that_go_and_openssl_write() {
        for (text, is_rsa) in [(SEC1, false), (SEC1_384, false), (PKCS1, true)] {
            let key = Key::from_pem(text).unwrap();
            assert_eq!(key.is_rsa(), is_rsa);
            let again = Key::from_pem(&key.pem()).unwrap();
            assert_eq!(again.public_der(), key.public_der());
            let request = SigningRequest::parse(key.request(&node()).unwrap().as_bytes()).unwrap();
            assert_eq!((request.common_name.as_str(), request.public_key()), ("system:node:win01", &key.public_der()[..]));
        }
        let public = base64::engine::general_purpose::STANDARD.encode(Key::from_pem(SEC1).unwrap().public_der());
        assert_eq!(public, SEC1_PUBLIC.trim());
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let cut = SEC1.replace("MHcCAQEE", "MHcCAQEF");
        for text in ["", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", cut.as_str()] {
            assert!(Key::from_pem(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_name_of_a_request_follows_from_key_subject_and_usages() {
        let (key, usages) = (Key::from_pem(SEC1).unwrap(), ["digital signature", "client auth"]);
        let name = key.request_name(&node(), &usages);
        // Computed by the steps of upstream's digestedName with other tools, see tests/keys/README.md.
        assert_eq!(name, include_str!("../tests/keys/request-name.txt").trim());
        let other = Subject { common_name: "system:node:win0".into(), organisations: vec!["1system:nodes".into()], ..Subject::default() };
        assert_ne!(key.request_name(&other, &usages), name);
        assert_ne!(key.request_name(&node(), &usages[..1]), name);
        assert_ne!(Key::generate().unwrap().request_name(&node(), &usages), name);
    }
}
