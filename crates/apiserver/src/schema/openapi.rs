//! OpenAPI v3 documents, built from k8s-openapi's schemas and our table of types when someone asks: they are large and rarely read, so none
//! is kept. Clients keep them by the hash in the index.

use super::downgrade::downgrade;
use super::types::{self, Field, GoType};
use crate::kind::{Custom, Kind, Route, Set, Storage};
use crd::publish::{self, OpenApi};
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::{Arc, OnceLock};

const REF: &str = "#/components/schemas/";
/// Types of definitions that hold more than objects.
const ANYTHING: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";
const PATCH_TYPE: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";
const SCALE: (&str, &str, &str, &str) = ("io.k8s.api.autoscaling.v1.Scale", "autoscaling", "v1", "Scale");

/// `/openapi/v3`: where each group version's document is.
pub fn openapi_v3_index(kinds: &Set) -> Value {
    let hash = openapi_hash(kinds);
    let mut paths = Map::new();
    for group in kinds.groups() {
        for version in group.versions.iter().filter(|version| is_described(kinds, &group.name, version)) {
            let place = place(&group.name, version);
            paths.insert(place.clone(), json!({"serverRelativeURL": format!("/openapi/v3/{place}?hash={hash}")}));
        }
    }
    json!({"paths": paths})
}

/// The document of one group version as JSON text; `None` when it is not served.
pub fn openapi_v3(kinds: &Set, group: &str, version: &str) -> Option<Vec<u8>> {
    let found = kinds.of_group_version(group, version);
    if found.is_empty() || !is_described(kinds, group, version) {
        return None;
    }
    let mut text = br#"{"openapi":"3.0.0","info":{"title":"Kubernetes","version":"v1.36.2"},"paths":"#.to_vec();
    let mut paths = Members::begin(&mut text);
    for info in &found {
        paths.extend(&paths_of(info));
    }
    paths.end();
    text.extend_from_slice(br#","components":{"schemas":"#);
    let mut schemas = Members::begin(&mut text);
    schemas.extend(&typed_schemas(&found, OpenApi::V3));
    for info in &found {
        schemas.extend(&open_schemas(info, OpenApi::V3));
    }
    schemas.end();
    text.extend_from_slice(b"}}");
    Some(text)
}

/// A JSON object that is written member by member: as a tree a document takes many times its text, and a hundred custom kinds make it large.
/// Of members of one name the first stays.
pub(super) struct Members<'t> {
    text: &'t mut Vec<u8>,
    written: BTreeSet<String>,
}

impl<'t> Members<'t> {
    pub(super) fn begin(text: &'t mut Vec<u8>) -> Self {
        text.push(b'{');
        Self { text, written: BTreeSet::new() }
    }

    pub(super) fn extend(&mut self, members: &Map<String, Value>) {
        for (name, value) in members.iter().filter(|(name, _)| !self.written.contains(*name)).collect::<Vec<_>>() {
            if !self.written.is_empty() {
                self.text.push(b',');
            }
            self.written.insert(name.clone());
            // Neither can fail: keys are texts, and memory takes everything.
            let _ = serde_json::to_writer(&mut *self.text, name);
            self.text.push(b':');
            let _ = serde_json::to_writer(&mut *self.text, value);
        }
    }

    pub(super) fn end(self) {
        self.text.push(b'}');
    }
}

/// Whether there are schemas for the kinds of a group's version: there are none for metrics.
fn is_described(kinds: &Set, group: &str, version: &str) -> bool {
    kinds.of_group_version(group, version).iter().any(|info| !matches!(info.storage, Storage::Computed))
}

/// The version of all documents: changes whenever a document may: with the program's version, the served kinds and the table of types.
pub fn openapi_hash(kinds: &Set) -> String {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| {
        hex(Sha256::new()
            .chain_update(env!("CARGO_PKG_VERSION"))
            .chain_update(include_bytes!("types.txt"))
            .chain_update(include_bytes!("openapi.rs")))
    });
    let mut digest = Sha256::new().chain_update(program);
    for kind in kinds.all() {
        digest.update(format!(
            "{kind:?}{:?}{:?}{:?}",
            kind.subresources.iter().map(|found| found.name).collect::<Vec<_>>(),
            kind.schema,
            kind.custom.as_ref().map(|custom| (custom.preserves_unknown, &custom.schema.version.selectable))
        ));
        if let Some(custom) = &kind.custom {
            digest.update(&custom.schema.version.source);
        }
    }
    hex(digest)
}

fn hex(digest: Sha256) -> String {
    digest.finalize().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02X}");
        text
    })
}

