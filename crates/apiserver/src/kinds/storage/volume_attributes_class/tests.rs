//! Checks, columns of VolumeAttributesClasses.

use super::*;
use crate::kinds::check::{row, table, updates};
use serde_json::json;

fn class() -> Value {
    json!({"metadata": {"name": "c"}, "driverName": "d.io", "parameters": {"iops": "500"}})
}

#[test]
fn classes_are_checked_and_stay() {
    table(
        validate,
        &class(),
        &[
            ("/driverName", json!(""), "driverName: Required value"),
            ("/parameters", json!({}), "parameters: Required value: must contain at least one key/value pair"),
            ("/parameters", json!({"": "a"}), "parameters: Invalid value: \"\": field can not be empty."),
        ],
    );
    updates(
        validate,
        &class(),
        &[
            ("/driverName", json!("e.io"), "driverName: Forbidden: updates to driverName are forbidden."),
            ("/parameters", json!({"iops": "1"}), "parameters: Forbidden: updates to parameters are forbidden."),
        ],
    );
}

#[test]
fn columns_show_the_driver() {
    assert_eq!(row(cells, &class()), ["x", "d.io", "2m30s"]);
}
