//! A kind that joins a running server by one value: discovery, OpenAPI, decoding, defaults, validation, strategy, patches, tables and
//! watches know it, and nothing else had to change.

mod common;

use apiserver::kind::{Kind, SelectableField};
use common::TestServer;
use futures::StreamExt;
use http::Request;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tower::ServiceExt;

const THINGS: &str = "/apis/example.com/v1/namespaces/default/things";

fn things() -> Kind {
    Kind::open("example.com", "v1", "Thing", "things")
        .short(&["th"])
        .in_all()
        .status()
        .scale()
        .counts_generations()
        .defaults(|thing| {
            thing.entry("spec").or_insert_with(|| json!({})).as_object_mut().unwrap().entry("size").or_insert_with(|| 3.into());
        })
        .validate(|new, _, errors| errors.not_negative(&new.get("spec").get("size")))
        .prepare_create(|thing| thing["status"] = json!({"phase": "New"}))
        .warnings(|thing, found| {
            if thing.get("spec").get("size").number() == Some(13) {
                found.push("spec.size: brings bad luck".into());
            }
        })
        .selectable(SelectableField::new("spec.size"))
}

async fn ask(server: &TestServer, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> (u16, String, Value) {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = request.body(Full::new(bytes::Bytes::from(body))).unwrap();
    let (parts, body) = server.service("admin", &["system:masters"]).oneshot(request).await.unwrap().into_parts();
    let warning = parts.headers.get("warning").map_or("", |value| value.to_str().unwrap()).to_string();
    let bytes = body.collect().await.unwrap().to_bytes();
    (parts.status.as_u16(), warning, serde_json::from_slice(&bytes).unwrap_or_default())
}

async fn get(server: &TestServer, path: &str) -> Value {
    ask(server, "GET", path, &[], &Value::Null).await.2
}

#[tokio::test]
async fn an_added_kind_is_served_like_any_other() {
    let server = TestServer::start().await;
    assert_eq!(ask(&server, "GET", THINGS, &[], &Value::Null).await.0, 404);
    server.kinds().add(things());

    let list = get(&server, "/apis/example.com/v1").await;
    let names: Vec<&str> = list["resources"].as_array().unwrap().iter().map(|resource| resource["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["things", "things/scale", "things/status"]);
    let groups = get(&server, "/apis").await["groups"].take();
    assert!(groups.as_array().unwrap().iter().any(|group| group["preferredVersion"]["groupVersion"] == "example.com/v1"));
    let document = get(&server, "/openapi/v3/apis/example.com/v1").await;
    assert!(document["components"]["schemas"].get("com.example.v1.Thing").is_some());

    let (code, warning, thing) =
        ask(&server, "POST", THINGS, &[], &json!({"metadata": {"name": "a"}, "spec": {"any": {"thing": [1]}}, "status": {"phase": "Old"}})).await;
    assert_eq!((code, warning.as_str()), (201, ""));
    assert_eq!((&thing["kind"], &thing["apiVersion"], &thing["metadata"]["generation"]), (&json!("Thing"), &json!("example.com/v1"), &json!(1)));
    assert_eq!((&thing["spec"], &thing["status"]), (&json!({"any": {"thing": [1]}, "size": 3}), &json!({"phase": "New"})));
    let (code, _, refused) = ask(&server, "POST", THINGS, &[], &json!({"metadata": {"name": "b"}, "spec": {"size": -1}})).await;
    assert_eq!(code, 422);
    let message = "Thing.example.com \"b\" is invalid: spec.size: Invalid value: -1: must be greater than or equal to 0";
    assert_eq!(refused["message"], message);
    assert!(ask(&server, "POST", THINGS, &[], &json!({"metadata": {"name": "c"}, "spec": {"size": 13}})).await.1.contains("bad luck"));

    let merge = [("content-type", "application/merge-patch+json")];
    let patch = json!({"spec": {"size": 5, "any": null}, "status": {"phase": "Mine"}});
    let (code, _, thing) = ask(&server, "PATCH", &format!("{THINGS}/a"), &merge, &patch).await;
    assert_eq!(
        (code, &thing["spec"], &thing["status"]["phase"], &thing["metadata"]["generation"]),
        (200, &json!({"size": 5}), &json!("New"), &json!(2))
    );
    let (_, _, thing) = ask(&server, "PATCH", &format!("{THINGS}/a/status"), &merge, &patch).await;
    assert_eq!((&thing["status"]["phase"], &thing["metadata"]["generation"]), (&json!("Mine"), &json!(2)));
    let (_, _, scale) = ask(&server, "PATCH", &format!("{THINGS}/a/scale"), &merge, &json!({"spec": {"replicas": 4}})).await;
    assert_eq!((&scale["kind"], &scale["spec"]["replicas"]), (&json!("Scale"), &json!(4)));

    let selected = get(&server, &format!("{THINGS}?fieldSelector=spec.size=5")).await;
    assert_eq!((&selected["kind"], selected["items"].as_array().unwrap().len()), (&json!("ThingList"), 1));
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let (_, _, table) = ask(&server, "GET", THINGS, &table, &Value::Null).await;
    assert_eq!(table["rows"][0]["cells"][0], "a");
}

#[tokio::test]
async fn an_added_kind_is_watched_and_goes_again() {
    let server = TestServer::start().await;
    server.kinds().add(things());
    let request = Request::get(format!("{THINGS}?watch=true&timeoutSeconds=60")).body(Full::new(bytes::Bytes::new())).unwrap();
    let mut stream = server.service("admin", &["system:masters"]).oneshot(request).await.unwrap().into_body().into_data_stream();
    ask(&server, "POST", THINGS, &[], &json!({"metadata": {"name": "a"}})).await;
    let event: Value = serde_json::from_slice(&stream.next().await.unwrap().unwrap()).unwrap();
    assert_eq!((&event["type"], &event["object"]["metadata"]["name"]), (&json!("ADDED"), &json!("a")));
    server.kinds().remove("example.com", "v1", "things");
    assert_eq!(ask(&server, "GET", THINGS, &[], &Value::Null).await.0, 404);
    assert_eq!(ask(&server, "GET", "/apis/example.com/v1", &[], &Value::Null).await.0, 404);
}

#[tokio::test]
async fn an_added_kind_merges_as_its_schema_says() {
    let server = TestServer::start().await;
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "size": {"type": "integer"},
        "hosts": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
    }}, "status": {"type": "object", "properties": {"phase": {"type": "string"}}}}});
    server.kinds().add(things().merged_by(&schema));
    let apply = async |manager: &str, spec: Value| {
        let body = json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": spec});
        ask(&server, "PATCH", &format!("{THINGS}/a?fieldManager={manager}"), &[("content-type", "application/apply-patch+yaml")], &body).await
    };
    assert_eq!(apply("one", json!({"hosts": ["x", "y"]})).await.0, 201);
    assert_eq!(apply("two", json!({"hosts": ["y", "z"]})).await.2["spec"]["hosts"], json!(["x", "y", "z"]));
    let (code, _, left) = apply("one", json!({})).await;
    assert_eq!((code, &left["spec"]["hosts"]), (200, &json!(["y", "z"])));
    let (code, _, refused) = apply("two", json!({"hosts": 1})).await;
    assert_eq!(
        (code, refused["message"].as_str().unwrap()),
        (500, "failed to create typed patch object (/a; example.com/v1, Kind=Thing): .spec.hosts: expected list, got &{1}")
    );
    server.stop().await;
}
