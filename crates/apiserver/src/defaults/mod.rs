//! What upstream fills in when a client leaves it out (pkg/apis/*/v1/defaults.go): what several kinds share.

pub mod pod;

use serde_json::{Map, Value, json};

type Object = Map<String, Value>;

/// Sets a member that is missing or empty text.
pub fn set(object: &mut Object, member: &str, value: impl FnOnce() -> Value) {
    if object.get(member).is_none_or(|old| old.is_null() || old == "") {
        object.insert(member.to_string(), value());
    }
}

/// The member as an object, when it is one.
pub fn inner<'a>(object: &'a mut Object, member: &str) -> Option<&'a mut Object> {
    object.get_mut(member).and_then(Value::as_object_mut)
}

/// The member as an object, made when it is missing.
pub fn made<'a>(object: &'a mut Object, member: &str) -> Option<&'a mut Object> {
    set(object, member, || json!({}));
    inner(object, member)
}

/// The objects in a list member.
pub fn each<'a>(object: &'a mut Object, member: &str) -> impl Iterator<Item = &'a mut Object> {
    object.get_mut(member).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

pub fn is_text(object: &Object, member: &str, text: &str) -> bool {
    object.get(member).is_some_and(|value| value == text)
}

pub fn template(spec: &mut Object) {
    if let Some(pod_spec) = inner(spec, "template").and_then(|template| inner(template, "spec")) {
        pod::template_spec(pod_spec);
    }
}
