//! Schemas as OpenAPI documents show them (upstream: pkg/controller/openapi/builder and openapi/v2).

use serde_json::{Map, Value, json};

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const CONVENTIONS: &str = "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md";

/// Which OpenAPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenApi {
    V2,
    V3,
}

impl OpenApi {
    /// A described reference to a schema of the document.
    pub fn reference(self, name: &str, description: &str) -> Value {
        match self {
            OpenApi::V2 => json!({"description": description, "$ref": format!("#/definitions/{name}")}),
            // What stands beside a reference has no meaning there.
            OpenApi::V3 => json!({"description": description, "allOf": [{"$ref": format!("#/components/schemas/{name}")}]}),
        }
    }
}

/// `apiVersion` and `kind`, as every object has them.
pub fn type_meta() -> [(&'static str, Value); 2] {
    let text = |description: String| json!({"description": description, "type": "string"});
    let api_version = format!(
        "APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest \
         internal value, and may reject unrecognized values. More info: {CONVENTIONS}#resources"
    );
    let kind = format!(
        "Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client \
         submits requests to. Cannot be updated. In CamelCase. More info: {CONVENTIONS}#types-kinds"
    );
    [("apiVersion", text(api_version)), ("kind", text(kind))]
}

/// What documents show of a version's `openAPIV3Schema`, with the members that every object has. `preserves_all` is the definition's own
/// `preserveUnknownFields`.
pub fn schema(schema: &Value, preserves_all: bool, openapi: OpenApi) -> Value {
    let mut shown = schema.clone();
    walk(&mut shown, &unfold);
    let preserves = preserves_all || preserves(schema);
    let Some(_) = shown.as_object() else { return json!({"type": "object"}) };
    if openapi == OpenApi::V2 {
        // Old clients take every member that is not named for unknown.
        if preserves {
            return json!({"type": "object"});
        }
        walk(&mut shown, &simplify);
    }
    add_embedded(&mut shown, openapi);
    if let Some(properties) = members(&mut shown, "properties") {
        properties.extend(type_meta().map(|(name, value)| (name.to_owned(), value)));
        properties.insert("metadata".into(), metadata(openapi));
    }
    shown
}

fn metadata(openapi: OpenApi) -> Value {
    openapi.reference(OBJECT_META, &format!("Standard object's metadata. More info: {CONVENTIONS}#metadata"))
}

fn flag(node: &Value, name: &str) -> bool {
    node[name] == true
}

fn preserves(node: &Value) -> bool {
    flag(node, "x-kubernetes-preserve-unknown-fields")
}

/// The map that is a member of a schema, made where it is not there.
fn members<'v>(node: &'v mut Value, name: &str) -> Option<&'v mut Map<String, Value>> {
    node.as_object_mut()?.entry(name).or_insert_with(|| json!({})).as_object_mut()
}

/// The schemas directly below one, junctors aside.
fn below(node: &mut Value) -> Vec<&mut Value> {
    let mut found = Vec::new();
    for (name, value) in node.as_object_mut().into_iter().flatten() {
        match (name.as_str(), value) {
            ("properties", Value::Object(properties)) => found.extend(properties.values_mut()),
            ("items" | "additionalProperties", value @ Value::Object(_)) => found.push(value),
            _ => {}
        }
    }
    found
}

/// Changes a schema, then what is left below it.
fn walk(node: &mut Value, change: &dyn Fn(&mut Value)) {
    change(node);
    below(node).into_iter().for_each(|inner| walk(inner, change));
}

/// Says in standard words what `x-kubernetes-int-or-string` means.
fn unfold(node: &mut Value) {
    if !flag(node, "x-kubernetes-int-or-string") {
        return;
    }
    let either = json!([{"type": "integer"}, {"type": "string"}]);
    if node["anyOf"] == either || node["allOf"][0]["anyOf"] == either {
        return;
    }
    let Some(map) = node.as_object_mut() else { return };
    if map.get("anyOf").is_none_or(Value::is_null) {
        map.insert("anyOf".into(), either);
        return;
    }
    let mut all = vec![json!({"anyOf": either})];
    all.extend(map.get("allOf").and_then(Value::as_array).cloned().unwrap_or_default());
    map.insert("allOf".into(), Value::Array(all));
}

/// Removes what OpenAPI v2, or kubectl's reading of it, has no place for. Defaults are not published there either.
fn simplify(node: &mut Value) {
    let (nullable, preserves) = (flag(node, "nullable"), preserves(node));
    let optional: Vec<String> = node["properties"]
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(_, property)| flag(property, "nullable"))
        .map(|(name, _)| name.clone())
        .collect();
    let nullable_values = flag(&node["additionalProperties"], "nullable");
    let Some(map) = node.as_object_mut() else { return };
    for name in ["allOf", "oneOf", "anyOf", "not", "default", "nullable"] {
        map.remove(name);
    }
    if nullable || preserves {
        map.remove("items");
        map.remove("properties");
    }
    let is = |map: &Map<String, Value>, ty: &str| map.get("type").is_some_and(|found| found == ty);
    if nullable || preserves && is(map, "object") || is(map, "array") && !map.contains_key("items") {
        map.remove("type");
    }
    let Some(Value::Array(required)) = map.get_mut("required") else { return };
    required.retain(|name| !nullable_values && !optional.iter().any(|found| name == found.as_str()));
    if required.is_empty() {
        map.remove("required");
    }
}

