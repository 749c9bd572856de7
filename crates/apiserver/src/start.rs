//! Starting, serving and stopping.
//!
//! Tasks: one accepting task a listener, one task a connection, one each that lets old Events go, and schemas that nobody uses, one that keeps
//! the objects of Services, one that checks the types of policies; the store's writer thread. All end at [`Server::shutdown`].

use crate::admission::Chain;
use crate::alloc::Allocators;
use crate::alloc::ranges::ServiceRanges;
use crate::audit::{AuditConfig, Auditor};
use crate::authn::{self, UserInfo};
use crate::authz::Authorizer;
use crate::connect::kubelet::{KubeletClient, KubeletError, NodeNetworks};
use crate::health::{Hook, Started};
use crate::http::respond::{Body, BoxError};
use crate::kind::{self, Cluster, Kinds};
use crate::kinds::builtin;
use crate::metrics::kept::Kept;
use crate::registry::addresses::{Repair, SERVICES};
use crate::registry::{Registry, expiry, service};
use crate::server::Api;
use crate::store::{self, Store};
use crate::type_check::TypeChecks;
use crate::{bootstrap, http};
use ::http::header::USER_AGENT;
use ::http::{HeaderValue, Request, Response};
use futures::future::BoxFuture;
use listen::{Limits, Place};
use pki::CertKey;
use pki::service_account::SigningKey;
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use std::convert::Infallible;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Least time between two looks at changed Services and IPAddresses.
const REPAIR_EVERY: Duration = Duration::from_secs(1);
/// Least time between two looks at changed policies.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Time between looks at the objects of the `kubernetes` Service (`DefaultEndpointReconcilerInterval`).
const UPKEEP_EVERY: Duration = Duration::from_secs(10);

/// Configuration of the API server.
pub struct Config {
    /// Where the store and its encryption configuration live.
    pub store_dir: PathBuf,
    /// Bound listeners to serve TLS on from the start; see [`Server::listen`] for later ones.
    pub listeners: Vec<std::net::TcpListener>,
    /// The serving certificate.
    pub serving: CertKey,
    /// The authority that client certificates and kubelets' serving certificates are checked against, PEM.
    pub ca_pem: String,
    /// The key that signs ServiceAccount tokens, PEM.
    pub sa_key_pem: String,
    /// The client certificate shown to kubelets.
    pub kubelet_client: CertKey,
    /// Where kubelets may be dialled.
    pub node_networks: NodeNetworks,
    /// Where ClusterIPs come from: a network, or one of each family.
    pub service_cidrs: ServiceRanges,
    /// Where node ports come from.
    pub node_port_range: RangeInclusive<u16>,
    /// Address and port that the `kubernetes` Service leads to.
    pub advertise: (IpAddr, u16),
    /// Bounds of each listener.
    pub limits: Limits,
    /// `gitVersion` of `/version`.
    pub version: String,
    /// How long watches may be behind, and lists may ask for an earlier state, whatever is written meanwhile (64 MiB at most).
    pub watch_history: Duration,
    /// What is logged of requests; nothing when absent.
    pub audit: Option<AuditConfig>,
}

