//! Clients over TLS and HTTP/2: as little work a request as can be, since they share the processors with the server that is measured.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use bytes::{Buf as _, Bytes, BytesMut};
use h2::RecvStream;
use h2::client::SendRequest;
use http::header::{ACCEPT_ENCODING, CONTENT_TYPE};
use http::{Method, Request};
use pki::{Ca, CertRequest};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

/// As Go's clients: what a stream and a connection may hold unread.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 1 << 30;

/// A server, and who asks it.
#[derive(Clone)]
pub struct Access {
    at: SocketAddr,
    config: Arc<ClientConfig>,
}

impl Access {
    /// As `user` in `group`, with a client certificate of `ca`.
    pub fn new(ca: &Ca, at: SocketAddr, user: &str, group: &str) -> Result<Self> {
        let request = CertRequest { cn: user.to_owned(), orgs: vec![group.to_owned()], client: true, days: 1, ..CertRequest::default() };
        let pair = ca.issue(&request)?;
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(pki::certificate_der(ca.cert_pem())?);
        let mut config = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_client_auth_cert(pki::certificate_der(&pair.cert_pem)?, pki::private_key_der(&pair.key_pem)?)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self { at, config: Arc::new(config) })
    }

    /// A new connection.
    pub async fn connect(&self) -> Result<Connection> {
        let stream = TcpStream::connect(self.at).await.with_context(|| format!("connecting to {} failed", self.at))?;
        stream.set_nodelay(true)?;
        let stream = TlsConnector::from(self.config.clone()).connect(ServerName::from(self.at.ip()), stream).await?;
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW).enable_push(false);
        let (sender, connection) = builder.handshake(stream).await?;
        tokio::spawn(connection);
        Ok(Connection { sender, base: format!("https://{}", self.at) })
    }

    /// So many connections.
    pub async fn connections(&self, count: usize) -> Result<Vec<Connection>> {
        let mut all = Vec::with_capacity(count);
        for _ in 0..count {
            all.push(self.connect().await?);
        }
        Ok(all)
    }
}

/// An answer, read to its end.
pub struct Answer {
    pub code: u16,
    pub body: Bytes,
}

impl Answer {
    /// The body of a success, as JSON.
    pub fn json(&self) -> Result<serde_json::Value> {
        serde_json::from_slice(&self.body).context("an answer is no JSON")
    }
}

/// A connection; a clone shares it.
#[derive(Clone)]
pub struct Connection {
    sender: SendRequest<Bytes>,
    base: String,
}

