//! `pods/resize` over HTTP: what kubectl, controllers and node agents do with it.

mod common;

use common::TestServer;
use http::Request;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tower::ServiceExt;

const PODS: &str = "/api/v1/namespaces/default/pods";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const JSON: &str = "application/json";

async fn ask(server: &TestServer, who: (&str, &[&str]), method: &str, path: &str, content_type: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = Request::builder().method(method).uri(path).header("content-type", content_type).header("user-agent", "test");
    let request = request.body(Full::new(bytes::Bytes::from(body))).unwrap();
    let (parts, body) = server.service(who.0, who.1).oneshot(request).await.unwrap().into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    (parts.status.as_u16(), serde_json::from_slice(&bytes).unwrap_or_default())
}

async fn admin(server: &TestServer, method: &str, path: &str, content_type: &str, body: Value) -> (u16, Value) {
    ask(server, ("admin", &["system:masters"]), method, path, content_type, &body).await
}

async fn made(server: &TestServer, path: &str, object: Value) -> Value {
    let (code, body) = admin(server, "POST", path, JSON, object).await;
    assert_eq!(code, 201, "{body}");
    body
}

fn pod(name: &str, node: &str) -> Value {
    let amounts = json!({"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "128Mi"}});
    json!({"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [{"name": "main", "image": "i", "resources": amounts}]}})
}

async fn node(server: &TestServer, name: &str, os: &str) {
    let object = json!({"metadata": {"name": name, "labels": {"kubernetes.io/os": os}}, "status": {"allocatable": {"cpu": "2", "memory": "1Gi"}}});
    made(server, "/api/v1/nodes", object).await;
}

/// A change of the requests of container `main`, as `kubectl patch --subresource resize` sends it.
fn requests(amounts: Value) -> Value {
    json!({"spec": {"containers": [{"name": "main", "resources": {"requests": amounts}}]}})
}

fn message(answer: &(u16, Value)) -> (u16, &str) {
    (answer.0, answer.1["message"].as_str().unwrap_or_default())
}

#[tokio::test]
async fn a_pod_is_resized_by_every_verb_of_the_subresource() {
    let server = TestServer::start().await;
    node(&server, "n", "linux").await;
    made(&server, PODS, pod("p", "n")).await;
    let (door, own) = (format!("{PODS}/p/resize"), format!("{PODS}/p"));
    let refused = admin(&server, "PATCH", &own, STRATEGIC, requests(json!({"cpu": "200m"}))).await;
    assert_eq!(refused.0, 422, "not through the pod itself: {}", refused.1);
    let (code, patched) = admin(&server, "PATCH", &door, STRATEGIC, requests(json!({"cpu": "200m"}))).await;
    assert_eq!((code, &patched["metadata"]["generation"]), (200, &json!(2)), "{patched}");
    assert_eq!(patched["spec"]["containers"][0]["resources"]["requests"], json!({"cpu": "200m", "memory": "64Mi"}));
    let step = json!([{"op": "replace", "path": "/spec/containers/0/resources/limits/memory", "value": "256Mi"}]);
    let (code, patched) = admin(&server, "PATCH", &door, "application/json-patch+json", step).await;
    assert_eq!((code, &patched["spec"]["containers"][0]["resources"]["limits"]["memory"]), (200, &json!("256Mi")), "{patched}");
    let mut whole = patched.clone();
    whole["spec"]["containers"][0]["resources"]["requests"]["memory"] = "96Mi".into();
    whole["spec"]["containers"][0]["image"] = "other".into();
    whole["metadata"]["labels"] = json!({"a": "b"});
    let (code, put) = admin(&server, "PUT", &door, JSON, whole).await;
    assert_eq!((code, &put["spec"]["containers"][0]["image"], put["metadata"].get("labels")), (200, &json!("i"), None), "{put}");
    assert_eq!((&put["spec"]["containers"][0]["resources"]["requests"]["memory"], &put["metadata"]["generation"]), (&json!("96Mi"), &json!(4)));
    let (code, read) = admin(&server, "GET", &door, "", Value::Null).await;
    assert_eq!((code, &read), (200, &put));
    let (code, discovered) = admin(&server, "GET", "/api/v1", "", Value::Null).await;
    let resize = discovered["resources"].as_array().unwrap().iter().find(|one| one["name"] == "pods/resize").expect("discovery names it");
    assert_eq!((code, &resize["verbs"], &resize["kind"]), (200, &json!(["get", "patch", "update"]), &json!("Pod")));
    let (_, openapi) = admin(&server, "GET", "/openapi/v3/api/v1", "", Value::Null).await;
    assert!(openapi["paths"]["/api/v1/namespaces/{namespace}/pods/{name}/resize"]["patch"].is_object());
    server.stop().await;
}

#[tokio::test]
async fn an_applied_resize_owns_resources_alone() {
    let server = TestServer::start().await;
    made(&server, PODS, pod("p", "")).await;
    let config = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [
        {"name": "main", "image": "i", "resources": {"limits": {"cpu": "2"}}}]}});
    let path = format!("{PODS}/p/resize?fieldManager=vpa&force=true");
    let (code, applied) = admin(&server, "PATCH", &path, "application/apply-patch+yaml", config.clone()).await;
    assert_eq!((code, &applied["spec"]["containers"][0]["resources"]["limits"]), (200, &json!({"cpu": "2", "memory": "128Mi"})), "{applied}");
    let owner = applied["metadata"]["managedFields"].as_array().unwrap().iter().find(|entry| entry["manager"] == "vpa").unwrap();
    let fields = json!({"f:spec": {"f:containers": {"k:{\"name\":\"main\"}": {".": {}, "f:resources": {"f:limits": {"f:cpu": {}}}}}}});
    assert_eq!((&owner["subresource"], &owner["operation"], &owner["fieldsV1"]), (&json!("resize"), &json!("Apply"), &fields));
    let missing = admin(&server, "PATCH", &path.replace("/p/", "/q/"), "application/apply-patch+yaml", config).await;
    assert_eq!(missing.0, 404, "{}", missing.1);
    server.stop().await;
}

#[tokio::test]
async fn nodes_limits_and_quotas_bound_a_resize() {
    let server = TestServer::start().await;
    node(&server, "n", "linux").await;
    node(&server, "w", "windows").await;
    made(&server, PODS, pod("p", "n")).await;
    made(&server, PODS, pod("w", "w")).await;
    let resize = |name: &str, amounts: Value| {
        let path = format!("{PODS}/{name}/resize");
        let server = &server;
        async move { admin(server, "PATCH", &path, STRATEGIC, amounts).await }
    };
    let both = |cpu: &str| json!({"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}}]}});
    let large = resize("p", both("3")).await;
    let sentence = "pods \"p\" is forbidden: node didn't have enough allocatable resources: cpu, requested: 3000, allocatable: 2000";
    assert_eq!((message(&large), &large.1["details"]["causes"]), ((403, sentence), &json!([{"reason": "NodeCapacity"}])));
    let windows = resize("w", both("1")).await;
    let sentence = "pods \"w\" is forbidden: pod resize is only supported on linux nodes, node \"w\" is \"windows\"";
    assert_eq!(message(&windows), (403, sentence));
    let bounds = json!({"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Container", "max": {"cpu": "1500m"}}]}});
    made(&server, "/api/v1/namespaces/default/limitranges", bounds).await;
    let above = resize("p", both("1600m")).await;
    assert_eq!(message(&above), (403, "pods \"p\" is forbidden: maximum cpu usage per Container is 1500m, but limit is 1600m"));
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"requests.cpu": "500m"}}});
    let mut quota = made(&server, "/api/v1/namespaces/default/resourcequotas", quota).await;
    quota["status"] = json!({"hard": {"requests.cpu": "500m"}, "used": {"requests.cpu": "200m"}});
    assert_eq!(admin(&server, "PUT", "/api/v1/namespaces/default/resourcequotas/q/status", JSON, quota).await.0, 200);
    let over = resize("p", requests(json!({"cpu": "600m"}))).await;
    let sentence = "pods \"p\" is forbidden: exceeded quota: q, requested: requests.cpu=500m, used: requests.cpu=200m, limited: requests.cpu=500m";
    assert_eq!(message(&over), (403, sentence));
    assert_eq!(resize("p", requests(json!({"cpu": "300m"}))).await.0, 200);
    let (_, charged) = admin(&server, "GET", "/api/v1/namespaces/default/resourcequotas/q", "", Value::Null).await;
    assert_eq!(charged["status"]["used"]["requests.cpu"], "400m", "what the resize adds is charged");
    server.stop().await;
}

