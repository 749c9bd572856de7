//! Requests of attackers: each was answered once.

mod common;

use common::TestServer;
use http::Request;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use std::time::Duration;
use tower::ServiceExt;

/// Longest that a watch is looked at.
const LOOK: Duration = Duration::from_millis(500);

struct Client<'a> {
    server: &'a TestServer,
    user: String,
    groups: Vec<&'static str>,
}

impl Client<'_> {
    async fn raw(&self, method: &str, path: &str, content_type: &str, headers: &[(&str, &str)], body: impl Into<bytes::Bytes>) -> (u16, String) {
        let builder = Request::builder().method(method).uri(path).header("content-type", content_type);
        let request = headers.iter().fold(builder, |builder, (name, value)| builder.header(*name, *value)).body(Full::new(body.into())).unwrap();
        let response = self.server.service(&self.user, &self.groups).oneshot(request).await.unwrap();
        let (parts, mut body) = response.into_parts();
        let mut text = Vec::new();
        // A watch has no end.
        while let Ok(Some(Ok(frame))) = tokio::time::timeout(LOOK, body.frame()).await {
            text.extend_from_slice(&frame.into_data().unwrap_or_default());
        }
        (parts.status.as_u16(), String::from_utf8_lossy(&text).into_owned())
    }

    async fn send(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let (code, text) = self.raw(method, path, "application/json", &[], body.to_string()).await;
        (code, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    async fn get(&self, path: &str) -> (u16, String) {
        self.raw("GET", path, "application/json", &[], "").await
    }

    async fn create(&self, path: &str, body: Value) -> Value {
        let (code, created) = self.send("POST", path, body).await;
        assert_eq!(code, 201, "{path}: {created}");
        created
    }
}

trait Clients {
    fn master(&self) -> Client<'_>;
    fn node(&self, name: &str) -> Client<'_>;
    fn user(&self, name: &str) -> Client<'_>;
}

impl Clients for TestServer {
    fn master(&self) -> Client<'_> {
        Client { server: self, user: "admin".into(), groups: vec!["system:masters"] }
    }

    fn node(&self, name: &str) -> Client<'_> {
        Client { server: self, user: format!("system:node:{name}"), groups: vec!["system:nodes"] }
    }

    fn user(&self, name: &str) -> Client<'_> {
        Client { server: self, user: name.into(), groups: vec![] }
    }
}

/// Gives `user` these rules in a namespace.
async fn grant(server: &TestServer, user: &str, namespace: &str, rules: Value) {
    let path = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}");
    server.master().create(&format!("{path}/roles"), json!({"metadata": {"name": user}, "rules": rules})).await;
    let binding = json!({"metadata": {"name": user}, "roleRef": {"kind": "Role", "name": user}, "subjects": [{"kind": "User", "name": user}]});
    server.master().create(&format!("{path}/rolebindings"), binding).await;
}

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Two Secrets, of which a pod on node n1 uses one.
async fn with_secrets(server: &TestServer) {
    for name in ["mine", "other"] {
        server.master().create(SECRETS, json!({"metadata": {"name": name}, "stringData": {"text": format!("content-of-{name}")}})).await;
    }
    server.master().create("/api/v1/nodes", json!({"metadata": {"name": "n1"}})).await;
    let container = json!({"name": "c", "image": "i", "env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": "mine", "key": "text"}}}]});
    let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n1", "containers": [container]}});
    server.master().create("/api/v1/namespaces/default/pods", pod).await;
}

/// Whoever has the key that is shown to kubelets rules kubelets, not the API.
#[tokio::test]
async fn the_client_of_kubelets_reads_no_secrets() {
    let server = TestServer::start().await;
    with_secrets(&server).await;
    let client = server.user("kube-apiserver-kubelet-client");
    assert_eq!(client.get(&format!("{SECRETS}/mine")).await.0, 403);
    let delete = client.send("DELETE", "/api/v1/nodes/n1", Value::Null).await;
    assert_eq!(delete.0, 403, "{}", delete.1);
    server.stop().await;
}

