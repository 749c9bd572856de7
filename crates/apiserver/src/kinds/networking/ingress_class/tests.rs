//! Defaults, checks, columns of IngressClasses.

use super::*;
use crate::kinds::check::{change, defaulted, row, table, with};
use serde_json::json;

fn class() -> Value {
    json!({"metadata": {"name": "c"}, "spec": {"controller": "foo.co/bar", "parameters": {"kind": "K", "name": "n", "scope": "Cluster"}}})
}

#[test]
fn parameters_are_of_the_cluster() {
    let made = defaulted(defaults, json!({"spec": {"parameters": {"kind": "K", "name": "n"}}}));
    assert_eq!(made["spec"]["parameters"]["scope"], "Cluster");
}

#[test]
fn classes_are_checked() {
    table(
        validate,
        &class(),
        &[
            ("/spec/controller", json!(""), "spec.controller: Required value"),
            ("/spec/controller", json!("bar"), "spec.controller: Invalid value: \"bar\": must be a domain-prefixed path (such as \"acme.io/foo\")"),
            (
                "/spec/controller",
                json!("foo.co/bar{}"),
                "spec.controller: Invalid value: \"bar{}\": Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')",
            ),
            ("/spec/parameters/kind", json!(""), "spec.parameters.kind: Required value"),
            ("/spec/parameters/name", json!("a/b"), "spec.parameters.name: Invalid value: \"a/b\": may not contain '/'"),
            ("/spec/parameters/scope", Value::Null, "spec.parameters.scope: Required value"),
            (
                "/spec/parameters/scope",
                json!("Room"),
                "spec.parameters.scope: Unsupported value: \"Room\": supported values: \"Cluster\", \"Namespace\"",
            ),
            ("/spec/parameters/scope", json!("Namespace"), "spec.parameters.namespace: Required value: `parameters.scope` is set to 'Namespace'"),
            ("/spec/parameters/namespace", json!("a"), "spec.parameters.namespace: Forbidden: `parameters.scope` is set to 'Cluster'"),
        ],
    );
    let other = with(&class(), &[("/spec/controller", json!("foo.co/other"))]);
    assert_eq!(change(validate, &class(), &other), "spec.controller: Invalid value: \"foo.co/other\": field is immutable");
}

#[test]
fn columns_name_the_default() {
    assert_eq!(row(cells, &class()), ["x", "foo.co/bar", "K/n", "2m30s"]);
    let default = with(&class(), &[("/metadata/annotations", json!({DEFAULT: "true"})), ("/spec/parameters/apiGroup", json!("g.io"))]);
    assert_eq!(row(cells, &default)[..3], ["x (default)", "foo.co/bar", "K.g.io/n"]);
}
