//! `exec` and `attach`: a program's streams over SPDY or WebSocket, both ends
//! (k8s.io/cri-streaming/pkg/streaming/remotecommand, k8s.io/client-go/tools/remotecommand).
//!
//! | stream | SPDY: `streamType` | WebSocket: channel |
//! | --- | --- | --- |
//! | input | `stdin` | 0 |
//! | output | `stdout` | 1 |
//! | errors of the program | `stderr`; none with a terminal | 2 |
//! | how it ended | `error`: a `metav1.Status` from v4 on, text before | 3 |
//! | size of the terminal | `resize`: JSON `{"Width":…,"Height":…}`, from v3 on | 4 |

use std::io;
use std::time::Duration;

use futures::StreamExt as _;
use http::{HeaderMap, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::io::StreamReader;
use tokio_util::sync::CancellationToken;

use crate::spdy::{self, Connection, Headers, Limits};
use crate::upgrade::{self, Wire};
use crate::websocket::{Channels, Received};

/// Protocols of the streams, best first; the empty one is the oldest.
const SPDY_PROTOCOLS: [&str; 4] = [V4, "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"];
const WEBSOCKET_PROTOCOLS: [&str; 3] = [V5, V4, "channel.k8s.io"];
const V4: &str = "v4.channel.k8s.io";
/// As v4, and a client can end its input.
pub const V5: &str = "v5.channel.k8s.io";

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;

/// How long a client may take to begin all its streams.
const CREATION: Duration = Duration::from_secs(30);
/// How long a client may take to read what is left and to end the connection (upstream's `finishTimeout`).
const LINGER: Duration = Duration::from_secs(15 * 60);
/// Largest status that is read.
const LARGEST_STATUS: u64 = 64 << 10;

/// Bytes that come.
pub type Input = Box<dyn AsyncRead + Send + Unpin>;
/// Bytes that go.
pub type Output = Box<dyn AsyncWrite + Send + Unpin>;

/// The streams that a client asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requested {
    /// Input.
    pub stdin: bool,
    /// Output.
    pub stdout: bool,
    /// Errors; not with a terminal.
    pub stderr: bool,
    pub tty: bool,
}

/// Size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// Columns.
    #[serde(rename = "Width")]
    pub width: u16,
    /// Lines.
    #[serde(rename = "Height")]
    pub height: u16,
}

/// How it ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// With exit code 0, or an attached program's end.
    Success,
    /// With another exit code, and a sentence that says so.
    Exit(i32, String),
    /// Not at all: why it could not be run or watched.
    Failed(String),
    /// As a `metav1.Status` from elsewhere says.
    Status(Value),
}

impl Outcome {
    /// As `metav1.Status`.
    pub fn to_status(&self) -> Value {
        match self {
            Outcome::Success => json!({"metadata": {}, "status": "Success"}),
            Outcome::Exit(code, message) => json!({
                "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
                "message": format!("command terminated with non-zero exit code: {message}"),
                "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
            }),
            Outcome::Failed(why) => json!({
                "metadata": {}, "status": "Failure", "reason": "InternalError", "code": 500,
                "message": format!("Internal error occurred: {why}"), "details": {"causes": [{"message": why}]},
            }),
            Outcome::Status(status) => status.clone(),
        }
    }

    /// As protocols before v4 say it: nothing for success.
    fn to_text(&self) -> String {
        match self {
            Outcome::Success => String::new(),
            Outcome::Exit(_, message) | Outcome::Failed(message) => format!("error executing remote command: {message}"),
            Outcome::Status(status) if status["status"] == "Success" => String::new(),
            Outcome::Status(status) => status["message"].as_str().unwrap_or_default().to_owned(),
        }
    }

    fn to_bytes(&self, protocol: &str) -> Vec<u8> {
        if matches!(protocol, V4 | V5) { self.to_status().to_string().into_bytes() } else { self.to_text().into_bytes() }
    }
}

/// A client's streams, at a server.
pub struct Streams {
    pub stdin: Option<Input>,
    /// Takes output.
    pub stdout: Option<Output>,
    /// Takes errors.
    pub stderr: Option<Output>,
    /// Sizes of its terminal.
    pub sizes: mpsc::Receiver<Size>,
    /// Cancelled when the client is gone.
    pub gone: CancellationToken,
    ending: Ending,
    protocol: &'static str,
}

