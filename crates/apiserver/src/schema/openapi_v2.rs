//! The OpenAPI v2 document: one for all kinds, made of those of version 3 when someone asks.

use super::downgrade::downgrade;
use super::openapi::{Members, open_schemas, paths_of, typed_schemas};
use crate::kind::{Kind, Set};
use crd::publish::OpenApi;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// `/openapi/v2` as JSON text.
pub fn openapi_v2(kinds: &Set) -> Vec<u8> {
    let of_versions = || kinds.groups().iter().flat_map(|group| group.versions.iter().map(|version| kinds.of_group_version(&group.name, version)));
    let mut text = br#"{"swagger":"2.0","info":{"title":"Kubernetes","version":"v1.36.2"},"paths":"#.to_vec();
    let mut paths = Members::begin(&mut text);
    for info in of_versions().flatten() {
        let mut own = paths_of(info);
        own.values_mut().filter_map(Value::as_object_mut).flat_map(Map::values_mut).for_each(downgrade_operation);
        paths.extend(&own);
    }
    paths.end();
    text.extend_from_slice(br#","definitions":"#);
    let mut definitions = Members::begin(&mut text);
    definitions.extend(&typed(of_versions()));
    for info in of_versions().flatten() {
        definitions.extend(&open_schemas(info, OpenApi::V2));
    }
    definitions.end();
    let description = json!({"description": "Bearer Token authentication", "in": "header", "name": "authorization", "type": "apiKey"});
    text.extend_from_slice(format!(",\"securityDefinitions\":{{\"BearerToken\":{description}}},\"security\":[{{\"BearerToken\":[]}}]}}").as_bytes());
    text
}

/// The schemas of all kinds with a type, by name.
fn typed<'k>(versions: impl Iterator<Item = Vec<&'k Arc<Kind>>>) -> Map<String, Value> {
    let mut definitions = Map::new();
    for found in versions.filter(|found| found.iter().any(|info| !info.described_by.is_empty())) {
        for (name, schema) in typed_schemas(&found, OpenApi::V2) {
            merge(&mut definitions, name, schema);
        }
    }
    definitions.sort_keys();
    definitions
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
