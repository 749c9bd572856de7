//! Tests of groups and periods.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::manager::{Times, seconds};
use super::plan::groups;
use super::{CRITICAL, ShutdownPeriod};

fn period(priority: i32, seconds: u64) -> ShutdownPeriod {
    ShutdownPeriod { priority, seconds }
}

/// The groups of pods (name, priority, own grace), as `PRIORITY/SECONDS: NAME=GRACE…`.
fn grouped(periods: &[ShutdownPeriod], pods: &[(&str, Option<i32>, Option<i64>)]) -> Vec<String> {
    let pod = |(name, priority, grace): &(&str, Option<i32>, Option<i64>)| {
        let spec = json!({"containers": [], "priority": priority, "terminationGracePeriodSeconds": grace});
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
        ((*name).to_owned(), Arc::new(pod))
    };
    let pods: Vec<_> = pods.iter().map(pod).collect();
    let text = |g: super::plan::Group| {
        let pods: Vec<_> = g.pods.iter().map(|p| format!("{}={}", p.uid, p.grace)).collect();
        format!("{}/{}: {}", g.priority, g.seconds, pods.join(" "))
    };
    groups(periods, &pods).into_iter().map(text).collect()
}

#[test]
fn two_periods_stand_for_one_of_critical_pods_and_one_of_the_others() {
    let s = Duration::from_secs;
    assert_eq!(ShutdownPeriod::of(s(30), s(10)), [period(0, 20), period(CRITICAL, 10)]);
    assert_eq!(ShutdownPeriod::of(s(30), s(0)), [period(0, 30), period(CRITICAL, 0)]);
    assert_eq!(ShutdownPeriod::of(s(0), s(0)), []);
    assert_eq!(ShutdownPeriod::of(s(10), s(20)), [], "which the configuration refuses");
    assert_eq!(ShutdownPeriod::total(&[period(0, 20), period(9, 10)]), s(31), "with a second for what is left to be told");
}

#[test]
fn pods_end_in_groups_by_priority_the_least_important_first() {
    let simple = ShutdownPeriod::of(Duration::from_secs(30), Duration::from_secs(10));
    let pods = [
        ("none", None, None),
        ("low", Some(-7), Some(90)),
        ("normal", Some(0), Some(5)),
        ("nearly", Some(CRITICAL - 1), Some(25)),
        ("cluster", Some(CRITICAL), Some(25)),
        ("node", Some(CRITICAL + 1000), Some(0)),
    ];
    assert_eq!(grouped(&simple, &pods), ["0/20: none=20 low=20 normal=5 nearly=20", "2000000000/10: cluster=10 node=1"]);
    // Upstream's TestGroupByPriority: what lies between two periods belongs to the lower one.
    let three = [period(1000, 60), period(0, 180), period(10, 120)];
    let pods = [("a", Some(-1), None), ("b", Some(0), None), ("c", Some(5), None), ("d", Some(10), None), ("e", Some(999), None)];
    assert_eq!(grouped(&three, &pods), ["0/180: a=180 b=180 c=180", "10/120: d=120 e=120"], "no group without pods");
    assert_eq!(grouped(&three, &[("f", Some(5000), None), ("g", Some(1000), None)]), ["1000/60: f=60 g=60"]);
    assert_eq!(grouped(&[period(5, 1), period(5, 2)], &[("a", Some(5), None)]), ["5/1: a=1"]);
    assert_eq!(grouped(&[], &pods), [""; 0]);
}

#[test]
fn the_state_is_upstreams() {
    let times: Times = serde_json::from_str(r#"{"startTime":"2026-01-02T03:04:05.678+02:00","endTime":"0001-01-01T00:00:00Z"}"#).unwrap();
    assert_eq!((seconds(&times.start_time), seconds(&times.end_time)), (1_767_315_845, 0));
    assert_eq!(seconds("nonsense"), 0);
}
