//! A certificate with its key, read from files of others: what it says, and whether the two fit.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::request::{pem, texts};

/// A text of this size holds long chains many times over.
pub const LARGEST: usize = 1 << 20;

/// Why a certificate or its key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    #[error("it is larger than 1 MiB")]
    TooLarge,
    #[error("it holds no certificate in PEM")]
    NoCertificate,
    #[error("its certificate cannot be read: {0}")]
    Certificate(String),
    #[error("it holds no private key in PEM")]
    NoKey,
    #[error("certificate and key cannot be used together")]
    Together(#[source] rustls::Error),
}

/// What a certificate says of its holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Empty for none.
    pub common_name: String,
    pub organisations: Vec<String>,
    pub dns: Vec<String>,
    pub ips: Vec<IpAddr>,
    pub not_before: SystemTime,
    pub not_after: SystemTime,
}

/// A certificate with its issuers, and its key.
#[derive(Clone)]
pub struct Pair {
    chain: Vec<CertificateDer<'static>>,
    leaf: Leaf,
    /// When the first of the chain ends.
    ends: SystemTime,
    key_pem: String,
    certified: Arc<CertifiedKey>,
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair").field("leaf", &self.leaf).finish_non_exhaustive()
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.chain == other.chain && self.key_pem == other.key_pem
    }
}

fn time(seconds: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    four.or_else(|| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from))
}

fn leaf(certificate: &X509Certificate<'_>) -> Leaf {
    let mut leaf = Leaf {
        common_name: texts(certificate.subject().iter_common_name()).pop().unwrap_or_default(),
        organisations: texts(certificate.subject().iter_organization()),
        dns: Vec::new(),
        ips: Vec::new(),
        not_before: time(certificate.validity().not_before.timestamp()),
        not_after: time(certificate.validity().not_after.timestamp()),
    };
    let names = certificate.subject_alternative_name().ok().flatten();
    for name in names.iter().flat_map(|names| &names.value.general_names) {
        match name {
            GeneralName::DNSName(name) => leaf.dns.push((*name).to_owned()),
            GeneralName::IPAddress(bytes) => leaf.ips.extend(address(bytes)),
            _ => {}
        }
    }
    leaf
}

