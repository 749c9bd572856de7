//! A port whose calls end: each runs on a thread of a bounded pool and is given up after a time.
//!
//! The real service is known to hang: a call then never returns, and nothing can end its thread. Here its caller gets
//! [`HResult::TIMEOUT`] instead, the thread stays counted until the service lets it go, and a handle that such a call opens after all is
//! closed again. When every thread of the pool hangs, further calls are refused at once with what to do, so that callers do not pile up.
//! What hangs is logged when it is given up and again when it ends.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::HResult;
use crate::port::{Args, EventSink, Function, HostNetwork, OwnedArgs, RawError, Reply, Subscription};

/// How many calls may be under way at once, and how long one may take. Creating the first network on a host can take a minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Calls at once.
    pub calls: usize,
    /// How long a call may take, waiting for its turn included.
    pub timeout: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { calls: 8, timeout: Duration::from_secs(120) }
    }
}

/// A port whose calls end.
pub struct Bounded {
    port: Arc<dyn HostNetwork>,
    bounds: Bounds,
    pool: Arc<Pool>,
}

#[derive(Default)]
struct Pool {
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Default)]
struct State {
    last: u64,
    /// Calls under way by number; those given up stay until the service lets them go.
    running: BTreeMap<u64, Running>,
}

struct Running {
    function: Function,
    since: Instant,
    given_up: bool,
}

