//! Counts of calls and operations, readable as a snapshot.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::pool::{Called, Hung};
use crate::port::Function;

/// Calls of one function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Calls that returned.
    pub calls: u64,
    /// Calls that returned an error.
    pub failed: u64,
    /// Calls that were given up at their deadline; each counts as a call once it returns.
    pub hung: u64,
    /// How long the calls took together.
    pub time: Duration,
}

/// The state of a client and of the calls that it made, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Calls by function.
    pub functions: BTreeMap<Function, Tally>,
    /// Operations that ended at their deadline.
    pub timed_out: u64,
    /// Operations whose caller went away.
    pub cancelled: u64,
    /// Operations that were refused because every place was held by a call that hangs.
    pub refused: u64,
    /// How many operations may be under way at once.
    pub places: usize,
    /// Operations under way now, those that hang included.
    pub running: usize,
    /// Operations that wait for a place now.
    pub waiting: usize,
    /// Calls that hang now, the oldest first.
    pub hung: Vec<Hung>,
}

impl Snapshot {
    /// The calls of all functions.
    pub fn total(&self) -> Tally {
        self.functions.values().fold(Tally::default(), |sum, one| Tally {
            calls: sum.calls + one.calls,
            failed: sum.failed + one.failed,
            hung: sum.hung + one.hung,
            time: sum.time + one.time,
        })
    }
}

/// The counters behind [`Snapshot`].
#[derive(Default)]
pub(super) struct Counts {
    functions: Mutex<BTreeMap<Function, Tally>>,
    timed_out: AtomicU64,
    refused: AtomicU64,
}

impl Counts {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Function, Tally>> {
        self.functions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call returned.
    pub(super) fn returned(&self, function: Function, failed: bool, time: Duration) {
        let mut functions = self.lock();
        let tally = functions.entry(function).or_default();
        tally.calls += 1;
        tally.failed += u64::from(failed);
        tally.time += time;
    }

    /// An operation ended at its deadline, in that call.
    pub(super) fn timed_out(&self, call: Option<Called>) {
        self.timed_out.fetch_add(1, Ordering::Relaxed);
        if let Some(Called::Function(function)) = call {
            self.lock().entry(function).or_default().hung += 1;
        }
    }

    /// An operation was refused.
    pub(super) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// The counters, in a snapshot of an idle client.
    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot {
            functions: self.lock().clone(),
            timed_out: self.timed_out.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            ..Snapshot::default()
        }
    }
}
