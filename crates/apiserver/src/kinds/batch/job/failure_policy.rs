//! The failure policy and the success policy of Jobs.

use super::indexes;
use crate::validation::field::{Errors, Field};
use crate::validation::names;
use serde_json::Value;

const MOST_RULES: usize = 20;
const MOST_EXIT_CODES: usize = 255;
const MOST_PATTERNS: usize = 20;
const LONGEST_INDEXES: usize = 64 * 1024;

/// As Go's `%q` prints a list.
fn valid_values(values: &[&str]) -> String {
    format!("valid values: {:?}", values).replace("\", \"", "\" \"")
}

/// One of these, with upstream's list of valid values when it is missing.
fn choice(field: &Field, values: &[&str], errors: &mut Errors) {
    if field.is_empty() {
        errors.required(field, &valid_values(values));
    } else if !values.contains(&field.text()) {
        errors.not_supported(field, values);
    }
}

pub(super) fn failure(spec: &Field, errors: &mut Errors) {
    let rules = spec.get("podFailurePolicy").get("rules");
    let found = rules.items();
    if found.len() > MOST_RULES {
        errors.too_many(&rules, found.len(), MOST_RULES);
    }
    let pod = spec.get("template").get("spec");
    let containers: Vec<&str> =
        ["containers", "initContainers"].iter().flat_map(|list| pod.get(list).items()).map(|container| container.get("name").text()).collect();
    for rule in found {
        let action = rule.get("action");
        if action.text() == "FailIndex" {
            if !spec.get("backoffLimitPerIndex").is_set() {
                errors.invalid(&action, "requires the backoffLimitPerIndex to be set");
            }
        } else {
            choice(&action, &["Count", "FailIndex", "FailJob", "Ignore"], errors);
        }
        let (codes, conditions) = (rule.get("onExitCodes"), rule.get("onPodConditions"));
        if codes.is_set() {
            exit_codes(&codes, &containers, errors);
        }
        pod_conditions(&conditions, errors);
        match (codes.is_set(), conditions.is_empty()) {
            (true, false) => errors.invalid_omitted(&rule, "specifying both OnExitCodes and OnPodConditions is not supported"),
            (false, true) => errors.invalid_omitted(&rule, "specifying one of OnExitCodes and OnPodConditions is required"),
            _ => {}
        }
    }
}

fn pod_conditions(conditions: &Field, errors: &mut Errors) {
    let patterns = conditions.items();
    if patterns.len() > MOST_PATTERNS {
        errors.too_many(conditions, patterns.len(), MOST_PATTERNS);
    }
    for pattern in patterns {
        let kind = pattern.get("type");
        errors.invalid_each(&kind, names::qualified(kind.text()));
        choice(&pattern.get("status"), &["False", "True", "Unknown"], errors);
    }
}

fn exit_codes(codes: &Field, containers: &[&str], errors: &mut Errors) {
    let operator = codes.get("operator");
    choice(&operator, &["In", "NotIn"], errors);
    let container = codes.get("containerName");
    if container.is_set() && !containers.contains(&container.text()) {
        errors.invalid(&container, "must be one of the container or initContainer names in the pod template");
    }
    let values = codes.get("values");
    let found = values.items();
    if found.is_empty() {
        errors.invalid(&values, "at least one value is required");
    } else if found.len() > MOST_EXIT_CODES {
        errors.too_many(&values, found.len(), MOST_EXIT_CODES);
    }
    let mut seen = Vec::new();
    for value in &found {
        let code = value.number().unwrap_or_default();
        if operator.text() == "In" && code == 0 {
            errors.invalid(value, "must not be 0 for the In operator");
        }
        if seen.contains(&code) {
            errors.duplicate(value, value.value.clone());
        }
        seen.push(code);
    }
    if !seen.is_sorted() {
        errors.invalid(&values, "must be ordered");
    }
}

/// When an indexed Job is done before all of its indexes are.
pub(super) fn success(spec: &Field, errors: &mut Errors) {
    let policy = spec.get("successPolicy");
    if spec.get("completionMode").text() != "Indexed" {
        return errors.invalid_value(&policy, shown(&policy), "requires indexed completion mode");
    }
    let rules = policy.get("rules");
    let found = rules.items();
    if found.is_empty() {
        errors.required(&rules, "at least one rules must be specified when the successPolicy is specified");
    }
    if found.len() > MOST_RULES {
        errors.too_many(&rules, found.len(), MOST_RULES);
    }
    let completions = spec.get("completions").number().unwrap_or_default();
    found.iter().for_each(|rule| success_rule(rule, completions, errors));
}

/// As upstream prints its internal type.
fn shown(policy: &Field) -> Value {
    let rules = policy.get("rules").items();
    let rule = |rule: &Field| serde_json::json!({"SucceededIndexes": rule.get("succeededIndexes").value, "SucceededCount": rule.get("succeededCount").value});
    serde_json::json!({"Rules": if rules.is_empty() { Value::Null } else { rules.iter().map(rule).collect() }})
}

fn success_rule(rule: &Field, completions: i64, errors: &mut Errors) {
    let (wanted, amount) = (rule.get("succeededIndexes"), rule.get("succeededCount"));
    if !wanted.is_set() && !amount.is_set() {
        errors.required(rule, "at least one of succeededCount or succeededIndexes must be specified");
    }
    let mut total = 0;
    if wanted.is_set() {
        if wanted.text().len() > LONGEST_INDEXES {
            errors.too_long(&wanted, LONGEST_INDEXES);
        }
        match indexes::count(wanted.text(), completions) {
            Ok(count) => total = count,
            Err(problem) => errors.invalid(&wanted, format!("error parsing succeededIndexes: {problem}")),
        }
    }
    let Some(count) = amount.number() else { return };
    errors.not_negative(&amount);
    if count > completions {
        errors.invalid(&amount, format!("must be less than or equal to {completions} (the number of specified completions)"));
    }
    if wanted.is_set() && count > total {
        let what = "the number of indexes in the specified succeededIndexes field";
        errors.invalid(&amount, format!("must be less than or equal to {total} ({what})"));
    }
}
