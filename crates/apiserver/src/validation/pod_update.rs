//! What may change in a pod's specification (pkg/apis/core/validation: ValidatePodUpdate).

use super::field::{Errors, Field};
use serde_json::Value;

const UPDATABLE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions \
                         to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// The changed leaves of a value, one line each.
pub fn difference_of(path: &str, old: &Value, new: &Value) -> String {
    let mut lines = String::new();
    difference(path, old, new, &mut lines);
    lines
}

/// Ephemeral containers are only ever added (ValidatePodEphemeralContainersUpdate).
pub fn ephemeral(new: &Field, old: &Field, errors: &mut Errors) {
    let field = new.get("ephemeralContainers");
    let found = field.items();
    for before in old.get("ephemeralContainers").items() {
        let name = before.get("name").text();
        match found.iter().find(|container| container.get("name").text() == name) {
            None => errors.forbidden(&field, format!("existing ephemeral containers {name:?} may not be removed\n")),
            Some(after) if after.value != before.value => {
                let lines = difference_of("", before.value, after.value);
                errors.forbidden(&field, format!("existing ephemeral containers {name:?} may not be changed\n{lines}"));
            }
            Some(_) => {}
        }
    }
}

/// Compares a changed specification with the old one.
pub fn check(new: &Field, old: &Field, errors: &mut Errors) {
    for list in ["containers", "initContainers"] {
        if new.get(list).items().len() != old.get(list).items().len() {
            return errors.forbidden(&new.get(list), "pod updates may not add or remove containers");
        }
    }
    if !deadline(new, old, errors) {
        return;
    }
    tolerations(new, old, errors);
    gates(new, old, errors);
    let mut rest = new.value.clone();
    put_back(&mut rest, old);
    if &rest != old.value {
        let lines = difference_of("spec", old.value, &rest);
        errors.forbidden(new, format!("pod updates may not change fields other than {UPDATABLE}\n{lines}"));
    }
}

/// From nothing to a number, or to a smaller one.
fn deadline(new: &Field, old: &Field, errors: &mut Errors) -> bool {
    let (field, before) = (new.get("activeDeadlineSeconds"), old.get("activeDeadlineSeconds").number());
    match (field.number(), before) {
        (Some(seconds), _) if !(0..=i64::from(i32::MAX)).contains(&seconds) => {
            errors.invalid(&field, "must be between 0 and 2147483647, inclusive");
            false
        }
        (Some(seconds), Some(before)) if before < seconds => {
            errors.invalid(&field, "must be less than or equal to previous value");
            false
        }
        (None, Some(_)) => {
            errors.invalid(&field, "must not update from a positive integer to nil value");
            true
        }
        _ => true,
    }
}

/// Tolerations may be added, and change their seconds.
fn tolerations(new: &Field, old: &Field, errors: &mut Errors) {
    let without_seconds = |field: &Field| {
        let mut value = field.value.clone();
        if let Some(members) = value.as_object_mut() {
            members.shift_remove("tolerationSeconds");
        }
        value
    };
    let field = new.get("tolerations");
    let kept: Vec<Value> = field.items().iter().map(without_seconds).collect();
    if old.get("tolerations").items().iter().any(|before| !kept.contains(&without_seconds(before))) {
        errors.forbidden(&field, "existing toleration can not be modified except its tolerationSeconds");
    }
}

/// Gates may only go.
fn gates(new: &Field, old: &Field, errors: &mut Errors) {
    let had: Vec<Value> = old.get("schedulingGates").items().iter().map(|gate| gate.get("name").value.clone()).collect();
    for gate in new.get("schedulingGates").items() {
        let name = gate.get("name");
        if !had.contains(name.value) {
            errors.forbidden(&name, format!("only deletion is allowed, but found new scheduling gate '{}'", name.text()));
        }
    }
}

/// Takes back every change that is allowed.
fn put_back(spec: &mut Value, old: &Field) {
    for list in ["containers", "initContainers"] {
        for (index, before) in old.get(list).items().iter().enumerate() {
            if let Some(container) = spec.get_mut(list).and_then(|list| list.get_mut(index)) {
                restore(container, before, "image");
            }
        }
    }
    for member in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
        restore(spec, old, member);
    }
    let was_negative = old.get("terminationGracePeriodSeconds").number().is_some_and(|seconds| seconds < 0);
    if was_negative && spec["terminationGracePeriodSeconds"] == 1 {
        restore(spec, old, "terminationGracePeriodSeconds");
    }
}

fn restore(target: &mut Value, old: &Field, member: &str) {
    let Some(members) = target.as_object_mut() else { return };
    match old.value.get(member) {
        Some(value) => drop(members.insert(member.to_string(), value.clone())),
        None => drop(members.shift_remove(member)),
    }
}

/// The changed leaves, old and new, one line each.
fn difference(path: &str, old: &Value, new: &Value, lines: &mut String) {
    match (old, new) {
        (Value::Object(before), Value::Object(after)) => {
            for (key, value) in before {
                difference(&format!("{path}.{key}"), value, after.get(key).unwrap_or(&Value::Null), lines);
            }
            for (key, value) in after.iter().filter(|(key, _)| !before.contains_key(*key)) {
                difference(&format!("{path}.{key}"), &Value::Null, value, lines);
            }
        }
        (Value::Array(before), Value::Array(after)) if before.len() == after.len() => {
            for (index, (before, after)) in before.iter().zip(after).enumerate() {
                difference(&format!("{path}[{index}]"), before, after, lines);
            }
        }
        _ if old != new => {
            if !old.is_null() {
                lines.push_str(&format!("- \t{path}: {old}\n"));
            }
            if !new.is_null() {
                lines.push_str(&format!("+ \t{path}: {new}\n"));
            }
        }
        _ => {}
    }
}
