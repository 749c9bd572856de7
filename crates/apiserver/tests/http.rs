//! What only raw requests show: field validation, dry runs, generated names, impersonation, media types, errors of unknown paths.

mod common;

use common::TestServer;
use http::{Request, StatusCode};
use serde_json::{Value, json};
use tower::ServiceExt;

/// Sends a request as `user` and returns code, Warning headers and body.
async fn send(
    server: &TestServer,
    user: &str,
    groups: &[&str],
    request: Request<http_body_util::Full<bytes::Bytes>>,
) -> (StatusCode, Vec<String>, Vec<u8>) {
    use http_body_util::BodyExt;
    let response = server.service(user, groups).oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let warnings = parts.headers.get_all("warning").iter().map(|value| value.to_str().unwrap().to_string()).collect();
    (parts.status, warnings, body.collect().await.unwrap().to_bytes().to_vec())
}

fn request(method: &str, path: &str, headers: &[(&str, &str)], body: impl Into<bytes::Bytes>) -> Request<http_body_util::Full<bytes::Bytes>> {
    let builder = headers.iter().fold(Request::builder().method(method).uri(path), |builder, (name, value)| builder.header(*name, *value));
    builder.body(http_body_util::Full::new(body.into())).unwrap()
}

async fn admin(server: &TestServer, method: &str, path: &str, body: &Value) -> (StatusCode, Vec<String>, Value) {
    let content = if body.is_null() { String::new() } else { body.to_string() };
    let (code, warnings, body) =
        send(server, "admin", &["system:masters"], request(method, path, &[("content-type", "application/json")], content)).await;
    (code, warnings, serde_json::from_slice(&body).unwrap_or_default())
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test]
async fn unknown_fields_are_refused_reported_or_ignored() {
    let server = TestServer::start().await;
    let map = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "dada": {"a": "b"}});
    let (code, _, body) = admin(&server, "POST", &format!("{MAPS}?fieldValidation=Strict"), &map("a")).await;
    assert_eq!(code, 400);
    assert_eq!(body["message"], "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: unknown field \"dada\"");
    let deployment = r#"{"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"unknownField": 1, "replicas": 1, "replicas": 2}}"#;
    let path = "/apis/apps/v1/namespaces/default/deployments?fieldValidation=Strict";
    let (_, _, body) = send(&server, "admin", &["system:masters"], request("POST", path, &[("content-type", "application/json")], deployment)).await;
    let body: Value = serde_json::from_slice(&body).unwrap();
    let wanted = "strict decoding error: unknown field \"spec.unknownField\", duplicate field \"spec.replicas\"";
    assert!(body["message"].as_str().unwrap().ends_with(wanted), "{body}");
    let (code, warnings, body) = admin(&server, "POST", MAPS, &map("a")).await;
    assert_eq!((code.as_u16(), warnings), (201, vec!["299 - \"unknown field \\\"dada\\\"\"".to_string()]));
    assert!(body.get("dada").is_none());
    let (code, warnings, _) = admin(&server, "POST", &format!("{MAPS}?fieldValidation=Ignore"), &map("b")).await;
    assert_eq!((code.as_u16(), warnings.len()), (201, 0));
    server.stop().await;
}