#[tokio::test]
async fn a_watch_of_one_object_shows_one_object() {
    let server = TestServer::start().await;
    with_secrets(&server).await;
    grant(&server, "reader", "default", json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "watch"], "resourceNames": ["mine"]}]))
        .await;
    for client in [server.node("n1"), server.user("reader")] {
        for path in [
            format!("{SECRETS}/mine?watch=1"),
            format!("{SECRETS}/mine?watch=true&resourceVersion=0"),
            format!("{SECRETS}?watch=1&fieldSelector=metadata.name%3Dmine"),
            "/api/v1/watch/namespaces/default/secrets/mine".into(),
        ] {
            let (code, text) = client.get(&path).await;
            assert_eq!(code, 200, "{} {path}: {text}", client.user);
            assert!(text.contains("\"name\":\"mine\"") && !text.contains("other"), "{} {path}: {text}", client.user);
        }
        for path in [
            format!("{SECRETS}?watch=1"),
            format!("{SECRETS}/other?watch=1"),
            format!("{SECRETS}?watch=1&fieldSelector=metadata.name%3Dother"),
            format!("{SECRETS}?watch=1&fieldSelector=metadata.name%21%3Dmine"),
            format!("{SECRETS}?fieldSelector=type%3DOpaque"),
            "/api/v1/secrets?watch=1&fieldSelector=metadata.name%3Dmine".into(),
            "/api/v1/watch/namespaces/default/secrets".into(),
            "/api/v1/watch/secrets".into(),
        ] {
            let (code, text) = client.get(&path).await;
            assert_eq!(code, 403, "{} {path}: {text}", client.user);
        }
        let (code, text) = client.get("/api/v1/watch/namespaces/default/secrets/mine?fieldSelector=metadata.name%3Dother").await;
        assert!(code == 400 && text.contains("fieldSelector metadata.name doesn't match requested name"), "{text}");
        let (_, text) = client.get(&format!("{SECRETS}?watch=1&fieldSelector=metadata.name%3Dmine,metadata.name%3Dother")).await;
        assert!(!text.contains("content"), "{text}");
    }
    server.stop().await;
}

/// Whoever may do anything in one namespace tries everything, and nothing of any other place is shown, changed or gone.
#[tokio::test]
async fn the_master_of_a_namespace_reaches_no_other_by_any_path() {
    let server = TestServer::start().await;
    for name in ["a", "b"] {
        server.master().create("/api/v1/namespaces", json!({"metadata": {"name": name, "labels": {"mark": format!("mark-of-{name}")}}})).await;
        let labels = json!({"mark": format!("mark-of-{name}")});
        server.master().create(&format!("/api/v1/namespaces/{name}/configmaps"), json!({"metadata": {"name": name, "labels": labels}})).await;
    }
    server.master().create("/api/v1/nodes", json!({"metadata": {"name": "b", "labels": {"mark": "mark-of-b"}}})).await;
    grant(&server, "boss", "a", json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}])).await;
    let boss = server.user("boss");
    let (code, text) = boss.get("/api/v1/namespaces/a/configmaps/a").await;
    assert!(code == 200 && text.contains("mark-of-a"), "{text}");
    let (code, _) = boss.send("DELETE", "/api/v1/namespaces/a/namespaces/b", Value::Null).await;
    assert_eq!(code, 404);
    let words = ["namespaces", "configmaps", "nodes", "a", "b", "status", "finalize", "watch", "", "..", "%2e%2e", "b%2Fb"];
    let mut tails: Vec<String> = vec![String::new()];
    let mut last = tails.clone();
    for _ in 0..3 {
        last = last.iter().flat_map(|tail| words.iter().map(move |word| format!("{tail}/{word}"))).collect();
        tails.extend(last.clone());
    }
    let body = json!({"metadata": {"labels": {"mark": "stolen"}}}).to_string();
    for tail in &tails {
        for method in ["GET", "DELETE", "PATCH"] {
            // Its own namespace may go: it may do anything there.
            if method != "GET" && !tail.contains('b') {
                continue;
            }
            let path = format!("/api/v1/namespaces/a{tail}?watch=0");
            let (_, text) = boss.raw(method, &path, "application/merge-patch+json", &[], body.clone()).await;
            assert!(!text.contains("mark-of-b"), "{method} {path}: {text}");
        }
    }
    for path in ["/api/v1/namespaces/b", "/api/v1/namespaces/b/configmaps/b", "/api/v1/nodes/b"] {
        let (code, text) = server.master().get(path).await;
        assert!(code == 200 && text.contains("mark-of-b") && !text.contains("deletionTimestamp"), "{path}: {text}");
    }
    server.stop().await;
}

