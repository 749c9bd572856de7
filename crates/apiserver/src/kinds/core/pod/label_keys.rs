//! `matchLabelKeys` and `mismatchLabelKeys` of pod affinity and topology spread: a new pod's own labels join the selectors, so that the
//! scheduler reads selectors alone (pkg/registry/core/pod/strategy.go, `applyLabelKeysToLabelSelector`).

use serde_json::{Value, json};

/// Joins a new pod's labels to the selectors of its terms.
pub(super) fn merge(pod: &mut Value) {
    let labels = pod.pointer("/metadata/labels").cloned().unwrap_or_default();
    let Some(spec) = pod.get_mut("spec") else { return };
    for kind in ["podAffinity", "podAntiAffinity"] {
        for term in list(spec, &format!("/affinity/{kind}/preferredDuringSchedulingIgnoredDuringExecution")) {
            term.get_mut("podAffinityTerm").into_iter().for_each(|term| extend(term, &labels));
        }
        list(spec, &format!("/affinity/{kind}/requiredDuringSchedulingIgnoredDuringExecution")).for_each(|term| extend(term, &labels));
    }
    list(spec, "/topologySpreadConstraints").for_each(|constraint| extend(constraint, &labels));
}

fn list<'a>(spec: &'a mut Value, pointer: &str) -> impl Iterator<Item = &'a mut Value> + use<'a> {
    spec.pointer_mut(pointer).and_then(Value::as_array_mut).into_iter().flatten()
}

/// A term without a selector selects no pod, and stays so.
fn extend(term: &mut Value, labels: &Value) {
    let mut requirements = Vec::new();
    for (member, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
        let keys = term.get(member).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        let known = keys.filter_map(|key| Some((key, labels.get(key)?)));
        requirements.extend(known.map(|(key, value)| json!({"key": key, "operator": operator, "values": [value]})));
    }
    let Some(selector) = term.get_mut("labelSelector").and_then(Value::as_object_mut).filter(|_| !requirements.is_empty()) else { return };
    match selector.get_mut("matchExpressions").and_then(Value::as_array_mut) {
        Some(present) => present.extend(requirements),
        None => _ = selector.insert("matchExpressions".into(), requirements.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_a_new_pod_join_its_selectors() {
        let term = |selector: Value| json!({"topologyKey": "zone", "labelSelector": selector, "matchLabelKeys": ["hash", "none"], "mismatchLabelKeys": ["team"]});
        let selector = json!({"matchLabels": {"app": "a"}, "matchExpressions": [{"key": "x", "operator": "Exists"}]});
        let constraint = json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "a"}}, "matchLabelKeys": ["hash"]});
        let mut pod = json!({"metadata": {"labels": {"app": "a", "hash": "1", "team": "blue"}}, "spec": {
            "affinity": {
                "podAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [term(selector.clone()), term(Value::Null)],
                    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term(json!({}))}],
                },
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term(selector)]},
            },
            "topologySpreadConstraints": [constraint],
        }});
        merge(&mut pod);
        let added = [json!({"key": "hash", "operator": "In", "values": ["1"]}), json!({"key": "team", "operator": "NotIn", "values": ["blue"]})];
        let all = json!([{"key": "x", "operator": "Exists"}, added[0], added[1]]);
        let affinity = &pod["spec"]["affinity"];
        let required = |kind: &str| &affinity[kind]["requiredDuringSchedulingIgnoredDuringExecution"];
        assert_eq!(required("podAffinity")[0]["labelSelector"], json!({"matchLabels": {"app": "a"}, "matchExpressions": all}));
        assert_eq!(required("podAffinity")[1]["labelSelector"], Value::Null, "no selector selects nothing");
        assert_eq!(required("podAntiAffinity")[0]["labelSelector"]["matchExpressions"], all);
        let preferred = &affinity["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"][0]["podAffinityTerm"];
        assert_eq!(preferred["labelSelector"]["matchExpressions"], json!(added));
        assert_eq!(pod["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchExpressions"], json!([added[0]]));
    }
}
