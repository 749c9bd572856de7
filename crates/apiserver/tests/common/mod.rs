//! An API server in a temporary directory, and clients for it.
#![allow(dead_code, reason = "each test program uses its part")]

use apiserver::{Config, Identity, InProcess, NodeNetworks, Server, ServiceRanges, start};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::{Api, PostParams};
use pki::{CertRequest, Credentials, KubeConfig};
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use test_lab::server::Keys;

/// An address in the nodes' network that is no node's.
pub const NO_NODE: &str = "127.0.0.2";

const SERVICE_CIDR: &str = "10.96.0.0/12";

/// A pod that names no node.
pub fn pod(name: &str) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "web", "image": "microsoft/iis"}]}})).unwrap()
}

/// A running server with everything needed to start it again.
pub struct TestServer {
    server: Server,
    keys: Keys,
    address: SocketAddr,
    dir: tempfile::TempDir,
    service_cidrs: ServiceRanges,
}

impl TestServer {
    /// Starts on a new directory; namespace `default` has its ServiceAccount.
    pub async fn start() -> Self {
        Self::start_within(apiserver::Limits::default()).await
    }

    /// The same, with bounds of the listener.
    pub async fn start_within(limits: apiserver::Limits) -> Self {
        Self::start_new(limits, SERVICE_CIDR).await
    }

    /// The same, with networks for Services.
    pub async fn start_with_service_cidrs(networks: &str) -> Self {
        Self::start_new(apiserver::Limits::default(), networks).await
    }

    /// The same, with an audit log.
    pub async fn start_audited(audit: apiserver::AuditConfig) -> Self {
        let networks = SERVICE_CIDR.parse().unwrap();
        Self::with_account(Self::start_with(tempfile::tempdir().unwrap(), Keys::new(), apiserver::Limits::default(), networks, Some(audit)).await)
            .await
    }

    async fn start_new(limits: apiserver::Limits, networks: &str) -> Self {
        Self::with_account(Self::start_in(tempfile::tempdir().unwrap(), Keys::new(), limits, networks.parse().unwrap()).await).await
    }

    async fn with_account(started: Self) -> Self {
        let accounts: Api<ServiceAccount> = Api::namespaced(started.admin(), "default");
        let account = serde_json::from_value(json!({"metadata": {"name": "default"}})).unwrap();
        accounts.create(&PostParams::default(), &account).await.unwrap();
        started
    }

    async fn start_in(dir: tempfile::TempDir, keys: Keys, limits: apiserver::Limits, service_cidrs: ServiceRanges) -> Self {
        Self::start_with(dir, keys, limits, service_cidrs, None).await
    }

    async fn start_with(
        dir: tempfile::TempDir,
        keys: Keys,
        limits: apiserver::Limits,
        service_cidrs: ServiceRanges,
        audit: Option<apiserver::AuditConfig>,
    ) -> Self {
        let node_networks = NodeNetworks { within: vec!["127.0.0.0/8".parse().unwrap()], except: vec![NO_NODE.parse().unwrap()] };
        // No event is kept for its youth: tests make the server forget by writing much.
        let watch_history = std::time::Duration::ZERO;
        let config =
            Config { watch_history, limits, node_networks, service_cidrs: service_cidrs.clone(), audit, ..keys.config(dir.path().join("store")) };
        let address = SocketAddr::from(config.advertise);
        Self { server: start(config).await.unwrap(), keys, address, dir, service_cidrs }
    }

    /// Stops it and starts it again on the same directory.
    pub async fn restart(self) -> Self {
        let networks = self.service_cidrs.clone();
        self.restart_with_service_cidrs(networks).await
    }

    /// The same, with other networks for Services.
    pub async fn restart_with_service_cidrs(self, networks: ServiceRanges) -> Self {
        self.server.shutdown().await;
        Self::start_in(self.dir, self.keys, apiserver::Limits::default(), networks).await
    }

    /// Ends it.
    pub async fn stop(self) {
        self.server.shutdown().await;
    }

