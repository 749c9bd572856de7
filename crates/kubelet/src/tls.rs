//! TLS of the agent's server and of HTTPS probes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use rustls::server::{ResolvesServerCert, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

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

/// Why there is no TLS connection.
#[derive(Debug)]
pub(crate) struct Unconnected {
    pub error: io::Error,
    /// The server answered in HTTP instead.
    pub speaks_http: bool,
}

impl Unconnected {
    fn before(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Unconnected { error: io::Error::other(error), speaks_http: false }
    }
}

/// Probes check no certificate, as upstream's: they ask whether the server answers.
pub(crate) async fn connect_unverified(stream: TcpStream, host: &str) -> Result<TlsStream<Opening<TcpStream>>, Unconnected> {
    let config = pki::unverified::client_config().map_err(Unconnected::before)?;
    let name = ServerName::try_from(host.to_owned()).map_err(Unconnected::before)?;
    let connect = tokio_rustls::TlsConnector::from(config).connect(name, Opening::new(stream));
    connect.into_fallible().await.map_err(|(error, opening)| Unconnected { error, speaks_http: opening.is_http() })
}

/// How an answer in HTTP begins, by which Go's net/http tells it from TLS.
const HTTP: &[u8; 5] = b"HTTP/";

/// A stream that remembers how the other side began.
#[derive(Debug)]
pub(crate) struct Opening<T> {
    stream: T,
    first: Vec<u8>,
}

impl<T> Opening<T> {
    fn new(stream: T) -> Self {
        Opening { stream, first: Vec::with_capacity(HTTP.len()) }
    }

    fn is_http(&self) -> bool {
        self.first == HTTP
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Opening<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let missing = HTTP.len().saturating_sub(self.first.len());
        let new = buf.filled().get(before..).unwrap_or_default();
        self.first.extend(new.iter().take(missing));
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Opening<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_stream_remembers_how_the_other_side_began() {
        for (sent, is_http) in
            [("HTTP/1.1 400 Bad Request", true), ("HTTP/", true), ("HTTP", false), ("http/1.1", false), ("\x16\x03\x01\x02\x00", false)]
        {
            let (near, mut far) = tokio::io::duplex(64);
            let mut opening = Opening::new(near);
            let mut read = String::new();
            for part in [&sent[..2], &sent[2..]] {
                far.write_all(part.as_bytes()).await.unwrap();
            }
            drop(far);
            opening.read_to_string(&mut read).await.unwrap();
            assert_eq!((read.as_str(), opening.is_http()), (sent, is_http));
        }
    }
}
