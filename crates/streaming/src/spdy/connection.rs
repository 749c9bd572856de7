//! SPDY connection: streams, flow control, pings.
//!
//! Tasks: a reader, which takes frames apart and fills the streams' buffers, and a writer, which alone compresses headers
//! and writes. They and the streams meet in one [`Inner`] behind a lock that is held for moments only.
//!
//! Flow control. Go's implementation (moby/spdystream), which kubectl, upstream's API server and containerd use, neither
//! keeps within windows nor gives room back. So windows bind us from the moment a peer shows that it knows them (by
//! SETTINGS or WINDOW_UPDATE), and a peer that does not is held back by not reading from it while a stream's buffer is
//! full; [`Limits::stalled`] says for how long, since that stops its other streams too.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use thiserror_ext::AsReport as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::frame::{Decoder, Frame, FrameError, INITIAL_WINDOW, reset};
use super::headers::{Compressor, Decompressor, HeaderError, Headers};
use super::stream::{Incoming, Stream};

/// Room of a stream before anybody says otherwise.
const DEFAULT_WINDOW: i64 = 64 << 10;
/// Room for all streams together that we give; renewed as data comes, so that only the streams' own windows bind.
const SESSION_WINDOW: u32 = 1 << 30;
/// After how much data the room for all is renewed.
const SESSION_STEP: u32 = 1 << 20;
/// Data that waits for the writer before streams have to.
pub(super) const QUEUED: usize = 128 << 10;
/// Frames that wait for a peer that sends but does not read.
const MOST_WAITING: usize = 4096;
/// Bytes the writer puts together.
const BATCH: usize = 64 << 10;
/// How long a peer may take to answer that it accepts a stream.
const REPLY: Duration = Duration::from_secs(30);

/// How often a peer that is held back is asked for a sign of life: each hop on the way needs two to notice that the next is gone.
const SIGN_OF_LIFE: Duration = Duration::from_secs(3);

/// Which end of a connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Begins streams with odd numbers.
    Client,
    /// Begins streams with even numbers.
    Server,
}

/// What a peer may make us hold.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Streams at once.
    pub streams: usize,
    /// Bytes waiting in one stream.
    pub window: u32,
    /// How long a full stream may hold up the others of a peer without flow control before it is reset; None for ever.
    pub stalled: Option<Duration>,
    /// How long nothing may happen.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { streams: 4096, window: 256 << 10, stalled: None, idle: Duration::from_secs(4 * 3600) }
    }
}