enum Ending {
    /// Clients take the end of what we never send on `stdin` and `resize` for the program's: it is kept until then.
    Spdy {
        connection: Connection,
        error: spdy::Stream,
        silent: Vec<spdy::SendHalf>,
    },
    WebSocket(Channels),
}

impl Streams {
    /// Sends the outcome to the client, after everything that was written, and waits until it has read that.
    pub async fn finish(self, outcome: &Outcome) {
        let bytes = outcome.to_bytes(self.protocol);
        // Ends of outputs come first, and input is not read any more.
        drop((self.stdin, self.stdout, self.stderr, self.sizes));
        match self.ending {
            Ending::Spdy { connection, mut error, silent } => {
                let _ = error.send.write_all(&bytes).await;
                drop((error, silent));
                connection.close(LINGER).await;
            }
            Ending::WebSocket(channels) => {
                if !bytes.is_empty() {
                    channels.send(ERROR, &bytes).await;
                }
                channels.close(LINGER).await;
            }
        }
    }
}

/// A request for streams that has been answered with 101 and waits for its connection.
pub struct Accepted {
    wire: Wire,
    protocol: &'static str,
    requested: Requested,
}

/// Why there are no streams after all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The client did not begin all its streams in time.
    #[error("timed out waiting for client to create streams")]
    Creation,
    /// It began one that it should not have.
    #[error("unexpected stream type: {0:?}")]
    Unexpected(String),
    /// It left before.
    #[error("the client is gone")]
    Gone,
    /// The wire failed.
    #[error(transparent)]
    Spdy(#[from] spdy::Error),
    /// The status cannot be read.
    #[error("reading how the program ended failed")]
    Status(#[source] io::Error),
}

/// Answers a request for streams over either wire.
///
/// # Errors
/// The refusal.
pub fn accept(headers: &HeaderMap, requested: Requested) -> Result<(Response<()>, Accepted), Box<Response<String>>> {
    let (response, wire, protocol) = match upgrade::requested(headers) {
        Some(Wire::Spdy) => {
            let (response, protocol) = upgrade::accept_spdy(headers, &SPDY_PROTOCOLS)?;
            (response, Wire::Spdy, protocol)
        }
        Some(Wire::WebSocket) => {
            let (response, protocol) = upgrade::accept_websocket(headers, &WEBSOCKET_PROTOCOLS, Some(""))?;
            (response, Wire::WebSocket, protocol)
        }
        None => return Err(Box::new(upgrade::no_upgrade())),
    };
    Ok((response, Accepted { wire, protocol, requested }))
}

/// Answers a request over WebSocket with v5 alone, as an API server does that uses SPDY to nodes.
///
/// # Errors
/// The refusal.
pub fn accept_v5(headers: &HeaderMap, requested: Requested) -> Result<(Response<()>, Accepted), Box<Response<String>>> {
    let (response, protocol) = upgrade::accept_websocket(headers, &[V5], None)?;
    Ok((response, Accepted { wire: Wire::WebSocket, protocol, requested }))
}

/// Whether a request is for WebSocket with v5.
pub fn is_v5(headers: &HeaderMap) -> bool {
    upgrade::requested(headers) == Some(Wire::WebSocket)
        && upgrade::values(headers, &http::header::SEC_WEBSOCKET_PROTOCOL).iter().any(|own| own == V5)
}

impl Accepted {
    /// The client's streams over its connection.
    ///
    /// # Errors
    /// When the client does not begin them.
    pub async fn streams<I>(self, io: I) -> Result<Streams, Error>
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        match self.wire {
            Wire::WebSocket => Ok(self.over_websocket(io).await),
            Wire::Spdy => {
                let connection = Connection::new(io, spdy::Role::Server, Limits { streams: 16, ..Limits::default() });
                tokio::time::timeout(CREATION, self.over_spdy(connection)).await.map_err(|_| Error::Creation)?
            }
        }
    }

    async fn over_websocket<I>(self, io: I) -> Streams
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let requested: &[u8] = if self.requested.stdin { &[RESIZE, STDIN] } else { &[RESIZE] };
        let (channels, mut received) = Channels::server(io, requested, self.protocol == V5).await;
        let stdin = if self.requested.stdin { received.pop().map(bytes_of) } else { None };
        let (sender, sizes) = mpsc::channel(4);
        if let Some(resize) = received.pop() {
            tokio::spawn(read_sizes(bytes_of(resize), sender));
        }
        let output = |requested: bool, channel| requested.then(|| Box::new(channels.writer(channel)) as Output);
        let stdout = output(self.requested.stdout, STDOUT);
        let stderr = output(self.requested.stderr && !self.requested.tty, STDERR);
        // Confirms the connection to the client.
        let first = if stdout.is_some() {
            STDOUT
        } else if stderr.is_some() {
            STDERR
        } else {
            ERROR
        };
        channels.send(first, &[]).await;
        Streams { stdin, stdout, stderr, sizes, gone: channels.gone(), ending: Ending::WebSocket(channels), protocol: self.protocol }
    }

    async fn over_spdy(self, mut connection: Connection) -> Result<Streams, Error> {
        let resizes = self.requested.tty && !matches!(self.protocol, "" | "channel.k8s.io" | "v2.channel.k8s.io");
        let (mut error, mut stdin, mut stdout, mut stderr, mut resize) = (None, None, None, None, None);
        let has_stderr = self.requested.stderr && !self.requested.tty;
        let missing = |slot: &Option<spdy::Stream>, requested: bool| requested && slot.is_none();
        while missing(&error, true)
            || missing(&stdin, self.requested.stdin)
            || missing(&stdout, self.requested.stdout)
            || missing(&stderr, has_stderr)
            || missing(&resize, resizes)
        {
            let incoming = connection.next().await.ok_or(Error::Gone)?;
            let slot = match incoming.headers().get("streamtype") {
                "error" => &mut error,
                "stdin" => &mut stdin,
                "stdout" => &mut stdout,
                "stderr" => &mut stderr,
                "resize" => &mut resize,
                other => return Err(Error::Unexpected(other.to_owned())),
            };
            *slot = incoming.accept();
        }
        let error = error.ok_or(Error::Gone)?;
        let (sender, sizes) = mpsc::channel(4);
        let mut silent = Vec::new();
        if let Some(spdy::Stream { receive, send, .. }) = resize {
            silent.push(send);
            tokio::spawn(read_sizes(Box::new(receive), sender));
        }
        let stdin = stdin.map(|spdy::Stream { receive, send, .. }| {
            silent.push(send);
            Box::new(receive) as Input
        });
        let gone = CancellationToken::new();
        let (ended, token) = (connection.ended(), gone.clone());
        tokio::spawn(async move {
            ended.await;
            token.cancel();
        });
        Ok(Streams {
            stdin,
            stdout: stdout.map(|stream| Box::new(stream.send) as Output),
            stderr: stderr.map(|stream| Box::new(stream.send) as Output),
            sizes,
            gone,
            ending: Ending::Spdy { connection, error, silent },
            protocol: self.protocol,
        })
    }
}

