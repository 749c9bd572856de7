//! How many images are pulled at once, and how many in a while (upstream pkg/kubelet/images puller.go, helpers.go).

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::config::ImagePulls;

/// Who may pull, and when.
pub(crate) struct Turns {
    places: Option<Semaphore>,
    pace: Option<Mutex<Bucket>>,
}

impl Turns {
    pub(crate) fn new(pulls: ImagePulls, now: Instant) -> Self {
        Turns {
            places: pulls.at_once.map(|most| Semaphore::new(most.get().min(Semaphore::MAX_PERMITS))),
            pace: (pulls.per_second > 0).then(|| Mutex::new(Bucket::full(pulls.per_second, pulls.burst, now))),
        }
    }

    /// Waits for a place among those who pull, in the order of asking, and until one more pull keeps to the pace; upstream's pull fails
    /// with "pull QPS exceeded" instead, and waits for its back-off. The place is held until what is returned is dropped.
    pub(crate) async fn next(&self) -> Option<SemaphorePermit<'_>> {
        let place = match &self.places {
            // It is never closed.
            Some(places) => places.acquire().await.ok(),
            None => None,
        };
        let wait = self.reserve(Instant::now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        place
    }

    /// Counts one more pull, and says how long it has to wait.
    fn reserve(&self, now: Instant) -> Duration {
        let wait = |bucket: &Mutex<Bucket>| bucket.lock().unwrap_or_else(PoisonError::into_inner).reserve(now);
        self.pace.as_ref().map_or(Duration::ZERO, wait)
    }
}

/// A token bucket: `burst` pulls at once, and `per_second` more in each second.
struct Bucket {
    per_second: f64,
    burst: f64,
    /// Below zero by as many as wait.
    left: f64,
    at: Instant,
}

impl Bucket {
    fn full(per_second: u32, burst: u32, now: Instant) -> Self {
        Bucket { per_second: per_second.into(), burst: burst.into(), left: burst.into(), at: now }
    }

    fn reserve(&mut self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + passed * self.per_second).min(self.burst) - 1.0;
        self.at = now.max(self.at);
        Duration::try_from_secs_f64(-self.left / self.per_second).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use futures::FutureExt as _;

    use super::*;

    fn turns(at_once: usize, per_second: u32, burst: u32, now: Instant) -> Turns {
        Turns::new(ImagePulls { at_once: NonZeroUsize::new(at_once), per_second, burst }, now)
    }

    #[tokio::test]
    async fn as_many_have_a_place_as_may_pull_at_once() {
        for (at_once, of_five) in [(1, 1), (3, 3), (0, 5)] {
            let turns = turns(at_once, 0, 0, Instant::now());
            let held: Vec<_> = (0..5).filter_map(|_| turns.next().now_or_never()).collect();
            assert_eq!(held.len(), of_five, "{at_once} at once");
            drop(held);
            assert!(turns.next().now_or_never().is_some(), "a place that is given back is free");
        }
    }

    #[test]
    fn pulls_beyond_the_pace_wait() {
        let start = Instant::now();
        let turns = turns(0, 2, 3, start);
        let wait = |millis: u64| turns.reserve(start + Duration::from_millis(millis)).as_millis();
        let asked = [(0, 0), (0, 0), (0, 0), (0, 500), (0, 1000), (500, 1000), (2000, 0), (2000, 500), (60_000, 0), (60_000, 0), (60_000, 0)];
        for (millis, expected) in asked {
            assert_eq!(wait(millis), expected, "after {millis} ms");
        }
        assert_eq!(wait(60_000), 500, "a long rest saves no more than the burst");
        let free = self::turns(0, 0, 1, start);
        assert!((0..100).all(|_| free.reserve(start).is_zero()), "no pace is set");
    }
}
