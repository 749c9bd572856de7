//! UDP: each client has a socket of its own towards its backend, so that answers find their way back.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tokio::net::UdpSocket;
use tokio::task::JoinSet;

use super::selector::Choice;
use super::{Service, Shared};
use crate::table::BackendAddress;

/// Most clients of one VIP at once; further ones get no answer.
const MOST_CLIENTS: usize = 8192;
/// The largest datagram.
const LARGEST: usize = 65_536;

struct Session {
    socket: Arc<UdpSocket>,
    backend: BackendAddress,
    /// When the client last sent, in milliseconds since the VIP began.
    heard: Arc<AtomicU64>,
}

/// Takes datagrams and leads them, for ever. Sessions end with the VIP, with their backend, or when idle.
pub async fn serve(vip: Arc<UdpSocket>, service: Arc<Service>, shared: Arc<Shared>) {
    let began = Instant::now();
    let mut sessions: HashMap<SocketAddr, Session> = HashMap::new();
    let mut answers: JoinSet<SocketAddr> = JoinSet::new();
    loop {
        tokio::select! {
            Some(ended) = answers.join_next(), if !answers.is_empty() => {
                // Of a session that was replaced the newer one stays: its socket is another.
                if let Ok(client) = ended
                    && sessions.get(&client).is_some_and(|session| Arc::strong_count(&session.socket) == 1)
                {
                    sessions.remove(&client);
                }
            }
            ready = vip.readable() => {
                if ready.is_err() {
                    continue;
                }
                receive(&vip, |datagram, client| {
                    let known = sessions.get(&client).filter(|s| service.selector().admits(client.ip().to_canonical(), &shared.inside, &s.backend));
                    if known.is_none() {
                        sessions.remove(&client);
                        let room = sessions.len() < MOST_CLIENTS;
                        let Some(session) = begin(client, datagram, &service, &shared, began).filter(|_| room) else { return };
                        answers.spawn(answer(vip.clone(), client, session.socket.clone(), session.heard.clone(), began, shared.clone()));
                        sessions.insert(client, session);
                    } else if let Some(session) = known {
                        session.heard.store(millis(began), Ordering::Relaxed);
                        // What does not fit now is lost, as on any wire.
                        let _ = session.socket.try_send(datagram);
                    }
                });
            }
        }
    }
}

fn millis(began: Instant) -> u64 {
    began.elapsed().as_millis() as u64
}

/// Hands over every datagram that is there. The buffer lives on the stack only now: there may be thousands of sessions.
fn receive(socket: &UdpSocket, mut each: impl FnMut(&[u8], SocketAddr)) {
    let mut buffer = [0; LARGEST];
    loop {
        match socket.try_recv_from(&mut buffer) {
            Ok((count, client)) => each(&buffer[..count], client),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            // A client that went: Windows says so on this socket.
            Err(_) => {}
        }
    }
}

/// A session, with its first datagram on the way.
fn begin(client: SocketAddr, datagram: &[u8], service: &Service, shared: &Shared, began: Instant) -> Option<Session> {
    let Choice::Backend(backend) = service.selector().choose(client.ip().to_canonical(), &shared.inside, Instant::now(), &[]) else { return None };
    let any: IpAddr = if backend.address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let open = || -> io::Result<UdpSocket> {
        let socket = std::net::UdpSocket::bind((any, 0))?;
        socket.connect((backend.address, backend.port))?;
        socket.set_nonblocking(true)?;
        // The runtime does not know yet that a new socket takes datagrams.
        let _ = socket.send(datagram);
        UdpSocket::from_std(socket)
    };
    match open() {
        Ok(socket) => Some(Session { socket: Arc::new(socket), backend, heard: Arc::new(millis(began).into()) }),
        Err(error) => {
            tracing::warn!(service = service.name(), "a datagram to {backend} is lost: {error}");
            None
        }
    }
}

/// Sends what the backend answers to the client until neither has sent anything for a while; returns the client.
async fn answer(
    vip: Arc<UdpSocket>,
    client: SocketAddr,
    socket: Arc<UdpSocket>,
    heard: Arc<AtomicU64>,
    began: Instant,
    shared: Arc<Shared>,
) -> SocketAddr {
    let idle = shared.udp_idle;
    loop {
        match tokio::time::timeout(idle, socket.readable()).await {
            Ok(Ok(())) => receive(&socket, |datagram, _| drop(vip.try_send_to(datagram, client))),
            Ok(Err(_)) => return client,
            Err(_) if u128::from(millis(began) - heard.load(Ordering::Relaxed)) < idle.as_millis() => {}
            Err(_) => return client,
        }
    }
}
