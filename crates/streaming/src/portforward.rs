//! `port-forward`: pairs of a data and an error stream for each connection, over SPDY
//! (k8s.io/cri-streaming/pkg/streaming/portforward).

use std::collections::HashMap;
use std::time::Duration;

use http::{HeaderMap, Response};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::spdy::frame::reset;
use crate::spdy::{Connection, Incoming, Limits, Role, Stream};
use crate::upgrade::{self, Wire};

/// The protocol of the streams inside SPDY.
pub const PROTOCOL: &str = "portforward.k8s.io";
/// The WebSocket subprotocol for SPDY inside.
pub const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";

/// How long a data stream may wait for its error stream, or the other way round.
const CREATION: Duration = Duration::from_secs(30);
/// How long one connection whose program does not read may hold up the others of its client.
const STALLED: Duration = Duration::from_secs(30);

/// Answers a request for forwarding over SPDY.
///
/// # Errors
/// The refusal.
pub fn accept(headers: &HeaderMap) -> Result<Response<()>, Box<Response<String>>> {
    match upgrade::requested(headers) {
        Some(Wire::Spdy) => upgrade::accept_spdy(headers, &[PROTOCOL]).map(|(response, _)| response),
        _ => Err(Box::new(upgrade::no_upgrade())),
    }
}

/// Whether a request is for SPDY inside WebSocket.
pub fn is_tunnel(headers: &HeaderMap) -> bool {
    upgrade::requested(headers) == Some(Wire::WebSocket)
        && upgrade::values(headers, &http::header::SEC_WEBSOCKET_PROTOCOL).iter().any(|own| own == TUNNEL)
}

/// Serves a client until it leaves. `dial` connects to a port; its error is sent to the client after `error forwarding port PORT to `.
pub async fn serve<I, F, C>(io: I, pod: &str, dial: F)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: AsyncDial<C>,
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut connection = Connection::new(io, Role::Server, Limits { stalled: Some(STALLED), ..Limits::default() });
    let mut pairs: HashMap<String, (Pair, Instant)> = HashMap::new();
    let mut forwards = JoinSet::new();
    let mut tick = tokio::time::interval(CREATION);
    loop {
        tokio::select! {
            incoming = connection.next() => {
                let Some(incoming) = incoming else { break };
                if let Some((data, error, port)) = add(&mut pairs, incoming) {
                    let (dial, pod) = (dial.clone(), pod.to_owned());
                    forwards.spawn(forward(data, error, port, pod, dial));
                }
            }
            Some(_) = forwards.join_next() => {}
            _ = tick.tick() => pairs.retain(|_, (_, since)| since.elapsed() < CREATION),
        }
    }
    // The client is gone, and its connections with it.
    forwards.shutdown().await;
}

/// A way to a pod's ports.
pub trait AsyncDial<C>: Clone + Send + 'static {
    fn dial(&self, port: u16) -> impl Future<Output = Result<C, String>> + Send;
}

impl<C, F, R> AsyncDial<C> for F
where
    F: Fn(u16) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<C, String>> + Send,
{
    fn dial(&self, port: u16) -> impl Future<Output = Result<C, String>> + Send {
        self(port)
    }
}

#[derive(Default)]
struct Pair {
    data: Option<Stream>,
    error: Option<Stream>,
}

/// Takes a stream to its pair; the pair and its port once it is complete. What upstream refuses is refused.
fn add(pairs: &mut HashMap<String, (Pair, Instant)>, incoming: Incoming) -> Option<(Stream, Stream, u16)> {
    let port = incoming.headers().get("port").parse::<u16>().ok().filter(|port| *port > 0)?;
    let is_error = match incoming.headers().get("streamtype") {
        "error" => true,
        "data" => false,
        _ => return None,
    };
    let stream = incoming.accept()?;
    let request = match stream.headers.get("requestid") {
        // Clients older than request ids begin the data stream right after the error stream.
        "" if is_error => stream.id.to_string(),
        "" => stream.id.wrapping_sub(2).to_string(),
        request => request.to_owned(),
    };
    let (pair, _) = pairs.entry(request.clone()).or_insert_with(|| (Pair::default(), Instant::now()));
    let slot = if is_error { &mut pair.error } else { &mut pair.data };
    if slot.is_some() {
        stream.reset(reset::PROTOCOL_ERROR);
        return None;
    }
    *slot = Some(stream);
    if pair.data.is_none() || pair.error.is_none() {
        return None;
    }
    let (pair, _) = pairs.remove(&request)?;
    Some((pair.data?, pair.error?, port))
}

async fn forward<C>(data: Stream, error: Stream, port: u16, pod: String, dial: impl AsyncDial<C>)
where
    C: AsyncRead + AsyncWrite + Unpin + Send,
{
    let Stream { receive: mut from_client, send: mut to_client, .. } = data;
    let mut connection = match dial.dial(port).await {
        Ok(connection) => connection,
        Err(why) => {
            let Stream { send: mut errors, .. } = error;
            let _ = errors.write_all(format!("error forwarding port {port} to pod {pod}, uid : {why}").as_bytes()).await;
            let _ = errors.shutdown().await;
            return to_client.reset(reset::CANCEL);
        }
    };
    let mut client = tokio::io::join(&mut from_client, &mut to_client);
    if tokio::io::copy_bidirectional_with_sizes(&mut client, &mut connection, 16 << 10, 16 << 10).await.is_err() {
        // One side gave up; the other must not take it for an end.
        to_client.reset(reset::CANCEL);
    }
}
