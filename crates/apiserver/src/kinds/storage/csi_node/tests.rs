//! Checks, columns of CSINodes.

use super::*;
use crate::kinds::check::{change, row, table, with};
use serde_json::json;

fn node() -> Value {
    json!({"metadata": {"name": "n"}, "spec": {"drivers": [
        {"name": "d.io", "nodeID": "n-1", "topologyKeys": ["company.com/zone"], "allocatable": {"count": 3}}]}})
}

#[test]
fn drivers_are_checked() {
    let at = "spec.drivers[0]";
    table(
        validate,
        &node(),
        &[
            ("/spec/drivers/0/name", json!(""), &format!("{at}.name: Required value")),
            ("/spec/drivers/0/nodeID", json!(""), &format!("{at}.nodeID: Required value")),
            (
                "/spec/drivers/0/allocatable/count",
                json!(-1),
                &format!("{at}.allocatable.count: Invalid value: -1: must be greater than or equal to 0"),
            ),
            ("/spec/drivers/0/topologyKeys", json!(["a", "a"]), &format!("{at}: Duplicate value: \"a\"")),
            (
                "/spec/drivers",
                json!([{"name": "d.io", "nodeID": "a"}, {"name": "d.io", "nodeID": "b"}]),
                "spec.drivers[1].name: Duplicate value: \"d.io\"",
            ),
        ],
    );
}

#[test]
fn a_driver_changes_its_limit_alone() {
    let of = |pointer: &str, value: Value| change(validate, &node(), &with(&node(), &[(pointer, value)]));
    assert_eq!(of("/spec/drivers/0/allocatable/count", json!(9)), "");
    assert_eq!(of("/spec/drivers", json!([])), "");
    let moved = of("/spec/drivers/0/nodeID", json!("n-2"));
    assert!(moved.starts_with("spec.drivers: Invalid value: ") && moved.ends_with("field is immutable"), "{moved}");
}

#[test]
fn columns_count_drivers() {
    assert_eq!(row(cells, &node()), ["x", "1", "2m30s"]);
}
