//! Server-side apply and owners of fields over HTTP, as kubectl, helm and controllers use them.

mod common;

use common::TestServer;
use http::Request;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tower::ServiceExt;

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const APPLY: &str = "application/apply-patch+yaml";
const MERGE: &str = "application/merge-patch+json";
const JSON: &str = "application/json";

struct Answer {
    code: u16,
    warning: String,
    body: Value,
}

impl Answer {
    fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }

    /// `MANAGER OPERATION SUBRESOURCE FIELDS` of each owner.
    fn owners(&self) -> Vec<String> {
        let entries = self.body["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or("-").to_string();
        let line = |entry: &Value| {
            let (manager, operation, part) = (text(&entry["manager"]), text(&entry["operation"]), text(&entry["subresource"]));
            format!("{manager} {operation} {part} {}", entry["fieldsV1"])
        };
        entries.iter().map(line).collect()
    }
}

async fn send(server: &TestServer, method: &str, path: &str, content_type: &str, agent: &str, body: &str) -> Answer {
    let request = Request::builder().method(method).uri(path).header("content-type", content_type).header("user-agent", agent);
    let request = request.body(Full::new(bytes::Bytes::from(body.to_string()))).unwrap();
    let (parts, body) = server.service("admin", &["system:masters"]).oneshot(request).await.unwrap().into_parts();
    let warning = parts.headers.get("warning").map_or("", |value| value.to_str().unwrap()).to_string();
    let bytes = body.collect().await.unwrap().to_bytes();
    Answer { code: parts.status.as_u16(), warning, body: serde_json::from_slice(&bytes).unwrap_or_default() }
}

async fn apply(server: &TestServer, path: &str, options: &str, body: &Value) -> Answer {
    send(server, "PATCH", &format!("{path}?{options}"), APPLY, "test", &body.to_string()).await
}

async fn get(server: &TestServer, path: &str) -> Answer {
    send(server, "GET", path, JSON, "test", "").await
}

fn web(spec: Value) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "default"}, "spec": spec})
}

fn whole(replicas: Option<i64>, image: &str) -> Value {
    let mut deployment = web(json!({
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web", "image": image, "ports": [{"containerPort": 80}]}]},
        },
    }));
    if let Some(replicas) = replicas {
        deployment["spec"]["replicas"] = replicas.into();
    }
    deployment
}

fn path() -> String {
    format!("{DEPLOYMENTS}/web")
}

#[tokio::test]
async fn an_apply_creates_changes_and_removes() {
    let server = TestServer::start().await;
    let created = apply(&server, &path(), "fieldManager=helm", &whole(Some(2), "a")).await;
    assert_eq!(created.code, 201, "{}", created.body);
    assert_eq!(created.body["spec"]["revisionHistoryLimit"], 10, "defaults are filled in");
    assert_eq!(
        created.owners(),
        [
            r#"helm Apply - {"f:spec":{"f:replicas":{},"f:selector":{},"f:template":{"f:metadata":{"f:labels":{"f:app":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"web\"}":{".":{},"f:image":{},"f:name":{},"f:ports":{"k:{\"containerPort\":80,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{}}}}}}}}}"#
        ]
    );
    let same = apply(&server, &path(), "fieldManager=helm", &whole(Some(2), "a")).await;
    assert_eq!((same.code, &same.body), (200, &created.body), "an apply that changes nothing is no write");
    let changed = apply(&server, &path(), "fieldManager=helm", &whole(None, "b")).await;
    assert_eq!(changed.body["spec"]["template"]["spec"]["containers"][0]["image"], "b");
    assert_eq!(changed.body["spec"]["replicas"], 1, "what is no longer applied gets its default");
    assert_eq!(get(&server, &path()).await.body, changed.body);
    server.stop().await;
}

#[tokio::test]
async fn conflicts_name_the_owners_and_force_takes_over() {
    let server = TestServer::start().await;
    apply(&server, &path(), "fieldManager=one", &whole(Some(1), "a")).await;
    let refused = apply(&server, &path(), "fieldManager=two", &web(json!({"replicas": 5}))).await;
    assert_eq!(
        refused.body,
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "Apply failed with 1 conflict: conflict with \"one\": .spec.replicas", "reason": "Conflict",
            "details": {"causes": [{"reason": "FieldManagerConflict", "message": "conflict with \"one\"", "field": ".spec.replicas"}]},
            "code": 409,
        })
    );
    let forced = apply(&server, &path(), "fieldManager=two&force=true", &web(json!({"replicas": 5}))).await;
    assert_eq!((forced.code, &forced.body["spec"]["replicas"]), (200, &json!(5)));
    assert!(!forced.owners()[0].contains("f:replicas"), "{:?}", forced.owners());
    assert_eq!(forced.owners()[1], r#"two Apply - {"f:spec":{"f:replicas":{}}}"#);
    server.stop().await;
}