#[tokio::test]
async fn bodies_become_no_larger_than_they_are() {
    let server = TestServer::start().await;
    let admin = server.master();
    // 3 MB that say the same hundred kilobytes thirty thousand times and more.
    let aliases = vec!["*a"; 900_000].join(",");
    let bomb = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: bomb}}\nx: &a {}\ny: [{aliases}]\n", "x".repeat(100_000));
    let (code, text) = admin.raw("POST", MAPS, "application/yaml", &[], bomb.clone()).await;
    assert!(code == 400 && text.contains("document contains excessive aliasing"), "{code} {text}");
    admin.create(MAPS, json!({"metadata": {"name": "m"}})).await;
    let (code, _) = admin.raw("PATCH", &format!("{MAPS}/m"), "application/merge-patch+json", &[], bomb).await;
    assert_eq!(code, 400);
    let plain = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: plain}\ndata: {a: &a text, b: *a}\n";
    let (code, text) = admin.raw("POST", MAPS, "application/yaml", &[], plain).await;
    assert!(code == 201 && text.contains("\"b\":\"text\""), "{text}");
    for (content_type, open, close) in [("application/json", "[", "]"), ("application/yaml", "[", "]"), ("application/yaml", "- ", "")] {
        let deep = format!("{}{}", open.repeat(100_000), close.repeat(100_000));
        assert_eq!(admin.raw("POST", MAPS, content_type, &[], deep).await.0, 400, "{content_type}");
    }
    let (code, text) = admin.raw("POST", MAPS, "application/json", &[], " ".repeat((3 << 20) + 1)).await;
    assert!(code == 413 && text.contains("Request entity too large: limit is 3145728"), "{code} {text}");
    server.stop().await;
}

#[tokio::test]
async fn a_json_patch_nests_no_deeper_than_objects_do() {
    let server = TestServer::start().await;
    let admin = server.master();
    let revisions = "/apis/apps/v1/namespaces/default/controllerrevisions";
    admin.create(revisions, json!({"metadata": {"name": "r"}, "revision": 1, "data": {"a": {}}})).await;
    // Three operations wrap everything once more.
    let wrap = [
        json!({"op": "move", "from": "/data/a", "path": "/data/b"}),
        json!({"op": "add", "path": "/data/a", "value": {}}),
        json!({"op": "move", "from": "/data/b", "path": "/data/a/a"}),
    ];
    let patch = |operations: Vec<Value>| {
        admin.raw(
            "PATCH",
            "/apis/apps/v1/namespaces/default/controllerrevisions/r",
            "application/json-patch+json",
            &[],
            Value::from(operations).to_string(),
        )
    };
    let (code, text) = patch(wrap.iter().cycle().take(9_999).cloned().collect()).await;
    assert!(code == 422 && text.contains("exceeded max depth"), "{code} {text}");
    let (code, text) = patch(vec![wrap[1].clone(); 10_001]).await;
    assert!(code == 413 && text.contains("Request entity too large: The allowed maximum operations in a JSON patch is 10000, got 10001"), "{text}");
    let large = json!({"op": "add", "path": "/data/x", "value": "x".repeat(1 << 20)});
    let copies = (0..9_000).map(|index| json!({"op": "copy", "from": "/data", "path": format!("/data/c{index}")}));
    let (code, text) = patch(std::iter::once(large).chain(copies).collect()).await;
    assert!(code == 422 && text.contains("the accumulated size increase of copy is"), "{code} {text}");
    let (code, text) = admin.get("/apis/apps/v1/namespaces/default/controllerrevisions/r").await;
    assert!(code == 200 && text.contains("\"data\":{\"a\":{}}"), "{text}");
    server.stop().await;
}

