//! Server-side apply of custom resources and of their definitions, and what their OpenAPI documents say
//! (upstream: test/integration/apiserver/apply/apply_crd_test.go, test/e2e/apimachinery/crd_publish_openapi.go).

mod common;

use common::TestServer;
use http::Request;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tower::ServiceExt;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const DEFINITION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/noxus.mygroup.example.com";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

struct Answer {
    code: u16,
    warnings: Vec<String>,
    tag: String,
    body: Value,
}

impl Answer {
    fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }
}

async fn send(server: &TestServer, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
    let request = headers.iter().fold(Request::builder().method(method).uri(path), |request, (name, value)| request.header(*name, *value));
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = request.body(Full::new(bytes::Bytes::from(body))).unwrap();
    let (parts, body) = server.service("admin", &["system:masters"]).oneshot(request).await.unwrap().into_parts();
    let text = |value: &http::HeaderValue| value.to_str().unwrap().to_string();
    let warnings = parts.headers.get_all("warning").iter().map(text).collect();
    let tag = parts.headers.get("etag").map(text).unwrap_or_default();
    let bytes = body.collect().await.unwrap().to_bytes();
    Answer { code: parts.status.as_u16(), warnings, tag, body: serde_json::from_slice(&bytes).unwrap_or_default() }
}

async fn write(server: &TestServer, method: &str, path: &str, content_type: &str, body: &Value) -> Answer {
    send(server, method, path, &[("content-type", content_type)], body).await
}

async fn get(server: &TestServer, path: &str) -> Answer {
    send(server, "GET", path, &[], &Value::Null).await
}

fn definition(versions: Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "noxus.mygroup.example.com"},
        "spec": {
            "group": "mygroup.example.com", "scope": "Cluster",
            "names": {"plural": "noxus", "kind": "Noxu", "listKind": "NoxuItemList"}, "versions": versions,
        },
    })
}

fn version(name: &str, storage: bool, schema: Value) -> Value {
    json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": schema}})
}

fn structural() -> Value {
    json!({"type": "object", "description": "A Noxu for tests", "properties": {"spec": {
        "type": "object",
        "description": "Specification of Noxu",
        "x-kubernetes-preserve-unknown-fields": true,
        "properties": {
            "cronSpec": {"type": "string", "pattern": r"^(\d+|\*)(/\d+)?(\s+(\d+|\*)(/\d+)?){4}$"},
            "ports": {
                "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["containerPort", "protocol"],
                "items": {"type": "object", "required": ["containerPort"], "properties": {
                    "containerPort": {"type": "integer"}, "name": {"type": "string"}, "protocol": {"type": "string", "default": "TCP"},
                }},
            },
            "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "order": {"type": "array", "x-kubernetes-list-type": "atomic", "items": {"type": "string"}},
            "selector": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {"type": "string"}},
        },
    }}})
}

fn noxu(version: &str, spec: Value) -> Value {
    json!({"apiVersion": format!("mygroup.example.com/{version}"), "kind": "Noxu", "metadata": {"name": "mytest"}, "spec": spec})
}

async fn apply(server: &TestServer, version: &str, options: &str, spec: Value) -> Answer {
    let path = format!("/apis/mygroup.example.com/{version}/noxus/mytest?{options}");
    write(server, "PATCH", &path, APPLY, &noxu(version, spec)).await
}

async fn defined(versions: Value) -> TestServer {
    let server = TestServer::start().await;
    let made = write(&server, "POST", DEFINITIONS, "application/json", &definition(versions)).await;
    assert_eq!(made.code, 201, "{}", made.message());
    server
}