#[tokio::test]
async fn node_agents_report_a_resize_in_the_status() {
    let server = TestServer::start().await;
    node(&server, "n", "linux").await;
    let mut own = made(&server, PODS, pod("p", "n")).await;
    let resources = json!({"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "128Mi"}});
    let running = json!({"name": "main", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}}});
    let pending = json!({"type": "PodResizePending", "status": "True", "reason": "Deferred", "observedGeneration": 2});
    own["status"] = json!({"phase": "Running", "observedGeneration": 1, "containerStatuses": [running]});
    let agent: (&str, &[&str]) = ("system:node:n", &["system:nodes", "system:authenticated"]);
    let status = format!("{PODS}/p/status");
    let (code, stored) = ask(&server, agent, "PUT", &status, JSON, &own).await;
    assert_eq!(code, 200, "{stored}");
    let door = format!("{PODS}/p/resize");
    let unable = admin(&server, "PATCH", &door, STRATEGIC, requests(json!({"cpu": "200m"}))).await;
    assert_eq!(message(&unable), (422, "Pod \"p\" is invalid: spec: Forbidden: Pod running on node without support for resize"));
    own = stored;
    own["status"]["containerStatuses"][0]["resources"] = resources.clone();
    own["status"]["containerStatuses"][0]["allocatedResources"] = resources["requests"].clone();
    own["status"]["conditions"] = json!([pending]);
    let (code, stored) = ask(&server, agent, "PUT", &status, JSON, &own).await;
    let seen = &stored["status"]["containerStatuses"][0];
    assert_eq!((code, &seen["resources"], &seen["allocatedResources"]), (200, &resources, &resources["requests"]), "{stored}");
    assert_eq!(
        (&stored["status"]["conditions"][0]["reason"], &stored["status"]["conditions"][0]["observedGeneration"]),
        (&json!("Deferred"), &json!(2))
    );
    assert_eq!(admin(&server, "PATCH", &door, STRATEGIC, requests(json!({"cpu": "200m"}))).await.0, 200);
    let (code, refused) = ask(&server, agent, "PATCH", &door, STRATEGIC, &requests(json!({"cpu": "300m"}))).await;
    assert_eq!(code, 403, "node agents resize nothing: {refused}");
    server.stop().await;
}

