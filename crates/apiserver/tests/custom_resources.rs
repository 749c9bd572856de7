//! Custom resources over HTTP: definitions, the objects that they define, and the end of both.

mod common;

use common::TestServer;
use futures::StreamExt;
use http::Request;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tower::ServiceExt;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const DEFINITION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/crontabs.stable.example.com";
const CRON_TABS: &str = "/apis/stable.example.com/v1/namespaces/default/crontabs";
const MERGE: &str = "application/merge-patch+json";

struct Answer {
    code: u16,
    warnings: Vec<String>,
    body: Value,
}

impl Answer {
    fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }
}

async fn send(server: &TestServer, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = request.body(Full::new(bytes::Bytes::from(body))).unwrap();
    let (parts, body) = server.service("admin", &["system:masters"]).oneshot(request).await.unwrap().into_parts();
    let warnings = parts.headers.get_all("warning").iter().map(|value| value.to_str().unwrap().to_string()).collect();
    let bytes = body.collect().await.unwrap().to_bytes();
    Answer { code: parts.status.as_u16(), warnings, body: serde_json::from_slice(&bytes).unwrap_or_default() }
}

async fn post(server: &TestServer, path: &str, body: &Value) -> Answer {
    send(server, "POST", path, &[("content-type", "application/json")], body).await
}

async fn patch(server: &TestServer, path: &str, body: &Value) -> Answer {
    send(server, "PATCH", path, &[("content-type", MERGE)], body).await
}

async fn get(server: &TestServer, path: &str) -> Value {
    send(server, "GET", path, &[], &Value::Null).await.body
}

async fn delete(server: &TestServer, path: &str) -> Answer {
    send(server, "DELETE", path, &[], &Value::Null).await
}

fn version(name: &str, storage: bool) -> Value {
    json!({
        "name": name, "served": true, "storage": storage,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {
            "spec": {
                "type": "object",
                "required": ["schedule"],
                "x-kubernetes-validations": [{"rule": "self.replicas <= 10", "message": "too many replicas"}],
                "properties": {
                    "schedule": {"type": "string", "pattern": "^[0-9* ]+$"},
                    "replicas": {"type": "integer", "default": 1, "x-kubernetes-validations": [{"rule": "self >= oldSelf", "message": "may not shrink"}]},
                },
            },
            "status": {"type": "object", "properties": {"replicas": {"type": "integer"}, "selector": {"type": "string"}}},
        }}},
        "subresources": {"status": {}, "scale": {
            "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector",
        }},
        "additionalPrinterColumns": [
            {"name": "Schedule", "type": "string", "jsonPath": ".spec.schedule"},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        ],
        "selectableFields": [{"jsonPath": ".spec.schedule"}],
    })
}

fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "crontabs.stable.example.com"},
        "spec": {
            "group": "stable.example.com", "scope": "Namespaced",
            "names": {"plural": "crontabs", "kind": "CronTab", "shortNames": ["ct"], "categories": ["all"]},
            "versions": [version("v1", true)],
        },
    })
}

fn cron_tab(name: &str) -> Value {
    json!({"apiVersion": "stable.example.com/v1", "kind": "CronTab", "metadata": {"name": name}, "spec": {"schedule": "* * *"}})
}

async fn defined() -> TestServer {
    let server = TestServer::start().await;
    let made = post(&server, DEFINITIONS, &definition()).await;
    assert_eq!(made.code, 201, "{}", made.message());
    server
}

