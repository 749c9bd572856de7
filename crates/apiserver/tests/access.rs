//! Nobody gets more than they hold: bindings, aggregated roles, creation by PUT, WebSockets into pods.

mod common;

use common::TestServer;
use http::Request;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tower::ServiceExt;

async fn ask(server: &TestServer, user: &str, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> (u16, Value) {
    let builder = Request::builder().method(method).uri(path).header("content-type", "application/json");
    let builder = headers.iter().fold(builder, |builder, (name, value)| builder.header(*name, *value));
    let groups: &[&str] = if user == "admin" { &["system:masters"] } else { &[] };
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let response = server.service(user, groups).oneshot(builder.body(Full::new(bytes::Bytes::from(body))).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    (parts.status.as_u16(), serde_json::from_slice(&bytes).unwrap_or_default())
}

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const LOCAL: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";

/// Gives `user` these rules in the namespace `default`.
async fn grant(server: &TestServer, user: &str, rules: Value) {
    let role = json!({"metadata": {"name": user}, "rules": rules});
    let binding = json!({"metadata": {"name": user}, "roleRef": {"kind": "Role", "name": user}, "subjects": [{"kind": "User", "name": user}]});
    assert_eq!(ask(server, "admin", "POST", &format!("{LOCAL}/roles"), &[], &role).await.0, 201);
    assert_eq!(ask(server, "admin", "POST", &format!("{LOCAL}/rolebindings"), &[], &binding).await.0, 201);
}

#[tokio::test]
async fn nobody_joins_a_binding_that_grants_more() {
    let server = TestServer::start().await;
    grant(&server, "eve", json!([{"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["rolebindings"], "verbs": ["*"]}])).await;
    let role_ref = |name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name});
    let binding = json!({"metadata": {"name": "power"}, "roleRef": role_ref("cluster-admin"), "subjects": [{"kind": "User", "name": "bob"}]});
    assert_eq!(ask(&server, "admin", "POST", &format!("{LOCAL}/rolebindings"), &[], &binding).await.0, 201);
    let mut joined = binding.clone();
    joined["subjects"] = json!([{"kind": "User", "name": "eve"}]);
    let (code, refused) = ask(&server, "eve", "PUT", &format!("{LOCAL}/rolebindings/power"), &[], &joined).await;
    assert_eq!(code, 403, "{refused}");
    assert!(refused["message"].as_str().unwrap().contains("is attempting to grant RBAC permissions not currently held"));
    let dangling = json!({"metadata": {"name": "later"}, "roleRef": role_ref("to-come"), "subjects": [{"kind": "User", "name": "eve"}]});
    assert_eq!(ask(&server, "eve", "POST", &format!("{LOCAL}/rolebindings"), &[], &dangling).await.0, 404);
    server.stop().await;
}

#[tokio::test]
async fn labelled_roles_become_part_of_edit() {
    let server = TestServer::start().await;
    let rule = json!({"apiGroups": ["example.com"], "resources": ["things"], "verbs": ["get"]});
    let role = json!({"metadata": {"name": "things", "labels": {"rbac.authorization.k8s.io/aggregate-to-edit": "true"}}, "rules": [rule]});
    assert_eq!(ask(&server, "admin", "POST", &format!("{RBAC}/clusterroles"), &[], &role).await.0, 201);
    for (name, wanted) in [("view", false), ("edit", true), ("admin", true)] {
        let rules = ask(&server, "admin", "GET", &format!("{RBAC}/clusterroles/{name}"), &[], &Value::Null).await.1["rules"].clone();
        let rules = rules.as_array().unwrap();
        assert_eq!(rules.contains(&rule), wanted, "{name}");
        assert!(rules.iter().any(|rule| rule["apiGroups"] == json!(["metrics.k8s.io"])), "{name} reads metrics");
    }
    assert_eq!(ask(&server, "admin", "DELETE", &format!("{RBAC}/clusterroles/things"), &[], &Value::Null).await.0, 200);
    let edit = ask(&server, "admin", "GET", &format!("{RBAC}/clusterroles/edit"), &[], &Value::Null).await.1;
    assert!(!edit["rules"].as_array().unwrap().contains(&rule));
    server.stop().await;
}

#[tokio::test]
async fn a_put_that_creates_needs_the_right_to_create() {
    let server = TestServer::start().await;
    grant(&server, "bob", json!([{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "update"]}])).await;
    let path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/l";
    let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "bob"}});
    let (code, refused) = ask(&server, "bob", "PUT", path, &[], &lease).await;
    assert_eq!(code, 403, "{refused}");
    assert!(refused["message"].as_str().unwrap().contains("cannot create resource \"leases\""), "{refused}");
    assert_eq!(ask(&server, "admin", "PUT", path, &[], &lease).await.0, 201);
    assert_eq!(ask(&server, "bob", "PUT", path, &[], &lease).await.0, 200);
    server.stop().await;
}

