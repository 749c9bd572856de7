//! WebSocket as Kubernetes uses it: numbered channels (`v4.channel.k8s.io`, `v5.channel.k8s.io`), and a byte stream of its
//! own for SPDY inside (`SPDY/3.1+portforward.k8s.io`). The frames are tokio-tungstenite's.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use futures::{Sink as _, SinkExt as _, Stream as _, StreamExt as _};
use thiserror_ext::AsReport as _;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Message, Utf8Bytes};
use tokio_util::sync::{CancellationToken, PollSender};

/// Largest message that is read; clients send some ten thousand bytes at once.
const LARGEST: usize = 4 << 20;
/// Most payload of one message that we send.
const PIECE: usize = 32 << 10;
/// A program that does not read its input keeps us from reading on, and from answering pings. Clients that ask for signs of life
/// (client-go gives up after 60 s) get them unasked meanwhile.
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);
/// The first byte of a message which says that a channel ends (v5): the second is the channel.
const CLOSE: u8 = 255;

fn config() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(16 << 10)
        .write_buffer_size(0)
        .max_write_buffer_size(1 << 20)
        .max_message_size(Some(LARGEST))
        .max_frame_size(Some(LARGEST))
}

/// Clients take any other code, and none, for a failure.
fn closing() -> Message {
    Message::Close(Some(CloseFrame { code: CloseCode::Normal, reason: Utf8Bytes::default() }))
}

fn failed(error: tungstenite::Error) -> io::Error {
    match error {
        tungstenite::Error::Io(error) => error,
        other => io::Error::other(other),
    }
}

/// A byte stream through binary messages, on either side of a connection that has been upgraded.
pub struct Tunnel<I> {
    socket: WebSocketStream<I>,
    unread: Bytes,
    closed: bool,
}

impl<I: AsyncRead + AsyncWrite + Unpin> Tunnel<I> {
    /// The server's side.
    pub async fn server(io: I) -> Self {
        Self::over(io, Role::Server).await
    }

    /// The client's side.
    pub async fn client(io: I) -> Self {
        Self::over(io, Role::Client).await
    }

    async fn over(io: I, role: Role) -> Self {
        Self { socket: WebSocketStream::from_raw_socket(io, role, Some(config())).await, unread: Bytes::new(), closed: false }
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncRead for Tunnel<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while self.unread.is_empty() {
            match ready!(Pin::new(&mut self.socket).poll_next(cx)) {
                Some(Ok(Message::Binary(bytes))) => self.unread = bytes,
                Some(Ok(Message::Text(_))) => return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "a text message in a byte stream"))),
                None | Some(Ok(Message::Close(_))) => return Poll::Ready(Ok(())),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(failed(error))),
            }
        }
        let count = self.unread.len().min(buffer.remaining());
        buffer.put_slice(&self.unread.split_to(count));
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Tunnel<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(Pin::new(&mut self.socket).poll_ready(cx)).map_err(failed)?;
        let piece = &bytes[..bytes.len().min(PIECE)];
        Pin::new(&mut self.socket).start_send(Message::Binary(Bytes::copy_from_slice(piece))).map_err(failed)?;
        Poll::Ready(Ok(piece.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx).map_err(failed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.closed {
            ready!(Pin::new(&mut self.socket).poll_ready(cx)).map_err(failed)?;
            self.closed = true;
            // Fine when the peer has closed it.
            let _ = Pin::new(&mut self.socket).start_send(closing());
        }
        match ready!(Pin::new(&mut self.socket).poll_flush(cx)) {
            Err(tungstenite::Error::ConnectionClosed | tungstenite::Error::AlreadyClosed) => Poll::Ready(Ok(())),
            result => Poll::Ready(result.map_err(failed)),
        }
    }
}

/// Numbered channels of a server: a task reads them, another writes.
///
/// Nothing of a channel is kept but what its reader is about to take: one that is slow stops the others, as with upstream's servers.
pub struct Channels {
    messages: mpsc::Sender<Message>,
    gone: CancellationToken,
    reader: tokio::task::JoinHandle<()>,
    writer: tokio::task::JoinHandle<()>,
}

/// The pieces a client sends on one channel.
pub type Received = mpsc::Receiver<Bytes>;

