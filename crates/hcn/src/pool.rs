//! Bounded pool of threads for calls that may never return.
//!
//! A job takes one of a fixed number of places. A caller that goes away gives its place back at once where its job has not begun. A
//! call that is under way cannot be ended: its job keeps the place until the service answers, makes no further call, and closes what the
//! call opened. When every place is held by a call that hangs, jobs are refused at once, so that callers do not pile up.
//!
//! Threads are kept for the next job ([`IDLE`]): starting one for each job delays the next call to a service that does one at a time.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::port::{Function, SUBSCRIBE};

/// How long a thread without work is kept.
const IDLE: Duration = Duration::from_secs(30);

/// How many operations may be under way at once in a process, and how long one may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Operations under way at once; each has a thread.
    pub places: usize,
    /// How long an operation may take, waiting for a place included.
    pub deadline: Duration,
}

impl Default for Limits {
    /// 16 places: the service proxy keeps 8 operations under way, and the other parts of a node share the rest. 60 s: creating the first
    /// network on a host can take nearly as long.
    fn default() -> Self {
        Self { places: 16, deadline: Duration::from_secs(60) }
    }
}

/// A call, as messages name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Called {
    /// A function of [`HostNetwork::call`](crate::HostNetwork::call).
    Function(Function),
    /// [`HostNetwork::subscribe`](crate::HostNetwork::subscribe).
    Subscribe,
}

impl fmt::Display for Called {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Function(function) => function.fmt(f),
            Self::Subscribe => f.write_str(SUBSCRIBE),
        }
    }
}

/// A call that hangs: its deadline has passed and the service has not answered it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hung {
    /// The call; none where the operation had not made one.
    pub call: Option<Called>,
    /// For how long its operation has been under way.
    pub age: Duration,
}

impl fmt::Display for Hung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.call {
            Some(call) => write!(f, "{call} hangs for {} s", self.age.as_secs()),
            None => write!(f, "an operation hangs for {} s", self.age.as_secs()),
        }
    }
}

/// What a job and its caller know of each other.
#[derive(Debug, Default)]
pub(crate) struct Ticket {
    /// The caller is gone.
    abandoned: AtomicBool,
    /// The job was dropped because every place hangs.
    refused: AtomicBool,
    call: Mutex<Option<Called>>,
}

impl Ticket {
    /// Whether the caller is gone.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::SeqCst)
    }

    /// Notes which call the job makes now.
    pub(crate) fn calls(&self, call: Called) {
        *self.call.lock().unwrap_or_else(PoisonError::into_inner) = Some(call);
    }

    /// The call that the job made last.
    pub(crate) fn call(&self) -> Option<Called> {
        *self.call.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a job's caller waits for the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    Awaited,
    Abandoned,
}

/// Hands over a job's result, or disposes of it.
pub(crate) type Deliver = Box<dyn FnOnce(Delivery) + Send>;

/// The work for a thread of the pool.
pub(crate) type Job = Box<dyn FnOnce(&Arc<Ticket>) -> Deliver + Send>;

/// Why a job was not taken.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Every place is held by a call that hangs.
    Hung,
    /// The system gave no thread.
    NoThread(io::Error),
}

/// Why a caller does not wait any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Deadline,
    Cancelled,
}

/// What became of a job whose caller does not wait any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GivenUp {
    /// It had not begun and never will.
    NotBegun,
    /// It keeps its place until its call returns.
    UnderWay,
    /// It has ended: its result is delivered.
    Ended,
}

/// How many jobs there are, and how many were cancelled so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) running: usize,
    pub(crate) waiting: usize,
    pub(crate) cancelled: u64,
}

/// The pool. Its idle threads end when it is dropped.
pub(crate) struct Pool(Arc<Shared>);

struct Shared {
    limits: Limits,
    state: Mutex<State>,
    /// A job was queued, or the pool closes.
    queued: Condvar,
}

#[derive(Default)]
struct State {
    last: u64,
    waiting: VecDeque<Waiting>,
    /// Jobs under way by number; those without a caller stay until their call returns.
    running: BTreeMap<u64, Running>,
    threads: usize,
    /// Threads that wait for a job.
    idle: usize,
    cancelled: u64,
    closed: bool,
}

struct Waiting {
    number: u64,
    ticket: Arc<Ticket>,
    job: Job,
}

struct Running {
    ticket: Arc<Ticket>,
    since: Instant,
    /// Why the caller does not wait any longer.
    given_up: Option<Reason>,
}

impl Running {
    /// Whether the call hangs. A call whose caller went away early is given its time.
    fn hangs(&self, deadline: Duration) -> bool {
        match self.given_up {
            Some(Reason::Deadline) => true,
            Some(Reason::Cancelled) => self.since.elapsed() >= deadline,
            None => false,
        }
    }
}

/// A caller's hold of its job: dropping it cancels the job.
pub(crate) struct Place {
    shared: Arc<Shared>,
    ticket: Arc<Ticket>,
    number: u64,
    settled: bool,
}

impl Pool {
    pub(crate) fn new(limits: Limits) -> Self {
        Self(Arc::new(Shared { limits, state: Mutex::default(), queued: Condvar::new() }))
    }

    /// Queues `job`; it begins at once where a place is free.
    pub(crate) fn submit(&self, job: Job) -> Result<Place, Refusal> {
        let shared = &self.0;
        let mut state = shared.lock();
        if shared.every_place_hangs(&state) {
            return Err(Refusal::Hung);
        }
        state.last += 1;
        let (number, ticket) = (state.last, Arc::<Ticket>::default());
        state.waiting.push_back(Waiting { number, ticket: ticket.clone(), job });
        if state.idle >= state.waiting.len() {
            drop(state);
            shared.queued.notify_one();
        } else if state.threads < shared.limits.places {
            state.threads += 1;
            drop(state);
            self.start_thread().or_else(|error| shared.without_thread(number, error))?;
        }
        Ok(Place { shared: shared.clone(), ticket, number, settled: false })
    }

