//! Webhooks and admission policies over HTTP: whom they see, what they change, what they refuse.

mod common;

use base64::Engine;
use common::TestServer;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use tower::ServiceExt;

type Bytes = bytes::Bytes;

/// Code, Warning headers, body.
async fn ask(server: &TestServer, method: &str, path: &str, body: &Value) -> (u16, Vec<String>, Value) {
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    let request = request.body(Full::<Bytes>::from(body.to_string())).unwrap();
    let response = server.service("admin", &["system:masters"]).oneshot(request).await.unwrap();
    let warnings = response.headers().get_all("warning").iter().map(|value| value.to_str().unwrap().to_string()).collect();
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, warnings, serde_json::from_slice(&bytes).unwrap())
}

/// What the webhook at a path says to a request.
fn answer(path: &str, request: &Value) -> Value {
    let patch = |operations: Value| {
        let patch = base64::engine::general_purpose::STANDARD.encode(operations.to_string());
        json!({"allowed": true, "patchType": "JSONPatch", "patch": patch})
    };
    match path {
        "/deny" if request["object"]["data"]["bad"].is_string() => json!({"allowed": false, "status": {"message": "bad data", "code": 403}}),
        "/deny" => json!({"allowed": true, "warnings": ["looked at it"]}),
        "/keep" => json!({"allowed": request["oldObject"]["metadata"]["labels"]["keep"].is_null()}),
        "/sidecar" if request["object"]["spec"]["containers"].as_array().is_some_and(|all| all.len() == 1) => {
            patch(json!([{"op": "add", "path": "/spec/containers/-", "value": {"name": "sidecar", "image": "s"}}]))
        }
        _ => json!({"allowed": true}),
    }
}

async fn respond(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_string();
    let review: Value = serde_json::from_slice(&request.into_body().collect().await.unwrap().to_bytes()).unwrap();
    let mut response = answer(&path, &review["request"]);
    response["uid"] = review["request"]["uid"].clone();
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
    Ok(Response::new(Full::from(review.to_string())))
}

/// Serves webhooks; returns the URL before their paths and the caBundle.
async fn webhooks(server: &TestServer) -> (String, String) {
    let (config, ca) = server.webhook_tls();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = hyper::service::service_fn(respond);
                let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    (url, base64::engine::general_purpose::STANDARD.encode(ca))
}

fn configuration(name: &str, url: &str, ca: &str, resources: &[&str], operations: &[&str], more: Value) -> Value {
    let mut hook = json!({
        "name": format!("{name}.example.com"), "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "clientConfig": {"url": format!("{url}/{name}"), "caBundle": ca},
        "rules": [{"operations": operations, "apiGroups": [""], "apiVersions": ["v1"], "resources": resources}],
    });
    for (name, value) in more.as_object().unwrap() {
        hook[name] = value.clone();
    }
    json!({"metadata": {"name": name}, "webhooks": [hook]})
}

const REGISTRATION: &str = "/apis/admissionregistration.k8s.io/v1";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn register(server: &TestServer, plural: &str, object: &Value) {
    let (code, _, body) = ask(server, "POST", &format!("{REGISTRATION}/{plural}"), object).await;
    assert_eq!(code, 201, "{body}");
}

fn map(name: &str, data: Value) -> Value {
    json!({"metadata": {"name": name}, "data": data})
}