#[tokio::test]
async fn requests_that_are_no_apply_are_refused() {
    let server = TestServer::start().await;
    let missing = apply(&server, &path(), "", &whole(None, "a")).await;
    assert_eq!(
        (missing.code, missing.message()),
        (422, "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch")
    );
    let mut owned = whole(None, "a");
    owned["metadata"]["managedFields"] = json!([]);
    let refused = apply(&server, &path(), "fieldManager=a", &owned).await;
    assert_eq!((refused.code, refused.message()), (400, "metadata.managedFields must be nil"));
    let mut other = whole(None, "a");
    other["kind"] = "Pod".into();
    let refused = apply(&server, &path(), "fieldManager=a", &other).await;
    assert_eq!((refused.code, refused.message()), (400, "invalid object type: apps/v1, Kind=Pod"));
    let unknown = apply(&server, &path(), "fieldManager=a", &web(json!({"nope": 1}))).await;
    let message = "failed to create typed patch object (default/web; apps/v1, Kind=Deployment): .spec.nope: field not declared in schema";
    assert_eq!((unknown.code, unknown.message()), (500, message));
    let named = apply(&server, &format!("{DEPLOYMENTS}/other"), "fieldManager=a", &whole(None, "a")).await;
    assert_eq!((named.code, named.message()), (400, "the name of the object (web) does not match the name on the URL (other)"));
    let no_list = send(&server, "PATCH", &format!("{}?fieldManager=a", path()), APPLY, "test", "[1]").await;
    assert_eq!(no_list.code, 400);
    let mut known = whole(None, "a");
    known["metadata"]["uid"] = "7".into();
    let gone = apply(&server, &path(), "fieldManager=a", &known).await;
    assert_eq!(gone.code, 409, "{}", gone.body);
    let forced = send(&server, "PATCH", &format!("{}?force=true", path()), MERGE, "test", "{}").await;
    assert_eq!(
        (forced.code, forced.message()),
        (422, "PatchOptions.meta.k8s.io \"\" is invalid: force: Forbidden: may not be specified for non-apply patch")
    );
    assert_eq!(get(&server, &path()).await.code, 404, "nothing was created");
    server.stop().await;
}

