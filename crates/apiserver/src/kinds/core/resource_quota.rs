//! ResourceQuotas (pkg/apis/core/validation, pkg/registry/core/resourcequota).

#[cfg(test)]
mod tests;

use super::resources::{is_integer, is_quota, is_standard};
use crate::kind::Kind;
use crate::object;
use crate::table::text::{get, since};
use crate::table::{AGE, NAME, name, text};
use crate::validation::field::{Errors, Field};
use crate::validation::names;
use jiff::Timestamp;
use k8s_openapi::api::core;
use kube_rules::Quantity;
use serde_json::{Value, json};

const SCOPES: [&str; 7] =
    ["Terminating", "NotTerminating", "BestEffort", "NotBestEffort", "PriorityClass", "VolumeAttributesClass", "CrossNamespacePodAffinity"];
const PAIRS: [[&str; 2]; 2] = [["BestEffort", "NotBestEffort"], ["Terminating", "NotTerminating"]];

pub fn kind() -> Kind {
    Kind::new("", "v1", "ResourceQuota", "resourcequotas", "io.k8s.api.core.v1.ResourceQuota")
        .described_by::<core::v1::ResourceQuota>()
        .short(&["quota"])
        .status()
        .metadata_with_status()
        .validate(validate)
        .validate_status(|new, _, errors| amounts_of_status(&new.get("status"), errors))
        .warnings(warnings)
        .prepare_create(|quota| object::set(quota, "status", json!({})))
        .table([NAME, text("Request"), text("Limit"), AGE], cells)
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let (mut requests, mut limits) = (Vec::new(), Vec::new());
    let mut hard: Vec<(&String, &Value)> = object.pointer("/status/hard").and_then(Value::as_object).into_iter().flatten().collect();
    hard.sort_by_key(|(resource, _)| *resource);
    for (resource, most) in hard {
        let used = object::lookup(object, &["status", "used", resource]).and_then(Value::as_str).unwrap_or("0");
        let column = if resource.starts_with("limits.") { &mut limits } else { &mut requests };
        column.push(format!("{resource}: {used}/{}", most.as_str().unwrap_or_default()));
    }
    vec![name(object), requests.join(", ").into(), limits.join(", ").into(), since(object, "/metadata/creationTimestamp", now).into()]
}

fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let spec = new.get("spec");
    if old.is_some_and(|old| old.get("spec").value == spec.value) {
        return;
    }
    amounts(&spec.get("hard"), errors);
    scopes(&spec, errors);
    selector(&spec, errors);
    let Some(old) = old else { return };
    let (wanted, before) = (spec.get("scopes"), old.get("spec").get("scopes"));
    let set = |field: &Field| field.items().iter().map(|item| item.text().to_string()).collect::<std::collections::BTreeSet<_>>();
    if set(&wanted) != set(&before) {
        errors.invalid(&wanted, "field is immutable");
    }
}

fn amounts_of_status(status: &Field, errors: &mut Errors) {
    for member in ["hard", "used"] {
        amounts(&status.get(member), errors);
    }
}

fn amounts(map: &Field, errors: &mut Errors) {
    for (resource, value) in map.members() {
        let field = map.key(resource);
        resource_name(&field, resource, errors);
        let Ok(amount) = Quantity::parse(value.as_str().unwrap_or_default()) else { continue };
        if amount < Quantity::ZERO {
            errors.invalid(&field, "must be greater than or equal to 0");
        }
        if is_integer(resource) && amount.milli_value() % 1000 != 0 {
            errors.invalid(&field, "must be an integer");
        }
    }
}

fn resource_name(field: &Field, resource: &str, errors: &mut Errors) {
    let problems = names::qualified(resource);
    let plain = !resource.contains('/');
    if problems.is_empty() && plain && !is_standard(resource) {
        errors.invalid_value(field, resource, "must be a standard resource type or fully qualified");
    }
    for problem in problems {
        errors.invalid_value(field, resource, problem);
    }
    if plain && !is_quota(resource) {
        errors.invalid_value(field, resource, "must be a standard resource for quota");
    }
}

