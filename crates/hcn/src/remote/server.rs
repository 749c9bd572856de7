//! The server half: the requests of one connection, answered as each call ends.
//!
//! Threads take turns at reading: the one that has read a request passes the stream on and makes the call, so that a call that hangs
//! delays no other. A peer that waits for each answer is served by two threads in turn. At [`CALLS`] calls under way the next request
//! stays in the socket until one of them ends.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Answer, Request, Stream, read_frame, write_frame};
use crate::error::HResult;
use crate::port::{Event, EventSink, Function, HostNetwork, RawError, Reply, SUBSCRIBE, Subscription};

/// The service behind a connection: its handles die when it is dropped.
pub type Session = Arc<dyn HostNetwork>;

/// How many calls of one connection may be under way at once: more than a client's places.
pub const CALLS: usize = 64;

/// How long a thread without work is kept.
const IDLE: Duration = Duration::from_secs(30);

/// Room for the stack of a thread: documents are shallow.
const STACK: usize = 512 << 10;

/// Serves one connection until the peer ends it. Over TCP the peer's first frame must carry `token`.
///
/// Requests are answered out of order. Bad JSON in a frame ends the connection. Calls under way when the peer goes away are left to end
/// on their own; this returns before they do, unless the calling thread makes one of them.
pub fn serve_connection(stream: Stream, session: &Session, token: Option<&str>) -> io::Result<()> {
    if stream.needs_token() {
        let hello = read_frame::<Request>(&mut &stream)?.and_then(|request| request.token).unwrap_or_default();
        // Everybody has an empty token.
        if !token.is_some_and(|token| !token.is_empty() && same(token.as_bytes(), hello.as_bytes())) {
            let denied = RawError::with_record(HResult::ACCESS_DENIED, "the token is wrong: set MULLION_HCN_TOKEN");
            return write_frame(&mut &stream, &Answer::new(1, Err(denied)));
        }
    }
    let peer = Arc::new(Peer { stream, writing: Mutex::default() });
    let connection = Arc::new(Connection { peer, session: session.clone(), state: Mutex::default(), changed: Condvar::new() });
    connection.lock().threads = 1;
    connection.serve(false);
    let broken = connection.lock().broken.take();
    broken.map_or(Ok(()), Err)
}

/// The stream, which one thread reads and any thread writes.
struct Peer {
    stream: Stream,
    /// Held while a frame is written.
    writing: Mutex<()>,
}

impl Peer {
    fn write(&self, answer: &Answer) -> io::Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        match write_frame(&mut &self.stream, answer) {
            // Too large a result: the caller gets an error instead of a broken connection.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                let refused = RawError::with_record(HResult::OUT_OF_MEMORY, &error.to_string());
                write_frame(&mut &self.stream, &Answer::new(answer.id.unwrap_or_default(), Err(refused)))
            }
            other => other,
        }
    }
}

struct Connection {
    peer: Arc<Peer>,
    session: Session,
    state: Mutex<State>,
    /// The stream can be read, or the connection has ended.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// A thread reads the stream.
    reading: bool,
    /// Threads of this connection, and how many of them wait to read.
    threads: usize,
    idle: usize,
    ended: bool,
    /// Why the connection ended, where the peer did not end it.
    broken: Option<io::Error>,
    subscription: Option<Subscription>,
    /// The service has ended the subscription: it has restarted.
    subscription_ended: bool,
}

impl Connection {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One thread: reads a request, lets another thread read, makes the call, and begins again.
    fn serve(self: &Arc<Self>, may_leave: bool) {
        while self.begin_reading(may_leave) {
            match read_frame::<Request>(&mut &self.peer.stream) {
                Ok(Some(request)) => {
                    self.pass_on();
                    self.answer(&request);
                }
                Ok(None) => self.end(None),
                Err(error) => self.end(Some(error)),
            }
        }
        self.lock().threads -= 1;
    }

    /// Waits for this thread's turn to read. False where the connection has ended, or where the thread may leave and was idle for long.
    fn begin_reading(&self, may_leave: bool) -> bool {
        let until = Instant::now() + IDLE;
        let mut state = self.lock();
        state.idle += 1;
        while state.reading && !state.ended {
            let left = until.saturating_duration_since(Instant::now());
            if may_leave && left.is_zero() {
                break;
            }
            // A thread that may not leave looks again.
            let pause = if may_leave { left } else { IDLE };
            state = self.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.idle -= 1;
        let turn = !state.reading && !state.ended;
        state.reading |= turn;
        turn
    }

    /// Lets another thread read, and starts one where none is idle.
    fn pass_on(self: &Arc<Self>) {
        let mut state = self.lock();
        state.reading = false;
        if state.idle > 0 {
            drop(state);
            self.changed.notify_one();
        } else if state.threads < CALLS {
            state.threads += 1;
            drop(state);
            let connection = self.clone();
            let thread = std::thread::Builder::new().name("hcn-call".into()).stack_size(STACK);
            if let Err(error) = thread.spawn(move || connection.serve(true)) {
                // This thread reads again when its call has ended.
                tracing::warn!(%error, "no thread for further calls of an HCN connection");
                self.lock().threads -= 1;
            }
        }
    }

    fn answer(self: &Arc<Self>, request: &Request) {
        let outcome = if request.call == SUBSCRIBE {
            self.subscribe()
        } else {
            request.call.parse::<Function>().and_then(|function| self.session.call(function, request.args.borrow()?))
        };
        if let Err(error) = self.peer.write(&Answer::new(request.id, outcome)) {
            self.end(Some(error));
        }
    }

    /// Subscribes once for all registrations of the peer, and again after the service has ended that.
    fn subscribe(self: &Arc<Self>) -> Result<Reply, RawError> {
        let ended = {
            let mut state = self.lock();
            if state.subscription.is_some() && !state.subscription_ended {
                return Ok(Reply::default());
            }
            state.subscription_ended = false;
            state.subscription.take()
        };
        // Outside the lock, as below.
        drop(ended);
        let (peer, connection) = (self.peer.clone(), Arc::downgrade(self));
        let sink: EventSink = Arc::new(move |event| {
            if event.event_type == Event::SERVICE_DISCONNECT
                && let Some(connection) = connection.upgrade()
            {
                connection.lock().subscription_ended = true;
            }
            // A peer that is gone needs no event; the reading thread notices it.
            let _ = peer.write(&Answer { event: Some(event), ..Answer::default() });
        });
        let mut made = Some(self.session.subscribe(sink)?);
        {
            let mut state = self.lock();
            if !state.ended && state.subscription.is_none() {
                state.subscription = made.take();
            }
        }
        // Outside the lock: a registration that is not needed ends.
        drop(made);
        Ok(Reply::default())
    }

    /// Ends the connection: nothing more is read, and the session learns that its calls have no caller any more.
    fn end(&self, broken: Option<io::Error>) {
        let subscription = {
            let mut state = self.lock();
            state.ended = true;
            // Also where the peer ended it: calls under way and sinks keep the stream open, and under Wine 8 a peer that shut down its own end
            // reads no end of stream before this end is shut down.
            self.peer.stream.shutdown();
            state.broken = state.broken.take().or(broken);
            state.subscription.take()
        };
        self.changed.notify_all();
        drop(subscription);
        self.session.disconnect();
    }
}

/// Compares in a time that does not depend on where the texts differ.
fn same(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len() && left.iter().zip(right).fold(0, |differences, (a, b)| differences | (a ^ b)) == 0
}