fn bytes_of(received: Received) -> Input {
    Box::new(StreamReader::new(ReceiverStream::new(received).map(Ok::<_, io::Error>)))
}

/// Takes sizes out of a stream of JSON documents.
#[derive(Debug, Default)]
struct Sizes(Vec<u8>);

impl Sizes {
    /// The sizes that are complete; None when what came is something else.
    fn push(&mut self, bytes: &[u8]) -> Option<Vec<Size>> {
        self.0.extend_from_slice(bytes);
        let mut documents = serde_json::Deserializer::from_slice(&self.0).into_iter::<Size>();
        let mut found = Vec::new();
        let mut done = 0;
        while let Some(next) = documents.next() {
            match next {
                Ok(size) => found.push(size),
                Err(error) if error.is_eof() => break,
                Err(_) => return None,
            }
            done = documents.byte_offset();
        }
        self.0.drain(..done);
        (self.0.len() < 1024).then_some(found)
    }
}

async fn read_sizes(mut from: Input, to: mpsc::Sender<Size>) {
    let (mut sizes, mut buffer) = (Sizes::default(), [0; 512]);
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let Some(found) = sizes.push(&buffer[..count]) else { return };
        for size in found {
            if to.send(size).await.is_err() {
                return;
            }
        }
    }
}

/// A server's streams, at a client with SPDY.
pub struct Remote {
    connection: Connection,
    error: spdy::Stream,
    stdin: Option<spdy::Stream>,
    stdout: Option<spdy::Stream>,
    stderr: Option<spdy::Stream>,
    resize: Option<spdy::Stream>,
}

/// The protocols that [`Remote`] supports, for the request.
pub const REMOTE_PROTOCOLS: [&str; 1] = [V4];