/// A call that the service has not answered in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hung {
    /// The function.
    pub function: Function,
    /// For how long it has been under way.
    pub age: Duration,
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place in the pool, or none before `until`; none at once where every place hangs.
    fn enter(&self, function: Function, places: usize, until: Instant) -> Option<u64> {
        let mut state = self.lock();
        loop {
            if state.running.len() < places {
                state.last += 1;
                let number = state.last;
                state.running.insert(number, Running { function, since: Instant::now(), given_up: false });
                return Some(number);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || state.running.values().all(|call| call.given_up) {
                return None;
            }
            state = self.freed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Leaves the pool; says whether the call had been given up.
    fn leave(&self, number: u64) -> Option<Running> {
        let call = self.lock().running.remove(&number);
        self.freed.notify_all();
        call
    }

    fn give_up(&self, number: u64) {
        if let Some(call) = self.lock().running.get_mut(&number) {
            call.given_up = true;
        }
        self.freed.notify_all();
    }
}

impl Bounded {
    /// `port` within `bounds`.
    pub fn new(port: Arc<dyn HostNetwork>, bounds: Bounds) -> Self {
        Self { port, bounds, pool: Arc::default() }
    }

    /// The calls that were given up and still hang, the oldest first.
    pub fn hung(&self) -> Vec<Hung> {
        let state = self.pool.lock();
        state.running.values().filter(|call| call.given_up).map(|call| Hung { function: call.function, age: call.since.elapsed() }).collect()
    }

    fn busy(&self) -> RawError {
        let oldest = self.hung().into_iter().next();
        let oldest = oldest.map(|hung| format!("; {} hangs for {} s", hung.function, hung.age.as_secs())).unwrap_or_default();
        let text = format!(
            "all {} calls that may be under way are{oldest}: if that lasts, end the service's process and start it again (Restart-Service hns -Force)",
            self.bounds.calls
        );
        RawError::with_record(HResult::TIMEOUT, &text)
    }
}

/// Makes the call and leaves the pool. What a call that was given up opened is closed: nobody waits for it any more.
fn work(port: &dyn HostNetwork, pool: &Pool, number: u64, function: Function, args: &OwnedArgs) -> Result<Reply, RawError> {
    let outcome = port.call(function, args.borrow());
    let call = pool.leave(number);
    if let Some(Running { since, given_up: true, .. }) = call {
        let seconds = since.elapsed().as_secs();
        tracing::warn!(%function, seconds, "a call of the Host Networking Service that had been given up has ended");
        if let (Ok(Reply { handle: Some(handle), .. }), Function::Create(kind) | Function::Open(kind)) = (&outcome, function) {
            let closed = port.call(Function::Close(kind), Args { handle: Some(*handle), ..Args::default() });
            tracing::debug!(?closed, "closed what it opened");
        }
    }
    outcome
}

impl HostNetwork for Bounded {
    fn call(&self, function: Function, args: Args<'_>) -> Result<Reply, RawError> {
        let until = Instant::now() + self.bounds.timeout;
        let number = self.pool.enter(function, self.bounds.calls, until).ok_or_else(|| self.busy())?;
        let (sender, receiver) = mpsc::sync_channel(1);
        let (port, pool, owned) = (self.port.clone(), self.pool.clone(), OwnedArgs::from(args));
        let thread = std::thread::Builder::new().name("hcn-call".into());
        let spawned = thread.spawn(move || {
            // The caller may have given up.
            let _ = sender.send(work(&*port, &pool, number, function, &owned));
        });
        if let Err(error) = spawned {
            self.pool.leave(number);
            return Err(RawError::with_record(HResult::OUT_OF_MEMORY, &format!("no thread for {function}: {error}")));
        }
        match receiver.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(outcome) => outcome,
            Err(RecvTimeoutError::Disconnected) => Err(HResult::FAIL.into()),
            Err(RecvTimeoutError::Timeout) => {
                self.pool.give_up(number);
                let seconds = self.bounds.timeout.as_secs_f64();
                tracing::warn!(%function, seconds, hung = self.hung().len(), "the Host Networking Service does not answer; the call is given up");
                let text = format!("{function} was given up after {seconds} s: what it does is unknown, read the object back");
                Err(RawError::with_record(HResult::TIMEOUT, &text))
            }
        }
    }

    fn subscribe(&self, sink: EventSink) -> Result<Subscription, RawError> {
        self.port.subscribe(sink)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::{Handle, Kind};

    /// Opens hang until they may go on; everything else is answered.
    struct Stuck {
        go: Mutex<mpsc::Receiver<()>>,
        closed: Mutex<Vec<Handle>>,
    }

    impl HostNetwork for Stuck {
        fn call(&self, function: Function, args: Args<'_>) -> Result<Reply, RawError> {
            match function {
                Function::Open(_) => {
                    self.go.lock().unwrap().recv().unwrap();
                    Ok(Reply::handle(Handle(7)))
                }
                Function::Close(_) => {
                    self.closed.lock().unwrap().extend(args.handle);
                    Ok(Reply::default())
                }
                _ => Ok(Reply::text(args.query.unwrap_or_default())),
            }
        }

        fn subscribe(&self, _sink: EventSink) -> Result<Subscription, RawError> {
            Ok(Subscription::new(()))
        }
    }

    #[test]
    fn calls_end_though_the_service_hangs() {
        let (go, waits) = mpsc::channel();
        let stuck = Arc::new(Stuck { go: Mutex::new(waits), closed: Mutex::default() });
        let port = Bounded::new(stuck.clone(), Bounds { calls: 2, timeout: Duration::from_millis(200) });
        let open = || port.call(Function::Open(Kind::Network), Args::default()).unwrap_err();
        let list = || port.call(Function::Enumerate(Kind::Network), Args { query: Some("q"), ..Args::default() });

        assert_eq!(open().hresult, HResult::TIMEOUT);
        assert_eq!(list().unwrap().result.as_deref(), Some("q"), "one place is left");
        assert_eq!(open().hresult, HResult::TIMEOUT);
        assert_eq!(port.hung().len(), 2);
        let started = Instant::now();
        let refused = list().unwrap_err();
        assert!(started.elapsed() < Duration::from_millis(150), "refused at once");
        assert!(refused.record.as_deref().is_some_and(|text| text.contains("Restart-Service")), "{refused:?}");

        go.send(()).unwrap();
        go.send(()).unwrap();
        while !port.hung().is_empty() || stuck.closed.lock().unwrap().len() < 2 {
            std::thread::sleep(Duration::from_millis(1));
            assert!(started.elapsed() < Duration::from_secs(10), "places come back, and what was opened late is closed");
        }
        assert_eq!(list().unwrap().result.as_deref(), Some("q"));
    }
}
