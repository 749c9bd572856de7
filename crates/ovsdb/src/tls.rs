//! TLS as Open vSwitch has it: both sides show certificates of one authority; the name in a certificate is not checked.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

/// The files of a client, in PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// Its private key (Open vSwitch's `--private-key`).
    pub private_key: PathBuf,
    /// Its certificate (`--certificate`).
    pub certificate: PathBuf,
    /// The authority of the servers (`--ca-cert`).
    pub ca_cert: PathBuf,
}

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or holds something else.
    #[error("cannot read {what} from {}", .path.display())]
    File {
        /// What it should hold.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: rustls_pki_types::pem::Error,
    },
    /// What the files hold does not fit together.
    #[error("cannot use {} for TLS; let it be the key of the certificate, and the authority a certificate of version 3", .path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

fn certificates(path: &Path, what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let file = |source| TlsError::File { what, path: path.to_owned(), source };
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(file)?;
    if found.is_empty() { Err(file(rustls_pki_types::pem::Error::NoItemsFound)) } else { Ok(found) }
}

/// The configuration of a client with these files.
///
/// # Errors
/// A file cannot be read or used.
pub fn client_config(files: &TlsFiles) -> Result<Arc<rustls::ClientConfig>, TlsError> {
    fn unusable<E: Into<Box<dyn std::error::Error + Send + Sync>>>(path: &Path) -> impl FnOnce(E) -> TlsError {
        move |source| TlsError::Unusable { path: path.to_owned(), source: source.into() }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&files.ca_cert, "the authority's certificate")? {
        roots.add(certificate).map_err(unusable(&files.ca_cert))?;
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().map_err(unusable(&files.ca_cert))?;
    let key = PrivateKeyDer::from_pem_file(&files.private_key).map_err(|source| TlsError::File {
        what: "a private key",
        path: files.private_key.clone(),
        source,
    })?;
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(unusable(&files.ca_cert))?;
    let config = config.dangerous().with_custom_certificate_verifier(Arc::new(AnyName(verifier)));
    let config = config.with_client_auth_cert(certificates(&files.certificate, "a certificate")?, key).map_err(unusable(&files.private_key))?;
    Ok(Arc::new(config))
}

/// Verifies all of a certificate but the name: those of `ovs-pki` name no host. So the authority must certify databases alone.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match self.0.verify_server_cert(end_entity, intermediates, name, ocsp, now) {
            Err(rustls::Error::InvalidCertificate(CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. })) => {
                Ok(ServerCertVerified::assertion())
            }
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
