//! Pauses after failed pods: 10 s, doubling up to 10 min, from the last failure (upstream: `backoff_utils.go`).

use std::time::Duration;

use jiff::Timestamp;

use super::rows::JobPod;

const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(600);

/// Failures since the last success.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Record {
    failures: i32,
    last: Option<Timestamp>,
}

impl Record {
    /// The record with pods that ended since.
    pub fn with(self, succeeded: &[&JobPod], failed: &[&JobPod]) -> Self {
        let success = succeeded.iter().map(|pod| pod.ended).max();
        let (before, last) = if success.is_some() { (0, None) } else { (self.failures, self.last) };
        let since = failed.iter().filter(|pod| success.is_none_or(|success| pod.ended > success));
        let count = i32::try_from(since.clone().count()).unwrap_or(i32::MAX);
        Self { failures: before.saturating_add(count), last: since.map(|pod| pod.ended).max().or(last) }
    }

    /// How long no pod is created, if that is so.
    pub fn pause(self, now: Timestamp) -> Option<Duration> {
        pause(self.failures, self.last?, now)
    }
}

/// How long the index of this failed pod gets no other one.
pub(super) fn pause_of_index(failed: &JobPod, now: Timestamp) -> Option<Duration> {
    pause(failed.failures.saturating_add(failed.ignored_failures).saturating_add(1), failed.ended, now)
}

fn pause(failures: i32, last: Timestamp, now: Timestamp) -> Option<Duration> {
    let doublings = u32::try_from(failures.checked_sub(1)?).ok()?;
    let whole = FIRST.saturating_mul(1 << doublings.min(10)).min(LONGEST);
    let gone = Duration::try_from(now.duration_since(last)).unwrap_or_default();
    whole.checked_sub(gone).filter(|left| !left.is_zero())
}
