//! Deployments and ReplicaSets (pkg/apis/apps/validation).

use super::field::{Errors, Field};
use super::{meta, pod};

/// A new or changed Deployment.
pub fn deployment(new: &Field, old: Option<&Field>, errors: &mut Errors) {
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

/// A new or changed ReplicaSet.
pub fn replica_set(new: &Field, old: Option<&Field>, errors: &mut Errors) {
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

fn selector_and_template(spec: &Field, errors: &mut Errors) {
    let selector = spec.get("selector");
    let before = std::mem::take(errors);
    if selector.is_set() {
        meta::selector(&selector, errors);
        if selector.get("matchLabels").is_empty() && selector.get("matchExpressions").is_empty() {
            errors.invalid_value(&selector, serde_json::json!({}), "empty selector is invalid for deployment");
        }
    } else {
        errors.required(&selector, "");
    }
    let valid_selector = errors.is_empty();
    let own = std::mem::replace(errors, before);
    own.into_list().into_iter().for_each(|error| errors.push(error));

    let template = spec.get("template");
    let labels = template.get("metadata").get("labels");
    if valid_selector && !meta::selects(&selector, &labels) {
        let shown = if labels.is_set() { labels.value.clone() } else { serde_json::Value::Null };
        errors.invalid_value(&labels, shown, "`selector` does not match template `labels`");
    }
    pod::template(&template, errors);
    let policy = template.get("spec").get("restartPolicy");
    if !policy.is_empty() && policy.text() != "Always" {
        errors.not_supported(&policy, &["Always"]);
    }
    let deadline = template.get("spec").get("activeDeadlineSeconds");
    if deadline.is_set() {
        errors.forbidden(&deadline, "activeDeadlineSeconds in ReplicaSet is not Supported");
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
            if unavailable.number().is_none() && amount(&unavailable).is_some_and(|percent| percent > 100) {
                errors.invalid(&unavailable, "must not be greater than 100%");
            }
        }
        _ => errors.not_supported(&kind, &["Recreate", "RollingUpdate"]),
    }
}

/// The number, or the percentage's number.
fn amount(field: &Field) -> Option<i64> {
    field.number().or_else(|| field.text().strip_suffix('%')?.parse().ok())
}

fn number_or_percent(field: &Field, errors: &mut Errors) {
    if field.number().is_some() {
        return errors.not_negative(field);
    }
    let digits = field.text().strip_suffix('%').unwrap_or_default();
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        errors.invalid(
            field,
            "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is \
             '[0-9]+%')",
        );
    }
}
