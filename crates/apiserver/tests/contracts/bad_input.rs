//! What no client should send, at every path of discovery: upstream's answer, nothing written, nothing kept in memory.

use crate::common::TestServer;
use crate::objects;
use crate::served::{Resource, ask, send, served};
use bytes::Bytes;
use futures::StreamExt;
use http::Request;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use kube::Client;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use test_lab::{in_time, until_async};
use tower::ServiceExt;

/// Upstream's `MaxRequestBodyBytes`.
const LARGEST_BODY: usize = 3 << 20;

const JSON: &str = "application/json";

/// Every resource, the custom one too.
async fn started() -> (TestServer, Client, Vec<Resource>) {
    let server = TestServer::start().await;
    server.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &objects::definition()).await.unwrap();
    let client = server.tls_client("admin", "system:masters").await;
    let kinds = served(&client).await;
    (server, client, kinds)
}

/// The version of the newest write.
async fn revision(client: &Client) -> String {
    let list = send(client, "GET", "/api/v1/namespaces/none/configmaps", &Value::Null).await;
    list.body["metadata"]["resourceVersion"].as_str().unwrap().into()
}

/// The server itself writes the status of policies once, when it has checked the types of their expressions.
async fn policies_are_checked(client: &Client) {
    until_async("the types of policies are checked", || async {
        let list = send(client, "GET", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", &Value::Null).await;
        let checked = |policy: &Value| policy["status"]["observedGeneration"] == policy["metadata"]["generation"];
        list.body["items"].as_array().unwrap().iter().all(checked)
    })
    .await;
}

/// A failure has the shape that client-go reads, and its reason goes with its code.
fn is_refused(what: &str, answer: &crate::served::Answer) {
    let reason = match answer.code {
        400 => "BadRequest",
        404 => "NotFound",
        405 => "MethodNotAllowed",
        406 => "NotAcceptable",
        413 => "RequestEntityTooLarge",
        415 => "UnsupportedMediaType",
        422 => "Invalid",
        code => panic!("{what}: {code} {}", answer.text.chars().take(300).collect::<String>()),
    };
    let status = &answer.body;
    let shape = (&status["kind"], &status["apiVersion"], &status["status"], &status["code"], &status["reason"]);
    assert_eq!(shape, (&json!("Status"), &json!("v1"), &json!("Failure"), &json!(answer.code), &json!(reason)), "{what}: {}", answer.text);
    assert!(!answer.message().is_empty(), "{what}: {}", answer.text);
}

/// Bodies that are no object of any kind, with the content type that they pretend to have.
fn malformed() -> Vec<(&'static str, Vec<u8>)> {
    let deep = |open: &str, close: &str| format!("{}{}", open.repeat(10_000), close.repeat(10_000)).into_bytes();
    vec![
        (JSON, b"{".to_vec()),
        (JSON, b"[]".to_vec()),
        (JSON, b"\"text\"".to_vec()),
        (JSON, b"12".to_vec()),
        (JSON, b"{} {}".to_vec()),
        (JSON, vec![0xff, 0xfe, b'{', b'}']),
        (JSON, br#"{"metadata": []}"#.to_vec()),
        (JSON, br#"{"metadata": {"name": 1}}"#.to_vec()),
        (JSON, br#"{"metadata": {"name": "a", "labels": {"a": {}}}}"#.to_vec()),
        (JSON, br#"{"apiVersion": "v9", "kind": "Nothing", "metadata": {"name": "a"}}"#.to_vec()),
        (JSON, br#"{"apiVersion": 1, "kind": [], "metadata": {"name": "a"}}"#.to_vec()),
        (JSON, deep("[", "]")),
        (JSON, deep("{\"a\":", "}")),
        (JSON, deep("{\"metadata\":{\"annotations\":", "}}")),
        ("application/yaml", b"a: b: c".to_vec()),
        ("application/yaml", b"\t- {".to_vec()),
        ("application/yaml", b"a: &a [*a]".to_vec()),
        ("application/yaml", deep("[", "]")),
        ("application/yaml", "- ".repeat(10_000).into_bytes()),
        ("application/vnd.kubernetes.protobuf", b"{}".to_vec()),
        ("application/vnd.kubernetes.protobuf", b"k8s\0".to_vec()),
        ("application/vnd.kubernetes.protobuf", b"k8s\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff".to_vec()),
        ("application/vnd.kubernetes.protobuf", b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\xff\xff\xff\xff\x0f".to_vec()),
        ("text/plain", b"{}".to_vec()),
        ("application/cbor", vec![0xa0]),
        ("multipart/form-data; boundary=x", b"--x--".to_vec()),
    ]
}

/// Patches that are none, or that fit no object.
fn malformed_patches() -> Vec<(&'static str, Vec<u8>)> {
    let (json_patch, merge, strategic, apply) =
        ("application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json", "application/apply-patch+yaml");
    let deep = || format!("{}1{}", "{\"a\":".repeat(10_000), "}".repeat(10_000)).into_bytes();
    let mut patches: Vec<(&str, Vec<u8>)> = vec![
        (json_patch, b"{}".to_vec()),
        (json_patch, br#"[{"op": "explode", "path": "/a"}]"#.to_vec()),
        (json_patch, br#"[{"op": "add"}]"#.to_vec()),
        (json_patch, br#"[{"op": "remove", "path": "/no/such/place"}]"#.to_vec()),
        (json_patch, br#"[{"op": "replace", "path": "", "value": 1}]"#.to_vec()),
        (json_patch, br#"[{"op": "add", "path": "no-slash", "value": 1}]"#.to_vec()),
        (merge, br#"{"metadata": {"labels": {"a": {"b": 1}}}}"#.to_vec()),
        (merge, br#"{"metadata": 7}"#.to_vec()),
        (strategic, br#"{"metadata": {"$patch": "explode"}}"#.to_vec()),
        (strategic, br#"{"metadata": {"finalizers": {"a": 1}}}"#.to_vec()),
        (apply, b"a: b: c".to_vec()),
        (apply, b"[]".to_vec()),
        (apply, b"metadata: {managedFields: [{manager: x}]}".to_vec()),
        (JSON, b"{}".to_vec()),
        ("text/plain", b"{}".to_vec()),
    ];
    for content in [json_patch, merge, strategic, apply] {
        patches.push((content, b"{".to_vec()));
        patches.push((content, vec![0xff]));
        patches.push((content, deep()));
    }
    patches
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_bodies_are_refused_at_every_path_and_write_nothing() {
    let (server, client, kinds) = started().await;
    // Some kinds show the objects of another one: each has a number of its own.
    for (number, resource) in kinds.iter().enumerate().filter(|(_, resource)| resource.is_stored()) {
        let made = send(&client, "POST", &resource.collection("default"), &resource.object("default", number)).await;
        assert_eq!(made.code, 201, "{}: {}", resource.qualified(), made.text);
    }
    policies_are_checked(&client).await;
    let before = revision(&client).await;
    let (bodies, patches) = (malformed(), malformed_patches());
    for (number, resource) in kinds.iter().enumerate() {
        let collection = resource.collection("default");
        let name = resource.is_stored().then(|| resource.object("default", number)["metadata"]["name"].as_str().unwrap().to_string());
        let object = name.map(|name| format!("{collection}/{name}"));
        for (content, body) in bodies.iter().filter(|_| resource.has("create")) {
            let answer = ask(&client, "POST", &collection, &[("content-type", content)], body.clone()).await;
            is_refused(&format!("POST {collection} {content} {}", shown(body)), &answer);
        }
        let Some(object) = object else { continue };
        let mut paths = vec![object.clone()];
        paths
            .extend(resource.parts.iter().filter(|(_, verbs)| verbs.iter().any(|verb| verb == "update")).map(|(part, _)| format!("{object}/{part}")));
        for path in paths.iter().filter(|path| !path.ends_with("/proxy")) {
            for (content, body) in &bodies {
                let answer = ask(&client, "PUT", path, &[("content-type", content)], body.clone()).await;
                is_refused(&format!("PUT {path} {content} {}", shown(body)), &answer);
            }
            for (content, body) in &patches {
                let answer = ask(&client, "PATCH", &format!("{path}{}", options(content)), &[("content-type", content)], body.clone()).await;
                is_refused(&format!("PATCH {path} {content} {}", shown(body)), &answer);
            }
        }
    }
    assert_eq!(revision(&client).await, before, "nothing was written");
    server.stop().await;
}

/// An apply needs somebody who applies.
fn options(content: &str) -> &'static str {
    if content.contains("apply") { "?fieldManager=test&force=true" } else { "" }
}

fn shown(body: &[u8]) -> String {
    String::from_utf8_lossy(body).chars().take(80).collect()
}

#[tokio::test]
async fn queries_that_mean_nothing_are_refused_at_every_path() {
    let (server, client, kinds) = started().await;
    let before = revision(&client).await;
    let lists = [
        ("limit=many", 400, "strconv.ParseInt: parsing \"many\": invalid syntax"),
        ("limit=99999999999999999999", 400, "strconv.ParseInt: parsing \"99999999999999999999\": value out of range"),
        ("timeoutSeconds=soon", 400, "strconv.ParseInt: parsing \"soon\": invalid syntax"),
        ("resourceVersion=new", 400, "Invalid value: \"new\""),
        ("resourceVersion=-1", 400, "Invalid value: \"-1\""),
        ("resourceVersion=1&resourceVersionMatch=Sometimes", 422, "resourceVersionMatch: Unsupported value: \"Sometimes\""),
        ("resourceVersionMatch=Exact", 422, "resourceVersionMatch is forbidden unless resourceVersion is provided"),
        ("limit=1&continue=%00", 400, "continue key is not valid"),
        ("limit=1&continue=e30", 400, "continue key is not valid"),
        ("fieldSelector=junk", 400, "invalid selector: 'junk'; can't understand 'junk'"),
        ("fieldSelector=no.such%3Dfield", 400, "field label not supported"),
        ("labelSelector=a%20in%20(", 400, "unable to parse requirement"),
        ("labelSelector=%21%21", 400, "unable to parse requirement"),
        ("labelSelector=-a%3Db", 400, "unable to parse requirement"),
    ];
    for resource in kinds.iter().filter(|resource| resource.has("list") && resource.is_stored()) {
        let collection = resource.collection("");
        for (query, code, message) in lists {
            let answer = ask(&client, "GET", &format!("{collection}?{query}"), &[], "").await;
            is_refused(&format!("{collection}?{query}"), &answer);
            assert!(answer.code == code && answer.message().contains(message), "{collection}?{query}: {}", answer.text);
        }
        let unlimited = ask(&client, "GET", &format!("{collection}?limit=-1"), &[], "").await;
        assert_eq!(unlimited.code, 200, "as upstream, no limit: {}", unlimited.text);
        for (query, message) in [
            ("watch=1&resourceVersion=new", "Invalid value: \"new\""),
            ("watch=1&timeoutSeconds=soon", "strconv.ParseInt"),
            ("watch=1&sendInitialEvents=true", "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"),
            ("watch=1&labelSelector=a%20in%20(", "unable to parse requirement"),
        ] {
            let answer = ask(&client, "GET", &format!("{collection}?{query}"), &[], "").await;
            is_refused(&format!("{collection}?{query}"), &answer);
            assert!(answer.message().contains(message), "{collection}?{query}: {}", answer.text);
        }
        let accept = ask(&client, "GET", &collection, &[("accept", "image/png")], "").await;
        is_refused(&format!("{collection} as an image"), &accept);
        assert_eq!(accept.code, 406);
        let collection = resource.collection("default");
        for query in ["dryRun=Some", "fieldValidation=Maybe"] {
            let path = format!("{collection}?{query}");
            let answer = send(&client, "POST", &path, &resource.object("default", 0)).await;
            is_refused(&path, &answer);
            assert_eq!(answer.code, 422, "{path}: {}", answer.text);
        }
        let gone = format!("{collection}/none?gracePeriodSeconds=soon");
        let answer = send(&client, "DELETE", &gone, &Value::Null).await;
        is_refused(&gone, &answer);
        assert!(answer.code == 400 && answer.message().contains("strconv.ParseInt: parsing \"soon\": invalid syntax"), "{}", answer.text);
    }
    assert_eq!(revision(&client).await, before, "nothing was written");
    server.stop().await;
}

#[tokio::test]
async fn bodies_over_the_limit_are_refused_before_they_are_read_to_their_end() {
    let (server, _, kinds) = started().await;
    let admin = ("admin", &["system:masters"][..]);
    for resource in kinds.iter().filter(|resource| resource.has("create")) {
        let sent = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&sent);
        let chunk = Bytes::from(vec![b' '; 64 << 10]);
        // A gigabyte, made while it is read.
        let body = futures::stream::iter(0..16_384).map(move |_| {
            counted.fetch_add(chunk.len(), Ordering::Relaxed);
            Ok::<_, Infallible>(Frame::data(chunk.clone()))
        });
        let path = resource.collection("default");
        let request = Request::post(&path).header("content-type", JSON).body(StreamBody::new(body)).unwrap();
        let answer = server.service(admin.0, admin.1).oneshot(request).await.unwrap();
        assert_eq!(answer.status(), 413, "{path}");
        let status: Value = serde_json::from_slice(&answer.into_body().collect().await.unwrap().to_bytes()).unwrap();
        let expected = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "RequestEntityTooLarge",
            "message": "Request entity too large: limit is 3145728", "code": 413});
        assert_eq!(status, expected);
        assert!(sent.load(Ordering::Relaxed) <= LARGEST_BODY + (128 << 10), "{path}: {} bytes were read", sent.load(Ordering::Relaxed));
    }
    server.stop().await;
}

/// A watch whose client does not read holds nothing back; what it missed and what the server has forgotten by then ends it.
#[tokio::test]
async fn a_watch_that_is_not_read_is_cut_off() {
    let server = TestServer::start().await;
    let client = server.admin();
    let maps = "/api/v1/namespaces/default/configmaps";
    let watch = Request::get(format!("{maps}?watch=true&resourceVersion={}", revision(&client).await)).body(http_body_util::Empty::<Bytes>::new());
    let answer = server.service("admin", &["system:masters"]).oneshot(watch.unwrap()).await.unwrap();
    assert_eq!(answer.status(), 200);
    let mut map = json!({"metadata": {"name": "m"}, "data": {"text": "x".repeat(500_000), "count": "0"}});
    assert_eq!(send(&client, "POST", maps, &map).await.code, 201);
    // More than the server keeps of the past.
    for count in 1..32 {
        map["data"]["count"] = count.to_string().into();
        assert_eq!(send(&client, "PUT", &format!("{maps}/m"), &map).await.code, 200);
    }
    let mut body = answer.into_body();
    let mut text = Vec::new();
    while let Some(frame) = in_time("the end of the watch", body.frame()).await {
        text.extend_from_slice(&frame.unwrap().into_data().unwrap_or_default());
    }
    assert!(text.len() < LARGEST_BODY, "{} bytes had been kept for it", text.len());
    let last: Value = serde_json::from_slice(text.trim_ascii_end().rsplit(|byte| *byte == b'\n').next().unwrap()).unwrap();
    let status = &last["object"];
    assert_eq!(
        (&last["type"], &status["kind"], &status["code"], &status["reason"]),
        (&json!("ERROR"), &json!("Status"), &json!(410), &json!("Expired"))
    );
    server.stop().await;
}
