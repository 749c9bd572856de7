//! Schedules: what can be read has later and later times, or none.

#![no_main]

use libfuzzer_sys::fuzz_target;
use kube_rules::cron::Schedule;

fuzz_target!(|text: &str| {
    let Ok(schedule) = Schedule::parse(text) else { return };
    let mut time = std::time::UNIX_EPOCH.try_into().expect("1970 is a time");
    for _ in 0..3 {
        let Some(next) = schedule.next(time) else { return };
        assert!(next > time, "{text:?} {time} {next}");
        time = next;
    }
});
