//! Connections to webhooks that are kept between calls: a handshake costs more than most answers.
//!
//! A kept connection serves the same host, address and authorities alone, so that a changed configuration never uses an older one. It ends
//! when nothing has used it for [`IDLE`], when the peer closes it, or when there are too many.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use thiserror_ext::AsReport as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;

/// As long as Go's clients keep a connection that nothing uses.
const IDLE: Duration = Duration::from_secs(90);
/// Most unused connections to one peer (client-go's `MaxIdleConnsPerHost`), and together.
const MOST_OF_PEER: usize = 25;
const MOST: usize = 256;

/// Whom a connection leads to, and who vouched for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// The name that the certificate has.
    pub host: String,
    /// A name or an address, and a port.
    pub address: (String, u16),
    authorities: [u8; 32],
}

impl Peer {
    /// With these authorities, PEM.
    pub fn new(host: &str, address: (String, u16), authorities: &[u8]) -> Self {
        Self { host: host.to_owned(), address, authorities: Sha256::digest(authorities).into() }
    }
}

/// An open HTTP/1.1 connection. It ends when this is dropped.
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    task: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Why there is no response.
#[derive(Debug)]
pub enum Unanswered {
    /// The connection had ended: nothing of the request was sent.
    Unsent,
    Failed(String),
}

impl Connection {
    pub async fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Result<Self, String> {
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| error.to_report_string())?;
        let task = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = %error.as_report(), "a connection to a webhook ended");
            }
        });
        Ok(Self { sender, task })
    }

    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Unanswered> {
        if self.sender.ready().await.is_err() {
            return Err(Unanswered::Unsent);
        }
        self.sender.try_send_request(request).await.map_err(|mut error| match error.take_message() {
            Some(_) => Unanswered::Unsent,
            None => Unanswered::Failed(error.into_error().to_report_string()),
        })
    }
}

struct Kept {
    connection: Connection,
    since: Instant,
}

#[derive(Default)]
struct State {
    kept: HashMap<Peer, Vec<Kept>>,
    /// Whether a task lets old connections go.
    is_swept: bool,
}

/// Unused connections.
#[derive(Default)]
pub struct Pool(Arc<Mutex<State>>);

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn count(&self) -> usize {
        self.kept.values().map(Vec::len).sum()
    }

    /// Lets go what is closed or has not been used since `oldest`.
    fn sweep(&mut self, oldest: Option<Instant>) {
        for connections in self.kept.values_mut() {
            connections.retain(|kept| !kept.connection.sender.is_closed() && oldest.is_none_or(|oldest| kept.since > oldest));
        }
        self.kept.retain(|_, connections| !connections.is_empty());
    }
}

impl Pool {
    /// The connection to the peer that was used last, if one is kept.
    pub fn take(&self, peer: &Peer) -> Option<Connection> {
        let mut state = lock(&self.0);
        let connections = state.kept.get_mut(peer)?;
        let found = connections.pop();
        if connections.is_empty() {
            state.kept.remove(peer);
        }
        found.map(|kept| kept.connection)
    }

    /// Keeps a connection whose response has been read.
    pub fn keep(&self, peer: Peer, connection: Connection) {
        let mut state = lock(&self.0);
        state.sweep(None);
        if connection.sender.is_closed() || state.count() >= MOST {
            return;
        }
        let connections = state.kept.entry(peer).or_default();
        if connections.len() < MOST_OF_PEER {
            connections.push(Kept { connection, since: Instant::now() });
        }
        if !state.is_swept {
            state.is_swept = true;
            tokio::spawn(sweep(Arc::downgrade(&self.0)));
        }
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        lock(&self.0).count()
    }
}

/// Lets old connections go until none is kept.
async fn sweep(state: Weak<Mutex<State>>) {
    loop {
        tokio::time::sleep(IDLE / 4).await;
        let Some(state) = state.upgrade() else { return };
        let mut state = lock(&state);
        state.sweep(Instant::now().checked_sub(IDLE));
        if state.kept.is_empty() {
            state.is_swept = false;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn peer(host: &str, authorities: &str) -> Peer {
        Peer::new(host, ("10.0.0.1".into(), 443), authorities.as_bytes())
    }

    async fn open() -> (Connection, tokio::io::DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(4096);
        (Connection::over(ours).await.unwrap(), theirs)
    }

    fn request() -> Request<Full<Bytes>> {
        Request::post("/").body(Full::new(Bytes::from_static(b"x"))).unwrap()
    }

    #[tokio::test]
    async fn a_connection_is_used_again_for_the_same_peer_alone() {
        let pool = Pool::default();
        let (mut connection, mut server) = open().await;
        let serving = tokio::spawn(async move {
            for _ in 0..2 {
                let mut seen = Vec::new();
                while !seen.ends_with(b"\r\n\r\nx") {
                    let mut buffer = [0; 256];
                    let read = server.read(&mut buffer).await.unwrap();
                    seen.extend_from_slice(&buffer[..read]);
                }
                server.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
            }
        });
        let answer = connection.send(request()).await.unwrap();
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "ok");
        pool.keep(peer("a", "ca"), connection);
        assert!(pool.take(&peer("a", "other ca")).is_none() && pool.take(&peer("b", "ca")).is_none());
        let mut again = pool.take(&peer("a", "ca")).unwrap();
        assert_eq!(again.send(request()).await.unwrap().status(), 200);
        assert_eq!(pool.count(), 0);
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn what_the_peer_has_closed_sends_nothing_and_is_not_kept() {
        let pool = Pool::default();
        let (mut connection, server) = open().await;
        drop(server);
        assert!(matches!(connection.send(request()).await, Err(Unanswered::Unsent)));
        pool.keep(peer("a", "ca"), connection);
        assert_eq!(pool.count(), 0);
    }

    #[tokio::test]
    async fn a_peer_and_the_pool_have_a_limit() {
        let pool = Pool::default();
        let mut servers = Vec::new();
        for index in 0..MOST + MOST_OF_PEER {
            let (connection, server) = open().await;
            servers.push(server);
            pool.keep(peer(&format!("host-{}", index / (MOST_OF_PEER + 1)), "ca"), connection);
        }
        assert_eq!(lock(&pool.0).kept[&peer("host-0", "ca")].len(), MOST_OF_PEER);
        assert_eq!(pool.count(), MOST);
    }

    #[tokio::test(start_paused = true)]
    async fn unused_connections_end() {
        let mut state = State::default();
        let (connection, _server) = open().await;
        state.kept.insert(peer("a", "ca"), vec![Kept { connection, since: Instant::now() }]);
        state.sweep(Instant::now().checked_sub(IDLE));
        assert_eq!(state.count(), 1);
        state.sweep(Some(Instant::now()));
        assert_eq!(state.count(), 0);
    }
}
