//! Defaults, checks, columns of CronJobs.

use super::*;
use crate::kinds::check::{defaulted, problems, row, table, template, updates, warned, with};
use serde_json::json;

fn cron_job() -> Value {
    let spec = json!({"schedule": "*/5 * * * *", "jobTemplate": {"spec": {"template": template("OnFailure")}}});
    defaulted(defaults, json!({"metadata": {"name": "c", "namespace": "default"}, "spec": spec}))
}

#[test]
fn defaults_are_of_the_cron_job_alone() {
    let spec = cron_job()["spec"].clone();
    assert_eq!(
        (&spec["concurrencyPolicy"], &spec["suspend"], &spec["successfulJobsHistoryLimit"], &spec["failedJobsHistoryLimit"]),
        (&json!("Allow"), &json!(false), &json!(3), &json!(1))
    );
    assert!(spec["jobTemplate"]["spec"].get("completions").is_none(), "a Job's defaults come with the Job");
}

#[test]
fn cron_jobs_are_checked() {
    let zone = |name: &str, problem: &str| format!("spec.timeZone: Invalid value: {name:?}: {problem}");
    table(
        validate,
        &cron_job(),
        &[
            ("/spec/schedule", json!(""), "spec.schedule: Required value"),
            ("/spec/schedule", json!("@hourly"), ""),
            ("/spec/schedule", json!("error"), "spec.schedule: Invalid value: \"error\": expected exactly 5 fields, found 1: [error]"),
            ("/spec/schedule", json!("60 * * * *"), "spec.schedule: Invalid value: \"60 * * * *\": end of range (60) above maximum (59): 60"),
            (
                "/spec/schedule",
                json!("TZ=UTC 0 * * * *"),
                "spec.schedule: Invalid value: \"TZ=UTC 0 * * * *\": cannot use TZ or CRON_TZ in schedule, use timeZone field instead",
            ),
            ("/spec/timeZone", json!("America/Argentina/Buenos_Aires"), ""),
            ("/spec/timeZone", json!(""), &zone("", "timeZone must be nil or non-empty string")),
            ("/spec/timeZone", json!("../etc/UTC"), &zone("../etc/UTC", "unknown time zone ../etc/UTC")),
            ("/spec/timeZone", json!("Nowhere/At_All"), &zone("Nowhere/At_All", "unknown time zone Nowhere/At_All")),
            (
                "/spec/timeZone",
                json!("Local"),
                &zone("Local", "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"),
            ),
            ("/spec/startingDeadlineSeconds", json!(-1), "spec.startingDeadlineSeconds: Invalid value: -1: must be greater than or equal to 0"),
            (
                "/spec/concurrencyPolicy",
                json!("Queue"),
                "spec.concurrencyPolicy: Unsupported value: \"Queue\": supported values: \"Allow\", \"Forbid\", \"Replace\"",
            ),
            ("/spec/failedJobsHistoryLimit", json!(-1), "spec.failedJobsHistoryLimit: Invalid value: -1: must be greater than or equal to 0"),
            (
                "/spec/jobTemplate/spec/selector",
                json!({"matchLabels": {"a": "b"}}),
                "spec.jobTemplate.spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"b\"}}: `selector` will be auto-generated",
            ),
            (
                "/spec/jobTemplate/spec/manualSelector",
                json!(true),
                "spec.jobTemplate.spec.manualSelector: Unsupported value: true: supported values: \"nil\", \"false\"",
            ),
            (
                "/spec/jobTemplate/spec/parallelism",
                json!(-1),
                "spec.jobTemplate.spec.parallelism: Invalid value: -1: must be greater than or equal to 0",
            ),
        ],
    );
    let long = with(&cron_job(), &[("/metadata/name", json!("x".repeat(53)))]);
    assert_eq!(problems(validate, &long), format!("metadata.name: Invalid value: \"{}\": must be no more than 52 characters", "x".repeat(53)));
    let suspended = ("/spec/suspend", json!(true), "");
    updates(validate, &long, std::slice::from_ref(&suspended));
}

#[test]
fn an_old_zone_in_a_schedule_may_stay() {
    let old = with(&cron_job(), &[("/spec/schedule", json!("TZ=UTC 0 * * * *"))]);
    let both = "spec.schedule: Invalid value: \"TZ=UTC 0 * * * *\": cannot use both timeZone field and TZ or CRON_TZ in schedule";
    updates(
        validate,
        &old,
        &[("/spec/schedule", json!("CRON_TZ=UTC 1 * * * *"), ""), ("/spec/suspend", json!(true), ""), ("/spec/timeZone", json!("Etc/UTC"), both)],
    );
    assert_eq!(warned(warnings, &old).len(), 1);
}

#[test]
fn columns_tell_schedule_and_last_time() {
    let object = with(
        &cron_job(),
        &[("/status", json!({"active": [{}, {}], "lastScheduleTime": "2026-01-01T23:59:00Z"})), ("/spec/timeZone", json!("Etc/UTC"))],
    );
    assert_eq!(row(cells, &object), ["x", "*/5 * * * *", "Etc/UTC", "False", "2", "60s", "2m30s", "c", "i", "<none>"]);
    assert_eq!(row(cells, &cron_job())[2..6], ["<none>", "False", "0", "<none>"]);
}
