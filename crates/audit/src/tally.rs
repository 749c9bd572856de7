//! Trouble that repeats: counted always, reported now and then.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between two reports of the same trouble.
const REPORT_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(crate) struct Tally(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    count: u64,
    reported: Option<Instant>,
}

impl Tally {
    /// Counts `more`. The whole count when it is time for a report.
    pub(crate) fn add(&self, more: usize) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.count = state.count.saturating_add(u64::try_from(more).unwrap_or(u64::MAX));
        if state.reported.is_some_and(|last| last.elapsed() < REPORT_EVERY) {
            return None;
        }
        state.reported = Some(Instant::now());
        Some(state.count)
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_trouble_is_reported_and_all_is_counted() {
        let tally = Tally::default();
        assert_eq!((tally.add(2), tally.add(3), tally.count()), (Some(2), None, 5));
    }
}