/// Adds the members of objects to what is embedded.
fn add_embedded(node: &mut Value, openapi: OpenApi) {
    below(node).into_iter().for_each(|inner| add_embedded(inner, openapi));
    if !flag(node, "x-kubernetes-embedded-resource") || openapi == OpenApi::V2 && preserves(node) {
        return;
    }
    let text = |description: String| json!({"description": description, "type": "string"});
    if let Some(properties) = members(node, "properties") {
        let about = format!("apiVersion defines the versioned schema of this representation of an object. More info: {CONVENTIONS}#resources");
        properties.insert("apiVersion".into(), text(about));
        let about = format!("kind is a string value representing the type of this object. In CamelCase. More info: {CONVENTIONS}#types-kinds");
        properties.insert("kind".into(), text(about));
        properties.insert("metadata".into(), metadata(openapi));
    }
    if let Some(map) = node.as_object_mut()
        && let Some(required) = map.entry("required").or_insert_with(|| json!([])).as_array_mut()
    {
        for name in ["kind", "apiVersion"] {
            if !required.iter().any(|found| found == name) {
                required.push(name.into());
            }
        }
    }
}

/// A JSON path of a selectable field as documents name it.
pub fn selectable_fields(paths: &[String]) -> Option<Value> {
    let field = |path: &String| json!({"fieldPath": path.trim_start_matches('.')});
    (!paths.is_empty()).then(|| paths.iter().map(field).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without what every object has.
    fn own(schema: &Value, openapi: OpenApi) -> Value {
        let mut shown = super::schema(schema, false, openapi);
        let properties = shown["properties"].as_object_mut().unwrap();
        for name in ["apiVersion", "kind", "metadata"] {
            assert!(properties.remove(name).is_some(), "{name}");
        }
        shown
    }

    #[test]
    fn plain_schemas_stay_as_they_are() {
        let plain = json!({"type": "object", "description": "d", "properties": {"spec": {"type": "object", "required": ["a"], "properties": {
            "a": {"type": "string", "pattern": "x|y", "enum": ["x"]}, "b": {"type": "array", "items": {"type": "object"}},
        }}}});
        assert_eq!(own(&plain, OpenApi::V2), plain);
        assert_eq!(own(&plain, OpenApi::V3), plain);
    }

    #[test]
    fn roots_that_preserve_are_empty_in_version_2() {
        let open =
            json!({"type": "object", "description": "d", "x-kubernetes-preserve-unknown-fields": true, "properties": {"a": {"type": "string"}}});
        assert_eq!(schema(&open, false, OpenApi::V2), json!({"type": "object"}));
        assert_eq!(own(&open, OpenApi::V3), open);
        let closed = json!({"type": "object"});
        assert_eq!(schema(&closed, true, OpenApi::V2), json!({"type": "object"}));
    }

    #[test]
    fn version_2_has_only_what_old_clients_read() {
        let rich = json!({"type": "object", "properties": {
            "nullable": {"type": "object", "nullable": true, "properties": {"a": {"type": "string"}}},
            "preserved": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"a": {"type": "string"}}},
            "list": {"type": "array", "x-kubernetes-preserve-unknown-fields": true, "items": {"type": "string"}},
            "either": {"x-kubernetes-int-or-string": true},
            "defaulted": {"type": "string", "default": "x", "oneOf": [{"pattern": "a"}]},
            "values": {"type": "object", "required": ["x"], "additionalProperties": {"type": "string", "nullable": true}},
        }, "required": ["nullable", "either"]});
        assert_eq!(
            own(&rich, OpenApi::V2),
            json!({"type": "object", "properties": {
            "nullable": {},
            "preserved": {"x-kubernetes-preserve-unknown-fields": true},
            "list": {"x-kubernetes-preserve-unknown-fields": true},
            "either": {"x-kubernetes-int-or-string": true},
            "defaulted": {"type": "string"},
            "values": {"type": "object", "additionalProperties": {}},
        }, "required": ["either"]})
        );
        let shown = own(&rich, OpenApi::V3);
        assert_eq!(shown["properties"]["either"]["anyOf"], json!([{"type": "integer"}, {"type": "string"}]));
        assert_eq!(shown["properties"]["defaulted"], rich["properties"]["defaulted"]);
    }

    #[test]
    fn more_than_int_or_string_is_said_in_two_steps() {
        let odd = json!({"type": "object", "properties": {"a": {"x-kubernetes-int-or-string": true, "anyOf": [{"minimum": 1}], "allOf": [{"maximum": 9}]}}});
        let shown = &own(&odd, OpenApi::V3)["properties"]["a"];
        assert_eq!(shown["allOf"], json!([{"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"maximum": 9}]));
        let usual = json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]});
        let whole = json!({"type": "object", "properties": {"a": usual}});
        assert_eq!(own(&whole, OpenApi::V3), whole);
    }

    #[test]
    fn embedded_objects_get_their_members() {
        let outer = json!({"type": "object", "properties": {"pod": {"type": "object", "x-kubernetes-embedded-resource": true,
            "x-kubernetes-preserve-unknown-fields": true}}});
        let pod = &own(&outer, OpenApi::V3)["properties"]["pod"];
        assert_eq!(pod["required"], json!(["kind", "apiVersion"]));
        assert_eq!(pod["properties"]["metadata"]["allOf"][0]["$ref"], format!("#/components/schemas/{OBJECT_META}"));
        assert!(own(&outer, OpenApi::V2)["properties"]["pod"].get("properties").is_none());
    }
}
