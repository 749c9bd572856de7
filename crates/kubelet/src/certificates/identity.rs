//! The node's identity at the API server: a client from its kubeconfig, whose certificate may be asked for first (TLS bootstrap) and
//! replaced while the node runs (rotation).
//!
//! | bootstrap kubeconfig | `rotateCertificates` | what happens |
//! | --- | --- | --- |
//! | none, or the kubeconfig is good | false | the kubeconfig's credentials, for ever |
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
use std::time::SystemTime;

use cluster::Renewal;
use kube::{Client, Config};
use pki::pair_store::StoreError;
use pki::{Pair, PairStore, Subject};
use thiserror_ext::AsReport as _;
use tokio::sync::watch;

use super::bootstrap::{Bootstrap, BootstrapError, credentials};
use super::manager::{Manager, ManagerError, Parts, Purpose, Requester};
use super::{Counts, OtherNode, check_node, client_subject};

/// Why a node has no identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("TLS bootstrap failed")]
    Bootstrap(#[from] BootstrapError),
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
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
            let (client, renewal) = cluster::renewable(None);
            let kubeconfig = settings.kubeconfig.clone();
            let work = async move {
                bootstrap.run().await?;
                renewal.replace(cluster::client_from_kubeconfig(&kubeconfig).await?);
                std::future::pending().await
            };
            Ok(Identity { client, counts: None, work: Box::pin(work) })
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
            let client = cluster::client_from_kubeconfig(path).await?;
            return Ok(Identity { client, counts: None, work: Box::pin(std::future::pending()) });
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
        let server = server.clone();
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
        Ok(Identity { client, counts: Some(counts), work: Box::pin(work) })
    }

    fn check(&self, pair: &Pair, path: &std::path::Path) -> Result<(), IdentityError> {
        if !self.is_agent {
            return Ok(());
        }
        check_node(pair, &self.node_name).map_err(|source| IdentityError::OtherNode { path: path.to_owned(), source })
    }
}

fn use_pair(renewal: &Renewal, server: &Config, pair: &Pair) -> Result<(), IdentityError> {
    let client = cluster::with_certificate(server, &pair.cert_pem(), pair.key_pem());
    renewal.replace(client.map_err(|error| IdentityError::Certificate(Box::new(error)))?);
    Ok(())
}
