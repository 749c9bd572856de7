//! The certificate authority: issuing, and signing requests.

use crate::{Error, Key, Subject};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

/// Certificates are valid from this long before they are made, so that hosts whose clocks differ a little agree.
pub(crate) const BACKDATE: Duration = Duration::from_secs(300);
const DAY: Duration = Duration::from_secs(86_400);

/// A certificate with its key, both PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertKey {
    /// The certificate (chain), PEM.
    pub cert_pem: String,
    /// The private key, PKCS#8 PEM.
    pub key_pem: String,
}

/// What a certificate should say.
#[derive(Clone, Debug, Default)]
pub struct CertRequest {
    /// Common name: the user name for client certificates.
    pub cn: String,
    /// Organisations: the groups for client certificates (at most two).
    pub orgs: Vec<String>,
    /// DNS names a server answers to.
    pub dns: Vec<String>,
    /// Addresses a server answers on.
    pub ips: Vec<IpAddr>,
    /// Usable as a TLS server certificate.
    pub server: bool,
    /// Usable as a TLS client certificate.
    pub client: bool,
    /// Days of validity from now.
    pub days: u32,
}

/// A certificate authority: its certificate and its key.
pub struct Ca {
    cert_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Ca {
    /// Makes a new self-signed authority named `cn`.
    pub fn generate(cn: &str, validity: Duration) -> Result<Self, Error> {
        let failed = |source| Error::Generate { subject: cn.to_string(), source };
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, cn);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.not_before = (SystemTime::now() - BACKDATE).into();
        params.not_after = (SystemTime::now() + validity).into();
        let certificate = params.self_signed(&key).map_err(failed)?;
        Ok(Self { cert_pem: certificate.pem(), issuer: Issuer::new(params, key) })
    }

    /// Reads an authority from its PEM certificate and PKCS#8 PEM key.
    pub fn from_pem(cert_pem: &str, key_pem: &str) -> Result<Self, Error> {
        let key = KeyPair::from_pem(key_pem).map_err(|source| Error::Parse { what: "the CA's key", source })?;
        let issuer = Issuer::from_ca_cert_pem(cert_pem, key).map_err(|source| Error::Parse { what: "the CA's certificate", source })?;
        Ok(Self { cert_pem: cert_pem.to_string(), issuer })
    }

    /// The authority's certificate, PEM.
    pub fn cert_pem(&self) -> &str {
        &self.cert_pem
    }

    /// The authority's key, PKCS#8 PEM: for writing it to disk with [`crate::write_private`].
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    pub(crate) fn issuer(&self) -> &Issuer<'static, KeyPair> {
        &self.issuer
    }

    /// Issues a certificate for a fresh key.
    pub fn issue(&self, request: &CertRequest) -> Result<CertKey, Error> {
        let failed = |source| Error::Generate { subject: request.cn.clone(), source };
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = subject(&request.cn, &request.orgs)?;
        params.subject_alt_names = alt_names(&request.dns, &request.ips).map_err(failed)?;
        set_usage(&mut params, request.server, request.client, request.days);
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?;
        Ok(CertKey { cert_pem: certificate.pem(), key_pem: key.serialize_pem() })
    }

    /// Signs a PEM certificate signing request: subject and alternative names are the request's, everything else (usages, validity,
    /// "not an authority") is decided here. The caller has checked that the requester may have that subject.
    pub fn sign_csr(&self, csr_pem: &str, server: bool, client: bool, days: u32) -> Result<String, Error> {
        let mut csr =
            CertificateSigningRequestParams::from_pem(csr_pem).map_err(|source| Error::Parse { what: "the certificate signing request", source })?;
        csr.params.custom_extensions.clear();
        set_usage(&mut csr.params, server, client, days);
        let certificate = csr.signed_by(&self.issuer).map_err(|source| Error::Generate { subject: "signing request".to_string(), source })?;
        Ok(certificate.pem())
    }
}

/// Makes a key and a PEM certificate signing request for it: (request, key).
pub fn new_csr(cn: &str, orgs: &[String], dns: &[String], ips: &[IpAddr]) -> Result<(String, String), Error> {
    let key = Key::generate()?;
    let wanted = Subject { common_name: cn.to_owned(), organisations: orgs.to_vec(), dns: dns.to_vec(), ips: ips.to_vec() };
    Ok((key.request(&wanted)?, key.pem()))
}

/// All certificates of a PEM text, in order.
pub fn certificate_der(pem: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let all: Vec<_> = CertificateDer::pem_slice_iter(pem.as_bytes()).filter_map(Result::ok).collect();
    if all.is_empty() { Err(Error::Missing { what: "certificate" }) } else { Ok(all) }
}

/// The first private key of a PEM text.
pub fn private_key_der(pem: &str) -> Result<PrivateKeyDer<'static>, Error> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| Error::Missing { what: "private key" })
}

