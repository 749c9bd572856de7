//! Connections to the API server that many nodes share: HTTP/2, a few dozen streams each.
//!
//! The pool's own user acts as the node that a client is for (`Impersonate-User`), so that the API server authorizes each request as that
//! node's. A connection that breaks is made again by the next request, which fails when that is not possible; callers try again as they do
//! with connections of their own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Request, Response, Uri, uri};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kube::client::{Body, ConfigExt as _};
use kube::config::{Config, KubeConfigOptions, Kubeconfig, KubeconfigError};
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;

/// Nodes of one connection. Each has five streams open for its watches, and the API server allows 200 at once.
const NODES_PER_CONNECTION: usize = 20;
/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(10);
/// How often a connection is probed that brings nothing, and how long its answer may take.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(20));

const USER: HeaderName = HeaderName::from_static("impersonate-user");
const GROUP: HeaderName = HeaderName::from_static("impersonate-group");
const NODES: HeaderValue = HeaderValue::from_static("system:nodes");

/// Why the API server cannot be reached through the pool.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    #[error("cannot use the kubeconfig {}: check that it exists and is whole", .path.display())]
    Kubeconfig { path: PathBuf, source: Box<KubeconfigError> },
    #[error("cannot use the certificate or key in {}", .path.display())]
    Identity { path: PathBuf, source: Box<kube::Error> },
    #[error("cannot connect to {server}: the address has no host")]
    NoHost { server: String },
    #[error("cannot connect to {server}: the host is no name of a certificate")]
    Name { server: String, source: InvalidDnsNameError },
    #[error("cannot connect to {server}")]
    Connect { server: String, source: std::io::Error },
    #[error("cannot connect to {server}: no answer within {} s", CONNECT.as_secs())]
    Late { server: String },
    #[error("the connection to the API server broke")]
    Http(#[from] hyper::Error),
    #[error("a request has a path that is none")]
    Path(#[from] http::Error),
}

/// The connections, made as they are needed.
pub struct Pool {
    server: Server,
    connections: Vec<Mutex<Option<SendRequest<Body>>>>,
}

/// Where the API server is, and by which certificates both sides know each other.
struct Server {
    scheme: uri::Scheme,
    authority: uri::Authority,
    host: String,
    port: u16,
    tls: TlsConnector,
}

impl Pool {
    /// A pool for so many nodes, with the user of a kubeconfig.
    ///
    /// # Errors
    /// When the kubeconfig cannot be used. No connection is made here.
    pub async fn new(kubeconfig: &Path, nodes: usize) -> Result<Arc<Self>, PoolError> {
        cluster::install_crypto_provider();
        let unusable = |source| PoolError::Kubeconfig { path: kubeconfig.to_owned(), source: Box::new(source) };
        let read = Kubeconfig::read_from(kubeconfig).map_err(unusable)?;
        let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.map_err(unusable)?;
        let identity = |source| PoolError::Identity { path: kubeconfig.to_owned(), source: Box::new(source) };
        let mut tls = config.rustls_client_config().map_err(identity)?;
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let url = config.cluster_url.clone();
        let server = url.to_string();
        let (Some(authority), Some(host)) = (url.authority().cloned(), url.host().map(str::to_owned)) else {
            return Err(PoolError::NoHost { server });
        };
        let server = Server {
            scheme: url.scheme().cloned().unwrap_or(uri::Scheme::HTTPS),
            host: host.trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(443),
            authority,
            tls: TlsConnector::from(Arc::new(tls)),
        };
        let connections = (0..nodes.div_ceil(NODES_PER_CONNECTION)).map(|_| Mutex::default()).collect();
        Ok(Arc::new(Self { server, connections }))
    }

    /// The client of the node `number` (from 0), which acts as `user` in the group of nodes.
    pub fn client(self: &Arc<Self>, number: usize, user: &str) -> kube::Client {
        let (pool, place) = (self.clone(), number / NODES_PER_CONNECTION);
        // Names of nodes are DNS names, which are values of headers.
        let user = HeaderValue::from_str(user).ok();
        let service = tower::service_fn(move |mut request: Request<Body>| {
            let pool = pool.clone();
            if let Some(user) = &user {
                request.headers_mut().insert(USER, user.clone());
                request.headers_mut().insert(GROUP, NODES);
            }
            async move { pool.send(place, request).await }
        });
        kube::Client::new(service, "default")
    }

    async fn send(&self, place: usize, mut request: Request<Body>) -> Result<Response<Incoming>, PoolError> {
        let path = request.uri().path_and_query().cloned().unwrap_or_else(|| uri::PathAndQuery::from_static("/"));
        let whole = Uri::builder().scheme(self.server.scheme.clone()).authority(self.server.authority.clone()).path_and_query(path);
        *request.uri_mut() = whole.build()?;
        let mut connection = self.connection(place).await?;
        connection.ready().await?;
        Ok(connection.send_request(request).await?)
    }

    /// The connection of a place; the first request that finds none makes it, and the others wait for that.
    async fn connection(&self, place: usize) -> Result<SendRequest<Body>, PoolError> {
        let mut held = self.connections[place].lock().await;
        if let Some(open) = held.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(open.clone());
        }
        let server = || self.server.authority.to_string();
        let opened = tokio::time::timeout(CONNECT, self.server.connect()).await.map_err(|_| PoolError::Late { server: server() })??;
        Ok(held.insert(opened).clone())
    }
}

impl Server {
    async fn connect(&self) -> Result<SendRequest<Body>, PoolError> {
        let server = || self.authority.to_string();
        let failed = |source| PoolError::Connect { server: server(), source };
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let name = ServerName::try_from(self.host.clone()).map_err(|source| PoolError::Name { server: server(), source })?;
        let stream = self.tls.connect(name, stream).await.map_err(failed)?;
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).keep_alive_interval(KEEP_ALIVE.0).keep_alive_timeout(KEEP_ALIVE.1);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to the API server ended");
            }
        });
        Ok(sender)
    }
}