fn place(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

/// The schemas of kinds with a type, and of the types that they and others use.
pub(super) fn typed_schemas(found: &[&Arc<Kind>], openapi: OpenApi) -> Map<String, Value> {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    for info in found {
        info.described_by.iter().for_each(|describe| describe(&mut generator));
    }
    generator.subschema_for::<meta::DeleteOptions>();
    generator.subschema_for::<meta::Status>();
    generator.subschema_for::<meta::ObjectMeta>();
    generator.subschema_for::<meta::ListMeta>();
    if found.iter().any(|info| info.subresource("scale").is_some()) {
        generator.subschema_for::<Scale>();
    }
    let mut schemas = generator.take_definitions(false);
    for (name, schema) in &mut schemas {
        polish(schema);
        let any = name.strip_prefix(ANYTHING).is_some_and(|name| name == "JSON" || name.starts_with("JSONSchemaPropsOr"));
        if let Some(members) = schema.as_object_mut().filter(|_| any) {
            members.shift_remove("type");
        }
        if let Some(go_type) = types::find(name) {
            add_extensions(go_type, schema);
        }
    }
    if openapi == OpenApi::V2 {
        schemas.values_mut().for_each(downgrade);
    }
    for info in found.iter().filter(|info| !info.described_by.is_empty()) {
        if let Some(schema) = schemas.get_mut(&*schema_name(info)) {
            mark(info, schema);
        }
        if info.verbs.contains(&"list") {
            schemas.insert(list_name(info), list_schema(info, openapi));
        }
    }
    if let Some(schema) = schemas.get_mut(SCALE.0) {
        schema["x-kubernetes-group-version-kind"] = json!([gvk(SCALE.1, SCALE.2, SCALE.3)]);
    }
    schemas.insert(
        PATCH_TYPE.into(),
        json!({"description": "Patch is provided to give a concrete name and type to the Kubernetes PATCH request body.", "type": "object"}),
    );
    schemas
}

/// The schemas of a kind without a type, such as a custom one; none of others.
pub(super) fn open_schemas(info: &Kind, openapi: OpenApi) -> Map<String, Value> {
    let mut schemas = Map::new();
    if !info.described_by.is_empty() {
        return schemas;
    }
    let open = || json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let published = |custom: &Custom| publish::schema(&custom.schema.version.openapi(), custom.preserves_unknown, openapi);
    let mut schema = info.custom.as_ref().map_or_else(open, published);
    mark(info, &mut schema);
    schemas.insert(schema_name(info).into_owned(), schema);
    if info.verbs.contains(&"list") {
        schemas.insert(list_name(info), list_schema(info, openapi));
    }
    schemas
}

/// Says of which kind a schema is.
fn mark(info: &Kind, schema: &mut Value) {
    schema["x-kubernetes-group-version-kind"] = json!([gvk(&info.group, &info.version, &info.kind)]);
    add_selectable(info, schema);
}

/// The name of a kind's schema: its type's, or as upstream names what it knows no type of (`com.example.v1.Thing`).
fn schema_name(kind: &Kind) -> Cow<'static, str> {
    kind.schema_type().map_or_else(
        || {
            let group: Vec<&str> = kind.group.rsplit('.').collect();
            format!("{}.{}.{}", group.join("."), kind.version, kind.kind).into()
        },
        Cow::Borrowed,
    )
}

/// The name of the schema of a kind's lists.
fn list_name(kind: &Kind) -> String {
    match &kind.custom {
        Some(_) => {
            let name = schema_name(kind);
            format!("{}{}", name.strip_suffix(&*kind.kind).unwrap_or(&name), kind.list_kind)
        }
        None => format!("{}List", schema_name(kind)),
    }
}

fn list_schema(info: &Kind, openapi: OpenApi) -> Value {
    let conventions = "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md";
    let prefix = if openapi == OpenApi::V2 { "#/definitions/" } else { REF };
    let items = json!({
        "description": format!("List of {}. More info: {conventions}", info.plural),
        "type": "array", "items": {"$ref": format!("{prefix}{}", schema_name(info))},
    });
    let metadata = openapi.reference(LIST_META, &format!("Standard list metadata. More info: {conventions}#types-kinds"));
    let mut schema = json!({
        "description": format!("{} is a list of {}", info.list_kind, info.kind),
        "type": "object",
        "required": ["items"],
        "properties": {"items": items, "metadata": metadata},
        "x-kubernetes-group-version-kind": [gvk(&info.group, &info.version, &info.list_kind)],
    });
    for (name, property) in publish::type_meta() {
        schema["properties"][name] = property;
    }
    add_selectable(info, &mut schema);
    schema
}

