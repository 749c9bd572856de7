//! Checks, warnings, columns of Ingresses.

use super::*;
use crate::kinds::check::{change, problems, row, status_change, table, warned, with};

fn ingress() -> Value {
    let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
    json!({"metadata": {"name": "i", "namespace": "default", "annotations": {}}, "spec": {
        "defaultBackend": backend, "rules": [{"host": "foo.bar.com", "http": {"paths": [{"path": "/foo", "pathType": "Prefix", "backend": backend}]}}]}})
}

const PATH: &str = "spec.rules[0].http.paths[0]";

#[test]
fn ingresses_are_checked() {
    let path = |what: &str| format!("{PATH}.path: Invalid value: {what}");
    table(
        validate,
        &ingress(),
        &[
            ("/spec", json!({}), "spec: Invalid value: null: either `defaultBackend` or `rules` must be specified"),
            (
                "/spec/defaultBackend",
                json!({"service": {"name": "web", "port": {}}}),
                "spec.defaultBackend: Required value: port name or number is required",
            ),
            (
                "/spec/defaultBackend",
                json!({"service": {"name": "web", "port": {"name": "http", "number": 80}}}),
                "spec.defaultBackend: Invalid value: \"\": cannot set both port name & port number",
            ),
            ("/spec/defaultBackend", json!({}), "spec.defaultBackend: Invalid value: \"\": resource or service backend is required"),
            (
                "/spec/defaultBackend",
                json!({"service": {"name": "a"}, "resource": {"kind": "K", "name": "n"}}),
                "spec.defaultBackend: Invalid value: \"\": cannot set both resource and service backends",
            ),
            ("/spec/defaultBackend", json!({"resource": {"kind": "K", "name": "n"}}), ""),
            ("/spec/defaultBackend", json!({"resource": {"kind": "K", "name": ""}}), "spec.defaultBackend.resource.name: Required value"),
            (
                "/spec/defaultBackend",
                json!({"service": {"name": "", "port": {"number": 70000}}}),
                "spec.defaultBackend.service.name: Required value\n\
                 spec.defaultBackend.service.port.number: Invalid value: 70000: must be between 1 and 65535, inclusive",
            ),
            ("/spec/rules/0/http/paths", json!([]), "spec.rules[0].http.paths: Required value"),
            ("/spec/rules/0/http/paths/0/pathType", Value::Null, &format!("{PATH}.pathType: Required value: pathType must be specified")),
            (
                "/spec/rules/0/http/paths/0/pathType",
                json!("Regex"),
                &format!("{PATH}.pathType: Unsupported value: \"Regex\": supported values: \"Exact\", \"ImplementationSpecific\", \"Prefix\""),
            ),
            ("/spec/rules/0/http/paths/0/path", json!("foo"), &path("\"foo\": must be an absolute path")),
            ("/spec/rules/0/http/paths/0/path", json!("/a//b"), &path("\"/a//b\": must not contain '//'")),
            ("/spec/rules/0/http/paths/0/path", json!("/a%2fb"), &path("\"/a%2fb\": must not contain '%2f'")),
            ("/spec/rules/0/http/paths/0/path", json!("/a/.."), &path("\"/a/..\": cannot end with '/..'")),
            ("/spec/rules/0/host", json!("*.bar.com"), ""),
            ("/spec/ingressClassName", json!("nginx"), ""),
        ],
    );
    let of = |pointer: &str, value: Value| problems(validate, &with(&ingress(), &[(pointer, value)]));
    assert!(
        of("/spec/rules/0/host", json!("1.2.3.4"))
            .starts_with("spec.rules[0].host: Invalid value: \"1.2.3.4\": must be a DNS name, not an IP address")
    );
    assert!(of("/spec/rules/0/host", json!("foo.*.com")).contains("a wildcard DNS-1123 subdomain must start with '*.'"));
    assert!(of("/spec/tls", json!([{"hosts": ["Bad"], "secretName": "Bad"}])).starts_with("spec.tls[0].hosts[0]: Invalid value: \"Bad\""));
    assert!(of("/spec/ingressClassName", json!("No_Name")).starts_with("spec.ingressClassName: Invalid value"));
}

#[test]
fn class_and_annotation_agree_at_first() {
    let both = with(&ingress(), &[("/metadata/annotations", json!({CLASS: "a"})), ("/spec/ingressClassName", json!("b"))]);
    let expected = "annotations.kubernetes.io/ingress.class: Invalid value: \"a\": must match `ingressClassName` when both are specified";
    assert_eq!(problems(validate, &both), expected);
    assert_eq!(change(validate, &ingress(), &both), "");
    let annotated = with(&ingress(), &[("/metadata/annotations", json!({CLASS: "a"}))]);
    assert_eq!(
        warned(warnings, &annotated),
        ["annotation \"kubernetes.io/ingress.class\" is deprecated, please use 'spec.ingressClassName' instead"]
    );
    assert!(warned(warnings, &both).is_empty());
}

#[test]
fn odd_rules_of_old_wildcards_may_stay() {
    let odd = with(&ingress(), &[("/spec/rules/0/host", json!("*.bar.com")), ("/spec/rules/0/http/paths/0/path", json!("foo"))]);
    assert!(!problems(validate, &odd).is_empty());
    assert_eq!(change(validate, &odd, &with(&odd, &[("/spec/ingressClassName", json!("a"))])), "");
}

#[test]
fn status_addresses_are_checked() {
    let status = |entry: Value| with(&ingress(), &[("/status", json!({"loadBalancer": {"ingress": [entry]}}))]);
    let of = |old: &Value, new: Value| status_change(validate_status, old, &status(new));
    assert_eq!(of(&ingress(), json!({"ip": "10.0.0.1"})), "");
    let zeros = "status.loadBalancer.ingress[0].ip: Invalid value: \"010.0.0.1\": must not have leading 0s";
    assert_eq!(of(&ingress(), json!({"ip": "010.0.0.1"})), zeros);
    assert_eq!(of(&status(json!({"ip": "010.0.0.1"})), json!({"ip": "010.0.0.1"})), "", "an old address may stay");
    assert!(of(&ingress(), json!({"hostname": "127.0.0.1"})).contains("must be a DNS name, not an IP address"));
}

#[test]
fn columns_show_hosts_and_addresses() {
    assert_eq!(row(cells, &ingress()), ["x", "<none>", "foo.bar.com", "", "80", "2m30s"]);
    let rules: Vec<Value> = ["a", "b", "c", "d"].iter().map(|host| json!({"host": host})).collect();
    let object = with(
        &ingress(),
        &[
            ("/spec/rules", rules.into()),
            ("/spec/tls", json!([{}])),
            ("/spec/ingressClassName", json!("nginx")),
            ("/status", json!({"loadBalancer": {"ingress": [{"ip": "2.2.2.2"}, {"hostname": "1.example.com"}]}})),
        ],
    );
    assert_eq!(row(cells, &object), ["x", "nginx", "a,b,c + 1 more...", "1.example.com,2.2.2.2", "80, 443", "2m30s"]);
    assert_eq!(row(cells, &with(&ingress(), &[("/spec/rules", json!([]))]))[2], "*");
}
