//! Certificate signing requests of others: what they ask for, and certificates for them.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateSigningRequestParams, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose, SerialNumber, SigningKey};
use ring::rand::{SecureRandom, SystemRandom};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateSigningRequestDer};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

use crate::der::replaced;
use crate::{BACKDATE, Ca, Error};

/// Certificates of a shorter life than this end that long after now; others that long after they begin (upstream: `Short`).
const SHORT: Duration = Duration::from_secs(8 * 3600);
/// A request of this size holds any key and hundreds of names; the API server refuses larger objects long before.
const LARGEST: usize = 256 * 1024;
/// The place of the subject in a certificate's body, after version, serial number, algorithm, issuer and validity.
const SUBJECT: usize = 5;

/// What a signing request asks for. Its signature is checked when it is signed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SigningRequest {
    pub common_name: String,
    pub organisations: Vec<String>,
    pub dns: Vec<String>,
    pub ips: Vec<IpAddr>,
    pub emails: Vec<String>,
    pub uris: Vec<String>,
    /// The subject as it came, with attributes that are not read here.
    subject: Vec<u8>,
    public_key: Vec<u8>,
    der: Vec<u8>,
}

fn unreadable(reason: &str) -> Error {
    Error::Request { reason: reason.to_owned() }
}

pub(crate) fn texts<'a>(attributes: impl Iterator<Item = &'a AttributeTypeAndValue<'a>>) -> Vec<String> {
    attributes.filter_map(|attribute| Some(attribute.as_str().ok()?.to_owned())).collect()
}

pub(crate) fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let mut pem = format!("-----BEGIN {label}-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, more) = rest.split_at(rest.len().min(64));
        pem.push_str(line);
        pem.push('\n');
        rest = more;
    }
    pem + &format!("-----END {label}-----\n")
}

/// rcgen takes names of one attribute each.
fn is_simple(name: &X509Name<'_>) -> bool {
    name.iter().all(|part| part.iter().count() == 1)
}

impl SigningRequest {
    /// Reads a PEM text.
    ///
    /// # Errors
    /// [`Error::Request`], with upstream's words where it has some.
    pub fn parse(pem: &[u8]) -> Result<Self, Error> {
        if pem.len() > LARGEST {
            return Err(unreadable("it is larger than 256 KiB"));
        }
        let der = CertificateSigningRequestDer::from_pem_slice(pem).map_err(|_| unreadable("PEM block type must be CERTIFICATE REQUEST"))?;
        let mut request = {
            let (rest, parsed) = X509CertificationRequest::from_der(&der).map_err(|error| unreadable(&error.to_string()))?;
            if !rest.is_empty() {
                return Err(unreadable("asn1: syntax error: trailing data"));
            }
            let name = &parsed.certification_request_info.subject;
            if !is_simple(name) {
                return Err(unreadable("its subject has several values in one part: give each a part of its own"));
            }
            let mut request = Self {
                common_name: texts(name.iter_common_name()).pop().unwrap_or_default(),
                organisations: texts(name.iter_organization()),
                subject: name.as_raw().to_vec(),
                public_key: parsed.certification_request_info.subject_pki.raw.to_vec(),
                ..Self::default()
            };
            for extension in parsed.requested_extensions().into_iter().flatten() {
                if let ParsedExtension::SubjectAlternativeName(names) = extension {
                    names.general_names.iter().for_each(|name| request.add(name));
                }
            }
            request
        };
        request.der = der.to_vec();
        Ok(request)
    }

    /// The requester's key, a SubjectPublicKeyInfo.
    pub fn public_key(&self) -> &[u8] {
        &self.public_key
    }

    fn add(&mut self, name: &GeneralName<'_>) {
        match name {
            GeneralName::DNSName(name) => self.dns.push((*name).to_owned()),
            GeneralName::RFC822Name(name) => self.emails.push((*name).to_owned()),
            GeneralName::URI(name) => self.uris.push((*name).to_owned()),
            GeneralName::IPAddress(bytes) => {
                let four = <[u8; 4]>::try_from(*bytes).ok().map(IpAddr::from);
                self.ips.extend(four.or_else(|| <[u8; 16]>::try_from(*bytes).ok().map(IpAddr::from)));
            }
            _ => {}
        }
    }
}