/// Why the API server could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store could not be opened.
    #[error(transparent)]
    Store(#[from] store::OpenError),
    /// Keys or certificates do not fit.
    #[error("the API server's {what} cannot be used")]
    Tls {
        what: &'static str,
        #[source]
        source: BoxError,
    },
    /// A listener cannot be used.
    #[error("serving on the API server's listener failed")]
    Listener(#[source] std::io::Error),
    /// The audit log could not be opened.
    #[error(transparent)]
    Audit(#[from] ::audit::LogError),
    /// The client for kubelets could not be made.
    #[error(transparent)]
    Kubelet(#[from] KubeletError),
    /// Namespaces, roles and the like could not be written.
    #[error("writing the objects that every cluster has failed: {0}")]
    Bootstrap(String),
}

/// An in-process client's identity.
#[derive(Clone, Debug)]
pub struct Identity {
    pub user: String,
    /// Groups, `system:authenticated` is added.
    pub groups: Vec<String>,
}

/// A running API server.
pub struct Server {
    api: Arc<Api>,
    tasks: TaskTracker,
    acceptor: TlsAcceptor,
    limits: Limits,
}

/// Starts the API server: when this returns, the bootstrap objects are stored and the listeners answer.
pub async fn start(config: Config) -> Result<Server, StartError> {
    let acceptor = tls(&config)?;
    let audit = config.audit.as_ref().map(Auditor::open).transpose()?.map(Arc::new);
    let store = Arc::new(Store::open(&config.store_dir)?);
    store.keep_events_for(config.watch_history);
    let allocators = Allocators::new(config.service_cidrs, config.node_port_range.clone());
    for (_, entry) in store.list(SERVICES).1 {
        allocators.adopt(service::ports(&entry.value()));
    }
    let registry = Arc::new(Registry {
        cluster: Cluster {
            allocators,
            authorizer: Arc::new(Authorizer::new(Arc::clone(&store))),
            store,
            kinds: Kinds::new(builtin().all().cloned()),
            webhooks: Default::default(),
        },
        admission: Chain::default(),
    });
    let api = Arc::new(Api {
        registry,
        tokens: SigningKey::from_pem(&config.sa_key_pem).map_err(|error| unusable("ServiceAccount key", error))?,
        shutdown: CancellationToken::new(),
        kubelet: KubeletClient::new(&config.ca_pem, &config.kubelet_client)?,
        node_networks: config.node_networks,
        metrics: Kept::default(),
        version: config.version,
        advertise: config.advertise,
        audit,
        started: Started::default(),
    });
    api.started.finish(Hook::Admission);
    let mut repair = Repair::default();
    bootstrap::run(&api.registry, config.advertise, &config.ca_pem, &api.started).await.map_err(|error| StartError::Bootstrap(error.message))?;
    api.registry.repair_addresses(&mut repair, jiff::Timestamp::now()).await;
    api.started.finish(Hook::ServiceAddresses);
    api.registry.serve_custom_resources().await.map_err(|error| StartError::Bootstrap(error.message))?;
    api.started.finish(Hook::ResourceDefinitions);
    api.started.finish(Hook::ResourceDefinitionsSynced);
    let server = Server { api, tasks: TaskTracker::new(), acceptor, limits: config.limits };
    server.tasks.spawn(sweep(Arc::clone(&server.api)));
    server.tasks.spawn(release_schemas(Arc::clone(&server.api)));
    server.tasks.spawn(check_types(Arc::clone(&server.api)));
    server.tasks.spawn(keep_services(Arc::clone(&server.api), repair));
    server.listen(config.listeners)?;
    Ok(server)
}

fn unusable(what: &'static str, source: impl Into<BoxError>) -> StartError {
    StartError::Tls { what, source: source.into() }
}

fn tls(config: &Config) -> Result<TlsAcceptor, StartError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    for certificate in pki::certificate_der(&config.ca_pem).map_err(|error| unusable("CA", error))? {
        roots.add(certificate).map_err(|error| unusable("CA", error))?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .allow_unauthenticated()
        .build()
        .map_err(|error| unusable("CA", error))?;
    let chain = pki::certificate_der(&config.serving.cert_pem).map_err(|error| unusable("serving certificate", error))?;
    let key = pki::private_key_der(&config.serving.key_pem).map_err(|error| unusable("serving key", error))?;
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable("TLS set-up", error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(|error| unusable("serving certificate", error))?;
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(server)))
}

/// Lets old Events and old revisions go, until the end.
async fn sweep(api: Arc<Api>) {
    let mut revisions = expiry::Revisions::default();
    let store = &api.registry.store;
    loop {
        if let Some(revision) = revisions.note(Instant::now(), store.revision()) {
            store.compact(revision);
        }
        tokio::select! {
            () = tokio::time::sleep(expiry::SWEEP_EVERY) => api.registry.expire_events(jiff::Timestamp::now()).await,
            () = api.shutdown.cancelled() => return,
        }
    }
}

/// Lets go of schemas of custom resources that nobody uses, until the end.
async fn release_schemas(api: Arc<Api>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(kind::SWEEP_EVERY) => {}
            () = api.shutdown.cancelled() => return,
        }
        if let Some(before) = Instant::now().checked_sub(kind::IDLE) {
            api.registry.kinds.release_schemas(before);
        }
    }
}

/// Repairs IPAddresses soon after changes of them and of Services, and now and then the objects of the `kubernetes` Service, until the end.
async fn keep_services(api: Arc<Api>, mut repair: Repair) {
    let mut published = api.registry.store.published();
    let keep = async {
        let mut kept = tokio::time::Instant::now();
        loop {
            // Many writes are looked at together.
            tokio::time::sleep(REPAIR_EVERY).await;
            api.registry.repair_addresses(&mut repair, jiff::Timestamp::now()).await;
            if kept.elapsed() >= UPKEEP_EVERY {
                kept = tokio::time::Instant::now();
                if let Err(error) = bootstrap::kubernetes_service(&api.registry, api.advertise).await {
                    tracing::warn!(error = %error.message, "the objects of the Service `kubernetes` could not be written; they are tried again");
                }
            }
            let _ = tokio::time::timeout(UPKEEP_EVERY, published.changed()).await;
        }
    };
    tokio::select! {
        () = keep => {}
        () = api.shutdown.cancelled() => {}
    }
}

