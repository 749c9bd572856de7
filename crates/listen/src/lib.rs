//! TCP servers within bounds: one accept loop for every HTTP and HTTPS server and for DNS over TCP, and the HTTP connections.
//!
//! Guarantees: a listener holds no more than [`Limits::connections`], and no more than [`Limits::per_peer`] of one address; when there is no
//! room, the connection that has been unauthenticated for longest makes room for the new one, so that idle connections keep nobody out; a
//! connection that says nothing ends.

mod connection;
mod places;
#[cfg(test)]
mod tests;

pub use connection::{serve, serve_plain};
pub use places::Place;
pub use tokio_util::sync::CancellationToken;
pub use tokio_util::task::TaskTracker;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use tokio::net::{TcpListener, TcpStream};

/// Bounds of one listener.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Most connections at once.
    pub connections: usize,
    /// Most connections at once of one peer: an IPv4 address, or the /64 of an IPv6 address.
    pub per_peer: usize,
    /// Longest TLS handshake.
    pub handshake: Duration,
    /// Longest time until the head of the first request is there.
    pub first_request: Duration,
    /// Longest time between two requests, and for the head of each. Longer than the 90 seconds after which clients of Go and hyper let an
    /// idle connection go, so that none is closed which is about to be used.
    pub idle: Duration,
}

impl Limits {
    /// So many connections, with the usual times (`ReadHeaderTimeout` of upstream's servers is 32 seconds).
    pub const fn new(connections: usize, per_peer: usize) -> Self {
        let seconds = Duration::from_secs;
        Self { connections, per_peer, handshake: seconds(10), first_request: seconds(32), idle: seconds(120) }
    }
}

impl Default for Limits {
    /// What the API server allows.
    fn default() -> Self {
        Self::new(4096, 2048)
    }
}

/// Accepts for ever; drop the future to stop. Each connection is served by a task of its own, which ends when its place is given away.
pub async fn accept<F>(listener: TcpListener, limits: &Limits, tasks: &TaskTracker, serve: impl Fn(TcpStream, SocketAddr, Place) -> F) -> Infallible
where
    F: Future<Output = ()> + Send + 'static,
{
    let places = places::Places::new(limits.connections, limits.per_peer);
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let Some(place) = places.take(peer.ip()) else {
                    tracing::warn!(%peer, "too many connections: refused");
                    continue;
                };
                let evicted = place.clone();
                let work = serve(stream, peer, place);
                tasks.spawn(async move {
                    tokio::select! {
                        () = work => {}
                        () = evicted.evicted() => tracing::debug!(%peer, "too many connections: a silent one was closed"),
                    }
                });
            }
            Err(error) => {
                // A client that went away, or no descriptor is left: connections that end give theirs back.
                tracing::warn!(%error, "accepting a connection failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Serves plain HTTP/1.1 for ever; drop the future to stop: the connections then end with the requests that run. Clients of such a server
/// are not authenticated: when there is no room, the newest connection replaces the oldest, unless the service [keeps](Place::keep) it.
pub async fn serve_http<S, F, B>(listener: TcpListener, limits: Limits, service: S) -> Infallible
where
    S: Fn(Request<Incoming>) -> F + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (service, shutdown) = (Arc::new(service), CancellationToken::new());
    let _ends = shutdown.clone().drop_guard();
    let bounds = limits.clone();
    let serve = move |stream, peer, place| {
        let (service, limits, shutdown) = (Arc::clone(&service), limits.clone(), shutdown.clone());
        async move {
            if let Err(error) = serve_plain(stream, &limits, place, shutdown, move |request| service(request)).await {
                tracing::debug!(%peer, error, "a connection ended with an error");
            }
        }
    };
    accept(listener, &bounds, &TaskTracker::new(), serve).await
}
