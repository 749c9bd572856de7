//! Tests of defaults and validation: upstream's cases.

use crate::kinds::by_resource;
use serde_json::{Value, json};

/// What is wrong with an object after its defaults.
fn errors(plural: &str, object: Value) -> Vec<String> {
    let kind = by_resource("admissionregistration.k8s.io", "v1", plural).unwrap();
    let mut object = object;
    object["metadata"] = json!({"name": "n.example.com"});
    kind.apply_defaults(&mut object);
    kind.errors_of_new(&object).iter().map(ToString::to_string).collect()
}

fn changed(mut base: Value, changes: &Value) -> Value {
    for (name, value) in changes.as_object().unwrap() {
        base[name] = value.clone();
    }
    base
}

fn hook(changes: &Value) -> Value {
    let base = json!({
        "name": "a.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"], "clientConfig": {"url": "https://h/p"},
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
    });
    json!({"webhooks": [changed(base, changes)]})
}

#[test]
fn webhooks_get_defaults() {
    let kind = by_resource("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations").unwrap();
    let mut object = hook(&json!({"clientConfig": {"service": {"name": "s", "namespace": "n"}}}));
    kind.apply_defaults(&mut object);
    let hook = &object["webhooks"][0];
    assert_eq!((&hook["failurePolicy"], &hook["matchPolicy"], &hook["timeoutSeconds"]), (&json!("Fail"), &json!("Equivalent"), &json!(10)));
    assert_eq!((&hook["reinvocationPolicy"], &hook["rules"][0]["scope"]), (&json!("Never"), &json!("*")));
    assert_eq!((&hook["clientConfig"]["service"]["port"], &hook["objectSelector"]), (&json!(443), &json!({})));
}

