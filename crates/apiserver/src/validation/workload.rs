//! What the rules of workloads and disruption budgets have in common (pkg/apis/{apps,policy}/validation).

use super::field::{Errors, Field};
use super::{meta, pod};

pub fn at_most_all(field: &Field, errors: &mut Errors) {
    if field.number().is_none() && amount(field).is_some_and(|percent| percent > 100) {
        errors.invalid(field, "must not be greater than 100%");
    }
}

pub fn selector_and_template(spec: &Field, errors: &mut Errors) {
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

/// The number, or the percentage's number.
pub fn amount(field: &Field) -> Option<i64> {
    field.number().or_else(|| field.text().strip_suffix('%')?.parse().ok())
}

pub fn number_or_percent(field: &Field, errors: &mut Errors) {
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
