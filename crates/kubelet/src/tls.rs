//! TLS of the agent's server and of HTTPS probes.

use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
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

/// TLS that asks for client certificates of one CA, where there is one, and lets others in unauthenticated, so that
/// bearer tokens work.
pub(crate) fn server(cert: &str, key: &str, client_ca: Option<&str>) -> Result<Arc<ServerConfig>, TlsError> {
    let boxed = |e: rustls::Error| TlsError::Config(Box::new(e));
    let provider = Arc::new(ring::default_provider());
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|source| TlsError::Pem { what: "serving key", source })?;
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().map_err(boxed)?;
    let builder = match client_ca {
        Some(ca) => {
            let mut roots = RootCertStore::empty();
            for ca in certificates(ca, "client CA")? {
                roots.add(ca).map_err(boxed)?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build()
                .map_err(|e| TlsError::Config(Box::new(e)))?;
            builder.with_client_cert_verifier(verifier)
        }
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(certificates(cert, "serving certificate")?, key).map_err(boxed)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Probes check no certificate, as upstream's: they ask whether the server answers.
pub(crate) async fn connect_unverified(stream: TcpStream, host: &str) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let config = pki::unverified::client_config().map_err(std::io::Error::other)?;
    let name = ServerName::try_from(host.to_owned()).map_err(std::io::Error::other)?;
    tokio_rustls::TlsConnector::from(config).connect(name, stream).await
}