    fn start_thread(&self) -> io::Result<()> {
        let shared = self.0.clone();
        std::thread::Builder::new().name("hcn-call".into()).spawn(move || shared.serve()).map(drop)
    }

    /// The calls that hang, the oldest first.
    pub(crate) fn hung(&self) -> Vec<Hung> {
        let state = self.0.lock();
        let hung = state.running.values().filter(|job| job.hangs(self.0.limits.deadline));
        hung.map(|job| Hung { call: job.ticket.call(), age: job.since.elapsed() }).collect()
    }

    pub(crate) fn load(&self) -> Load {
        let state = self.0.lock();
        Load { running: state.running.len(), waiting: state.waiting.len(), cancelled: state.cancelled }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.queued.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn every_place_hangs(&self, state: &State) -> bool {
        state.running.len() >= self.limits.places && state.running.values().all(|job| job.hangs(self.limits.deadline))
    }

    /// The system gave no thread for the job: other threads make it, where there are any.
    fn without_thread(&self, number: u64, error: io::Error) -> Result<(), Refusal> {
        let mut state = self.lock();
        state.threads -= 1;
        if state.threads > 0 {
            return Ok(());
        }
        state.waiting.retain(|waiting| waiting.number != number);
        Err(Refusal::NoThread(error))
    }

    /// One thread: makes jobs until none has come for a while.
    fn serve(&self) {
        // A new thread counts as idle from its first look for a job.
        self.lock().idle += 1;
        while let Some(Waiting { number, ticket, job }) = self.next() {
            // A panic has been printed; the caller learns that the operation ended without an answer.
            let deliver = catch_unwind(AssertUnwindSafe(|| job(&ticket)));
            // The place is free before the caller goes on: its next job meets this thread.
            let delivery = self.settle(number);
            if let Ok(deliver) = deliver {
                let _ = catch_unwind(AssertUnwindSafe(|| deliver(delivery)));
            }
            if delivery == Delivery::Abandoned {
                self.release(number);
            }
        }
    }

    /// The next job; none once the thread was idle for [`IDLE`] or the pool closed.
    fn next(&self) -> Option<Waiting> {
        let until = Instant::now() + IDLE;
        let mut state = self.lock();
        let next = loop {
            if let Some(waiting) = state.waiting.pop_front() {
                break Some(waiting);
            }
            let left = until.saturating_duration_since(Instant::now());
            if state.closed || left.is_zero() {
                break None;
            }
            state = self.queued.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        };
        state.idle -= 1;
        match &next {
            Some(Waiting { number, ticket, .. }) => {
                let running = Running { ticket: ticket.clone(), since: Instant::now(), given_up: None };
                state.running.insert(*number, running);
            }
            None => state.threads -= 1,
        }
        next
    }

    /// Ends a job: from here on its caller waits or is gone. The place of an awaited job is free.
    fn settle(&self, number: u64) -> Delivery {
        let mut state = self.lock();
        let Some(job) = state.running.get(&number) else { return Delivery::Abandoned };
        if job.given_up.is_none() {
            state.running.remove(&number);
            state.idle += 1;
            return Delivery::Awaited;
        }
        let (call, hung, seconds) = (job.ticket.call(), job.hangs(self.limits.deadline), job.since.elapsed().as_secs());
        drop(state);
        if hung {
            let call = call.map(|call| call.to_string());
            tracing::warn!(call, seconds, "a call of the Host Networking Service that had been given up has ended");
        }
        Delivery::Abandoned
    }

    /// Frees the place of a job whose caller was gone.
    fn release(&self, number: u64) {
        let mut state = self.lock();
        state.running.remove(&number);
        state.idle += 1;
    }

    fn give_up(&self, number: u64, reason: Reason) -> GivenUp {
        let mut state = self.lock();
        if let Some(index) = state.waiting.iter().position(|waiting| waiting.number == number) {
            let waiting = state.waiting.remove(index);
            state.cancelled += u64::from(reason == Reason::Cancelled);
            drop(state);
            // Outside the lock: what the job holds may be anything.
            drop(waiting);
            return GivenUp::NotBegun;
        }
        let Some(job) = state.running.get_mut(&number) else { return GivenUp::Ended };
        job.given_up = Some(reason);
        job.ticket.abandoned.store(true, Ordering::SeqCst);
        state.cancelled += u64::from(reason == Reason::Cancelled);
        let refused = if self.every_place_hangs(&state) { std::mem::take(&mut state.waiting) } else { VecDeque::new() };
        drop(state);
        for waiting in refused {
            // The end of the job is what its caller notices.
            waiting.ticket.refused.store(true, Ordering::SeqCst);
        }
        GivenUp::UnderWay
    }
}

impl Place {
    /// The result has arrived, or never will.
    pub(crate) fn ended(&mut self) {
        self.settled = true;
    }

    /// The caller does not wait any longer.
    pub(crate) fn give_up(&mut self, reason: Reason) -> GivenUp {
        self.settled = true;
        self.shared.give_up(self.number, reason)
    }

    /// Whether the job was dropped because every place hangs.
    pub(crate) fn is_refused(&self) -> bool {
        self.ticket.refused.load(Ordering::SeqCst)
    }

    /// The call that the job made last.
    pub(crate) fn call(&self) -> Option<Called> {
        self.ticket.call()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.settled {
            self.shared.give_up(self.number, Reason::Cancelled);
        }
    }
}
