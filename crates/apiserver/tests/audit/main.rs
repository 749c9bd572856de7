//! The audit log over HTTP: which events requests leave, at which stages, with what of them.

#[path = "../common/mod.rs"]
mod common;

mod panics;
mod streams;
mod webhook;

use apiserver::{AuditConfig, AuditLog, AuditPolicy, LogConfig};
use common::TestServer;
use http::Request;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use std::path::Path;
use tower::ServiceExt;

const PODS: &str = "/api/v1/namespaces/default/pods";
const JSON: &str = "application/json";

/// Everything is logged at `Metadata` but what a test asks for; what the test itself does not ask is left out.
fn policy(rules: &str) -> AuditPolicy {
    let text = format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n{rules}");
    AuditPolicy::read(&text).unwrap().0
}

struct Audited {
    server: TestServer,
    dir: tempfile::TempDir,
}

impl Audited {
    async fn start(rules: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = LogConfig { path: dir.path().join("audit.log"), ..LogConfig::default() };
        let log = Some(AuditLog { config, truncate: None });
        let server = TestServer::start_audited(AuditConfig { policy: policy(rules), log, webhook: None }).await;
        Self { server, dir }
    }

    async fn ask(&self, who: (&str, &[&str]), method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> (http::response::Parts, Value) {
        let text = if body.is_null() { String::new() } else { body.to_string() };
        let mut request = Request::builder().method(method).uri(path).header("user-agent", "test/1");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(bytes::Bytes::from(text))).unwrap();
        let (parts, body) = self.server.service(who.0, who.1).oneshot(request).await.unwrap().into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        (parts, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    async fn admin(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let (parts, body) = self.ask(("jane", &["system:masters"]), method, path, &[("content-type", JSON)], &body).await;
        (parts.status.as_u16(), body)
    }

    /// Ends the server: every event is written then.
    async fn events(self) -> Vec<Value> {
        self.server.stop().await;
        read(&self.dir.path().join("audit.log"))
    }
}

fn read(path: &Path) -> Vec<Value> {
    std::fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn of<'e>(events: &'e [Value], user: &str, stage: &str) -> Vec<&'e Value> {
    events.iter().filter(|event| event["user"]["username"] == user && event["stage"] == stage).collect()
}

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

#[tokio::test]
async fn a_request_has_an_event_before_and_after_it() {
    let audited = Audited::start("- {level: Metadata, users: [jane]}").await;
    let own = [("content-type", JSON), ("audit-id", "mine"), ("x-forwarded-for", "10.1.2.3, x, 10.1.2.4")];
    let (parts, _) = audited.ask(("jane", &["system:masters"]), "POST", PODS, &own, &pod("p")).await;
    assert_eq!((parts.status.as_u16(), parts.headers["audit-id"].to_str().unwrap()), (201, "mine"));
    audited.admin("GET", &format!("{PODS}/q"), Value::Null).await;
    let events = audited.events().await;
    let stages: Vec<&str> = events.iter().map(|event| event["stage"].as_str().unwrap()).collect();
    assert_eq!(stages, ["RequestReceived", "ResponseComplete", "RequestReceived", "ResponseComplete"], "others are not logged");
    let received = json!({"resource": "pods", "namespace": "default", "apiVersion": "v1"});
    assert_eq!(
        (&events[0]["objectRef"], &events[0]["auditID"], &events[0]["sourceIPs"]),
        (&received, &json!("mine"), &json!(["10.1.2.3", "10.1.2.4"]))
    );
    assert!(events[0].get("responseStatus").is_none() && events[0]["stageTimestamp"] == events[0]["requestReceivedTimestamp"]);
    let done = &events[1];
    assert_eq!((&done["objectRef"]["name"], &done["responseStatus"]), (&json!("p"), &json!({"metadata": {}, "code": 201})));
    assert_eq!((&done["requestURI"], &done["verb"], &done["userAgent"]), (&json!(PODS), &json!("create"), &json!("test/1")));
    assert_eq!(done["user"], json!({"username": "jane", "groups": ["system:masters", "system:authenticated"]}));
    assert_eq!(
        done["annotations"],
        json!({"authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": "",
        "pod-security.kubernetes.io/enforce-policy": "privileged:latest"})
    );
    assert!(done.get("requestObject").is_none() && done.get("responseObject").is_none());
    let missing = &events[3]["responseStatus"];
    assert_eq!((&missing["reason"], &missing["message"], &missing["code"]), (&json!("NotFound"), &json!("pods \"q\" not found"), &json!(404)));
}

#[tokio::test]
async fn bodies_are_logged_as_the_policy_says() {
    let rules = "- {level: None, users: [admin]}
- {level: Metadata, resources: [{group: '', resources: [secrets]}]}
- {level: Request, verbs: [patch], omitStages: [RequestReceived]}
- {level: RequestResponse, resources: [{group: '', resources: ['*']}, {group: authentication.k8s.io}], omitStages: [RequestReceived], omitManagedFields: true}
";
    let audited = Audited::start(rules).await;
    audited.admin("POST", "/api/v1/namespaces/default/secrets", json!({"metadata": {"name": "s"}, "stringData": {"a": "hidden"}})).await;
    assert_eq!(audited.admin("POST", PODS, pod("p")).await.0, 201);
    let headers = [("content-type", "application/merge-patch+json")];
    audited.ask(("jane", &["system:masters"]), "PATCH", &format!("{PODS}/p"), &headers, &json!({"metadata": {"labels": {"a": "b"}}})).await;
    audited.admin("GET", PODS, Value::Null).await;
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "bearer-secret"}});
    audited.admin("POST", "/apis/authentication.k8s.io/v1/tokenreviews", review).await;
    let (code, token) = audited.admin("POST", "/api/v1/namespaces/default/serviceaccounts/default/token", json!({"spec": {"audiences": []}})).await;
    assert_eq!(code, 201, "{token}");
    let (code, _) = audited.admin("DELETE", &format!("{PODS}/p"), json!({"gracePeriodSeconds": 0})).await;
    assert_eq!(code, 200);
    let dir = audited.dir.path().join("audit.log");
    let Audited { server, dir: _kept } = audited;
    server.stop().await;
    let text = std::fs::read_to_string(&dir).unwrap();
    assert!(!text.contains("hidden") && !text.contains("bearer-secret") && !text.contains(token["status"]["token"].as_str().unwrap()), "{text}");
    assert!(!text.contains("managedFields"), "{text}");
    let events = read(&dir);
    let done = |verb: &str, resource: &str| {
        events
            .iter()
            .find(|event| event["verb"] == verb && event["objectRef"]["resource"] == resource && event["stage"] == "ResponseComplete")
            .unwrap()
    };
    assert!(done("create", "secrets").get("requestObject").is_none());
    let created = done("create", "pods");
    assert_eq!((&created["requestObject"]["kind"], &created["requestObject"]["apiVersion"]), (&json!("Pod"), &json!("v1")), "as upstream encodes it");
    assert_eq!((&created["responseObject"]["metadata"]["name"], &created["responseObject"]["status"]["phase"]), (&json!("p"), &json!("Pending")));
    let patched = done("patch", "pods");
    assert_eq!((&patched["requestObject"], patched.get("responseObject")), (&json!({"metadata": {"labels": {"a": "b"}}}), None));
    assert_eq!(done("list", "pods")["responseObject"]["items"][0]["metadata"]["name"], "p");
    assert_eq!(done("create", "tokenreviews")["requestObject"]["spec"]["token"], "REDACTED");
    assert_eq!(done("create", "serviceaccounts")["responseObject"]["status"]["token"], "REDACTED");
    assert_eq!(done("delete", "pods")["requestObject"]["gracePeriodSeconds"], 0);
    assert!(of(&events, "jane", "RequestReceived").iter().all(|event| event["objectRef"]["resource"] == "secrets"));
}

