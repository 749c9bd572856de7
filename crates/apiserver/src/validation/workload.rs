//! Deployments, ReplicaSets, DaemonSets and their revisions, disruption budgets (pkg/apis/{apps,policy}/validation).

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

/// A new or changed DaemonSet.
pub fn daemon_set(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let spec = new.get("spec");
    if old.is_some_and(|old| old.get("spec").value == spec.value) {
        return;
    }
    let (selector, template) = (spec.get("selector"), spec.get("template"));
    meta::selector(&selector, errors);
    let labels = template.get("metadata").get("labels");
    // A selector that is not there selects nothing.
    if !selector.is_set() || !meta::selects(&selector, &labels) {
        let shown = if labels.is_set() { labels.value.clone() } else { serde_json::Value::Null };
        errors.invalid_value(&labels, shown, "`selector` does not match template `labels`");
    }
    if selector.is_set() && selector.get("matchLabels").is_empty() && selector.get("matchExpressions").is_empty() {
        errors.invalid_value(&selector, serde_json::json!({}), "empty selector is invalid for daemonset");
    }
    pod::template(&template, errors);
    let policy = template.get("spec").get("restartPolicy");
    if !policy.is_empty() && policy.text() != "Always" {
        errors.not_supported(&policy, &["Always"]);
    }
    let deadline = template.get("spec").get("activeDeadlineSeconds");
    if deadline.is_set() {
        errors.forbidden(&deadline, "activeDeadlineSeconds in DaemonSet is not Supported");
    }
    errors.not_negative(&spec.get("minReadySeconds"));
    update_strategy(&spec.get("updateStrategy"), errors);
    errors.not_negative(&spec.get("revisionHistoryLimit"));
    if let Some(old) = old {
        errors.immutable(&selector, &old.get("spec").get("selector"));
    }
}

fn update_strategy(strategy: &Field, errors: &mut Errors) {
    let rolling = strategy.get("rollingUpdate");
    match strategy.get("type").text() {
        "OnDelete" => {}
        "RollingUpdate" if !rolling.is_set() => errors.required(&rolling, ""),
        "RollingUpdate" => {
            let (unavailable, surge) = (rolling.get("maxUnavailable"), rolling.get("maxSurge"));
            for field in [&unavailable, &surge] {
                number_or_percent(field, errors);
            }
            for field in [&unavailable, &surge] {
                at_most_all(field, errors);
            }
            match (amount(&unavailable).unwrap_or_default() != 0, amount(&surge).unwrap_or_default() != 0) {
                (true, true) => errors.invalid(&surge, "may not be set when maxUnavailable is non-zero"),
                (false, false) => errors.required(&unavailable, "cannot be 0 when maxSurge is 0"),
                _ => {}
            }
        }
        _ => errors.not_supported(strategy, &["RollingUpdate", "OnDelete"]),
    }
}

/// A new or changed ControllerRevision.
pub fn controller_revision(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let data = new.get("data");
    if !data.is_set() {
        errors.required(&data, "data is mandatory");
    }
    errors.not_negative(&new.get("revision"));
    if let Some(old) = old {
        errors.immutable(&data, &old.get("data"));
    }
}

/// A new or changed PodDisruptionBudget.
pub fn disruption_budget(new: &Field, old: Option<&Field>, errors: &mut Errors) {
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

fn at_most_all(field: &Field, errors: &mut Errors) {
    if field.number().is_none() && amount(field).is_some_and(|percent| percent > 100) {
        errors.invalid(field, "must not be greater than 100%");
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
    // A missing selector selects nothing: upstream reports both errors.
    let mismatch = if selector.is_set() { valid_selector && !meta::selects(&selector, &labels) } else { true };
    if mismatch {
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
            at_most_all(&unavailable, errors);
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
