//! Cluster DNS for the embedded control plane.
//!
//! Flow: informers give rows of Services, EndpointSlices and namespaces; each changed row rebuilds the names of its Service in
//! [`names::Names`] (pure); [`answer`] turns a question into an answer (pure); [`server`] serves UDP and TCP.
//! It answers what the specification for Kubernetes DNS 1.1.0 and CoreDNS's `kubernetes` plug-in (with `pods insecure`, TTL 5) answer.
//! Guarantees: an answer never waits for the API; malformed packets cost a FORMERR or nothing, never more.
//! Not covered: zone transfers, caching, DNSSEC. Names outside the cluster go to an upstream server if there is one, else REFUSED.

mod answer;
mod forward;
mod names;
mod rows;
mod server;

use std::{
    net::SocketAddr,
    sync::{Arc, PoisonError, RwLock},
};

use cluster::{ApiServer, Client, Informer, Key, Selection};
use k8s_openapi::api::{
    core::v1::{Namespace, Service},
    discovery::v1::EndpointSlice,
};
use kube::Api;
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;

use names::{Names, ZoneError};
use rows::{ServiceRow, SliceRow};

/// Why the server could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cluster's domain is no domain name.
    #[error("{domain:?} is no domain name for a cluster: use one such as cluster.local")]
    Domain {
        /// The given text.
        domain: String,
        #[source]
        source: ZoneError,
    },
    /// A socket failed for good.
    #[error("serving DNS over {transport} failed")]
    Serve {
        /// "UDP", or "UDP and TCP".
        transport: &'static str,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
}

/// Settings of the server besides its API client.
#[derive(Debug)]
pub struct Config {
    /// The watches, shared with the other parts of this process.
    pub api: ApiServer,
    /// Where questions come in.
    pub udp: Vec<UdpSocket>,
    /// Where questions come in that need large answers.
    pub tcp: Vec<TcpListener>,
    /// The cluster's domain, such as `cluster.local`.
    pub domain: String,
    /// Servers of names outside the cluster.
    pub upstream: Option<SocketAddr>,
}

type Shared = Arc<RwLock<Names>>;

/// Answers questions until a socket fails; drop the future to stop.
///
/// # Errors
/// [`Error::Domain`] at once for an impossible domain, [`Error::Serve`] when the UDP socket fails.
pub async fn run(client: Client, config: Config) -> Result<(), Error> {
    let names = Names::new(&config.domain).map_err(|source| Error::Domain { domain: config.domain.clone(), source })?;
    let names: Shared = Arc::new(RwLock::new(names));
    let informers = follow(&client, &config.api, &names);
    let resolver = Arc::new(server::Resolver::new(names, config.upstream));
    let mut servers = JoinSet::new();
    for socket in config.udp {
        servers.spawn(server::udp(socket, resolver.clone()));
    }
    for listener in config.tcp {
        let resolver = resolver.clone();
        servers.spawn(async move { match server::tcp(listener, resolver).await {} });
    }
    let ended = servers.join_next().await;
    drop(informers);
    match ended {
        Some(Ok(source)) => Err(Error::Serve { transport: "UDP", source }),
        Some(Err(panicked)) => Err(Error::Serve { transport: "UDP and TCP", source: std::io::Error::other(panicked) }),
        None => Ok(()),
    }
}

struct Informers {
    _services: Informer<ServiceRow>,
    _slices: Informer<SliceRow>,
    _namespaces: Informer<()>,
}

/// Keeps the names true.
fn follow(client: &Client, api: &ApiServer, names: &Shared) -> Informers {
    let services = Informer::start(Api::<Service>::all(client.clone()), Selection::all().of(api), |service| Some(ServiceRow::new(service)));
    let slices = Informer::start(Api::<EndpointSlice>::all(client.clone()), Selection::labels(rows::SERVICE_NAME).of(api), SliceRow::new);
    let namespaces = Informer::start(Api::<Namespace>::all(client.clone()), Selection::all().of(api), |_| Some(()));

    let (table, all_services, all_slices) = (names.clone(), services.clone(), slices.clone());
    let rebuild = Arc::new(move |key: &Key| {
        // Locked first: of two handlers at once, the later one must also be the one that reads the newer rows.
        let mut table = table.write().unwrap_or_else(PoisonError::into_inner);
        let members: Vec<Arc<SliceRow>> =
            all_slices.in_namespace(&key.ns).into_iter().map(|(_, slice)| slice).filter(|slice| slice.service == key.name).collect();
        let service = all_services.get(key);
        table.set_service(key, service.as_deref(), &members);
    });
    let of_service = rebuild.clone();
    services.subscribe(move |change| of_service(change.key));
    slices.subscribe(move |change| {
        for slice in [change.old, change.new].into_iter().flatten() {
            rebuild(&Key::new(&change.key.ns, &slice.service));
        }
    });
    let table = names.clone();
    namespaces.subscribe(move |change| {
        table.write().unwrap_or_else(PoisonError::into_inner).set_namespace(&change.key.name, change.new.is_some());
    });
    Informers { _services: services, _slices: slices, _namespaces: namespaces }
}