#[tokio::test]
async fn a_node_does_not_get_rid_of_itself() {
    let server = TestServer::start().await;
    let node = server.node("n1");
    node.create("/api/v1/nodes", json!({"metadata": {"name": "n1"}})).await;
    let (code, refused) = node.send("DELETE", "/api/v1/nodes/n1", Value::Null).await;
    assert_eq!(code, 403, "{refused}");
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "gone", "uid": "x"});
    for (path, patch, why) in [
        ("n1", json!({"metadata": {"ownerReferences": [owner]}}), "node \"n1\" is not allowed to modify ownerReferences"),
        (
            "n1/status",
            json!({"metadata": {"labels": {"node-restriction.kubernetes.io/a": "b"}}}),
            "is not allowed to modify labels: node-restriction.kubernetes.io/a",
        ),
        ("n1", json!({"spec": {"taints": []}}), "node \"n1\" is not allowed to modify taints"),
    ] {
        let (code, text) = node.raw("PATCH", &format!("/api/v1/nodes/{path}"), "application/merge-patch+json", &[], patch.to_string()).await;
        assert!(code == 403 && text.contains(&why.replace('"', "\\\"")), "{code} {text}");
    }
    let (code, text) = node.send("PATCH", "/api/v1/nodes/n1/status", Value::Null).await;
    assert_eq!(code, 415, "{text}");
    let (code, text) = node.raw("PATCH", "/api/v1/nodes/n1", "application/merge-patch+json", &[], r#"{"metadata":{"labels":{"a":"b"}}}"#).await;
    assert_eq!(code, 200, "{text}");
    let csi = json!({"metadata": {"name": "n1"}, "spec": {"drivers": []}});
    let csi_nodes = "/apis/storage.k8s.io/v1/csinodes";
    let (code, refused) = server.node("n2").send("POST", csi_nodes, csi.clone()).await;
    assert!(code == 403 && refused.to_string().contains("can only access CSINode with the same name as the requesting node"), "{code} {refused}");
    assert_eq!(node.send("POST", csi_nodes, csi).await.0, 201);
    server.stop().await;
}

#[tokio::test]
async fn a_named_path_has_no_post_and_a_collection_no_put() {
    let server = TestServer::start().await;
    let admin = server.master();
    let map = json!({"metadata": {"name": "m"}});
    for (method, path) in [
        ("POST", format!("{MAPS}/m")),
        ("POST", format!("{MAPS}/other")),
        ("POST", "/api/v1/nodes/n".into()),
        ("POST", "/api/v1/namespaces/n".into()),
        ("PUT", MAPS.into()),
        ("PATCH", MAPS.into()),
        ("OPTIONS", MAPS.into()),
    ] {
        let (code, refused) = admin.send(method, &path, map.clone()).await;
        assert_eq!(code, 405, "{method} {path}: {refused}");
        assert_eq!(refused["message"], "the server does not allow this method on the requested resource");
        assert_eq!(refused["reason"], "MethodNotAllowed");
    }
    assert_eq!(admin.get(&format!("{MAPS}/m")).await.0, 404);
    assert_eq!(server.user("eve").send("POST", &format!("{MAPS}/m"), map).await.0, 403);
    server.stop().await;
}

async fn review(server: &TestServer, token: &str, audiences: Value) -> Value {
    let review = json!({"spec": {"token": token, "audiences": audiences}});
    server.master().create("/apis/authentication.k8s.io/v1/tokenreviews", review).await["status"].take()
}

