//! TLS of the agent's server and of HTTPS probes.

use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use rustls::server::{ResolvesServerCert, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;

use crate::certificates::serving::TlsSettings;

/// A serving configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or certificate and key do not fit.
    #[error("cannot use the serving certificate or the client CA")]
    File(#[from] Box<pki::pair_store::StoreError>),
    /// The PEM text holds no usable certificate.
    #[error("reading the client CA failed: check that it is PEM")]
    Pem(#[source] rustls::pki_types::pem::Error),
    /// The CA is unusable, or the versions and ciphers do not go together.
    #[error("the client CA, or the TLS versions and ciphers cannot be used")]
    Config(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// TLS that asks for client certificates of one CA, where there is one, and lets others in unauthenticated, so that
/// bearer tokens work.
pub(crate) fn server(
    settings: &TlsSettings,
    certificate: Arc<dyn ResolvesServerCert>,
    client_ca: Option<&str>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let boxed = |e: rustls::Error| TlsError::Config(Box::new(e));
    let provider = Arc::new(settings.provider());
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(settings.versions()).map_err(boxed)?;
    let builder = match client_ca {
        Some(ca) => {
            let mut roots = RootCertStore::empty();
            for ca in CertificateDer::pem_slice_iter(ca.as_bytes()) {
                roots.add(ca.map_err(TlsError::Pem)?).map_err(boxed)?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build()
                .map_err(|e| TlsError::Config(Box::new(e)))?;
            builder.with_client_cert_verifier(verifier)
        }
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(certificate);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Probes check no certificate, as upstream's: they ask whether the server answers.
pub(crate) async fn connect_unverified(stream: TcpStream, host: &str) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let config = pki::unverified::client_config().map_err(std::io::Error::other)?;
    let name = ServerName::try_from(host.to_owned()).map_err(std::io::Error::other)?;
    tokio_rustls::TlsConnector::from(config).connect(name, stream).await
}
