//! CronJobs (pkg/apis/batch/{v1,validation}, pkg/registry/batch/cronjob).

#[cfg(test)]
mod tests;

use super::job;
use crate::defaults::{inner, made, set};
use crate::kind::Kind;
use crate::object;
use crate::table::text::{get, list, selector, since};
use crate::table::{AGE, NAME, age, flag, name, number, text, wide};
use crate::validation::field::{Errors, Field};
use crate::validation::names;
use crate::validation::warnings::template as template_warnings;
use jiff::Timestamp;
use k8s_openapi::api::batch;
use kube_rules::cron;
use serde_json::{Map, Value, json};

/// A Job's name is its CronJob's and eleven characters more.
const LONGEST_NAME: usize = 52;

pub fn kind() -> Kind {
    Kind::new("batch", "v1", "CronJob", "cronjobs", "io.k8s.api.batch.v1.CronJob")
        .described_by::<batch::v1::CronJob>()
        .short(&["cj"])
        .in_all()
        .status()
        .metadata_with_status()
        .counts_generations()
        .defaults(defaults)
        .validate(validate)
        .warnings(warnings)
        .prepare_create(|job| object::set(job, "status", json!({})))
        .table(
            [
                NAME,
                text("Schedule"),
                text("Timezone"),
                flag("Suspend"),
                number("Active"),
                text("Last Schedule"),
                AGE,
                wide(text("Containers")),
                wide(text("Images")),
                wide(text("Selector")),
            ],
            cells,
        )
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let containers = list(object, "/spec/jobTemplate/spec/template/spec/containers");
    let joined = |member: &str| containers.iter().map(|container| get(container, member)).collect::<Vec<_>>().join(",");
    let zone = object::lookup(object, &["spec", "timeZone"]).and_then(Value::as_str);
    let suspend = match object::lookup(object, &["spec", "suspend"]).and_then(Value::as_bool) {
        None => "<unset>",
        Some(true) => "True",
        Some(false) => "False",
    };
    let last = match get(object, "/status/lastScheduleTime") {
        "" => "<none>".to_string(),
        _ => since(object, "/status/lastScheduleTime", now),
    };
    vec![
        name(object),
        get(object, "/spec/schedule").into(),
        zone.unwrap_or("<none>").into(),
        suspend.into(),
        list(object, "/status/active").len().into(),
        last.into(),
        age(object, now),
        joined("/name").into(),
        joined("/image").into(),
        selector(object, "/spec/jobTemplate/spec/selector").into(),
    ]
}

fn defaults(object: &mut Map<String, Value>) {
    let Some(spec) = made(object, "spec") else { return };
    set(spec, "concurrencyPolicy", || "Allow".into());
    set(spec, "suspend", || false.into());
    set(spec, "successfulJobsHistoryLimit", || 3.into());
    set(spec, "failedJobsHistoryLimit", || 1.into());
    if let Some(job) = inner(spec, "jobTemplate").and_then(|template| inner(template, "spec")) {
        job::template_defaults(job);
    }
}

fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let spec = new.get("spec");
    let before = old.map(|old| old.get("spec"));
    if before.as_ref().is_some_and(|before| before.value == spec.value) {
        return;
    }
    schedule(&spec, before.as_ref(), errors);
    errors.not_negative(&spec.get("startingDeadlineSeconds"));
    let zone = spec.get("timeZone");
    if before.is_none_or(|before| before.get("timeZone").value != zone.value) && zone.is_set() {
        time_zone(&zone, errors);
    }
    errors.one_of(&spec.get("concurrencyPolicy"), &["Allow", "Forbid", "Replace"]);
    job_template(&spec.get("jobTemplate").get("spec"), errors);
    for member in ["successfulJobsHistoryLimit", "failedJobsHistoryLimit"] {
        errors.not_negative(&spec.get(member));
    }
    let name = new.get("metadata").get("name");
    if old.is_none() && name.text().len() > LONGEST_NAME {
        errors.invalid(&name, format!("must be no more than {LONGEST_NAME} characters"));
    }
}

fn schedule(spec: &Field, before: Option<&Field>, errors: &mut Errors) {
    let schedule = spec.get("schedule");
    if schedule.is_empty() {
        return errors.required(&schedule, "");
    }
    if let Err(problem) = cron::Schedule::parse(schedule.text()) {
        errors.invalid(&schedule, problem.to_string());
    }
    if !schedule.text().contains("TZ") {
        return;
    }
    // Objects of old releases may keep a zone in their schedule.
    if !before.is_some_and(|before| before.get("schedule").text().contains("TZ")) {
        errors.invalid(&schedule, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead");
    } else if spec.get("timeZone").is_set() {
        errors.invalid(&schedule, "cannot use both timeZone field and TZ or CRON_TZ in schedule");
    }
}

fn time_zone(zone: &Field, errors: &mut Errors) {
    const LONGEST_PART: usize = 14;
    let text = zone.text();
    if text.is_empty() {
        return errors.invalid(zone, "timeZone must be nil or non-empty string");
    }
    let valid = |part: &str| {
        !matches!(part, "" | "." | "..")
            && !part.starts_with('-')
            && part.len() <= LONGEST_PART
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_+".contains(&byte))
    };
    if !text.split('/').all(valid) {
        return errors.invalid(zone, format!("unknown time zone {text}"));
    }
    if text.eq_ignore_ascii_case("local") {
        errors.invalid(zone, "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones");
    }
    if let Err(problem) = cron::time_zone(text) {
        errors.invalid(zone, problem.to_string());
    }
}

fn job_template(spec: &Field, errors: &mut Errors) {
    job::check_spec_alone(spec, errors);
    let (selector, manual) = (spec.get("selector"), spec.get("manualSelector"));
    if selector.is_set() {
        errors.invalid(&selector, "`selector` will be auto-generated");
    }
    if manual.is_true() {
        errors.not_supported(&manual, &["nil", "false"]);
    }
}

fn warnings(new: &Field, found: &mut Vec<String>) {
    found.extend(names::pod_name_warning(new.get("metadata").get("name").text()));
    let template = new.get("spec").get("jobTemplate");
    job::spec_warnings(&template.get("spec"), found);
    template_warnings(&template, found);
    // Only an object of an old release can have a zone there.
    if new.get("spec").get("schedule").text().contains("TZ") {
        let see = "https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/";
        found.push(format!("cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see {see} for more details"));
    }
}