/// Why a connection or a stream ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The bytes are no SPDY/3.1.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The headers cannot be read.
    #[error(transparent)]
    Headers(#[from] HeaderError),
    /// The transport failed.
    #[error("the connection failed")]
    Io(#[from] io::Error),
    /// The connection has ended.
    #[error("the connection has ended")]
    Closed,
    /// The peer refused or reset a stream.
    #[error("the peer reset the stream (status {0})")]
    Reset(u32),
    /// The peer did not answer.
    #[error("the peer did not answer within {} s", REPLY.as_secs())]
    NoReply,
    /// The peer sends and does not read.
    #[error("the peer leaves {MOST_WAITING} frames unread")]
    Unread,
    /// Nothing happened for too long.
    #[error("nothing happened for {} s", .0.as_secs())]
    Idle(Duration),
}

/// What the writer is to send. Headers are compressed when their turn comes.
pub(super) enum Out {
    Frame(Frame),
    Syn { stream: u32, fin: bool, headers: Headers },
    Reply { stream: u32 },
}

/// One stream, as the connection knows it: as long as a half of it is held here, or its peer may send more.
pub(super) struct State {
    pub inbound: VecDeque<Bytes>,
    pub inbound_len: usize,
    pub inbound_fin: bool,
    pub sent_fin: bool,
    pub reset: Option<u32>,
    pub reader: Option<Waker>,
    pub writer: Option<Waker>,
    pub receiver_gone: bool,
    pub sender_gone: bool,
    /// Room that the peer has left.
    pub receive_window: i64,
    /// Read since room was given back.
    pub consumed: u32,
    /// Room that we have left.
    pub send_window: i64,
    reply: Option<oneshot::Sender<Result<(), Error>>>,
}

impl State {
    fn new(limits: &Limits, send_window: i64) -> Self {
        State {
            inbound: VecDeque::new(),
            inbound_len: 0,
            inbound_fin: false,
            sent_fin: false,
            reset: None,
            reader: None,
            writer: None,
            receiver_gone: false,
            sender_gone: false,
            receive_window: i64::from(limits.window),
            consumed: 0,
            send_window,
            reply: None,
        }
    }

    pub fn wake(&mut self) {
        self.reader.take().into_iter().chain(self.writer.take()).for_each(Waker::wake);
    }

    /// It has no reader any more.
    fn is_over(&self) -> bool {
        self.receiver_gone && self.sender_gone && (self.reset.is_some() || self.inbound_fin && self.sent_fin)
    }
}

pub(super) struct Inner {
    pub streams: HashMap<u32, State>,
    outgoing: VecDeque<Out>,
    pub queued: usize,
    /// Streams that wait for the writer to make room.
    pub blocked: VecDeque<Waker>,
    pub session_window: i64,
    /// Bytes that came since room for all was given back.
    session_received: u32,
    peer_window: i64,
    pub peer_counts: bool,
    next: u32,
    last_of_peer: u32,
    /// No new streams; the writer ends when it has written everything.
    closing: bool,
    /// The peer accepts no new streams.
    peer_closing: bool,
    pub closed: bool,
    active: Instant,
}

impl Inner {
    pub fn send(&mut self, frame: Frame) {
        self.outgoing.push_back(Out::Frame(frame));
    }

    /// Forgets a stream that is over.
    pub fn tidy(&mut self, id: u32) {
        if self.streams.get(&id).is_some_and(State::is_over) {
            self.streams.remove(&id);
        }
    }

    /// Resets a stream from this side.
    pub fn reset(&mut self, id: u32, status: u32) {
        if let Some(state) = self.streams.get_mut(&id).filter(|state| state.reset.is_none()) {
            state.reset = Some(status);
            state.inbound.clear();
            state.inbound_len = 0;
            state.wake();
            self.send(Frame::RstStream { stream: id, status });
        }
        self.tidy(id);
    }

    fn fail(&mut self) {
        self.closed = true;
        for state in self.streams.values_mut() {
            state.wake();
            if let Some(reply) = state.reply.take() {
                let _ = reply.send(Err(Error::Closed));
            }
        }
        self.blocked.drain(..).for_each(Waker::wake);
    }
}

/// What the tasks and the streams share.
pub(super) struct Shared {
    inner: Mutex<Inner>,
    pub limits: Limits,
    /// Something is to be written.
    pub work: Notify,
    /// A stream's buffer has room again.
    pub drained: Notify,
    ended: CancellationToken,
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        self.lock().fail();
        self.work.notify_one();
        self.drained.notify_one();
        self.ended.cancel();
    }
}

/// A connection. Dropping it ends it and its streams at once; [`Connection::close`] lets what was sent arrive.
pub struct Connection {
    shared: Arc<Shared>,
    incoming: mpsc::Receiver<Incoming>,
    reader: JoinHandle<()>,
    writer: JoinHandle<()>,
}

impl Connection {
    /// A connection over `io`, whose tasks begin at once. Must be called within a tokio runtime.
    pub fn new<I>(io: I, role: Role, limits: Limits) -> Self
    where
        I: AsyncRead + AsyncWrite + Send + 'static,
    {
        let mut inner = Inner {
            streams: HashMap::new(),
            outgoing: VecDeque::new(),
            queued: 0,
            blocked: VecDeque::new(),
            session_window: DEFAULT_WINDOW,
            session_received: 0,
            peer_window: DEFAULT_WINDOW,
            peer_counts: false,
            next: if role == Role::Client { 1 } else { 2 },
            last_of_peer: 0,
            closing: false,
            peer_closing: false,
            closed: false,
            active: Instant::now(),
        };
        inner.send(Frame::Settings(vec![(INITIAL_WINDOW, limits.window)]));
        inner.send(Frame::WindowUpdate { stream: 0, delta: SESSION_WINDOW });
        let shared =
            Arc::new(Shared { inner: Mutex::new(inner), limits, work: Notify::new(), drained: Notify::new(), ended: CancellationToken::new() });
        let (read, write) = tokio::io::split(io);
        let (sender, incoming) = mpsc::channel(64);
        let reader = Reader { shared: Arc::clone(&shared), role, incoming: sender, headers: Decompressor::new() };
        let reader = tokio::spawn(reader.run(read));
        let writer = tokio::spawn(write_all(Arc::clone(&shared), write));
        Self { shared, incoming, reader, writer }
    }

