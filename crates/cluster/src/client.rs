//! API clients from kubeconfig files.

use std::path::Path;

use kube::config::{Config, KubeConfigOptions, Kubeconfig};

use crate::{Client, Error, Result};

/// Makes rustls with ring the process's TLS library. Idempotent; call it before the first connection.
pub fn install_crypto_provider() {
    // An error says only that a provider is installed already, which is what we want.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// A client for the current context of a kubeconfig file (client certificate or token, inline or as files, relative to the kubeconfig).
///
/// # Errors
/// [`Error::Kubeconfig`] when the file cannot be read or is incomplete, [`Error::Client`] when its certificates or keys are unusable.
/// No connection is made here.
pub async fn client_from_kubeconfig(path: &Path) -> Result<Client> {
    install_crypto_provider();
    let unreadable = |source| Error::Kubeconfig { path: path.to_owned(), source: Box::new(source) };
    let kubeconfig = Kubeconfig::read_from(path).map_err(unreadable)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(unreadable)?;
    Client::try_from(config).map_err(|source| Error::Client { path: path.to_owned(), source: Box::new(source) })
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
    async fn a_missing_file_is_named() {
        let error = client_from_kubeconfig(Path::new("/nonexistent/kubeconfig")).await.err().unwrap();
        assert!(error.to_string().contains("/nonexistent/kubeconfig"), "{error}");
    }
}