#[tokio::test]
async fn refusals_and_other_identities_are_logged() {
    let audited = Audited::start("- {level: Metadata, omitStages: [RequestReceived], users: [jane, eve, '']}\n- {level: Metadata, verbs: [get], nonResourceURLs: ['/readyz'], omitStages: [RequestReceived]}").await;
    let eve: (&str, &[&str]) = ("eve", &["system:authenticated"]);
    assert_eq!(audited.ask(eve, "GET", PODS, &[], &Value::Null).await.0.status.as_u16(), 403);
    let acting = [("impersonate-user", "bob"), ("impersonate-group", "devs")];
    audited.ask(("jane", &["system:masters"]), "GET", PODS, &acting, &Value::Null).await;
    audited.ask(("tom", &[]), "GET", "/readyz", &[], &Value::Null).await;
    let role = json!({"metadata": {"name": "r"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]});
    audited.server.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", &role).await.unwrap();
    let binding = json!({"metadata": {"name": "b"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "eve"}]});
    audited.server.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).await.unwrap();
    assert_eq!(audited.ask(eve, "GET", PODS, &[], &Value::Null).await.0.status.as_u16(), 200);
    let events = audited.events().await;
    let eves = of(&events, "eve", "ResponseComplete");
    assert_eq!(
        (&eves[0]["annotations"]["authorization.k8s.io/decision"], &eves[0]["responseStatus"]["reason"]),
        (&json!("forbid"), &json!("Forbidden"))
    );
    let reason = "RBAC: allowed by ClusterRoleBinding \"b\" of ClusterRole \"r\" to User \"eve\"";
    assert_eq!(eves[1]["annotations"], json!({"authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": reason}));
    let jane = of(&events, "jane", "ResponseComplete");
    assert_eq!(jane[0]["impersonatedUser"], json!({"username": "bob", "groups": ["devs", "system:authenticated"]}));
    assert_eq!(jane[0]["annotations"]["authorization.k8s.io/decision"], "forbid", "bob may do nothing");
    let ready = of(&events, "tom", "ResponseComplete");
    assert_eq!((ready.len(), ready[0].get("objectRef"), &ready[0]["verb"]), (1, None, &json!("get")));
}

