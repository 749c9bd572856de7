//! The client half: calls from many threads over one connection, which is made when first needed and again after it was lost.
//!
//! Answers are matched with their calls by id, in whatever order they come. There is no time limit here, as there is none in the DLL:
//! [`crate::HcnClient`] has it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::{Address, AddressError, Answer, Request, Stream, read_frame, write_frame};
use crate::error::{HResult, HcnError};
use crate::port::{Args, Event, EventSink, Function, Handle, HostNetwork, RawError, Reply, SUBSCRIBE, Subscription};

/// Room for the reader thread's stack: it only moves frames.
const READER_STACK: usize = 256 << 10;

/// A Host Networking Service at the other end of a socket.
pub struct RemoteHcn {
    address: Address,
    token: Option<String>,
    connection: Mutex<Option<Arc<Connection>>>,
    /// Handles that callers got, over all connections: one of an earlier connection is dead, though the next one gives the same numbers.
    last_handle: AtomicU64,
}

/// One connection with its reader thread, which ends with it.
struct Connection {
    stream: Stream,
    /// Held while a frame is written.
    writing: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last_id: u64,
    closed: bool,
    waiting: HashMap<u64, SyncSender<Answer>>,
    /// The service's handles, by the numbers that callers have.
    handles: HashMap<u64, Handle>,
    sinks: HashMap<u64, EventSink>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RemoteHcn {
    /// A client of the service at `address` (`unix:PATH` or `tcp:HOST:PORT`). The token for TCP is taken from `MULLION_HCN_TOKEN`.
    ///
    /// The service need not run yet: each call connects when it must, and answers 0x800706d9 where it cannot.
    pub fn connect(address: &str) -> Result<Self, HcnError> {
        Self::with_token(address, std::env::var("MULLION_HCN_TOKEN").ok())
    }

    /// As [`RemoteHcn::connect`], with that token.
    pub fn with_token(address: &str, token: Option<String>) -> Result<Self, HcnError> {
        let address = address.parse().map_err(|error: AddressError| HcnError::Unavailable(error.to_string()))?;
        Ok(Self { address, token, connection: Mutex::new(None), last_handle: AtomicU64::new(0) })
    }

    fn connection(&self) -> Result<Arc<Connection>, RawError> {
        let mut slot = lock(&self.connection);
        if let Some(connection) = slot.as_ref().filter(|connection| !lock(&connection.state).closed) {
            return Ok(connection.clone());
        }
        let refused = |error: std::io::Error| RawError::with_record(HResult::RPC_NOT_REGISTERED, &format!("{}: {error}", self.address));
        let mut stream = self.address.connect().map_err(refused)?;
        if stream.needs_token() {
            let hello = Request { token: Some(self.token.clone().unwrap_or_default()), ..Request::default() };
            write_frame(&mut stream, &hello).map_err(refused)?;
        }
        let reader = stream.try_clone().map_err(refused)?;
        let connection = Arc::new(Connection { stream, writing: Mutex::default(), state: Mutex::default() });
        let weak = Arc::downgrade(&connection);
        let thread = std::thread::Builder::new().name("hcn-reader".into()).stack_size(READER_STACK);
        thread.spawn(move || read_answers(reader, &weak)).map_err(refused)?;
        *slot = Some(connection.clone());
        Ok(connection)
    }
}

impl Drop for RemoteHcn {
    fn drop(&mut self) {
        self.disconnect();
    }
}

/// Hands each frame to the waiting call or the sinks, until the connection ends; then every call fails and every sink gets a disconnect.
fn read_answers(mut reader: Stream, connection: &Weak<Connection>) {
    loop {
        let frame = read_frame::<Answer>(&mut reader);
        let Some(connection) = connection.upgrade() else { return };
        match frame {
            Ok(Some(Answer { event: Some(event), .. })) => connection.notify(&event),
            Ok(Some(answer)) => {
                let waiter = answer.id.and_then(|id| lock(&connection.state).waiting.remove(&id));
                if let Some(waiter) = waiter {
                    // The caller may have given up; the answer is then dropped.
                    let _ = waiter.send(answer);
                }
            }
            Ok(None) | Err(_) => {
                if let Err(error) = frame {
                    tracing::debug!(%error, "the HCN connection broke");
                }
                connection.close();
                return;
            }
        }
    }
}

impl Connection {
    fn notify(&self, event: &Event) {
        let sinks: Vec<EventSink> = lock(&self.state).sinks.values().cloned().collect();
        for sink in sinks {
            sink(event.clone());
        }
    }