impl Pair {
    /// Reads PEM texts, which may be the same one: the first certificate is the holder's, others are its issuers; the first key counts.
    ///
    /// # Errors
    /// When one of them is missing or unreadable, and when the key is not the certificate's.
    pub fn parse(certificates: &str, key: &str) -> Result<Self, PairError> {
        if certificates.len() > LARGEST || key.len() > LARGEST {
            return Err(PairError::TooLarge);
        }
        let chain = CertificateDer::pem_slice_iter(certificates.as_bytes()).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| PairError::Certificate(error.to_string()))?;
        let Some(first) = chain.first() else { return Err(PairError::NoCertificate) };
        let read = |der: &CertificateDer<'_>| match X509Certificate::from_der(der) {
            Ok((_, certificate)) => Ok(leaf(&certificate)),
            Err(error) => Err(PairError::Certificate(error.to_string())),
        };
        let leaf = read(first)?;
        let mut ends = leaf.not_after;
        for issuer in &chain[1..] {
            ends = ends.min(read(issuer)?.not_after);
        }
        let der = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|_| PairError::NoKey)?;
        let label = match &der {
            PrivateKeyDer::Pkcs1(_) => "RSA PRIVATE KEY",
            PrivateKeyDer::Sec1(_) => "EC PRIVATE KEY",
            _ => "PRIVATE KEY",
        };
        let key_pem = pem(label, der.secret_der());
        let certified = CertifiedKey::from_der(chain.clone(), der, &rustls::crypto::ring::default_provider()).map_err(PairError::Together)?;
        Ok(Self { chain, leaf, ends, key_pem, certified: Arc::new(certified) })
    }

    pub fn leaf(&self) -> &Leaf {
        &self.leaf
    }

    /// When the first certificate of the chain ends.
    pub fn ends(&self) -> SystemTime {
        self.ends
    }

    /// Whether every certificate of the chain is still good (upstream looks at no beginning, either).
    pub fn is_valid(&self, now: SystemTime) -> bool {
        now <= self.ends
    }

    /// The certificates, PEM.
    pub fn cert_pem(&self) -> String {
        self.chain.iter().map(|der| pem("CERTIFICATE", der)).collect()
    }

    /// The key, PEM, in the form that it came in.
    pub fn key_pem(&self) -> &str {
        &self.key_pem
    }

    /// For TLS.
    pub fn certified(&self) -> Arc<CertifiedKey> {
        self.certified.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ca, CertKey, CertRequest};

    const DAY: Duration = Duration::from_secs(86_400);

    fn issue(ca: &Ca) -> CertKey {
        let request = CertRequest {
            cn: "system:node:win01".into(),
            orgs: vec!["system:nodes".into()],
            dns: vec!["win01".into()],
            ips: vec!["10.0.0.5".parse().unwrap(), "fd00::5".parse().unwrap()],
            server: true,
            days: 10,
            ..CertRequest::default()
        };
        ca.issue(&request).unwrap()
    }

    #[test]
    fn a_pair_says_what_its_certificate_does() {
        let ca = Ca::generate("kubernetes", DAY).unwrap();
        let made = issue(&ca);
        let both = format!("some words\n{}{}{}", made.cert_pem, ca.cert_pem(), made.key_pem);
        let pair = Pair::parse(&both, &both).unwrap();
        let leaf = pair.leaf();
        assert_eq!(
            (leaf.common_name.as_str(), &leaf.organisations[..], &leaf.dns[..]),
            ("system:node:win01", &["system:nodes".into()][..], &["win01".into()][..])
        );
        assert_eq!(leaf.ips, ["10.0.0.5".parse::<IpAddr>().unwrap(), "fd00::5".parse().unwrap()]);
        let now = SystemTime::now();
        assert!(leaf.not_before < now && leaf.not_after > now + DAY * 9);
        assert!(pair.is_valid(now) && !pair.is_valid(now + DAY * 2), "the authority of the chain ends first");
        assert_eq!(Pair::parse(&pair.cert_pem(), pair.key_pem()).unwrap(), pair, "what is written is read the same");
        assert!(!format!("{pair:?}").contains("PRIVATE"), "keys are in no log");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let ca = Ca::generate("kubernetes", DAY).unwrap();
        let (one, other) = (issue(&ca), issue(&ca));
        let error = |certificates: &str, key: &str| Pair::parse(certificates, key).unwrap_err().to_string();
        assert_eq!(error(&one.cert_pem, &other.key_pem), "certificate and key cannot be used together");
        assert_eq!(error(&one.cert_pem, ""), "it holds no private key in PEM");
        assert_eq!(error(&one.key_pem, &one.key_pem), "it holds no certificate in PEM");
        assert_eq!(error(&" ".repeat(LARGEST + 1), ""), "it is larger than 1 MiB");
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(error(broken, &one.key_pem).starts_with("its certificate cannot be read"));
        assert!(error(&format!("{}{broken}", one.cert_pem), &one.key_pem).starts_with("its certificate cannot be read"));
    }

    #[test]
    fn keys_in_the_forms_of_go_are_kept_as_they_are() {
        let text = include_str!("../tests/keys/p256-sec1.pem");
        let key = crate::Key::from_pem(text).unwrap();
        let request = crate::SigningRequest::parse(key.request(&crate::Subject::default()).unwrap().as_bytes()).unwrap();
        let ca = Ca::generate("kubernetes", DAY).unwrap();
        let certificate = ca.sign(&request, &crate::Usages::default(), DAY, SystemTime::now()).unwrap();
        assert_eq!(Pair::parse(&certificate, text).unwrap().key_pem(), text);
    }
}
