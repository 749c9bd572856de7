//! What may change in a Job.

use super::has_condition;
use crate::object;
use crate::validation::field::{Errors, Field};
use serde_json::Value;

/// Compares a changed specification with the old Job.
pub(super) fn check(spec: &Field, old: &Field, errors: &mut Errors) {
    let before = old.get("spec");
    completions(spec, &before, errors);
    errors.immutable(&spec.get("selector"), &before.get("selector"));
    template(spec, old, errors);
    for member in ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"] {
        errors.immutable(&spec.get(member), &before.get(member));
    }
}

/// An indexed Job may grow and shrink, with as many pods at once as indexes.
fn completions(spec: &Field, before: &Field, errors: &mut Errors) {
    let (wanted, was) = (spec.get("completions"), before.get("completions"));
    if spec.get("completionMode").text() != "Indexed" {
        return errors.immutable(&wanted, &was);
    }
    let elastic = wanted.value == was.value || !wanted.is_set() || wanted.value == spec.get("parallelism").value;
    if !elastic {
        errors.invalid(&wanted, "can only be modified in tandem with spec.parallelism");
    }
}

/// A suspended Job without pods may change where its pods may run and what resources they get.
fn template(spec: &Field, old: &Field, errors: &mut Errors) {
    let (wanted, was) = (spec.get("template"), old.get("spec").get("template"));
    let suspended = old.get("spec").get("suspend").is_true();
    let status = old.get("status");
    let rests = !status.get("startTime").is_set() || has_condition(old.value, "Suspended", "True");
    let open = suspended && rests && status.get("active").number().unwrap_or_default() == 0;
    if !open {
        return errors.immutable(&wanted, &was);
    }
    let mut allowed = was.value.clone();
    allow_scheduling(wanted.value, &mut allowed);
    allow_resources(wanted.value, &mut allowed);
    if wanted.get("spec").value != allowed.get("spec").unwrap_or(&Value::Null) {
        errors.invalid(&wanted.get("spec"), "field is immutable");
    }
}

fn allow_scheduling(wanted: &Value, allowed: &mut Value) {
    let metadata = wanted.get("metadata").cloned().unwrap_or_default();
    for member in ["annotations", "labels"] {
        object::copy_member(&metadata, map(allowed, "metadata"), member);
    }
    let (wanted, allowed) = (wanted.get("spec").cloned().unwrap_or_default(), map(allowed, "spec"));
    for member in ["nodeSelector", "tolerations", "schedulingGates"] {
        object::copy_member(&wanted, allowed, member);
    }
    match (wanted.get("affinity").is_some_and(Value::is_object), allowed.get("affinity").is_some_and(Value::is_object)) {
        (false, false) => {}
        (false, true) => {
            let affinity = map(allowed, "affinity");
            affinity.as_object_mut().into_iter().for_each(|members| drop(members.shift_remove("nodeAffinity")));
            if affinity.as_object().is_some_and(serde_json::Map::is_empty) {
                allowed.as_object_mut().into_iter().for_each(|members| drop(members.shift_remove("affinity")));
            }
        }
        (true, _) => object::copy_member(&wanted["affinity"], map(allowed, "affinity"), "nodeAffinity"),
    }
}

/// The member as an object, made when it is missing.
fn map<'a>(value: &'a mut Value, member: &str) -> &'a mut Value {
    object::map_mut(value, member);
    &mut value[member]
}

fn allow_resources(wanted: &Value, allowed: &mut Value) {
    for list in ["containers", "initContainers"] {
        let wanted = object::list(wanted, &["spec", list]);
        let Some(containers) = allowed.get_mut("spec").and_then(|spec| spec.get_mut(list)).and_then(Value::as_array_mut) else { continue };
        if containers.len() != wanted.len() {
            continue;
        }
        for (container, wanted) in containers.iter_mut().zip(wanted) {
            if container.get("name") == wanted.get("name") {
                object::copy_member(wanted, container, "resources");
            }
        }
    }
}