    /// The next stream that the peer begins; None once there will be no more.
    pub async fn next(&mut self) -> Option<Incoming> {
        self.incoming.recv().await
    }

    /// Begins a stream and waits until the peer accepts it: what is sent earlier is lost with Go's implementation.
    ///
    /// # Errors
    /// When the peer refuses or the connection ends.
    pub async fn open(&self, headers: Headers) -> Result<Stream, Error> {
        let (sender, answer) = oneshot::channel();
        let stream = {
            let mut inner = self.shared.lock();
            if inner.closed || inner.closing || inner.peer_closing || inner.next > 0x7fff_fffd {
                return Err(Error::Closed);
            }
            let id = inner.next;
            inner.next += 2;
            let window = inner.peer_window;
            let state = State { reply: Some(sender), ..State::new(&self.shared.limits, window) };
            inner.streams.insert(id, state);
            inner.outgoing.push_back(Out::Syn { stream: id, fin: false, headers: headers.clone() });
            Stream::new(&self.shared, id, headers)
        };
        self.shared.work.notify_one();
        match tokio::time::timeout(REPLY, answer).await {
            Ok(Ok(Ok(()))) => Ok(stream),
            Ok(Ok(Err(error))) => Err(error),
            Ok(Err(_)) => Err(Error::Closed),
            Err(_) => Err(Error::NoReply),
        }
    }

    /// Resolves when the peer is gone or the connection has failed.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let ended = self.shared.ended.clone();
        async move { ended.cancelled().await }
    }

    /// Sends what is queued, then says that nothing more comes, then waits up to `linger` for the peer to have read it all and to end
    /// the connection: closing earlier makes kernels throw away what a slow peer has not read yet.
    pub async fn close(mut self, linger: Duration) {
        {
            let mut inner = self.shared.lock();
            let last = inner.last_of_peer;
            inner.send(Frame::GoAway { last, status: 0 });
            inner.closing = true;
        }
        self.shared.work.notify_one();
        let _ = tokio::time::timeout(linger, &mut self.reader).await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.reader.abort();
        self.writer.abort();
        self.shared.end();
    }
}

struct Reader {
    shared: Arc<Shared>,
    role: Role,
    incoming: mpsc::Sender<Incoming>,
    headers: Decompressor,
}

impl Reader {
    async fn run<I: AsyncRead>(mut self, read: I) {
        if let Err(error) = self.read(read).await {
            tracing::debug!(error = %error.as_report(), "a SPDY connection ended");
        }
        self.shared.end();
    }

    async fn read<I: AsyncRead>(&mut self, read: I) -> Result<(), Error> {
        let mut read = std::pin::pin!(read);
        let (mut decoder, mut buffer) = (Decoder::default(), BytesMut::new());
        loop {
            while let Some(frame) = decoder.next(&mut buffer)? {
                self.take(frame).await?;
            }
            buffer.reserve(16 << 10);
            let limit = self.shared.limits.idle;
            match tokio::time::timeout(limit, read.read_buf(&mut buffer)).await {
                Ok(read) => {
                    if read? == 0 {
                        return Ok(());
                    }
                }
                Err(_) if self.shared.lock().active.elapsed() >= limit => return Err(Error::Idle(limit)),
                Err(_) => {}
            }
        }
    }

