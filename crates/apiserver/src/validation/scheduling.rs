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

/// `ValidateMatchLabelKeysAndMismatchLabelKeys`. In a new pod the selector holds what the keys have added to it, so that a key which the
/// client's selector has too is in it twice.
fn label_keys(term: &Field, errors: &mut Errors) {
    let selector = term.get("labelSelector");
    let [matching, mismatching] = ["matchLabelKeys", "mismatchLabelKeys"].map(|member| term.get(member));
    for keys in [&matching, &mismatching].into_iter().filter(|keys| !keys.is_empty()) {
        if !selector.is_set() {
            errors.forbidden(keys, "must not be specified when labelSelector is not set");
            continue;
        }
        for key in keys.items() {
            errors.invalid_each(&key, names::qualified(key.text()));
        }
    }
    let (matching, mismatching) = (matching.items(), mismatching.items());
    if selector.is_set() {
        let mut selected: HashSet<&str> = selector.get("matchLabels").members().map(|(key, _)| key.as_str()).collect();
        for requirement in selector.get("matchExpressions").items() {
            let key = requirement.get("key").text();
            let place = matching.iter().rposition(|own| own.text() == key);
            if let Some(place) = place.filter(|_| selected.contains(key)) {
                errors.invalid_value(&term.index(place), key, "exists in both matchLabelKeys and labelSelector");
            }
            selected.insert(key);
        }
    }
    for key in matching.iter().filter(|key| mismatching.iter().any(|other| other.text() == key.text())) {
        errors.invalid(key, "exists in both matchLabelKeys and mismatchLabelKeys");
    }
}

fn pod_term(term: &Field, errors: &mut Errors) {
    label_keys(term, errors);
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
    let constraints = field.items();
    for (place, constraint) in constraints.iter().enumerate() {
        let skew = constraint.get("maxSkew");
        if skew.number().unwrap_or_default() <= 0 {
            errors.invalid_value(&skew, skew.number().unwrap_or_default(), "must be greater than zero");
        }
        let (key, action) = (constraint.get("topologyKey"), constraint.get("whenUnsatisfiable"));
        if key.is_empty() {
            errors.required(&key, "can not be empty");
        }
        if !["DoNotSchedule", "ScheduleAnyway"].contains(&action.text()) {
            errors.not_supported(&action, &["DoNotSchedule", "ScheduleAnyway"]);
        }
        let same = |other: &Field| ["topologyKey", "whenUnsatisfiable"].iter().all(|name| other.get(name).text() == constraint.get(name).text());
        if constraints[place + 1..].iter().any(same) {
            errors.duplicate(&constraint.get("{topologyKey, whenUnsatisfiable}"), format!("{{{}, {}}}", key.text(), action.text()));
        }
        let domains = constraint.get("minDomains");
        if let Some(number) = domains.number() {
            if number <= 0 {
                errors.invalid(&domains, "must be greater than zero");
            }
            if action.text() != "DoNotSchedule" {
                let detail = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {}", action.text());
                errors.invalid(&domains, detail);
            }
        }
        for policy in ["nodeAffinityPolicy", "nodeTaintsPolicy"].map(|name| constraint.get(name)) {
            if policy.is_set() && !["Honor", "Ignore"].contains(&policy.text()) {
                errors.not_supported(&policy, &["Honor", "Ignore"]);
            }
        }
        label_keys(constraint, errors);
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
