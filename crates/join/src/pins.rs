//! Pins of a cluster's authority: SHA-256 over the public key of its certificate (kubeadm's util/pubkeypin). Pure.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// Hashes of public keys that are trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins(BTreeSet<String>);

/// Why a pin cannot be used, or none fits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PinError {
    #[error("invalid CA certificate hash {0:?}: write sha256: and 64 hexadecimal digits, as kubeadm token create --print-join-command prints it")]
    Form(String),
    #[error("the server's certificate authority cannot be read")]
    Authority,
    #[error(
        "the server's certificate authority is {found}, which is none of those given with --discovery-token-ca-cert-hash: this is another \
         cluster, its authority was replaced, or somebody stands between; ask its administrator for the hash"
    )]
    Other {
        /// The hashes of what the server showed.
        found: String,
    },
}

impl Pins {
    /// Reads `sha256:HEX`.
    ///
    /// # Errors
    /// [`PinError::Form`].
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, PinError> {
        let one = |text: &'a str| {
            let (kind, hash) = text.split_once(':').ok_or_else(|| PinError::Form(text.to_owned()))?;
            let is_hash = hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
            if !kind.eq_ignore_ascii_case("sha256") || !is_hash {
                return Err(PinError::Form(text.to_owned()));
            }
            Ok(format!("sha256:{}", hash.to_ascii_lowercase()))
        };
        texts.into_iter().map(one).collect::<Result<_, _>>().map(Self)
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The certificates (DER) that have a pinned key. Others beside them prove nothing: whoever passes a text on can add his own.
    ///
    /// # Errors
    /// [`PinError`], also when no certificate has one; the server is not to be trusted then.
    pub fn pinned(&self, ca_pem: &str) -> Result<Vec<Vec<u8>>, PinError> {
        let all = certificates(ca_pem)?;
        let found = all.iter().map(|der| pin_of(der)).collect::<Result<Vec<_>, _>>()?;
        let pinned: Vec<Vec<u8>> = all.into_iter().zip(&found).filter(|(_, pin)| self.0.contains(*pin)).map(|(der, _)| der).collect();
        if pinned.is_empty() { Err(PinError::Other { found: found.join(", ") }) } else { Ok(pinned) }
    }
}

fn certificates(ca_pem: &str) -> Result<Vec<Vec<u8>>, PinError> {
    let certificates = pki::certificate_der(ca_pem).map_err(|_| PinError::Authority)?;
    if certificates.is_empty() { Err(PinError::Authority) } else { Ok(certificates.into_iter().map(|der| der.to_vec()).collect()) }
}

/// The pin of a certificate (DER).
///
/// # Errors
/// [`PinError::Authority`] when it is none.
pub fn pin_of(der: &[u8]) -> Result<String, PinError> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).map_err(|_| PinError::Authority)?;
    let mut text = "sha256:".to_owned();
    for byte in Sha256::digest(certificate.tbs_certificate.subject_pki.raw) {
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

/// The pins of the certificates in a PEM text.
///
/// # Errors
/// [`PinError::Authority`] when there is none, or one that is no certificate.
pub fn pins_of(ca_pem: &str) -> Result<Vec<String>, PinError> {
    certificates(ca_pem)?.iter().map(|der| pin_of(der)).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// An authority, and its pin as kubeadm's documentation has it computed: openssl x509 -pubkey, pkey -outform der, dgst -sha256.
    const CERTIFICATE: &str = include_str!("testdata/authority.pem");
    const PIN: &str = include_str!("testdata/authority.pin");

    #[test]
    fn pins_are_kubeadms() {
        assert_eq!(pins_of(CERTIFICATE).unwrap(), [PIN.trim()]);
        assert_eq!(Pins::parse([PIN.trim().to_uppercase().as_str()]).unwrap().pinned(CERTIFICATE).unwrap().len(), 1);
    }

    #[test]
    fn only_pinned_authorities_of_a_bundle_count() {
        let authority = || pki::Ca::generate("a", Duration::from_secs(86_400)).unwrap().cert_pem().to_owned();
        let (one, other) = (authority(), authority());
        let pin = pins_of(&one).unwrap().remove(0);
        let pins = Pins::parse([PIN.trim(), pin.as_str()]).unwrap();
        assert_eq!(pins.pinned(&format!("{other}{one}")).unwrap(), certificates(&one).unwrap());
        let error = pins.pinned(&other).unwrap_err();
        assert!(error.to_string().contains(&pins_of(&other).unwrap()[0]), "{error}");
        assert_eq!(pins.pinned("nothing"), Err(PinError::Authority));
    }

    #[test]
    fn pins_of_another_form_are_refused() {
        for text in ["", "sha256:", "sha256:abc", "md5:00", &"sha256:z".repeat(8), &format!("sha512:{}", "0".repeat(64)), &"0".repeat(64)] {
            assert_eq!(Pins::parse([text]), Err(PinError::Form(text.to_owned())));
        }
    }
}
