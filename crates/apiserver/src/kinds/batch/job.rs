//! Jobs (pkg/apis/batch/{v1,validation}, pkg/registry/batch/job).

mod failure_policy;
mod indexes;
mod status;
#[cfg(test)]
mod tests;
mod update;
mod validation;

pub(super) use validation::spec as check_spec_alone;

use crate::defaults::{each, inner, made, set, template};
use crate::kind::{Kind, SelectableField};
use crate::object;
use crate::table::text::{get, human_duration, integer, list, selector, time};
use crate::table::{AGE, NAME, age, name, text, wide};
use crate::validation::field::{Errors, Field};
use crate::validation::warnings::template as template_warnings;
use crate::validation::{meta, names};
use jiff::Timestamp;
use k8s_openapi::api::batch;
use serde_json::{Map, Value, json};

const LEFT: &str = "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set \
                    propagationPolicy=Orphan to suppress this warning";

/// The labels that tell a Job's pods from others: old names, then prefixed ones.
const UID_LABELS: [&str; 2] = ["controller-uid", "batch.kubernetes.io/controller-uid"];
const NAME_LABELS: [&str; 2] = ["job-name", "batch.kubernetes.io/job-name"];

pub fn kind() -> Kind {
    Kind::new("batch", "v1", "Job", "jobs", "io.k8s.api.batch.v1.Job")
        .described_by::<batch::v1::Job>()
        .in_all()
        .status()
        .metadata_with_status()
        .counts_generations()
        .orphans_dependents()
        .deletion_warning(LEFT)
        .selectable(SelectableField::new("status.successful").at(&["status", "succeeded"]).or("0"))
        .defaults(defaults)
        .validate(validate)
        .validate_status(status::validate)
        .warnings(warnings)
        .prepare_create(prepare_create)
        .table(
            [
                NAME,
                text("Status"),
                text("Completions"),
                text("Duration"),
                AGE,
                wide(text("Containers")),
                wide(text("Images")),
                wide(text("Selector")),
            ],
            cells,
        )
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let containers = list(object, "/spec/template/spec/containers");
    let joined = |member: &str| containers.iter().map(|container| get(container, member)).collect::<Vec<_>>().join(",");
    vec![
        name(object),
        state(object).into(),
        completions(object).into(),
        duration(object, now).into(),
        age(object, now),
        joined("/name").into(),
        joined("/image").into(),
        selector(object, "/spec/selector").into(),
    ]
}

fn state(job: &Value) -> &'static str {
    let is = |condition: &str| has_condition(job, condition, "True");
    match () {
        () if is("Complete") => "Complete",
        () if is("Failed") => "Failed",
        () if object::is_deleting(job) => "Terminating",
        () if is("Suspended") => "Suspended",
        () if is("FailureTarget") => "FailureTarget",
        () if is("SuccessCriteriaMet") => "SuccessCriteriaMet",
        () => "Running",
    }
}

fn completions(job: &Value) -> String {
    let succeeded = integer(job, "/status/succeeded");
    match object::integer(job, &["spec", "completions"]) {
        Some(wanted) => format!("{succeeded}/{wanted}"),
        None if integer(job, "/spec/parallelism") > 1 => format!("{succeeded}/1 of {}", integer(job, "/spec/parallelism")),
        None => format!("{succeeded}/1"),
    }
}

fn duration(job: &Value, now: Timestamp) -> String {
    let Some(start) = time(job, "/status/startTime") else { return String::new() };
    let end = time(job, "/status/completionTime").unwrap_or(now);
    human_duration(end.as_second() - start.as_second())
}

/// Whether the Job has the condition in this state.
pub(super) fn has_condition(job: &Value, condition: &str, state: &str) -> bool {
    list(job, "/status/conditions").iter().any(|found| get(found, "/type") == condition && get(found, "/status") == state)
}

fn defaults(object: &mut Map<String, Value>) {
    let Some(spec) = made(object, "spec") else { return };
    let unset = |spec: &Map<String, Value>, member: &str| spec.get(member).is_none_or(Value::is_null);
    if unset(spec, "completions") && unset(spec, "parallelism") {
        spec.insert("completions".into(), 1.into());
    }
    set(spec, "parallelism", || 1.into());
    let per_index = !unset(spec, "backoffLimitPerIndex");
    set(spec, "backoffLimit", || if per_index { i32::MAX.into() } else { 6.into() });
    set(spec, "completionMode", || "NonIndexed".into());
    set(spec, "suspend", || false.into());
    let replacement = if unset(spec, "podFailurePolicy") { "TerminatingOrFailed" } else { "Failed" };
    set(spec, "podReplacementPolicy", || replacement.into());
    set(spec, "manualSelector", || false.into());
    template_defaults(spec);
    let labels = spec.get("template").and_then(|template| template.pointer("/metadata/labels")).filter(|labels| labels.is_object()).cloned();
    if let Some(labels) = labels
        && let Some(metadata) = made(object, "metadata")
        && metadata.get("labels").and_then(Value::as_object).is_none_or(Map::is_empty)
    {
        metadata.insert("labels".into(), labels);
    }
}