impl Connection {
    async fn send(&mut self, method: Method, path: &str, content: &'static str, body: Option<Bytes>) -> Result<http::Response<RecvStream>> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        if body.is_some() {
            request = request.header(CONTENT_TYPE, content);
        }
        self.dispatch(request.body(())?, body).await
    }

    async fn dispatch(&mut self, request: Request<()>, body: Option<Bytes>) -> Result<http::Response<RecvStream>> {
        std::future::poll_fn(|context| self.sender.poll_ready(context)).await?;
        let (answer, mut stream) = self.sender.send_request(request, body.is_none())?;
        if let Some(body) = body {
            stream.send_data(body, true)?;
        }
        Ok(answer.await?)
    }

    /// Asks, and keeps the answer.
    pub async fn ask(&mut self, method: Method, path: &str, content: &'static str, body: Option<Bytes>) -> Result<Answer> {
        let (head, mut stream) = self.send(method, path, content, body).await?.into_parts();
        let mut body = BytesMut::new();
        while let Some(data) = stream.data().await {
            let data = data?;
            stream.flow_control().release_capacity(data.len())?;
            body.extend_from_slice(&data);
        }
        Ok(Answer { code: head.status.as_u16(), body: body.freeze() })
    }

    /// Reads an object or a list.
    pub async fn get(&mut self, path: &str) -> Result<Answer> {
        let answer = self.ask(Method::GET, path, "", None).await?;
        ensure!(answer.code == 200, "reading {path} failed: {}", String::from_utf8_lossy(&answer.body));
        Ok(answer)
    }

    /// Reads an object until `holds`, at most for `patience`.
    pub async fn until(&mut self, path: &str, patience: Duration, holds: impl Fn(&serde_json::Value) -> bool) -> Result<()> {
        let begun = Instant::now();
        loop {
            let object = self.get(path).await?.json()?;
            if holds(&object) {
                return Ok(());
            }
            ensure!(begun.elapsed() < patience, "{path} did not come to the state that was waited for: {}", object["status"]);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Creates an object of a collection; one that is there already will do.
    pub async fn create(&mut self, path: &str, object: &serde_json::Value) -> Result<()> {
        let answer = self.ask(Method::POST, path, JSON, Some(object.to_string().into())).await?;
        ensure!(matches!(answer.code, 201 | 409), "creating below {path} failed: {}", String::from_utf8_lossy(&answer.body));
        Ok(())
    }

    /// Asks and drops the answer's body: its code and length.
    pub async fn discard(&mut self, method: Method, path: &str, body: Option<Bytes>) -> Result<(u16, usize)> {
        let answer = self.send(method, path, JSON, body).await?;
        drain(answer).await
    }

    /// Reads a list as Go's clients do, which accept gzip; its length on the wire.
    pub async fn get_compressed(&mut self, path: &str) -> Result<(u16, usize)> {
        let request = Request::builder().uri(format!("{}{path}", self.base)).header(ACCEPT_ENCODING, "gzip").body(())?;
        let answer = self.dispatch(request, None).await?;
        drain(answer).await
    }

    /// A watch.
    pub async fn watch(&mut self, path: &str) -> Result<Lines> {
        let answer = self.send(Method::GET, path, "", None).await?;
        ensure!(answer.status() == 200, "watching {path} answered {}", answer.status());
        Ok(Lines { stream: answer.into_body(), buffer: BytesMut::new() })
    }
}

async fn drain(answer: http::Response<RecvStream>) -> Result<(u16, usize)> {
    let (head, mut stream) = answer.into_parts();
    let mut length = 0;
    while let Some(data) = stream.data().await {
        let data = data?;
        stream.flow_control().release_capacity(data.len())?;
        length += data.len();
    }
    Ok((head.status.as_u16(), length))
}

pub const JSON: &str = "application/json";
pub const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// The lines of a watch.
pub struct Lines {
    stream: RecvStream,
    buffer: BytesMut,
}

impl Lines {
    /// The next line; none at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        let mut seen = 0;
        loop {
            if let Some(end) = self.buffer[seen..].iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(seen + end).freeze();
                self.buffer.advance(1);
                return Ok(Some(line));
            }
            seen = self.buffer.len();
            let Some(data) = self.stream.data().await else { return Ok(None) };
            let data = data?;
            self.stream.flow_control().release_capacity(data.len())?;
            self.buffer.extend_from_slice(&data);
        }
    }
}

/// What a number of clients did.
pub struct Done {
    pub requests: usize,
    pub took: Duration,
    /// Half of the requests took no longer.
    pub median: Duration,
    /// 99 in 100 took no longer.
    pub slow: Duration,
}

impl Done {
    pub fn a_second(&self) -> f64 {
        self.requests as f64 / self.took.as_secs_f64()
    }
}

/// `clients` clients over `connections` make `requests` requests, each its next one when the last was answered. `request` says what the
/// request of a number is; another answer than `code` fails.
pub async fn run<F>(connections: &[Connection], clients: usize, requests: usize, code: u16, request: F) -> Result<Done>
where
    F: Fn(usize) -> (Method, String, Option<Bytes>) + Send + Sync + 'static,
{
    let (request, next) = (Arc::new(request), Arc::new(AtomicUsize::new(0)));
    let mut tasks = JoinSet::new();
    let begun = Instant::now();
    for client in 0..clients {
        let (mut connection, request, next) = (connections[client % connections.len()].clone(), request.clone(), next.clone());
        tasks.spawn(async move {
            let mut times = Vec::with_capacity(requests / clients * 2);
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= requests {
                    return Ok(times);
                }
                let (method, path, body) = request(number);
                let begun = Instant::now();
                let (answered, _) = connection.discard(method, &path, body).await?;
                times.push(begun.elapsed());
                if answered != code {
                    bail!("{path} answered {answered}");
                }
            }
        });
    }
    let mut times = Vec::with_capacity(requests);
    while let Some(done) = tasks.join_next().await {
        times.extend(done??);
    }
    let took = begun.elapsed();
    times.sort_unstable();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    Ok(Done { requests, took, median: at(0.5), slow: at(0.99) })
}