#[tokio::test]
async fn dry_runs_write_nothing_and_names_are_generated() {
    let server = TestServer::start().await;
    let map = json!({"metadata": {"generateName": "web-"}});
    let (code, _, body) = admin(&server, "POST", &format!("{MAPS}?dryRun=All"), &map).await;
    assert_eq!(code, 201);
    let name = body["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("web-") && name.len() == "web-".len() + 5, "{name}");
    let (_, _, list) = admin(&server, "GET", MAPS, &Value::Null).await;
    assert_eq!(list["items"], json!([]));
    let (code, _, body) = admin(&server, "POST", &format!("{MAPS}?dryRun=Some"), &map).await;
    assert_eq!(code, 422, "{body}");
    server.stop().await;
}

#[tokio::test]
async fn bodies_may_be_yaml_or_protobuf_and_answers_yaml() {
    let server = TestServer::start().await;
    let yaml = request("POST", MAPS, &[("content-type", "application/yaml"), ("accept", "application/yaml")], "metadata: {name: y}\ndata: {a: b}\n");
    let (code, _, body) = send(&server, "admin", &["system:masters"], yaml).await;
    assert_eq!(code, 201);
    assert!(String::from_utf8(body).unwrap().starts_with("kind: ConfigMap\n"));
    // apiVersion v1, kind ConfigMap, metadata.name "p".
    let protobuf = b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x05\x0a\x03\x0a\x01p".to_vec();
    let (code, _, body) =
        send(&server, "admin", &["system:masters"], request("POST", MAPS, &[("content-type", "application/vnd.kubernetes.protobuf")], protobuf))
            .await;
    assert_eq!(code, 201, "{}", String::from_utf8_lossy(&body));
    let (code, _, _) = send(&server, "admin", &["system:masters"], request("POST", MAPS, &[("content-type", "application/cbor")], "x")).await;
    assert_eq!(code, 415);
    server.stop().await;
}

#[tokio::test]
async fn impersonation_needs_permission() {
    let server = TestServer::start().await;
    let ask = |user: &'static str| request("GET", "/api/v1/namespaces/default/pods", &[("impersonate-user", user)], "");
    let (code, _, body) = send(&server, "admin", &["system:masters"], ask("bob")).await;
    assert_eq!(code, 403);
    assert!(String::from_utf8(body).unwrap().contains("User \\\"bob\\\" cannot list resource \\\"pods\\\""));
    let (code, _, body) = send(&server, "eve", &[], ask("admin")).await;
    assert_eq!(code, 403);
    assert!(String::from_utf8(body).unwrap().contains("User \\\"eve\\\" cannot impersonate resource \\\"users\\\""));
    server.stop().await;
}

#[tokio::test]
async fn unknown_groups_and_paths_are_plain_404s() {
    let server = TestServer::start().await;
    for path in ["/apis/extensions/v1beta1/namespaces/default/deployments", "/apis/extensions/v1beta1", "/nonsense"] {
        let (code, _, body) = send(&server, "admin", &["system:masters"], request("GET", path, &[], "")).await;
        assert_eq!((code.as_u16(), body.as_slice()), (404, &b"404 page not found\n"[..]), "{path}");
    }
    let (code, _, body) = admin(&server, "POST", "/api/v1/pods", &json!({})).await;
    assert_eq!(code, 405, "{body}");
    server.stop().await;
}

#[tokio::test]
async fn health_and_version_are_public_but_nothing_else() {
    let server = TestServer::start().await;
    for (path, expected) in [("/readyz", 200), ("/version", 200), ("/livez?verbose", 200), ("/api/v1/namespaces", 403), ("/metrics", 403)] {
        let (code, _, _) = send(&server, "system:anonymous", &["system:unauthenticated"], request("GET", path, &[], "")).await;
        assert_eq!(code.as_u16(), expected, "{path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn health_checks_have_upstream_s_names_and_texts() {
    let server = TestServer::start().await;
    let ask = async |path: &str| {
        let (code, _, body) = send(&server, "admin", &["system:masters"], request("GET", path, &[], "")).await;
        (code.as_u16(), String::from_utf8(body).unwrap())
    };
    let (code, text) = ask("/readyz?verbose").await;
    assert_eq!(code, 200);
    assert!(text.starts_with("[+]ping ok\n[+]log ok\n[+]etcd ok\n[+]etcd-readiness ok\n"), "{text}");
    assert!(text.ends_with("[+]shutdown ok\nreadyz check passed\n"), "{text}");
    for path in ["/livez/ping", "/healthz/etcd", "/readyz/poststarthook/rbac/bootstrap-roles", "/livez?exclude=etcd"] {
        let (code, text) = ask(path).await;
        assert_eq!((code, text.as_str()), (200, "ok"), "{path}");
    }
    assert_eq!(ask("/livez/shutdown").await.0, 404, "only readiness ends with the server");
    let (_, text) = ask("/livez?verbose&exclude=nothing").await;
    assert!(text.ends_with("warn: some health checks cannot be excluded: no matches for \"nothing\"\nlivez check passed\n"), "{text}");
    let (_, text) = ask("/").await;
    for path in ["/livez/poststarthook/crd-informer-synced", "/apis/apps/v1", "/api/v1", "/openid/v1/jwks"] {
        assert!(text.contains(&format!("{path:?}")), "{path} in {text}");
    }
    server.stop().await;
}

#[tokio::test]
async fn nobody_grants_what_they_do_not_hold() {
    let server = TestServer::start().await;
    let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";
    let bind = |name: &str, role: &str| json!({"metadata": {"name": name}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}, "subjects": [{"kind": "User", "name": "bob", "apiGroup": "rbac.authorization.k8s.io"}]});
    let (code, _, body) = admin(&server, "POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings", &bind("a", "admin")).await;
    assert_eq!(code, 201, "{body}");
    let role = |resource: &str| {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"generateName": "r-"}, "rules": [{"apiGroups": [""], "resources": [resource], "verbs": ["get"]}]}).to_string()
    };
    let headers = [("content-type", "application/json")];
    let (code, _, _) = send(&server, "bob", &[], request("POST", roles, &headers, role("pods"))).await;
    assert_eq!(code, 201);
    let (code, _, body) = send(&server, "bob", &[], request("POST", roles, &headers, role("nodes"))).await;
    assert_eq!(code, 403);
    let text = String::from_utf8(body).unwrap();
    assert!(text.contains("is attempting to grant RBAC permissions not currently held"), "{text}");
    server.stop().await;
}

