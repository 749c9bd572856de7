//! Between versions 1 and 2: what version 1 has no field for stands in annotations as JSON of its own old types
//! (pkg/apis/autoscaling/v1/conversion.go).

use super::{USUAL_UTILIZATION, cpu_utilization};
use crate::object;
use k8s_openapi::api::autoscaling::v2;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
const ANNOTATIONS: [&str; 6] = [
    METRICS,
    BEHAVIOR,
    "autoscaling.alpha.kubernetes.io/scale-down-tolerance",
    "autoscaling.alpha.kubernetes.io/scale-up-tolerance",
    CURRENT_METRICS,
    CONDITIONS,
];

/// Version 2 says everything in fields.
pub(super) fn drop_annotations(object: &mut Value) {
    if let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        ANNOTATIONS.iter().for_each(|name| drop(annotations.shift_remove(*name)));
    }
}

/// An object of version 2 in version 1.
pub(super) fn outgoing(mut object: Value) -> Value {
    drop_annotations(&mut object);
    let spec = object.get("spec").cloned().unwrap_or_default();
    let status = object.get("status").cloned().unwrap_or_default();
    let metrics = object::list(&spec, &["metrics"]);
    let others: Vec<Value> = metrics.iter().filter(|metric| utilization(metric).is_none()).map(old_spec).collect();
    let current: Vec<Value> = object::list(&status, &["currentMetrics"]).iter().map(old_status).collect();
    let conditions = object::list(&status, &["conditions"]).to_vec();
    annotate(&mut object, METRICS, (!others.is_empty()).then(|| others.into()));
    annotate(&mut object, CURRENT_METRICS, (!current.is_empty()).then(|| current.into()));
    annotate(&mut object, BEHAVIOR, spec.get("behavior").filter(|behavior| behavior.is_object()).map(|behavior| renamed(behavior, capital)));
    annotate(&mut object, CONDITIONS, (!conditions.is_empty()).then(|| conditions.into()));
    object::set(&mut object, "apiVersion", "autoscaling/v1".into());
    let mut old = picked(&spec, &["scaleTargetRef", "minReplicas", "maxReplicas"]);
    if let Some(percent) = metrics.iter().find_map(utilization) {
        old.insert("targetCPUUtilizationPercentage".into(), percent.into());
    }
    object::set(&mut object, "spec", old.into());
    let mut old = picked(&status, &["observedGeneration", "lastScaleTime"]);
    for member in ["currentReplicas", "desiredReplicas"] {
        old.insert(member.into(), object::integer(&status, &[member]).unwrap_or_default().into());
    }
    let cpu = object::list(&status, &["currentMetrics"]).iter().rev().filter(|metric| is_cpu(metric));
    let mut used = cpu.filter_map(|metric| object::integer(metric, &["resource", "current", "averageUtilization"]));
    if let Some(percent) = used.next() {
        old.insert("currentCPUUtilizationPercentage".into(), percent.into());
    }
    object::set(&mut object, "status", old.into());
    object
}

/// An object of version 1 in version 2.
pub(super) fn incoming(mut object: Value) -> Value {
    let spec = object.get("spec").cloned().unwrap_or_default();
    let status = object.get("status").cloned().unwrap_or_default();
    let mut new = picked(&spec, &["scaleTargetRef", "minReplicas", "maxReplicas"]);
    let mut metrics = annotated(&object, METRICS, |metrics| list_of::<v2::MetricSpec>(metrics, new_spec)).unwrap_or_default();
    metrics.extend(object::integer(&spec, &["targetCPUUtilizationPercentage"]).map(cpu_utilization));
    if metrics.is_empty() {
        metrics.push(cpu_utilization(USUAL_UTILIZATION));
    }
    new.insert("metrics".into(), metrics.into());
    let behavior = annotated(&object, BEHAVIOR, |behavior| {
        let behavior = renamed(&behavior, small);
        let empty = behavior.as_object().is_none_or(Map::is_empty);
        (!empty && fits::<v2::HorizontalPodAutoscalerBehavior>(&behavior)).then_some(behavior)
    });
    new.extend(behavior.map(|behavior| ("behavior".to_string(), behavior)));
    let mut new_state = picked(&status, &["observedGeneration", "lastScaleTime"]);
    // Version 1 always says it, version 2 only what is not zero.
    let running = object::integer(&status, &["currentReplicas"]).filter(|running| *running != 0);
    new_state.extend(running.map(|running| ("currentReplicas".to_string(), running.into())));
    new_state.insert("desiredReplicas".into(), object::integer(&status, &["desiredReplicas"]).unwrap_or_default().into());
    let current = annotated(&object, CURRENT_METRICS, |metrics| list_of::<v2::MetricStatus>(metrics, new_status));
    let used = object::integer(&status, &["currentCPUUtilizationPercentage"]);
    let only_cpu = |percent: i64| vec![json!({"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": percent}}})];
    new_state.insert("currentMetrics".into(), current.or_else(|| used.map(only_cpu)).map_or(Value::Null, Value::from));
    let conditions = annotated(&object, CONDITIONS, |conditions| list_of::<v2::HorizontalPodAutoscalerCondition>(conditions, Value::clone));
    new_state.extend(conditions.map(|conditions| ("conditions".to_string(), conditions.into())));
    drop_annotations(&mut object);
    object::set(&mut object, "apiVersion", "autoscaling/v2".into());
    object::set(&mut object, "spec", new.into());
    object::set(&mut object, "status", new_state.into());
    object
}