    /// What it serves.
    pub fn kinds(&self) -> &apiserver::kind::Kinds {
        self.server.kinds()
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// TLS for a client that shows no certificate.
    pub fn stranger_tls(&self) -> tokio_rustls::TlsConnector {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(pki::certificate_der(self.keys.ca.cert_pem()).unwrap().remove(0)).unwrap();
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        std::sync::Arc::new(config.with_root_certificates(roots).with_no_client_auth()).into()
    }

    /// An in-process client that may do anything.
    pub fn admin(&self) -> kube::Client {
        self.client("admin", &["system:masters"])
    }

    /// The in-process service itself.
    pub fn service(&self, user: &str, groups: &[&str]) -> InProcess {
        self.server.in_process(Identity { user: user.into(), groups: groups.iter().map(ToString::to_string).collect() })
    }

    /// An in-process client.
    pub fn client(&self, user: &str, groups: &[&str]) -> kube::Client {
        let identity = Identity { user: user.into(), groups: groups.iter().map(ToString::to_string).collect() };
        kube::Client::new(self.server.in_process(identity), "default")
    }

    /// A client over TLS with a certificate.
    pub async fn tls_client(&self, user: &str, group: &str) -> kube::Client {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let request = CertRequest { cn: user.into(), orgs: vec![group.into()], client: true, days: 1, ..CertRequest::default() };
        let identity = self.keys.ca.issue(&request).unwrap();
        let credentials = Credentials::Certificate { cert_pem: identity.cert_pem, key_pem: identity.key_pem };
        let path = self.dir.path().join(format!("{user}.conf"));
        pki::write_private(&path, &KubeConfig::new(&format!("https://{}", self.address), self.keys.ca.cert_pem(), credentials).to_yaml()).unwrap();
        let config = kube::config::Kubeconfig::read_from(&path).unwrap();
        let config = kube::Config::from_custom_kubeconfig(config, &kube::config::KubeConfigOptions::default()).await.unwrap();
        kube::Client::try_from(config).unwrap()
    }

    /// TLS for a client with a certificate.
    pub fn client_tls(&self, user: &str, group: &str) -> tokio_rustls::TlsConnector {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(pki::certificate_der(self.keys.ca.cert_pem()).unwrap().remove(0)).unwrap();
        let request = CertRequest { cn: user.into(), orgs: vec![group.into()], client: true, days: 1, ..CertRequest::default() };
        let issued = self.keys.ca.issue(&request).unwrap();
        let (chain, key) = (pki::certificate_der(&issued.cert_pem).unwrap(), pki::private_key_der(&issued.key_pem).unwrap());
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        std::sync::Arc::new(config.with_root_certificates(roots).with_client_auth_cert(chain, key).unwrap()).into()
    }

    /// TLS for a kubelet on 127.0.0.1 that wants client certificates of this cluster.
    pub fn kubelet_tls(&self) -> rustls::ServerConfig {
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        roots.add(pki::certificate_der(self.keys.ca.cert_pem()).unwrap().remove(0)).unwrap();
        let builder = rustls::server::WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
        let request = CertRequest {
            cn: "system:node:win01".into(),
            ips: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
            server: true,
            days: 1,
            ..CertRequest::default()
        };
        let issued = self.keys.ca.issue(&request).unwrap();
        let (chain, key) = (pki::certificate_der(&issued.cert_pem).unwrap(), pki::private_key_der(&issued.key_pem).unwrap());
        let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        config.with_client_cert_verifier(builder.build().unwrap()).with_single_cert(chain, key).unwrap()
    }

    /// TLS for a webhook on 127.0.0.1, and the authority that a configuration names for it, PEM.
    pub fn webhook_tls(&self) -> (rustls::ServerConfig, String) {
        self.webhook_tls_as(&[])
    }

    /// The same, for a webhook that has these names too.
    pub fn webhook_tls_as(&self, names: &[&str]) -> (rustls::ServerConfig, String) {
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let request = CertRequest {
            cn: "webhook".into(),
            dns: names.iter().map(ToString::to_string).collect(),
            ips: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
            server: true,
            days: 1,
            ..CertRequest::default()
        };
        let issued = self.keys.ca.issue(&request).unwrap();
        let (chain, key) = (pki::certificate_der(&issued.cert_pem).unwrap(), pki::private_key_der(&issued.key_pem).unwrap());
        let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        (config.with_no_client_auth().with_single_cert(chain, key).unwrap(), self.keys.ca.cert_pem().to_string())
    }

    /// A raw POST as admin.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, kube::Error> {
        self.send(http::Request::post(path), body).await
    }

    /// A raw PUT as admin.
    pub async fn put(&self, path: &str, body: &Value) -> Result<Value, kube::Error> {
        self.send(http::Request::put(path), body).await
    }

    async fn send(&self, request: http::request::Builder, body: &Value) -> Result<Value, kube::Error> {
        let request = request.header("content-type", "application/json").body(body.to_string().into_bytes()).unwrap();
        let text = self.admin().request_text(request).await?;
        Ok(serde_json::from_str(&text).unwrap())
    }
}
