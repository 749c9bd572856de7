//! The OpenAPI v2 document: one for all kinds, made of those of version 3 when someone asks.

use super::downgrade::downgrade;
use super::openapi::{paths, schemas};
use crate::kind::Set;
use crd::publish::OpenApi;
use serde_json::{Map, Value, json};

/// `/openapi/v2` as JSON text.
pub fn openapi_v2(kinds: &Set) -> Vec<u8> {
    let (mut definitions, mut all) = (Map::new(), Map::new());
    for group in kinds.groups() {
        for version in &group.versions {
            let found = kinds.of_group_version(&group.name, version);
            for (name, schema) in schemas(&found, OpenApi::V2) {
                merge(&mut definitions, name, schema);
            }
            for (path, mut item) in paths(&found) {
                for operation in item.as_object_mut().into_iter().flat_map(Map::values_mut) {
                    downgrade_operation(operation);
                }
                all.insert(path, item);
            }
        }
    }
    definitions.sort_keys();
    all.sort_keys();
    let document = json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": "v1.36.2"},
        "paths": all,
        "definitions": definitions,
        "securityDefinitions": {"BearerToken": {"description": "Bearer Token authentication", "in": "header", "name": "authorization", "type": "apiKey"}},
        "security": [{"BearerToken": []}],
    });
    serde_json::to_vec(&document).unwrap_or_default()
}

/// A type that several groups use is the kind of each of them.
fn merge(definitions: &mut Map<String, Value>, name: String, schema: Value) {
    const KINDS: &str = "x-kubernetes-group-version-kind";
    let Some(known) = definitions.get_mut(&name) else {
        definitions.insert(name, schema);
        return;
    };
    let Some(more) = schema.get(KINDS).and_then(Value::as_array) else { return };
    match known.get_mut(KINDS).and_then(Value::as_array_mut) {
        Some(kinds) => kinds.extend(more.iter().filter(|kind| !kinds.contains(kind)).cloned().collect::<Vec<_>>()),
        None => known[KINDS] = more.clone().into(),
    }
}

/// An operation: its body becomes a parameter, its answers lose their media types.
fn downgrade_operation(operation: &mut Value) {
    let mut parameters = Vec::new();
    let mut consumes = vec![json!("*/*")];
    if let Some(body) = operation.as_object_mut().and_then(|operation| operation.shift_remove("requestBody")) {
        let contents = body["content"].as_object();
        let types: Vec<Value> = contents.into_iter().flatten().map(|(name, _)| name.as_str().into()).collect();
        let mut schema = contents.and_then(|contents| contents.values().next()).map(|first| first["schema"].clone()).unwrap_or_default();
        downgrade(&mut schema);
        parameters.push(json!({"in": "body", "name": "body", "required": true, "schema": schema}));
        consumes = types;
    }
    for parameter in operation["parameters"].as_array().into_iter().flatten() {
        parameters.push(json!({"in": parameter["in"], "name": parameter["name"], "type": "string", "uniqueItems": true}));
    }
    operation["parameters"] = parameters.into();
    operation["consumes"] = consumes.into();
    operation["produces"] = json!(["application/json", "application/yaml"]);
    for answer in operation["responses"].as_object_mut().into_iter().flat_map(Map::values_mut) {
        let mut schema = answer["content"]["application/json"]["schema"].take();
        downgrade(&mut schema);
        *answer = json!({"description": answer["description"], "schema": schema});
    }
}
