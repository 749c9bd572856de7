//! The node's identity at the API server: a client from its kubeconfig, whose certificate may be asked for first (TLS bootstrap) and
//! replaced while the node runs (rotation).
//!
//! | bootstrap kubeconfig | `rotateCertificates` | what happens |
//! | --- | --- | --- |
//! | none, or the kubeconfig is good | false | the kubeconfig's credentials; files that it names are read again when somebody replaces them |
//! | the kubeconfig is missing or has expired | false | a certificate is asked for, then as above |
//! | none, or the kubeconfig is good | true | the newest certificate in the directory, replaced before its end |
//! | the kubeconfig is missing or has expired | true | both |
//!
//! The node starts meanwhile: its requests wait for the first certificate. (Upstream's kubelet writes the kubeconfig before there is a
//! certificate when it rotates, and does not start at all before there is one when it does not.)

use std::convert::Infallible;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cluster::Renewal;
use kube::{Client, Config};
use pki::pair_store::StoreError;
use pki::{Pair, PairStore, Subject};
use thiserror_ext::AsReport as _;
use tokio::sync::watch;

use super::bootstrap::{Bootstrap, BootstrapError, credentials};
use super::manager::{Manager, ManagerError, Parts, Purpose, Requester};
use super::{Counts, OtherNode, check_node, client_subject};

/// How often the files of a kubeconfig are read whose certificate somebody else replaces (upstream: each 5 minutes, and at each handshake).
const LOOK: Duration = Duration::from_secs(60);

