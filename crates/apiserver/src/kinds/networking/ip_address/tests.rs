//! Names, checks, columns of IPAddresses.

use super::*;
use crate::kinds::check::{change, row, table, with};
use serde_json::json;

fn address() -> Value {
    json!({"metadata": {"name": "10.0.0.1"}, "spec": {"parentRef": {"resource": "services", "namespace": "default", "name": "web"}}})
}

#[test]
fn names_are_addresses() {
    let rule = |name: &str| (kind().validation.name)(name);
    assert!(rule("10.0.0.1").is_empty() && rule("2001:db8::1").is_empty());
    assert_eq!(rule("2001:DB8::1"), ["must be in canonical form (\"2001:db8::1\")"]);
    assert_eq!(rule("web").len(), 1);
}

#[test]
fn addresses_have_a_parent_forever() {
    table(
        validate,
        &address(),
        &[
            ("/spec/parentRef", Value::Null, "spec.parentRef: Required value"),
            ("/spec/parentRef/resource", json!(""), "spec.parentRef.resource: Required value"),
            ("/spec/parentRef/name", json!("a%b"), "spec.parentRef.name: Invalid value: \"a%b\": may not contain '%'"),
        ],
    );
    let moved = change(validate, &address(), &with(&address(), &[("/spec/parentRef/name", json!("other"))]));
    assert!(moved.starts_with("spec.parentRef: Invalid value: ") && moved.ends_with("field is immutable"), "{moved}");
}

#[test]
fn columns_name_the_parent() {
    assert_eq!(row(|object, _| vec![name(object), parent(object).into()], &address()), ["x", "services/default/web"]);
    assert_eq!(parent(&with(&address(), &[("/spec/parentRef/group", json!("G.io"))])), "services.g.io/default/web");
    assert_eq!(parent(&json!({})), "<none>");
}
