//! Schemas of OpenAPI 3 in the words of version 2.

use serde_json::Value;

const FROM: &str = "#/components/schemas/";
const TO: &str = "#/definitions/";

fn rename(reference: &mut Value) {
    if let Some(name) = reference.as_str().and_then(|text| text.strip_prefix(FROM)) {
        *reference = format!("{TO}{name}").into();
    }
}

/// A schema of version 3 in the words of version 2: no alternatives, no defaults.
pub(super) fn downgrade(schema: &mut Value) {
    let Some(node) = schema.as_object_mut() else { return };
    if let Some(Value::Array(all)) = node.shift_remove("allOf")
        && let [only] = all.as_slice()
        && let Some(reference) = only.get("$ref")
    {
        node.insert("$ref".into(), reference.clone());
    }
    if let Some(reference) = node.get_mut("$ref") {
        rename(reference);
    }
    let alternatives = ["oneOf", "anyOf"].iter().filter(|name| node.shift_remove(**name).is_some()).count();
    for name in ["not", "default", "nullable", "x-kubernetes-int-or-string"] {
        node.shift_remove(name);
    }
    if alternatives > 0 && !node.contains_key("type") {
        node.insert("type".into(), "string".into());
    }
    if let Some(Value::Object(properties)) = node.get_mut("properties") {
        properties.values_mut().for_each(downgrade);
    }
    ["items", "additionalProperties"].iter().for_each(|name| {
        if let Some(inner) = node.get_mut(*name) {
            downgrade(inner);
        }
    });
}
