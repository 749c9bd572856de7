//! The backend for any system: this process listens on VIPs and relays bytes itself.
//!
//! A Service's addresses are put on an interface of this host while it is served, by calls of the system, and taken away
//! with its last connection. TCP is relayed, on Linux by splice, so that bytes never enter this process; datagrams go over a
//! socket for each client. Changes of a VIP reach new connections; those that there are go on.
//! Not here: SCTP, and the client's own address, which backends do not see.

mod addresses;
mod relay;
mod selector;
mod tcp;
mod udp;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use host::{Addresses, AddressesError};
use ipnet::IpNet;
use thiserror_ext::AsReport as _;
use tokio::net::UdpSocket;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backend::{Failure, Outcome, Pass};
use crate::node_ports::NodePorts;
use crate::table::{IpFamily, Kind, Protocol, Table, Unserved, Vip, VipAddress, VipKey};
use addresses::{Lease, Pool};
use relay::Relays;
use selector::{BackendSelector, Inside};

/// Settings of the backend: the node and the configuration.
pub struct Settings {
    /// Where addresses of Services are put; without one, only node ports and addresses that the host has are served.
    pub interface: Option<Arc<dyn Addresses>>,
    /// The node's own addresses, the primary one of each family first.
    pub node_ips: Vec<IpAddr>,
    /// On which of them node ports listen; 127.0.0.1 may be one.
    pub node_ports: NodePorts,
    /// Every pod's address lies in these.
    pub pods: Vec<IpNet>,
    /// Datagrams of a client that paused for so long may go to another backend.
    pub udp_idle: Duration,
}

/// What all connections share.
struct Shared {
    inside: Inside,
    udp_idle: Duration,
    relays: Arc<Relays>,
    connections: TaskTracker,
    /// Ends connections.
    cut: CancellationToken,
}

/// A VIP while it is served.
struct Service {
    name: Arc<str>,
    selector: Mutex<BackendSelector>,
}

impl Service {
    fn name(&self) -> &str {
        &self.name
    }

    fn selector(&self) -> MutexGuard<'_, BackendSelector> {
        self.selector.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Running {
    service: Arc<Service>,
    sockets: BTreeMap<SocketAddr, Listening>,
}

/// Listens while it lives.
struct Listening(AbortHandle);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Serves the table from this process.
pub struct Userspace {
    pool: Arc<Pool>,
    node_ports: Vec<IpAddr>,
    shared: Arc<Shared>,
    running: BTreeMap<VipKey, Running>,
    /// Addresses of VIPs without backends: the host has them, so it refuses by itself.
    refusing: BTreeMap<VipKey, Lease>,
}

impl Userspace {
    /// A backend that has not touched anything yet.
    pub fn new(settings: Settings) -> Self {
        raise_limits();
        let host: Vec<IpAddr> = settings.node_ips.iter().copied().chain([Ipv4Addr::LOCALHOST.into()]).collect();
        let shared = Shared {
            inside: Inside { pods: settings.pods, node: settings.node_ips.clone() },
            udp_idle: settings.udp_idle,
            relays: Arc::default(),
            connections: TaskTracker::new(),
            cut: CancellationToken::new(),
        };
        let node_ports = settings.node_ports.select(&settings.node_ips, &host);
        Self { pool: Pool::new(settings.interface), node_ports, shared: Arc::new(shared), running: BTreeMap::new(), refusing: BTreeMap::new() }
    }

    /// Makes the VIPs of `dirty` what the table says, or with `full` every one, and the interface's addresses too.
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The interface cannot be read or written.
    pub fn sync(&mut self, desired: &Table, dirty: &BTreeSet<VipKey>, full: bool) -> Result<Outcome, AddressesError> {
        let mut outcome = Outcome::default();
        if full {
            outcome.writes += self.pool.repair()?;
        }
        let mut keys: Vec<VipKey> = if full {
            let there = self.running.keys().chain(desired.iter().map(|(key, _)| key));
            there.copied().collect::<BTreeSet<_>>().into_iter().collect()
        } else {
            dirty.iter().copied().collect()
        };
        // What goes makes room for what comes; names and the API server come first.
        keys.sort_by_key(|key| desired.get(key).map(|vip| !vip.urgent));
        for key in keys {
            match desired.get(&key) {
                Some(vip) if is_served(vip) => {
                    self.serve(key, vip, &mut outcome);
                    self.refusing.remove(&key);
                }
                vip => {
                    self.refuse(key, vip, &mut outcome);
                    outcome.writes += self.running.remove(&key).map_or(0, |running| running.sockets.len());
                }
            }
        }
        if full {
            outcome.writes += self.pool.settle()?;
        }
        Ok(outcome)
    }

    /// Has the host refuse VIPs without backends; where packets are to be dropped, the host has no such address.
    fn refuse(&mut self, key: VipKey, vip: Option<&Arc<Vip>>, outcome: &mut Outcome) {
        let refused = vip.is_some_and(|vip| vip.kind != Kind::HealthCheck && vip.unserved == Unserved::Reject);
        match key.address {
            VipAddress::Ip(ip) if refused && !self.refusing.contains_key(&key) => match self.pool.lease(ip) {
                Ok(lease) => drop(self.refusing.insert(key, lease)),
                Err(error) => outcome.failures.push(Failure { key, reason: error.to_report_string() }),
            },
            _ if refused => {}
            _ => drop(self.refusing.remove(&key)),
        }
    }

