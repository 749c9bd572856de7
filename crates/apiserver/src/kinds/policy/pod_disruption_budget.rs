//! PodDisruptionBudgets.

use crate::kind::Kind;
use crate::object;
use crate::table::text::integer;
use crate::table::{AGE, NAME, age, name, number, text};
use crate::validation::field::{Errors, Field};
use crate::validation::meta;
use crate::validation::workload::{at_most_all, number_or_percent};
use jiff::Timestamp;
use k8s_openapi::api::policy;
use serde_json::{Value, json};

pub fn kind() -> Kind {
    Kind::new("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", "io.k8s.api.policy.v1.PodDisruptionBudget")
        .described_by::<policy::v1::PodDisruptionBudget>()
        .short(&["pdb"])
        .status()
        .metadata_with_status()
        .counts_generations()
        .validate(validate)
        .prepare_create(prepare_create)
        .table([NAME, text("Min Available"), text("Max Unavailable"), number("Allowed Disruptions"), AGE], cells)
}

/// A new or changed PodDisruptionBudget.
fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let spec = new.get("spec");
    if old.is_some_and(|old| old.get("spec").value == spec.value) {
        return;
    }
    let (available, unavailable) = (spec.get("minAvailable"), spec.get("maxUnavailable"));
    if available.is_set() && unavailable.is_set() {
        errors.invalid(&spec, "minAvailable and maxUnavailable cannot be both set");
    }
    for field in [&available, &unavailable] {
        if field.is_set() {
            number_or_percent(field, errors);
            at_most_all(field, errors);
        }
    }
    meta::selector(&spec.get("selector"), errors);
    errors.one_of_if_set(&spec.get("unhealthyPodEvictionPolicy"), &["AlwaysAllow", "IfHealthyBudget"]);
}

fn prepare_create(object: &mut Value) {
    let counts = json!({"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0});
    object::set(object, "status", counts);
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let amount = |pointer: &str| match object.pointer(pointer) {
        Some(Value::String(percent)) => percent.clone(),
        Some(Value::Number(count)) => count.to_string(),
        _ => "N/A".into(),
    };
    vec![
        name(object),
        amount("/spec/minAvailable").into(),
        amount("/spec/maxUnavailable").into(),
        integer(object, "/status/disruptionsAllowed").into(),
        age(object, now),
    ]
}