/// Why a node has no identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("TLS bootstrap failed")]
    Bootstrap(#[from] BootstrapError),
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
    #[error("cannot use {path:?} for the node's certificates: give another --cert-dir")]
    CertDir {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot use the node's certificates")]
    Store(#[from] StoreError),
    #[error(transparent)]
    Manager(#[from] ManagerError),
    #[error("cannot use {path:?}")]
    OtherNode {
        path: PathBuf,
        #[source]
        source: OtherNode,
    },
    #[error("cannot use the kubeconfig {path:?}")]
    Client {
        path: PathBuf,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("cannot use the client certificate")]
    Certificate(#[source] Box<kube::Error>),
}

/// Where a node's identity comes from.
#[derive(Clone, Debug)]
pub struct Settings {
    pub kubeconfig: PathBuf,
    /// Credentials that may ask for the first certificate.
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// Where certificates are kept.
    pub cert_dir: PathBuf,
    pub node_name: String,
    /// Whether the certificate is replaced before its end.
    pub rotates: bool,
    /// Whether the node's agent uses it, which has to be that node.
    pub is_agent: bool,
}

/// A client, and what keeps its credentials good.
pub struct Identity {
    pub client: Client,
    /// Name and port of the server.
    pub host: String,
    /// Metrics of the certificate, where it is replaced here.
    pub counts: Option<Arc<Counts>>,
    /// Runs for ever; it ends when the node has no credentials any more.
    pub work: Pin<Box<dyn Future<Output = Result<Infallible, IdentityError>> + Send>>,
}

/// The identity of a node.
///
/// # Errors
/// When a kubeconfig or a certificate cannot be used, or is another node's.
pub async fn identity(settings: &Settings) -> Result<Identity, IdentityError> {
    if settings.rotates || settings.bootstrap_kubeconfig.is_some() {
        // First: who could write to the directory may have put a key there.
        let failed = |source| IdentityError::CertDir { path: settings.cert_dir.clone(), source };
        host::make_private_dir(&settings.cert_dir).map_err(failed)?;
        // The kubeconfig may name a link whose replacement was interrupted.
        PairStore::open(&settings.cert_dir, Purpose::Client.prefix(), None)?;
    }
    let mut first = None;
    if let Some(bootstrap_kubeconfig) = &settings.bootstrap_kubeconfig {
        let bootstrap = Bootstrap {
            kubeconfig: settings.kubeconfig.clone(),
            bootstrap_kubeconfig: bootstrap_kubeconfig.clone(),
            cert_dir: settings.cert_dir.clone(),
            node_name: settings.node_name.clone(),
        };
        first = bootstrap.is_needed().await?.then_some(bootstrap);
    }
    match first {
        Some(bootstrap) if settings.rotates => {
            let (server, asker) = (bootstrap.config().await?, bootstrap.client().await?);
            let store = PairStore::open(&settings.cert_dir, Purpose::Client.prefix(), None)?;
            settings.rotated(&server, asker, None, Kept { store, first: None, bootstrap: Some(bootstrap) })
        }
        Some(bootstrap) => {
            let host = host_of(&bootstrap.config().await?);
            let (client, renewal) = cluster::renewable(None);
            let (kubeconfig, settings_of_work) = (settings.kubeconfig.clone(), settings.clone());
            let work = async move {
                bootstrap.run().await?;
                renewal.replace(cluster::client_from_kubeconfig(&kubeconfig).await?);
                let known = certificate_of(&kubeconfig).await;
                Ok(follow_files(&settings_of_work, known, &renewal).await)
            };
            Ok(Identity { client, host, counts: None, work: Box::pin(work) })
        }
        None => settings.of_kubeconfig().await,
    }
}

/// What there is of certificates.
struct Kept {
    store: PairStore,
    first: Option<Pair>,
    bootstrap: Option<Bootstrap>,
}

impl Settings {
    /// The identity of a kubeconfig that is there.
    async fn of_kubeconfig(&self) -> Result<Identity, IdentityError> {
        let path = &self.kubeconfig;
        let server = cluster::config_from_kubeconfig(path).await?;
        let given = credentials(&server).unwrap_or_else(|error| {
            tracing::warn!(error = %error.as_report(), path = %path.display(), "the kubeconfig's client certificate cannot be used");
            None
        });
        if let Some(given) = &given {
            self.check(&given.pair, path)?;
        }
        if !self.rotates {
            let (client, renewal) = cluster::renewable(Some(cluster::client_from_kubeconfig(path).await?));
            let (settings, known) = (self.clone(), given.map(|given| given.pair));
            let work = async move { Ok(follow_files(&settings, known, &renewal).await) };
            return Ok(Identity { client, host: host_of(&server), counts: None, work: Box::pin(work) });
        }
        let (inline, files) = match given {
            Some(given) if given.files.is_none() => (Some(given.pair).filter(|pair| pair.is_valid(SystemTime::now())), None),
            Some(given) => (None, given.files),
            None => (None, None),
        };
        let store = PairStore::open(&self.cert_dir, Purpose::Client.prefix(), files)?;
        // Not the bootstrap kubeconfig, which kubeadm removes when the node has its own.
        let own = Client::try_from(server.clone()).map_err(|source| IdentityError::Client { path: path.clone(), source: Box::new(source) })?;
        self.rotated(&server, own.clone(), Some(own), Kept { store, first: inline, bootstrap: None })
    }

    /// An identity whose certificate is replaced. `asker` asks where there is none that is good; `first` is used until there is one.
    fn rotated(&self, server: &Config, asker: Client, first: Option<Client>, kept: Kept) -> Result<Identity, IdentityError> {
        let (client, renewal) = cluster::renewable(first);
        let (wanted, subject) = watch::channel(Some(client_subject(&self.node_name)));
        let newest = client.clone();
        let requester: Requester = Box::new(move |is_good| if is_good { newest.clone() } else { asker.clone() });
        let Kept { store, first, bootstrap } = kept;
        let path = store.current_path();
        let manager = Manager::new(Parts { purpose: Purpose::Client, store, first, bootstrap, wanted: subject, requester })?;
        let (mut current, counts) = (manager.current(), manager.counts());
        if let Some(pair) = &*current.borrow_and_update() {
            self.check(pair, &path)?;
            use_pair(&renewal, server, pair)?;
        }
        let (host, server) = (host_of(server), server.clone());
        let follow = async move {
            // What is wanted is wanted for ever.
            let _wanted: watch::Sender<Option<Subject>> = wanted;
            while current.changed().await.is_ok() {
                if let Some(pair) = &*current.borrow_and_update() {
                    use_pair(&renewal, &server, pair)?;
                    tracing::info!("the client certificate is a new one; watches start again under it");
                }
            }
            std::future::pending().await
        };
        let work = async move {
            tokio::select! {
                ended = manager.run() => Ok(ended?),
                failed = follow => failed,
            }
        };
        Ok(Identity { client, host, counts: Some(counts), work: Box::pin(work) })
    }

    fn check(&self, pair: &Pair, path: &std::path::Path) -> Result<(), IdentityError> {
        if !self.is_agent {
            return Ok(());
        }
        check_node(pair, &self.node_name).map_err(|source| IdentityError::OtherNode { path: path.to_owned(), source })
    }
}

/// Name and port of a server.
fn host_of(server: &Config) -> String {
    server.cluster_url.authority().map(ToString::to_string).unwrap_or_default()
}

/// The client certificate of a kubeconfig, where it can be read.
async fn certificate_of(kubeconfig: &std::path::Path) -> Option<Pair> {
    let config = cluster::config_from_kubeconfig(kubeconfig).await.ok()?;
    credentials(&config).ok()?.map(|given| given.pair)
}

/// Uses another client certificate when somebody replaces that of the kubeconfig, or its files (upstream: client-go transport/cert_rotation.go;
/// tokens in files are read again by the client itself). Certificates that cannot be used are left alone, for ever.
async fn follow_files(settings: &Settings, mut known: Option<Pair>, renewal: &Renewal) -> Infallible {
    let path = &settings.kubeconfig;
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(found) = certificate_of(path).await else { continue };
        if known.as_ref().is_some_and(|known| known.cert_pem() == found.cert_pem() && known.key_pem() == found.key_pem()) {
            continue;
        }
        let usable = match settings.check(&found, path) {
            Ok(()) => cluster::client_from_kubeconfig(path).await.map_err(IdentityError::from),
            Err(error) => Err(error),
        };
        match usable {
            Ok(client) => {
                renewal.replace(client);
                tracing::info!("the kubeconfig has a new client certificate; watches start again under it");
            }
            Err(error) => tracing::warn!(error = %error.as_report(), "the kubeconfig has a new client certificate that cannot be used"),
        }
        // Either way it is not looked at again.
        known = Some(found);
    }
}

fn use_pair(renewal: &Renewal, server: &Config, pair: &Pair) -> Result<(), IdentityError> {
    let client = cluster::with_certificate(server, &pair.cert_pem(), pair.key_pem());
    renewal.replace(client.map_err(|error| IdentityError::Certificate(Box::new(error)))?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::path::Path;

    use kube::config::Kubeconfig;

    fn issue(node: &str) -> pki::CertKey {
        let ca = pki::Ca::generate("ca", Duration::from_secs(86_400)).unwrap();
        let orgs = vec!["system:nodes".to_owned()];
        ca.issue(&pki::CertRequest { cn: format!("system:node:{node}"), orgs, client: true, days: 1, ..Default::default() }).unwrap()
    }

    fn write(dir: &Path, issued: &pki::CertKey) {
        std::fs::write(dir.join("client.pem"), format!("{}{}", issued.cert_pem, issued.key_pem)).unwrap();
    }

    fn kubeconfig(dir: &Path) -> PathBuf {
        let file = dir.join("client.pem").display().to_string();
        let text = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
            "users": [{"name": "u", "user": {"client-certificate": file, "client-key": file}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        let _: Kubeconfig = serde_json::from_value(text.clone()).unwrap();
        let path = dir.join("kubelet.conf");
        std::fs::write(&path, text.to_string()).unwrap();
        path
    }

    #[tokio::test(start_paused = true)]
    async fn a_certificate_that_somebody_replaces_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &issue("n"));
        let settings = Settings {
            kubeconfig: kubeconfig(dir.path()),
            bootstrap_kubeconfig: None,
            cert_dir: dir.path().to_owned(),
            node_name: "n".into(),
            rotates: false,
            is_agent: true,
        };
        let known = certificate_of(&settings.kubeconfig).await;
        let (client, renewal) = cluster::renewable(None);
        // A request waits as long as there are no credentials, and fails with any: nobody listens.
        let asks = async || client.apiserver_version().await.is_err();
        let follow = follow_files(&settings, known, &renewal);
        tokio::pin!(follow);
        let mut replaced = async |within: Duration| {
            tokio::select! {
                never = &mut follow => match never {},
                answered = asks() => answered,
                () = tokio::time::sleep(within) => false,
            }
        };
        assert!(!replaced(Duration::from_secs(600)).await, "nothing changed");
        write(dir.path(), &issue("other"));
        assert!(!replaced(Duration::from_secs(600)).await, "that of another node");
        std::fs::write(dir.path().join("client.pem"), "half of a fi").unwrap();
        assert!(!replaced(Duration::from_secs(600)).await, "nothing that can be used");
        write(dir.path(), &issue("n"));
        assert!(replaced(Duration::from_secs(600)).await);
    }

    #[tokio::test]
    async fn the_directory_of_certificates_is_made_before_anything_is_read_from_it() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let settings = |cert_dir: &str| Settings {
            kubeconfig: dir.path().join("none"),
            bootstrap_kubeconfig: None,
            cert_dir: dir.path().join(cert_dir),
            node_name: "n".into(),
            rotates: true,
            is_agent: true,
        };
        assert!(matches!(identity(&settings("file/pki")).await, Err(IdentityError::CertDir { .. })));
        assert!(matches!(identity(&settings("new/pki")).await, Err(IdentityError::Cluster(_))));
        assert!(dir.path().join("new/pki").is_dir());
    }
}
