//! Waiting for a cause.

use std::fmt::{Debug, Display};
use std::panic::Location;
use std::time::{Duration, Instant};

/// The end of every wait. It measures nothing: only tests that fail wait so long. A cold disk and other builds on the machine can hold up a
/// test for a minute.
pub const LIMIT: Duration = Duration::from_secs(240);

/// Pauses between two looks: short at first, and never so long that the look comes late.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// What one look found.
pub trait Found {
    /// What the test waits for.
    type Value;

    /// Whether it is there.
    ///
    /// # Errors
    /// What was seen instead of the value, in words; empty when the look does not say.
    fn found(self) -> Result<Self::Value, String>;
}

impl Found for bool {
    type Value = ();

    fn found(self) -> Result<(), String> {
        self.then_some(()).found()
    }
}

impl<T> Found for Option<T> {
    type Value = T;

    fn found(self) -> Result<T, String> {
        self.ok_or_else(String::new)
    }
}

impl<T, E: Display> Found for Result<T, E> {
    type Value = T;

    fn found(self) -> Result<T, String> {
        self.map_err(|seen| seen.to_string())
    }
}

/// Whether a look saw what it should: for [`until`], which shows what is there instead.
///
/// # Errors
/// When it did not.
pub fn same<T: PartialEq<U> + Debug, U>(seen: T, expected: &U) -> Result<(), String> {
    if seen == *expected { Ok(()) } else { Err(format!("{seen:?}")) }
}

struct Wait {
    began: Instant,
    limit: Duration,
    pause: Duration,
    caller: &'static Location<'static>,
}

impl Wait {
    #[track_caller]
    fn begin() -> Self {
        Self { began: Instant::now(), limit: LIMIT, pause: PAUSES.0, caller: Location::caller() }
    }

    /// How long to pause before the next look.
    fn next(&mut self, what: &impl Display, seen: &str) -> Duration {
        if self.began.elapsed() > self.limit {
            let seen = if seen.is_empty() { String::new() } else { format!("; seen last: {seen}") };
            panic!("{}: waited {} s in vain for: {what}{seen}", self.caller, self.limit.as_secs());
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(PAUSES.1);
        pause
    }
}

/// Looks again and again until there is what the test waits for, and returns it.
///
/// # Panics
/// After [`LIMIT`], with the place of the call, `what` and what was seen last.
#[track_caller]
pub fn until<F: Found>(what: impl Display, mut look: impl FnMut() -> F) -> F::Value {
    let mut wait = Wait::begin();
    loop {
        match look().found() {
            Ok(value) => return value,
            Err(seen) => std::thread::sleep(wait.next(&what, &seen)),
        }
    }
}

/// The same for tests on a runtime.
///
/// # Panics
/// As [`until`].
#[track_caller]
pub fn until_async<F: Found>(what: impl Display, mut look: impl AsyncFnMut() -> F) -> impl Future<Output = F::Value> {
    let mut wait = Wait::begin();
    async move {
        loop {
            match look().await.found() {
                Ok(value) => return value,
                Err(seen) => tokio::time::sleep(wait.next(&what, &seen)).await,
            }
        }
    }
}

/// The result of a future that ends within [`LIMIT`].
///
/// # Panics
/// After [`LIMIT`], with the place of the call and `what`.
#[track_caller]
pub fn in_time<T>(what: impl Display, future: impl Future<Output = T>) -> impl Future<Output = T> {
    let caller = Location::caller();
    async move {
        let ended = tokio::time::timeout(LIMIT, future).await;
        ended.unwrap_or_else(|_| panic!("{caller}: waited {} s in vain for: {what}", LIMIT.as_secs()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_ends_with_what_a_later_look_finds() {
        let mut looks = 0;
        let found = until("the third look", || {
            looks += 1;
            if looks == 3 { Ok("found") } else { Err(format!("look {looks}")) }
        });
        assert_eq!((found, looks), ("found", 3));
    }

    #[tokio::test]
    async fn asynchronous_wait_ends_with_what_a_later_look_finds() {
        let mut looks = 0;
        let found = until_async("the third look", async || {
            looks += 1;
            (looks == 3).then_some("found")
        });
        assert_eq!(found.await, "found");
        until_async("the looks", async || looks == 3).await;
    }

    #[tokio::test]
    async fn future_that_ends_gives_its_result() {
        assert_eq!(in_time("the end", async { 7 }).await, 7);
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "waited 240 s in vain for: the end")]
    async fn future_that_never_ends_is_a_failure() {
        in_time("the end", std::future::pending::<()>()).await;
    }

    #[test]
    fn failure_names_place_cause_and_what_was_seen_last() {
        let mut wait = Wait { limit: Duration::ZERO, ..Wait::begin() };
        std::thread::sleep(Duration::from_millis(1));
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| wait.next(&"the route", "no route"))).unwrap_err();
        let text = panic.downcast_ref::<String>().expect("a text");
        assert!(text.contains("wait.rs:") && text.ends_with("waited 0 s in vain for: the route; seen last: no route"), "{text}");
    }
}