impl Channels {
    /// Serves channels over a connection that has been upgraded. What comes on a channel of `received` goes to its receiver, whose
    /// end is the end of the channel (`ends`: the client may say so, as in v5); everything else is thrown away.
    pub async fn server<I>(io: I, received: &[u8], ends: bool) -> (Self, Vec<Received>)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config())).await;
        let (sink, source) = socket.split();
        let (messages, queue) = mpsc::channel(4);
        let (gone, held_up) = (CancellationToken::new(), Arc::new(AtomicBool::new(false)));
        let (senders, receivers): (Vec<_>, Vec<_>) = received
            .iter()
            .map(|channel| {
                let (sender, receiver) = mpsc::channel(1);
                ((*channel, sender), receiver)
            })
            .unzip();
        let reader = {
            let (gone, held_up) = (gone.clone(), Arc::clone(&held_up));
            tokio::spawn(async move {
                tokio::select! {
                    () = read(source, senders, ends, &held_up) => {}
                    () = gone.cancelled() => {}
                }
                gone.cancel();
            })
        };
        let writer = {
            let gone = gone.clone();
            tokio::spawn(async move {
                if let Err(error) = write(sink, queue, &held_up, &gone).await {
                    tracing::debug!(error = %error.as_report(), "writing to a WebSocket failed");
                    gone.cancel();
                }
            })
        };
        (Self { messages, gone, reader, writer }, receivers)
    }

    /// Writes to one channel.
    pub fn writer(&self, channel: u8) -> ChannelWriter {
        ChannelWriter { channel, sender: PollSender::new(self.messages.clone()) }
    }

    /// Sends one message on a channel; even an empty one.
    pub async fn send(&self, channel: u8, bytes: &[u8]) {
        let mut message = BytesMut::with_capacity(1 + bytes.len());
        message.put_u8(channel);
        message.put_slice(bytes);
        // Fails when the client is gone, which `gone` signals.
        let _ = self.messages.send(Message::Binary(message.freeze())).await;
    }

    /// Cancelled when the client is gone.
    pub fn gone(&self) -> CancellationToken {
        self.gone.clone()
    }

    /// Says that nothing more comes and waits up to `linger` for the client to have read everything and to end the connection.
    pub async fn close(mut self, linger: Duration) {
        let _ = self.messages.send(closing()).await;
        let _ = tokio::time::timeout(linger, &mut self.reader).await;
    }
}

impl Drop for Channels {
    fn drop(&mut self) {
        self.reader.abort();
        self.writer.abort();
        self.gone.cancel();
    }
}

type Source<I> = futures::stream::SplitStream<WebSocketStream<I>>;
type Sending<I> = futures::stream::SplitSink<WebSocketStream<I>, Message>;

async fn read<I: AsyncRead + AsyncWrite + Unpin>(mut source: Source<I>, senders: Vec<(u8, mpsc::Sender<Bytes>)>, ends: bool, held_up: &AtomicBool) {
    let mut senders: Vec<(u8, Option<mpsc::Sender<Bytes>>)> = senders.into_iter().map(|(channel, sender)| (channel, Some(sender))).collect();
    while let Some(Ok(message)) = source.next().await {
        let mut bytes = match message {
            Message::Binary(bytes) => bytes,
            Message::Text(text) => text.into(),
            _ => continue,
        };
        let Some(first) = bytes.first().copied() else { continue };
        let _ = bytes.split_to(1);
        let channel = if ends && first == CLOSE { bytes.first().copied().unwrap_or(CLOSE) } else { first };
        let Some((_, slot)) = senders.iter_mut().find(|(own, _)| *own == channel) else { continue };
        if ends && first == CLOSE {
            *slot = None;
        } else if let Some(sender) = slot
            && !bytes.is_empty()
        {
            held_up.store(true, Ordering::Relaxed);
            if sender.send(bytes).await.is_err() {
                *slot = None;
            }
            held_up.store(false, Ordering::Relaxed);
        }
    }
}

async fn write<I: AsyncRead + AsyncWrite + Unpin>(
    mut sink: Sending<I>,
    mut queue: mpsc::Receiver<Message>,
    held_up: &AtomicBool,
    gone: &CancellationToken,
) -> Result<(), tungstenite::Error> {
    let mut tick = tokio::time::interval_at(tokio::time::Instant::now() + SIGN_OF_LIFE, SIGN_OF_LIFE);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            message = queue.recv() => match message {
                Some(message) => {
                    let last = matches!(message, Message::Close(_));
                    sink.send(message).await?;
                    if last {
                        return Ok(());
                    }
                }
                None => return Ok(()),
            },
            _ = tick.tick() => if held_up.load(Ordering::Relaxed) {
                sink.send(Message::Pong(Bytes::new())).await?;
            },
            () = gone.cancelled() => return Ok(()),
        }
    }
}

/// Writes to one channel. Its end is not sent: the protocol has no message for it.
pub struct ChannelWriter {
    channel: u8,
    sender: PollSender<Message>,
}

impl AsyncWrite for ChannelWriter {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.sender.poll_reserve(cx)).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        let piece = &bytes[..bytes.len().min(PIECE)];
        let mut message = BytesMut::with_capacity(1 + piece.len());
        message.put_u8(self.channel);
        message.put_slice(piece);
        self.sender.send_item(Message::Binary(message.freeze())).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Poll::Ready(Ok(piece.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.sender.close();
        Poll::Ready(Ok(()))
    }
}