/// What a certificate may be used for, by the names of the certificates API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usages {
    keys: Vec<KeyUsagePurpose>,
    extended: Vec<ExtendedKeyUsagePurpose>,
}

impl Usages {
    /// # Errors
    /// [`Error::Request`] names the usages that nobody knows.
    pub fn parse<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, Error> {
        let mut usages = Self::default();
        let mut unknown = Vec::new();
        for name in names {
            if let Some(usage) = key_usage(name) {
                if !usages.keys.contains(&usage) {
                    usages.keys.push(usage);
                }
            } else if let Some(usage) = extended_usage(name) {
                if !usages.extended.contains(&usage) {
                    usages.extended.push(usage);
                }
            } else {
                unknown.push(format!("{name:?}"));
            }
        }
        if unknown.is_empty() { Ok(usages) } else { Err(unreadable(&format!("unrecognized usage values: [{}]", unknown.join(" ")))) }
    }
}

fn key_usage(name: &str) -> Option<KeyUsagePurpose> {
    Some(match name {
        "signing" | "digital signature" => KeyUsagePurpose::DigitalSignature,
        "content commitment" => KeyUsagePurpose::ContentCommitment,
        "key encipherment" => KeyUsagePurpose::KeyEncipherment,
        "key agreement" => KeyUsagePurpose::KeyAgreement,
        "data encipherment" => KeyUsagePurpose::DataEncipherment,
        "cert sign" => KeyUsagePurpose::KeyCertSign,
        "crl sign" => KeyUsagePurpose::CrlSign,
        "encipher only" => KeyUsagePurpose::EncipherOnly,
        "decipher only" => KeyUsagePurpose::DecipherOnly,
        _ => return None,
    })
}

fn extended_usage(name: &str) -> Option<ExtendedKeyUsagePurpose> {
    let other = |last: u64| ExtendedKeyUsagePurpose::Other(vec![1, 3, 6, 1, 5, 5, 7, 3, last]);
    Some(match name {
        "any" => ExtendedKeyUsagePurpose::Any,
        "server auth" => ExtendedKeyUsagePurpose::ServerAuth,
        "client auth" => ExtendedKeyUsagePurpose::ClientAuth,
        "code signing" => ExtendedKeyUsagePurpose::CodeSigning,
        "email protection" | "s/mime" => ExtendedKeyUsagePurpose::EmailProtection,
        "ipsec end system" => other(5),
        "ipsec tunnel" => other(6),
        "ipsec user" => other(7),
        "timestamping" => ExtendedKeyUsagePurpose::TimeStamping,
        "ocsp signing" => ExtendedKeyUsagePurpose::OcspSigning,
        "microsoft sgc" => ExtendedKeyUsagePurpose::Other(vec![1, 3, 6, 1, 4, 1, 311, 10, 3, 3]),
        "netscape sgc" => ExtendedKeyUsagePurpose::Other(vec![2, 16, 840, 1, 113_730, 4, 1]),
        _ => return None,
    })
}

