//! What the tests of kinds share: a kind's checks on an object and on a change of it, printed one error a line.

use crate::validation::field::{Errors, Field};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

pub(crate) type Check = fn(&Field, Option<&Field>, &mut Errors);

/// The object with other values at these JSON pointers; null removes a member.
pub(crate) fn with(base: &Value, changes: &[(&str, Value)]) -> Value {
    let mut object = base.clone();
    for (pointer, value) in changes {
        let (parent, member) = pointer.rsplit_once('/').unwrap();
        let parent = object.pointer_mut(parent).unwrap_or_else(|| panic!("nothing at {parent}"));
        match (parent, value) {
            (Value::Object(members), Value::Null) => drop(members.shift_remove(member)),
            (Value::Object(members), _) => drop(members.insert(member.to_string(), value.clone())),
            (Value::Array(items), _) => items[member.parse::<usize>().unwrap()] = value.clone(),
            _ => panic!("{pointer} leads nowhere"),
        }
    }
    object
}

/// What is wrong with a new object.
pub(crate) fn problems(check: Check, object: &Value) -> String {
    let mut errors = Errors::default();
    check(&Field::root(object), None, &mut errors);
    lines(errors)
}

/// What is wrong with replacing `old` by `new`.
pub(crate) fn change(check: Check, old: &Value, new: &Value) -> String {
    let mut errors = Errors::default();
    check(&Field::root(new), Some(&Field::root(old)), &mut errors);
    lines(errors)
}

fn lines(errors: Errors) -> String {
    errors.into_list().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// The object with its defaults, which a second time does not change.
pub(crate) fn defaulted(defaults: fn(&mut Map<String, Value>), mut object: Value) -> Value {
    defaults(object.as_object_mut().unwrap());
    let mut again = object.clone();
    defaults(again.as_object_mut().unwrap());
    assert_eq!(again, object, "a second time changes something");
    object
}

/// A table: each change of the base with the errors that it brings.
pub(crate) fn table(check: Check, base: &Value, cases: &[(&str, Value, &str)]) {
    assert_eq!(problems(check, base), "", "the base is valid");
    for (pointer, value, expected) in cases {
        assert_eq!(problems(check, &with(base, &[(pointer, value.clone())])), *expected, "{pointer} = {value}");
    }
}

/// A table of updates: each change of the base with the errors that it brings.
pub(crate) fn updates(check: Check, base: &Value, cases: &[(&str, Value, &str)]) {
    for (pointer, value, expected) in cases {
        assert_eq!(change(check, base, &with(base, &[(pointer, value.clone())])), *expected, "{pointer} = {value}");
    }
}

/// The cells of a row, as text.
pub(crate) fn row(cells: fn(&Value, Timestamp) -> Vec<Value>, object: &Value) -> Vec<String> {
    let mut object = object.clone();
    object["metadata"]["name"] = "x".into();
    object["metadata"]["creationTimestamp"] = "2026-01-01T23:57:30Z".into();
    let found = cells(&object, "2026-01-02T00:00:00Z".parse().unwrap());
    found.iter().map(|cell| cell.as_str().map_or_else(|| cell.to_string(), str::to_string)).collect()
}

/// What is wrong with a change of the status.
pub(crate) fn status_change(check: fn(&Field, &Field, &mut Errors), old: &Value, new: &Value) -> String {
    let mut errors = Errors::default();
    check(&Field::root(new), &Field::root(old), &mut errors);
    lines(errors)
}

/// What an object is warned of.
pub(crate) fn warned(warnings: fn(&Field, &mut Vec<String>), object: &Value) -> Vec<String> {
    let mut found = Vec::new();
    warnings(&Field::root(object), &mut found);
    found
}

/// A pod template that every workload accepts, with defaults, labelled `a: b`.
pub(crate) fn template(restart_policy: &str) -> Value {
    json!({"metadata": {"labels": {"a": "b"}}, "spec": {
        "restartPolicy": restart_policy, "dnsPolicy": "ClusterFirst", "terminationGracePeriodSeconds": 30, "securityContext": {},
        "schedulerName": "default-scheduler",
        "containers": [{"name": "c", "image": "i", "imagePullPolicy": "IfNotPresent", "terminationMessagePolicy": "File",
            "terminationMessagePath": "/dev/termination-log", "resources": {}}]}})
}
