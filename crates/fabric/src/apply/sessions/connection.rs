//! One connection: a task that reads whole messages, and one that writes.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bgp::session::Side;
use bgp::wire::{HEADER, Notification, frame_length};
use bgp::{Connect, Secret};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// For a connection to be made.
const CONNECT: Duration = Duration::from_secs(10);
/// For one message to be taken by the peer.
const WRITE: Duration = Duration::from_secs(60);
/// Messages that wait to be written.
const QUEUE: usize = 4096;

/// What a task tells the driver.
#[derive(Debug)]
pub(super) struct News {
    pub peer: IpAddr,
    pub side: Side,
    /// Of the connection.
    pub number: u64,
    pub what: Happened,
}

#[derive(Debug)]
pub(super) enum Happened {
    Accepted(TcpStream),
    Dialed(io::Result<TcpStream>),
    Frame(Vec<u8>),
    Broken(Notification),
    Closed,
}

/// A connection, or the attempt to make one. Dropped, it ends after what was sent.
#[derive(Debug)]
pub(super) struct Connection {
    pub number: u64,
    /// None while it is being made.
    outbox: Option<mpsc::Sender<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Connection {
    /// False: the peer does not take what was sent before.
    pub fn send(&self, bytes: Vec<u8>) -> bool {
        self.outbox.as_ref().is_none_or(|outbox| !matches!(outbox.try_send(bytes), Err(mpsc::error::TrySendError::Full(_))))
    }
}

/// Begins to connect to a peer.
pub(super) fn dial(number: u64, peer: IpAddr, connect: Connect, news: mpsc::Sender<News>) -> Connection {
    let attempt = async move {
        let made = tokio::time::timeout(CONNECT, reach(peer, &connect)).await;
        let made = made.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut)));
        // The driver is gone otherwise.
        let _ = news.send(News { peer, side: Side::Ours, number, what: Happened::Dialed(made) }).await;
    };
    Connection { number, outbox: None, reader: tokio::spawn(attempt) }
}

async fn reach(peer: IpAddr, connect: &Connect) -> io::Result<TcpStream> {
    let socket = if peer.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.bind(SocketAddr::new(connect.local, 0))?;
    authenticate(&socket, peer, connect.password.as_ref())?;
    socket.connect(SocketAddr::new(peer, connect.port)).await
}

/// Gives a socket the password of a peer; none takes it back.
#[cfg(target_os = "linux")]
pub(super) fn authenticate(socket: &impl std::os::fd::AsFd, peer: IpAddr, password: Option<&Secret>) -> io::Result<()> {
    match password {
        Some(password) => linux_sys::tcp_md5::set(socket, peer, password.bytes()),
        None => linux_sys::tcp_md5::set(socket, peer, b"").or(Ok(())),
    }
}

/// Nothing is configured with a password where sockets take none.
#[cfg(not(target_os = "linux"))]
pub(super) fn authenticate<S>(_: &S, _: IpAddr, password: Option<&Secret>) -> io::Result<()> {
    if password.is_none() { Ok(()) } else { Err(io::Error::from(io::ErrorKind::Unsupported)) }
}

/// Hands out connections of peers until it is dropped.
pub(super) async fn accept(listener: Arc<TcpListener>, news: mpsc::Sender<News>) {
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                let news_of = News { peer: from.ip().to_canonical(), side: Side::Theirs, number: 0, what: Happened::Accepted(stream) };
                if news.send(news_of).await.is_err() {
                    return;
                }
            }
            // Of a connection that ended at once, or of a process without descriptors.
            Err(error) => {
                tracing::debug!("a BGP peer's connection failed: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Begins to read from and write to a connection.
pub(super) fn open(number: u64, (peer, side): (IpAddr, Side), stream: TcpStream, news: mpsc::Sender<News>) -> Connection {
    // Messages are short and few.
    let _ = stream.set_nodelay(true);
    let (reader, writer) = stream.into_split();
    let (outbox, messages) = mpsc::channel(QUEUE);
    tokio::spawn(write(writer, messages));
    let tell = move |what| News { peer, side, number, what };
    Connection { number, outbox: Some(outbox), reader: tokio::spawn(read(reader, news, tell)) }
}

async fn write(mut writer: OwnedWriteHalf, mut messages: mpsc::Receiver<Vec<u8>>) {
    while let Some(message) = messages.recv().await {
        match tokio::time::timeout(WRITE, writer.write_all(&message)).await {
            Ok(Ok(())) => {}
            // The reader finds out and says so.
            Ok(Err(_)) | Err(_) => return,
        }
    }
}

async fn read(reader: OwnedReadHalf, news: mpsc::Sender<News>, tell: impl Fn(Happened) -> News) {
    let mut reader = tokio::io::BufReader::with_capacity(64 * 1024, reader);
    loop {
        let what = match next(&mut reader).await {
            Ok(Ok(frame)) => Happened::Frame(frame),
            Ok(Err(why)) => Happened::Broken(why),
            Err(_) => Happened::Closed,
        };
        let last = !matches!(what, Happened::Frame(_));
        if news.send(tell(what)).await.is_err() || last {
            return;
        }
    }
}

/// The next whole message; the inner error is what the peer is told.
async fn next(reader: &mut (impl tokio::io::AsyncRead + Unpin)) -> io::Result<Result<Vec<u8>, Notification>> {
    let mut header = [0; HEADER];
    reader.read_exact(&mut header).await?;
    let length = match frame_length(&header) {
        Ok(length) => length,
        Err(why) => return Ok(Err(why)),
    };
    let mut frame = vec![0; length];
    frame[..HEADER].copy_from_slice(&header);
    reader.read_exact(&mut frame[HEADER..]).await?;
    Ok(Ok(frame))
}