#[tokio::test]
async fn a_definition_is_established_and_served() {
    let server = TestServer::start().await;
    assert_eq!(send(&server, "GET", CRON_TABS, &[], &Value::Null).await.code, 404);
    assert_eq!(get(&server, DEFINITIONS).await["kind"], "CustomResourceDefinitionList");
    assert_eq!(post(&server, DEFINITIONS, &definition()).await.code, 201);

    let found = get(&server, DEFINITION).await;
    let conditions: Vec<(&str, &str, &str)> = found["status"]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|condition| (condition["type"].as_str().unwrap(), condition["status"].as_str().unwrap(), condition["reason"].as_str().unwrap()))
        .collect();
    assert_eq!(conditions, [("NamesAccepted", "True", "NoConflicts"), ("Established", "True", "InitialNamesAccepted")]);
    assert_eq!(found["status"]["acceptedNames"]["listKind"], "CronTabList");
    assert_eq!(found["status"]["storedVersions"], json!(["v1"]));
    assert_eq!(found["metadata"]["finalizers"], json!(["customresourcecleanup.apiextensions.k8s.io"]));

    let resources = get(&server, "/apis/stable.example.com/v1").await["resources"].take();
    let names: Vec<&str> = resources.as_array().unwrap().iter().map(|resource| resource["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["crontabs", "crontabs/scale", "crontabs/status"]);
    assert_eq!(resources[0]["shortNames"], json!(["ct"]));
    let document = get(&server, "/openapi/v3/apis/stable.example.com/v1").await;
    let schema = &document["components"]["schemas"]["com.example.stable.v1.CronTab"];
    assert_eq!(schema["properties"]["spec"]["properties"]["schedule"]["type"], "string");
    assert!(document["components"]["schemas"].get("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").is_some());

    // What is served outlives a restart, objects included.
    assert_eq!(post(&server, CRON_TABS, &cron_tab("a")).await.code, 201);
    let server = server.restart().await;
    assert_eq!(get(&server, &format!("{CRON_TABS}/a")).await["spec"]["replicas"], 1);
    server.stop().await;
}

#[tokio::test]
async fn objects_are_pruned_defaulted_and_validated() {
    let server = defined().await;
    let mut object = cron_tab("a");
    object["spec"]["unknown"] = json!(1);
    let strict = post(&server, &format!("{CRON_TABS}?fieldValidation=Strict"), &object).await;
    assert_eq!(strict.code, 400);
    assert!(strict.message().ends_with(r#"strict decoding error: unknown field "spec.unknown""#), "{}", strict.message());
    let made = post(&server, CRON_TABS, &object).await;
    assert_eq!((made.code, &made.body["spec"]), (201, &json!({"schedule": "* * *", "replicas": 1})));
    assert!(made.warnings[0].contains("unknown field"), "{:?}", made.warnings);

    let refused = |spec: Value| {
        let server = &server;
        async move {
            let mut object = cron_tab("b");
            object["spec"] = spec;
            let answer = post(server, CRON_TABS, &object).await;
            assert_eq!(answer.code, 422);
            answer.message().to_string()
        }
    };
    assert_eq!(
        refused(json!({"replicas": "x"})).await,
        r#"CronTab.stable.example.com "b" is invalid: [spec.replicas: Invalid value: "string": spec.replicas in body must be of type integer: "string", spec.schedule: Required value, <nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation]"#
    );
    assert_eq!(
        refused(json!({"schedule": "never"})).await,
        r#"CronTab.stable.example.com "b" is invalid: spec.schedule: Invalid value: "never": spec.schedule in body should match '^[0-9* ]+$'"#
    );
    assert_eq!(
        refused(json!({"schedule": "*", "replicas": 11})).await,
        r#"CronTab.stable.example.com "b" is invalid: spec: Invalid value: too many replicas"#
    );

    let path = format!("{CRON_TABS}/a");
    let grown = patch(&server, &path, &json!({"spec": {"replicas": 5}})).await;
    assert_eq!((grown.code, &grown.body["metadata"]["generation"]), (200, &json!(2)));
    let shrunk = patch(&server, &path, &json!({"spec": {"replicas": 4}})).await;
    assert_eq!(shrunk.message(), r#"CronTab.stable.example.com "a" is invalid: spec.replicas: Invalid value: 4: may not shrink"#);
    server.stop().await;
}

#[tokio::test]
async fn schemas_are_compiled_only_while_objects_are_read_and_written() {
    let server = defined().await;
    let custom = server.kinds().find("stable.example.com", "v1", "crontabs").unwrap().custom.clone().unwrap();
    assert!(!custom.schema.is_compiled(), "nobody has asked for an object");
    let path = format!("{CRON_TABS}/a");
    assert_eq!(post(&server, CRON_TABS, &cron_tab("a")).await.body["spec"]["replicas"], 1);
    test_lab::until_async("a request compiles the schema", async || {
        get(&server, &path).await;
        custom.schema.is_compiled()
    })
    .await;
    for round in 2..4 {
        let release = || server.kinds().release_schemas(Instant::now() + Duration::from_secs(1));
        release();
        assert!(!custom.schema.is_compiled());
        let refused = patch(&server, &path, &json!({"spec": {"replicas": 11}})).await;
        assert_eq!((refused.code, refused.message().contains("too many replicas")), (422, true), "{}", refused.message());
        release();
        let grown = patch(&server, &path, &json!({"spec": {"replicas": round, "unknown": 1}})).await;
        assert_eq!((grown.code, &grown.body["spec"]), (200, &json!({"schedule": "* * *", "replicas": round})), "{}", grown.message());
    }
    server.stop().await;
}

#[tokio::test]
async fn a_definition_that_cannot_be_compiled_is_refused_when_it_is_written() {
    let server = defined().await;
    let with_rule = |rule: &str| {
        let mut bad = version("v1", true);
        bad["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"][0]["rule"] = json!(rule);
        json!([bad])
    };
    for (what, versions, why) in [
        ("a rule that is no expression", with_rule("self.replicas <="), "compilation failed"),
        ("a rule about no field", with_rule("self.unknown > 1"), "undefined field 'unknown'"),
        ("a schema without a type", json!([{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {}}}]), "must not be empty"),
    ] {
        let mut other = definition();
        other["metadata"]["name"] = json!("others.stable.example.com");
        other["spec"]["names"] = json!({"plural": "others", "kind": "Other"});
        other["spec"]["versions"] = versions.clone();
        let refused = post(&server, DEFINITIONS, &other).await;
        assert_eq!((refused.code, refused.message().contains(why)), (422, true), "{what}: {}", refused.message());
        let refused = patch(&server, DEFINITION, &json!({"spec": {"versions": versions}})).await;
        assert_eq!((refused.code, refused.message().contains(why)), (422, true), "{what}: {}", refused.message());
    }
    // What was accepted before is served as before, and says so.
    let found = get(&server, DEFINITION).await;
    let conditions = found["status"]["conditions"].as_array().unwrap();
    let conditions: Vec<_> = conditions.iter().map(|one| (one["type"].as_str().unwrap(), one["status"].as_str().unwrap())).collect();
    assert_eq!(conditions, [("NamesAccepted", "True"), ("Established", "True")]);
    let mut object = cron_tab("a");
    object["spec"]["replicas"] = json!(11);
    assert!(post(&server, CRON_TABS, &object).await.message().contains("too many replicas"));
    server.stop().await;
}

#[tokio::test]
async fn status_scale_tables_and_selectors_work() {
    let server = defined().await;
    post(&server, CRON_TABS, &cron_tab("a")).await;
    let path = format!("{CRON_TABS}/a");
    let status = json!({"spec": {"replicas": 9}, "status": {"replicas": 1, "selector": "app=a"}});
    let changed = patch(&server, &format!("{path}/status"), &status).await;
    assert_eq!((changed.code, &changed.body["spec"]["replicas"], &changed.body["status"]["replicas"]), (200, &json!(1), &json!(1)));
    assert_eq!(changed.body["metadata"]["generation"], 1);
    let main = patch(&server, &path, &json!({"status": {"replicas": 7}})).await;
    assert_eq!(main.body["status"]["replicas"], 1, "the main resource does not write the status");
    let scale = get(&server, &format!("{path}/scale")).await;
    assert_eq!((&scale["spec"]["replicas"], &scale["status"]), (&json!(1), &json!({"replicas": 1, "selector": "app=a"})));
    let scaled = patch(&server, &format!("{path}/scale"), &json!({"spec": {"replicas": 3}})).await;
    assert_eq!((scaled.code, &scaled.body["spec"]["replicas"]), (200, &json!(3)));
    assert_eq!(get(&server, &path).await["spec"]["replicas"], 3);

    let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table = send(&server, "GET", CRON_TABS, &accept, &Value::Null).await.body;
    let columns: Vec<&str> = table["columnDefinitions"].as_array().unwrap().iter().map(|column| column["name"].as_str().unwrap()).collect();
    assert_eq!((columns, &table["rows"][0]["cells"][1]), (vec!["Name", "Schedule", "Age"], &json!("* * *")));
    let selected = get(&server, &format!("{CRON_TABS}?fieldSelector=spec.schedule%3D1")).await;
    assert_eq!(selected["items"], json!([]));
    server.stop().await;
}

#[tokio::test]
async fn versions_convert_by_their_name() {
    let server = defined().await;
    post(&server, CRON_TABS, &cron_tab("a")).await;
    let versions = json!({"spec": {"versions": [version("v1", false), version("v2", true)]}});
    let changed = patch(&server, DEFINITION, &versions).await;
    assert_eq!(changed.code, 200, "{}", changed.message());
    assert_eq!(changed.body["status"]["storedVersions"], json!(["v1", "v2"]));
    let newer = "/apis/stable.example.com/v2/namespaces/default/crontabs";
    assert_eq!(get(&server, &format!("{newer}/a")).await["apiVersion"], "stable.example.com/v2");
    assert_eq!(get(&server, &format!("{CRON_TABS}/a")).await["apiVersion"], "stable.example.com/v1");
    let list = get(&server, newer).await;
    assert_eq!((&list["kind"], &list["items"][0]["apiVersion"]), (&json!("CronTabList"), &json!("stable.example.com/v2")));
    assert_eq!(post(&server, CRON_TABS, &cron_tab("b")).await.body["apiVersion"], "stable.example.com/v1");
    assert_eq!(get(&server, newer).await["items"].as_array().unwrap().len(), 2);
    server.stop().await;
}

#[tokio::test]
async fn conflicting_names_are_not_served() {
    let server = defined().await;
    let mut other = definition();
    other["metadata"]["name"] = json!("others.stable.example.com");
    other["spec"]["names"] = json!({"plural": "others", "kind": "Other", "shortNames": ["ct"]});
    assert_eq!(post(&server, DEFINITIONS, &other).await.code, 201);
    let found = get(&server, &format!("{DEFINITIONS}/others.stable.example.com")).await;
    assert_eq!(found["status"]["conditions"][0]["message"], r#""ct" is already in use"#);
    assert_eq!(found["status"]["conditions"][1]["reason"], "NotAccepted");
    let others = "/apis/stable.example.com/v1/namespaces/default/others";
    assert_eq!(send(&server, "GET", others, &[], &Value::Null).await.code, 404);
    // When the name is free, the other definition gets it.
    assert_eq!(delete(&server, DEFINITION).await.code, 200);
    assert_eq!(send(&server, "GET", others, &[], &Value::Null).await.code, 200);
    let refused = post(&server, DEFINITIONS, &json!({"metadata": {"name": "x"}, "spec": {}})).await;
    assert_eq!(refused.code, 422);
    assert!(refused.message().contains("spec.group: Required value"), "{}", refused.message());
    server.stop().await;
}

#[tokio::test]
async fn a_definition_goes_after_its_objects() {
    let server = defined().await;
    post(&server, CRON_TABS, &cron_tab("plain")).await;
    let mut held = cron_tab("held");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    post(&server, CRON_TABS, &held).await;
    let gone = delete(&server, DEFINITION).await;
    assert_eq!(gone.code, 200);
    let found = get(&server, DEFINITION).await;
    assert_eq!(found["status"]["conditions"][2]["type"], "Terminating");
    let left = get(&server, CRON_TABS).await;
    assert_eq!(left["items"].as_array().unwrap().len(), 1, "what has a finalizer stays");
    let refused = post(&server, CRON_TABS, &cron_tab("late")).await;
    assert_eq!((refused.code, refused.message()), (405, "create not allowed while custom resource definition is terminating"));
    let released = patch(&server, &format!("{CRON_TABS}/held"), &json!({"metadata": {"finalizers": null}})).await;
    assert_eq!(released.code, 200);
    assert_eq!(send(&server, "GET", DEFINITION, &[], &Value::Null).await.code, 404);
    assert_eq!(send(&server, "GET", CRON_TABS, &[], &Value::Null).await.code, 404);
    // The same definition may come again.
    assert_eq!(post(&server, DEFINITIONS, &definition()).await.code, 201);
    assert_eq!(get(&server, CRON_TABS).await["items"], json!([]));
    server.stop().await;
}

#[tokio::test]
async fn custom_objects_are_watched_and_applied() {
    let server = defined().await;
    let request = Request::get(format!("{CRON_TABS}?watch=true&timeoutSeconds=60")).body(Full::new(bytes::Bytes::new())).unwrap();
    let mut stream = server.service("admin", &["system:masters"]).oneshot(request).await.unwrap().into_body().into_data_stream();
    let apply = [("content-type", "application/apply-patch+yaml")];
    let path = format!("{CRON_TABS}/a?fieldManager=me");
    let applied = send(&server, "PATCH", &path, &apply, &cron_tab("a")).await;
    assert_eq!(applied.code, 201, "{}", applied.message());
    assert_eq!(applied.body["metadata"]["managedFields"][0]["manager"], "me");
    let event: Value = serde_json::from_slice(&stream.next().await.unwrap().unwrap()).unwrap();
    assert_eq!((&event["type"], &event["object"]["spec"]["replicas"]), (&json!("ADDED"), &json!(1)));
    let again = send(&server, "PATCH", &path, &apply, &cron_tab("a")).await;
    assert_eq!((again.code, &again.body["metadata"]["resourceVersion"]), (200, &applied.body["metadata"]["resourceVersion"]));
    server.stop().await;
}
