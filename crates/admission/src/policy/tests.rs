//! Tests of policies: bindings, parameters, decisions, actions and mutations; upstream's cases.

use super::*;
use crate::names::{Kind, Resource};
use crate::test_requests::{Expressions, FakeCluster, ready, request};
use crate::{Notes, Refusal, Reinvocation};
use serde_json::{Value, json};
use std::sync::Arc;

fn merged(mut base: Value, more: Value) -> Value {
    for (name, value) in more.as_object().into_iter().flatten() {
        base[name] = value.clone();
    }
    base
}

fn definition(spec: Value) -> Arc<Value> {
    let everything = json!({"namespaceSelector": {}, "objectSelector": {}, "matchPolicy": "Equivalent",
        "resourceRules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}]});
    Arc::new(json!({"metadata": {"name": "p"}, "spec": merged(json!({"failurePolicy": "Fail", "matchConstraints": everything}), spec)}))
}

fn binding(spec: Value) -> Arc<Value> {
    Arc::new(json!({"metadata": {"name": "b"}, "spec": merged(json!({"policyName": "p", "validationActions": ["Deny"]}), spec)}))
}

fn limits() -> FakeCluster {
    let config = |namespace: &str, name: &str, data: Value| {
        let object = json!({"metadata": {"name": name, "namespace": namespace, "labels": {"for": "policy"}}, "data": data});
        (Kind::new("", "v1", "ConfigMap"), true, object)
    };
    FakeCluster {
        objects: vec![config("test", "strict", json!({"ok": false, "say": "strict"})), config("test", "lax", json!({"ok": true, "say": "lax"}))],
    }
}

fn validated(cluster: &FakeCluster, policy: Value, bindings: &[Value]) -> (Result<(), Refusal>, Notes) {
    let object = json!({"metadata": {"name": "n"}, "count": 3});
    let mut notes = Notes::default();
    let bindings: Vec<Arc<Value>> = bindings.iter().cloned().map(binding).collect();
    let environment = Environment { cluster, engine: &Expressions };
    let (policies, request) = (policies(&[definition(policy)], &bindings), request("things.g", &object, None));
    let result = ready(is_send(validate(&environment, &policies, &request, &mut notes)));
    (result, notes)
}

fn is_send<T: Send>(value: T) -> T {
    value
}

fn message(policy: Value, bindings: &[Value]) -> String {
    validated(&limits(), policy, bindings).0.err().map(|refusal| refusal.to_string()).unwrap_or_default()
}

const DENIED: &str = "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: ";

#[test]
fn validations_deny_with_upstream_s_words() {
    let one = |validation: Value| message(json!({"validations": [validation]}), &[json!({})]);
    assert_eq!(one(json!({"expression": "is:/count=3"})), "");
    assert_eq!(
        one(json!({"expression": " is:/count=4 "})),
        format!("{DENIED}expression ' is:/count=4 ' resulted in error: expected value at line 1 column 2")
    );
    assert_eq!(one(json!({"expression": "is:/count=4"})), format!("{DENIED}failed expression: is:/count=4"));
    assert_eq!(one(json!({"expression": "false", "message": " too many "})), format!("{DENIED}too many"));
    assert_eq!(one(json!({"expression": "false", "message": "m", "messageExpression": "\"made\""})), format!("{DENIED}made"));
    for unusable in ["fail:x", "3", "\"\"", "\"two\\nlines\""] {
        assert_eq!(one(json!({"expression": "false", "message": "m", "messageExpression": unusable})), format!("{DENIED}m"), "{unusable}");
    }
    assert_eq!(one(json!({"expression": "fail:x"})), format!("{DENIED}expression 'fail:x' resulted in error: x"));
    assert_eq!(one(json!({"expression": "compile:compilation failed: E"})), format!("{DENIED}compilation error: compilation failed: E"));
    assert!(one(json!({"expression": "costly"})).starts_with(&format!("{DENIED}validation failed due to running out of cost budget")));
    assert!(
        one(json!({"expression": "true", "messageExpression": "costly"}))
            .starts_with(&format!("{DENIED}failed messageExpression: validation failed"))
    );
    let ignoring = |expression: &str| message(json!({"failurePolicy": "Ignore", "validations": [{"expression": expression}]}), &[json!({})]);
    assert_eq!((ignoring("fail:x").as_str(), ignoring("costly").as_str()), ("", ""));
    assert_eq!(ignoring("false"), format!("{DENIED}failed expression: false"));
}

#[test]
fn reasons_decide_the_code() {
    for (reason, code) in [(Value::Null, 422), ("Forbidden".into(), 403), ("RequestEntityTooLarge".into(), 413), ("Unauthorized".into(), 401)] {
        let (result, _) = validated(&limits(), json!({"validations": [{"expression": "false", "reason": reason}]}), &[json!({})]);
        let Err(Refusal::Denied { prefixed: true, code: given, reason: shown, causes, .. }) = result else { panic!("{result:?}") };
        assert_eq!((given, shown.as_str(), causes.len()), (code, reason.as_str().unwrap_or("Invalid"), 1));
    }
}

#[test]
fn actions_warn_and_audit() {
    let policy = || json!({"validations": [{"expression": "true"}, {"expression": "false", "message": "a < b"}]});
    let (result, notes) = validated(&limits(), policy(), &[json!({"validationActions": ["Warn", "Audit"]})]);
    assert_eq!(result, Ok(()));
    assert_eq!(notes.warnings, ["Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': a < b"]);
    assert_eq!(
        notes.audit["validation.policy.admission.k8s.io/validation_failure"],
        r#"[{"message":"a \u003c b","policy":"p","binding":"b","expressionIndex":1,"validationActions":["Warn","Audit"]}]"#
    );
}

#[test]
fn audit_annotations_are_joined() {
    let policy = |expression: &str| json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}, "auditAnnotations": [{"key": "k", "valueExpression": expression}]});
    let all = || json!({"paramRef": {"selector": {}, "parameterNotFoundAction": "Deny"}});
    let (result, notes) = validated(&limits(), policy("param:/data/say"), &[all()]);
    assert_eq!((result, notes.audit["p/k"].as_str()), (Ok(()), "strict, lax"));
    let (result, notes) = validated(&limits(), policy("null"), &[all()]);
    assert_eq!((result, notes.audit.len()), (Ok(()), 0));
    assert_eq!(
        validated(&limits(), policy("fail:x"), &[all()]).0.unwrap_err().to_string(),
        format!("{DENIED}expression 'fail:x' resulted in error: x")
    );
}

