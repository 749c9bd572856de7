//! Custom resources of several versions with a conversion webhook, over HTTPS.

mod common;

use base64::Engine;
use common::TestServer;
use futures::StreamExt;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tower::ServiceExt;

type Bytes = bytes::Bytes;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const DEFINITION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/places.stable.example.com";
const V1: &str = "/apis/stable.example.com/v1/namespaces/default/places";
const V2: &str = "/apis/stable.example.com/v2/namespaces/default/places";
const APPLY: &str = "application/apply-patch+yaml";
const MERGE: &str = "application/merge-patch+json";

/// Code and body.
async fn send(server: &TestServer, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> (u16, Value) {
    let request = headers.iter().fold(Request::builder().method(method).uri(path), |request, (name, value)| request.header(*name, *value));
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let response = server.service("admin", &["system:masters"]).oneshot(request.body(Full::<Bytes>::from(body)).unwrap()).await.unwrap();
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap_or_default())
}

async fn post(server: &TestServer, path: &str, body: &Value) -> (u16, Value) {
    send(server, "POST", path, &[("content-type", "application/json")], body).await
}

async fn patch(server: &TestServer, path: &str, content_type: &str, body: &Value) -> (u16, Value) {
    send(server, "PATCH", path, &[("content-type", content_type)], body).await
}

async fn get(server: &TestServer, path: &str) -> (u16, Value) {
    send(server, "GET", path, &[], &Value::Null).await
}

/// v1 has `hostPort`, v2 has `host` and `port`.
fn converted(mut object: Value, desired: &str) -> Value {
    let spec = object["spec"].as_object_mut().unwrap();
    match desired {
        "stable.example.com/v2" => {
            if let Some(both) = spec.remove("hostPort") {
                let (host, port) = both.as_str().unwrap().split_once(':').unwrap();
                spec.insert("host".into(), host.into());
                spec.insert("port".into(), port.into());
            }
        }
        _ => {
            if let (Some(host), Some(port)) = (spec.remove("host"), spec.remove("port")) {
                spec.insert("hostPort".into(), format!("{}:{}", host.as_str().unwrap(), port.as_str().unwrap()).into());
            }
        }
    }
    object["apiVersion"] = desired.into();
    object["metadata"]["labels"]["seen"] = "yes".into();
    object
}

fn review(path: &str, question: &Value) -> Value {
    let request = &question["request"];
    let desired = request["desiredAPIVersion"].as_str().unwrap();
    let response = match path {
        "/fail" => json!({"uid": request["uid"], "result": {"status": "Failure", "message": "not today"}}),
        "/rename" => {
            let mut objects = request["objects"].clone();
            objects[0]["apiVersion"] = desired.into();
            objects[0]["metadata"]["name"] = "other".into();
            json!({"uid": request["uid"], "result": {"status": "Success"}, "convertedObjects": objects})
        }
        _ => {
            let objects: Vec<Value> = request["objects"].as_array().unwrap().iter().map(|object| converted(object.clone(), desired)).collect();
            json!({"uid": request["uid"], "result": {"status": "Success"}, "convertedObjects": objects})
        }
    };
    json!({"apiVersion": question["apiVersion"], "kind": "ConversionReview", "response": response})
}

/// A webhook: the URL before its paths, the caBundle, and how many objects it has been sent.
struct Webhook {
    url: String,
    ca: String,
    objects: Arc<AtomicUsize>,
}

impl Webhook {
    async fn start(server: &TestServer) -> Self {
        let (config, ca) = server.webhook_tls();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let objects = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&objects);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, counter) = (acceptor.clone(), Arc::clone(&counter));
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = hyper::service::service_fn(|request| respond(request, &counter));
                    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { url, ca: base64::engine::general_purpose::STANDARD.encode(ca), objects }
    }

    fn conversion(&self, path: &str) -> Value {
        let client = json!({"url": format!("{}{path}", self.url), "caBundle": self.ca});
        json!({"strategy": "Webhook", "webhook": {"clientConfig": client, "conversionReviewVersions": ["v9", "v1"]}})
    }
}