#[tokio::test]
async fn lists_and_maps_merge_as_the_schema_says_in_every_version() {
    let server = defined(json!([version("v1beta1", true, structural()), version("v1", false, structural())])).await;
    for version in ["v1beta1", "v1"] {
        let path = format!("/apis/mygroup.example.com/{version}/noxus/mytest");
        let port = |number: u16, name: &str| json!({"name": name, "containerPort": number});
        let config =
            json!({"cronSpec": "* * * * */5", "replicas": 1, "ports": [port(80, "x")], "tags": ["a"], "order": ["1"], "selector": {"a": "1"}});
        let made = apply(&server, version, "fieldManager=apply_test", config.clone()).await;
        assert_eq!(made.code, 201, "{}", made.message());
        assert_eq!(made.body["spec"]["ports"], json!([{"name": "x", "containerPort": 80, "protocol": "TCP"}]));
        // A plain write takes a field: applying it again conflicts, unless it is forced.
        let changed = write(&server, "PATCH", &path, MERGE, &json!({"spec": {"replicas": 5}})).await;
        assert_eq!((changed.code, &changed.body["spec"]["replicas"]), (200, &json!(5)));
        let conflict = apply(&server, version, "fieldManager=apply_test", config.clone()).await;
        assert_eq!((conflict.code, conflict.body["details"]["causes"].as_array().unwrap().len()), (409, 1), "{}", conflict.message());
        assert_eq!(conflict.body["details"]["causes"][0]["field"], ".spec.replicas");
        let forced = apply(&server, version, "fieldManager=apply_test&force=true", config.clone()).await;
        assert_eq!((forced.code, &forced.body["spec"]["replicas"]), (200, &json!(1)));
        // Another manager adds an item, and shares one that it leaves as it is.
        let more = json!({"ports": [port(8080, "y")], "tags": ["b"]});
        let added = apply(&server, version, "fieldManager=other", more).await;
        assert_eq!(added.code, 200, "{}", added.message());
        let ports: Vec<&str> = added.body["spec"]["ports"].as_array().unwrap().iter().map(|port| port["name"].as_str().unwrap()).collect();
        assert_eq!((ports, &added.body["spec"]["tags"]), (vec!["x", "y"], &json!(["a", "b"])));
        let renamed = apply(&server, version, "fieldManager=other", json!({"ports": [port(80, "z")]})).await;
        assert_eq!(renamed.code, 409);
        assert_eq!(
            renamed.message(),
            r#"Apply failed with 1 conflict: conflict with "apply_test": .spec.ports[containerPort=80,protocol="TCP"].name"#
        );
        // Atomic lists and maps have one owner.
        let atomic = apply(&server, version, "fieldManager=other", json!({"order": ["2"], "selector": {"b": "2"}})).await;
        let fields: Vec<&str> = atomic.body["details"]["causes"].as_array().unwrap().iter().map(|cause| cause["field"].as_str().unwrap()).collect();
        assert_eq!(fields, [".spec.order", ".spec.selector"]);
        // What a manager applies no more goes, item by item.
        let less = apply(&server, version, "fieldManager=other", json!({"tags": ["b"]})).await;
        assert_eq!(less.body["spec"]["ports"].as_array().unwrap().len(), 1, "{}", less.body["spec"]);
        let twice = apply(&server, version, "fieldManager=other", json!({"ports": [port(1, "a"), port(1, "b")]})).await;
        assert_eq!(twice.code, 500);
        assert!(twice.message().contains("duplicate entries for key"), "{}", twice.message());
        assert_eq!(write(&server, "DELETE", &path, "application/json", &Value::Null).await.code, 200);
    }
    server.stop().await;
}

#[tokio::test]
async fn unknown_fields_of_applied_objects_are_refused() {
    let closed = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "string"}}}}});
    let server = defined(json!([version("v1", true, closed)])).await;
    let unknown = apply(&server, "v1", "fieldManager=one", json!({"a": "x", "b": 1})).await;
    assert_eq!(unknown.code, 500);
    assert!(
        unknown
            .message()
            .contains("failed to create typed patch object (/mytest; mygroup.example.com/v1, Kind=Noxu): .spec.b: field not declared in schema"),
        "{}",
        unknown.message()
    );
    let wrong = apply(&server, "v1", "fieldManager=one", json!({"a": 1})).await;
    assert_eq!(wrong.code, 500);
    assert!(wrong.message().contains(".spec.a: expected string, got &value.valueUnstructured{Value:1}"), "{}", wrong.message());
    server.stop().await;
}