#[test]
fn parameters_are_found_or_missed() {
    let policy = |kind: &str| json!({"paramKind": {"apiVersion": "v1", "kind": kind}, "validations": [{"expression": "param:/data/ok"}]});
    let with = |reference: Value| message(policy("ConfigMap"), &[json!({"paramRef": reference})]);
    assert_eq!(with(json!({"name": "lax", "parameterNotFoundAction": "Deny"})), "");
    assert_eq!(with(json!({"name": "strict"})), format!("{DENIED}failed expression: param:/data/ok"));
    assert_eq!(with(json!({"name": "strict", "namespace": "other", "parameterNotFoundAction": "Allow"})), "");
    let missing = "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction";
    assert_eq!(with(json!({"name": "x", "parameterNotFoundAction": "Deny"})), format!("{DENIED}{missing}"));
    assert_eq!(with(json!({"selector": {"matchLabels": {"for": "none"}}, "parameterNotFoundAction": "Allow"})), "");
    assert_eq!(with(json!({"selector": {"matchLabels": {"for": "policy"}}})), format!("{DENIED}failed expression: param:/data/ok"));
    assert_eq!(
        message(policy("Nothing"), &[json!({})]),
        "ValidatingAdmissionPolicy 'p' denied request: failed to configure policy: failed to find resource referenced by paramKind: '/v1, Kind=Nothing'"
    );
    let cluster = FakeCluster { objects: vec![(Kind::new("", "v1", "ConfigMap"), false, json!({"metadata": {"name": "c"}, "data": {"ok": true}}))] };
    let scoped =
        |reference: Value| validated(&cluster, policy("ConfigMap"), &[json!({"paramRef": reference})]).0.map_err(|refusal| refusal.to_string());
    assert_eq!(scoped(json!({"name": "c"})), Ok(()));
    let wrong = "failed to configure binding: paramRef.namespace must not be provided for a cluster-scoped `paramKind`";
    assert_eq!(scoped(json!({"name": "c", "namespace": "test"})), Err(format!("{DENIED}{wrong}")));
    let kind = json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}, "validations": [{"expression": "param:/kind"}]});
    assert_eq!(
        message(kind, &[json!({"paramRef": {"name": "lax"}})]),
        format!("{DENIED}failed expression: param:/kind"),
        "the kind is there, and no bool"
    );
}

#[test]
fn policies_need_bindings_that_match() {
    let policy = || json!({"validations": [{"expression": "false"}]});
    assert_eq!(message(policy(), &[]), "");
    assert_eq!(message(policy(), &[json!({"policyName": "other"})]), "");
    let other = json!({"matchResources": {"namespaceSelector": {"matchLabels": {"team": "b"}}, "objectSelector": {}}});
    assert_eq!(message(policy(), &[other]), "");
    let incomplete = "failed to configure binding: a nil namespace selector was passed, please ensure selectors are initialized properly";
    assert_eq!(message(policy(), &[json!({"matchResources": {}})]), format!("{DENIED}{incomplete}"));
    let conditional = |expression: &str| {
        message(json!({"matchConditions": [{"name": "c", "expression": expression}], "validations": [{"expression": "false"}]}), &[json!({})])
    };
    assert_eq!(conditional("false"), "");
    assert_eq!(conditional("fail:x"), format!("{DENIED}expression 'fail:x' resulted in error: x"));
    let (environment, object) = (Environment { cluster: &limits(), engine: &Expressions }, json!({}));
    let all = policies(&[definition(policy())], &[binding(json!({}))]);
    let exempt = request("validatingadmissionpolicies.admissionregistration.k8s.io", &object, None);
    assert_eq!(ready(validate(&environment, &all, &exempt, &mut Notes::default())), Ok(()));
}

