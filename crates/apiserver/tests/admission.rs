//! Admission over HTTP: what the policies of a Namespace refuse, and of what they warn.

mod common;

use common::TestServer;
use http::Request;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tower::ServiceExt;

/// Code, Warning headers, body.
async fn ask(server: &TestServer, method: &str, path: &str, body: &Value) -> (u16, Vec<String>, Value) {
    let content = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let request = Request::builder().method(method).uri(path).header("content-type", content);
    let request = request.body(Full::<bytes::Bytes>::from(body.to_string())).unwrap();
    let response = server.service("admin", &["system:masters"]).oneshot(request).await.unwrap();
    let warnings = response.headers().get_all("warning").iter().map(|value| value.to_str().unwrap().to_string()).collect();
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, warnings, serde_json::from_slice(&bytes).unwrap())
}

async fn namespace(server: &TestServer, name: &str, labels: Value) {
    let body = json!({"metadata": {"name": name, "labels": labels}});
    assert_eq!(ask(server, "POST", "/api/v1/namespaces", &body).await.0, 201);
    let account = json!({"metadata": {"name": "default"}});
    assert_eq!(ask(server, "POST", &format!("/api/v1/namespaces/{name}/serviceaccounts"), &account).await.0, 201);
}

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "x", "image": "i"}]}})
}

const RESTRICTED: &str = concat!(
    r#"allowPrivilegeEscalation != false (container "x" must set securityContext.allowPrivilegeEscalation=false), "#,
    r#"unrestricted capabilities (container "x" must set securityContext.capabilities.drop=["ALL"]), "#,
    r#"runAsNonRoot != true (pod or container "x" must set securityContext.runAsNonRoot=true), "#,
    r#"seccompProfile (pod or container "x" must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")"#
);

#[tokio::test]
async fn pod_security_refuses_pods_and_warns_of_workloads() {
    let server = TestServer::start().await;
    namespace(&server, "strict", json!({"pod-security.kubernetes.io/enforce": "restricted"})).await;
    let (code, warnings, refused) = ask(&server, "POST", "/api/v1/namespaces/strict/pods", &pod("p")).await;
    let expected = format!(r#"pods "p" is forbidden: violates PodSecurity "restricted:latest": {RESTRICTED}"#);
    assert_eq!((code, refused["message"].as_str().unwrap(), warnings.len()), (403, expected.as_str(), 0));
    assert_eq!(refused["details"], json!({"name": "p", "kind": "pods"}));
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": pod("x")["spec"]}}});
    let (code, warnings, _) = ask(&server, "POST", "/apis/apps/v1/namespaces/strict/deployments", &deployment).await;
    let expected = format!(r#"299 - "would violate PodSecurity \"restricted:latest\": {}""#, RESTRICTED.replace('"', r#"\""#));
    assert_eq!((code, warnings), (201, vec![expected]));
    let mut windows = pod("w");
    windows["spec"]["os"] = json!({"name": "windows"});
    windows["spec"]["securityContext"] = json!({"runAsNonRoot": true});
    assert_eq!(ask(&server, "POST", "/api/v1/namespaces/strict/pods", &windows).await.0, 201, "Linux' settings are not Windows'");
}

#[tokio::test]
async fn pod_security_checks_labels_and_existing_pods() {
    let server = TestServer::start().await;
    namespace(&server, "open", json!({})).await;
    let mut host = pod("h");
    host["spec"]["hostNetwork"] = true.into();
    assert_eq!(ask(&server, "POST", "/api/v1/namespaces/open/pods", &host).await.0, 201);
    let level = |level: &str| json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}});
    let (code, warnings, _) = ask(&server, "PATCH", "/api/v1/namespaces/open", &level("baseline")).await;
    let expected = [
        r#"299 - "existing pods in namespace \"open\" violate the new PodSecurity enforce level \"baseline:latest\"""#,
        r#"299 - "h: host namespaces""#,
    ];
    assert_eq!((code, warnings), (200, expected.map(str::to_string).to_vec()));
    let (code, _, refused) = ask(&server, "PATCH", "/api/v1/namespaces/open", &level("strict")).await;
    let expected = concat!(
        r#"Namespace "open" is invalid: metadata.labels[pod-security.kubernetes.io/enforce]: "#,
        r#"Invalid value: "strict": must be one of privileged, baseline, restricted"#
    );
    assert_eq!((code, refused["message"].as_str().unwrap()), (422, expected));
}

#[tokio::test]
async fn quotas_and_limit_ranges_hold_for_clients() {
    let server = TestServer::start().await;
    let limit = json!({"type": "Container", "defaultRequest": {"memory": "64Mi"}, "min": {"memory": "32Mi"}});
    let range = json!({"metadata": {"name": "l"}, "spec": {"limits": [limit]}});
    assert_eq!(ask(&server, "POST", "/api/v1/namespaces/default/limitranges", &range).await.0, 201);
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"requests.memory": "100Mi"}}});
    assert_eq!(ask(&server, "POST", "/api/v1/namespaces/default/resourcequotas", &quota).await.0, 201);
    let path = "/api/v1/namespaces/default/resourcequotas/q/status";
    let status = json!({"status": {"hard": {"requests.memory": "100Mi"}, "used": {"requests.memory": "0"}}});
    assert_eq!(ask(&server, "PATCH", path, &status).await.0, 200);
    let (code, _, first) = ask(&server, "POST", "/api/v1/namespaces/default/pods", &pod("a")).await;
    assert_eq!((code, &first["spec"]["containers"][0]["resources"]["requests"]["memory"]), (201, &json!("64Mi")));
    let (code, _, refused) = ask(&server, "POST", "/api/v1/namespaces/default/pods", &pod("b")).await;
    let expected =
        r#"pods "b" is forbidden: exceeded quota: q, requested: requests.memory=64Mi, used: requests.memory=64Mi, limited: requests.memory=100Mi"#;
    assert_eq!((code, refused["message"].as_str().unwrap()), (403, expected));
    let mut small = pod("c");
    small["spec"]["containers"][0]["resources"] = json!({"requests": {"memory": "1Mi"}});
    let (code, _, refused) = ask(&server, "POST", "/api/v1/namespaces/default/pods", &small).await;
    let expected = r#"pods "c" is forbidden: minimum memory usage per Container is 32Mi, but request is 1Mi"#;
    assert_eq!((code, refused["message"].as_str().unwrap()), (403, expected));
}