    fn serve(&mut self, key: VipKey, vip: &Arc<Vip>, outcome: &mut Outcome) {
        let mut fail = |reason: String| outcome.failures.push(Failure { key, reason });
        if key.protocol == Protocol::Sctp {
            self.running.remove(&key);
            return fail("SCTP is not carried in user space; choose mode nftables or kernelspace, or another port".into());
        }
        let own = match key.address {
            VipAddress::Ip(ip) => Some(ip),
            VipAddress::Node(_) => None,
        };
        let running = self.running.entry(key).or_insert_with(|| Running {
            service: Arc::new(Service { name: vip.service.clone(), selector: Mutex::new(BackendSelector::new(vip.clone(), own)) }),
            sockets: BTreeMap::new(),
        });
        running.service.selector().update(vip.clone());
        let places = places(&key, &self.node_ports);
        running.sockets.retain(|at, _| places.contains(at));
        for at in places {
            if running.sockets.contains_key(&at) {
                continue;
            }
            match open(at, key, &running.service, &self.shared, &self.pool) {
                Ok(listening) => {
                    running.sockets.insert(at, listening);
                    outcome.writes += 1;
                }
                Err(error) => fail(error.to_report_string()),
            }
        }
    }

    /// How many connections there are.
    pub fn connections(&self) -> usize {
        self.shared.connections.len()
    }

    /// Takes no more connections, waits until those that there are end or `limit` has passed, and takes the addresses away.
    /// Returns how many connections were cut.
    pub async fn drain(mut self, limit: Duration) -> usize {
        self.running.clear();
        self.refusing.clear();
        self.shared.connections.close();
        let _ = tokio::time::timeout(limit, self.shared.connections.wait()).await;
        let cut = self.shared.connections.len();
        self.shared.cut.cancel();
        self.shared.connections.wait().await;
        cut
    }
}

impl Pass for Userspace {
    type Error = AddressesError;

    fn pass(&mut self, table: &Table, dirty: &BTreeSet<VipKey>, full: bool) -> Result<Outcome, AddressesError> {
        self.sync(table, dirty, full)
    }

    async fn stop(self, limit: Duration) {
        self.drain(limit).await;
    }
}

impl Drop for Userspace {
    fn drop(&mut self) {
        self.running.clear();
        self.refusing.clear();
        self.shared.cut.cancel();
        self.pool.clear();
    }
}

/// Without backends nobody listens: the host refuses by itself, or is silent. The node's own sockets answer what asks for its health.
fn is_served(vip: &Vip) -> bool {
    vip.kind != Kind::HealthCheck && !(vip.backends.is_empty() && vip.inside.as_deref().unwrap_or_default().is_empty())
}

/// Where a VIP listens.
fn places(key: &VipKey, node_ports: &[IpAddr]) -> Vec<SocketAddr> {
    match key.address {
        VipAddress::Ip(ip) => vec![SocketAddr::new(ip, key.port)],
        VipAddress::Node(family) => node_ports.iter().filter(|ip| IpFamily::of(**ip) == family).map(|ip| SocketAddr::new(*ip, key.port)).collect(),
    }
}

/// Why a VIP is not listened on.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error("{0} is taken by another program; end it, or change the Service's port")]
    Taken(SocketAddr),
    #[error("this host has no address {0}; name an interface for addresses of Services: --service-interface")]
    NoAddress(IpAddr),
    #[error("cannot listen on {at}")]
    Listen { at: SocketAddr, source: io::Error },
    #[error(transparent)]
    Interface(#[from] AddressesError),
}

fn open(at: SocketAddr, key: VipKey, service: &Arc<Service>, shared: &Arc<Shared>, pool: &Arc<Pool>) -> Result<Listening, OpenError> {
    let lease: Option<Arc<Lease>> = match key.address {
        VipAddress::Ip(ip) => Some(Arc::new(pool.lease(ip)?)),
        VipAddress::Node(_) => None,
    };
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => OpenError::Taken(at),
        io::ErrorKind::AddrNotAvailable if !pool.has_interface() => OpenError::NoAddress(at.ip()),
        _ => OpenError::Listen { at, source },
    };
    let (service, shared) = (service.clone(), shared.clone());
    let task = match key.protocol {
        Protocol::Udp => {
            let open = || -> io::Result<UdpSocket> {
                let socket = std::net::UdpSocket::bind(at)?;
                socket.set_nonblocking(true)?;
                UdpSocket::from_std(socket)
            };
            let socket = Arc::new(open().map_err(failed)?);
            tokio::spawn(async move {
                udp::serve(socket, service, shared).await;
                drop(lease);
            })
        }
        _ => tokio::spawn(tcp::serve(lease, tcp::listen(at).map_err(failed)?, service, shared)),
    };
    Ok(Listening(task.abort_handle()))
}

/// Each connection needs two file descriptors: as many as the system allows.
fn raise_limits() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let limit = getrlimit(Resource::Nofile);
        if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
            tracing::warn!("the limit of open files stays at {:?}: {error}", limit.current);
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