    fn close(&self) {
        self.stream.shutdown();
        let sinks = {
            let mut state = lock(&self.state);
            state.closed = true;
            state.waiting.clear();
            std::mem::take(&mut state.sinks)
        };
        for sink in sinks.into_values() {
            sink(Event { event_type: Event::SERVICE_DISCONNECT, status: HResult::OK, data: None });
        }
    }

    /// The service's handle for the number that a caller has.
    fn at_service(&self, handle: Option<Handle>) -> Result<Option<Handle>, RawError> {
        let find = |handle: Handle| lock(&self.state).handles.get(&handle.0).copied().ok_or(HResult::INVALID_HANDLE.into());
        handle.map(find).transpose()
    }

    fn exchange(&self, call: String, args: Args<'_>) -> Result<Reply, RawError> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let id = {
            let mut state = lock(&self.state);
            if state.closed {
                return Err(HResult::RPC_CALL_FAILED_DNE.into());
            }
            state.last_id += 1;
            let id = state.last_id;
            state.waiting.insert(id, sender);
            id
        };
        let request = Request { id, call, args: args.into(), token: None };
        let written = {
            let _writing = lock(&self.writing);
            write_frame(&mut &self.stream, &request)
        };
        if let Err(error) = written {
            lock(&self.state).waiting.remove(&id);
            if error.kind() == std::io::ErrorKind::InvalidInput {
                return Err(RawError::with_record(HResult::INVALID_PARAMETER, &error.to_string()));
            }
            self.close();
            return Err(RawError::with_record(HResult::RPC_CALL_FAILED_DNE, &error.to_string()));
        }
        match receiver.recv() {
            Ok(answer) => answer.outcome(),
            // The connection ended.
            Err(_) => Err(HResult::RPC_CALL_FAILED.into()),
        }
    }
}

/// Ends one registration.
struct Registration {
    connection: Weak<Connection>,
    id: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.upgrade() {
            lock(&connection.state).sinks.remove(&self.id);
        }
    }
}

impl HostNetwork for RemoteHcn {
    fn call(&self, function: Function, args: Args<'_>) -> Result<Reply, RawError> {
        let connection = self.connection()?;
        let own = args.handle;
        let args = Args { handle: connection.at_service(own)?, network: connection.at_service(args.network)?, ..args };
        let reply = connection.exchange(function.to_string(), args)?;
        let mut state = lock(&connection.state);
        if let (Function::Close(_), Some(closed)) = (function, own) {
            state.handles.remove(&closed.0);
        }
        let handle = reply.handle.map(|handle| {
            let number = self.last_handle.fetch_add(1, Ordering::Relaxed) + 1;
            state.handles.insert(number, handle);
            Handle(number)
        });
        Ok(Reply { handle, ..reply })
    }

    fn subscribe(&self, sink: EventSink) -> Result<Subscription, RawError> {
        let connection = self.connection()?;
        let id = {
            let mut state = lock(&connection.state);
            state.last_id += 1;
            let id = state.last_id;
            state.sinks.insert(id, sink);
            id
        };
        let registration = Registration { connection: Arc::downgrade(&connection), id };
        connection.exchange(SUBSCRIBE.to_owned(), Args::default())?;
        Ok(Subscription::new(registration))
    }

    /// Ends the connection; calls under way fail. A further call makes another connection.
    fn disconnect(&self) {
        let connection = lock(&self.connection).take();
        if let Some(connection) = connection {
            connection.close();
        }
    }
}

#[cfg(test)]
impl RemoteHcn {
    /// Cuts the connection as a crash of the service would.
    pub(super) fn break_connection(&self) {
        if let Some(connection) = lock(&self.connection).as_ref() {
            connection.stream.shutdown();
        }
    }
}