#[tokio::test]
async fn fields_are_validated_in_metadata_and_embedded_objects_too() {
    let template = json!({"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object"}}});
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
        "properties": {"template": template, "foo": {"type": "string"}}}}});
    let server = defined(json!([version("v1", true, schema)])).await;
    let mut odd = noxu("v1", json!({"template": {"apiVersion": "foo/v1", "kind": "Sub", "metadata": {"name": "s", "unknownSubMeta": 1}}}));
    odd["metadata"]["unknownMeta"] = json!("x");
    let (noxus, mytest) = ("/apis/mygroup.example.com/v1/noxus", "/apis/mygroup.example.com/v1/noxus/mytest");
    let strict = write(&server, "POST", &format!("{noxus}?fieldValidation=Strict"), "application/json", &odd).await;
    let expected = r#"strict decoding error: unknown field "metadata.unknownMeta", unknown field "spec.template.metadata.unknownSubMeta""#;
    assert!(strict.code == 400 && strict.message().ends_with(expected), "{}", strict.message());
    let made = write(&server, "POST", noxus, "application/json", &odd).await;
    assert_eq!((made.code, made.warnings.len(), &made.body["spec"]["template"]["metadata"]), (201, 2, &json!({"name": "s"})));
    let wrong = write(&server, "PATCH", mytest, MERGE, &json!({"metadata": {"labels": {"a": 1}}})).await;
    assert!(wrong.message().contains("cannot unmarshal number into Go struct field ObjectMeta.labels of type string"), "{}", wrong.message());
    let applied = write(&server, "PATCH", &format!("{mytest}?fieldManager=m&fieldValidation=Strict"), APPLY, &odd).await;
    assert!(applied.message().contains(".spec.template.metadata.unknownSubMeta: field not declared in schema"), "{}", applied.message());
    // Repetitions in YAML are named by their line.
    let text = "\napiVersion: mygroup.example.com/v1\nkind: Noxu\nmetadata:\n  name: mytest\nspec:\n  unknown: uk1\n  foo: foo1\n  foo: foo2\n";
    let request = Request::patch(format!("{mytest}?fieldManager=m&fieldValidation=Strict")).header("content-type", APPLY);
    let request = request.body(Full::new(bytes::Bytes::from_static(text.as_bytes()))).unwrap();
    let body = server.service("admin", &["system:masters"]).oneshot(request).await.unwrap().into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&body).contains(r#"line 9: key \"foo\" already set in map"#), "{body:?}");
    let finalizer = write(&server, "PATCH", mytest, MERGE, &json!({"metadata": {"finalizers": ["hold"]}})).await;
    assert!(finalizer.warnings[0].contains("prefer a domain-qualified finalizer name"), "{:?}", finalizer.warnings);
    server.stop().await;
}

