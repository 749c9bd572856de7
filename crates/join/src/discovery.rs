//! Finding the cluster, and proof that it is the right one: by token, file or https URL (cmd/kubeadm/app/discovery).
//!
//! A stranger's answer is read without TLS checks once: it counts only if the token signed it, and only if the pins fit; then the same is
//! read again over TLS with the authority that it names. No credentials go out before that.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::time::Duration;

use backoff::Backoff;
use http::StatusCode;
use http_body_util::{BodyExt as _, Limited};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use thiserror_ext::AsReport as _;
use tokio::time::Instant;

use crate::cluster_info::{self, Described, InfoError, KUBECONFIG, LARGEST};
use crate::pins::{PinError, Pins};
use crate::settings::{Discovery, Settings};
use crate::token::BootstrapToken;
use crate::version::{NotAVersion, Version};

/// How long a token's signature is waited for once the server answers: it follows the token within a second.
const SIGNED_WITHIN: Duration = Duration::from_secs(30);
const CONNECT: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(30);

/// Why no cluster was found that may be trusted.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    #[error("cannot read cluster-info of the API server {server}: check address and network, and that anonymous clients may read that ConfigMap")]
    Unreachable {
        server: String,
        #[source]
        source: FetchError,
    },
    #[error("cannot trust the API server {server}")]
    Info {
        server: String,
        #[source]
        source: InfoError,
    },
    #[error("cannot trust the API server {server}")]
    Pin {
        server: String,
        #[source]
        source: PinError,
    },
    #[error("cannot trust the API server {server}: it describes another cluster over checked TLS than it did without")]
    Changed { server: String },
    #[error("cannot trust the API server {server}: it does not prove to be of the cluster that it describes; somebody may stand between")]
    Tls {
        server: String,
        #[source]
        source: FetchError,
    },
    #[error("cannot use the discovery file {location}")]
    File {
        location: String,
        #[source]
        source: InfoError,
    },
    #[error("cannot read the discovery file {location}")]
    Read {
        location: String,
        #[source]
        source: FetchError,
    },
    #[error("the discovery file {0} has no credentials: give --tls-bootstrap-token, or a file whose user has a token or a client certificate")]
    NoCredentials(String),
    #[error("the cluster's certificate authority is neither in the discovery file {0} nor in cluster-info")]
    NoAuthority(String),
}

impl DiscoveryError {
    /// Whether somebody answered who is not, or cannot prove to be, the cluster.
    #[must_use]
    pub fn is_distrust(&self) -> bool {
        matches!(self, Self::Info { source: InfoError::Signature(_), .. } | Self::Pin { .. } | Self::Changed { .. } | Self::Tls { .. })
    }
}