impl Ca {
    /// A certificate for a signing request: its subject and names, these usages, a life of `life` that ends with the authority's at the
    /// latest (upstream: `PermissiveSigningPolicy`). The caller has checked that the requester may have that subject.
    ///
    /// # Errors
    /// When the request's signature is wrong, its key is of an unknown kind, or the authority has expired.
    pub fn sign(&self, request: &SigningRequest, usages: &Usages, life: Duration, now: SystemTime) -> Result<String, Error> {
        let failed = |source| Error::Generate { subject: request.common_name.clone(), source };
        let mut csr = CertificateSigningRequestParams::from_der(&request.der.as_slice().into())
            .map_err(|source| Error::Parse { what: "the certificate signing request", source })?;
        let end = not_after(self.cert_pem())?;
        if now >= end {
            return Err(unreadable("refusing to sign a certificate that expired in the past: the authority has expired"));
        }
        let mut serial = [0; 16];
        SystemRandom::new().fill(&mut serial).map_err(|_| unreadable("unable to generate a serial number"))?;
        serial[0] &= 0x7f;
        csr.params.serial_number = Some(SerialNumber::from_slice(&serial));
        csr.params.custom_extensions.clear();
        csr.params.is_ca = IsCa::ExplicitNoCa;
        csr.params.key_usages = usages.keys.clone();
        csr.params.extended_key_usages = usages.extended.clone();
        csr.params.use_authority_key_identifier_extension = true;
        let life = if life < SHORT { life } else { life.saturating_sub(BACKDATE) };
        csr.params.not_before = (now - BACKDATE).into();
        csr.params.not_after = now.checked_add(life).map_or(end, |wanted| wanted.min(end)).into();
        let signed = csr.signed_by(self.issuer()).map_err(failed)?;
        let sign = |body: &[u8]| self.issuer().key().sign(body).ok();
        let renamed = replaced(signed.der(), SUBJECT, &request.subject, sign).ok_or_else(|| unreadable("its subject cannot be signed"))?;
        Ok(pem("CERTIFICATE", &renamed))
    }
}