#[tokio::test]
async fn yaml_with_repeated_members_is_reported_or_refused() {
    let server = TestServer::start().await;
    let text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {b: c, b: d}\n";
    let at = |options: &str| format!("/api/v1/namespaces/default/configmaps/a?fieldManager=x{options}");
    let strict = send(&server, "PATCH", &at("&fieldValidation=Strict"), APPLY, "test", text).await;
    assert_eq!(strict.code, 400);
    assert!(strict.message().starts_with("error strict decoding YAML: "), "{}", strict.message());
    let warned = send(&server, "PATCH", &at(""), APPLY, "test", text).await;
    assert_eq!(warned.code, 201);
    assert!(
        warned.warning.contains(r#"error converting YAML to JSON: yaml: unmarshal errors:  line 4: key \"b\" already set in map"#),
        "{}",
        warned.warning
    );
    server.stop().await;
}

#[tokio::test]
async fn a_dry_run_stores_nothing() {
    let server = TestServer::start().await;
    let tried = apply(&server, &path(), "fieldManager=one&dryRun=All", &whole(Some(1), "a")).await;
    assert_eq!((tried.code, tried.owners().len()), (201, 1));
    assert_eq!(get(&server, &path()).await.code, 404);
    apply(&server, &path(), "fieldManager=one", &whole(Some(1), "a")).await;
    let tried = apply(&server, &path(), "fieldManager=one&dryRun=All", &whole(Some(4), "a")).await;
    assert_eq!(tried.body["spec"]["replicas"], 4);
    assert_eq!(get(&server, &path()).await.body["spec"]["replicas"], 1);
    server.stop().await;
}

#[tokio::test]
async fn other_writes_own_what_they_change() {
    let server = TestServer::start().await;
    let body = whole(Some(1), "a").to_string();
    let created = send(&server, "POST", DEPLOYMENTS, JSON, "kubectl/v1.36.0 (linux/amd64)", &body).await;
    assert_eq!(created.code, 201, "{}", created.body);
    let owners = created.owners();
    assert!(owners[0].starts_with("kubectl Update - ") && owners.len() == 1, "{owners:?}");
    assert!(owners[0].contains("\"f:revisionHistoryLimit\"") && !owners[0].contains("f:status") && !owners[0].contains("f:uid"), "{owners:?}");
    assert!(owners[0].contains(r#""f:strategy":{"f:rollingUpdate":{".":{},"f:maxSurge":{},"f:maxUnavailable":{}},"f:type":{}}"#), "{owners:?}");

    let patched = send(&server, "PATCH", &format!("{}?fieldManager=scaler", path()), MERGE, "test", r#"{"spec": {"replicas": 3}}"#).await;
    assert!(!patched.owners()[0].contains("f:replicas"));
    assert_eq!(patched.owners()[1], r#"scaler Update - {"f:spec":{"f:replicas":{}}}"#);
    let refused = apply(&server, &path(), "fieldManager=tool", &web(json!({"replicas": 9}))).await;
    assert_eq!(refused.message(), "Apply failed with 1 conflict: conflict with \"scaler\" using apps/v1: .spec.replicas");

    let mut status = patched.body.clone();
    status["status"] = json!({"replicas": 3, "observedGeneration": 2});
    status["spec"]["replicas"] = 8.into();
    let written = send(&server, "PUT", &format!("{}/status", path()), JSON, "controller/1", &status.to_string()).await;
    assert_eq!((written.code, &written.body["spec"]["replicas"]), (200, &json!(3)));
    let status = r#"controller Update status {"f:status":{"f:observedGeneration":{},"f:replicas":{}}}"#;
    assert!(written.owners().iter().any(|line| line == status), "{:?}", written.owners());

    let same = send(&server, "PUT", &path(), JSON, "somebody", &written.body.to_string()).await;
    assert_eq!(same.body, written.body, "who changes nothing owns nothing");
    let mut forgotten = written.body.clone();
    forgotten["metadata"]["managedFields"] = json!([]);
    let forgotten = send(&server, "PUT", &path(), JSON, "somebody", &forgotten.to_string()).await;
    assert_eq!(forgotten.owners(), Vec::<String>::new());
    let first = apply(&server, &path(), "fieldManager=tool", &web(json!({"replicas": 9}))).await;
    assert_eq!(first.message(), "Apply failed with 1 conflict: conflict with \"before-first-apply\" using apps/v1: .spec.replicas");
    server.stop().await;
}

#[tokio::test]
async fn scale_has_owners_of_its_own() {
    let server = TestServer::start().await;
    apply(&server, &path(), "fieldManager=one", &whole(Some(1), "a")).await;
    let scale = format!("{}/scale", path());
    assert_eq!(get(&server, &scale).await.owners(), [r#"one Apply - {"f:spec":{"f:replicas":{}}}"#]);
    let put = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "web", "namespace": "default"}, "spec": {"replicas": 4}});
    let answer = send(&server, "PUT", &scale, JSON, "hpa", &put.to_string()).await;
    assert_eq!((answer.code, &answer.body["spec"]["replicas"]), (200, &json!(4)));
    let owners = get(&server, &path()).await.owners();
    assert!(!owners[0].contains("f:replicas"), "{owners:?}");
    assert_eq!(owners[1], r#"hpa Update scale {"f:spec":{"f:replicas":{}}}"#);
    let mut applied = put;
    applied["spec"]["replicas"] = 6.into();
    let refused = apply(&server, &scale, "fieldManager=two", &applied).await;
    assert_eq!(refused.code, 409, "{}", refused.body);
    assert!(refused.message().contains("\"hpa\" with subresource \"scale\""), "{}", refused.message());
    let forced = apply(&server, &scale, "fieldManager=two&force=true", &applied).await;
    assert_eq!((forced.code, &forced.body["spec"]["replicas"]), (200, &json!(6)), "{}", forced.body);
    assert_eq!(get(&server, &path()).await.owners()[1], r#"two Apply scale {"f:spec":{"f:replicas":{}}}"#);
    server.stop().await;
}

#[tokio::test]
async fn kubectl_takes_over_from_client_side_apply() {
    let server = TestServer::start().await;
    let annotation = "kubectl.kubernetes.io/last-applied-configuration";
    let mut object = whole(Some(1), "a");
    let last = object.to_string();
    object["metadata"]["annotations"] = json!({annotation: last});
    let path = path();
    let created = send(&server, "POST", &format!("{DEPLOYMENTS}?fieldManager=kubectl-client-side-apply"), JSON, "test", &object.to_string()).await;
    assert_eq!(created.code, 201);
    let refused = apply(&server, &path, "fieldManager=helm", &whole(Some(1), "b")).await;
    assert_eq!(refused.code, 409);
    let upgraded = apply(&server, &path, "fieldManager=kubectl", &whole(Some(1), "b")).await;
    assert_eq!(upgraded.code, 200, "{}", upgraded.body);
    let text = upgraded.body["metadata"]["annotations"][annotation].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), whole(Some(1), "b"));
    server.stop().await;
}

#[tokio::test]
async fn statuses_and_other_kinds_are_applied() {
    let server = TestServer::start().await;
    apply(&server, &path(), "fieldManager=one", &whole(Some(1), "a")).await;
    let mut status = web(json!({}));
    status.as_object_mut().unwrap().shift_remove("spec");
    status["status"] = json!({"replicas": 1, "conditions": [{"type": "Available", "status": "True"}]});
    let applied = apply(&server, &format!("{}/status", path()), "fieldManager=controller", &status).await;
    assert_eq!(applied.code, 200, "{}", applied.body);
    assert_eq!(applied.body["status"]["conditions"][0]["type"], "Available");
    let owners = applied.owners();
    assert!(
        owners.iter().any(|line| line.starts_with("controller Apply status {\"f:status\":{\"f:conditions\":{\"k:{\\\"type\\\":\\\"Available\\\"}\"")),
        "{owners:?}"
    );
    let absent = apply(&server, &format!("{DEPLOYMENTS}/none/status"), "fieldManager=controller", &status).await;
    assert_eq!(absent.code, 404, "only objects are created by apply");

    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}, {"port": 53, "protocol": "UDP", "name": "dns"}, {"port": 53, "name": "dns-tcp"}]}});
    let mut named = service.clone();
    named["spec"]["ports"][0]["name"] = "http".into();
    let at = "/api/v1/namespaces/default/services/web";
    let created = apply(&server, at, "fieldManager=one", &named).await;
    assert_eq!(created.code, 201, "{}", created.body);
    let again = apply(&server, at, "fieldManager=one", &named).await;
    assert_eq!((again.code, &again.body), (200, &created.body), "what the server allocated stays");
    server.stop().await;
}

