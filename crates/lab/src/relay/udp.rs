//! UDP relay: one session per client, which ends when it is idle.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::time::Instant;

use super::{PAUSE, Targets};
use crate::protocol::HostPort;

/// Sessions end after so long without a packet in either direction.
pub(super) const IDLE: Duration = Duration::from_secs(60);
/// Most sessions of one port; packets of further clients are dropped.
const MOST: usize = 1024;
const PACKET: usize = 65_535;

struct Session {
    server: Arc<UdpSocket>,
    last: Instant,
}

type Sessions = Arc<Mutex<HashMap<SocketAddr, Session>>>;

pub(super) async fn relay(socket: UdpSocket, port: HostPort, targets: Arc<dyn Targets>, idle: Duration) {
    let socket = Arc::new(socket);
    let sessions = Sessions::default();
    let mut replies = tokio::task::JoinSet::new();
    let mut packet = vec![0; PACKET];
    loop {
        while replies.try_join_next().is_some() {}
        let (length, client) = match socket.recv_from(&mut packet).await {
            Ok(got) => got,
            Err(error) => {
                tracing::debug!(%port, %error, "no packet received");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let known = touch(&sessions, client);
        let server = match known {
            Some(server) => server,
            None => match open(&sessions, client, port, &*targets).await {
                Ok(server) => {
                    replies.spawn(carry_back(Arc::clone(&socket), Arc::clone(&server), client, Arc::clone(&sessions), idle));
                    server
                }
                Err(error) => {
                    tracing::debug!(%port, %client, %error, "packet dropped");
                    continue;
                }
            },
        };
        if let Err(error) = server.send(&packet[..length]).await {
            tracing::debug!(%port, %client, %error, "packet lost");
        }
    }
}

fn touch(sessions: &Sessions, client: SocketAddr) -> Option<Arc<UdpSocket>> {
    let mut sessions = sessions.lock().unwrap_or_else(PoisonError::into_inner);
    let session = sessions.get_mut(&client)?;
    session.last = Instant::now();
    Some(Arc::clone(&session.server))
}

async fn open(sessions: &Sessions, client: SocketAddr, port: HostPort, targets: &dyn Targets) -> io::Result<Arc<UdpSocket>> {
    if sessions.lock().unwrap_or_else(PoisonError::into_inner).len() >= MOST {
        return Err(io::Error::other("too many sessions"));
    }
    let target = targets.select(port).into_iter().next().ok_or_else(|| io::Error::other("no node is ready to take it"))?;
    let server = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await?;
    server.connect(target).await?;
    let server = Arc::new(server);
    let session = Session { server: Arc::clone(&server), last: Instant::now() };
    sessions.lock().unwrap_or_else(PoisonError::into_inner).insert(client, session);
    Ok(server)
}

/// Carries replies until the session was idle, or its target refuses.
async fn carry_back(socket: Arc<UdpSocket>, server: Arc<UdpSocket>, client: SocketAddr, sessions: Sessions, idle: Duration) {
    let mut packet = vec![0; PACKET];
    let mut until = Instant::now() + idle;
    loop {
        match tokio::time::timeout_at(until, server.recv(&mut packet)).await {
            Ok(Ok(length)) => {
                let _ = socket.send_to(&packet[..length], client).await;
                touch(&sessions, client);
            }
            // Refused: the next packet of the client selects a target again.
            Ok(Err(_)) => break,
            Err(_) => {}
        }
        let last = sessions.lock().unwrap_or_else(PoisonError::into_inner).get(&client).map(|s| s.last);
        match last {
            Some(last) if last + idle > Instant::now() => until = last + idle,
            _ => break,
        }
    }
    sessions.lock().unwrap_or_else(PoisonError::into_inner).remove(&client);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Transport;

    #[tokio::test]
    async fn sessions_carry_replies_and_end_when_idle() {
        let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let target = server.local_addr().unwrap();
        let entry = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = entry.local_addr().unwrap();
        let port = HostPort { protocol: Transport::Udp, port: address.port() };
        let task = tokio::spawn(relay(entry, port, Arc::new(move |_| vec![target]), Duration::from_millis(100)));
        let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let mut buffer = [0; 100];
        let mut sources = Vec::new();
        for pause in [0, 20, 300] {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            client.send_to(b"ask", address).await.unwrap();
            let (n, from) = server.recv_from(&mut buffer).await.unwrap();
            assert_eq!(&buffer[..n], b"ask");
            server.send_to(b"answer", from).await.unwrap();
            let (n, from_entry) = client.recv_from(&mut buffer).await.unwrap();
            assert_eq!((&buffer[..n], from_entry), (&b"answer"[..], address));
            sources.push(from);
        }
        assert_eq!(sources[0], sources[1], "one session");
        assert_ne!(sources[1], sources[2], "a new one after the idle time");
        task.abort();
    }
}
