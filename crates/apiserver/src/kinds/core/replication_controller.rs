//! ReplicationControllers (pkg/apis/core/{v1,validation}, pkg/registry/core/replicationcontroller).

#[cfg(test)]
mod tests;

use crate::defaults::{made, set, template};
use crate::kind::{Kind, SelectableField};
use crate::object;
use crate::table::text::{get, integer, labels, list};
use crate::table::{AGE, NAME, age, name, number, text, wide};
use crate::validation::field::{Errors, Field};
use crate::validation::warnings::template as template_warnings;
use crate::validation::{names, pod};
use jiff::Timestamp;
use k8s_openapi::api::{autoscaling, core};
use serde_json::{Map, Value, json};

pub fn kind() -> Kind {
    Kind::new("", "v1", "ReplicationController", "replicationcontrollers", "io.k8s.api.core.v1.ReplicationController")
        .described_by::<core::v1::ReplicationController>()
        .described_by::<autoscaling::v1::Scale>()
        .short(&["rc"])
        .in_all()
        .status()
        .metadata_with_status()
        .scale()
        .counts_generations()
        .orphans_dependents()
        .selectable(SelectableField::new("status.replicas").or("0"))
        .defaults(defaults)
        .validate(validate)
        .validate_status(validate_status)
        .warnings(warnings)
        .prepare_create(|controller| object::set(controller, "status", json!({"replicas": 0})))
        .table(
            [
                NAME,
                number("Desired"),
                number("Current"),
                number("Ready"),
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
        integer(object, "/spec/replicas").into(),
        integer(object, "/status/replicas").into(),
        integer(object, "/status/readyReplicas").into(),
        age(object, now),
        joined("/name").into(),
        joined("/image").into(),
        labels(object, "/spec/selector").into(),
    ]
}

fn defaults(object: &mut Map<String, Value>) {
    let Some(spec) = made(object, "spec") else { return };
    let labels = spec.get("template").and_then(|template| template.pointer("/metadata/labels")).filter(|labels| labels.is_object()).cloned();
    set(spec, "replicas", || 1.into());
    template(spec);
    let Some(labels) = labels else { return };
    let missing = |owner: &Map<String, Value>, member: &str| owner.get(member).and_then(Value::as_object).is_none_or(Map::is_empty);
    if missing(spec, "selector") {
        spec.insert("selector".into(), labels.clone());
    }
    if let Some(metadata) = made(object, "metadata")
        && missing(metadata, "labels")
    {
        metadata.insert("labels".into(), labels);
    }
}

fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    if old.is_some_and(|old| old.get("spec").value == new.get("spec").value) {
        return;
    }
    let spec = new.get("spec");
    errors.not_negative(&spec.get("minReadySeconds"));
    let selector = spec.get("selector");
    if selector.is_empty() {
        errors.required(&selector, "");
    }
    let replicas = spec.get("replicas");
    if replicas.is_set() {
        errors.not_negative(&replicas);
    } else {
        errors.required(&replicas, "");
    }
    check_template(&spec.get("template"), &selector, errors);
}

fn check_template(template: &Field, selector: &Field, errors: &mut Errors) {
    if !template.is_set() {
        return errors.required(template, "");
    }
    let labels = template.get("metadata").get("labels");
    if selector.members().any(|(key, wanted)| labels.value.get(key) != Some(wanted)) {
        errors.invalid(&labels, "`selector` does not match template `labels`");
    }
    pod::template(template, errors);
    let policy = template.get("spec").get("restartPolicy");
    if policy.text() != "Always" {
        errors.not_supported(&policy, &["Always"]);
    }
    let deadline = template.get("spec").get("activeDeadlineSeconds");
    if deadline.is_set() {
        errors.forbidden(&deadline, "activeDeadlineSeconds in ReplicationController is not Supported");
    }
}

fn validate_status(new: &Field, _: &Field, errors: &mut Errors) {
    let status = new.get("status");
    let count = |member: &str| status.get(member).number().unwrap_or_default();
    for member in ["replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas", "observedGeneration"] {
        errors.not_negative(&status.get(member));
    }
    for member in ["fullyLabeledReplicas", "readyReplicas", "availableReplicas"] {
        if count(member) > count("replicas") {
            errors.invalid_value(&status.get(member), count(member), "cannot be greater than status.replicas");
        }
    }
    if count("availableReplicas") > count("readyReplicas") {
        errors.invalid(&status.get("availableReplicas"), "cannot be greater than readyReplicas");
    }
}

fn warnings(controller: &Field, found: &mut Vec<String>) {
    found.extend(names::pod_name_warning(controller.get("metadata").get("name").text()));
    template_warnings(controller, found);
}