#[tokio::test]
async fn validating_webhooks_refuse_and_fail() {
    let server = TestServer::start().await;
    let (url, ca) = webhooks(&server).await;
    let hooks = "validatingwebhookconfigurations";
    let selective = json!({"matchConditions": [{"name": "named", "expression": "object.metadata.name != 'free'"}]});
    register(&server, hooks, &configuration("deny", &url, &ca, &["configmaps"], &["CREATE", "UPDATE"], selective)).await;
    let (code, warnings, _) = ask(&server, "POST", MAPS, &map("a", json!({"good": "1"}))).await;
    assert_eq!((code, warnings), (201, vec![r#"299 - "looked at it""#.to_string()]));
    let (code, _, refused) = ask(&server, "POST", MAPS, &map("b", json!({"bad": "1"}))).await;
    assert_eq!((code, refused["message"].as_str().unwrap()), (403, r#"admission webhook "deny.example.com" denied the request: bad data"#));
    assert_eq!(ask(&server, "POST", MAPS, &map("free", json!({"bad": "1"}))).await.0, 201, "its conditions keep the webhook out");
    let (code, _, refused) = ask(&server, "PUT", &format!("{MAPS}/a"), &map("a", json!({"bad": "1"}))).await;
    assert_eq!((code, refused["reason"].as_str()), (403, Some("")));

    register(&server, hooks, &configuration("keep", &url, &ca, &["configmaps"], &["DELETE"], json!({}))).await;
    let mut kept = map("kept", json!({}));
    kept["metadata"]["labels"] = json!({"keep": "1"});
    assert_eq!(ask(&server, "POST", MAPS, &kept).await.0, 201);
    let (code, _, refused) = ask(&server, "DELETE", &format!("{MAPS}/kept"), &json!({})).await;
    assert_eq!((code, refused["message"].as_str().unwrap()), (400, r#"admission webhook "keep.example.com" denied the request without explanation"#));
    assert_eq!(ask(&server, "DELETE", &format!("{MAPS}/free"), &json!({})).await.0, 200);

    let gone = "https://127.0.0.1:1";
    register(&server, hooks, &configuration("gone", gone, &ca, &["secrets"], &["CREATE"], json!({"failurePolicy": "Fail"}))).await;
    let secret = json!({"metadata": {"name": "s"}});
    let (code, _, failed) = ask(&server, "POST", "/api/v1/namespaces/default/secrets", &secret).await;
    let expected = concat!(
        r#"Internal error occurred: failed calling webhook "gone.example.com": failed to call webhook: "#,
        r#"Post "https://127.0.0.1:1/gone?timeout=10s": dial tcp 127.0.0.1:1: connect: connection refused"#
    );
    assert_eq!((code, failed["message"].as_str().unwrap()), (500, expected));
    assert_eq!(ask(&server, "DELETE", &format!("{REGISTRATION}/{hooks}/gone"), &json!({})).await.0, 200);
    assert_eq!(ask(&server, "POST", "/api/v1/namespaces/default/secrets", &secret).await.0, 201, "what is deleted is not called any more");
}

#[tokio::test]
async fn what_a_webhook_injects_is_admitted_like_the_rest() {
    let server = TestServer::start().await;
    let (url, ca) = webhooks(&server).await;
    register(&server, "mutatingwebhookconfigurations", &configuration("sidecar", &url, &ca, &["pods"], &["CREATE"], json!({}))).await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "x", "image": "i"}]}});
    let (code, _, created) = ask(&server, "POST", "/api/v1/namespaces/default/pods", &pod).await;
    assert_eq!((code, created["spec"]["containers"].as_array().map(Vec::len)), (201, Some(2)), "{created}");
    let sidecar = &created["spec"]["containers"][1];
    assert_eq!(sidecar["terminationMessagePath"], "/dev/termination-log", "defaults reach it");
    assert_eq!(sidecar["volumeMounts"][0]["mountPath"], "/var/run/secrets/kubernetes.io/serviceaccount", "the plug-ins see it");
}

fn policy(spec: Value) -> Value {
    let mut whole = json!({"matchConstraints": {"resourceRules": [
        {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]}});
    for (name, value) in spec.as_object().unwrap() {
        whole[name] = value.clone();
    }
    json!({"metadata": {"name": "p"}, "spec": whole})
}

#[tokio::test]
async fn validating_policies_refuse_by_expressions_and_parameters() {
    let server = TestServer::start().await;
    assert_eq!(ask(&server, "POST", MAPS, &map("limits", json!({"most": "2"}))).await.0, 201);
    let spec = json!({
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "variables": [{"name": "count", "expression": "has(object.data) ? size(object.data) : 0"}],
        "validations": [{"expression": "variables.count <= int(params.data.most)", "messageExpression": "'at most ' + params.data.most + ' entries'"}],
    });
    register(&server, "validatingadmissionpolicies", &policy(spec)).await;
    let binding = json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Deny"],
        "paramRef": {"name": "limits", "parameterNotFoundAction": "Deny"}}});
    register(&server, "validatingadmissionpolicybindings", &binding).await;
    assert_eq!(ask(&server, "POST", MAPS, &map("few", json!({"a": "1"}))).await.0, 201);
    let (code, _, refused) = ask(&server, "POST", MAPS, &map("many", json!({"a": "1", "b": "2", "c": "3"}))).await;
    let expected = r#"configmaps "many" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: at most 2 entries"#;
    assert_eq!((code, refused["message"].as_str().unwrap(), refused["reason"].as_str()), (422, expected, Some("Invalid")));
}

#[tokio::test]
async fn mutating_policies_patch_and_apply() {
    let server = TestServer::start().await;
    let spec = json!({"reinvocationPolicy": "Never", "mutations": [
        {"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{op: 'add', path: '/data/' + jsonpatch.escapeKey('extra'), value: 'patched'}]"}},
        {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "Object{metadata: Object.metadata{labels: {'applied': 'yes'}}}"}},
    ]});
    register(&server, "mutatingadmissionpolicies", &policy(spec)).await;
    let binding = json!({"metadata": {"name": "b"}, "spec": {"policyName": "p"}});
    register(&server, "mutatingadmissionpolicybindings", &binding).await;
    let (code, _, created) = ask(&server, "POST", MAPS, &map("m", json!({"k": "v"}))).await;
    let labels = json!({"applied": "yes"});
    assert_eq!((code, &created["data"], &created["metadata"]["labels"]), (201, &json!({"k": "v", "extra": "patched"}), &labels), "{created}");
    let (code, _, refused) = ask(&server, "POST", MAPS, &json!({"metadata": {"name": "n"}})).await;
    let expected =
        r#"policy 'p' with binding 'b' denied request: JSON Patch: add operation does not apply: doc is missing path: "/data/extra": missing value"#;
    assert_eq!((code, refused["message"].as_str().unwrap()), (403, expected));
}
