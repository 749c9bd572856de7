//! DNS server over UDP and TCP.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use hickory_proto::op::Message;
use listen::{Limits, Place, TaskTracker};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::Semaphore,
};

use crate::{
    Shared,
    answer::{self, Moment, Outcome},
    forward,
};

/// TCP connections at once, in all and of one client.
const LIMITS: Limits = Limits::new(256, 64);
/// How long others may take.
#[derive(Clone, Copy)]
struct Patience {
    /// A client to ask, and to read the answer.
    client: Duration,
    /// The upstream server (CoreDNS's `forward`: 5 s).
    upstream: Duration,
}

const PATIENCE: Patience = Patience { client: Duration::from_secs(10), upstream: Duration::from_secs(5) };
/// Questions that wait for the upstream server at once.
const FORWARDED: usize = 200;

/// Names and upstream of the server.
pub(crate) struct Resolver {
    names: Shared,
    upstream: Option<SocketAddr>,
    turn: AtomicUsize,
    patience: Patience,
}

enum Answer {
    Now(Box<Message>),
    Ask(Ask),
    Nothing,
}

/// A question for the upstream server.
struct Ask {
    upstream: SocketAddr,
    patience: Duration,
    question: Vec<u8>,
    /// The reply if it gives none.
    otherwise: Box<Message>,
    /// What it says completes our own part, the alias.
    joins: bool,
}

impl Ask {
    async fn over(self, udp: bool) -> Vec<u8> {
        let answered = match udp {
            true => forward::udp(self.upstream, &self.question, self.patience).await,
            false => forward::tcp(self.upstream, &self.question, self.patience).await,
        };
        match answered {
            Ok(bytes) if !self.joins => bytes,
            Ok(bytes) => match Message::from_vec(&bytes) {
                Ok(outside) => answer::encode(&answer::join(*self.otherwise, outside), udp),
                Err(error) => forward::failure(&self.otherwise, &io::Error::new(io::ErrorKind::InvalidData, error)),
            },
            Err(error) => forward::failure(&self.otherwise, &error),
        }
    }
}

impl Resolver {
    /// A resolver for these names; others are asked of `upstream`.
    pub fn new(names: Shared, upstream: Option<SocketAddr>) -> Self {
        Self { names, upstream, turn: AtomicUsize::new(0), patience: PATIENCE }
    }

    fn answer(&self, packet: &[u8]) -> Answer {
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        let moment = Moment { serial: serial(), turn: self.turn.fetch_add(1, Ordering::Relaxed) };
        let patience = self.patience.upstream;
        match (answer::answer(packet, &names, moment), self.upstream) {
            (Outcome::Foreign(otherwise), Some(upstream)) => {
                Answer::Ask(Ask { upstream, patience, question: packet.to_vec(), otherwise, joins: false })
            }
            (Outcome::Further(otherwise, question), Some(upstream)) => {
                Answer::Ask(Ask { upstream, patience, question: question.to_vec().unwrap_or_default(), otherwise, joins: true })
            }
            (Outcome::Reply(reply) | Outcome::Foreign(reply) | Outcome::Further(reply, _), _) => Answer::Now(reply),
            (Outcome::Silence, _) => Answer::Nothing,
        }
    }
}

/// The zone's serial number: the time, as CoreDNS has it.
fn serial() -> u32 {
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    u32::try_from(seconds & u64::from(u32::MAX)).unwrap_or_default()
}

/// Whether a socket error is about one client only (a closed port makes an ICMP message that the next receive reports).
fn is_about_a_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// Answers packets until the socket fails.
pub(crate) async fn udp(socket: UdpSocket, resolver: Arc<Resolver>) -> io::Error {
    let socket = Arc::new(socket);
    let waiting = Arc::new(Semaphore::new(FORWARDED));
    let mut buffer = vec![0; 4096];
    loop {
        let (length, client) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(error) if is_about_a_client(&error) => continue,
            Err(error) => return error,
        };
        let packet = &buffer[..length];
        match resolver.answer(packet) {
            Answer::Now(reply) => send(&socket, &answer::encode(&reply, true), client).await,
            Answer::Ask(ask) => {
                let Ok(permit) = waiting.clone().try_acquire_owned() else { continue };
                let socket = socket.clone();
                tokio::spawn(async move {
                    send(&socket, &ask.over(true).await, client).await;
                    drop(permit);
                });
            }
            Answer::Nothing => {}
        }
    }
}

async fn send(socket: &UdpSocket, bytes: &[u8], client: SocketAddr) {
    if let Err(error) = socket.send_to(bytes, client).await {
        tracing::debug!(%client, %error, "an answer was not sent");
    }
}

/// Serves connections for ever. Clients of a name server are not authenticated: the newest connection replaces the oldest.
pub(crate) async fn tcp(listener: TcpListener, resolver: Arc<Resolver>) -> Infallible {
    let serve = move |stream, client, place| {
        let resolver = resolver.clone();
        async move {
            if let Err(error) = converse(stream, &resolver).await {
                tracing::debug!(%client, %error, "a TCP client left");
            }
            drop::<Place>(place);
        }
    };
    listen::accept(listener, &LIMITS, &TaskTracker::new(), serve).await
}

async fn converse(mut stream: TcpStream, resolver: &Resolver) -> io::Result<()> {
    loop {
        let Ok(packet) = tokio::time::timeout(resolver.patience.client, read(&mut stream)).await else { return Ok(()) };
        let Some(packet) = packet? else { return Ok(()) };
        let reply = match resolver.answer(&packet) {
            Answer::Now(reply) => answer::encode(&reply, false),
            Answer::Ask(ask) => ask.over(false).await,
            Answer::Nothing => return Ok(()),
        };
        let Ok(written) = tokio::time::timeout(resolver.patience.client, write(&mut stream, &reply)).await else { return Ok(()) };
        written?;
    }
}

/// One message with its length before it; none at the end of the stream.
pub(crate) async fn read(stream: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let length = match stream.read_u16().await {
        Ok(length) => length,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut packet = vec![0; usize::from(length)];
    stream.read_exact(&mut packet).await?;
    Ok(Some(packet))
}

/// Writes one message with its length before it, in one packet.
pub(crate) async fn write(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let Ok(length) = u16::try_from(message.len()) else { return Err(io::ErrorKind::InvalidData.into()) };
    stream.write_all(&[&length.to_be_bytes(), message].concat()).await
}

#[cfg(test)]
mod tests;