/// Whether the scope limits this resource.
fn fits(scope: &str, resource: &str) -> bool {
    const COMPUTE: [&str; 6] = ["cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"];
    match scope {
        "Terminating" | "NotTerminating" | "NotBestEffort" | "PriorityClass" | "CrossNamespacePodAffinity" => {
            resource == "pods" || COMPUTE.contains(&resource)
        }
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => matches!(resource, "persistentvolumeclaims" | "requests.storage"),
        _ => true,
    }
}

/// How many standard resources of the quota the scope does not limit.
fn misfits(spec: &Field, scope: &str) -> usize {
    spec.get("hard").members().filter(|(resource, _)| is_quota(resource) && !fits(scope, resource)).count()
}

fn conflict(scopes: &[&str]) -> usize {
    PAIRS.iter().filter(|pair| pair.iter().all(|scope| scopes.contains(scope))).count()
}

fn scopes(spec: &Field, errors: &mut Errors) {
    let field = spec.get("scopes");
    let items = field.items();
    let scopes: Vec<&str> = items.iter().map(Field::text).collect();
    for scope in &scopes {
        if !SCOPES.contains(scope) {
            errors.invalid(&field, "unsupported scope");
        }
        for _ in 0..misfits(spec, scope) {
            errors.invalid(&field, "unsupported scope applied to resource");
        }
    }
    for _ in 0..conflict(&scopes) {
        errors.invalid(&field, "conflicting scopes");
    }
}

fn selector(spec: &Field, errors: &mut Errors) {
    const EXISTS: &str = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, \
                          ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
    let selector = spec.get("scopeSelector");
    let list = selector.get("matchExpressions");
    let mut seen = Vec::new();
    for requirement in list.items() {
        // Upstream's paths leave the index out.
        let [scope, operator, values] =
            ["scopeName", "operator", "values"].map(|member| Field { path: format!("{}.{member}", list.path), ..requirement.get(member) });
        let name = scope.text();
        if !SCOPES.contains(&name) {
            errors.invalid(&scope, "unsupported scope");
        }
        for _ in 0..misfits(spec, name) {
            errors.invalid_value(&list, shown(&list), "unsupported scope applied to resource");
        }
        let by_value = matches!(name, "PriorityClass" | "VolumeAttributesClass");
        if SCOPES.contains(&name) && !by_value && operator.text() != "Exists" {
            errors.invalid(&operator, EXISTS);
        }
        match operator.text() {
            "In" | "NotIn" if values.is_empty() => {
                errors.required(&values, "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector");
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                errors.invalid(&values, "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector");
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            _ => errors.invalid(&operator, "not a valid selector operator"),
        }
        seen.push(name);
    }
    for _ in 0..conflict(&seen) {
        errors.invalid_value(&list, spec.get("scopes").value.clone(), "conflicting scopes");
    }
}

/// As upstream prints its internal type.
fn shown(expressions: &Field) -> Value {
    let one = |requirement: &Field| json!({"ScopeName": requirement.get("scopeName").value, "Operator": requirement.get("operator").value, "Values": requirement.get("values").value});
    json!({"MatchExpressions": expressions.items().iter().map(one).collect::<Vec<_>>()})
}

fn warnings(quota: &Field, found: &mut Vec<String>) {
    let hard = quota.get("spec").get("hard");
    let amount = |resource: &str| get(hard.value, &format!("/{resource}")).parse::<Quantity>().ok();
    for resource in ["cpu", "memory", "storage", "ephemeral-storage"] {
        let (mut asked, limited) = (format!("requests.{resource}"), format!("limits.{resource}"));
        if amount(&asked).is_none() && matches!(resource, "cpu" | "memory") {
            asked = resource.to_string();
        }
        if let (Some(request), Some(limit)) = (amount(&asked), amount(&limited))
            && request > limit
        {
            found.push(format!("ResourceQuota {asked} ({request}) should be less than {limited} ({limit})"));
        }
    }
}
