//! TLS of the agent's server and of HTTPS probes.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};
use tokio::net::TcpStream;

/// A serving configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The PEM text holds no usable certificate or key.
    #[error("reading the {what} failed: check that it is PEM")]
    Pem {
        what: &'static str,
        /// The parser's words.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// Certificate and key do not fit, or the CA is unusable.
    #[error("the serving certificate, its key or the client CA cannot be used")]
    Config(#[source] Box<dyn std::error::Error + Send + Sync>),
}

fn certificates(pem: &str, what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().map_err(|source| TlsError::Pem { what, source })
}

/// TLS that asks for client certificates of one CA and lets others in unauthenticated, so that
/// bearer tokens work.
pub(crate) fn server(cert: &str, key: &str, client_ca: &str) -> Result<Arc<ServerConfig>, TlsError> {
    let boxed = |e: rustls::Error| TlsError::Config(Box::new(e));
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    for ca in certificates(client_ca, "client CA")? {
        roots.add(ca).map_err(boxed)?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build()
        .map_err(|e| TlsError::Config(Box::new(e)))?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|source| TlsError::Pem { what: "serving key", source })?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(boxed)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates(cert, "serving certificate")?, key)
        .map_err(boxed)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Probes check no certificate, as upstream's: they ask whether the server answers.
pub(crate) async fn connect_unverified(stream: TcpStream, host: &str) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(std::io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(NoVerification(provider)))
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).map_err(std::io::Error::other)?;
    tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

#[derive(Debug)]
struct NoVerification(Arc<CryptoProvider>);

impl ServerCertVerifier for NoVerification {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