async fn respond(request: Request<Incoming>, objects: &AtomicUsize) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_string();
    let question: Value = serde_json::from_slice(&request.into_body().collect().await.unwrap().to_bytes()).unwrap();
    objects.fetch_add(question["request"]["objects"].as_array().unwrap().len(), Ordering::SeqCst);
    Ok(Response::new(Full::from(review(&path, &question).to_string())))
}

fn version(name: &str, storage: bool, spec: Value) -> Value {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": spec}}});
    json!({
        "name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}},
        "additionalPrinterColumns": [{"name": "Port", "type": "string", "jsonPath": ".spec.port"}],
    })
}

fn versions(stored: &str) -> Value {
    let text = json!({"type": "string"});
    json!([
        version("v1", stored == "v1", json!({"hostPort": text, "zone": {"type": "string", "default": "one"}})),
        version("v2", stored == "v2", json!({"host": text, "port": {"type": "string", "pattern": "^[0-9]+$"}, "zone": text})),
    ])
}

fn definition(conversion: &Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "places.stable.example.com"},
        "spec": {
            "group": "stable.example.com", "scope": "Namespaced", "names": {"plural": "places", "kind": "Place"},
            "versions": versions("v1"), "conversion": conversion,
        },
    })
}

fn old(name: &str, host_port: &str) -> Value {
    json!({"apiVersion": "stable.example.com/v1", "kind": "Place", "metadata": {"name": name, "labels": {}}, "spec": {"hostPort": host_port}})
}

fn new(name: &str, host: &str, port: &str) -> Value {
    json!({"apiVersion": "stable.example.com/v2", "kind": "Place", "metadata": {"name": name, "labels": {}}, "spec": {"host": host, "port": port}})
}

async fn defined(conversion: &str) -> (TestServer, Webhook) {
    let server = TestServer::start().await;
    let webhook = Webhook::start(&server).await;
    let (code, made) = post(&server, DEFINITIONS, &definition(&webhook.conversion(conversion))).await;
    assert_eq!(code, 201, "{made}");
    (server, webhook)
}

#[tokio::test]
async fn every_verb_serves_every_version() {
    let (server, webhook) = defined("/convert").await;
    let (code, made) = post(&server, V1, &old("a", "here:80")).await;
    assert_eq!((code, &made["spec"]), (201, &json!({"hostPort": "here:80", "zone": "one"})));
    assert_eq!(webhook.objects.load(Ordering::SeqCst), 0, "nobody needs another version");
    let (code, found) = get(&server, &format!("{V2}/a")).await;
    assert_eq!((code, &found["apiVersion"]), (200, &json!("stable.example.com/v2")));
    assert_eq!(found["spec"], json!({"host": "here", "port": "80", "zone": "one"}));
    assert_eq!(found["metadata"]["labels"], json!({"seen": "yes"}));
    // Written in the other version, read in the first.
    let (code, made) = post(&server, V2, &new("b", "there", "81")).await;
    assert_eq!((code, &made["spec"]), (201, &json!({"host": "there", "port": "81", "zone": "one"})), "{made}");
    assert_eq!(get(&server, &format!("{V1}/b")).await.1["spec"]["hostPort"], "there:81");
    // Validation is that of the request's version.
    let (code, refused) = post(&server, V2, &new("c", "there", "x")).await;
    assert_eq!(code, 422, "{refused}");
    let changed = patch(&server, &format!("{V2}/b"), MERGE, &json!({"spec": {"port": "82"}})).await;
    assert_eq!((changed.0, &changed.1["metadata"]["generation"]), (200, &json!(2)), "{}", changed.1);
    assert_eq!(get(&server, &format!("{V1}/b")).await.1["spec"]["hostPort"], "there:82");
    let mut replaced = get(&server, &format!("{V2}/b")).await.1;
    replaced["spec"]["host"] = "everywhere".into();
    let (code, put) = send(&server, "PUT", &format!("{V2}/b"), &[("content-type", "application/json")], &replaced).await;
    assert_eq!((code, &put["spec"]["host"]), (200, &json!("everywhere")));
    // Lists convert what they show, with one review.
    let (_, list) = get(&server, &format!("{V2}?labelSelector=seen%3Dyes")).await;
    let ports: Vec<&str> = list["items"].as_array().unwrap().iter().map(|item| item["spec"]["port"].as_str().unwrap()).collect();
    assert_eq!((&list["apiVersion"], ports), (&json!("stable.example.com/v2"), vec!["80", "82"]));
    let (_, page) = get(&server, &format!("{V2}?limit=1")).await;
    assert_eq!((page["items"].as_array().unwrap().len(), &page["metadata"]["remainingItemCount"]), (1, &json!(1)));
    let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let (_, table) = send(&server, "GET", V2, &accept, &Value::Null).await;
    assert_eq!(table["rows"][1]["cells"], json!(["b", "82"]));
    // A deletion that waits shows the object in its version.
    patch(&server, &format!("{V1}/a"), MERGE, &json!({"metadata": {"finalizers": ["example.com/hold"]}})).await;
    let (code, deleting) = send(&server, "DELETE", &format!("{V2}/a"), &[], &Value::Null).await;
    assert_eq!((code, &deleting["spec"]["port"]), (200, &json!("80")));
    let (code, gone) = patch(&server, &format!("{V2}/a"), MERGE, &json!({"metadata": {"finalizers": null}})).await;
    assert_eq!((code, &gone["apiVersion"]), (200, &json!("stable.example.com/v2")));
    assert_eq!(get(&server, &format!("{V1}/a")).await.0, 404);
    server.stop().await;
}

