//! What admission webhooks are shown of requests: options, subresources with their own kinds, connections; and in which order requests are
//! refused.

mod common;

use base64::Engine;
use common::TestServer;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use tower::ServiceExt;

type Bytes = bytes::Bytes;
type Seen = Arc<Mutex<Vec<Value>>>;

const REGISTRATION: &str = "/apis/admissionregistration.k8s.io/v1";
const SPACE: &str = "/api/v1/namespaces/default";

async fn ask(server: &TestServer, method: &str, path: &str, content_type: &str, body: &Value) -> (u16, Value) {
    let request = Request::builder().method(method).uri(path).header("content-type", content_type);
    let request = request.body(Full::<Bytes>::from(body.to_string())).unwrap();
    let response = server.service("admin", &["system:masters"]).oneshot(request).await.unwrap();
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap_or_default())
}

async fn post(server: &TestServer, path: &str, body: &Value) -> (u16, Value) {
    ask(server, "POST", path, "application/json", body).await
}

/// Writes each request down. `/replicas` sets two replicas, `/deny` refuses, others allow.
async fn respond(seen: Seen, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_string();
    let review: Value = serde_json::from_slice(&request.into_body().collect().await.unwrap().to_bytes()).unwrap();
    let mut response = json!({"uid": review["request"]["uid"], "allowed": path != "/deny"});
    if path == "/replicas" {
        let patch = json!([{"op": "replace", "path": "/spec/replicas", "value": 2}]);
        response["patchType"] = "JSONPatch".into();
        response["patch"] = base64::engine::general_purpose::STANDARD.encode(patch.to_string()).into();
    }
    seen.lock().unwrap().push(review["request"].clone());
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
    Ok(Response::new(Full::from(review.to_string())))
}

struct Hooks {
    url: String,
    ca: String,
    seen: Seen,
}

impl Hooks {
    async fn start(server: &TestServer) -> Self {
        let (config, ca) = server.webhook_tls();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let seen = Seen::default();
        let log = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, log) = (acceptor.clone(), Arc::clone(&log));
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = hyper::service::service_fn(move |request| respond(Arc::clone(&log), request));
                    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { url, ca: base64::engine::general_purpose::STANDARD.encode(ca), seen }
    }

    /// Registers the webhook at a path for resources of a group.
    async fn register(&self, server: &TestServer, plural: &str, path: &str, group: &str, resources: &[&str]) {
        let hook = json!({
            "name": format!("{path}.example.com"), "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"url": format!("{}/{path}", self.url), "caBundle": self.ca},
            "rules": [{"operations": ["*"], "apiGroups": [group], "apiVersions": ["*"], "resources": resources}],
        });
        let (code, body) = post(server, &format!("{REGISTRATION}/{plural}"), &json!({"metadata": {"name": path}, "webhooks": [hook]})).await;
        assert_eq!(code, 201, "{body}");
    }

    fn take(&self) -> Vec<Value> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }

    fn only(&self) -> Value {
        let mut seen = self.take();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen.remove(0)
    }
}

fn kind(request: &Value) -> (&str, &str, &str) {
    let text = |member: &str| request["kind"][member].as_str().unwrap_or_default();
    (text("group"), text("version"), text("kind"))
}

#[tokio::test]
async fn writes_of_scale_are_shown_as_scales() {
    let server = TestServer::start().await;
    let hooks = Hooks::start(&server).await;
    let labels = json!({"app": "a"});
    let pod = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"replicas": 3, "selector": {"matchLabels": labels}, "template": pod}});
    let path = "/apis/apps/v1/namespaces/default/deployments";
    assert_eq!(post(&server, path, &deployment).await.0, 201);
    hooks.register(&server, "validatingwebhookconfigurations", "look", "apps", &["deployments/scale"]).await;

    let scale = format!("{path}/d/scale?fieldManager=tester&dryRun=All");
    let (code, body) = ask(&server, "PATCH", &scale, "application/merge-patch+json", &json!({"spec": {"replicas": 5}})).await;
    assert_eq!((code, &body["spec"]["replicas"]), (200, &json!(5)), "{body}");
    let request = hooks.only();
    assert_eq!(kind(&request), ("autoscaling", "v1", "Scale"));
    assert_eq!((&request["resource"]["resource"], &request["subResource"]), (&json!("deployments"), &json!("scale")));
    assert_eq!((&request["object"]["kind"], &request["object"]["spec"]["replicas"]), (&json!("Scale"), &json!(5)));
    assert_eq!(request["oldObject"]["spec"]["replicas"], 3);
    let options = json!({"kind": "UpdateOptions", "apiVersion": "meta.k8s.io/v1", "dryRun": ["All"], "fieldManager": "tester"});
    assert_eq!((&request["options"], &request["dryRun"]), (&options, &json!(true)));

    hooks.register(&server, "mutatingwebhookconfigurations", "replicas", "apps", &["deployments/scale"]).await;
    let wanted = json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {"name": "d", "namespace": "default"}, "spec": {"replicas": 9}});
    let (code, body) = ask(&server, "PUT", &format!("{path}/d/scale"), "application/json", &wanted).await;
    assert_eq!((code, &body["spec"]["replicas"]), (200, &json!(2)), "a webhook decides: {body}");
    let seen = hooks.take();
    assert_eq!((&seen[0]["object"]["spec"]["replicas"], &seen[1]["object"]["spec"]["replicas"]), (&json!(9), &json!(2)));
    hooks.register(&server, "validatingwebhookconfigurations", "deny", "apps", &["deployments/scale"]).await;
    let (code, body) = ask(&server, "PUT", &format!("{path}/d/scale"), "application/json", &wanted).await;
    assert_eq!(code, 400, "{body}");
    let (_, stored) = ask(&server, "GET", &format!("{path}/d"), "application/json", &Value::Null).await;
    assert_eq!(stored["spec"]["replicas"], 2);
}

