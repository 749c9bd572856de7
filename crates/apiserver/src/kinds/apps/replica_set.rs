//! ReplicaSets.

use super::tail;
use crate::defaults::{made, set, template};
use crate::kind::Kind;
use crate::kind::SelectableField;
use crate::object;
use crate::table::text::{get, integer};
use crate::table::{AGE, NAME, number, text, wide};
use crate::validation::field::{Errors, Field};
use crate::validation::warnings;
use crate::validation::workload::selector_and_template;
use jiff::Timestamp;
use k8s_openapi::api::{apps, autoscaling};
use serde_json::{Map, Value, json};

pub fn kind() -> Kind {
    Kind::new("apps", "v1", "ReplicaSet", "replicasets", "io.k8s.api.apps.v1.ReplicaSet")
        .described_by::<apps::v1::ReplicaSet>()
        .described_by::<autoscaling::v1::Scale>()
        .short(&["rs"])
        .in_all()
        .status()
        .metadata_with_status()
        .scale()
        .counts_generations()
        .defaults(defaults)
        .validate(validate)
        .warnings(warnings::template)
        .prepare_create(|object| object::set(object, "status", json!({"replicas": 0})))
        .selectable(SelectableField::new("status.replicas").or("0"))
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

fn defaults(object: &mut Map<String, Value>) {
    let Some(spec) = made(object, "spec") else { return };
    set(spec, "replicas", || 1.into());
    template(spec);
}

/// A new or changed ReplicaSet.
fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let spec = new.get("spec");
    if old.is_some_and(|old| old.get("spec").value == spec.value) {
        return;
    }
    errors.not_negative(&spec.get("replicas"));
    errors.not_negative(&spec.get("minReadySeconds"));
    selector_and_template(&spec, errors);
    if let Some(old) = old {
        errors.immutable(&spec.get("selector"), &old.get("spec").get("selector"));
    }
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let mut cells = vec![
        get(object, "/metadata/name").into(),
        integer(object, "/spec/replicas").into(),
        integer(object, "/status/replicas").into(),
        integer(object, "/status/readyReplicas").into(),
    ];
    cells.extend(tail(object, now));
    cells
}
