//! HorizontalPodAutoscalers of autoscaling/v2, the stored form, and of v1 (pkg/apis/autoscaling, pkg/registry/autoscaling).

mod conversion;
mod table;
#[cfg(test)]
mod tests;
mod validation;

use crate::defaults::{inner, made, set};
use crate::kind::Kind;
use crate::object;
use crate::table::{AGE, NAME, text};
use k8s_openapi::api::autoscaling;
use serde_json::{Map, Value, json};

/// Per cent of the requested CPU time, when nobody says what to watch.
const USUAL_UTILIZATION: i64 = 80;

pub fn kind() -> Kind {
    common(Kind::new("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", "io.k8s.api.autoscaling.v2.HorizontalPodAutoscaler"))
        .described_by::<autoscaling::v2::HorizontalPodAutoscaler>()
}

/// The same objects in version 1, which knows CPU utilization alone and keeps the rest in annotations.
pub fn old_kind() -> Kind {
    common(Kind::new("autoscaling", "v1", "HorizontalPodAutoscaler", "horizontalpodautoscalers", "io.k8s.api.autoscaling.v1.HorizontalPodAutoscaler"))
        .described_by::<autoscaling::v1::HorizontalPodAutoscaler>()
        .stored_as("autoscaling", "autoscaling/v2", conversion::incoming, conversion::outgoing)
}

fn common(kind: Kind) -> Kind {
    kind.short(&["hpa"])
        .in_all()
        .status()
        .metadata_with_status()
        .defaults(defaults)
        .validate(validation::validate)
        .validate_status(validation::validate_status)
        .prepare_create(|autoscaler| {
            conversion::drop_annotations(autoscaler);
            object::set(autoscaler, "status", json!({"desiredReplicas": 0, "currentMetrics": null}));
        })
        .prepare_update(|_, autoscaler| conversion::drop_annotations(autoscaler))
        .table([NAME, text("Reference"), text("Targets"), text("MinPods"), text("MaxPods"), text("Replicas"), AGE], table::cells)
}

fn defaults(object: &mut Map<String, Value>) {
    if let Some(status) = inner(object, "status") {
        // Upstream's type says both even when they are empty.
        set(status, "desiredReplicas", || 0.into());
        set(status, "currentMetrics", || Value::Null);
    }
    let Some(spec) = made(object, "spec") else { return };
    set(spec, "minReplicas", || 1.into());
    if spec.get("metrics").and_then(Value::as_array).is_none_or(Vec::is_empty) {
        spec.insert("metrics".into(), json!([cpu_utilization(USUAL_UTILIZATION)]));
    }
    let Some(behavior) = inner(spec, "behavior") else { return };
    let percent = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
    let pods = json!({"type": "Pods", "value": 4, "periodSeconds": 15});
    for (direction, policies) in [("scaleUp", json!([pods, percent.clone()])), ("scaleDown", json!([percent]))] {
        let Some(rules) = made(behavior, direction) else { continue };
        if direction == "scaleUp" {
            set(rules, "stabilizationWindowSeconds", || 0.into());
        }
        set(rules, "selectPolicy", || "Max".into());
        set(rules, "policies", || policies);
    }
}

/// The metric that version 1 has a field for.
fn cpu_utilization(percent: i64) -> Value {
    json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": percent}}})
}
