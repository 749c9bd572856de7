//! Tests of rules, selectors, equivalents and match conditions: upstream's cases.

use super::*;
use crate::test_requests::{Expressions, FakeCluster, USER, request};

fn rule(operations: &[&str], groups: &[&str], versions: &[&str], resources: &[&str], scope: &str) -> Value {
    json!({"operations": operations, "apiGroups": groups, "apiVersions": versions, "resources": resources, "scope": scope})
}

#[test]
fn rules_match_operations_groups_versions_resources_and_scopes() {
    let object = json!({"metadata": {"name": "n"}});
    let all = ["*"];
    for (resource, namespace, rule, expected) in [
        ("things.g", "ns", rule(&all, &all, &all, &all, "*"), true),
        ("things.g/sub", "ns", rule(&all, &all, &all, &all, "*"), false),
        ("things.g/sub", "ns", rule(&all, &all, &all, &["*/*"], "*"), true),
        ("things.g/sub", "ns", rule(&all, &all, &all, &["things/*"], ""), true),
        ("things.g/sub", "ns", rule(&all, &all, &all, &["*/sub"], ""), true),
        ("things.g/sub", "ns", rule(&all, &all, &all, &["*/other", "things"], ""), false),
        ("things.g", "ns", rule(&["UPDATE", "CREATE"], &["g"], &["v1"], &["things"], "*"), true),
        ("things.g", "ns", rule(&["UPDATE"], &["g"], &["v1"], &["things"], "*"), false),
        ("things.g", "ns", rule(&all, &["h", ""], &["v1"], &["things"], "*"), false),
        ("things.g", "ns", rule(&all, &["g"], &["v2"], &["things"], "*"), false),
        ("things.g", "ns", rule(&all, &all, &all, &all, "Namespaced"), true),
        ("things.g", "ns", rule(&all, &all, &all, &all, "Cluster"), false),
        ("things.g", "", rule(&all, &all, &all, &all, "Cluster"), true),
        ("things.g", "", rule(&all, &all, &all, &all, "Namespaced"), false),
        ("namespaces", "ns", rule(&all, &all, &all, &all, "Cluster"), true),
        ("namespaces", "ns", rule(&all, &all, &all, &all, "Namespaced"), false),
    ] {
        let mut request = request(resource, &object, None);
        request.namespace = namespace;
        assert_eq!(rule_matches(&rule, &request, &Target::of(&request).resource), expected, "{resource} in {namespace:?}: {rule}");
    }
}

fn hook(rules: Value, more: Value) -> Value {
    let mut hook = json!({"name": "hook", "namespaceSelector": {}, "objectSelector": {}, "rules": rules});
    for (name, value) in more.as_object().into_iter().flatten() {
        hook[name] = value.clone();
    }
    hook
}

#[test]
fn selectors_see_namespaces_and_both_objects() {
    let all = json!([rule(&["*"], &["*"], &["*"], &["*"], "*")]);
    let (plain, labelled) = (json!({"metadata": {}}), json!({"metadata": {"labels": {"a": "b"}}}));
    let selects = |more: Value, request: &Attributes<'_>| webhook_target(&hook(all.clone(), more), request, &FakeCluster::default());
    let team = |team: &str| json!({"namespaceSelector": {"matchLabels": {"team": team}}});
    let create = request("things.g", &plain, None);
    assert!(selects(team("a"), &create).unwrap().is_some());
    assert!(selects(team("b"), &create).unwrap().is_none());
    let mut cluster_wide = create.clone();
    cluster_wide.namespace = "";
    assert!(selects(team("b"), &cluster_wide).unwrap().is_some(), "objects without a Namespace are never exempt");
    let mut lost = create.clone();
    lost.namespace = "gone";
    assert_eq!(selects(team("a"), &lost).unwrap_err().to_string(), "namespaces \"gone\" not found");
    let nothing = hook(json!([]), team("a"));
    assert_eq!(webhook_target(&nothing, &lost, &FakeCluster::default()), Ok(None), "an error does not count where no rule matches");
    let own = json!({"metadata": {"labels": {"team": "b"}}});
    assert!(selects(team("b"), &request("namespaces", &own, None)).unwrap().is_some(), "a new Namespace's labels are its own");
    let object = || json!({"objectSelector": {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}});
    assert!(selects(object(), &create).unwrap().is_none());
    assert!(selects(object(), &request("things.g", &plain, Some(&labelled))).unwrap().is_some());
    assert!(selects(object(), &request("things.g", &labelled, Some(&plain))).unwrap().is_some());
    let mut deletion = request("things.g", &plain, Some(&labelled));
    deletion.object = None;
    deletion.operation = Operation::Delete;
    assert!(selects(object(), &deletion).unwrap().is_some());
}

