//! Delays between attempts: exponential, with or without jitter.
//!
//! [`exponential`] is a pure function of the number of failures, for plans whose clock is passed in. [`Backoff`] counts and adds jitter, for
//! loops that many processes run against one server.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

/// The delay after `failures` earlier failures in a row: `base`, doubled for each of them, at most `max`.
#[must_use]
pub fn exponential(base: Duration, max: Duration, failures: u32) -> Duration {
    base.saturating_mul(1u32.checked_shl(failures).unwrap_or(u32::MAX)).min(max)
}

/// Exponential delays with up to 20 % of jitter.
#[derive(Debug, Clone)]
pub struct Backoff {
    base: Duration,
    max: Duration,
    attempts: u32,
}

impl Backoff {
    /// Delays that start at `base` and never exceed `max` (jitter apart).
    pub fn new(base: Duration, max: Duration) -> Self {
        Self { base, max, attempts: 0 }
    }

    /// The next delay; each call lengthens the one after it.
    pub fn next_delay(&mut self) -> Duration {
        let delay = exponential(self.base, self.max, self.attempts);
        self.attempts = self.attempts.saturating_add(1);
        jittered(delay)
    }

    /// Starts again at `base`: call it after a success.
    pub fn reset(&mut self) {
        self.attempts = 0;
    }

    /// How many delays were returned since the last reset.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }
}

/// The delay with up to 20 % of jitter.
#[must_use]
pub fn jittered(delay: Duration) -> Duration {
    delay.saturating_add(delay.mul_f64(jitter() * 0.2))
}

/// A number in [0, 1) that differs between processes and calls.
#[must_use]
pub fn jitter() -> f64 {
    let bits = RandomState::new().hash_one(0u8) >> 11;
    #[expect(clippy::cast_precision_loss, reason = "53 bits are exact in an f64")]
    let fraction = bits as f64 / (1u64 << 53) as f64;
    fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_maximum() {
        let (base, max) = (Duration::from_millis(100), Duration::from_secs(1));
        let delays: Vec<u128> = (0..6).map(|failures| exponential(base, max, failures).as_millis()).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1000, 1000]);
    }

    #[test]
    fn long_outage_does_not_overflow() {
        for failures in [31, 32, 33, 64, u32::MAX] {
            assert_eq!(exponential(Duration::from_millis(100), Duration::from_secs(30), failures), Duration::from_secs(30));
        }
    }

    #[test]
    fn jitter_adds_at_most_a_fifth() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        for expected in [100, 200, 400, 800, 1000, 1000] {
            let delay = backoff.next_delay().as_millis();
            assert!((expected..=expected + expected / 5).contains(&delay), "{delay} instead of {expected}");
        }
    }

    #[test]
    fn reset_starts_again_at_the_base() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        backoff.next_delay();
        backoff.next_delay();
        assert_eq!(backoff.attempts(), 2);
        backoff.reset();
        assert_eq!(backoff.attempts(), 0);
        assert!(backoff.next_delay() < Duration::from_millis(121));
    }
}
