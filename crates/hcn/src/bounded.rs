//! A port whose calls end: each runs on a thread of a bounded pool and is given up after a time.
//!
//! The real service is known to hang: a call then never returns, and nothing can end its thread. Here its caller gets
//! [`HResult::TIMEOUT`] instead, the thread stays counted until the service lets it go, and a handle that such a call opens after all is
//! closed again. When every thread of the pool hangs, further calls are refused at once with what to do, so that callers do not pile up.
//! What hangs is logged when it is given up and again when it ends.
//!
//! Threads are kept for the next call ([`IDLE`]): starting one for each call delays the next call to a service that does one at a time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
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

/// How long a thread without work is kept.
const IDLE: Duration = Duration::from_secs(30);

/// A port whose calls end.
pub struct Bounded {
    port: Arc<dyn HostNetwork>,
    bounds: Bounds,
    pool: Arc<Pool>,
}

#[derive(Default)]
struct Pool {
    state: Mutex<State>,
    /// A place became free, or a call was given up.
    freed: Condvar,
    /// A job was queued, or the pool closes.
    queued: Condvar,
}

#[derive(Default)]
struct State {
    last: u64,
    jobs: VecDeque<Job>,
    /// Threads that wait for a job.
    idle: usize,
    closed: bool,
    /// Calls under way by number; those given up stay until the service lets them go.
    running: BTreeMap<u64, Running>,
}

struct Running {
    function: Function,
    since: Instant,
    given_up: bool,
}

/// A call for a thread of the pool.
struct Job {
    number: u64,
    function: Function,
    args: OwnedArgs,
    answer: SyncSender<Result<Reply, RawError>>,
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

    /// Frees the place of a call that was never made.
    fn leave(&self, number: u64) {
        self.lock().running.remove(&number);
        self.freed.notify_all();
    }

    /// Frees the place of a call that has ended. Its thread is idle from now on, unless the call had been given up: then that call is
    /// returned, and the thread has to clean up first.
    fn finish(&self, number: u64) -> Option<Running> {
        let mut state = self.lock();
        let call = state.running.remove(&number).filter(|call| call.given_up);
        state.idle += usize::from(call.is_none());
        drop(state);
        self.freed.notify_all();
        call
    }

    /// Queues the job where an idle thread takes it; gives it back where a new thread must.
    fn queue(&self, job: Job) -> Option<Job> {
        let mut state = self.lock();
        if state.idle <= state.jobs.len() {
            return Some(job);
        }
        state.jobs.push_back(job);
        drop(state);
        self.queued.notify_one();
        None
    }

    /// The next job for an idle thread; none once it was idle for [`IDLE`] or the pool closed.
    fn next(&self) -> Option<Job> {
        let until = Instant::now() + IDLE;
        let mut state = self.lock();
        let job = loop {
            if let Some(job) = state.jobs.pop_front() {
                break Some(job);
            }
            let left = until.saturating_duration_since(Instant::now());
            if state.closed || left.is_zero() {
                break None;
            }
            state = self.queued.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        };
        state.idle -= 1;
        job
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

/// A thread of the pool: makes `job`'s call first, then whatever is queued.
fn serve(port: &dyn HostNetwork, pool: &Pool, job: Job) {
    let mut next = Some(job);
    while let Some(Job { number, function, args, answer }) = next {
        let outcome = port.call(function, args.borrow());
        if let Some(call) = pool.finish(number) {
            clean_up(port, function, &call, &outcome);
            pool.lock().idle += 1;
        }
        // The caller may have given up.
        let _ = answer.send(outcome);
        next = pool.next();
    }
}

/// What a call that was given up opened is closed: nobody waits for it any more.
fn clean_up(port: &dyn HostNetwork, function: Function, call: &Running, outcome: &Result<Reply, RawError>) {
    let seconds = call.since.elapsed().as_secs();
    tracing::warn!(%function, seconds, "a call of the Host Networking Service that had been given up has ended");
    if let (Ok(Reply { handle: Some(handle), .. }), Function::Create(kind) | Function::Open(kind)) = (outcome, function) {
        let closed = port.call(Function::Close(kind), Args { handle: Some(*handle), ..Args::default() });
        tracing::debug!(?closed, "closed what it opened");
    }
}

impl Drop for Bounded {
    fn drop(&mut self) {
        self.pool.lock().closed = true;
        self.pool.queued.notify_all();
    }
}

impl HostNetwork for Bounded {
    fn call(&self, function: Function, args: Args<'_>) -> Result<Reply, RawError> {
        let until = Instant::now() + self.bounds.timeout;
        let number = self.pool.enter(function, self.bounds.calls, until).ok_or_else(|| self.busy())?;
        let (sender, receiver) = mpsc::sync_channel(1);
        let job = Job { number, function, args: args.into(), answer: sender };
        if let Some(job) = self.pool.queue(job) {
            let (port, pool) = (self.port.clone(), self.pool.clone());
            let thread = std::thread::Builder::new().name("hcn-call".into());
            if let Err(error) = thread.spawn(move || serve(&*port, &pool, job)) {
                self.pool.leave(number);
                return Err(RawError::with_record(HResult::OUT_OF_MEMORY, &format!("no thread for {function}: {error}")));
            }
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

    /// Answers with the thread that made the call.
    struct Threads;

    impl HostNetwork for Threads {
        fn call(&self, _: Function, _: Args<'_>) -> Result<Reply, RawError> {
            Ok(Reply::text(format!("{:?}", std::thread::current().id())))
        }

        fn subscribe(&self, _sink: EventSink) -> Result<Subscription, RawError> {
            Ok(Subscription::new(()))
        }
    }

    #[test]
    fn threads_are_kept_for_the_next_call() {
        let bounds = Bounds { calls: 3, timeout: Duration::from_secs(60) };
        let port = Bounded::new(Arc::new(Threads), bounds);
        let call = || port.call(Function::Enumerate(Kind::Network), Args::default()).unwrap().result.unwrap();
        let threads = Mutex::new(std::collections::BTreeSet::new());
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let thread = call();
                        threads.lock().unwrap().insert(thread);
                    }
                });
            }
        });
        let count = threads.lock().unwrap().len();
        assert!((1..=3).contains(&count), "{count} threads made 400 calls");
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
