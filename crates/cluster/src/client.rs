//! API clients from kubeconfig files.

use std::path::Path;

use kube::config::{AuthInfo, Config, KubeConfigOptions, Kubeconfig};

use crate::{Client, Error, Requests, Result};

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
    let config = config_from_kubeconfig(path).await?;
    Client::try_from(config).map_err(|source| Error::Client { path: path.to_owned(), source: Box::new(source) })
}

/// A client for a server by its URL, whose user has a token or is nobody. `authority`: a file with the certificate of the server's authority;
/// none: the system's authorities.
///
/// # Errors
/// [`Error::Server`] when the URL or the file is unusable. No connection is made here.
pub async fn client_with_token(server: &str, token: Option<&str>, authority: Option<&str>) -> Result<Client> {
    install_crypto_provider();
    fn unusable<E: std::error::Error + Send + Sync + 'static>(server: &str) -> impl FnOnce(E) -> Error {
        move |source| Error::Server { server: server.to_owned(), source: Box::new(source) }
    }
    let document = serde_json::json!({
        "clusters": [{"name": "cluster", "cluster": {"server": server, "certificate-authority": authority}}],
        "users": [{"name": "user", "user": {"token": token}}],
        "contexts": [{"name": "context", "context": {"cluster": "cluster", "user": "user"}}],
        "current-context": "context",
    });
    let kubeconfig: Kubeconfig = serde_json::from_value(document).map_err(unusable(server))?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(unusable(server))?;
    config.proxy_url = None;
    Client::try_from(config).map_err(unusable(server))
}

/// What the current context of a kubeconfig file says of the server and of its user. Paths in it are absolute.
///
/// # Errors
/// [`Error::Kubeconfig`] when the file cannot be read or is incomplete.
pub async fn config_from_kubeconfig(path: &Path) -> Result<Config> {
    install_crypto_provider();
    let unreadable = |source| Error::Kubeconfig { path: path.to_owned(), source: Box::new(source) };
    let kubeconfig = Kubeconfig::read_from(path).map_err(unreadable)?;
    let names_proxy = kubeconfig.clusters.iter().filter_map(|named| named.cluster.as_ref()).any(|cluster| cluster.proxy_url.is_some());
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(unreadable)?;
    if !names_proxy {
        // That of the environment (HTTPS_PROXY) is for other programs: the client has none, and would refuse to start.
        config.proxy_url = None;
    }
    Ok(config)
}

/// A client for the same server whose user has nothing but this certificate and its key, both PEM.
///
/// # Errors
/// When they are unusable, or the server's authority is.
pub fn with_certificate(config: &Config, cert_pem: &str, key_pem: &str) -> Result<Client, kube::Error> {
    use base64::Engine as _;
    let encoded = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    let user = serde_json::json!({"client-certificate-data": encoded(cert_pem), "client-key-data": encoded(key_pem)});
    // The type of the key's member belongs to a library of kube's.
    let auth_info: AuthInfo = serde_json::from_value(user).map_err(kube::Error::SerdeError)?;
    let mut config = config.clone();
    config.auth_info = auth_info;
    Client::try_from(config)
}

/// The same client under a name: its requests carry `PROGRAM/VERSION (OS/ARCHITECTURE) kubernetes/COMMIT`, from which the API server takes
/// the name of the manager of fields. The version goes without what follows its first hyphen, and a build does not know its commit, as in
/// client-go's rest/config.go. Its requests are counted in `requests`.
#[must_use]
pub fn with_user_agent(client: Client, requests: &Requests, program: &str, version: &str, os: &str, architecture: &str) -> Client {
    let version = version.split('-').next().unwrap_or_default();
    let agent = format!("{program}/{version} ({os}/{architecture}) kubernetes/unknown");
    let (namespace, requests) = (client.default_namespace().to_owned(), requests.clone());
    let named = tower::service_fn(move |mut request: http::Request<kube::client::Body>| {
        if let Ok(agent) = http::HeaderValue::from_str(&agent) {
            request.headers_mut().entry(http::header::USER_AGENT).or_insert(agent);
        }
        let (client, requests) = (client.clone(), requests.clone());
        async move {
            let counted = requests.begin(&request);
            let answer = client.send(request).await;
            counted.end(answer.as_ref());
            answer
        }
    });
    Client::new(named, namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_of_a_named_client_say_which_program_sends_them() {
        let (seen, mut agents) = tokio::sync::mpsc::unbounded_channel();
        let server = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let _ = seen.send(request.headers().get("user-agent").cloned());
            async { Ok::<_, kube::Error>(http::Response::builder().status(404).body(kube::client::Body::empty()).unwrap()) }
        });
        let requests = Requests::new("api:6443");
        let client = with_user_agent(Client::new(server, "default"), &requests, "kubelet", "v1.36.2+mullion.0.1.0-rc.1", "windows", "amd64");
        let answer = client.send(http::Request::get("/version").body(kube::client::Body::empty()).unwrap()).await.unwrap();
        assert_eq!(answer.status(), 404, "answers pass unchanged");
        let agent = agents.recv().await.unwrap().unwrap();
        assert_eq!(agent, "kubelet/v1.36.2+mullion.0.1.0 (windows/amd64) kubernetes/unknown");
    }

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
    async fn a_server_is_known_by_its_url_and_authority() {
        let dir = tempfile::tempdir().unwrap();
        let ca = pki::Ca::generate("test-ca", std::time::Duration::from_secs(86_400)).unwrap();
        let file = dir.path().join("ca.crt");
        std::fs::write(&file, ca.cert_pem()).unwrap();
        client_with_token("https://127.0.0.1:6443", Some("token"), file.to_str()).await.unwrap();
        client_with_token("http://127.0.0.1:8080", None, None).await.unwrap();
        for (server, authority) in [("https://127.0.0.1:6443", "/nonexistent/ca.crt"), ("https://[", "/nonexistent/ca.crt")] {
            let error = client_with_token(server, Some("secret"), Some(authority)).await.err().unwrap();
            let text = format!("{error} {:?}", std::error::Error::source(&error));
            assert!(text.contains(server) && !text.contains("secret"), "{text}");
        }
    }

    #[tokio::test]
    async fn a_missing_file_is_named() {
        let error = client_from_kubeconfig(Path::new("/nonexistent/kubeconfig")).await.err().unwrap();
        assert!(error.to_string().contains("/nonexistent/kubeconfig"), "{error}");
    }
}
