//! Tests of reviews, answers, endpoints and the order of calls: upstream's cases.

use super::review::question;
use super::*;
use crate::test_requests::{Expressions, FakeCluster, ready, request};
use crate::{Attributes, Notes, Refusal, Reinvocation};
use base64::Engine;
use serde_json::json;
use std::sync::Mutex;
use std::time::Duration;

/// A server that answers by path, and remembers the questions.
#[derive(Default)]
struct Server {
    questions: Mutex<Vec<(String, Value)>>,
}

fn patch(operations: Value) -> Value {
    let bytes = base64::engine::general_purpose::STANDARD.encode(operations.to_string());
    json!({"allowed": true, "patchType": "JSONPatch", "patch": bytes})
}

impl Caller for Server {
    async fn post(&self, endpoint: &Endpoint, body: Vec<u8>) -> Result<Answer, String> {
        let question: Value = serde_json::from_slice(&body).unwrap();
        let path = endpoint.path.split('?').next().unwrap_or_default().to_owned();
        self.questions.lock().unwrap().push((path.clone(), question.clone()));
        let mut response = match path.as_str() {
            "/allow" => json!({"allowed": true, "warnings": ["beware"], "auditAnnotations": {"key": "value"}}),
            "/deny" => json!({"allowed": false, "status": {"message": "no", "code": 403, "reason": "Forbidden"}}),
            "/shrug" => json!({"allowed": false}),
            "/reason" => json!({"allowed": false, "status": {"reason": "Because", "code": 200}}),
            "/label" => patch(json!([{"op": "add", "path": "/labelled", "value": true}])),
            "/count" => {
                let count = question["request"]["object"]["count"].as_i64().unwrap_or_default();
                patch(json!([{"op": "add", "path": "/count", "value": count + 1}]))
            }
            "/wrong" => patch(json!([{"op": "add", "path": "/wrong", "value": 1}])),
            "/unfit" => patch(json!([{"op": "remove", "path": "/nowhere"}])),
            "/garbage" => json!({"allowed": true, "patchType": "JSONPatch", "patch": "bm90IGpzb24="}),
            "/error" => return Ok(Answer { code: 500, body: b"boom\n".to_vec() }),
            "/down" => return Err("dial tcp 10.96.0.7:443: connect: connection refused".into()),
            "/never" => return std::future::pending().await,
            other => panic!("no such path {other}"),
        };
        response["uid"] = question["request"]["uid"].clone();
        let review = json!({"apiVersion": question["apiVersion"], "kind": "AdmissionReview", "response": response});
        Ok(Answer { code: 200, body: review.to_string().into_bytes() })
    }
}

fn configuration(name: &str, hooks: &[(&str, Value)]) -> Arc<Value> {
    let hooks: Vec<Value> = hooks
        .iter()
        .map(|(path, more)| {
            let mut hook = json!({
                "name": format!("{}.example.com", path.trim_start_matches('/')), "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "namespaceSelector": {}, "objectSelector": {}, "failurePolicy": "Fail", "matchPolicy": "Equivalent", "timeoutSeconds": 5,
                "clientConfig": {"service": {"namespace": "ns", "name": "svc", "port": 8443, "path": path}},
                "rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}],
            });
            for (name, value) in more.as_object().into_iter().flatten() {
                hook[name] = value.clone();
            }
            hook
        })
        .collect();
    Arc::new(json!({"metadata": {"name": name}, "webhooks": hooks}))
}

fn paths(server: &Server) -> Vec<String> {
    server.questions.lock().unwrap().iter().map(|(path, _)| path.clone()).collect()
}

async fn shown(hooks_: &[(&str, Value)], dry_run: bool) -> (Result<(), Refusal>, Notes) {
    let (server, object, mut notes) = (Server::default(), json!({"metadata": {"name": "n"}}), Notes::default());
    let mut request = request("things.g", &object, None);
    request.dry_run = dry_run;
    let environment = Environment { catalog: &FakeCluster::default(), engine: &Expressions, caller: &server };
    let result = validate(&environment, &hooks(&[configuration("c", hooks_)]), &request, &mut notes).await;
    (result, notes)
}

fn refusal(hooks: &[(&str, Value)]) -> String {
    ready(shown(hooks, false)).0.err().map(|refusal| refusal.to_string()).unwrap_or_default()
}

