//! Expected times are upstream's: `spec_test.go` and `constantdelay_test.go` of robfig/cron.

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

#[test]
fn next_times() {
    for (after, schedule, expected) in [
        ("2012-07-09T14:45:00Z", "0/15 * * * *", "2012-07-09T15:00:00Z"),
        ("2012-07-09T14:59:59Z", "0/15 * * * *", "2012-07-09T15:00:00Z"),
        ("2012-07-09T15:45:00Z", "20-35/15 * * * *", "2012-07-09T16:20:00Z"),
        ("2012-07-09T23:46:00Z", "*/15 * * * *", "2012-07-10T00:00:00Z"),
        ("2012-07-09T23:45:00Z", "20-35/15 * * * *", "2012-07-10T00:20:00Z"),
        ("2012-07-09T23:35:51Z", "15/35 20-23/15 * * *", "2012-07-10T20:15:00Z"),
        ("2012-07-09T23:35:00Z", "0 0 9 Apr-Oct ?", "2012-08-09T00:00:00Z"),
        ("2012-07-09T23:35:00Z", "0 0 */5 Apr,Aug,Oct Mon", "2012-08-01T00:00:00Z"),
        ("2012-07-09T23:35:00Z", "0 0 * Feb Mon", "2013-02-04T00:00:00Z"),
        ("2012-07-09T23:35:00Z", "0 0 * Feb Mon/2", "2013-02-01T00:00:00Z"),
        ("2012-12-31T23:59:45Z", "* * * * *", "2013-01-01T00:00:00Z"),
        ("2012-07-09T23:35:00Z", "0 0 29 Feb ?", "2016-02-29T00:00:00Z"),
        // Day of month or day of week, where both are given.
        ("2012-07-09T00:00:00Z", "0 0 1,15 * Sun", "2012-07-15T00:00:00Z"),
        ("2012-07-16T00:00:00Z", "0 0 1,15 * Sun", "2012-07-22T00:00:00Z"),
        ("2012-07-09T00:00:00Z", "0 0 */10 * Sun", "2012-07-11T00:00:00Z"),
        // Spring: two o'clock does not happen.
        ("2012-03-11T00:00:00-05:00", "TZ=America/New_York 30 2 11 Mar ?", "2013-03-11T02:30:00-04:00"),
        ("2012-03-11T00:00:00-05:00", "TZ=America/New_York 0 * * * ?", "2012-03-11T01:00:00-05:00"),
        ("2012-03-11T01:00:00-05:00", "TZ=America/New_York 0 * * * ?", "2012-03-11T03:00:00-04:00"),
        ("2012-03-11T00:00:00-05:00", "TZ=America/New_York 0 2 * * ?", "2012-03-12T02:00:00-04:00"),
        ("2012-03-11T00:00:00-05:00", "CRON_TZ=America/New_York 0 2 * * ?", "2012-03-12T02:00:00-04:00"),
        // Autumn: one o'clock happens twice.
        ("2012-11-04T00:00:00-04:00", "TZ=America/New_York 30 1 04 Nov ?", "2012-11-04T01:30:00-04:00"),
        ("2012-11-04T01:30:00-04:00", "TZ=America/New_York 30 1 * * ?", "2012-11-04T01:30:00-05:00"),
        ("2012-11-04T01:30:00-05:00", "TZ=America/New_York 30 1 * * ?", "2012-11-05T01:30:00-05:00"),
        ("2012-11-04T00:00:00-04:00", "TZ=America/New_York 0 3 * * ?", "2012-11-04T03:00:00-05:00"),
        // A day without midnight.
        ("2018-10-17T05:00:00-03:00", "TZ=America/Sao_Paulo 0 9 10 * ?", "2018-11-10T09:00:00-02:00"),
        ("2018-02-22T05:00:00-05:00", "TZ=America/Sao_Paulo 0 9 22 * ?", "2018-02-22T09:00:00-03:00"),
        ("2012-07-09T14:45:00Z", "TZ=Asia/Tokyo @daily", "2012-07-09T15:00:00Z"),
        ("2012-07-09T14:45:00Z", "@hourly", "2012-07-09T15:00:00Z"),
        ("2012-07-09T14:45:00Z", "@weekly", "2012-07-15T00:00:00Z"),
        ("2012-07-09T14:45:00Z", "@monthly", "2012-08-01T00:00:00Z"),
        ("2012-07-09T14:45:00Z", "@annually", "2013-01-01T00:00:00Z"),
        ("2012-07-09T14:45:00.5Z", "@every 1h30m", "2012-07-09T16:15:00Z"),
        ("2012-07-09T14:45:00Z", "@every 5ms", "2012-07-09T14:45:01Z"),
        ("2012-07-09T14:45:00Z", "@every 2.5s", "2012-07-09T14:45:02Z"),
        ("2012-07-09T14:45:00Z", "@every -1h", "2012-07-09T14:45:01Z"),
    ] {
        assert_eq!(Schedule::parse(schedule).unwrap().next(at(after)), Some(at(expected)), "{schedule} after {after}");
    }
}