/// Fields of custom resources that field selectors may name.
fn add_selectable(kind: &Kind, schema: &mut Value) {
    if let Some(fields) = kind.custom.as_ref().and_then(|custom| publish::selectable_fields(&custom.schema.version.selectable)) {
        schema["x-kubernetes-selectable-fields"] = fields;
    }
}

/// OpenAPI 3.0 ignores what stands beside a `$ref`, so upstream wraps it in `allOf`; our schemas follow.
fn polish(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            // The schema of schemas has properties of these names, which are no references and no marks.
            if members.len() > 1
                && members.get("$ref").is_some_and(Value::is_string)
                && let Some(reference) = members.shift_remove("$ref")
            {
                members.insert("allOf".into(), json!([{"$ref": reference}]));
            }
            if members.get("x-kubernetes-int-or-string").is_some_and(|marked| *marked == true) {
                members.insert("format".into(), "int-or-string".into());
                members.insert("oneOf".into(), json!([{"type": "integer"}, {"type": "string"}]));
            }
            members.values_mut().for_each(polish);
        }
        Value::Array(items) => items.iter_mut().for_each(polish),
        _ => {}
    }
}

fn add_extensions(go_type: &GoType, schema: &mut Value) {
    if go_type.atomic {
        schema["x-kubernetes-map-type"] = "atomic".into();
    }
    // k8s-openapi requires metadata of every kind; upstream does not.
    if let Some(Value::Array(required)) = schema.get_mut("required") {
        required.retain(|name| name != "metadata" || go_type.field("metadata").is_none_or(|field| !field.omit_empty()));
        if required.is_empty()
            && let Some(members) = schema.as_object_mut()
        {
            members.shift_remove("required");
        }
    }
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else { return };
    for field in &go_type.fields {
        if let Some(Value::Object(property)) = properties.get_mut(field.name) {
            add_field_extensions(field, property);
        }
    }
}

fn add_field_extensions(field: &Field, property: &mut Map<String, Value>) {
    if let Some((list, keys)) = field.list_type() {
        if !keys.is_empty() {
            property.insert("x-kubernetes-list-map-keys".into(), json!(keys));
        }
        property.insert("x-kubernetes-list-type".into(), list.into());
    }
    if field.map_atomic() {
        property.insert("x-kubernetes-map-type".into(), "atomic".into());
    }
    if let Some(key) = field.merge_key() {
        property.insert("x-kubernetes-patch-merge-key".into(), key.into());
    }
    if let Some(strategy) = field.patch_strategy() {
        property.insert("x-kubernetes-patch-strategy".into(), strategy.into());
    }
}

fn gvk(group: &str, version: &str, kind: &str) -> Value {
    json!({"group": group, "kind": kind, "version": version})
}

/// The paths of a kind, by name.
pub(super) fn paths_of(info: &Kind) -> Map<String, Value> {
    let mut paths = Map::new();
    let base = format!("/{}", place(&info.group, &info.version));
    let collection = if info.namespaced { format!("{base}/namespaces/{{namespace}}/{}", info.plural) } else { format!("{base}/{}", info.plural) };
    if info.verbs.contains(&"get") {
        paths.insert(format!("{collection}/{{name}}"), item_path(info));
    }
    for subresource in &info.subresources {
        let body = match subresource.route {
            Route::Status | Route::Part(_) => schema_name(info),
            Route::Scale(_) => Cow::Borrowed(SCALE.0),
            _ => continue,
        };
        let mut path = part_path(info, &body);
        if let Some(methods) = path.as_object_mut() {
            methods.retain(|method, _| subresource.verbs.contains(&if method == "put" { "update" } else { method.as_str() }));
        }
        paths.insert(format!("{collection}/{{name}}/{}", subresource.name), path);
    }
    if info.namespaced && info.verbs.contains(&"list") {
        paths.insert(format!("{base}/{}", info.plural), json!({"get": operation(info, "list", &list_name(info))}));
    }
    paths.insert(collection, collection_path(info));
    paths.sort_keys();
    paths
}

fn collection_path(info: &Kind) -> Value {
    let mut path = Map::new();
    if info.verbs.contains(&"list") {
        path.insert("get".into(), operation(info, "list", &list_name(info)));
    }
    if info.verbs.contains(&"deletecollection") {
        path.insert("delete".into(), operation(info, "deletecollection", STATUS));
    }
    let mut post = operation(info, "post", &schema_name(info));
    post["requestBody"] = json!({"required": true, "content": {"*/*": {"schema": {"$ref": format!("{REF}{}", schema_name(info))}}}});
    path.insert("post".into(), post);
    path.into()
}