#[tokio::test]
async fn the_right_to_resize_is_one_of_its_own() {
    let server = TestServer::start().await;
    made(&server, PODS, pod("p", "")).await;
    let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let role =
        |name: &str, resource: &str| json!({"metadata": {"name": name}, "rules": [{"apiGroups": [""], "resources": [resource], "verbs": ["patch"]}]});
    let binding = |name: &str| {
        json!({"metadata": {"name": name}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}]})
    };
    for (name, resource) in [("editor", "pods"), ("resizer", "pods/resize")] {
        made(&server, &format!("{roles}/roles"), role(name, resource)).await;
        made(&server, &format!("{roles}/rolebindings"), binding(name)).await;
    }
    let patch = requests(json!({"cpu": "150m"}));
    let path = format!("{PODS}/p/resize");
    let (code, refused) = ask(&server, ("editor", &["system:authenticated"]), "PATCH", &path, STRATEGIC, &patch).await;
    assert_eq!(code, 403);
    assert!(refused["message"].as_str().unwrap().contains("cannot patch resource \"pods/resize\""), "{refused}");
    assert_eq!(ask(&server, ("resizer", &["system:authenticated"]), "PATCH", &path, STRATEGIC, &patch).await.0, 200);
    assert_eq!(ask(&server, ("resizer", &["system:authenticated"]), "PATCH", &format!("{PODS}/p"), STRATEGIC, &patch).await.0, 403);
    server.stop().await;
}