#[test]
fn webhooks_are_refused_with_upstream_s_words() {
    let rule = |changes: Value| json!({"rules": [changed(json!({"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}), &changes)]});
    for (changes, expected) in [
        (json!({}), ""),
        (json!({"name": ""}), "webhooks[0].name: Required value"),
        (
            json!({"name": "k8s.io"}),
            r#"webhooks[0].name: Invalid value: "k8s.io": should be a domain with at least three segments separated by dots"#,
        ),
        (json!({"sideEffects": "Some"}), r#"webhooks[0].sideEffects: Unsupported value: "Some": supported values: "None", "NoneOnDryRun""#),
        (json!({"sideEffects": null}), "webhooks[0].sideEffects: Required value: must specify one of None, NoneOnDryRun"),
        (json!({"admissionReviewVersions": []}), "webhooks[0].admissionReviewVersions: Required value: must specify one of v1, v1beta1"),
        (
            json!({"admissionReviewVersions": ["v2"]}),
            r#"webhooks[0].admissionReviewVersions: Invalid value: ["v2"]: must include at least one of v1, v1beta1"#,
        ),
        (json!({"timeoutSeconds": 31}), "webhooks[0].timeoutSeconds: Invalid value: 31: the timeout value must be between 1 and 30 seconds"),
        (json!({"clientConfig": {}}), "webhooks[0].clientConfig: Required value: exactly one of url or service is required"),
        (
            json!({"clientConfig": {"url": "http://h?q"}}),
            r#"webhooks[0].clientConfig.url: Invalid value: "http": 'https' is the only allowed URL scheme; desired format: https://host[/path]|webhooks[0].clientConfig.url: Invalid value: "q": query parameters are not permitted in the URL"#,
        ),
        (
            json!({"clientConfig": {"service": {"name": "s", "namespace": "n", "path": "foo/"}}}),
            r#"webhooks[0].clientConfig.service.path: Invalid value: "foo/": must start with a '/'"#,
        ),
        (
            rule(json!({"operations": ["CREATE", "*"]})),
            r#"webhooks[0].rules[0].operations: Invalid value: ["CREATE","*"]: if '*' is present, must not specify other operations"#,
        ),
        (
            rule(json!({"resources": ["a/*", "a/x"]})),
            r#"webhooks[0].rules[0].resources[1]: Invalid value: "a/x": if 'a/*' is present, must not specify a/x"#,
        ),
        (
            rule(json!({"resources": ["*/*", "a"]})),
            r#"webhooks[0].rules[0].resources: Invalid value: ["*/*","a"]: if '*/*' is present, must not specify other resources"#,
        ),
        (rule(json!({"apiVersions": []})), "webhooks[0].rules[0].apiVersions: Required value"),
        (rule(json!({"scope": "x"})), r#"webhooks[0].rules[0].scope: Unsupported value: "x": supported values: "*", "Cluster", "Namespaced""#),
        (json!({"matchConditions": [{"name": "", "expression": "true"}]}), "webhooks[0].matchConditions[0].name: Required value"),
        (
            json!({"matchConditions": [{"name": "a", "expression": "1"}]}),
            r#"webhooks[0].matchConditions[0].expression: Invalid value: "1": must evaluate to bool but got int"#,
        ),
    ] {
        assert_eq!(errors("validatingwebhookconfigurations", hook(&changes)).join("|"), expected, "{changes}");
    }
}

fn policy(changes: &Value) -> Value {
    let rule = json!({"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]});
    json!({"spec": changed(json!({"matchConstraints": {"resourceRules": [rule]}}), changes)})
}

#[test]
fn policies_are_refused_with_upstream_s_words() {
    let validation = |one: Value| json!({"validations": [one]});
    for (changes, expected) in [
        (validation(json!({"expression": "object.spec.x < 5"})), ""),
        (
            json!({}),
            "spec.validations: Required value: validations or auditAnnotations must contain at least one item|spec.auditAnnotations: Required value: validations or auditAnnotations must contain at least one item",
        ),
        (validation(json!({"expression": " "})), "spec.validations[0].expression: Required value: expression is not specified"),
        (validation(json!({"expression": "1 < 'a'"})), "compiles"),
        (validation(json!({"expression": "params.x == 1"})), "compiles"),
        (
            validation(json!({"expression": "true", "reason": "Other"})),
            r#"spec.validations[0].reason: Unsupported value: "Other": supported values: "Forbidden", "Invalid", "RequestEntityTooLarge""#,
        ),
        (
            validation(json!({"expression": "true", "message": "a\nb"})),
            "spec.validations[0].message: Invalid value: \"a\\nb\": must not contain line breaks",
        ),
        (json!({"validations": [{"expression": "variables.a > 1"}], "variables": [{"name": "a", "expression": "2"}]}), ""),
        (
            json!({"validations": [{"expression": "true"}], "variables": [{"name": "in", "expression": "2"}]}),
            r#"spec.variables[0].name: Invalid value: "in": must be a valid CEL identifier"#,
        ),
        (
            json!({"validations": [{"expression": "true"}], "paramKind": {"apiVersion": "a/b/c", "kind": "K"}}),
            r#"spec.paramKind.apiVersion: Invalid value: "a/b/c": unexpected GroupVersion string: a/b/c"#,
        ),
        (json!({"validations": [{"expression": "true"}], "matchConstraints": null}), "spec.matchConstraints: Required value"),
        (
            json!({"auditAnnotations": [{"key": "k", "valueExpression": "1"}]}),
            r#"spec.auditAnnotations[0].valueExpression: Invalid value: "1": must evaluate to one of [string null_type] but got int"#,
        ),
    ] {
        let found = errors("validatingadmissionpolicies", policy(&changes)).join("|");
        match expected {
            "compiles" => assert!(found.contains("compilation failed: ERROR: <input>:1:"), "{changes}: {found}"),
            expected => assert_eq!(found, expected, "{changes}"),
        }
    }
    let mutation = |one: Value| json!({"reinvocationPolicy": "Never", "mutations": [one]});
    for (changes, expected) in [
        (mutation(json!({"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{op: 'add', path: '/a', value: 1}]"}})), ""),
        (mutation(json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "Object{spec: Object.spec{a: 1}}"}})), ""),
        (mutation(json!({"patchType": "JSONPatch"})), "spec.mutations[0].jsonPatch: Required value: must be specified when patchType is JSONPatch"),
        (
            mutation(json!({"patchType": "x"})),
            r#"spec.mutations[0].patchType: Unsupported value: "x": supported values: "ApplyConfiguration", "JSONPatch""#,
        ),
        (json!({"reinvocationPolicy": "Never"}), "spec.mutations: Required value: mutations must contain at least one item"),
    ] {
        assert_eq!(errors("mutatingadmissionpolicies", policy(&changes)).join("|"), expected, "{changes}");
    }
}

#[test]
fn bindings_are_refused_with_upstream_s_words() {
    let binding = |changes: Value| json!({"spec": changed(json!({"policyName": "p", "validationActions": ["Deny"]}), &changes)});
    for (changes, expected) in [
        (json!({}), ""),
        (json!({"policyName": ""}), "spec.policyName: Required value"),
        (json!({"validationActions": []}), "spec.validationActions: Required value: at least one validation action is required"),
        (json!({"validationActions": ["Deny", "Deny"]}), r#"spec.validationActions[1]: Duplicate value: "Deny""#),
        (json!({"paramRef": {"parameterNotFoundAction": "Deny"}}), "spec.paramRef: Required value: one of name or selector must be specified"),
        (json!({"paramRef": {"name": "a"}}), "spec.paramRef.parameterNotFoundAction: Required value"),
        (
            json!({"paramRef": {"name": "a", "selector": {}, "parameterNotFoundAction": "Allow"}}),
            "spec.paramRef.name: Forbidden: name and selector are mutually exclusive|spec.paramRef.selector: Forbidden: name and selector are mutually exclusive",
        ),
    ] {
        assert_eq!(errors("validatingadmissionpolicybindings", binding(changes.clone())).join("|"), expected, "{changes}");
    }
    assert!(
        errors("validatingadmissionpolicybindings", binding(json!({"validationActions": ["Deny", "Warn"]})))[0]
            .contains("must not contain both Deny and Warn")
    );
    let deleting = json!({"resourceRules": [{"operations": ["DELETE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]});
    let found = errors("mutatingadmissionpolicybindings", json!({"spec": {"policyName": "p", "matchResources": deleting}})).join("|");
    assert_eq!(
        found,
        r#"spec.matchResources.resourceRules.operations: Unsupported value: "DELETE": supported values: "*", "CONNECT", "CREATE", "UPDATE""#
    );
}
