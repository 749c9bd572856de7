//! Checks, columns of CSIStorageCapacities.

use super::*;
use crate::kinds::check::{change, row, table, with};
use serde_json::json;

fn capacity() -> Value {
    json!({"metadata": {"name": "c", "namespace": "default"}, "storageClassName": "fast", "capacity": "1Gi"})
}

#[test]
fn capacities_are_checked() {
    table(
        validate,
        &capacity(),
        &[
            ("/capacity", json!("-1"), "capacity: Invalid value: \"-1\": must be greater than or equal to 0"),
            (
                "/nodeTopology",
                json!({"matchExpressions": [{"key": "a", "operator": "Is"}]}),
                "nodeTopology.matchExpressions[0].operator: Invalid value: \"Is\": not a valid selector operator",
            ),
        ],
    );
    let of = |pointer: &str, value: Value| change(validate, &capacity(), &with(&capacity(), &[(pointer, value)]));
    assert_eq!(of("/capacity", json!("2Gi")), "");
    assert_eq!(of("/storageClassName", json!("slow")), "storageClassName: Invalid value: \"slow\": field is immutable");
    assert_eq!(of("/nodeTopology", json!({})), "nodeTopology: Invalid value: {}: field is immutable");
}

#[test]
fn columns_show_class_and_amount() {
    assert_eq!(row(cells, &capacity()), ["x", "fast", "1Gi"]);
}