/// Checks the expressions of policies soon after they have changed, until the end.
async fn check_types(api: Arc<Api>) {
    let mut published = api.registry.store.published();
    let mut checks = TypeChecks::default();
    let keep = async {
        loop {
            api.registry.check_types(&mut checks).await;
            tokio::time::sleep(CHECK_EVERY).await;
            if published.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    tokio::select! {
        () = keep => {}
        () = api.shutdown.cancelled() => {}
    }
}

async fn accept(api: Arc<Api>, listener: TcpListener, acceptor: TlsAcceptor, limits: Limits, tasks: TaskTracker) {
    let (shutdown, served) = (api.shutdown.clone(), tasks.clone());
    let limits = Arc::new(limits);
    let bounds = Arc::clone(&limits);
    let serve = move |stream, peer, place| {
        let (api, acceptor, limits) = (Arc::clone(&api), acceptor.clone(), Arc::clone(&limits));
        async move {
            if let Err(error) = serve_connection(api, stream, acceptor, &limits, place).await {
                tracing::debug!(%peer, error, "connection ended");
            }
        }
    };
    tokio::select! {
        never = listen::accept(listener, &bounds, &served, serve) => match never {},
        () = shutdown.cancelled() => {}
    }
}

async fn serve_connection(api: Arc<Api>, stream: TcpStream, acceptor: TlsAcceptor, limits: &Limits, place: Place) -> Result<(), BoxError> {
    let shutdown = api.shutdown.clone();
    listen::serve(stream, acceptor, limits, place, shutdown, |certificate| {
        let identity = certificate.and_then(|certificate| authn::from_certificate(certificate));
        // On the heap, and only until there is an answer: the server keeps room for the whole of it as long as a watch is open.
        move |request| Box::pin(http::handle(Arc::clone(&api), request, identity.clone()))
    })
    .await
}

impl Server {
    /// Serves on bound listeners too: what clients must find complete is written before.
    pub fn listen(&self, listeners: Vec<std::net::TcpListener>) -> Result<(), StartError> {
        for listener in listeners {
            listener.set_nonblocking(true).map_err(StartError::Listener)?;
            let listener = TcpListener::from_std(listener).map_err(StartError::Listener)?;
            let tasks = self.tasks.clone();
            self.tasks.spawn(accept(Arc::clone(&self.api), listener, self.acceptor.clone(), self.limits.clone(), tasks));
        }
        Ok(())
    }

    /// A client without a network: a service for `kube::Client::new`, with the same authorization as any other client.
    pub fn in_process(&self, identity: Identity) -> InProcess {
        let groups: Vec<&str> = identity.groups.iter().map(String::as_str).collect();
        InProcess { api: Arc::clone(&self.api), user: UserInfo::new(&identity.user, &groups), program: None }
    }

    /// What is served: the built-in kinds, and what is added.
    pub fn kinds(&self) -> &Kinds {
        &self.api.registry.kinds
    }

    /// Whether requests are answered.
    pub fn ready(&self) -> bool {
        self.api.is_ready()
    }

    /// Ends watches and connections, waits for what runs, writes out the store.
    pub async fn shutdown(self) {
        self.api.shutdown.cancel();
        self.tasks.close();
        if tokio::time::timeout(Duration::from_secs(2), self.tasks.wait()).await.is_err() {
            tracing::warn!("some connections did not end in time");
        }
        self.api.registry.store.close();
        if let Some(audit) = &self.api.audit {
            audit.close().await;
        }
    }
}

/// Requests answered in this process: see [`Server::in_process`].
#[derive(Clone)]
pub struct InProcess {
    api: Arc<Api>,
    user: UserInfo,
    program: Option<HeaderValue>,
}

impl InProcess {
    /// The program that asks: the user agent of requests that name none, and so the owner of the fields that they write.
    #[must_use]
    pub fn named(self, program: &'static str) -> Self {
        Self { program: Some(HeaderValue::from_static(program)), ..self }
    }
}

impl<B> tower_service::Service<Request<B>> for InProcess
where
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        if let Some(program) = &self.program {
            request.headers_mut().entry(USER_AGENT).or_insert_with(|| program.clone());
        }
        let (api, user) = (Arc::clone(&self.api), self.user.clone());
        Box::pin(async move { Ok(http::handle(api, request, Some(user)).await) })
    }
}
