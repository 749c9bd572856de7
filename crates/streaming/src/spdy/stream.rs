//! SPDY stream: two independent halves.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connection::{QUEUED, Shared};
use super::frame::{Frame, reset};
use super::headers::Headers;

/// Most bytes of one data frame that we send: small enough that other streams get their turn.
const PIECE: usize = 16 << 10;

/// A stream that the peer has begun and that waits for an answer. Dropping it refuses.
pub struct Incoming(Option<Stream>);

impl Incoming {
    pub(super) fn new(stream: Stream) -> Self {
        Self(Some(stream))
    }

    /// What the peer says of it.
    pub fn headers(&self) -> &Headers {
        // There until `accept` takes it, which takes self.
        static NONE: std::sync::LazyLock<Headers> = std::sync::LazyLock::new(Headers::default);
        self.0.as_ref().map_or(&NONE, |stream| &stream.headers)
    }

    pub fn accept(mut self) -> Option<Stream> {
        let stream = self.0.take()?;
        stream.receive.shared.reply(stream.id);
        Some(stream)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Some(stream) = self.0.take() {
            stream.reset(reset::REFUSED_STREAM);
        }
    }
}

pub struct Stream {
    pub id: u32,
    /// What it began with.
    pub headers: Headers,
    /// What the peer sends.
    pub receive: ReceiveHalf,
    /// What is sent to the peer.
    pub send: SendHalf,
}

impl Stream {
    pub(super) fn new(shared: &Arc<Shared>, id: u32, headers: Headers) -> Self {
        let receive = ReceiveHalf { shared: Arc::clone(shared), id };
        let send = SendHalf { shared: Arc::clone(shared), id };
        Self { id, headers, receive, send }
    }

    /// Ends it at once, both ways, with a status of [`reset`].
    pub fn reset(self, status: u32) {
        self.send.reset(status);
    }
}

/// What the peer sends. Dropping it throws away what it sends from now on.
pub struct ReceiveHalf {
    shared: Arc<Shared>,
    id: u32,
}

/// What is sent to the peer. Dropping it says that nothing more comes.
pub struct SendHalf {
    shared: Arc<Shared>,
    id: u32,
}

impl SendHalf {
    /// Ends the stream at once, both ways.
    pub fn reset(&self, status: u32) {
        self.shared.lock().reset(self.id, status);
        self.shared.work.notify_one();
    }

    fn finish(&self) {
        let mut inner = self.shared.lock();
        if inner.closed {
            return;
        }
        if let Some(state) = inner.streams.get_mut(&self.id).filter(|state| !state.sent_fin && state.reset.is_none()) {
            state.sent_fin = true;
            inner.send(Frame::Data { stream: self.id, fin: true, payload: Bytes::new() });
            self.shared.work.notify_one();
        }
    }
}

impl AsyncRead for ReceiveHalf {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.shared.lock();
        let (closed, counts) = (inner.closed, inner.peer_counts);
        let Some(state) = inner.streams.get_mut(&self.id) else { return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into())) };
        let Some(first) = state.inbound.front_mut() else {
            if state.reset.is_some() {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            if state.inbound_fin {
                return Poll::Ready(Ok(()));
            }
            if closed {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            state.reader = Some(cx.waker().clone());
            return Poll::Pending;
        };
        let count = first.len().min(buffer.remaining());
        buffer.put_slice(&first[..count]);
        first.advance(count);
        if first.is_empty() {
            state.inbound.pop_front();
        }
        state.inbound_len -= count;
        state.consumed += count as u32;
        let mut back = None;
        if counts && state.consumed >= self.shared.limits.window / 2 && !state.inbound_fin && state.reset.is_none() {
            let delta = std::mem::take(&mut state.consumed);
            state.receive_window += i64::from(delta);
            back = Some(delta);
        }
        self.shared.drained.notify_one();
        if let Some(delta) = back {
            inner.send(Frame::WindowUpdate { stream: self.id, delta });
            self.shared.work.notify_one();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SendHalf {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut inner = self.shared.lock();
        let (closed, counts, session, room) = (inner.closed, inner.peer_counts, inner.session_window, inner.queued < QUEUED);
        let Some(state) = inner.streams.get_mut(&self.id).filter(|_| !closed) else {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        };
        if state.reset.is_some() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if state.sent_fin {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        if !room {
            inner.blocked.push_back(cx.waker().clone());
            return Poll::Pending;
        }
        let allowed = if counts { usize::try_from(state.send_window.min(session)).unwrap_or(0) } else { PIECE };
        let count = bytes.len().min(PIECE).min(allowed);
        if count == 0 {
            state.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        state.send_window -= count as i64;
        inner.session_window -= count as i64;
        inner.queued += count;
        inner.send(Frame::Data { stream: self.id, fin: false, payload: Bytes::copy_from_slice(&bytes[..count]) });
        self.shared.work.notify_one();
        Poll::Ready(Ok(count))
    }

    /// Nothing: what was written is on its way.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.finish();
        Poll::Ready(Ok(()))
    }
}

impl Drop for ReceiveHalf {
    fn drop(&mut self) {
        let mut inner = self.shared.lock();
        let counts = inner.peer_counts;
        let mut back = None;
        if let Some(state) = inner.streams.get_mut(&self.id) {
            state.receiver_gone = true;
            state.inbound.clear();
            let unread = std::mem::take(&mut state.inbound_len) as u32 + std::mem::take(&mut state.consumed);
            state.receive_window += i64::from(unread);
            back = Some(unread).filter(|unread| counts && *unread > 0 && !state.inbound_fin && state.reset.is_none());
        }
        if let Some(delta) = back {
            inner.send(Frame::WindowUpdate { stream: self.id, delta });
        }
        inner.tidy(self.id);
        drop(inner);
        self.shared.drained.notify_one();
        self.shared.work.notify_one();
    }
}

impl Drop for SendHalf {
    fn drop(&mut self) {
        self.finish();
        let mut inner = self.shared.lock();
        if let Some(state) = inner.streams.get_mut(&self.id) {
            state.sender_gone = true;
        }
        inner.tidy(self.id);
    }
}