fn mutated(mutations: Value, more: Value, object: Value, mut reinvocation: Reinvocation) -> (Result<(), String>, Value, Reinvocation) {
    let (cluster, none, mut object) = (limits(), Value::Null, object);
    let environment = Environment { cluster: &cluster, engine: &Expressions };
    let all = policies(&[definition(merged(json!({"mutations": mutations}), more))], &[binding(json!({}))]);
    let request = request("things.example.com", &none, None);
    let future = mutate(&environment, &all, &request, Some(&mut object), &mut reinvocation);
    let result = ready(is_send(future)).map_err(|refusal| refusal.to_string());
    (result, object, reinvocation)
}

fn json_patch(expression: &str) -> Value {
    json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}})
}

fn apply(expression: &str) -> Value {
    json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}})
}

#[test]
fn mutations_change_objects_in_order() {
    let mutations =
        json!([json_patch(r#"[{"op":"add","path":"/a","value":1}]"#), apply(r#"{"b":2}"#), json_patch(r#"[{"op":"move","from":"/b","path":"/c"}]"#)]);
    let (result, object, mut reinvocation) = mutated(mutations, json!({}), json!({}), Reinvocation::default());
    assert_eq!((result, object), (Ok(()), json!({"a": 1, "apiVersion": "example.com/v1", "kind": "Thing", "c": 2})));
    assert!(reinvocation.begin_second());
    let untested = json!([json_patch(r#"[{"op":"test","path":"/a","value":9},{"op":"add","path":"/b","value":1}]"#)]);
    let (result, object, mut reinvocation) = mutated(untested, json!({}), json!({"a": 1}), Reinvocation::default());
    assert_eq!((result, object, reinvocation.begin_second()), (Ok(()), json!({"a": 1}), false), "a failed test changes nothing");
}

#[test]
fn failed_mutations_deny_with_upstream_s_words() {
    for (mutation, expected) in [
        (json_patch("fail:x"), "expression 'fail:x' resulted in error: x"),
        (
            json_patch(r#"[{"op":"remove","path":"/a"}]"#),
            "JSON Patch: error in remove for path: '/a': Unable to remove nonexistent key: a: missing value",
        ),
        (apply("compile:compilation failed: E"), "compilation failed: E"),
        (apply(r#"{"atomic":1}"#), "error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .atomic"),
    ] {
        let result = mutated(json!([mutation]), json!({}), json!({}), Reinvocation::default()).0;
        assert_eq!(result, Err(format!("policy 'p' with binding 'b' denied request: {expected}")));
        let result = mutated(json!([mutation]), json!({"failurePolicy": "Ignore"}), json!({}), Reinvocation::default()).0;
        assert_eq!(result, Ok(()));
    }
    let lost = mutated(json!([apply("{}")]), json!({"paramKind": {"apiVersion": "v1", "kind": "Nothing"}}), json!({}), Reinvocation::default()).0;
    let expected = r#"policy "p" denied request: failed to configure policy: failed to find resource referenced by paramKind: '/v1, Kind=Nothing'"#;
    assert_eq!(lost, Err(expected.to_owned()));
}

#[test]
fn policies_are_asked_again_only_when_they_want_it() {
    let add = || json!([json_patch(r#"[{"op":"add","path":"/list/-","value":1}]"#)]);
    for (policy, rounds) in [("IfNeeded", 2), ("Never", 1)] {
        let (_, object, mut reinvocation) = mutated(add(), json!({"reinvocationPolicy": policy}), json!({"list": []}), Reinvocation::default());
        assert!(reinvocation.begin_second());
        let (_, object, _) = mutated(add(), json!({"reinvocationPolicy": policy}), merged(object, json!({"elsewhere": 1})), reinvocation);
        assert_eq!(object["list"].as_array().unwrap().len(), rounds, "{policy}");
    }
}

#[test]
fn type_checks_warn_per_kind() {
    let rule = |groups: &[&str], resources: &[&str]| json!({"apiGroups": groups, "apiVersions": ["v1"], "resources": resources});
    let policy = json!({"spec": {"matchConstraints": {"resourceRules": [rule(&["apps"], &["deployments", "deployments/scale", "*"]), rule(&["*"], &["pods"])]},
        "validations": [{"expression": "good"}, {"expression": "bad", "messageExpression": "worse"}]}});
    let kinds = types_to_check(&policy, |resource: &Resource| vec![Kind::new(&resource.group, &resource.version, "Deployment")]);
    assert_eq!(kinds, [Kind::new("apps", "v1", "Deployment")]);
    let warnings = type_check(&policy, &kinds, |_, expression| if expression == "good" { Ok(()) } else { Err(format!("{expression}!")) });
    let expected = json!([
        {"fieldRef": "spec.validations[1].expression", "warning": "apps/v1, Kind=Deployment: bad!\n"},
        {"fieldRef": "spec.validations[1].messageExpression", "warning": "apps/v1, Kind=Deployment: worse!\n"},
    ]);
    assert_eq!(Value::from(warnings), expected);
}