#[tokio::test]
async fn definitions_are_decoded_as_their_type() {
    let server = TestServer::start().await;
    let mut odd = definition(json!([version(
        "v1",
        true,
        json!({"type": "object", "properties": {
            "spec": {"type": "object", "unknownHere": true, "properties": {"a": {"type": "string", "format": "colour"}},
                "x-kubernetes-preserve-unknown-fields": true},
            "list": {"type": "array", "items": {"type": "string", "unknownBelow": 1}},
            "map": {"type": "object", "additionalProperties": {"type": "string", "unknownToo": 1}},
        }})
    )]));
    odd["spec"]["unknownField"] = json!("x");
    odd["metadata"]["unknownMeta"] = json!("x");
    let path = format!("{DEFINITIONS}?fieldValidation=Strict");
    let strict = write(&server, "POST", &path, "application/json", &odd).await;
    assert_eq!(strict.code, 400);
    let expected = r#"strict decoding error: unknown field "metadata.unknownMeta", unknown field "spec.unknownField", unknown field "spec.versions[0].schema.openAPIV3Schema.properties.spec.unknownHere""#;
    let mut found: Vec<&str> = strict.message().split_once("strict decoding error: ").unwrap().1.split(", ").collect();
    found.sort_unstable();
    assert_eq!(format!("strict decoding error: {}", found.join(", ")), expected);
    let made = write(&server, "POST", DEFINITIONS, "application/json", &odd).await;
    assert_eq!(made.code, 201, "{}", made.message());
    let schema = &made.body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    assert!(schema["spec"].get("unknownHere").is_none() && made.body["spec"].get("unknownField").is_none());
    assert_eq!((&schema["list"]["items"], &schema["map"]["additionalProperties"]), (&json!({"type": "string"}), &json!({"type": "string"})));
    assert_eq!(made.warnings.len(), 4, "{:?}", made.warnings);
    assert!(made.warnings.iter().any(|warning| warning == r#"299 - "unrecognized format \"colour\"""#), "{:?}", made.warnings);
    let wrong = write(&server, "PATCH", DEFINITION, MERGE, &json!({"spec": {"names": {"shortNames": "x"}}})).await;
    assert!(
        wrong
            .message()
            .contains("json: cannot unmarshal string into Go struct field CustomResourceDefinitionNames.spec.names.shortNames of type []string"),
        "{}",
        wrong.message()
    );
    let neither = write(
        &server,
        "POST",
        DEFINITIONS,
        "application/json",
        &definition(json!([version("v1", true, json!({"type": "object", "additionalProperties": 1}))])),
    )
    .await;
    assert!(neither.message().contains("boolean or JSON schema expected"), "{}", neither.message());
    server.stop().await;
}

#[tokio::test]
async fn definitions_are_applied_and_approved() {
    let server = TestServer::start().await;
    let path = format!("{DEFINITION}?fieldManager=helm");
    let versions = json!([version("v1", true, structural())]);
    let made = write(&server, "PATCH", &path, APPLY, &definition(versions.clone())).await;
    assert_eq!(made.code, 201, "{}", made.message());
    let again = write(&server, "PATCH", &path, APPLY, &definition(versions.clone())).await;
    assert_eq!(again.code, 200, "{}", again.message());
    let owners = get(&server, DEFINITION).await.body["metadata"]["managedFields"].clone();
    assert_eq!((owners[0]["manager"].as_str(), owners[0]["operation"].as_str()), (Some("helm"), Some("Apply")), "{owners}");
    let mut own = definition(versions);
    own["metadata"] = json!({"name": "noxus.mine.k8s.io", "annotations": {"api-approved.kubernetes.io": "unapproved, testing-only"}});
    own["spec"]["group"] = json!("mine.k8s.io");
    assert_eq!(write(&server, "POST", DEFINITIONS, "application/json", &own).await.code, 201);
    let found = get(&server, &format!("{DEFINITIONS}/noxus.mine.k8s.io")).await.body;
    let condition = found["status"]["conditions"].as_array().unwrap().last().unwrap();
    let texts: Vec<&str> = ["type", "status", "reason", "message"].iter().map(|name| condition[*name].as_str().unwrap()).collect();
    assert_eq!(texts, ["KubernetesAPIApprovalPolicyConformant", "False", "UnapprovedAnnotation", r#"not approved: "unapproved, testing-only""#]);
    server.stop().await;
}

#[tokio::test]
async fn published_schemas_follow_the_definitions() {
    let server = defined(json!([
        version("v2", true, structural()),
        version("v3", false, json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}))
    ]))
    .await;
    let document = get(&server, "/openapi/v2").await;
    assert_eq!(document.code, 200);
    let definitions = &document.body["definitions"];
    let noxu = &definitions["com.example.mygroup.v2.Noxu"];
    assert_eq!(noxu["x-kubernetes-group-version-kind"], json!([{"group": "mygroup.example.com", "kind": "Noxu", "version": "v2"}]));
    assert_eq!(noxu["description"], "A Noxu for tests");
    assert_eq!(noxu["properties"]["spec"], json!({"description": "Specification of Noxu", "x-kubernetes-preserve-unknown-fields": true}));
    assert_eq!(definitions["com.example.mygroup.v3.Noxu"]["type"], "object");
    assert!(definitions["com.example.mygroup.v3.Noxu"].get("properties").is_none());
    let list = &definitions["com.example.mygroup.v2.NoxuItemList"]["properties"];
    assert_eq!(list["items"]["items"]["$ref"], "#/definitions/com.example.mygroup.v2.Noxu");
    assert!(document.body["paths"].get("/apis/mygroup.example.com/v2/noxus/{name}").is_some());
    let same = send(&server, "GET", "/openapi/v2", &[("if-none-match", document.tag.as_str())], &Value::Null).await;
    assert_eq!((same.code, &same.body), (304, &Value::Null));
    // A version that is renamed, and one that is not served any more.
    let rename = json!([{"op": "replace", "path": "/spec/versions/1/name", "value": "v4"}]);
    assert_eq!(write(&server, "PATCH", DEFINITION, "application/json-patch+json", &rename).await.code, 200);
    let changed = send(&server, "GET", "/openapi/v2", &[("if-none-match", document.tag.as_str())], &Value::Null).await;
    assert_eq!(changed.code, 200);
    assert!(changed.body["definitions"].get("com.example.mygroup.v4.Noxu").is_some());
    assert!(changed.body["definitions"].get("com.example.mygroup.v3.Noxu").is_none());
    let hide = json!([{"op": "replace", "path": "/spec/versions/1/served", "value": false}]);
    assert_eq!(write(&server, "PATCH", DEFINITION, "application/json-patch+json", &hide).await.code, 200);
    assert!(get(&server, "/openapi/v2").await.body["definitions"].get("com.example.mygroup.v4.Noxu").is_none());
    // Version 3, which kubectl explains from.
    let third = get(&server, "/openapi/v3/apis/mygroup.example.com/v2").await.body;
    let schemas = &third["components"]["schemas"];
    let metadata = &schemas["com.example.mygroup.v2.Noxu"]["properties"]["metadata"];
    assert_eq!(metadata["allOf"][0]["$ref"], "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta");
    assert!(metadata["description"].as_str().unwrap().starts_with("Standard object's metadata. More info: "));
    let created = &schemas["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"]["properties"]["creationTimestamp"];
    assert!(created["description"].as_str().unwrap().starts_with("CreationTimestamp is a timestamp"));
    server.stop().await;
}