#[test]
fn validating_webhooks_allow_deny_and_fail_with_upstream_s_words() {
    let none = || json!({});
    let (result, notes) = ready(shown(&[("/allow", none()), ("/deny", none()), ("/shrug", none())], false));
    let denied = Refusal::Status {
        code: 403,
        reason: "Forbidden".into(),
        message: r#"admission webhook "deny.example.com" denied the request: no"#.into(),
        details: None,
    };
    assert_eq!((result, notes.warnings), (Err(denied), vec!["beware".to_owned()]));
    assert_eq!(notes.audit["allow.example.com/key"], "value");
    assert_eq!(refusal(&[("/shrug", none())]), r#"admission webhook "shrug.example.com" denied the request without explanation"#);
    assert!(matches!(
        ready(shown(&[("/reason", none())], false)).0,
        Err(Refusal::Status { code: 400, message, .. }) if message == r#"admission webhook "reason.example.com" denied the request: Because"#
    ));
    assert_eq!(
        refusal(&[("/down", none())]),
        r#"failed calling webhook "down.example.com": failed to call webhook: Post "https://svc.ns.svc:8443/down?timeout=5s": dial tcp 10.96.0.7:443: connect: connection refused"#
    );
    assert_eq!(
        refusal(&[("/error", none())]),
        r#"failed calling webhook "error.example.com": failed to call webhook: an error on the server ("boom") has prevented the request from succeeding"#
    );
    assert_eq!(
        refusal(&[("/label", none())]),
        r#"failed calling webhook "label.example.com": received invalid webhook response: validating webhook may not return response.patch"#
    );
    assert_eq!(
        refusal(&[("/allow", json!({"admissionReviewVersions": ["v2"]}))]),
        r#"failed calling webhook "allow.example.com": could not create admission objects: webhook does not accept known AdmissionReview versions (v1, v1beta1)"#
    );
    let (result, notes) = ready(shown(&[("/allow", none()), ("/down", json!({"failurePolicy": "Ignore"}))], false));
    assert_eq!(result, Ok(()));
    assert_eq!(notes.audit["failed-open.validating.webhook.admission.k8s.io/round_0_index_1"], "down.example.com");
}

#[test]
fn conditions_and_dry_runs_keep_webhooks_out() {
    let condition = |expression: &str| json!({"matchConditions": [{"name": "c", "expression": expression}]});
    assert_eq!(refusal(&[("/deny", condition("false"))]), "");
    assert_eq!(
        refusal(&[("/shrug", condition(r#"is:/metadata/name="n""#))]),
        r#"admission webhook "shrug.example.com" denied the request without explanation"#
    );
    assert_eq!(refusal(&[("/allow", condition("fail:x"))]), "expression 'fail:x' resulted in error: x");
    let dry = |side_effects: Value| ready(shown(&[("/allow", json!({"sideEffects": side_effects}))], true)).0;
    assert_eq!(dry("NoneOnDryRun".into()), Ok(()));
    assert_eq!(dry("Some".into()), Err(Refusal::BadRequest(r#"admission webhook "allow.example.com" does not support dry run"#.into())));
    assert_eq!(dry(Value::Null).unwrap_err().to_string(), r#"failed calling webhook "allow.example.com": Webhook SideEffects is nil"#);
}

#[tokio::test(start_paused = true)]
async fn webhooks_that_do_not_answer_time_out() {
    let refusal = shown(&[("/never", json!({"timeoutSeconds": 1}))], false).await.0.unwrap_err().to_string();
    let expected = r#"failed calling webhook "never.example.com": failed to call webhook: Post "https://svc.ns.svc:8443/never?timeout=1s": context deadline exceeded"#;
    assert_eq!(refusal, expected);
    assert_eq!(shown(&[("/never", json!({"failurePolicy": "Ignore"}))], false).await.0, Ok(()));
}

struct Mutated {
    result: Result<(), Refusal>,
    object: Value,
    notes: Notes,
    reinvocation: Reinvocation,
}

fn mutated(server: &Server, configurations: &[Arc<Value>], object: Value, mut reinvocation: Reinvocation) -> Mutated {
    let (mut notes, mut object) = (Notes::default(), object);
    let none = Value::Null;
    let request = Attributes { object: None, ..request("things.example.com", &none, None) };
    let environment = Environment { catalog: &FakeCluster::default(), engine: &Expressions, caller: server };
    let hooks = hooks(configurations);
    let result = ready(is_send(mutate(&environment, &hooks, &request, Some(&mut object), &mut reinvocation, &mut notes)));
    Mutated { result, object, notes, reinvocation }
}

fn is_send<T: Send>(value: T) -> T {
    value
}

#[test]
fn mutating_webhooks_see_what_those_before_changed() {
    let server = Server::default();
    let configurations = [configuration("b", &[("/count", json!({}))]), configuration("a", &[("/count", json!({})), ("/label", json!({}))])];
    let done = mutated(&server, &configurations, json!({"unknown": 1}), Reinvocation::default());
    assert_eq!((done.result, done.object), (Ok(()), json!({"count": 2, "labelled": true})));
    assert_eq!(paths(&server), ["/count", "/label", "/count"], "configurations are called by name");
    let said = |key: &str| done.notes.audit[&format!("{key}.webhook.admission.k8s.io/round_0_index_1")].clone();
    assert_eq!(said("mutation"), r#"{"configuration":"a","webhook":"label.example.com","mutated":true}"#);
    assert_eq!(
        said("patch"),
        r#"{"configuration":"a","webhook":"label.example.com","patch":[{"op":"add","path":"/labelled","value":true}],"patchType":"JSONPatch"}"#
    );
}

#[test]
fn webhooks_are_asked_again_when_a_later_one_changed_the_object() {
    let server = Server::default();
    let again = || json!({"reinvocationPolicy": "IfNeeded"});
    let configurations = [configuration("a", &[("/allow", again()), ("/count", json!({})), ("/label", again())])];
    let mut first = mutated(&server, &configurations, json!({}), Reinvocation::default());
    assert!(first.reinvocation.begin_second());
    let second = mutated(&server, &configurations, first.object, first.reinvocation);
    assert_eq!(paths(&server), ["/allow", "/count", "/label", "/allow"], "the last one changed nothing after itself");
    assert!(second.notes.audit.contains_key("mutation.webhook.admission.k8s.io/round_1_index_0"));
    let mut quiet = mutated(&Server::default(), &[configuration("a", &[("/allow", again())])], json!({}), Reinvocation::default());
    assert!(!quiet.reinvocation.begin_second(), "nothing changed, so there is no second round");
    let server = Server::default();
    let third = mutated(&server, &[configuration("a", &[("/allow", again())])], json!({"changed": "elsewhere"}), quiet.reinvocation);
    assert_eq!((third.result, paths(&server)), (Ok(()), vec!["/allow".to_owned()]), "a change from elsewhere counts too");
}

#[test]
fn bad_patches_refuse() {
    for (path, more, expected) in [
        ("/wrong", json!({"failurePolicy": "Ignore"}), "json: cannot unmarshal"),
        (
            "/unfit",
            json!({"failurePolicy": "Ignore"}),
            "error in remove for path: '/nowhere': Unable to remove nonexistent key: nowhere: missing value",
        ),
        (
            "/garbage",
            json!({}),
            r#"failed calling webhook "garbage.example.com": received undecodable patch in webhook response: expected ident at line 1 column 2"#,
        ),
    ] {
        let done = mutated(&Server::default(), &[configuration("a", &[(path, more)])], json!({}), Reinvocation::default());
        assert_eq!(done.result.map_err(|refusal| refusal.to_string()), Err(expected.to_owned()), "{path}");
        assert_eq!(done.object, json!({}), "{path}");
    }
    let (server, none, mut notes) = (Server::default(), Value::Null, Notes::default());
    let environment = Environment { catalog: &FakeCluster::default(), engine: &Expressions, caller: &server };
    let request = Attributes { object: None, operation: crate::Operation::Delete, ..request("things.g", &none, Some(&none)) };
    let hooks = hooks(&[configuration("a", &[("/label", json!({}))])]);
    let result = ready(mutate(&environment, &hooks, &request, None, &mut Reinvocation::default(), &mut notes));
    assert_eq!(
        result.unwrap_err().to_string(),
        r#"admission webhook "label.example.com" attempted to modify the object, which is not supported for this operation"#
    );
}

#[test]
fn equivalent_objects_are_converted_there_and_back() {
    let server = Server::default();
    let rules = json!({"rules": [{"operations": ["*"], "apiGroups": ["example.com"], "apiVersions": ["v2"], "resources": ["things"]}]});
    let done = mutated(&server, &[configuration("a", &[("/label", rules)])], json!({"apiVersion": "example.com/v1"}), Reinvocation::default());
    assert_eq!(done.object, json!({"apiVersion": "example.com/v1", "labelled": true}));
    let question = &server.questions.lock().unwrap()[0].1["request"];
    assert_eq!((&question["object"]["apiVersion"], &question["kind"]["version"]), (&json!("example.com/v2"), &json!("v2")));
    assert_eq!(question["requestKind"]["version"], "v1");
}

#[test]
fn questions_have_upstream_s_form() {
    let object = json!({"a": 1});
    let request = request("things.g", &object, None);
    let target = crate::matching::Target::of(&request);
    let review = question(Version::V1beta1, "u", &request, &target, [&object, &Value::Null]);
    assert_eq!((&review["apiVersion"], &review["kind"]), (&json!("admission.k8s.io/v1beta1"), &json!("AdmissionReview")));
    let names: Vec<&str> = review["request"].as_object().unwrap().keys().map(String::as_str).collect();
    let expected = [
        "uid",
        "kind",
        "resource",
        "requestKind",
        "requestResource",
        "namespace",
        "operation",
        "userInfo",
        "object",
        "oldObject",
        "dryRun",
        "options",
    ];
    assert_eq!(names, expected);
}

#[test]
fn answers_are_checked_as_upstream_does() {
    let parse = |body: Value, version, mutating| parse_response(body.to_string().as_bytes(), version, "u", mutating);
    let v1 = |response: Value| json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
    for (body, mutating, expected) in [
        (json!({}), true, "webhook response was absent"),
        (v1(json!({"uid": "w"})), true, r#"expected response.uid="u", got "w""#),
        (json!({"response": {"uid": "u"}}), true, "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got /, Kind="),
        (v1(json!({"uid": "u", "patch": "W10="})), true, "webhook returned response.patch but not response.patchType"),
        (v1(json!({"uid": "u", "patchType": "JSONPatch"})), true, "webhook returned response.patchType but not response.patch"),
        (v1(json!({"uid": "u", "patch": "W10=", "patchType": ""})), true, r#"webhook returned invalid response.patchType of """#),
        (v1(json!({"uid": "u", "patch": "W10="})), false, "validating webhook may not return response.patch"),
        (v1(json!({"uid": "u", "patchType": "JSONPatch"})), false, "validating webhook may not return response.patchType"),
    ] {
        assert_eq!(parse(body.clone(), Version::V1, mutating), Err(format!("received invalid webhook response: {expected}")), "{body}");
    }
    let wrong = parse(v1(json!({"uid": "u", "allowed": "yes"})), Version::V1, true).unwrap_err();
    assert_eq!(wrong, "failed to call webhook: json: cannot unmarshal string into Go struct field AdmissionResponse.response.allowed of type bool");
    let old = parse(json!({"response": {"allowed": true, "patch": "W10="}}), Version::V1beta1, true).unwrap();
    assert_eq!((old.allowed, old.patch_type.as_str(), old.patch.as_slice()), (true, "JSONPatch", &b"[]"[..]));
    let old = parse(json!({"response": {"allowed": true, "patch": "W10="}}), Version::V1beta1, false).unwrap();
    assert!(old.patch.is_empty() && old.patch_type.is_empty());
}

#[test]
fn endpoints_follow_the_configuration() {
    let endpoint = |config: Value| Endpoint::of(&json!({"clientConfig": config, "timeoutSeconds": 3}));
    let service = endpoint(json!({"service": {"namespace": "ns", "name": "svc"}, "caBundle": "cGVt"})).unwrap();
    assert_eq!((service.url.as_str(), service.host.as_str(), service.port), ("https://svc.ns.svc:443/?timeout=3s", "svc.ns.svc", 443));
    assert_eq!((service.ca_bundle.as_slice(), service.timeout), (&b"pem"[..], Duration::from_secs(3)));
    assert_eq!(service.service, Some(Service { namespace: "ns".into(), name: "svc".into(), port: 443 }));
    for (url, expected) in [
        ("https://host.example.com/a//b/", ("https://host.example.com/a/b?timeout=3s", "host.example.com", 443, "/a/b?timeout=3s")),
        ("https://host:8443", ("https://host:8443/?timeout=3s", "host", 8443, "/?timeout=3s")),
        ("https://[::1]:9443/x", ("https://[::1]:9443/x?timeout=3s", "::1", 9443, "/x?timeout=3s")),
        ("https://[::1]/x", ("https://[::1]/x?timeout=3s", "::1", 443, "/x?timeout=3s")),
    ] {
        let found = endpoint(json!({"url": url})).unwrap();
        assert_eq!((found.url.as_str(), found.host.as_str(), found.port, found.path.as_str()), expected);
    }
    assert!(endpoint(json!({})).is_err() && endpoint(json!({"url": "http://h"})).is_err() && endpoint(json!({"url": "https://h:x"})).is_err());
}

#[test]
fn codes_of_answers_are_worded_as_client_go_does() {
    for (code, body, expected) in [
        (404, "", "the server could not find the requested resource"),
        (403, "go away", "go away"),
        (418, "teapot", "the server responded with the status code 418 but did not return more information"),
        (502, "", r#"an error on the server ("unknown") has prevented the request from succeeding"#),
        (503, "x", "the server is currently unable to handle the request"),
        (400, r#"{"kind":"Status","message":"its own words"}"#, "its own words"),
    ] {
        let answer = Answer { code, body: body.as_bytes().to_vec() };
        assert_eq!(answer.success(), Err(format!("failed to call webhook: {expected}")));
    }
    assert_eq!(Answer { code: 201, body: b"x".to_vec() }.success(), Ok(b"x".to_vec()));
}