/// The next event of a watch.
async fn event<E>(stream: &mut (impl futures::Stream<Item = Result<Bytes, E>> + Unpin)) -> Value {
    let line = stream.next().await.unwrap().unwrap_or_else(|_| panic!("the watch ends"));
    serde_json::from_slice(&line).unwrap()
}

#[tokio::test]
async fn watches_convert() {
    let (server, _webhook) = defined("/convert").await;
    post(&server, V1, &old("a", "here:80")).await;
    let watch = |path: String| {
        let request = Request::get(path).body(Full::<Bytes>::default()).unwrap();
        let service = server.service("admin", &["system:masters"]);
        async move { service.oneshot(request).await.unwrap().into_body().into_data_stream() }
    };
    let mut stream = watch(format!("{V2}?watch=true&timeoutSeconds=60")).await;
    let first = event(&mut stream).await;
    assert_eq!((&first["type"], &first["object"]["spec"]["port"]), (&json!("ADDED"), &json!("80")));
    patch(&server, &format!("{V1}/a"), MERGE, &json!({"spec": {"hostPort": "here:81"}})).await;
    let second = event(&mut stream).await;
    assert_eq!((&second["type"], &second["object"]["spec"]["port"]), (&json!("MODIFIED"), &json!("81")));
    // A watch that cannot convert says so and ends.
    let fails = json!({"spec": {"conversion": {"webhook": {"clientConfig": {"url": format!("{}/fail", _webhook.url)}}}}});
    assert_eq!(patch(&server, DEFINITION, MERGE, &fails).await.0, 200);
    let mut stream = watch(format!("{V2}?watch=true&timeoutSeconds=60")).await;
    let failed = event(&mut stream).await;
    let message = "Internal error occurred: conversion webhook for stable.example.com/v1, Kind=Place failed: not today";
    assert_eq!((&failed["type"], failed["object"]["message"].as_str().unwrap()), (&json!("ERROR"), message));
    assert!(stream.next().await.is_none());
    server.stop().await;
}

