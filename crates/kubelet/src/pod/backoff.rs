//! Restart back-off (client-go util/flowcontrol, as the kubelet uses it): 10 s doubling to 300 s,
//! counted from the end of the last run, forgotten after twice the longest wait.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

const FIRST: SignedDuration = SignedDuration::from_secs(10);
const LONGEST: SignedDuration = SignedDuration::from_secs(300);

/// Waits by key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Backoffs {
    entries: BTreeMap<String, Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    wait: SignedDuration,
    failures: u32,
    updated: Timestamp,
}

impl Backoffs {
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
        let wait = ::backoff::exponential(FIRST.unsigned_abs(), LONGEST.unsigned_abs(), failures);
        let wait = SignedDuration::try_from(wait).unwrap_or(LONGEST);
        self.entries.insert(key.to_owned(), Entry { wait, failures, updated: now });
    }
}

impl Entry {
    fn expired(&self, since: Timestamp) -> bool {
        since.duration_since(self.updated) > LONGEST * 2
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
}