impl Remote {
    /// Begins the streams over a connection that has been upgraded.
    ///
    /// # Errors
    /// When the server refuses one.
    pub async fn begin<I>(io: I, requested: Requested) -> Result<Self, Error>
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let connection = Connection::new(io, spdy::Role::Client, Limits::default());
        let open = async |kind: &str, requested: bool| match requested {
            true => connection.open(Headers::new([("streamType", kind)])).await.map(Some),
            false => Ok(None),
        };
        // All at once: each costs a round trip.
        let (error, stdin, stdout, stderr, resize) = tokio::try_join!(
            connection.open(Headers::new([("streamType", "error")])),
            open("stdin", requested.stdin),
            open("stdout", requested.stdout),
            open("stderr", requested.stderr && !requested.tty),
            open("resize", requested.tty),
        )?;
        Ok(Self { connection, error, stdin, stdout, stderr, resize })
    }

    /// Passes a client's streams on to the server until it sends the outcome, and passes that on to the client.
    pub async fn bridge(self, mut client: Streams) {
        let Remote { connection, error, stdin, stdout, stderr, resize } = self;
        let gone = client.gone.clone();
        let sizes = std::mem::replace(&mut client.sizes, mpsc::channel(1).1);
        let inputs = async {
            tokio::join!(
                pump(client.stdin.take(), stdin.map(|stream| Box::new(stream.send) as Output)),
                write_sizes(sizes, resize.map(|stream| stream.send)),
            );
            std::future::pending::<()>().await;
        };
        let outputs = async {
            tokio::join!(
                pump(stdout.map(|stream| Box::new(stream.receive) as Input), client.stdout.take()),
                pump(stderr.map(|stream| Box::new(stream.receive) as Input), client.stderr.take()),
                read_status(error.receive),
            )
            .2
        };
        let outcome = tokio::select! {
            outcome = outputs => outcome,
            () = inputs => return,
            () = gone.cancelled() => return,
        };
        drop(connection);
        client.finish(&outcome).await;
    }
}

/// Copies until the end of one of the two, and ends the other.
async fn pump(from: Option<Input>, to: Option<Output>) {
    let (Some(from), Some(mut to)) = (from, to) else { return };
    let mut from = tokio::io::BufReader::with_capacity(32 << 10, from);
    if let Err(error) = tokio::io::copy_buf(&mut from, &mut to).await {
        tracing::debug!(%error, "a stream ended early");
    }
    let _ = to.shutdown().await;
}

async fn write_sizes(mut sizes: mpsc::Receiver<Size>, to: Option<spdy::SendHalf>) {
    let Some(mut to) = to else { return };
    while let Some(size) = sizes.recv().await {
        let line = format!("{}\n", serde_json::to_value(size).unwrap_or_default());
        if to.write_all(line.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// What a server says of the end.
async fn read_status(from: spdy::ReceiveHalf) -> Outcome {
    let mut bytes = Vec::new();
    // A server that resets the stream after its status has said all the same how it ended.
    if let Err(error) = from.take(LARGEST_STATUS).read_to_end(&mut bytes).await
        && bytes.is_empty()
    {
        return Outcome::Failed(format!("error reading from error stream: {error}"));
    }
    if bytes.is_empty() {
        return Outcome::Success;
    }
    match serde_json::from_slice::<Value>(&bytes) {
        Ok(status) if status.get("status").is_some() => Outcome::Status(status),
        _ => Outcome::Failed(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_sizes_are_read_in_any_pieces() {
        let mut sizes = Sizes::default();
        let mut found = Vec::new();
        for byte in b"{\"Width\":80,\"Height\":24}\n{\"Width\":1,\"Height\":2}" {
            found.extend(sizes.push(&[*byte]).unwrap());
        }
        assert_eq!(found, [Size { width: 80, height: 24 }, Size { width: 1, height: 2 }]);
        assert_eq!(sizes.push(b"nonsense"), None);
        assert_eq!(Sizes::default().push(&[b' '; 4096]), None, "no end in sight");
    }

    #[test]
    fn outcomes_read_as_upstream() {
        let status = Outcome::Exit(3, "error executing command [false], exit code 3".into()).to_status();
        assert_eq!(status["reason"], "NonZeroExitCode");
        assert_eq!(status["details"]["causes"][0], json!({"reason": "ExitCode", "message": "3"}));
        assert_eq!(Outcome::Success.to_bytes(V4), br#"{"metadata":{},"status":"Success"}"#);
        assert_eq!(Outcome::Success.to_bytes(""), b"");
    }
}
