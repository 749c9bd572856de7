//! TCP listeners and connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

use super::addresses::Lease;
use super::selector::Choice;
use super::{Service, Shared};
use crate::table::BackendAddress;

/// How long backends are waited for, one after the other.
const DIAL: [Duration; 4] = [Duration::from_millis(250), Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2)];
/// How many connections may wait to be accepted.
const BACKLOG: u32 = 4096;
/// Without file descriptors or memory there is nothing to do but to wait.
const EXHAUSTED: Duration = Duration::from_millis(50);

/// Listens, so that connections wait from now on.
pub fn listen(at: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if at.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // On Windows this would let others take the port.
    #[cfg(not(windows))]
    socket.set_reuseaddr(true)?;
    socket.bind(at)?;
    socket.listen(BACKLOG)
}

/// What a client has not acknowledged yet when its connection ends needs the address a little longer.
const LINGER: Duration = Duration::from_secs(1);

/// Takes connections and has each relayed, for ever. The lease comes first, to go last: waiting clients learn of the end through it.
pub async fn serve(lease: Option<Arc<Lease>>, listener: TcpListener, service: Arc<Service>, shared: Arc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((client, peer)) => {
                let (service, task, lease) = (service.clone(), shared.clone(), lease.clone());
                let relayed = async move {
                    tokio::select! {
                        () = relay(client, peer, &service, &task) => {}
                        () = task.cut.cancelled() => {}
                    }
                    // The address stays until its last connection ends.
                    if lease.as_ref().is_some_and(|lease| Arc::strong_count(lease) == 1) {
                        let _ = timeout(LINGER, task.cut.cancelled()).await;
                    }
                    drop(lease);
                };
                shared.connections.spawn(relayed);
            }
            // The client left before it was taken.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(service = service.name(), "connections wait: {error}");
                tokio::time::sleep(EXHAUSTED).await;
            }
        }
    }
}

async fn relay(client: TcpStream, peer: SocketAddr, service: &Service, shared: &Shared) {
    let Some(backend) = dial(peer, service, shared).await else {
        // No backend answers: the client is refused, as without a listener.
        let _ = client.set_zero_linger();
        return;
    };
    for stream in [&client, &backend] {
        let _ = stream.set_nodelay(true);
    }
    // Which end failed, and how, only they know.
    let _ = super::relay::both_ways(client, backend, &shared.relays, &shared.cut).await;
}

/// A connection to the first backend that answers.
async fn dial(peer: SocketAddr, service: &Service, shared: &Shared) -> Option<TcpStream> {
    let mut failed: Vec<BackendAddress> = Vec::new();
    for patience in DIAL {
        let choice = service.selector().choose(peer.ip().to_canonical(), &shared.inside, Instant::now(), &failed);
        let backend = match choice {
            Choice::Backend(backend) => backend,
            // After each has failed once they get another, longer chance.
            Choice::Refuse if !failed.is_empty() => {
                failed.clear();
                continue;
            }
            Choice::Refuse | Choice::Ignore => return None,
        };
        match timeout(patience, TcpStream::connect((backend.address, backend.port))).await {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => tracing::debug!(service = service.name(), "{backend} does not answer: {error}"),
            Err(_) => tracing::debug!(service = service.name(), "{backend} does not answer within {patience:?}"),
        }
        failed.push(backend);
    }
    None
}
