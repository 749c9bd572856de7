//! Whether the wall clock was set to another time, by the clock that only runs on.

use std::time::Instant;

use jiff::{SignedDuration, Timestamp};

/// A clock that is adjusted in small steps is not one that was set.
const SMALL: SignedDuration = SignedDuration::from_secs(1);

/// Both clocks at one moment.
pub(super) struct Clock {
    wall: Timestamp,
    steady: Instant,
}

impl Clock {
    pub(super) fn new(wall: Timestamp, steady: Instant) -> Self {
        Self { wall, steady }
    }

    /// By how much the wall clock was set forward since the last call that said so; backward when that is negative.
    pub(super) fn moved(&mut self, wall: Timestamp, steady: Instant) -> Option<SignedDuration> {
        let passed = SignedDuration::try_from(steady.saturating_duration_since(self.steady)).unwrap_or(SignedDuration::MAX);
        let by = wall.duration_since(self.wall).saturating_sub(passed);
        (by.abs() >= SMALL).then(|| {
            *self = Self { wall, steady };
            by
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_clock_that_was_set_is_told_from_time_that_passed() {
        let (wall, steady) = (Timestamp::from_second(1_700_000_000).unwrap(), Instant::now());
        let at = |second: i64| wall + SignedDuration::from_secs(second);
        let after = |second: u64| steady + Duration::from_secs(second);
        let mut clock = Clock::new(wall, steady);
        assert_eq!(clock.moved(at(100), after(100)), None);
        assert_eq!(clock.moved(at(100) + SignedDuration::from_millis(900), after(100)), None, "adjusted a little");
        assert_eq!(clock.moved(at(3710), after(110)), Some(SignedDuration::from_hours(1)));
        assert_eq!(clock.moved(at(3720), after(120)), None, "told once");
        assert_eq!(clock.moved(at(130), after(130)), Some(-SignedDuration::from_hours(1)));
    }
}