/// When the first certificate of a PEM text ends.
///
/// # Errors
/// When there is none, or it cannot be read.
pub fn not_after(pem: &str) -> Result<SystemTime, Error> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|_| Error::Missing { what: "certificate" })?;
    let (_, certificate) = X509Certificate::from_der(&der).map_err(|_| Error::Missing { what: "certificate" })?;
    let seconds = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or_default();
    Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{certificate_der, new_csr};

    const DAY: Duration = Duration::from_secs(86_400);

    fn authority(days: u32) -> Ca {
        Ca::generate("kubernetes", DAY * days).unwrap()
    }

    #[test]
    fn a_request_says_what_it_asks_for() {
        let (orgs, dns) = (["a".to_owned(), "b".to_owned()], ["win01".to_owned()]);
        let (pem, _) = new_csr("system:node:win01", &orgs, &dns, &["10.240.0.11".parse().unwrap(), "fd00::1".parse().unwrap()]).unwrap();
        let request = SigningRequest::parse(pem.as_bytes()).unwrap();
        assert_eq!((request.common_name.as_str(), &request.organisations[..], &request.dns[..]), ("system:node:win01", &orgs[..], &dns[..]));
        assert_eq!(request.ips, ["10.240.0.11".parse::<IpAddr>().unwrap(), "fd00::1".parse().unwrap()]);
        assert!(request.emails.is_empty() && request.uris.is_empty());
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let ca = authority(1);
        for text in ["", "nonsense", ca.cert_pem(), "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"] {
            assert!(SigningRequest::parse(text.as_bytes()).is_err(), "{text}");
        }
        let error = SigningRequest::parse(ca.cert_pem().as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), "PEM block type must be CERTIFICATE REQUEST");
    }

    #[test]
    fn a_certificate_has_the_requests_names_and_the_given_usages() {
        let (pem, _) = new_csr("jane", &["dev".into(), "ops".into()], &["a.example".into()], &[]).unwrap();
        let request = SigningRequest::parse(pem.as_bytes()).unwrap();
        let usages = Usages::parse(["client auth", "digital signature", "key encipherment", "signing", "ipsec user"]).unwrap();
        let ca = authority(100);
        let signed = ca.sign(&request, &usages, DAY, SystemTime::now()).unwrap();
        let der = certificate_der(&signed).unwrap().remove(0);
        let (_, certificate) = X509Certificate::from_der(&der).unwrap();
        assert_eq!(texts(certificate.subject().iter_common_name()), ["jane"]);
        assert_eq!(texts(certificate.subject().iter_organization()), ["dev", "ops"]);
        let keys = certificate.key_usage().unwrap().unwrap().value;
        assert!(keys.digital_signature() && keys.key_encipherment() && !keys.key_cert_sign());
        let extended = certificate.extended_key_usage().unwrap().unwrap().value;
        assert!(extended.client_auth && !extended.server_auth && extended.other.len() == 1);
        assert!(!certificate.basic_constraints().unwrap().unwrap().value.ca);
        assert_eq!(certificate.subject_alternative_name().unwrap().unwrap().value.general_names.len(), 1);
        let again = ca.sign(&request, &usages, DAY, SystemTime::now()).unwrap();
        let der = certificate_der(&again).unwrap().remove(0);
        assert_ne!(X509Certificate::from_der(&der).unwrap().1.raw_serial(), certificate.raw_serial(), "each has a number of its own");
    }

    /// A Name of a common name and organisations, in the order of kubectl's and openssl's requests.
    fn name(common: &str, organisations: &[&str]) -> Vec<u8> {
        let part = |last: u8, text: &str| {
            let value = [&[0x06, 3, 0x55, 4, last, 0x0c, u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
            let pair = [&[0x30, u8::try_from(value.len()).unwrap()], &value[..]].concat();
            [&[0x31, u8::try_from(pair.len()).unwrap()], &pair[..]].concat()
        };
        let parts: Vec<u8> = organisations.iter().flat_map(|one| part(10, one)).chain(part(3, common)).collect();
        [&[0x30, u8::try_from(parts.len()).unwrap()], &parts[..]].concat()
    }

    #[test]
    fn a_subject_is_copied_with_all_its_organisations() {
        let orgs = ["dev", "ops", "qa", "system:nodes"];
        let key = rcgen::KeyPair::generate().unwrap();
        let plain = rcgen::CertificateParams::default().serialize_request(&key).unwrap();
        let subject = name("jane", &orgs);
        let der = replaced(plain.der(), 1, &subject, |body| key.sign(body).ok()).unwrap();
        let request = SigningRequest::parse(pem("CERTIFICATE REQUEST", &der).as_bytes()).unwrap();
        assert_eq!(request.organisations, orgs);
        let ca = authority(10);
        let signed = ca.sign(&request, &Usages::default(), DAY, SystemTime::now()).unwrap();
        let der = certificate_der(&signed).unwrap().remove(0);
        let (_, certificate) = X509Certificate::from_der(&der).unwrap();
        assert_eq!(certificate.subject().as_raw(), subject, "byte for byte");
        assert_eq!(texts(certificate.subject().iter_organization()), orgs);
        let authority = certificate_der(ca.cert_pem()).unwrap().remove(0);
        let (_, authority) = X509Certificate::from_der(&authority).unwrap();
        let key = authority.public_key().subject_public_key.data.as_ref();
        let key = ring::signature::UnparsedPublicKey::new(&ring::signature::ECDSA_P256_SHA256_ASN1, key);
        key.verify(certificate.tbs_certificate.as_ref(), &certificate.signature_value.data).unwrap();
    }

    #[test]
    fn a_life_ends_with_the_authoritys() {
        let (pem, _) = new_csr("jane", &[], &[], &[]).unwrap();
        let request = SigningRequest::parse(pem.as_bytes()).unwrap();
        let ca = authority(10);
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs());
        let ends = |life: Duration| not_after(&ca.sign(&request, &Usages::default(), life, now).unwrap()).unwrap();
        assert_eq!(ends(Duration::from_secs(600)), now + Duration::from_secs(600));
        assert_eq!(ends(DAY), now + DAY - BACKDATE);
        assert_eq!(ends(DAY * 365), not_after(ca.cert_pem()).unwrap());
        assert!(ca.sign(&request, &Usages::default(), DAY, now + DAY * 11).is_err());
    }

    #[test]
    fn a_request_that_was_altered_is_not_signed() {
        let (pem, _) = new_csr("jane", &[], &[], &[]).unwrap();
        let mut request = SigningRequest::parse(pem.as_bytes()).unwrap();
        let place = request.der.windows(4).position(|bytes| bytes == b"jane").unwrap();
        request.der[place] = b'd';
        assert!(authority(1).sign(&request, &Usages::default(), DAY, SystemTime::now()).is_err());
    }

    #[test]
    fn unknown_usages_are_named() {
        let error = Usages::parse(["client auth", "cooking", "dancing"]).unwrap_err();
        assert_eq!(error.to_string(), r#"unrecognized usage values: ["cooking" "dancing"]"#);
    }
}
