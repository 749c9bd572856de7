//! TLS bootstrap: a node's first client certificate, asked for with the credentials of a bootstrap kubeconfig (upstream:
//! `pkg/kubelet/certificate/bootstrap`).
//!
//! The key is kept in `kubelet-client.key.tmp` until there is a certificate for it, and the request's name follows from the key: an agent
//! that starts again in between waits for the request that it made before.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::config::{Config, Kubeconfig};
use pki::pair_store::{StoreError, read_pair, read_text};
use pki::{Key, Pair, PairStore};
use serde_json::Value;
use thiserror_ext::AsReport as _;

use super::plan::{self, Purpose};
use super::request::{self, RequestError, Wanted};
use super::{OtherNode, check_node, client_subject, manager};

/// How long the certificate is waited for.
const PATIENCE: Duration = Duration::from_secs(3600);
/// How long the API server's `/healthz` is waited for before the request is sent anyway.
const HEALTHY: Duration = Duration::from_secs(60);
/// The key of a request that is not answered yet.
const KEY: &str = "kubelet-client.key.tmp";

/// Why a node gets no first certificate.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    #[error("cannot look at the kubeconfig {path:?}")]
    Look {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot use the bootstrap kubeconfig")]
    Kubeconfig(#[source] Box<cluster::Error>),
    #[error("cannot use the bootstrap kubeconfig {path:?}")]
    Client {
        path: PathBuf,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("the bootstrap kubeconfig {0:?} has no cluster in its current context")]
    NoCluster(PathBuf),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot keep the key of the certificate signing request")]
    Key(#[source] pki::Error),
    #[error("cannot get a client certificate with the credentials in {path:?}")]
    Request {
        path: PathBuf,
        #[source]
        source: RequestError,
    },
    #[error("the certificate that was issued cannot be used")]
    Pair(#[source] pki::pair::PairError),
    #[error("the certificate that was issued is another one: {0}")]
    Other(String),
    #[error("cannot write the kubeconfig")]
    Write(#[source] pki::Error),
    #[error(transparent)]
    OtherNode(#[from] OtherNode),
}

/// A client certificate of a kubeconfig.
#[derive(Debug)]
pub struct Credentials {
    pub pair: Pair,
    /// Its files; none when the kubeconfig itself holds it.
    pub files: Option<(PathBuf, PathBuf)>,
}

/// The client certificate of a kubeconfig's user; none when the user has something else.
///
/// # Errors
/// When there is one that cannot be used.
pub fn credentials(config: &Config) -> Result<Option<Credentials>, StoreError> {
    let user = serde_json::to_value(&config.auth_info).unwrap_or_default();
    let member = |name: &str| user.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let inline = |name: &str| member(name).and_then(|text| STANDARD.decode(text).ok()).and_then(|bytes| String::from_utf8(bytes).ok());
    if let (Some(certificate), Some(key)) = (inline("client-certificate-data"), inline("client-key-data")) {
        let pair = Pair::parse(&certificate, &key).map_err(|source| StoreError::Pair { path: "kubeconfig".into(), source })?;
        return Ok(Some(Credentials { pair, files: None }));
    }
    let (Some(certificate), Some(key)) = (member("client-certificate"), member("client-key")) else { return Ok(None) };
    let (certificate, key) = (PathBuf::from(certificate), PathBuf::from(key));
    Ok(Some(Credentials { pair: read_pair(&certificate, &key)?, files: Some((certificate, key)) }))
}

/// Where a node that is bootstrapped has what.
#[derive(Clone, Debug)]
pub struct Bootstrap {
    /// The kubeconfig that is written when there is a certificate.
    pub kubeconfig: PathBuf,
    /// Credentials that may make the node's first signing request.
    pub bootstrap_kubeconfig: PathBuf,
    /// Where the certificate and its key go.
    pub cert_dir: PathBuf,
    pub node_name: String,
}

impl Bootstrap {
    /// Whether there is no kubeconfig yet with a client certificate that is good.
    ///
    /// # Errors
    /// When the file cannot be looked at, and when its certificate is another node's.
    pub async fn is_needed(&self) -> Result<bool, BootstrapError> {
        let path = &self.kubeconfig;
        match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            Err(source) => return Err(BootstrapError::Look { path: path.clone(), source }),
            Ok(_) => {}
        }
        let why = match cluster::config_from_kubeconfig(path).await {
            Ok(config) => match credentials(&config) {
                Ok(Some(found)) => {
                    check_node(&found.pair, &self.node_name)?;
                    if found.pair.is_valid(SystemTime::now()) {
                        return Ok(false);
                    }
                    "its client certificate has expired".to_owned()
                }
                Ok(None) => "it has no client certificate".to_owned(),
                Err(error) => error.to_report_string(),
            },
            Err(error) => error.to_report_string(),
        };
        tracing::warn!(path = %path.display(), why, "the kubeconfig is replaced: a certificate is asked for with the bootstrap kubeconfig");
        Ok(true)
    }

    /// What the bootstrap kubeconfig says of the API server, and of the user that asks.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn config(&self) -> Result<Config, BootstrapError> {
        cluster::config_from_kubeconfig(&self.bootstrap_kubeconfig).await.map_err(|error| BootstrapError::Kubeconfig(Box::new(error)))
    }

    /// A client of that user.
    ///
    /// # Errors
    /// When its credentials cannot be used.
    pub async fn client(&self) -> Result<kube::Client, BootstrapError> {
        let unusable = |source| BootstrapError::Client { path: self.bootstrap_kubeconfig.clone(), source: Box::new(source) };
        kube::Client::try_from(self.config().await?).map_err(unusable)
    }

    /// Gets the certificate, keeps it, and writes the kubeconfig.
    ///
    /// # Errors
    /// When the request is refused, or not answered within an hour; its key stays for the next attempt.
    pub async fn run(&self) -> Result<Pair, BootstrapError> {
        let cluster = self.cluster()?;
        let client = self.client().await?;
        let store = PairStore::open(&self.cert_dir, Purpose::Client.prefix(), None)?;
        let key = self.key(&store)?;
        wait_for_server(&client).await;
        let subject = client_subject(&self.node_name);
        let wanted = Wanted { purpose: Purpose::Client, subject: &subject, key: &key, is_first: true };
        let refused = |source| BootstrapError::Request { path: self.bootstrap_kubeconfig.clone(), source };
        let certificate = ask(&client, &wanted).await.map_err(refused)?;
        let pair = Pair::parse(&certificate, &key.pem()).map_err(BootstrapError::Pair)?;
        if let Some(reason) = plan::missing(pair.leaf(), &subject) {
            return Err(BootstrapError::Other(reason));
        }
        store.update(&pair, &manager::stamp())?;
        if let Err(error) =
            fs::remove_file(self.key_path()).or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
        {
            tracing::warn!(path = %self.key_path().display(), %error, "cannot remove the key of the certificate signing request");
        }
        let pem = std::path::absolute(store.current_path()).unwrap_or_else(|_| store.current_path());
        let text = pki::kubeconfig_of_files(&cluster, &pem.display().to_string());
        pki::write_private(&self.kubeconfig, &text).map_err(BootstrapError::Write)?;
        tracing::info!(kubeconfig = %self.kubeconfig.display(), "the node has its client certificate");
        Ok(pair)
    }

    /// The cluster of the bootstrap kubeconfig's context.
    fn cluster(&self) -> Result<Value, BootstrapError> {
        let path = &self.bootstrap_kubeconfig;
        let unreadable = |source| BootstrapError::Kubeconfig(Box::new(cluster::Error::Kubeconfig { path: path.clone(), source: Box::new(source) }));
        let found = Kubeconfig::read_from(path).map_err(unreadable)?;
        let context = found.contexts.iter().find(|context| Some(&context.name) == found.current_context.as_ref());
        let name = context.and_then(|context| context.context.as_ref()).map(|context| &context.cluster);
        let cluster = found.clusters.iter().find(|cluster| Some(&cluster.name) == name).and_then(|cluster| cluster.cluster.as_ref());
        cluster.and_then(|cluster| serde_json::to_value(cluster).ok()).ok_or_else(|| BootstrapError::NoCluster(path.clone()))
    }

    fn key_path(&self) -> PathBuf {
        self.cert_dir.join(KEY)
    }

    /// The key of the certificate that the node has (which has expired), else of the request of an earlier start, else a new one. The directory
    /// is made before anything is read from it: whoever makes it chooses the node's key.
    fn key(&self, store: &PairStore) -> Result<Key, BootstrapError> {
        let failed = |source| BootstrapError::Key(pki::Error::File { operation: "making", path: self.cert_dir.clone(), source });
        host::make_private_dir(&self.cert_dir).map_err(failed)?;
        if let Ok(Some(pair)) = store.current()
            && let Ok(key) = Key::from_pem(pair.key_pem())
        {
            return Ok(key);
        }
        let path = self.key_path();
        if let Some(key) = unfinished(&path) {
            return Ok(key);
        }
        let key = Key::generate().map_err(BootstrapError::Key)?;
        pki::write_private(&path, &key.pem()).map_err(BootstrapError::Key)?;
        Ok(key)
    }
}

/// The key of a request of an earlier start. One that cannot be read is replaced.
fn unfinished(path: &Path) -> Option<Key> {
    let text = match read_text(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "cannot read the key of an earlier start; making another one");
            return None;
        }
    };
    let key = Key::from_pem(&text);
    key.inspect_err(
        |error| tracing::warn!(path = %path.display(), error = %error.as_report(), "the key of an earlier start is none; making another one"),
    )
    .ok()
}

/// Sends the request until the API server has answered it, then waits for the certificate.
async fn ask(client: &kube::Client, wanted: &Wanted<'_>) -> Result<String, RequestError> {
    let mut failures = 0;
    let asked = loop {
        match request::submit(client, wanted).await {
            Err(error) if !error.server_answers() && !matches!(error, RequestError::Make(_)) => {
                let delay = plan::delay(failures, 0.5);
                failures = failures.saturating_add(1);
                tracing::warn!(error = %error.as_report(), again = ?delay, "cannot ask for the node's client certificate");
                tokio::time::sleep(delay).await;
            }
            answered => break answered?,
        }
    };
    tracing::info!(csr = asked.name, "waiting for the node's client certificate");
    request::issued(client, &asked, PATIENCE).await
}

/// Waits until the API server is healthy; a server that is not may answer all the same.
async fn wait_for_server(client: &kube::Client) {
    let healthy = async {
        loop {
            let request = http::Request::get("/healthz").body(Vec::new()).unwrap_or_default();
            match tokio::time::timeout(Duration::from_secs(1), client.request_text(request)).await {
                Ok(Ok(_)) => return,
                Ok(Err(error)) => tracing::info!(error = %error.as_report(), "the API server is not healthy yet"),
                Err(_) => tracing::info!("the API server does not answer within a second"),
            }
            tokio::time::sleep(backoff::jittered(Duration::from_secs(2))).await;
        }
    };
    if tokio::time::timeout(HEALTHY, healthy).await.is_err() {
        tracing::warn!("the API server has not become healthy within a minute; asking for a certificate anyway");
    }
}

#[cfg(test)]
mod tests {
    use pki::{Ca, CertRequest, KubeConfig};

    use super::*;

    struct Place {
        dir: tempfile::TempDir,
        ca: Ca,
    }

    impl Place {
        fn new() -> Self {
            Self { dir: tempfile::tempdir().unwrap(), ca: Ca::generate("kubernetes", Duration::from_secs(86_400 * 10)).unwrap() }
        }

        fn bootstrap(&self) -> Bootstrap {
            let path = |name: &str| self.dir.path().join(name);
            Bootstrap {
                kubeconfig: path("kubelet.conf"),
                bootstrap_kubeconfig: path("bootstrap.conf"),
                cert_dir: path("pki"),
                node_name: "win01".into(),
            }
        }

        fn write(&self, cn: &str, days: u32) {
            let made = self.ca.issue(&CertRequest { cn: cn.into(), client: true, days, ..CertRequest::default() }).unwrap();
            let credentials = pki::Credentials::Certificate { cert_pem: made.cert_pem, key_pem: made.key_pem };
            self.text(&KubeConfig::new("https://127.0.0.1:6443", self.ca.cert_pem(), credentials).to_yaml());
        }

        fn text(&self, text: &str) {
            fs::write(self.bootstrap().kubeconfig, text).unwrap();
        }
    }

    #[tokio::test]
    async fn a_kubeconfig_with_a_good_certificate_needs_no_bootstrap() {
        let place = Place::new();
        let bootstrap = place.bootstrap();
        assert!(bootstrap.is_needed().await.unwrap(), "there is none");
        place.write("system:node:win01", 1);
        assert!(!bootstrap.is_needed().await.unwrap());
        place.write("kubernetes-admin", 1);
        assert!(!bootstrap.is_needed().await.unwrap(), "of kubeadm's, for a control plane");
        place.write("system:node:win01", 0);
        tokio::time::sleep(Duration::from_millis(1100)).await;
        assert!(bootstrap.is_needed().await.unwrap(), "expired");
        place.text("a: [");
        assert!(bootstrap.is_needed().await.unwrap(), "no kubeconfig");
        place.text(&KubeConfig::new("https://127.0.0.1:6443", place.ca.cert_pem(), pki::Credentials::Token("abc".into())).to_yaml());
        assert!(bootstrap.is_needed().await.unwrap(), "a token");
        place.write("system:node:win02", 1);
        let error = bootstrap.is_needed().await.unwrap_err().to_string();
        assert!(error.starts_with("the client certificate is that of node \"win02\", but this node is \"win01\": give"), "{error}");
    }

    #[tokio::test]
    async fn credentials_are_found_inline_and_in_files() {
        let place = Place::new();
        place.write("system:node:win01", 1);
        let path = place.bootstrap().kubeconfig;
        let inline = credentials(&cluster::config_from_kubeconfig(&path).await.unwrap()).unwrap().unwrap();
        assert_eq!((inline.pair.leaf().common_name.as_str(), inline.files), ("system:node:win01", None));
        fs::write(place.dir.path().join("both.pem"), format!("{}{}", inline.pair.cert_pem(), inline.pair.key_pem())).unwrap();
        let cluster = serde_json::json!({"server": "https://127.0.0.1:6443"});
        place.text(&pki::kubeconfig_of_files(&cluster, "both.pem"));
        let files = credentials(&cluster::config_from_kubeconfig(&path).await.unwrap()).unwrap().unwrap();
        let both = place.dir.path().join("both.pem");
        assert_eq!((files.pair, files.files), (inline.pair, Some((both.clone(), both))));
    }

    #[test]
    fn an_unfinished_key_is_used_again() {
        let place = Place::new();
        let bootstrap = place.bootstrap();
        let store = PairStore::open(&bootstrap.cert_dir, "kubelet-client", None).unwrap();
        let key = bootstrap.key(&store).unwrap();
        assert_eq!(bootstrap.key(&store).unwrap().public_der(), key.public_der());
        fs::write(bootstrap.key_path(), "nonsense").unwrap();
        let other = bootstrap.key(&store).unwrap();
        assert_ne!(other.public_der(), key.public_der());
        assert_eq!(bootstrap.key(&store).unwrap().public_der(), other.public_der(), "and is kept");
        // The key of a certificate that has expired counts more.
        let request = pki::SigningRequest::parse(key.request(&client_subject("win01")).unwrap().as_bytes()).unwrap();
        let certificate = place.ca.sign(&request, &pki::Usages::default(), Duration::ZERO, SystemTime::now()).unwrap();
        store.update(&Pair::parse(&certificate, &key.pem()).unwrap(), "2026-01-02-03-04-05").unwrap();
        assert_eq!(bootstrap.key(&store).unwrap().public_der(), key.public_der());
    }
}