#[tokio::test]
async fn large_documents_are_packed_and_kept_by_their_hash() {
    let server = TestServer::start().await;
    let get = async |path: &str, headers: &[(&str, &str)]| {
        server.service("admin", &["system:masters"]).oneshot(request("GET", path, headers, "")).await.unwrap()
    };
    let (_, _, index) = admin(&server, "GET", "/openapi/v3", &Value::Null).await;
    let url = index["paths"]["api/v1"]["serverRelativeURL"].as_str().unwrap();
    let packed = get(url, &[("accept-encoding", "gzip")]).await;
    assert_eq!((packed.status(), &packed.headers()["content-encoding"]), (StatusCode::OK, &"gzip".parse().unwrap()));
    assert_eq!(packed.headers()["cache-control"], "public, immutable");
    let tag = packed.headers()["etag"].to_str().unwrap().to_string();
    let known = get("/openapi/v3/api/v1", &[("if-none-match", &tag)]).await;
    assert_eq!(known.status(), StatusCode::NOT_MODIFIED);
    let stale = get("/openapi/v3/api/v1?hash=OLD", &[]).await;
    assert_eq!((stale.status(), stale.headers()["location"].to_str().unwrap()), (StatusCode::MOVED_PERMANENTLY, url));
    assert_eq!(get("/openapi/v3/apis/extensions/v1beta1", &[]).await.status(), StatusCode::NOT_FOUND);
    let small = get("/api/v1/namespaces/default", &[("accept-encoding", "gzip")]).await;
    assert!(!small.headers().contains_key("content-encoding"));
    server.stop().await;
}

#[tokio::test]
async fn a_review_is_no_table() {
    let server = TestServer::start().await;
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}}});
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    for (accept, wanted) in [
        ("application/json;as=Table;v=v1;g=meta.k8s.io", 406),
        ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", 406),
        ("application/json", 201),
    ] {
        let headers = [("content-type", "application/json"), ("accept", accept)];
        let (code, _, body) = send(&server, "admin", &["system:masters"], request("POST", path, &headers, review.to_string())).await;
        assert_eq!(code, wanted, "{accept}: {}", String::from_utf8_lossy(&body));
    }
    server.stop().await;
}
