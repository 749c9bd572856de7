//! The calls under way: a runtime that hangs is named with what it does not answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A call that the runtime has not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// CRI method.
    pub call: &'static str,
    /// How long ago it was made.
    pub age: Duration,
}

/// The calls of one client and its clones.
#[derive(Debug, Default)]
pub(crate) struct Calls(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// In the order in which they were made.
    open: BTreeMap<u64, (&'static str, Instant)>,
}

/// A call under way; it ends when this is dropped.
pub(crate) struct Call {
    calls: Arc<Calls>,
    number: u64,
}

impl Calls {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(self: &Arc<Self>, call: &'static str) -> Call {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.open.insert(number, (call, Instant::now()));
        Call { calls: self.clone(), number }
    }

    pub(crate) fn waiting(&self) -> Vec<Waiting> {
        self.lock().open.values().map(|(call, since)| Waiting { call, age: since.elapsed() }).collect()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.calls.lock().open.remove(&self.number);
    }
}