fn picked(from: &Value, members: &[&str]) -> Map<String, Value> {
    let found = members.iter().filter_map(|member| Some((member.to_string(), from.get(member)?.clone())));
    found.filter(|(_, value)| !value.is_null()).collect()
}

fn annotate(object: &mut Value, name: &str, value: Option<Value>) {
    let Some(value) = value else { return };
    let Some(metadata) = object.get_mut("metadata") else { return };
    object::map_mut(metadata, "annotations").insert(name.into(), value.to_string().into());
}

/// What an annotation says, when it can be read; else it is passed over.
fn annotated<T>(object: &Value, name: &str, read: impl FnOnce(Value) -> Option<T>) -> Option<T> {
    let text = object::lookup(object, &["metadata", "annotations", name])?.as_str()?;
    read(serde_json::from_str(text).ok()?)
}

fn fits<T: DeserializeOwned>(value: &Value) -> bool {
    serde_json::from_value::<T>(value.clone()).is_ok()
}

fn list_of<T: DeserializeOwned>(list: Value, convert: impl Fn(&Value) -> Value) -> Option<Vec<Value>> {
    let items: Vec<Value> = list.as_array().filter(|items| items.iter().all(Value::is_object))?.iter().map(convert).collect();
    items.iter().all(fits::<T>).then_some(items)
}

fn is_cpu(metric: &Value) -> bool {
    object::text(metric, &["type"]) == "Resource" && object::text(metric, &["resource", "name"]) == "cpu"
}

/// The CPU utilization that a metric of version 2 wants.
fn utilization(metric: &Value) -> Option<i64> {
    object::integer(metric, &["resource", "target", "averageUtilization"]).filter(|_| is_cpu(metric))
}

/// The behavior is written by the names of upstream's internal type, which begin with capitals.
fn renamed(value: &Value, rename: fn(&str) -> String) -> Value {
    match value {
        Value::Object(members) => members.iter().map(|(name, value)| (rename(name), renamed(value, rename))).collect(),
        Value::Array(items) => items.iter().map(|item| renamed(item, rename)).collect(),
        other => other.clone(),
    }
}

fn capital(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
}

fn small(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map(|first| first.to_ascii_lowercase()).into_iter().chain(letters).collect()
}

/// A member's old name, and the members that lead to it in version 2. `!` marks amounts that version 1 cannot leave out.
type Names = &'static [(&'static str, &'static [&'static str])];

const SPECS: [(&str, Names); 5] = [
    (
        "object",
        &[
            ("target", &["describedObject"]),
            ("metricName", &["metric", "name"]),
            ("targetValue!", &["target", "value"]),
            ("selector", &["metric", "selector"]),
            ("averageValue", &["target", "averageValue"]),
        ],
    ),
    ("pods", &[("metricName", &["metric", "name"]), ("targetAverageValue!", &["target", "averageValue"]), ("selector", &["metric", "selector"])]),
    (
        "resource",
        &[("name", &["name"]), ("targetAverageUtilization", &["target", "averageUtilization"]), ("targetAverageValue", &["target", "averageValue"])],
    ),
    (
        "containerResource",
        &[
            ("name", &["name"]),
            ("targetAverageUtilization", &["target", "averageUtilization"]),
            ("targetAverageValue", &["target", "averageValue"]),
            ("container", &["container"]),
        ],
    ),
    (
        "external",
        &[
            ("metricName", &["metric", "name"]),
            ("metricSelector", &["metric", "selector"]),
            ("targetValue", &["target", "value"]),
            ("targetAverageValue", &["target", "averageValue"]),
        ],
    ),
];