/// Lists of one owner are replaced whole: admission gives an updated pod back what it gave the new one.
#[tokio::test]
async fn an_applied_pod_keeps_what_admission_gave_it() {
    let server = TestServer::start().await;
    let path = "/api/v1/namespaces/default/pods/p";
    let pod = |image: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {
            "tolerations": [{"key": "os", "operator": "Equal", "value": "windows", "effect": "NoSchedule"}],
            "containers": [{"name": "iis", "image": image}],
        }})
    };
    let first = apply(&server, path, "fieldManager=helm", &pod("microsoft/iis:1")).await;
    assert_eq!(first.code, 201, "{}", first.message());
    let second = apply(&server, path, "fieldManager=helm", &pod("microsoft/iis:2")).await;
    assert_eq!(second.code, 200, "{}", second.message());
    let keys: Vec<&str> = second.body["spec"]["tolerations"].as_array().unwrap().iter().map(|one| one["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["os", "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]);

    let mut replaced = second.body.clone();
    let spec = replaced["spec"].as_object_mut().unwrap();
    for field in ["priority", "preemptionPolicy"] {
        assert!(spec.remove(field).is_some(), "{field}");
    }
    let third = send(&server, "PUT", path, JSON, "test", &replaced.to_string()).await;
    assert_eq!(third.code, 200, "{}", third.message());
    assert_eq!((&third.body["spec"]["priority"], &third.body["spec"]["preemptionPolicy"]), (&json!(0), &json!("PreemptLowerPriority")));
}
