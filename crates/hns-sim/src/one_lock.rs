//! Decorator that makes one call at a time, as the real service does; for measurements.
//!
//! Each call holds the service for as long as it costs. Slots follow one another: a caller that wakes up late loses its own time, not the
//! service's, so that the figure is what the callers make of the service and not how well this process sleeps.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hcn::port::EventSink;
use hcn::{Args, Function, HostNetwork, RawError, Reply, Subscription};

/// What was called so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Calls that change something.
    pub writes: u64,
    /// All others, closes of handles among them.
    pub reads: u64,
    /// When the last write was done, since the service was made.
    pub last_write: Duration,
}

struct State {
    free: Instant,
    write: Duration,
    read: Duration,
    tally: Tally,
}

/// A port behind one lock.
pub struct OneLock {
    inner: Arc<dyn HostNetwork>,
    begin: Instant,
    state: Mutex<State>,
}

impl OneLock {
    /// `inner` behind one lock that a write holds for `write` and any other call for `read`.
    pub fn new(inner: Arc<dyn HostNetwork>, write: Duration, read: Duration) -> Self {
        let begin = Instant::now();
        Self { inner, begin, state: Mutex::new(State { free: begin, write, read, tally: Tally::default() }) }
    }

    /// From now on calls cost this.
    pub fn set_costs(&self, write: Duration, read: Duration) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.write, state.read) = (write, read);
    }

    /// What was called so far.
    pub fn tally(&self) -> Tally {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).tally
    }
}

impl HostNetwork for OneLock {
    fn call(&self, function: Function, args: Args<'_>) -> Result<Reply, RawError> {
        let write = function.changes() && args.method.is_none_or(|method| method != "GET");
        let end = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let cost = if write { state.write } else { state.read };
            state.free = state.free.max(Instant::now()) + cost;
            if write {
                state.tally.writes += 1;
                state.tally.last_write = state.free - self.begin;
            } else {
                state.tally.reads += 1;
            }
            state.free
        };
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
        self.inner.call(function, args)
    }

    fn subscribe(&self, sink: EventSink) -> Result<Subscription, RawError> {
        self.inner.subscribe(sink)
    }
}

#[cfg(test)]
mod tests {
    use hcn::Kind;

    use super::*;
    use crate::Simulator;
    use crate::kernel::NoKernel;
    use crate::switches::Switches;

    #[test]
    fn calls_run_one_after_the_other() {
        let simulator = Simulator::new(Box::new(NoKernel::default()), Switches::of(hcn::HnsVersion::new(15, 5)), None).unwrap();
        let lock = OneLock::new(simulator.session(), Duration::from_millis(20), Duration::from_millis(10));
        let list = || drop(lock.call(Function::Enumerate(Kind::Network), Args { query: Some("{}"), ..Args::default() }));
        let begin = Instant::now();
        std::thread::scope(|scope| (0..5).for_each(|_| drop(scope.spawn(list))));
        assert!(begin.elapsed() >= Duration::from_millis(50), "five reads of 10 ms");
        assert_eq!(lock.tally(), Tally { reads: 5, ..Tally::default() });
        let id = Some(hcn::Guid::random());
        drop(lock.call(Function::Delete(Kind::LoadBalancer), Args { id, ..Args::default() }));
        let tally = lock.tally();
        assert!(tally.writes == 1 && tally.last_write >= Duration::from_millis(70), "{tally:?}");
    }
}
