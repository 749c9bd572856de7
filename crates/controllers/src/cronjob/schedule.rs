//! When a CronJob's next Job is due: pure (upstream: `utils.go` of `pkg/controller/cronjob`).

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube_rules::cron::Schedule;

/// Later than the schedule says, since clocks differ.
const DELTA: Duration = Duration::from_millis(100);
/// More missed times than these are worth a warning.
const MANY: i64 = 100;

/// Upstream's message for a schedule whose times never come.
pub(super) const NEVER: &str = "time difference between two schedules is less than 1 second";

/// The times from which schedules are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Since {
    pub created: Timestamp,
    pub last: Option<Timestamp>,
    /// How many seconds late a Job may be.
    pub deadline: Option<i64>,
}

/// The latest time at which a Job was due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Due {
    pub at: Timestamp,
    /// So many times were missed that something is wrong.
    pub many: bool,
}

/// What the past holds.
struct Past {
    /// Where the search began.
    earliest: Timestamp,
    latest: Option<Timestamp>,
    /// About how many times were due.
    missed: i64,
}

fn seconds(count: i64) -> SignedDuration {
    SignedDuration::from_secs(count)
}

/// Looks at the times between the last Job and now (upstream: `mostRecentScheduleTime`).
fn past(since: &Since, now: Timestamp, schedule: &Schedule, with_deadline: bool) -> Result<Past, &'static str> {
    let mut earliest = since.last.unwrap_or(since.created);
    if let Some(deadline) = since.deadline.filter(|_| with_deadline) {
        earliest = now.checked_sub(seconds(deadline)).unwrap_or(Timestamp::MIN).max(earliest);
    }
    let first = schedule.next(earliest).ok_or(NEVER)?;
    if now < first {
        return Ok(Past { earliest, latest: None, missed: 0 });
    }
    let second = schedule.next(first).ok_or(NEVER)?;
    if now < second {
        return Ok(Past { earliest, latest: Some(first), missed: 0 });
    }
    let between = second.duration_since(first).as_secs();
    if between < 1 {
        return Err(NEVER);
    }
    let missed = now.duration_since(first).as_secs() / between + 1;
    // From about two times ago one goes from time to time; the first one matters for `@every`.
    let mut next = schedule.next(first.checked_add(seconds((missed - 2).saturating_mul(between))).unwrap_or(first));
    let mut latest = None;
    while let Some(time) = next.filter(|time| *time <= now) {
        latest = Some(time);
        next = schedule.next(time);
    }
    Ok(Past { earliest, latest, missed })
}

/// The latest time at which a Job was due and that is not too long ago.
pub(super) fn due(since: &Since, now: Timestamp, schedule: &Schedule) -> Result<Option<Due>, &'static str> {
    let past = past(since, now, schedule, true)?;
    Ok(past.latest.map(|at| Due { at, many: past.missed > MANY }))
}

/// How long until the next time; none: there is none.
pub(super) fn wait(since: &Since, now: Timestamp, schedule: &Schedule) -> Option<Duration> {
    let from = match past(since, now, schedule, false) {
        Ok(Past { latest: Some(latest), .. }) => latest,
        Ok(Past { earliest, missed: 0, .. }) => earliest,
        Ok(_) | Err(_) => now,
    };
    let next = schedule.next(from)?;
    Some(Duration::try_from(next.duration_since(now)).unwrap_or_default() + DELTA)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        format!("2026-01-05T{text}Z").parse().unwrap()
    }

    #[test]
    fn the_latest_time_counts() {
        let hourly = "0 * * * *";
        for (what, schedule, last, deadline, now, expected) in [
            ("too early", hourly, None, None, "10:59:59", None),
            ("just now", hourly, None, None, "11:00:00", Some(("11:00:00", false))),
            ("some missed", hourly, None, None, "14:30:00", Some(("14:00:00", false))),
            ("done already", hourly, Some("14:00:00"), None, "14:30:00", None),
            ("too late", hourly, None, Some(60), "14:30:00", None),
            ("late, but not too late", hourly, None, Some(1900), "14:30:00", Some(("14:00:00", false))),
            ("many missed", "* * * * *", None, None, "12:30:00", Some(("12:30:00", true))),
            ("many missed but few of interest", "* * * * *", None, Some(200), "12:30:00", Some(("12:30:00", false))),
            ("irregular", "30 6-16/4 * * 1-5", None, None, "15:00:00", Some(("14:30:00", false))),
            ("every so often", "@every 1h", None, None, "13:59:00", Some(("13:15:00", false))),
        ] {
            let since = Since { created: at("10:15:00"), last: last.map(at), deadline };
            let found = due(&since, at(now), &Schedule::parse(schedule).unwrap()).unwrap();
            assert_eq!(found, expected.map(|(time, many)| Due { at: at(time), many }), "{what}");
        }
    }

    #[test]
    fn the_next_time_is_waited_for() {
        let since = |last: Option<&str>| Since { created: at("10:15:00"), last: last.map(at), deadline: None };
        for (schedule, last, now, expected) in [
            ("0 * * * *", None, "10:20:00", 40 * 60),
            ("0 * * * *", Some("11:00:00"), "11:00:01", 59 * 60 + 59),
            ("0 * * * *", None, "14:30:00", 30 * 60),
            ("@every 1h", Some("11:00:00"), "11:30:00", 30 * 60),
        ] {
            let left = wait(&since(last), at(now), &Schedule::parse(schedule).unwrap()).unwrap();
            assert_eq!(left, Duration::from_secs(expected) + DELTA, "{schedule} at {now}");
        }
        let never = Schedule::parse("0 0 31 2 *").unwrap();
        assert_eq!((due(&since(None), at("11:00:00"), &never), wait(&since(None), at("11:00:00"), &never)), (Err(NEVER), None));
    }
}