fn item_path(info: &Kind) -> Value {
    let mut path = part_path(info, &schema_name(info));
    path["delete"] = operation(info, "delete", STATUS);
    path
}

/// Reading and writing of an object or a part of it, as a `body` of this type.
fn part_path(info: &Kind, body: &str) -> Value {
    let mut put = operation(info, "put", body);
    put["requestBody"] = json!({"required": true, "content": {"*/*": {"schema": {"$ref": format!("{REF}{body}")}}}});
    let mut patch = operation(info, "patch", body);
    let content = json!({"schema": {"$ref": format!("{REF}{PATCH_TYPE}")}});
    let mut types = vec!["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"];
    if info.custom.is_none() {
        types.insert(2, "application/strategic-merge-patch+json");
    }
    let contents: Map<String, Value> = types.into_iter().map(|name| (name.to_string(), content.clone())).collect();
    patch["requestBody"] = json!({"required": true, "content": contents});
    json!({"get": operation(info, "get", body), "put": put, "patch": patch})
}

fn operation(info: &Kind, action: &str, answer: &str) -> Value {
    let parameter = |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}});
    let names: &[&str] = match action {
        "post" | "put" => &["dryRun", "fieldManager", "fieldValidation"],
        "patch" => &["dryRun", "fieldManager", "fieldValidation", "force"],
        "delete" => &["dryRun", "propagationPolicy"],
        "list" | "deletecollection" => &["continue", "fieldSelector", "labelSelector", "limit", "resourceVersion", "watch"],
        _ => &[],
    };
    json!({
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": gvk(&info.group, &info.version, &info.kind),
        "parameters": names.iter().map(|name| parameter(name)).collect::<Vec<_>>(),
        "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": {"$ref": format!("{REF}{answer}")}}}}},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::builtin;
    use crate::schema::types::{Level, Shape};

    /// What upstream's test of published schemas compares.
    #[test]
    fn version_2_has_every_kind_and_its_paths() {
        let document: Value = serde_json::from_slice(&crate::schema::openapi_v2(builtin())).unwrap();
        let definitions = document["definitions"].as_object().unwrap();
        for kind in builtin().all().filter(|kind| !kind.described_by.is_empty()) {
            let name = schema_name(kind);
            let of = definitions[&*name]["x-kubernetes-group-version-kind"].as_array().unwrap();
            assert!(of.contains(&gvk(&kind.group, &kind.version, &kind.kind)), "{name}");
        }
        let pod = &definitions["io.k8s.api.core.v1.Pod"]["properties"];
        assert_eq!(pod["spec"]["$ref"], "#/definitions/io.k8s.api.core.v1.PodSpec");
        assert!(pod["spec"]["description"].is_string());
        let target = &definitions["io.k8s.apimachinery.pkg.util.intstr.IntOrString"];
        assert_eq!((&target["type"], &target["format"], target.get("oneOf")), (&json!("string"), &json!("int-or-string"), None));
        let patch = &document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
        assert_eq!(
            patch["parameters"][0],
            json!({"in": "body", "name": "body", "required": true, "schema": {"$ref": format!("#/definitions/{PATCH_TYPE}")}})
        );
        assert!(patch["consumes"].as_array().unwrap().contains(&json!("application/strategic-merge-patch+json")));
        assert!(patch["parameters"].as_array().unwrap().iter().any(|found| found["name"] == "fieldValidation"));
        let text = document.to_string();
        assert!(!text.contains("#/components/"), "references of the other version");
        for reference in text.split("\"$ref\":\"#/definitions/").skip(1) {
            let name = reference.split('"').next().unwrap();
            assert!(definitions.contains_key(name), "{name} is missing");
        }
    }

    fn document(group: &str) -> Value {
        serde_json::from_slice(&openapi_v3(builtin(), group, "v1").unwrap()).unwrap()
    }

    /// Every `$ref` leads somewhere.
    fn check_references(schemas: &Map<String, Value>, value: &Value) {
        match value {
            Value::Object(members) => {
                if let Some(reference) = members.get("$ref").and_then(Value::as_str) {
                    let name = reference.strip_prefix(REF).unwrap();
                    assert!(schemas.contains_key(name), "{name} is missing");
                }
                members.values().for_each(|member| check_references(schemas, member));
            }
            Value::Array(items) => items.iter().for_each(|item| check_references(schemas, item)),
            _ => {}
        }
    }

    #[test]
    fn every_document_is_whole() {
        for (place, entry) in openapi_v3_index(builtin())["paths"].as_object().unwrap() {
            let group = place.strip_prefix("apis/").map_or("", |rest| rest.split('/').next().unwrap());
            assert!(entry["serverRelativeURL"].as_str().unwrap().starts_with(&format!("/openapi/v3/{place}?hash=")));
            let document = document(group);
            check_references(document["components"]["schemas"].as_object().unwrap(), &document);
            for info in builtin().of_group_version(group, "v1") {
                assert!(document["components"]["schemas"].get(&*schema_name(info)).is_some(), "{} has no schema", info.kind);
            }
        }
        assert!(openapi_v3(builtin(), "extensions", "v1beta1").is_none());
    }

    #[test]
    fn the_table_of_types_agrees_with_the_schemas() {
        for group in builtin().groups().iter().filter(|group| is_described(builtin(), &group.name, &group.versions[0])) {
            for (name, schema) in document(&group.name)["components"]["schemas"].as_object().unwrap() {
                let (Some(go_type), Some(properties)) = (types::find(name), schema.get("properties")) else { continue };
                let ours: BTreeSet<&str> = go_type.fields.iter().map(|field| field.name).collect();
                let theirs: BTreeSet<&str> = properties.as_object().unwrap().keys().map(String::as_str).collect();
                assert_eq!(ours, theirs, "{name}");
                for field in &go_type.fields {
                    assert_eq!(kind_of_shape(field.shape), kind_of_schema(&properties[field.name]), "{name}.{}", field.name);
                }
            }
        }
    }

    fn kind_of_shape(shape: Shape) -> String {
        match shape.level() {
            Level::List(inner) => format!("[{}]", kind_of_shape(inner)),
            Level::Map(inner) => format!("{{{}}}", kind_of_shape(inner)),
            Level::Object(name) => name.to_string(),
            Level::Leaf("string" | "bytes") => "string".into(),
            Level::Leaf("time") => "io.k8s.apimachinery.pkg.apis.meta.v1.Time".into(),
            Level::Leaf("microtime") => "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime".into(),
            Level::Leaf("quantity") => "io.k8s.apimachinery.pkg.api.resource.Quantity".into(),
            Level::Leaf("intorstring") => "io.k8s.apimachinery.pkg.util.intstr.IntOrString".into(),
            Level::Leaf("bool") => "boolean".into(),
            Level::Leaf("int32" | "int64" | "int") => "integer".into(),
            Level::Leaf("raw") => "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1".into(),
            Level::Leaf("float64") => "number".into(),
            Level::Leaf("json") => format!("{ANYTHING}JSON"),
            Level::Leaf("schemaorbool") => format!("{ANYTHING}JSONSchemaPropsOrBool"),
            Level::Leaf("schemaorarray") => format!("{ANYTHING}JSONSchemaPropsOrArray"),
            Level::Leaf("schemaorstrings") => format!("{ANYTHING}JSONSchemaPropsOrStringArray"),
            Level::Leaf("extension") => "io.k8s.apimachinery.pkg.runtime.RawExtension".into(),
            Level::Leaf(other) => other.to_string(),
        }
    }

    fn kind_of_schema(schema: &Value) -> String {
        if let Some(reference) = schema.get("$ref").or_else(|| schema.pointer("/allOf/0/$ref")) {
            return reference.as_str().unwrap().trim_start_matches(REF).to_string();
        }
        match schema["type"].as_str().unwrap_or_default() {
            "array" => format!("[{}]", kind_of_schema(&schema["items"])),
            "object" if schema.get("additionalProperties").is_some() => format!("{{{}}}", kind_of_schema(&schema["additionalProperties"])),
            other => other.to_string(),
        }
    }

    #[test]
    fn patches_are_described_as_kubectl_looks_for_them() {
        let document = document("apps");
        let patch = &document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
        assert_eq!(patch["x-kubernetes-group-version-kind"], json!({"group": "apps", "version": "v1", "kind": "Deployment"}));
        let parameters: Vec<&str> = patch["parameters"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect();
        assert!(parameters.contains(&"fieldValidation") && parameters.contains(&"dryRun"));
        assert!(patch["requestBody"]["content"].get("application/strategic-merge-patch+json").is_some());
        let containers = &document["components"]["schemas"]["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
        assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
        assert_eq!(containers["x-kubernetes-list-map-keys"], json!(["name"]));
        let deployment = &document["components"]["schemas"]["io.k8s.api.apps.v1.Deployment"];
        assert_eq!(deployment["x-kubernetes-group-version-kind"][0]["kind"], "Deployment");
        assert!(deployment.get("required").is_none(), "metadata is not required");
        assert!(deployment["description"].as_str().unwrap().starts_with("Deployment enables"));
    }
}