#[tokio::test]
async fn watches_have_an_event_at_their_beginning_and_at_their_end() {
    let audited = Audited::start("- {level: RequestResponse, users: [jane], verbs: [watch]}").await;
    audited.admin("GET", &format!("{PODS}?watch=true&timeoutSeconds=1"), Value::Null).await;
    let request = Request::get(format!("{PODS}?watch=true")).body(Full::new(bytes::Bytes::new())).unwrap();
    let response = audited.server.service("jane", &["system:masters"]).oneshot(request).await.unwrap();
    drop(response);
    let path = audited.dir.path().join("audit.log");
    test_lab::until_async("the end of the second watch is logged", async || {
        read(&path).iter().filter(|event| event["stage"] == "ResponseComplete").count() == 2
    })
    .await;
    let events = audited.events().await;
    for stage in ["RequestReceived", "ResponseStarted", "ResponseComplete"] {
        assert_eq!(of(&events, "jane", stage).len(), 2, "{stage}");
    }
    let last = of(&events, "jane", "ResponseComplete")[1];
    assert_eq!((&last["responseStatus"], last.get("responseObject")), (&json!({"metadata": {}, "code": 200}), None));
}

#[tokio::test]
async fn a_request_that_its_client_gives_up_is_logged_to_its_end() {
    let audited = Audited::start("- {level: Metadata, users: [jane]}").await;
    let request = Request::post(PODS).header("content-type", JSON);
    // A body that never comes.
    let body = http_body_util::StreamBody::new(futures::stream::pending::<Result<http_body::Frame<bytes::Bytes>, std::convert::Infallible>>());
    let service = audited.server.service("jane", &["system:masters"]);
    let asking = tokio::spawn(service.oneshot(request.body(body).unwrap()));
    let path = audited.dir.path().join("audit.log");
    test_lab::until_async("the request is received", async || read(&path).len() == 1).await;
    asking.abort();
    test_lab::until_async("its end is logged", async || read(&path).len() == 2).await;
    let events = audited.events().await;
    assert_eq!((&events[1]["stage"], &events[1]["responseStatus"]["message"]), (&json!("ResponseComplete"), &json!("Connection closed early")));
}

#[tokio::test]
async fn tokens_that_nobody_knows_are_logged_without_a_user() {
    let audited = Audited::start("- {level: Metadata}").await;
    let client = audited.server.stranger_tls();
    let stream = tokio::net::TcpStream::connect(audited.server.address()).await.unwrap();
    let stream = client.connect("127.0.0.1".try_into().unwrap(), stream).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get(PODS).header("host", "x").header("authorization", "Bearer wrong-token").body(Full::new(bytes::Bytes::new())).unwrap();
    assert_eq!(sender.send_request(request).await.unwrap().status().as_u16(), 401);
    let events = audited.events().await;
    let refused: Vec<&Value> = events.iter().filter(|event| event["responseStatus"]["code"] == 401).collect();
    assert_eq!(refused.len(), 1);
    assert_eq!((&refused[0]["stage"], &refused[0]["user"], &refused[0]["sourceIPs"]), (&json!("ResponseStarted"), &json!({}), &json!(["127.0.0.1"])));
    assert!(!refused[0].to_string().contains("wrong-token"));
}

#[tokio::test]
async fn answers_of_webhooks_and_policies_annotate_the_event() {
    let audited = Audited::start("- {level: Metadata, users: [jane], omitStages: [RequestReceived]}").await;
    let policy = json!({"metadata": {"name": "p"}, "spec": {
        "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]},
        "validations": [{"expression": "object.metadata.name != 'bad'"}],
        "auditAnnotations": [{"key": "seen", "valueExpression": "'name ' + object.metadata.name"}]}});
    let binding = json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Audit"]}});
    let group = "/apis/admissionregistration.k8s.io/v1";
    audited.server.post(&format!("{group}/validatingadmissionpolicies"), &policy).await.unwrap();
    audited.server.post(&format!("{group}/validatingadmissionpolicybindings"), &binding).await.unwrap();
    let made = audited.admin("POST", "/api/v1/namespaces/default/configmaps", json!({"metadata": {"name": "bad"}})).await;
    assert_eq!(made.0, 201, "{}", made.1);
    let events = audited.events().await;
    let annotations = &of(&events, "jane", "ResponseComplete")[0]["annotations"];
    assert_eq!(annotations["p/seen"], "name bad");
    let failure: Value = serde_json::from_str(annotations["validation.policy.admission.k8s.io/validation_failure"].as_str().unwrap()).unwrap();
    assert_eq!((&failure[0]["policy"], &failure[0]["binding"]), (&json!("p"), &json!("b")));
}