const STATUSES: [(&str, Names); 5] = [
    (
        "object",
        &[
            ("target", &["describedObject"]),
            ("metricName", &["metric", "name"]),
            ("currentValue!", &["current", "value"]),
            ("selector", &["metric", "selector"]),
            ("averageValue", &["current", "averageValue"]),
        ],
    ),
    ("pods", &[("metricName", &["metric", "name"]), ("currentAverageValue!", &["current", "averageValue"]), ("selector", &["metric", "selector"])]),
    (
        "resource",
        &[
            ("name", &["name"]),
            ("currentAverageUtilization", &["current", "averageUtilization"]),
            ("currentAverageValue!", &["current", "averageValue"]),
        ],
    ),
    (
        "containerResource",
        &[
            ("name", &["name"]),
            ("currentAverageUtilization", &["current", "averageUtilization"]),
            ("currentAverageValue!", &["current", "averageValue"]),
            ("container", &["container"]),
        ],
    ),
    (
        "external",
        &[
            ("metricName", &["metric", "name"]),
            ("metricSelector", &["metric", "selector"]),
            ("currentValue!", &["current", "value"]),
            ("currentAverageValue", &["current", "averageValue"]),
        ],
    ),
];

fn old_spec(metric: &Value) -> Value {
    to_old(metric, &SPECS)
}

fn old_status(metric: &Value) -> Value {
    to_old(metric, &STATUSES)
}

fn to_old(metric: &Value, sources: &[(&str, Names)]) -> Value {
    let mut old = picked(metric, &["type"]);
    for (source, names) in sources {
        let Some(found) = metric.get(source).filter(|found| found.is_object()) else { continue };
        let mut members = Map::new();
        for (name, path) in *names {
            match (object::lookup(found, path), name.strip_suffix('!')) {
                (Some(value), bare) => drop(members.insert(bare.unwrap_or(name).to_string(), value.clone())),
                (None, Some(bare)) => drop(members.insert(bare.to_string(), "0".into())),
                (None, None) => {}
            }
        }
        old.insert((*source).to_string(), members.into());
    }
    old.into()
}

fn from_old(metric: &Value, sources: &[(&str, Names)]) -> Value {
    let mut new = picked(metric, &["type"]);
    for (source, names) in sources {
        let Some(found) = metric.get(source).filter(|found| found.is_object()) else { continue };
        let mut members = json!({});
        for (name, path) in *names {
            let Some(value) = found.get(name.trim_end_matches('!')).filter(|value| !value.is_null()) else { continue };
            match path {
                [member] => object::set(&mut members, member, value.clone()),
                [outer, member] => drop(object::map_mut(&mut members, outer).insert((*member).to_string(), value.clone())),
                _ => {}
            }
        }
        new.insert((*source).to_string(), members);
    }
    new.into()
}

fn new_status(metric: &Value) -> Value {
    from_old(metric, &STATUSES)
}

/// The type of the target follows from what is set.
fn new_spec(metric: &Value) -> Value {
    let mut new = from_old(metric, &SPECS);
    for (source, _) in SPECS {
        let Some(found) = new.get_mut(source).filter(|found| found.is_object()) else { continue };
        let target = object::map_mut(found, "target");
        let has = |member: &str| target.contains_key(member);
        let kind = match source {
            "pods" => "AverageValue",
            "object" if has("averageValue") => "AverageValue",
            "object" => "Value",
            "external" if has("value") => "Value",
            "external" => "AverageValue",
            _ if has("averageUtilization") => "Utilization",
            _ => "AverageValue",
        };
        // Version 1 cannot leave the value out: a zero beside an average is none.
        if source == "object" && kind == "AverageValue" && target.get("value").is_some_and(|value| value == "0") {
            target.shift_remove("value");
        }
        target.insert("type".into(), kind.into());
    }
    new
}
