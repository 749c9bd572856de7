//! Restart back-off (client-go util/flowcontrol, as the kubelet uses it): 10 s doubling to 300 s where the node has no other limits,
//! counted from the end of the last run, forgotten after ten minutes.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

const FIRST: SignedDuration = SignedDuration::from_secs(10);
const LONGEST: SignedDuration = SignedDuration::from_secs(300);

/// How long after its last try something counts as new, whatever the longest wait is.
const FORGOTTEN: SignedDuration = SignedDuration::from_secs(600);

/// Waits by key.
#[derive(Clone, Debug)]
pub(crate) struct Backoffs {
    first: SignedDuration,
    longest: SignedDuration,
    entries: BTreeMap<String, Entry>,
}

impl Default for Backoffs {
    fn default() -> Self {
        Backoffs::new(FIRST, LONGEST)
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    wait: SignedDuration,
    failures: u32,
    updated: Timestamp,
}

impl Backoffs {
    /// Waits between these. A first one that is longer than the longest is as long.
    pub(crate) fn new(first: SignedDuration, longest: SignedDuration) -> Self {
        Backoffs { first: first.min(longest), longest, entries: BTreeMap::new() }
    }

    /// The wait that still applies to something that ended at `since`: (whole wait, its end).
    pub(crate) fn holding(&self, key: &str, since: Timestamp, now: Timestamp) -> Option<(SignedDuration, Timestamp)> {
        let entry = self.entries.get(key).filter(|e| !e.expired(since))?;
        let until = since + entry.wait;
        (now < until).then_some((entry.wait, until))
    }

    /// Takes in that the wall clock was set to another time.
    pub(crate) fn clock_moved(&mut self, by: SignedDuration) {
        for entry in self.entries.values_mut() {
            entry.updated = super::memory::moved(entry.updated, by);
        }
    }

    /// Notes that it is tried again now.
    pub(crate) fn tried(&mut self, key: &str, since: Timestamp, now: Timestamp) {
        let failures = match self.entries.get(key) {
            Some(e) if !e.expired(since) => e.failures.saturating_add(1),
            _ => 0,
        };
        let wait = ::backoff::exponential(self.first.unsigned_abs(), self.longest.unsigned_abs(), failures);
        let wait = SignedDuration::try_from(wait).unwrap_or(self.longest);
        self.entries.insert(key.to_owned(), Entry { wait, failures, updated: now });
    }
}

impl Entry {
    fn expired(&self, since: Timestamp) -> bool {
        since.duration_since(self.updated) > FORGOTTEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_caps_and_forgets() {
        let t = |s: i64| Timestamp::from_second(1_000_000 + s).unwrap();
        let mut b = Backoffs::default();
        assert_eq!(b.holding("k", t(0), t(0)), None, "the first restart is immediate");
        b.tried("k", t(0), t(0));
        assert_eq!(b.holding("k", t(1), t(2)), Some((FIRST, t(11))));
        assert_eq!(b.holding("k", t(1), t(11)), None);
        b.tried("k", t(1), t(11));
        assert_eq!(b.holding("k", t(12), t(12)).unwrap().0, SignedDuration::from_secs(20));
        for i in 0..10 {
            b.tried("k", t(12 + i), t(12 + i));
        }
        assert_eq!(b.holding("k", t(30), t(30)).unwrap().0, LONGEST);
        // It ran for more than ten minutes: a fresh start.
        assert_eq!(b.holding("k", t(30 + 700), t(30 + 700)), None);
        b.tried("k", t(730), t(730));
        assert_eq!(b.holding("k", t(731), t(731)).unwrap().0, FIRST);
    }

    #[test]
    fn waits_have_the_limits_of_the_node() {
        let t = |s: i64| Timestamp::from_second(1_000_000 + s).unwrap();
        let seconds = SignedDuration::from_secs;
        for (first, longest, want) in [(10, 30, [10, 20, 30]), (1, 60, [1, 2, 4]), (10, 2, [2, 2, 2])] {
            let mut b = Backoffs::new(seconds(first), seconds(longest));
            for wait in want {
                b.tried("k", t(0), t(0));
                assert_eq!(b.holding("k", t(0), t(0)).unwrap().0, seconds(wait), "{first} {longest}");
            }
            assert!(b.holding("k", t(600), t(600)).is_some() && b.holding("k", t(601), t(601)).is_none(), "after ten minutes always");
        }
    }
}