#[test]
fn equivalent_resources_are_seen_in_the_version_of_the_rule() {
    let object = json!({});
    let request = request("things.example.com", &object, None);
    let rules = || json!([rule(&["*"], &["example.com"], &["v2"], &["things"], "*")]);
    let target = |policy: &str| webhook_target(&hook(rules(), json!({"matchPolicy": policy})), &request, &FakeCluster::default()).unwrap();
    assert_eq!(target("Exact"), None);
    let expected = Target { resource: Resource::new("example.com", "v2", "things"), kind: Kind::new("example.com", "v2", "Thing") };
    assert_eq!(target("Equivalent"), Some(expected));
}

#[test]
fn constraints_exclude_and_name_resources() {
    let object = json!({"metadata": {"name": "n"}});
    let request = request("things.g", &object, None);
    let all = || rule(&["*"], &["*"], &["*"], &["*"], "*");
    let matches = |constraints: Value| {
        let mut whole = json!({"namespaceSelector": {}, "objectSelector": {}});
        for (name, value) in constraints.as_object().unwrap() {
            whole[name] = value.clone();
        }
        constraints_target(&whole, &request, &FakeCluster::default()).unwrap().is_some()
    };
    let named = |name: &str| {
        let mut rule = all();
        rule["resourceNames"] = json!([name]);
        rule
    };
    assert!(matches(json!({})), "a binding without rules takes what the policy takes");
    assert!(matches(json!({"resourceRules": [all()]})));
    assert!(matches(json!({"resourceRules": [named("n")]})) && !matches(json!({"resourceRules": [named("m")]})));
    assert!(!matches(json!({"resourceRules": [all()], "excludeResourceRules": [all()]})));
    assert!(matches(json!({"resourceRules": [all()], "excludeResourceRules": [named("m")]})));
}

#[test]
fn conditions_follow_the_failure_policy() {
    let holds = |policy: &str, expressions: &[&str]| {
        let conditions: Vec<Value> = expressions.iter().map(|expression| json!({"name": "c", "expression": expression})).collect();
        let owner = json!({"failurePolicy": policy, "matchConditions": conditions});
        let null = &Value::Null;
        let input = Input { object: null, old_object: null, request: null, params: null, namespace_object: null, user: &USER };
        conditions_hold(&owner, Scope::default(), &input, &Expressions)
    };
    assert_eq!(holds("Fail", &[]), Ok(true));
    assert_eq!(holds("Fail", &["true", "true"]), Ok(true));
    assert_eq!(holds("Fail", &["true", "false"]), Ok(false));
    assert_eq!(holds("Fail", &["fail:no such key: x", "false"]), Ok(false), "what is false decides");
    assert_eq!(holds("Fail", &["fail:x", "true"]), Err("expression 'fail:x' resulted in error: x".into()));
    assert_eq!(
        holds("", &["fail:x", "compile:compilation failed: ERROR"]),
        Err("[expression 'fail:x' resulted in error: x, compilation error: compilation failed: ERROR]".into())
    );
    assert_eq!(holds("Ignore", &["fail:x", "true"]), Ok(false));
    assert!(holds("Fail", &["costly"]).unwrap_err().contains("running out of cost budget"));
    assert_eq!(holds("Ignore", &["costly"]), Ok(false));
}

#[test]
fn requests_are_described_as_upstream_does() {
    let object = json!({});
    let mut request = request("things.example.com/scale", &object, None);
    request.name = "n";
    let target = Target { resource: Resource::new("example.com", "v2", "things"), kind: Kind::new("autoscaling", "v1", "Scale") };
    assert_eq!(
        admission_request(&request, &target).to_string(),
        concat!(
            r#"{"kind":{"group":"autoscaling","version":"v1","kind":"Scale"},"resource":{"group":"example.com","version":"v2","resource":"things"},"#,
            r#""subResource":"scale","requestKind":{"group":"example.com","version":"v1","kind":"Thing"},"#,
            r#""requestResource":{"group":"example.com","version":"v1","resource":"things"},"requestSubResource":"scale","name":"n","namespace":"test","#,
            r#""operation":"CREATE","userInfo":{"username":"jane"},"dryRun":false,"options":null}"#
        )
    );
}

#[test]
fn configurations_of_admission_are_exempt() {
    let object = json!({});
    let mut configuration = request("validatingwebhookconfigurations.admissionregistration.k8s.io", &object, None);
    assert!(!is_exempt(&configuration));
    configuration.kind = "ValidatingWebhookConfiguration";
    assert!(is_exempt(&configuration));
}
