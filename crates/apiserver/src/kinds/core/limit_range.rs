//! LimitRanges (pkg/apis/core/{v1,validation}, pkg/registry/core/limitrange).

#[cfg(test)]
mod tests;

use super::resources::{is_standard, may_overcommit};
use crate::defaults::{each, inner, is_text, made};
use crate::kind::Kind;
use crate::validation::field::{Errors, Field};
use crate::validation::{container, names};
use k8s_openapi::api::core;
use kube_rules::Quantity;
use serde_json::{Map, Value};

/// Above this, thousandths of a quantity do not fit into 64 bits.
const MOST_MILLIS: i64 = i64::MAX / 1000;

pub fn kind() -> Kind {
    Kind::new("", "v1", "LimitRange", "limitranges", "io.k8s.api.core.v1.LimitRange")
        .described_by::<core::v1::LimitRange>()
        .short(&["limits"])
        .create_on_update()
        .defaults(defaults)
        .validate(validate)
}

fn defaults(object: &mut Map<String, Value>) {
    let Some(spec) = inner(object, "spec") else { return };
    for limit in each(spec, "limits").filter(|limit| is_text(limit, "type", "Container")) {
        // The most is the default limit, which is the default request; else the least is.
        for (from, to) in [("max", "default"), ("default", "defaultRequest"), ("min", "defaultRequest")] {
            let Some(Value::Object(amounts)) = limit.get(from).cloned() else { continue };
            let Some(target) = made(limit, to).filter(|_| !amounts.is_empty()) else { continue };
            for (resource, amount) in amounts {
                target.entry(resource).or_insert(amount);
            }
        }
    }
}

fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let limits = new.get("spec").get("limits");
    if old.is_some_and(|old| old.get("spec").get("limits").value == limits.value) {
        return;
    }
    let mut types = Vec::new();
    for limit in limits.items() {
        let kind = limit.get("type");
        type_name(&kind, errors);
        if types.contains(&kind.text()) {
            errors.duplicate(&kind, kind.text());
        }
        types.push(kind.text());
        one(&limit, kind.text(), errors);
    }
}

fn type_name(kind: &Field, errors: &mut Errors) {
    let problems = names::qualified(kind.text());
    let known = kind.text().contains('/') || matches!(kind.text(), "Pod" | "Container" | "PersistentVolumeClaim");
    if problems.is_empty() && !known {
        errors.invalid(kind, "must be a standard limit type or fully qualified");
    }
    errors.invalid_each(kind, problems);
}

fn one(limit: &Field, kind: &str, errors: &mut Errors) {
    for member in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
        let map = limit.get(member);
        if kind == "Pod" && member.starts_with("default") {
            if !map.is_empty() {
                errors.forbidden(&map, "may not be specified when `type` is 'Pod'");
            }
            continue;
        }
        if member == "maxLimitRequestRatio" {
            claims(limit, kind, errors);
        }
        for (resource, _) in map.members() {
            resource_name(&map.key(resource), kind, resource, errors);
        }
    }
    let mut resources: Vec<&String> = Vec::new();
    for member in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
        for (resource, _) in limit.get(member).members() {
            if !resources.contains(&resource) {
                resources.push(resource);
            }
        }
    }
    resources.into_iter().for_each(|resource| compare(limit, kind, resource, errors));
}

fn claims(limit: &Field, kind: &str, errors: &mut Errors) {
    let limited = ["min", "max"].iter().any(|member| limit.get(member).key("storage").is_set());
    if kind == "PersistentVolumeClaim" && !limited {
        errors.required(&limit.get("limits"), "either minimum or maximum storage value is required, but neither was provided");
    }
}

fn resource_name(field: &Field, kind: &str, resource: &str, errors: &mut Errors) {
    let problems = if matches!(kind, "Pod" | "Container") {
        container::resource_name(resource)
    } else {
        let mut problems = names::qualified(resource);
        if problems.is_empty() && !resource.contains('/') && !is_standard(resource) {
            problems.push("must be a standard resource type or fully qualified".into());
        }
        problems
    };
    for problem in problems {
        errors.invalid_value(field, resource, problem);
    }
}

fn compare(limit: &Field, kind: &str, resource: &str, errors: &mut Errors) {
    let amount = |member: &str| limit.get(member).key(resource).text().parse::<Quantity>().ok();
    let (min, max, ratio) = (amount("min"), amount("max"), amount("maxLimitRequestRatio"));
    let (default, request) = if kind == "Pod" { (None, None) } else { (amount("default"), amount("defaultRequest")) };
    let mut ordered = |less: Option<Quantity>, more: Option<Quantity>, member: &str, bad: Option<Quantity>, words: (&str, &str)| {
        if let (Some(less), Some(more), Some(bad)) = (less, more, bad)
            && less > more
        {
            let field = limit.get(member).key(resource);
            errors.invalid_value(&field, bad.to_string(), format!("{} value {less} is greater than {} value {more}", words.0, words.1));
        }
    };
    ordered(min, max, "min", min, ("min", "max"));
    ordered(min, request, "defaultRequest", request, ("min", "default request"));
    ordered(request, max, "defaultRequest", request, ("default request", "max"));
    ordered(request, default, "defaultRequest", request, ("default request", "default limit"));
    ordered(min, default, "default", min, ("min", "default"));
    ordered(default, max, "default", max, ("default", "max"));
    if let Some(ratio) = ratio {
        check_ratio(&limit.get("maxLimitRequestRatio").key(resource), ratio, min, max, errors);
    }
    if let (Some(default), Some(request)) = (default, request)
        && default != request
        && !may_overcommit(resource)
    {
        let field = limit.get("defaultRequest").key(resource);
        let what = format!("default value {default} must equal to defaultRequest value {request} in {resource}");
        errors.invalid_value(&field, request.to_string(), what);
    }
}

fn check_ratio(field: &Field, ratio: Quantity, min: Option<Quantity>, max: Option<Quantity>, errors: &mut Errors) {
    if ratio < Quantity::from_units(1) {
        errors.invalid_value(field, ratio.to_string(), format!("ratio {ratio} is less than 1"));
    }
    let (Some(min), Some(max)) = (min, max) else { return };
    let fine = [ratio, min, max].iter().all(|amount| amount.value() < MOST_MILLIS);
    let part = |amount: Quantity| if fine { amount.milli_value() as f64 / 1000.0 } else { amount.value() as f64 };
    let most = part(max) / part(min);
    if part(ratio) > most {
        errors.invalid_value(field, ratio.to_string(), format!("ratio {ratio} is greater than max/min = {most:.6}"));
    }
}
