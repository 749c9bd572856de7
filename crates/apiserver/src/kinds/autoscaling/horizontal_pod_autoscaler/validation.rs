//! What HorizontalPodAutoscalers may say (pkg/apis/autoscaling/validation).

use crate::validation::field::{Errors, Field};
use crate::validation::{container, names};
use kube_rules::Quantity;
use serde_json::Value;

const LONGEST_PERIOD: i64 = 1800;
const LONGEST_WINDOW: i64 = 3600;
const METRIC_TYPES: [&str; 5] = ["ContainerResource", "External", "Object", "Pods", "Resource"];
/// The members of a metric, in the order in which upstream looks at them, with their types.
const SOURCES: [(&str, &str); 5] =
    [("object", "Object"), ("external", "External"), ("pods", "Pods"), ("resource", "Resource"), ("containerResource", "ContainerResource")];

static NO_TEXT: Value = Value::String(String::new());

/// A missing text is an empty one in Go, and printed so.
fn text_of<'a>(field: &Field<'a>) -> Field<'a> {
    Field { path: field.path.clone(), value: if field.is_set() { field.value } else { &NO_TEXT } }
}

pub(super) fn validate_status(new: &Field, _: &Field, errors: &mut Errors) {
    for member in ["currentReplicas", "desiredReplicas"] {
        errors.not_negative(&new.get("status").get(member));
    }
}

pub(super) fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let spec = new.get("spec");
    let before = old.map(|old| old.get("spec"));
    if before.as_ref().is_some_and(|before| before.value == spec.value) {
        return;
    }
    replicas(&spec, before.as_ref(), errors);
    let target = spec.get("scaleTargetRef");
    let same =
        |before: &Field| ["apiVersion", "kind"].iter().all(|member| before.get("scaleTargetRef").get(member).value == target.get(member).value);
    let version = match before.as_ref() {
        Some(before) if same(before) => Version::Any,
        // The only scalable kind without a group.
        _ if target.get("kind").text() == "ReplicationController" => Version::Known,
        _ => Version::WithGroup,
    };
    reference(&target, version, errors);
    let broken = |metric: &Field| {
        let mut found = Errors::default();
        api_version(&metric.get("object").get("describedObject"), Version::Known, &mut found);
        metric.get("type").text() == "Object" && metric.get("object").is_set() && !found.is_empty()
    };
    let lenient = before.as_ref().is_some_and(|before| before.get("metrics").items().iter().any(broken));
    metrics(&spec, if lenient { Version::Any } else { Version::Known }, errors);
    for direction in ["scaleUp", "scaleDown"] {
        rules(&spec.get("behavior").get(direction), errors);
    }
}

fn replicas(spec: &Field, before: Option<&Field>, errors: &mut Errors) {
    let (min, max) = (spec.get("minReplicas"), spec.get("maxReplicas"));
    let bound = if before.is_some_and(|before| before.get("minReplicas").number() == Some(0)) { 0 } else { 1 };
    let most = max.number().unwrap_or_default();
    if min.number().is_some_and(|least| least < bound) {
        errors.invalid(&min, format!("must be greater than or equal to {bound}"));
    }
    if most == 0 {
        errors.required(&max, "must be set and greater than 0");
    } else if most < 0 {
        errors.invalid(&max, "must be greater than or equal to 1");
    }
    if min.number().is_some_and(|least| most < least) {
        errors.invalid_value(&max, most, "must be greater than or equal to `minReplicas`");
    }
}

/// What a reference's apiVersion may be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    Any,
    /// Well formed.
    Known,
    /// Not of the core group.
    WithGroup,
}

fn reference(reference: &Field, version: Version, errors: &mut Errors) {
    for member in ["kind", "name"] {
        let field = reference.get(member);
        if field.is_empty() {
            errors.required(&field, "");
        } else {
            errors.invalid_each(&field, names::path_segment(field.text()));
        }
    }
    api_version(reference, version, errors);
}

fn api_version(reference: &Field, version: Version, errors: &mut Errors) {
    let field = text_of(&reference.get("apiVersion"));
    let text = field.text();
    if version == Version::Any {
        return;
    }
    if text.matches('/').count() > 1 {
        errors.invalid(&field, format!("unexpected GroupVersion string: {text}"));
    } else if version == Version::WithGroup && text.split_once('/').is_none_or(|(group, _)| group.is_empty()) {
        errors.invalid(&field, "apiVersion must specify API group");
    }
}

fn metrics(spec: &Field, version: Version, errors: &mut Errors) {
    let metrics = spec.get("metrics");
    let found = metrics.items();
    found.iter().for_each(|metric| self::metric(metric, version, errors));
    let outside = found.iter().any(|metric| matches!(metric.get("type").text(), "Object" | "External"));
    if spec.get("minReplicas").number() == Some(0) && !outside {
        errors.forbidden(&metrics, "must specify at least one Object or External metric to support scaling to zero replicas");
    }
}