#[test]
fn days_that_never_come() {
    for schedule in ["0 0 30 Feb ?", "0 0 31 Apr ?", ", * * * *"] {
        assert_eq!(Schedule::parse(schedule).unwrap().next(at("2012-07-09T23:35:00Z")), None, "{schedule}");
    }
    assert_eq!(Schedule::parse("* * * * *").unwrap().next(Timestamp::MAX), None);
    assert_eq!(Schedule::parse("@every 1h").unwrap().next(Timestamp::MAX), None);
}

#[test]
fn refusals_are_upstreams() {
    for (schedule, expected) in [
        ("", "empty spec string"),
        ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
        ("5 5 * * * *", "expected exactly 5 fields, found 6: [5 5 * * * *]"),
        ("xyz * * * *", r#"failed to parse int from xyz: strconv.Atoi: parsing "xyz": invalid syntax"#),
        (
            "99999999999999999999 * * * *",
            r#"failed to parse int from 99999999999999999999: strconv.Atoi: parsing "99999999999999999999": value out of range"#,
        ),
        ("60 * * * *", "end of range (60) above maximum (59): 60"),
        ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
        ("30-20 * * * *", "beginning of range (30) beyond end of range (20): 30-20"),
        ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
        ("*/2/3 * * * *", "too many slashes: */2/3"),
        ("*/0 * * * *", "step of range should be a positive number: */0"),
        ("*/-1 * * * *", "negative number (-1) not allowed: -1"),
        ("@unrecognized", "unrecognized descriptor: @unrecognized"),
        ("@every 10", r#"failed to parse duration 10: time: missing unit in duration "10""#),
        ("@every 1x", r#"failed to parse duration 1x: time: unknown unit "x" in duration "1x""#),
        ("@every ", r#"unrecognized descriptor: @every"#),
        ("@every h", r#"failed to parse duration h: time: invalid duration "h""#),
        ("TZ=Nowhere/Land * * * * *", "provided bad location Nowhere/Land: unknown time zone Nowhere/Land"),
        ("TZ=0", "invalid schedule format: runtime error: slice bounds out of range [:-1]"),
    ] {
        // Only after a zone is the rest trimmed.
        let text = if schedule == "@every " { "TZ=UTC @every " } else { schedule };
        assert_eq!(Schedule::parse(text).map_err(|error| error.to_string()), Err(expected.to_owned()), "{schedule}");
    }
}

/// Upstream's library walks by whole hours from there, arrives at half past three and goes on to the next day (robfig/cron, `SpecSchedule.Next`).
#[test]
fn a_change_of_clocks_by_half_an_hour_leaves_a_time_out_as_upstream() {
    let schedule = Schedule::parse("TZ=Australia/Lord_Howe 0 3 * * *").unwrap();
    let after: Timestamp = "2008-10-03T16:50:00Z".parse().unwrap();
    assert_eq!(schedule.next(after), Some("2008-10-05T16:00:00Z".parse().unwrap()));
}

proptest::proptest! {
    #[test]
    fn a_next_time_is_later_and_none_is_left_out(seconds in 0_i64..4_000_000_000, minute in 0..60, hour in 0..24, zone in 0..4_usize) {
        let zone = ["UTC", "America/New_York", "Europe/Berlin", "Asia/Kolkata"][zone];
        let schedule = Schedule::parse(&format!("TZ={zone} {minute} {hour} * * *")).unwrap();
        let after = Timestamp::from_second(seconds).unwrap();
        let next = schedule.next(after).unwrap();
        proptest::prop_assert!(next > after);
        // The oracle looks at every minute. In these zones clocks change by whole hours, if they change.
        let zone = time_zone(zone).unwrap();
        let mut minutes = (seconds / 60 + 1..).map(|minutes| Timestamp::from_second(minutes * 60).unwrap());
        let first = minutes.find(|time| {
            let shown = time.to_zoned(zone.clone());
            (i32::from(shown.hour()), i32::from(shown.minute())) == (hour, minute)
        });
        proptest::prop_assert_eq!(Some(next), first);
    }
}