    async fn take(&mut self, frame: Frame) -> Result<(), Error> {
        match frame {
            Frame::SynStream { stream, fin, unidirectional, block, .. } => {
                let headers = self.headers.decompress(&block)?;
                self.begin(stream, fin, unidirectional, headers).await;
            }
            Frame::SynReply { stream, fin, block } => {
                self.headers.decompress(&block)?;
                self.replied(stream, fin);
            }
            Frame::Headers { stream, fin, block } => {
                self.headers.decompress(&block)?;
                if fin {
                    self.finish(stream);
                }
            }
            Frame::Data { stream, fin, payload } => {
                self.data(stream, fin, payload);
                self.hold_back(stream).await;
            }
            Frame::RstStream { stream, status } => self.was_reset(stream, status),
            Frame::Settings(settings) => self.settings(&settings),
            Frame::WindowUpdate { stream, delta } => self.more_room(stream, delta),
            // Ours have the parity of our streams; nobody asks for them.
            Frame::Ping(id) if self.is_ours(id) => {}
            Frame::Ping(id) => self.shared.lock().send(Frame::Ping(id)),
            Frame::GoAway { .. } => self.shared.lock().peer_closing = true,
        }
        let waiting = self.shared.lock().outgoing.len();
        if waiting > 0 {
            self.shared.work.notify_one();
        }
        if waiting > MOST_WAITING { Err(Error::Unread) } else { Ok(()) }
    }

    /// Whether a number is one of those that we give.
    fn is_ours(&self, id: u32) -> bool {
        (id % 2 == 1) == (self.role == Role::Client)
    }

    async fn begin(&mut self, id: u32, fin: bool, unidirectional: bool, headers: Headers) {
        let stream = {
            let mut inner = self.shared.lock();
            let status = if self.is_ours(id) || id <= inner.last_of_peer {
                Some(reset::PROTOCOL_ERROR)
            } else if inner.closing || inner.streams.len() >= self.shared.limits.streams {
                Some(reset::REFUSED_STREAM)
            } else {
                None
            };
            inner.last_of_peer = inner.last_of_peer.max(id);
            if let Some(status) = status {
                return inner.send(Frame::RstStream { stream: id, status });
            }
            let window = inner.peer_window;
            let state = State { inbound_fin: fin, sent_fin: unidirectional, ..State::new(&self.shared.limits, window) };
            inner.streams.insert(id, state);
            Stream::new(&self.shared, id, headers)
        };
        // There is no listener any more: the drop refuses.
        let _ = self.incoming.send(Incoming::new(stream)).await;
    }

    fn replied(&self, id: u32, fin: bool) {
        if let Some(state) = self.shared.lock().streams.get_mut(&id)
            && let Some(reply) = state.reply.take()
        {
            let _ = reply.send(Ok(()));
        }
        if fin {
            self.finish(id);
        }
    }

    fn finish(&self, id: u32) {
        let mut inner = self.shared.lock();
        if let Some(state) = inner.streams.get_mut(&id) {
            state.inbound_fin = true;
            state.wake();
        }
        inner.tidy(id);
    }

    fn data(&self, id: u32, fin: bool, payload: Bytes) {
        let mut inner = self.shared.lock();
        inner.active = Instant::now();
        inner.session_received = inner.session_received.saturating_add(payload.len() as u32);
        if inner.session_received >= SESSION_STEP && inner.peer_counts {
            let delta = std::mem::take(&mut inner.session_received);
            inner.send(Frame::WindowUpdate { stream: 0, delta });
        }
        let known = if self.is_ours(id) { id < inner.next } else { id <= inner.last_of_peer };
        let counts = inner.peer_counts;
        let Some(state) = inner.streams.get_mut(&id) else {
            if !known {
                inner.send(Frame::RstStream { stream: id, status: reset::INVALID_STREAM });
            }
            return;
        };
        if state.reset.is_some() || state.inbound_fin {
            return;
        }
        let length = payload.len();
        state.receive_window -= length as i64;
        if counts && state.receive_window < 0 {
            return inner.reset(id, reset::FLOW_CONTROL_ERROR);
        }
        let mut back = None;
        if state.receiver_gone {
            // It is not read, and the peer need not wait.
            state.receive_window += length as i64;
            back = (counts && length > 0).then_some(length as u32);
        } else if length > 0 {
            state.inbound.push_back(payload);
            state.inbound_len += length;
        }
        state.inbound_fin = fin;
        state.reader.take().into_iter().for_each(Waker::wake);
        if let Some(delta) = back {
            inner.send(Frame::WindowUpdate { stream: id, delta });
        }
        inner.tidy(id);
    }

