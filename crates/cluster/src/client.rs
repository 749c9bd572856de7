//! API clients from kubeconfig files.

use std::path::Path;

use hyper_timeout::TimeoutConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::retry::RetryPolicy;
use kube::client::{ClientBuilder, ConfigExt as _};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use tower::retry::RetryLayer;
use tower::{BoxError, ServiceBuilder};

use crate::{Client, Error, Result};

/// The most of an answer that is read at once. A watch keeps the buffer of its largest reads as long as it lasts: with the HTTP library's own
/// limit of 400 KiB, allocated twice over while an answer is taken apart, a first list left 800 KiB with each watch.
const READ_AT_ONCE: usize = 64 << 10;

/// Makes rustls with ring the process's TLS library. Idempotent; call it before the first connection.
pub fn install_crypto_provider() {
    // An error says only that a provider is installed already, which is what we want.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// A client for the current context of a kubeconfig file (client certificate or token, inline or as files, relative to the kubeconfig).
///
/// # Errors
/// [`Error::Kubeconfig`] when the file cannot be read or lacks a part, [`Error::Client`] when its certificates or keys are unusable.
/// No connection is made here.
pub async fn client_from_kubeconfig(path: &Path) -> Result<Client> {
    install_crypto_provider();
    let unreadable = |source| Error::Kubeconfig { path: path.to_owned(), source: Box::new(source) };
    let kubeconfig = Kubeconfig::read_from(path).map_err(unreadable)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(unreadable)?;
    client(config).map_err(|source| Error::Client { path: path.to_owned(), source: Box::new(source) })
}

/// The layers of `kube::Client::try_from`, over connections that read [`READ_AT_ONCE`].
fn client(config: Config) -> kube::Result<Client> {
    // kube alone knows when what a program said of credentials expires, and what it says of proxies.
    if config.auth_info.exec.is_some() || config.proxy_url.is_some() {
        return Client::try_from(config);
    }
    let mut connector = TimeoutConnector::new(config.rustls_https_connector()?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).http1_max_buf_size(READ_AT_ONCE).build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.default_retry.then(|| RetryLayer::new(RetryPolicy::server_retry())))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http);
    Ok(ClientBuilder::new(service, config.default_namespace.clone()).build())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubeconfig_in(dir: &Path, credentials: pki::Credentials) -> std::path::PathBuf {
        let ca = pki::Ca::generate("test-ca", std::time::Duration::from_secs(86_400)).unwrap();
        let path = dir.join("kubeconfig");
        let text = pki::KubeConfig::new("https://127.0.0.1:6443", ca.cert_pem(), credentials).to_yaml();
        std::fs::write(&path, text).unwrap();
        path
    }

    #[tokio::test]
    async fn inline_client_certificate_makes_a_client() {
        let dir = tempfile::tempdir().unwrap();
        let ca = pki::Ca::generate("client-ca", std::time::Duration::from_secs(86_400)).unwrap();
        let pair = ca
            .issue(&pki::CertRequest {
                cn: "system:node:win01".into(),
                orgs: vec!["system:nodes".into()],
                client: true,
                days: 1,
                ..Default::default()
            })
            .unwrap();
        let path = kubeconfig_in(dir.path(), pki::Credentials::Certificate { cert_pem: pair.cert_pem, key_pem: pair.key_pem });
        client_from_kubeconfig(&path).await.unwrap();
    }

    #[tokio::test]
    async fn a_large_answer_is_read_in_small_parts() {
        use http_body_util::BodyExt as _;
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

        const LENGTH: usize = 8 << 20;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await.unwrap();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n");
            stream.write_all(&[head.as_bytes(), &vec![b' '; LENGTH]].concat()).await.unwrap();
        });
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        std::fs::write(&path, pki::KubeConfig::new(&format!("http://{address}"), "", pki::Credentials::Token("t".into())).to_yaml()).unwrap();
        let client = client_from_kubeconfig(&path).await.unwrap();
        let request = http::Request::get("/api").body(kube::client::Body::empty()).unwrap();
        let mut body = client.send(request).await.unwrap().into_body();
        let (mut all, mut largest) = (0, 0);
        while let Some(frame) = body.frame().await {
            let length = frame.unwrap().into_data().unwrap().len();
            (all, largest) = (all + length, largest.max(length));
        }
        assert_eq!(all, LENGTH);
        // What was read with the head is part of the first.
        assert!(largest <= 2 * READ_AT_ONCE, "{largest} bytes were read at once");
    }

    #[tokio::test]
    async fn a_missing_file_is_named() {
        let error = client_from_kubeconfig(Path::new("/nonexistent/kubeconfig")).await.err().unwrap();
        assert!(error.to_string().contains("/nonexistent/kubeconfig"), "{error}");
    }
}