#[tokio::test]
async fn a_token_is_good_for_its_audiences_and_as_long_as_its_pod() {
    let server = TestServer::start().await;
    let admin = server.master();
    let pod = json!({"metadata": {"name": "p", "finalizers": ["example.com/wait"]}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let pod = admin.create("/api/v1/namespaces/default/pods", pod).await;
    let account = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": pod["metadata"]["uid"]});
    let spec = json!({"audiences": ["vault", "https://kubernetes.default.svc.cluster.local"], "boundObjectRef": bound});
    let token = admin.create(account, json!({"spec": spec})).await["status"]["token"].as_str().unwrap().to_string();
    let status = review(&server, &token, json!([])).await;
    assert_eq!((&status["authenticated"], &status["audiences"]), (&json!(true), &json!(["https://kubernetes.default.svc.cluster.local"])));
    let status = review(&server, &token, json!(["bank", "vault"])).await;
    assert_eq!(status["audiences"], json!(["vault"]), "only what the token is for: {status}");
    assert_eq!(review(&server, &token, json!(["bank"])).await["authenticated"], Value::Null);
    let (code, refused) = admin.send("POST", "/apis/authentication.k8s.io/v1/tokenreviews", json!({"spec": {}})).await;
    assert!(code == 400 && refused["message"] == "token is required for TokenReview in authentication", "{refused}");
    // Deleted, but a finalizer keeps it: the token's time is over a minute after the pod's.
    let (code, _) = admin.send("DELETE", "/api/v1/namespaces/default/pods/p?gracePeriodSeconds=0", Value::Null).await;
    assert_eq!(code, 200);
    assert_eq!(review(&server, &token, json!([])).await["authenticated"], json!(true), "a minute of leeway");
    let (code, _) =
        admin.raw("PATCH", "/api/v1/namespaces/default/pods/p", "application/merge-patch+json", &[], r#"{"metadata":{"finalizers":null}}"#).await;
    assert_eq!(code, 200);
    admin.send("DELETE", "/api/v1/namespaces/default/pods/p?gracePeriodSeconds=0", Value::Null).await;
    assert_eq!(review(&server, &token, json!([])).await["authenticated"], Value::Null);
    // Another pod of that name is another pod.
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    admin.create("/api/v1/namespaces/default/pods", pod).await;
    assert_eq!(review(&server, &token, json!([])).await["authenticated"], Value::Null);
    let stale = admin.send("POST", account, json!({"spec": {"boundObjectRef": bound}})).await;
    assert_eq!(stale.0, 409, "{}", stale.1);
    server.stop().await;
}

#[tokio::test]
async fn nobody_stays_who_they_are_because_of_a_letter() {
    let server = TestServer::start().await;
    let admin = server.master();
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let who = async |headers: &[(&str, &str)]| {
        let (code, text) = admin.raw("POST", path, "application/json", headers, "{}").await;
        let review: Value = serde_json::from_str(&text).unwrap();
        (code, review["status"]["userInfo"].clone())
    };
    assert_eq!(who(&[("impersonate-user", "b\u{f6}b")]).await.1["username"], "b\u{f6}b");
    let (_, user) =
        who(&[("impersonate-user", "bob"), ("impersonate-uid", "7"), ("impersonate-group", "devs"), ("impersonate-extra-a%2fb", "x")]).await;
    assert_eq!(user, json!({"username": "bob", "uid": "7", "groups": ["devs", "system:authenticated"], "extra": {"a/b": ["x"]}}));
    assert_eq!(who(&[("impersonate-uid", "7")]).await.0, 500);
    grant(&server, "eve", "default", json!([{"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"]}])).await;
    for header in ["impersonate-user", "impersonate-group"] {
        let (code, text) = server.user("eve").raw("POST", path, "application/json", &[("impersonate-user", "bob"), (header, "x")], "{}").await;
        assert_eq!(code, 403, "a right in a namespace is none over users: {text}");
    }
    server.stop().await;
}

/// Names that the kernel could have, each once, and none of the host's own.
#[tokio::test]
async fn sysctls_have_names_of_sysctls() {
    let server = TestServer::start().await;
    let admin = server.master();
    let pod = |name: &str, spec: Value| {
        let mut pod = json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        pod["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        pod
    };
    let sysctls = |names: &[&str]| json!({"sysctls": names.iter().map(|name| json!({"name": name, "value": "1"})).collect::<Vec<_>>()});
    let pods = "/api/v1/namespaces/default/pods";
    for (index, name) in ["net.ipv4.tcp_syncookies", "net/ipv4/conf/eth0.1/rp_filter", "kernel.shm_rmid_forced"].iter().enumerate() {
        admin.create(pods, pod(&format!("good-{index}"), json!({"securityContext": sysctls(&[name])}))).await;
    }
    let pattern = r"must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
    for (spec, why) in [
        (
            json!({"securityContext": sysctls(&["../../etc/passwd"])}),
            format!("spec.securityContext.sysctls[0].name: Invalid value: \"../../etc/passwd\": {pattern}"),
        ),
        (
            json!({"securityContext": sysctls(&["net..ipv4"])}),
            format!("spec.securityContext.sysctls[0].name: Invalid value: \"net..ipv4\": {pattern}"),
        ),
        (json!({"securityContext": sysctls(&[""])}), "spec.securityContext.sysctls[0].name: Required value".into()),
        (json!({"securityContext": sysctls(&["a", "a"])}), "spec.securityContext.sysctls[1].name: Duplicate value: \"a\"".into()),
        (
            json!({"hostNetwork": true, "securityContext": sysctls(&["net/core/somaxconn"])}),
            "spec.securityContext.sysctls[0].name: Invalid value: \"net/core/somaxconn\": may not be specified when 'hostNetwork' is true".into(),
        ),
        (
            json!({"hostIPC": true, "securityContext": sysctls(&["kernel.sem"])}),
            "spec.securityContext.sysctls[0].name: Invalid value: \"kernel.sem\": may not be specified when 'hostIPC' is true".into(),
        ),
    ] {
        let (code, refused) = admin.send("POST", pods, pod("bad", spec)).await;
        assert_eq!((code, refused["message"].as_str().unwrap()), (422, format!("Pod \"bad\" is invalid: {why}").as_str()));
    }
    server.stop().await;
}
