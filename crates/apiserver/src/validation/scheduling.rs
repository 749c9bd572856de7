//! What decides where a pod runs: affinity, tolerations, spread, gates (pkg/apis/core/validation).

use super::field::{Errors, Field};
use super::{meta, names};
use std::collections::HashSet;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// A pod's affinity.
pub fn affinity(field: &Field, errors: &mut Errors) {
    let node = field.get("nodeAffinity");
    let required = node.get(REQUIRED);
    if required.is_set() {
        node_selector(&required, errors);
    }
    for preferred in node.get(PREFERRED).items() {
        weight(&preferred, errors);
        node_term(&preferred.get("preference"), errors);
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let pods = field.get(kind);
        pods.get(REQUIRED).items().iter().for_each(|term| pod_term(term, errors));
        for preferred in pods.get(PREFERRED).items() {
            weight(&preferred, errors);
            pod_term(&preferred.get("podAffinityTerm"), errors);
        }
    }
}

/// Terms of which a node fulfils one.
pub fn node_selector(selector: &Field, errors: &mut Errors) {
    let terms = selector.get("nodeSelectorTerms");
    if terms.is_empty() {
        errors.required(&terms, "must have at least one node selector term");
    }
    terms.items().iter().for_each(|term| node_term(term, errors));
}

fn weight(preferred: &Field, errors: &mut Errors) {
    let weight = preferred.get("weight");
    if !(1..=100).contains(&weight.number().unwrap_or_default()) {
        errors.invalid_value(&weight, weight.number().unwrap_or_default(), "must be in the range 1-100");
    }
}

fn node_term(term: &Field, errors: &mut Errors) {
    for requirement in term.get("matchExpressions").items() {
        let (operator, values, key) = (requirement.get("operator"), requirement.get("values"), requirement.get("key"));
        match operator.text() {
            "In" | "NotIn" if values.is_empty() => errors.required(&values, "must be specified when `operator` is 'In' or 'NotIn'"),
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                errors.forbidden(&values, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'");
            }
            "Gt" | "Lt" if values.items().len() != 1 => {
                errors.required(&values, "must be specified single value when `operator` is 'Lt' or 'Gt'");
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
            _ => errors.invalid(&operator, "not a valid selector operator"),
        }
        errors.invalid_each(&key, names::qualified(key.text()));
        for value in values.items() {
            errors.invalid_each(&value, names::label_value(value.text()));
        }
    }
    for requirement in term.get("matchFields").items() {
        let (operator, values, key) = (requirement.get("operator"), requirement.get("values"), requirement.get("key"));
        match operator.text() {
            "In" | "NotIn" if values.items().len() != 1 => {
                errors.required(&values, "must be only one value when `operator` is 'In' or 'NotIn' for node field selector");
            }
            "In" | "NotIn" => {}
            _ => errors.invalid(&operator, "not a valid selector operator"),
        }
        if key.text() != "metadata.name" {
            errors.invalid(&key, "not a valid field selector key");
        }
    }
}

fn pod_term(term: &Field, errors: &mut Errors) {
    meta::selector(&term.get("labelSelector"), errors);
    meta::selector(&term.get("namespaceSelector"), errors);
    let key = term.get("topologyKey");
    if key.is_empty() {
        errors.required(&key, "can not be empty");
    }
    errors.invalid_each(&key, names::qualified(key.text()));
}

/// A pod's tolerations.
pub fn tolerations(field: &Field, errors: &mut Errors) {
    for toleration in field.items() {
        let (key, operator, value) = (toleration.get("key"), toleration.get("operator"), toleration.get("value"));
        if !key.is_empty() {
            errors.invalid_each(&key, names::qualified(key.text()));
        } else if operator.text() != "Exists" {
            let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.invalid_value(&operator, operator.text(), detail);
        }
        let effect = toleration.get("effect");
        if toleration.get("tolerationSeconds").is_set() && effect.text() != "NoExecute" {
            errors.invalid_value(&effect, effect.text(), "effect must be 'NoExecute' when `tolerationSeconds` is set");
        }
        match operator.text() {
            "Equal" | "" => {
                let problems = names::label_value(value.text());
                if !problems.is_empty() {
                    errors.invalid_value(&operator, value.text(), problems.join(";"));
                }
            }
            "Exists" if !value.is_empty() => {
                errors.invalid_value(&operator, toleration.value.clone(), "value must be empty when `operator` is 'Exists'");
            }
            "Exists" => {}
            _ => errors.not_supported(&operator, &["Equal", "Exists"]),
        }
        if !effect.is_empty() {
            errors.one_of(&effect, &["NoSchedule", "PreferNoSchedule", "NoExecute"]);
        }
    }
}

/// A pod's scheduling gates.
pub fn gates(field: &Field, errors: &mut Errors) {
    let mut used = HashSet::new();
    for gate in field.items() {
        let name = gate.get("name").text();
        for problem in names::qualified(name) {
            errors.invalid_value(&gate, name, problem);
        }
        if !used.insert(name) {
            errors.duplicate(&gate, name);
        }
    }
}

/// A pod's topology spread constraints.
pub fn spread(field: &Field, errors: &mut Errors) {
    for constraint in field.items() {
        let skew = constraint.get("maxSkew");
        if skew.number().unwrap_or_default() <= 0 {
            errors.invalid_value(&skew, skew.number().unwrap_or_default(), "must be greater than zero");
        }
        let key = constraint.get("topologyKey");
        if key.is_empty() {
            errors.required(&key, "can not be empty");
        } else {
            errors.invalid_each(&key, names::qualified(key.text()));
        }
        let action = constraint.get("whenUnsatisfiable");
        if action.is_empty() {
            errors.required(&action, "can not be empty");
        } else {
            errors.one_of(&action, &["DoNotSchedule", "ScheduleAnyway"]);
        }
        meta::selector(&constraint.get("labelSelector"), errors);
    }
}

pub fn taints(field: &Field, errors: &mut Errors) {
    let mut used = HashSet::new();
    for taint in field.items() {
        let (key, value, effect) = (taint.get("key"), taint.get("value"), taint.get("effect"));
        errors.invalid_each(&key, names::qualified(key.text()));
        let problems = names::label_value(value.text());
        if !problems.is_empty() {
            errors.invalid(&value, problems.join(";"));
        }
        errors.one_of(&effect, &["NoSchedule", "PreferNoSchedule", "NoExecute"]);
        if !used.insert((key.text(), effect.text())) {
            errors.duplicate(&taint, taint.value.clone());
        }
    }
}