    /// Waits while a stream holds more than it may.
    async fn hold_back(&self, id: u32) {
        let full = || {
            let inner = self.shared.lock();
            !inner.closed
                && inner.streams.get(&id).is_some_and(|state| !state.receiver_gone && state.inbound_len > self.shared.limits.window as usize)
        };
        let wait = async {
            while full() {
                if tokio::time::timeout(SIGN_OF_LIFE, self.shared.drained.notified()).await.is_err() {
                    // Nothing is read meanwhile, not even the end of the connection: a write shows it.
                    let id = if self.role == Role::Client { 1 } else { 2 };
                    self.shared.lock().send(Frame::Ping(id));
                    self.shared.work.notify_one();
                }
            }
        };
        match self.shared.limits.stalled {
            None => wait.await,
            Some(limit) => {
                if full() && tokio::time::timeout(limit, wait).await.is_err() {
                    self.shared.lock().reset(id, reset::FLOW_CONTROL_ERROR);
                }
            }
        }
    }

    fn was_reset(&self, id: u32, status: u32) {
        let mut inner = self.shared.lock();
        if let Some(state) = inner.streams.get_mut(&id) {
            // What came before stays to be read, as in Go: containerd writes a program's exit code and resets the stream.
            state.reset = Some(status);
            if let Some(reply) = state.reply.take() {
                let _ = reply.send(Err(Error::Reset(status)));
            }
            state.wake();
        }
        inner.tidy(id);
    }

    fn settings(&self, settings: &[(u32, u32)]) {
        let mut inner = self.shared.lock();
        inner.peer_counts = true;
        for (_, value) in settings.iter().filter(|(id, _)| *id == INITIAL_WINDOW) {
            let change = i64::from(value & 0x7fff_ffff) - inner.peer_window;
            inner.peer_window += change;
            for state in inner.streams.values_mut() {
                state.send_window += change;
                state.wake();
            }
        }
    }

    fn more_room(&self, id: u32, delta: u32) {
        let mut inner = self.shared.lock();
        inner.peer_counts = true;
        // More than 2^31 is an error of the peer without harm.
        if id == 0 {
            inner.session_window = inner.session_window.saturating_add(delta.into());
            inner.streams.values_mut().for_each(State::wake);
        } else if let Some(state) = inner.streams.get_mut(&id) {
            state.send_window = state.send_window.saturating_add(delta.into());
            state.wake();
        }
    }
}

/// Writes until everything is written and the connection is closing, or it fails.
async fn write_all<O: AsyncWrite>(shared: Arc<Shared>, write: O) {
    let mut write = std::pin::pin!(write);
    let (mut headers, mut batch) = (Compressor::new(), BytesMut::new());
    loop {
        let last = fill(&shared, &mut headers, &mut batch);
        if batch.is_empty() {
            if last {
                // The reader goes on until the peer has read everything.
                let _ = write.shutdown().await;
                return;
            }
            shared.work.notified().await;
            continue;
        }
        let written = async {
            write.write_all_buf(&mut batch).await?;
            write.flush().await
        };
        if let Err(error) = written.await {
            tracing::debug!(%error, "writing to a SPDY connection failed");
            return shared.end();
        }
    }
}

/// Takes frames into `batch`; true when nothing comes after them.
fn fill(shared: &Shared, headers: &mut Compressor, batch: &mut BytesMut) -> bool {
    let mut inner = shared.lock();
    inner.active = Instant::now();
    while batch.len() < BATCH
        && let Some(out) = inner.outgoing.pop_front()
    {
        match out {
            Out::Frame(frame) => {
                if let Frame::Data { payload, .. } = &frame {
                    inner.queued -= payload.len();
                }
                frame.encode(batch);
            }
            Out::Syn { stream, fin, headers: pairs } => {
                let block = headers.compress(&pairs);
                Frame::SynStream { stream, associated: 0, priority: 0, fin, unidirectional: false, block }.encode(batch);
            }
            Out::Reply { stream } => Frame::SynReply { stream, fin: false, block: headers.compress(&Headers::default()) }.encode(batch),
        }
    }
    if inner.queued < QUEUED {
        inner.blocked.drain(..).for_each(Waker::wake);
    }
    inner.outgoing.is_empty() && (inner.closing || inner.closed)
}

impl Shared {
    /// Accepts a stream of the peer's.
    pub fn reply(&self, id: u32) {
        self.lock().outgoing.push_back(Out::Reply { stream: id });
        self.work.notify_one();
    }
}
