//! Deployments.

use super::tail;
use crate::defaults::{is_text, made, set, template};
use crate::kind::Kind;
use crate::object;
use crate::table::text::{get, integer};
use crate::table::{AGE, NAME, text, wide};
use crate::validation::field::{Errors, Field};
use crate::validation::warnings;
use crate::validation::workload::{amount, at_most_all, number_or_percent, selector_and_template};
use jiff::Timestamp;
use k8s_openapi::api::{apps, autoscaling};
use serde_json::{Map, Value, json};

pub fn kind() -> Kind {
    Kind::new("apps", "v1", "Deployment", "deployments", "io.k8s.api.apps.v1.Deployment")
        .described_by::<apps::v1::Deployment>()
        .described_by::<autoscaling::v1::Scale>()
        .short(&["deploy"])
        .in_all()
        .status()
        .metadata_with_status()
        .scale()
        .counts_generations()
        .defaults(defaults)
        .validate(validate)
        .warnings(warnings::template)
        .prepare_create(|object| object::set(object, "status", json!({})))
        .prepare_status(keep_labels)
        .table(
            [NAME, text("Ready"), text("Up-to-date"), text("Available"), AGE, wide(text("Containers")), wide(text("Images")), wide(text("Selector"))],
            cells,
        )
}

/// Of the metadata, the status of a Deployment takes annotations and finalizers alone.
fn keep_labels(old: &Value, new: &mut Value) {
    if let (Some(before), Some(metadata)) = (old.get("metadata"), new.get_mut("metadata")) {
        object::copy_member(before, metadata, "labels");
    }
}

fn defaults(object: &mut Map<String, Value>) {
    let Some(spec) = made(object, "spec") else { return };
    set(spec, "replicas", || 1.into());
    if let Some(strategy) = made(spec, "strategy") {
        set(strategy, "type", || "RollingUpdate".into());
        if is_text(strategy, "type", "RollingUpdate")
            && let Some(rolling) = made(strategy, "rollingUpdate")
        {
            set(rolling, "maxUnavailable", || "25%".into());
            set(rolling, "maxSurge", || "25%".into());
        }
    }
    set(spec, "revisionHistoryLimit", || 10.into());
    set(spec, "progressDeadlineSeconds", || 600.into());
    template(spec);
}

/// A new or changed Deployment.
fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let spec = new.get("spec");
    if old.is_some_and(|old| old.get("spec").value == spec.value) {
        return;
    }
    errors.not_negative(&spec.get("replicas"));
    selector_and_template(&spec, errors);
    strategy(&spec.get("strategy"), errors);
    for member in ["minReadySeconds", "revisionHistoryLimit"] {
        errors.not_negative(&spec.get(member));
    }
    let deadline = spec.get("progressDeadlineSeconds");
    errors.not_negative(&deadline);
    if deadline.number().is_some_and(|seconds| seconds <= spec.get("minReadySeconds").number().unwrap_or_default()) {
        errors.invalid(&deadline, "must be greater than minReadySeconds");
    }
    if let Some(old) = old {
        errors.immutable(&spec.get("selector"), &old.get("spec").get("selector"));
    }
}

fn strategy(strategy: &Field, errors: &mut Errors) {
    let (kind, rolling) = (strategy.get("type"), strategy.get("rollingUpdate"));
    match kind.text() {
        "Recreate" => {
            if rolling.is_set() {
                errors.forbidden(&rolling, "may not be specified when strategy `type` is 'Recreate'");
            }
        }
        "RollingUpdate" => {
            let (unavailable, surge) = (rolling.get("maxUnavailable"), rolling.get("maxSurge"));
            number_or_percent(&unavailable, errors);
            number_or_percent(&surge, errors);
            if amount(&unavailable) == Some(0) && amount(&surge) == Some(0) {
                errors.invalid(&unavailable, "may not be 0 when `maxSurge` is 0");
            }
            at_most_all(&unavailable, errors);
        }
        _ => errors.not_supported(&kind, &["Recreate", "RollingUpdate"]),
    }
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let ready = format!("{}/{}", integer(object, "/status/readyReplicas"), integer(object, "/spec/replicas"));
    let mut cells = vec![
        get(object, "/metadata/name").into(),
        ready.into(),
        integer(object, "/status/updatedReplicas").into(),
        integer(object, "/status/availableReplicas").into(),
    ];
    cells.extend(tail(object, now));
    cells
}