#[tokio::test]
async fn creations_below_an_object_and_connections_are_shown() {
    let server = TestServer::start().await;
    let hooks = Hooks::start(&server).await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    assert_eq!(post(&server, &format!("{SPACE}/pods"), &pod).await.0, 201);
    let all = ["serviceaccounts/token", "pods/binding", "pods/eviction", "pods/exec", "pods/attach", "pods/portforward", "pods/proxy"];
    hooks.register(&server, "validatingwebhookconfigurations", "look", "", &all).await;

    let (code, body) = post(&server, &format!("{SPACE}/serviceaccounts/default/token"), &json!({"spec": {"audiences": ["vault"]}})).await;
    assert_eq!(code, 201, "{body}");
    let request = hooks.only();
    assert_eq!((kind(&request), &request["subResource"]), (("authentication.k8s.io", "v1", "TokenRequest"), &json!("token")));
    assert_eq!(request["object"]["spec"]["audiences"], json!(["vault"]));
    assert_eq!((&request["operation"], &request["options"]["kind"]), (&json!("CREATE"), &json!("CreateOptions")));
    assert_eq!(request["object"]["status"]["token"].as_str().unwrap_or_default(), "", "no token is shown");

    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    assert_eq!(post(&server, &format!("{SPACE}/pods/p/binding"), &binding).await.0, 201);
    let request = hooks.only();
    assert_eq!((kind(&request), &request["object"]["target"]["name"]), (("", "v1", "Binding"), &json!("n")));

    for (subresource, wanted) in
        [("exec", "PodExecOptions"), ("attach", "PodAttachOptions"), ("portforward", "PodPortForwardOptions"), ("proxy", "PodProxyOptions")]
    {
        let path = format!("{SPACE}/pods/p/{subresource}?command=ls&stdout=true");
        ask(&server, "GET", &path, "application/json", &Value::Null).await;
        let request = hooks.only();
        assert_eq!((kind(&request), &request["operation"]), (("", "v1", wanted), &json!("CONNECT")));
        assert_eq!((&request["name"], &request["options"]), (&json!("p"), &Value::Null));
    }

    let eviction = json!({"metadata": {"name": "p"}, "apiVersion": "policy/v1", "kind": "Eviction"});
    assert_eq!(post(&server, &format!("{SPACE}/pods/p/eviction"), &eviction).await.0, 201);
    assert_eq!(kind(&hooks.only()), ("policy", "v1", "Eviction"));

    hooks.register(&server, "mutatingwebhookconfigurations", "deny", "", &["serviceaccounts/token"]).await;
    let (code, body) = post(&server, &format!("{SPACE}/serviceaccounts/absent/token"), &json!({})).await;
    assert_eq!(code, 400, "mutating webhooks come before everything else: {body}");
}

#[tokio::test]
async fn requests_are_refused_in_upstream_s_order() {
    let server = TestServer::start().await;
    let hooks = Hooks::start(&server).await;
    let map = json!({"metadata": {"name": "m"}});
    assert_eq!(post(&server, &format!("{SPACE}/configmaps"), &map).await.0, 201);
    assert_eq!(post(&server, &format!("{SPACE}/configmaps"), &map).await.1["reason"], "AlreadyExists");
    hooks.register(&server, "validatingwebhookconfigurations", "deny", "", &["configmaps"]).await;
    let (code, body) = post(&server, &format!("{SPACE}/configmaps"), &map).await;
    assert_eq!(code, 400, "who may not create an object does not hear that it exists: {body}");
    hooks.take();

    let gone = format!("{SPACE}/configmaps/absent");
    assert_eq!(ask(&server, "DELETE", &gone, "application/json", &Value::Null).await.0, 404);
    assert!(hooks.take().is_empty(), "nobody is asked about what is not there");
    let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"});
    assert_eq!(ask(&server, "DELETE", &format!("{SPACE}/configmaps/m"), "application/json", &options).await.0, 400);
    let request = hooks.only();
    let expected = json!({"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1", "propagationPolicy": "Background"});
    assert_eq!((&request["options"], &request["oldObject"]["metadata"]["name"]), (&expected, &json!("m")));
}

#[tokio::test]
async fn token_requests_name_the_account_that_they_are_for() {
    let server = TestServer::start().await;
    let accounts = format!("{SPACE}/serviceaccounts");
    let (_, account) = post(&server, &accounts, &json!({"metadata": {"name": "a"}})).await;
    let path = format!("{accounts}/a/token");
    let (code, body) = post(&server, &path, &json!({"metadata": {"name": "b"}})).await;
    let expected =
        "TokenRequest.authentication.k8s.io \"a\" is invalid: metadata.name: Invalid value: \"b\": must match the service account name if specified";
    assert_eq!((code, body["message"].as_str().unwrap()), (422, expected));
    assert_eq!(post(&server, &path, &json!({"metadata": {"uid": "other"}})).await.1["reason"], "Conflict");
    let (code, body) = post(&server, &path, &json!({"metadata": {"uid": account["metadata"]["uid"]}})).await;
    assert_eq!((code, &body["metadata"]["uid"]), (201, &account["metadata"]["uid"]));
    assert_eq!(post(&server, &path, &json!({"kind": "Pod", "apiVersion": "v1"})).await.0, 400);
}