fn metric(metric: &Field, version: Version, errors: &mut Errors) {
    let kind = text_of(&metric.get("type"));
    if kind.text().is_empty() {
        errors.required(&kind, "must specify a metric source type");
    }
    let known = METRIC_TYPES.contains(&kind.text());
    if !known {
        errors.not_supported(&kind, &METRIC_TYPES);
    }
    let present: Vec<&str> = SOURCES.iter().map(|(source, _)| *source).filter(|source| metric.get(source).is_set()).collect();
    if let Some(first) = present.first() {
        source(&metric.get(first), first, version, errors);
    }
    let expected = SOURCES.iter().find(|(_, name)| *name == kind.text()).map(|(source, _)| *source);
    match expected {
        Some(expected) if !present.contains(&expected) => {
            errors.required(&metric.get(expected), "must populate information for the given metric source");
        }
        Some(_) => {}
        None => errors.not_supported(&kind, &METRIC_TYPES),
    }
    if present.len() != 1 {
        for source in present.into_iter().filter(|source| Some(*source) != expected) {
            errors.forbidden(&metric.get(source), "must populate the given metric source only");
        }
    }
}

fn source(source: &Field, kind: &str, version: Version, errors: &mut Errors) {
    let (target, name) = (source.get("target"), source.get("name"));
    if kind == "object" {
        reference(&source.get("describedObject"), version, errors);
    }
    if matches!(kind, "object" | "external" | "pods") {
        let metric = source.get("metric").get("name");
        if metric.is_empty() {
            errors.required(&metric, "must specify a metric name");
        } else {
            errors.invalid_each(&metric, names::path_segment(metric.text()));
        }
    } else if name.is_empty() {
        errors.required(&name, "must specify a resource name");
    } else if kind == "containerResource" {
        errors.invalid_each(&name, container::resource_name(name.text()));
    }
    let container = source.get("container");
    if kind == "containerResource" && container.is_empty() {
        errors.required(&container, "must specify a container");
    } else if kind == "containerResource" {
        errors.invalid_each(&container, names::dns_label(container.text()));
    }
    check_target(&target, errors);
    needed(&target, kind, errors);
}

fn needed(target: &Field, kind: &str, errors: &mut Errors) {
    let [value, average, percent] = ["value", "averageValue", "averageUtilization"].map(|member| target.get(member));
    match kind {
        "object" if !value.is_set() && !average.is_set() => errors.required(&average, "must set either a target value or averageValue"),
        "external" if !value.is_set() && !average.is_set() => {
            errors.required(&average, "must set either a target value for metric or a per-pod target");
        }
        "external" if value.is_set() && average.is_set() => {
            errors.forbidden(&value, "may not set both a target value for metric and a per-pod target");
        }
        "pods" if !average.is_set() => errors.required(&average, "must specify a positive target averageValue"),
        "resource" | "containerResource" => match (percent.is_set(), average.is_set()) {
            (false, false) => errors.required(&percent, "must set either a target raw value or a target utilization"),
            (true, true) => errors.forbidden(&average, "may not set both a target raw value and a target utilization"),
            _ => {}
        },
        _ => {}
    }
}

fn check_target(target: &Field, errors: &mut Errors) {
    let kind = text_of(&target.get("type"));
    if kind.text().is_empty() {
        errors.required(&kind, "must specify a metric target type");
    }
    if !matches!(kind.text(), "Utilization" | "Value" | "AverageValue") {
        errors.invalid(&kind, "must be either Utilization, Value, or AverageValue");
    }
    for member in ["value", "averageValue"] {
        let field = target.get(member);
        if field.text().parse::<Quantity>().is_ok_and(|amount| amount <= Quantity::ZERO) {
            errors.invalid(&field, "must be positive");
        }
    }
    let percent = target.get("averageUtilization");
    if percent.number().is_some_and(|percent| percent < 1) {
        errors.invalid(&percent, "must be greater than 0");
    }
}

fn rules(rules: &Field, errors: &mut Errors) {
    if !rules.is_set() {
        return;
    }
    let window = rules.get("stabilizationWindowSeconds");
    match window.number() {
        Some(seconds) if seconds < 0 => errors.invalid(&window, "must be greater than or equal to zero"),
        Some(seconds) if seconds > LONGEST_WINDOW => errors.invalid(&window, format!("must be less than or equal to {LONGEST_WINDOW}")),
        _ => {}
    }
    let select = rules.get("selectPolicy");
    if select.is_set() && !["Disabled", "Max", "Min"].contains(&select.text()) {
        errors.not_supported(&select, &["Disabled", "Max", "Min"]);
    }
    let policies = rules.get("policies");
    if policies.is_empty() {
        errors.required(&policies, "must specify at least one Policy");
    }
    policies.items().iter().for_each(|found| policy(found, errors));
    let tolerance = rules.get("tolerance");
    if tolerance.text().parse::<Quantity>().is_ok_and(|amount| amount < Quantity::ZERO) {
        errors.invalid(&tolerance, "must be greater than or equal to 0");
    }
}

fn policy(policy: &Field, errors: &mut Errors) {
    let kind = text_of(&policy.get("type"));
    if !["Percent", "Pods"].contains(&kind.text()) {
        errors.not_supported(&kind, &["Percent", "Pods"]);
    }
    for member in ["value", "periodSeconds"] {
        let field = policy.get(member);
        let number = field.number().unwrap_or_default();
        if number <= 0 {
            errors.invalid_value(&field, number, "must be greater than zero");
        }
        if member == "periodSeconds" && number > LONGEST_PERIOD {
            errors.invalid(&field, format!("must be less than or equal to {LONGEST_PERIOD}"));
        }
    }
}