/// What an older version or an accident left out of a bootstrap role comes back with the next start, unless it is not to be updated.
#[tokio::test]
async fn bootstrap_roles_are_completed_at_the_start() {
    let server = TestServer::start().await;
    for (name, update) in [("system:kube-scheduler", "true"), ("system:kube-dns", "false")] {
        let annotations = json!({"rbac.authorization.kubernetes.io/autoupdate": update});
        let role =
            json!({"metadata": {"name": name, "annotations": annotations}, "rules": [{"apiGroups": ["own"], "resources": ["x"], "verbs": ["get"]}]});
        assert_eq!(ask(&server, "admin", "PUT", &format!("{RBAC}/clusterroles/{name}"), &[], &role).await.0, 200);
    }
    let server = server.restart().await;
    for (name, completed) in [("system:kube-scheduler", true), ("system:kube-dns", false)] {
        let rules = ask(&server, "admin", "GET", &format!("{RBAC}/clusterroles/{name}"), &[], &Value::Null).await.1["rules"].clone();
        assert_eq!(rules[0]["apiGroups"], json!(["own"]), "what was added stays");
        assert_eq!(rules.as_array().unwrap().len() > 1, completed, "{name}");
    }
    server.stop().await;
}

/// A role for everything in a namespace gives nothing of what lies outside.
#[tokio::test]
async fn the_master_of_a_namespace_is_nobody_outside() {
    let server = TestServer::start().await;
    grant(&server, "boss", json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}])).await;
    let node = json!({"metadata": {"name": "n1"}, "status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}});
    assert_eq!(ask(&server, "admin", "POST", "/api/v1/nodes", &[], &node).await.0, 201);
    for path in [
        "/api/v1/namespaces/default/nodes/n1",
        "/api/v1/namespaces/default/nodes/n1/proxy/metrics",
        "/api/v1/namespaces/default/nodes/n1/status",
        "/apis/metrics.k8s.io/v1beta1/namespaces/default/nodes",
        "/api/v1/namespaces/default/persistentvolumes/x",
        "/api/v1/namespaces/default/pods/p/status/more",
    ] {
        assert_eq!(ask(&server, "boss", "GET", path, &[], &Value::Null).await.0, 404, "{path}");
    }
    let review = json!({"spec": {"user": "admin", "resourceAttributes": {"namespace": "kube-system", "verb": "get", "resource": "secrets"}}});
    let reviews = "/apis/authorization.k8s.io/v1/namespaces/default";
    assert_eq!(ask(&server, "boss", "POST", &format!("{reviews}/subjectaccessreviews"), &[], &review).await.0, 404);
    assert_eq!(ask(&server, "boss", "POST", &format!("{reviews}/localsubjectaccessreviews"), &[], &review).await.0, 422);
    for path in ["/api/v1/nodes/n1/proxy/metrics", "/api/v1/nodes", "/api/v1/pods", "/api/v1/namespaces/kube-system/secrets"] {
        assert_eq!(ask(&server, "boss", "GET", path, &[], &Value::Null).await.0, 403, "{path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_socket_into_a_pod_needs_the_right_to_create_it() {
    let server = TestServer::start().await;
    grant(&server, "viewer", json!([{"apiGroups": [""], "resources": ["pods/exec", "pods/portforward"], "verbs": ["get"]}])).await;
    let upgrade = [("connection", "Upgrade"), ("upgrade", "websocket")];
    for subresource in ["exec?command=id", "portforward"] {
        let path = format!("/api/v1/namespaces/default/pods/p/{subresource}");
        let (code, refused) = ask(&server, "viewer", "GET", &path, &upgrade, &Value::Null).await;
        assert_eq!(code, 403, "{refused}");
        assert!(refused["message"].as_str().unwrap().contains("cannot create resource \"pods/"), "{refused}");
    }
    server.stop().await;
}

#[tokio::test]
async fn bootstrap_tokens_authenticate_until_they_expire() {
    let server = TestServer::start().await;
    let who = async |token: &str| {
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
        server.post("/apis/authentication.k8s.io/v1/tokenreviews", &review).await.unwrap()["status"].clone()
    };
    let token = "abcdef.0123456789abcdef";
    assert_eq!(who(token).await["authenticated"], Value::Null, "no Secret says so");
    let secret = |expiration: &str| {
        json!({
            "metadata": {"name": "bootstrap-token-abcdef"}, "type": "bootstrap.kubernetes.io/token",
            "stringData": {
                "token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
                "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token", "expiration": expiration,
            },
        })
    };
    let path = "/api/v1/namespaces/kube-system/secrets";
    server.post(path, &secret("2100-01-01T00:00:00Z")).await.unwrap();
    let user = who(token).await["user"].clone();
    assert_eq!(user["username"], "system:bootstrap:abcdef");
    let groups = json!(["system:bootstrappers", "system:bootstrappers:kubeadm:default-node-token", "system:authenticated"]);
    assert_eq!(user["groups"], groups);
    assert_eq!(who("abcdef.0123456789abcdee").await["authenticated"], Value::Null, "another secret");
    server.put(&format!("{path}/bootstrap-token-abcdef"), &secret("2025-01-01T00:00:00Z")).await.unwrap();
    assert_eq!(who(token).await["authenticated"], Value::Null, "expired");
    server.stop().await;
}
