//! Which objects a quota is about (upstream: scopes and scope selectors).

use super::usage::{Evaluator, is_terminating};
use crate::value::{list, lookup, text, texts};
use kube_rules::{Quantity, Selector};
use serde_json::Value;
use std::collections::BTreeSet;

/// Whether an object is in all scopes of a quota (or of anything else with a quota's `spec`).
pub fn matches_scopes(quota: &Value, evaluator: &Evaluator, object: &Value) -> bool {
    let plain = texts(quota, &["spec", "scopes"]).into_iter().all(|scope| is_in(evaluator, object, scope, "Exists", &[]));
    plain
        && list(quota, &["spec", "scopeSelector", "matchExpressions"]).iter().all(|one| {
            let values: Vec<String> = texts(one, &["values"]).into_iter().map(str::to_owned).collect();
            is_in(evaluator, object, text(one, &["scopeName"]), text(one, &["operator"]), &values)
        })
}

fn is_in(evaluator: &Evaluator, object: &Value, scope: &str, operator: &str, values: &[String]) -> bool {
    let selects = |value: Option<&str>| {
        let selector = Selector::from_parts(std::iter::empty(), std::iter::once((scope, operator, values)));
        selector.matches_by(|key| value.filter(|_| key == scope))
    };
    match (evaluator, scope) {
        (Evaluator::Pods, "Terminating") => is_terminating(object),
        (Evaluator::Pods, "NotTerminating") => !is_terminating(object),
        (Evaluator::Pods, "BestEffort") => is_best_effort(object),
        (Evaluator::Pods, "NotBestEffort") => !is_best_effort(object),
        (Evaluator::Pods, "PriorityClass") => selects(Some(text(object, &["spec", "priorityClassName"])).filter(|class| !class.is_empty())),
        (Evaluator::Pods, "CrossNamespacePodAffinity") => looks_elsewhere(object),
        (Evaluator::Claims, "VolumeAttributesClass") => {
            let classes = attributes_classes(object);
            if classes.is_empty() { selects(None) } else { classes.into_iter().any(|class| selects(Some(class))) }
        }
        _ => false,
    }
}

/// The class that the pod's status says, or else what its resources make of it.
fn is_best_effort(pod: &Value) -> bool {
    let class = text(pod, &["status", "qosClass"]);
    if !class.is_empty() {
        return class == "BestEffort";
    }
    let bounds = |object: &Value| {
        kube_rules::qos::RESOURCES.map(|name| {
            let amount = |side| Quantity::parse(text(object, &["resources", side, name])).ok();
            (amount("requests"), amount("limits"))
        })
    };
    let spec = &pod["spec"];
    if lookup(spec, &["resources", "requests"]).or(lookup(spec, &["resources", "limits"])).is_some() {
        return kube_rules::qos::qos_class_of(std::iter::once(bounds(spec))) == "BestEffort";
    }
    let containers = ["containers", "initContainers"].into_iter().flat_map(|member| list(spec, &[member]));
    kube_rules::qos::qos_class_of(containers.map(bounds)) == "BestEffort"
}

/// Whether a term of the pod's affinity names pods of other Namespaces.
fn looks_elsewhere(pod: &Value) -> bool {
    let elsewhere = |term: &Value| !list(term, &["namespaces"]).is_empty() || lookup(term, &["namespaceSelector"]).is_some();
    ["podAffinity", "podAntiAffinity"].into_iter().filter_map(|side| lookup(pod, &["spec", "affinity", side])).any(|side| {
        let required = list(side, &["requiredDuringSchedulingIgnoredDuringExecution"]).iter();
        let preferred = list(side, &["preferredDuringSchedulingIgnoredDuringExecution"]).iter();
        required.chain(preferred.filter_map(|weighted| lookup(weighted, &["podAffinityTerm"]))).any(elsewhere)
    })
}

/// The VolumeAttributesClasses that a claim asks for, has, or is changing to.
pub(super) fn attributes_classes(claim: &Value) -> BTreeSet<&str> {
    [
        text(claim, &["spec", "volumeAttributesClassName"]),
        text(claim, &["status", "currentVolumeAttributesClassName"]),
        text(claim, &["status", "modifyVolumeStatus", "targetVolumeAttributesClassName"]),
    ]
    .into_iter()
    .filter(|class| !class.is_empty())
    .collect()
}