/// rcgen keeps one value a type, so a second organisation goes in under the same OID as a custom type.
pub(crate) fn subject(cn: &str, orgs: &[String]) -> Result<DistinguishedName, Error> {
    const ORGANISATION: [u64; 4] = [2, 5, 4, 10];
    if orgs.len() > 2 {
        return Err(Error::TooManyOrganisations { subject: cn.to_string(), count: orgs.len() });
    }
    let mut name = DistinguishedName::new();
    for (organisation, kind) in orgs.iter().zip([DnType::OrganizationName, DnType::CustomDnType(ORGANISATION.to_vec())]) {
        name.push(kind, organisation.as_str());
    }
    name.push(DnType::CommonName, cn);
    Ok(name)
}

pub(crate) fn alt_names(dns: &[String], ips: &[IpAddr]) -> Result<Vec<SanType>, rcgen::Error> {
    let names = dns.iter().map(|name| Ok(SanType::DnsName(name.as_str().try_into()?)));
    names.chain(ips.iter().map(|ip| Ok(SanType::IpAddress(*ip)))).collect()
}

fn set_usage(params: &mut CertificateParams, server: bool, client: bool, days: u32) {
    params.is_ca = IsCa::NoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    let usages = [(server, ExtendedKeyUsagePurpose::ServerAuth), (client, ExtendedKeyUsagePurpose::ClientAuth)];
    params.extended_key_usages = usages.into_iter().filter(|(on, _)| *on).map(|(_, usage)| usage).collect();
    params.use_authority_key_identifier_extension = true;
    params.not_before = (SystemTime::now() - BACKDATE).into();
    params.not_after = (SystemTime::now() + DAY * days).into();
}

#[cfg(test)]
mod tests {
    use super::*;
    use x509_parser::prelude::{FromDer, ParsedExtension, X509Certificate};

    const YEAR: Duration = Duration::from_secs(365 * 86_400);

    fn request() -> CertRequest {
        CertRequest {
            cn: "system:node:win01".into(),
            orgs: vec!["system:nodes".into(), "extra".into()],
            dns: vec!["win01".into()],
            ips: vec!["10.240.0.11".parse().unwrap()],
            server: true,
            client: true,
            days: 10,
        }
    }

    fn organisations(pem: &str) -> (String, Vec<String>) {
        let der = certificate_der(pem).unwrap().remove(0);
        let (_, certificate) = X509Certificate::from_der(&der).unwrap();
        let text = |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| attribute.as_str().unwrap().to_string();
        let cn = certificate.subject().iter_common_name().next().map(text).unwrap();
        (cn, certificate.subject().iter_organization().map(text).collect())
    }

    #[test]
    fn issued_certificates_carry_subject_names_and_usages() {
        let ca = Ca::generate("kubernetes", YEAR).unwrap();
        let issued = ca.issue(&request()).unwrap();
        assert_eq!(organisations(&issued.cert_pem), ("system:node:win01".into(), vec!["system:nodes".into(), "extra".into()]));
        let der = certificate_der(&issued.cert_pem).unwrap().remove(0);
        let (_, certificate) = X509Certificate::from_der(&der).unwrap();
        assert!(!certificate.is_ca());
        let usage = certificate.extended_key_usage().unwrap().unwrap();
        assert!(usage.value.server_auth && usage.value.client_auth);
        let names = certificate.extensions().iter().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectAlternativeName(names) => Some(names.general_names.len()),
            _ => None,
        });
        assert_eq!(names, Some(2));
        let ca_der = certificate_der(ca.cert_pem()).unwrap().remove(0);
        let (_, authority) = X509Certificate::from_der(&ca_der).unwrap();
        assert!(authority.is_ca());
        assert_eq!(certificate.issuer(), authority.subject());
    }

    #[test]
    fn an_authority_survives_its_pem_form() {
        let ca = Ca::generate("kubernetes", YEAR).unwrap();
        let again = Ca::from_pem(ca.cert_pem(), &ca.key_pem()).unwrap();
        assert_eq!(again.cert_pem(), ca.cert_pem());
        again.issue(&request()).unwrap();
        assert!(Ca::from_pem("nonsense", &ca.key_pem()).is_err());
    }

    #[test]
    fn a_signed_request_keeps_its_subject_but_not_its_wishes() {
        let ca = Ca::generate("kubernetes", YEAR).unwrap();
        let (csr, _key) = new_csr("system:node:a", &["system:nodes".into()], &[], &[]).unwrap();
        let signed = ca.sign_csr(&csr, false, true, 1).unwrap();
        assert_eq!(organisations(&signed), ("system:node:a".into(), vec!["system:nodes".into()]));
        let der = certificate_der(&signed).unwrap().remove(0);
        let (_, certificate) = X509Certificate::from_der(&der).unwrap();
        let usage = certificate.extended_key_usage().unwrap().unwrap();
        assert!(usage.value.client_auth && !usage.value.server_auth);
        assert!(ca.sign_csr("nonsense", true, true, 1).is_err());
    }

    #[test]
    fn three_organisations_are_refused_rather_than_dropped() {
        let ca = Ca::generate("kubernetes", YEAR).unwrap();
        let mut request = request();
        request.orgs.push("third".into());
        assert!(matches!(ca.issue(&request), Err(Error::TooManyOrganisations { count: 3, .. })));
    }
}
