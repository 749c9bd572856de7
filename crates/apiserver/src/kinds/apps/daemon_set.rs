//! DaemonSets.

use super::tail;
use crate::defaults::{is_text, made, set, template};
use crate::kind::Kind;
use crate::object;
use crate::table::text::{integer, labels};
use crate::table::{AGE, NAME, name, number, text, wide};
use crate::validation::field::{Errors, Field};
use crate::validation::pod;
use crate::validation::workload::{amount, at_most_all, number_or_percent};
use crate::validation::{meta, warnings};
use jiff::Timestamp;
use k8s_openapi::api::apps;
use serde_json::{Map, Value, json};

pub fn kind() -> Kind {
    Kind::new("apps", "v1", "DaemonSet", "daemonsets", "io.k8s.api.apps.v1.DaemonSet")
        .described_by::<apps::v1::DaemonSet>()
        .short(&["ds"])
        .in_all()
        .status()
        .metadata_with_status()
        .counts_generations()
        .defaults(defaults)
        .validate(validate)
        .warnings(warnings::template)
        .prepare_create(prepare_create)
        .prepare_update(prepare_update)
        .table(
            [
                NAME,
                number("Desired"),
                number("Current"),
                number("Ready"),
                number("Up-to-date"),
                number("Available"),
                text("Node Selector"),
                AGE,
                wide(text("Containers")),
                wide(text("Images")),
                wide(text("Selector")),
            ],
            cells,
        )
}

fn defaults(object: &mut Map<String, Value>) {
    let Some(spec) = made(object, "spec") else { return };
    if let Some(strategy) = made(spec, "updateStrategy") {
        set(strategy, "type", || "RollingUpdate".into());
        if is_text(strategy, "type", "RollingUpdate")
            && let Some(rolling) = made(strategy, "rollingUpdate")
        {
            set(rolling, "maxUnavailable", || 1.into());
            set(rolling, "maxSurge", || 0.into());
        }
    }
    set(spec, "revisionHistoryLimit", || 10.into());
    template(spec);
}

/// A new or changed DaemonSet.
fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let spec = new.get("spec");
    if old.is_some_and(|old| old.get("spec").value == spec.value) {
        return;
    }
    let (selector, template) = (spec.get("selector"), spec.get("template"));
    meta::selector(&selector, errors);
    let labels = template.get("metadata").get("labels");
    // A selector that is not there selects nothing.
    if !selector.is_set() || !meta::selects(&selector, &labels) {
        let shown = if labels.is_set() { labels.value.clone() } else { Value::Null };
        errors.invalid_value(&labels, shown, "`selector` does not match template `labels`");
    }
    if selector.is_set() && selector.get("matchLabels").is_empty() && selector.get("matchExpressions").is_empty() {
        errors.invalid_value(&selector, serde_json::json!({}), "empty selector is invalid for daemonset");
    }
    pod::template(&template, errors);
    let policy = template.get("spec").get("restartPolicy");
    if !policy.is_empty() && policy.text() != "Always" {
        errors.not_supported(&policy, &["Always"]);
    }
    let deadline = template.get("spec").get("activeDeadlineSeconds");
    if deadline.is_set() {
        errors.forbidden(&deadline, "activeDeadlineSeconds in DaemonSet is not Supported");
    }
    errors.not_negative(&spec.get("minReadySeconds"));
    update_strategy(&spec.get("updateStrategy"), errors);
    errors.not_negative(&spec.get("revisionHistoryLimit"));
    if let Some(old) = old {
        errors.immutable(&selector, &old.get("spec").get("selector"));
    }
}

fn update_strategy(strategy: &Field, errors: &mut Errors) {
    let rolling = strategy.get("rollingUpdate");
    match strategy.get("type").text() {
        "OnDelete" => {}
        "RollingUpdate" if !rolling.is_set() => errors.required(&rolling, ""),
        "RollingUpdate" => {
            let (unavailable, surge) = (rolling.get("maxUnavailable"), rolling.get("maxSurge"));
            for field in [&unavailable, &surge] {
                number_or_percent(field, errors);
            }
            for field in [&unavailable, &surge] {
                at_most_all(field, errors);
            }
            match (amount(&unavailable).unwrap_or_default() != 0, amount(&surge).unwrap_or_default() != 0) {
                (true, true) => errors.invalid(&surge, "may not be set when maxUnavailable is non-zero"),
                (false, false) => errors.required(&unavailable, "cannot be 0 when maxSurge is 0"),
                _ => {}
            }
        }
        _ => errors.not_supported(strategy, &["RollingUpdate", "OnDelete"]),
    }
}

/// Where apps/v1 keeps a field of extensions/v1beta1: how often a DaemonSet's template changed.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

fn count_template(object: &mut Value, generation: i64) {
    let annotations = object::metadata(object).entry("annotations").or_insert_with(|| json!({}));
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.insert(TEMPLATE_GENERATION.into(), generation.to_string().into());
    }
}

fn prepare_create(object: &mut Value) {
    count_template(object, 1);
    let counts = json!({"currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0});
    object::set(object, "status", counts);
}

fn prepare_update(old: &Value, new: &mut Value) {
    let before = object::text(old, &["metadata", "annotations", TEMPLATE_GENERATION]).parse().unwrap_or(1);
    let changed = object::lookup(old, &["spec", "template"]) != object::lookup(new, &["spec", "template"]);
    count_template(new, if changed { before + 1 } else { before });
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let counts = ["desiredNumberScheduled", "currentNumberScheduled", "numberReady", "updatedNumberScheduled", "numberAvailable"];
    let mut cells = vec![name(object)];
    cells.extend(counts.map(|member| integer(object, &format!("/status/{member}")).into()));
    cells.push(labels(object, "/spec/template/spec/nodeSelector").into());
    cells.extend(tail(object, now));
    cells
}