#[tokio::test]
async fn failures_are_upstreams() {
    let (server, webhook) = defined("/fail").await;
    post(&server, V1, &old("a", "here:80")).await;
    let (code, failed) = get(&server, &format!("{V2}/a")).await;
    let message = "conversion webhook for stable.example.com/v1, Kind=Place failed: not today";
    assert_eq!((code, failed["message"].as_str().unwrap(), &failed["reason"]), (500, message, &json!("")));
    assert_eq!(get(&server, V2).await.1["message"], message);
    let (code, failed) = post(&server, V2, &new("b", "there", "81")).await;
    assert_eq!((code, &failed["message"]), (500, &json!("conversion webhook for stable.example.com/v2, Kind=Place failed: not today")));
    assert_eq!(get(&server, &format!("{V1}/b")).await.0, 404, "nothing has been written");
    let with = |client: Value| {
        let server = &server;
        async move {
            let change = json!({"spec": {"conversion": {"webhook": {"clientConfig": client}}}});
            assert_eq!(patch(server, DEFINITION, MERGE, &change).await.0, 200);
            get(server, &format!("{V2}/a")).await.1["message"].as_str().unwrap().to_string()
        }
    };
    assert_eq!(
        with(json!({"url": format!("{}/rename", webhook.url)})).await,
        "conversion webhook for stable.example.com/v1, Kind=Place returned invalid object: must have the same name: a != other"
    );
    assert_eq!(
        with(json!({"url": null, "service": {"namespace": "default", "name": "hook", "path": "/convert"}})).await,
        r#"conversion webhook for stable.example.com/v1, Kind=Place failed: Post "https://hook.default.svc:443/convert?timeout=30s": service "hook" not found"#
    );
    // Without the webhook nothing can be read, but the definition still goes, with its objects.
    assert_eq!(send(&server, "DELETE", DEFINITION, &[], &Value::Null).await.0, 200);
    assert_eq!(get(&server, DEFINITION).await.0, 404);
    server.stop().await;
}

#[tokio::test]
async fn lists_hold_objects_of_both_stored_versions() {
    let (server, webhook) = defined("/convert").await;
    post(&server, V1, &old("a", "here:80")).await;
    let moved = json!({"spec": {"versions": versions("v2")}});
    let (code, changed) = patch(&server, DEFINITION, MERGE, &moved).await;
    assert_eq!((code, &changed["status"]["storedVersions"]), (200, &json!(["v1", "v2"])));
    post(&server, V2, &new("b", "there", "81")).await;
    let before = webhook.objects.load(Ordering::SeqCst);
    let (_, list) = get(&server, V1).await;
    let found: Vec<&str> = list["items"].as_array().unwrap().iter().map(|item| item["spec"]["hostPort"].as_str().unwrap()).collect();
    assert_eq!(found, ["here:80", "there:81"]);
    assert_eq!(webhook.objects.load(Ordering::SeqCst) - before, 1, "only the object of the other version is sent");
    server.stop().await;
}

#[tokio::test]
async fn applies_know_owners_in_other_versions() {
    let (server, _webhook) = defined("/convert").await;
    let apply = |path: &str, manager: &str, body: Value| {
        let (server, path) = (&server, format!("{path}/a?fieldManager={manager}"));
        async move { patch(server, &path, APPLY, &body).await }
    };
    let object = |version: &str, spec: Value| json!({"apiVersion": format!("stable.example.com/{version}"), "kind": "Place", "metadata": {"name": "a"}, "spec": spec});
    let (code, made) = apply(V1, "one", object("v1", json!({"hostPort": "here:80"}))).await;
    assert_eq!((code, &made["metadata"]["managedFields"][0]["apiVersion"]), (201, &json!("stable.example.com/v1")), "{made}");
    // The same value in another version is no conflict, and another one is.
    let (code, same) = apply(V2, "two", object("v2", json!({"port": "80", "host": "here"}))).await;
    assert_eq!(code, 200, "{same}");
    let owners: Vec<(&str, &str)> = same["metadata"]["managedFields"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (entry["manager"].as_str().unwrap(), entry["apiVersion"].as_str().unwrap()))
        .collect();
    assert_eq!(owners, [("two", "stable.example.com/v2"), ("one", "stable.example.com/v1")], "what changes nothing has no time");
    let (code, conflict) = apply(V2, "two", object("v2", json!({"port": "81", "host": "here"}))).await;
    assert_eq!(code, 409, "{conflict}");
    assert_eq!(conflict["message"], r#"Apply failed with 1 conflict: conflict with "one": .spec.hostPort"#);
    // A plain write in the other version takes the field from both.
    let (code, written) = patch(&server, &format!("{V2}/a?fieldManager=three"), MERGE, &json!({"spec": {"port": "82"}})).await;
    assert_eq!(code, 200, "{written}");
    let owners = written["metadata"]["managedFields"].to_string();
    assert!(!owners.contains("hostPort") && owners.contains("three"), "{owners}");
    server.stop().await;
}