/// Why something could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("the request failed")]
    Request(#[source] Box<kube::Error>),
    #[error("the server answered {0}")]
    Status(StatusCode),
    #[error("the answer was not complete after {}s", ANSWER.as_secs())]
    Late,
    #[error("the answer has more than {LARGEST} bytes, or broke off")]
    Body,
    #[error("the answer is no ConfigMap")]
    Document(#[source] serde_json::Error),
    #[error("it is no text")]
    Text,
    #[error("it cannot be read")]
    Io(#[source] io::Error),
}

/// The cluster, and credentials for the first requests.
#[derive(Clone, PartialEq, Eq)]
pub struct Discovered {
    /// `https://HOST:PORT`.
    pub server: String,
    pub ca_pem: String,
    /// A kubeconfig with the credentials.
    pub kubeconfig: String,
}

/// Finds the cluster.
///
/// # Errors
/// [`DiscoveryError`].
pub async fn discover(settings: &Settings) -> Result<Discovered, DiscoveryError> {
    cluster::install_crypto_provider();
    let (described, location) = match &settings.discovery {
        Discovery::Token { endpoint, token, pins } => (by_token(endpoint, token, pins.as_ref(), settings.discovery_timeout).await?, endpoint),
        Discovery::File(path) => {
            let text = read_file(path).map_err(|source| DiscoveryError::Read { location: path.clone(), source })?;
            (by_file(&text, path, settings, |path| read_file(path).map_err(|error| io::Error::other(error.to_report_string()))).await?, path)
        }
        Discovery::Url(url) => {
            let text = fetch_text(url, None).await.map_err(|source| DiscoveryError::Read { location: url.clone(), source })?;
            (by_file(&text, url, settings, no_files).await?, url)
        }
    };
    let Described { server, ca_pem, user } = described;
    let ca_pem = ca_pem.ok_or_else(|| DiscoveryError::NoAuthority(location.clone()))?;
    let user = match &settings.tls_token {
        Some(token) => json!({"token": token.reveal()}),
        None => user.ok_or_else(|| DiscoveryError::NoCredentials(location.clone()))?,
    };
    Ok(Discovered { kubeconfig: cluster_info::kubeconfig(&server, &ca_pem, &user), server, ca_pem })
}

/// A client's configuration for a server; whom it trusts is for the caller to say.
fn stranger(server: &str) -> Result<Config, FetchError> {
    let uri = server.parse().map_err(|error: http::uri::InvalidUri| FetchError::Io(io::Error::new(io::ErrorKind::InvalidInput, error)))?;
    let mut config = Config::new(uri);
    (config.connect_timeout, config.read_timeout, config.write_timeout) = (Some(CONNECT), Some(ANSWER), Some(ANSWER));
    Ok(config)
}

/// The same, for a server whose certificate is of this authority.
fn trusting(server: &str, ca_pem: &str) -> Result<Config, FetchError> {
    let certificates = pki::certificate_der(ca_pem).map_err(|_| FetchError::Text)?;
    trusting_in(server, certificates.into_iter().map(|der| der.to_vec()).collect())
}

fn trusting_in(server: &str, authorities: Vec<Vec<u8>>) -> Result<Config, FetchError> {
    let mut config = stranger(server)?;
    config.root_cert = Some(authorities);
    Ok(config)
}

fn client(config: Config) -> Result<Client, FetchError> {
    Client::try_from(config).map_err(|error| FetchError::Request(Box::new(error)))
}

/// An answer to GET, bounded in size and time.
async fn get(client: &Client, path: &str) -> Result<Vec<u8>, FetchError> {
    tokio::time::timeout(ANSWER, get_bounded(client, path)).await.unwrap_or(Err(FetchError::Late))
}

async fn get_bounded(client: &Client, path: &str) -> Result<Vec<u8>, FetchError> {
    let request = http::Request::get(path).body(Body::empty());
    let request = request.map_err(|error| FetchError::Io(io::Error::new(io::ErrorKind::InvalidInput, error)))?;
    let answer = client.send(request).await.map_err(|error| FetchError::Request(Box::new(error)))?;
    if !answer.status().is_success() {
        return Err(FetchError::Status(answer.status()));
    }
    Ok(Limited::new(answer.into_body(), LARGEST).collect().await.map_err(|_| FetchError::Body)?.to_bytes().to_vec())
}

async fn fetch_info(client: &Client) -> Result<BTreeMap<String, String>, FetchError> {
    let bytes = get(client, "/api/v1/namespaces/kube-public/configmaps/cluster-info").await?;
    let map: ConfigMap = serde_json::from_slice(&bytes).map_err(FetchError::Document)?;
    Ok(map.data.unwrap_or_default())
}

/// The text at an https URL, by the system's authorities or by a given one.
async fn fetch_text(url: &str, ca_pem: Option<&str>) -> Result<String, FetchError> {
    let invalid = |error: String| FetchError::Io(io::Error::new(io::ErrorKind::InvalidInput, error));
    let uri: http::Uri = url.parse().map_err(|error: http::uri::InvalidUri| invalid(error.to_string()))?;
    let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
    let server = format!("https://{authority}");
    let config = ca_pem.map_or_else(|| stranger(&server), |ca_pem| trusting(&server, ca_pem))?;
    let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    String::from_utf8(get(&client(config)?, path).await?).map_err(|_| FetchError::Text)
}

fn read_file(path: &str) -> Result<String, FetchError> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(FetchError::Io)?;
    file.take(LARGEST as u64 + 1).read_to_end(&mut bytes).map_err(FetchError::Io)?;
    if bytes.len() > LARGEST {
        return Err(FetchError::Body);
    }
    Ok(host::decode_text(&bytes))
}

/// Discovery with a token, and with pins if there are any.
async fn by_token(endpoint: &str, token: &BootstrapToken, pins: Option<&Pins>, within: Duration) -> Result<Described, DiscoveryError> {
    let server = format!("https://{endpoint}");
    let unreachable = |source| DiscoveryError::Unreachable { server: server.clone(), source };
    let info = |source| DiscoveryError::Info { server: server.clone(), source };
    let mut unchecked = stranger(&server).map_err(unreachable)?;
    unchecked.accept_invalid_certs = true;
    let text = signed_info(&client(unchecked).map_err(unreachable)?, &server, token, within).await?;
    let described = read_info(&text).map_err(info)?;
    let Some(pins) = pins else { return Ok(described) };
    let ca_pem = described.ca_pem.as_deref().ok_or_else(|| info(InfoError::Missing("certificate authority")))?;
    let pinned = pins.pinned(ca_pem).map_err(|source| DiscoveryError::Pin { server: server.clone(), source })?;
    // Somebody between could have passed the cluster's own answer on, and added an authority: only the cluster has the key to a certificate
    // of a pinned one.
    let checked = trusting_in(&server, pinned).map_err(unreachable)?;
    let again = fetch_checked(&client(checked).map_err(unreachable)?, &server, within).await?;
    if again.get(KUBECONFIG) != Some(&text) {
        return Err(DiscoveryError::Changed { server });
    }
    Ok(described)
}

/// Reads `cluster-info` with checked TLS until there is an answer, or the time is over.
async fn fetch_checked(client: &Client, server: &str, within: Duration) -> Result<BTreeMap<String, String>, DiscoveryError> {
    let start = Instant::now();
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
    loop {
        let source = match fetch_info(client).await {
            Ok(data) => return Ok(data),
            Err(source) if is_tls(&source) => return Err(DiscoveryError::Tls { server: server.to_owned(), source }),
            Err(source) => source,
        };
        let delay = backoff.next_delay();
        let is_refusal = matches!(source, FetchError::Status(StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED));
        if is_refusal || start.elapsed() + delay >= within {
            return Err(DiscoveryError::Unreachable { server: server.to_owned(), source });
        }
        tokio::time::sleep(delay).await;
    }
}

/// Whether a request failed because the server's certificate does not hold.
fn is_tls(error: &FetchError) -> bool {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if error.is::<rustls::Error>() || inner.is_some_and(|inner| inner.is::<rustls::Error>()) {
            return true;
        }
        // An I/O error passes over the error that it wraps.
        next = inner.map_or_else(|| error.source(), |inner| Some(inner as &(dyn std::error::Error + 'static)));
    }
    false
}

/// For texts that come from a server.
fn no_files(_: &str) -> io::Result<String> {
    Err(io::Error::new(io::ErrorKind::PermissionDenied, "a server does not name files of this machine"))
}

/// The kubeconfig of `cluster-info`, which must describe a cluster and nobody's credentials.
fn read_info(text: &str) -> Result<Described, InfoError> {
    cluster_info::parse(text, false, no_files)
}

/// Asks until there is an answer with the token's signature, or the time is over.
async fn signed_info(client: &Client, server: &str, token: &BootstrapToken, within: Duration) -> Result<String, DiscoveryError> {
    let start = Instant::now();
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
    let mut answered = None;
    loop {
        let error = match fetch_info(client).await {
            Ok(data) => match cluster_info::verified(&data, token) {
                Ok(text) => return Ok(text.to_owned()),
                Err(source @ (InfoError::NoSignature { .. } | InfoError::NoKubeconfig)) => {
                    let since = *answered.get_or_insert_with(Instant::now);
                    let error = DiscoveryError::Info { server: server.to_owned(), source };
                    if since.elapsed() >= SIGNED_WITHIN {
                        return Err(error);
                    }
                    error
                }
                Err(source) => return Err(DiscoveryError::Info { server: server.to_owned(), source }),
            },
            Err(source) => DiscoveryError::Unreachable { server: server.to_owned(), source },
        };
        let delay = backoff.next_delay();
        if start.elapsed() + delay >= within {
            return Err(error);
        }
        tracing::info!(error = %error.as_report(), again = ?delay, "the cluster does not prove itself yet");
        tokio::time::sleep(delay).await;
    }
}

/// Discovery with a kubeconfig: its TLS must hold. The authority comes from cluster-info when the file has none. `read` gives files that it
/// names.
async fn by_file(text: &str, location: &str, settings: &Settings, read: impl Fn(&str) -> io::Result<String>) -> Result<Described, DiscoveryError> {
    let described = cluster_info::parse(text, settings.tls_token.is_none(), read);
    let mut described = described.map_err(|source| DiscoveryError::File { location: location.to_owned(), source })?;
    let server = described.server.clone();
    let unreachable = |source| DiscoveryError::Unreachable { server: server.clone(), source };
    let config = match &described.ca_pem {
        Some(ca_pem) => trusting(&server, ca_pem),
        None => stranger(&server),
    };
    let client = client(config.map_err(unreachable)?).map_err(unreachable)?;
    let info = match fetch_checked(&client, &server, settings.discovery_timeout).await {
        // The server is the right one; it only shows anonymous clients nothing.
        Err(DiscoveryError::Unreachable { source: FetchError::Status(StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED), .. }) => BTreeMap::new(),
        other => other?,
    };
    if described.ca_pem.is_none() {
        described.ca_pem = info.get(KUBECONFIG).and_then(|text| read_info(text).ok()).and_then(|info| info.ca_pem);
    }
    Ok(described)
}

/// Why the cluster's configuration could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error("cannot use the credentials of discovery")]
    Kubeconfig(#[source] Box<kube::config::KubeconfigError>),
    #[error("cannot use the credentials of discovery")]
    Client(#[source] Box<kube::Error>),
    #[error("cannot read {object}: the token may have expired, or the cluster was not made by kubeadm")]
    Read {
        object: &'static str,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("cannot read {object} within {}s", .within.as_secs())]
    Late { object: &'static str, within: Duration },
    #[error("the ConfigMap kube-system/kubelet-config has no member kubelet")]
    NoKubeletConfig,
    #[error("cannot tell the control plane's version")]
    Version(#[source] NotAVersion),
}

/// What the cluster says to those that join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// The text of its KubeletConfiguration.
    pub kubelet: String,
    pub version: Version,
    /// Whether there is a Node of the name, and it is Ready.
    pub node_is_ready: bool,
}

/// A client with the credentials of a kubeconfig.
///
/// # Errors
/// [`ClusterError::Kubeconfig`], [`ClusterError::Client`].
pub async fn client_of(kubeconfig: &str) -> Result<Client, ClusterError> {
    cluster::install_crypto_provider();
    let unusable = |source| ClusterError::Kubeconfig(Box::new(source));
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig).map_err(unusable)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(unusable)?;
    // The environment's proxies are not for the control plane.
    config.proxy_url = None;
    Client::try_from(config).map_err(|source| ClusterError::Client(Box::new(source)))
}

/// Reads what the cluster says, with the credentials of discovery.
///
/// # Errors
/// [`ClusterError`].
pub async fn read_cluster(client: &Client, node_name: &str, within: Duration) -> Result<ClusterConfig, ClusterError> {
    let maps = Api::<ConfigMap>::namespaced(client.clone(), "kube-system");
    let kubelet = read("the ConfigMap kube-system/kubelet-config", within, || maps.get("kubelet-config")).await?;
    let kubelet = kubelet.data.and_then(|mut data| data.remove("kubelet")).ok_or(ClusterError::NoKubeletConfig)?;
    let version = match read("the ConfigMap kube-system/kubeadm-config", within, || maps.get_opt("kubeadm-config")).await {
        Ok(Some(map)) => map.data.as_ref().and_then(|data| data.get("ClusterConfiguration")).and_then(|text| version_of(text)),
        Ok(None) => None,
        Err(error) => {
            tracing::warn!(error = %error.as_report(), "the cluster's configuration by kubeadm is not used");
            None
        }
    };
    let version = match version {
        Some(version) => version,
        None => read("the server's version", within, || client.apiserver_version()).await?.git_version,
    };
    let nodes = Api::<Node>::all(client.clone());
    let node = read("the Node of this name", within, || nodes.get_opt(node_name)).await?;
    let is_ready = |node: &Node| {
        let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    Ok(ClusterConfig { kubelet, version: version.parse().map_err(ClusterError::Version)?, node_is_ready: node.as_ref().is_some_and(is_ready) })
}

/// The version in a ClusterConfiguration.
fn version_of(text: &str) -> Option<String> {
    let document: Value = serde_yaml_ng::from_str(text).ok()?;
    let version = document["kubernetesVersion"].as_str()?;
    version.parse::<Version>().is_ok().then(|| version.to_owned())
}

/// Asks until there is an answer; refusals end it at once.
async fn read<T, F>(object: &'static str, within: Duration, request: impl Fn() -> F) -> Result<T, ClusterError>
where
    F: Future<Output = Result<T, kube::Error>>,
{
    let answered = async {
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        loop {
            let source = match request().await {
                Ok(answer) => return Ok(answer),
                Err(source) => source,
            };
            if matches!(&source, kube::Error::Api(status) if (400..500).contains(&status.code) && status.code != 429) {
                return Err(ClusterError::Read { object, source: Box::new(source) });
            }
            tracing::info!(object, error = %source.as_report(), "the control plane does not answer yet");
            tokio::time::sleep(backoff.next_delay()).await;
        }
    };
    tokio::time::timeout(within, answered).await.unwrap_or(Err(ClusterError::Late { object, within }))
}

#[cfg(test)]
mod tests;