/// What a Job's specification gets wherever it stands, in a Job or in a CronJob.
pub(super) fn template_defaults(spec: &mut Map<String, Value>) {
    if let Some(policy) = inner(spec, "podFailurePolicy") {
        for rule in each(policy, "rules") {
            each(rule, "onPodConditions").for_each(|pattern| set(pattern, "status", || "True".into()));
        }
    }
    template(spec);
}

/// Gives a new Job its selector and its pods the labels that the selector asks for, unless the client brings its own.
fn prepare_create(job: &mut Value) {
    object::set(job, "status", json!({}));
    if object::lookup(job, &["spec", "manualSelector"]).and_then(Value::as_bool).unwrap_or_default() {
        return;
    }
    let (uid, name) = (object::uid(job).to_string(), object::name(job).to_string());
    let spec = object::map_mut(job, "spec");
    let Some(template) = made(spec, "template") else { return };
    if let Some(labels) = made(template, "metadata").and_then(|metadata| made(metadata, "labels")) {
        for (keys, value) in [(NAME_LABELS, &name), (UID_LABELS, &uid)] {
            for key in keys {
                labels.entry(key).or_insert_with(|| value.clone().into());
            }
        }
    }
    if let Some(labels) = made(spec, "selector").and_then(|selector| made(selector, "matchLabels")) {
        labels.entry(UID_LABELS[1]).or_insert_with(|| uid.into());
    }
}

fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    if old.is_some_and(|old| old.get("spec").value == new.get("spec").value) {
        return;
    }
    generated_selector(new, old, errors);
    let spec = new.get("spec");
    validation::own_spec(&spec, errors);
    hostnames(new, errors);
    if let Some(old) = old {
        update::check(&spec, old, errors);
    }
}

/// A selector that is not the client's own must select this Job's pods alone.
fn generated_selector(job: &Field, old: Option<&Field>, errors: &mut Errors) {
    let spec = job.get("spec");
    let selector = spec.get("selector");
    if spec.get("manualSelector").is_true() || !selector.is_set() {
        return;
    }
    let (uid, name) = (job.get("metadata").get("uid"), job.get("metadata").get("name"));
    if uid.is_empty() {
        errors.required(&uid, "");
    }
    // Jobs of old releases have the labels without a prefix alone.
    let prefixed = old.is_none_or(|old| {
        let labels = old.get("spec").get("template").get("metadata").get("labels");
        [UID_LABELS[1], NAME_LABELS[1]].iter().all(|label| labels.value.get(label).is_some())
    });
    let labels = spec.get("template").get("metadata").get("labels");
    let mut expected = Map::new();
    for index in 0..if prefixed { 2 } else { 1 } {
        for (key, value) in [(UID_LABELS[index], uid.text()), (NAME_LABELS[index], name.text())] {
            has_label(&labels, key, value, errors);
            expected.insert(key.into(), value.into());
        }
    }
    let expected = Value::Object(expected);
    if !meta::selects(&selector, &Field { path: String::new(), value: &expected }) {
        errors.invalid(&selector, "`selector` not auto-generated");
    }
}

fn has_label(labels: &Field, key: &str, wanted: &str, errors: &mut Errors) {
    let found = labels.key(key);
    if !found.is_set() {
        errors.required(&found, &format!("must be '{wanted}'"));
    } else if found.text() != wanted {
        errors.invalid_value(&found, labels.value.clone(), format!("must be '{wanted}'"));
    }
}

/// The pods of an indexed Job are named and called after it and their index.
fn hostnames(job: &Field, errors: &mut Errors) {
    let (spec, name) = (job.get("spec"), job.get("metadata").get("name"));
    let Some(completions) = spec.get("completions").number().filter(|count| *count > 0) else { return };
    let longest = format!("{}-{}", name.text(), completions - 1);
    if spec.get("completionMode").text() == "Indexed" && !names::dns_label(&longest).is_empty() {
        errors.invalid(&name, format!("will not able to create pod with invalid DNS label: {longest}"));
    }
}

fn warnings(job: &Field, found: &mut Vec<String>) {
    found.extend(names::pod_name_warning(job.get("metadata").get("name").text()));
    spec_warnings(&job.get("spec"), found);
    template_warnings(job, found);
}

/// What is accepted in a specification and still not as it should be, beside the pod template.
pub(super) fn spec_warnings(spec: &Field, found: &mut Vec<String>) {
    let amount = |member: &str| spec.get(member).number().unwrap_or_default();
    if spec.get("completionMode").text() == "Indexed" && amount("completions") > 100_000 && amount("parallelism") > 10_000 {
        let what = "In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able \
                    to track completedIndexes when a big number of indexes fail";
        found.push(format!("{}: {what}", spec.path));
    }
}
