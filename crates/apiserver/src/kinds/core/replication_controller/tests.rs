//! Defaults, checks, columns of ReplicationControllers.

use super::*;
use crate::kinds::check::{defaulted, row, status_change, table, template, updates, with};
use serde_json::json;

fn controller() -> Value {
    json!({"metadata": {"name": "r", "namespace": "default"}, "spec": {"replicas": 1, "selector": {"a": "b"}, "template": template("Always")}})
}

#[test]
fn selector_and_labels_come_from_the_template() {
    let made = defaulted(defaults, json!({"metadata": {"name": "r"}, "spec": {"template": template("Always")}}));
    assert_eq!((&made["spec"]["selector"], &made["metadata"]["labels"]), (&json!({"a": "b"}), &json!({"a": "b"})));
    assert_eq!(made["spec"]["replicas"], 1);
    let own = json!({"metadata": {"labels": {"x": "y"}}, "spec": {"replicas": 0, "selector": {"c": "d"}, "template": template("Always")}});
    let kept = defaulted(defaults, own);
    assert_eq!(
        (&kept["spec"]["selector"], &kept["metadata"]["labels"], &kept["spec"]["replicas"]),
        (&json!({"c": "d"}), &json!({"x": "y"}), &json!(0))
    );
}

#[test]
fn controllers_are_checked() {
    let mismatch = "spec.template.metadata.labels: Invalid value: {\"a\":\"b\"}: `selector` does not match template `labels`";
    let policy = "spec.template.spec.restartPolicy: Unsupported value: \"OnFailure\": supported values: \"Always\"";
    let cases = [
        ("/spec/replicas", json!(-1), "spec.replicas: Invalid value: -1: must be greater than or equal to 0"),
        ("/spec/replicas", Value::Null, "spec.replicas: Required value"),
        ("/spec/minReadySeconds", json!(-1), "spec.minReadySeconds: Invalid value: -1: must be greater than or equal to 0"),
        ("/spec/selector", json!({}), "spec.selector: Required value"),
        ("/spec/selector", json!({"a": "c"}), mismatch),
        ("/spec/selector", json!({"a": "b", "c": "d"}), mismatch),
        ("/spec/template", Value::Null, "spec.template: Required value"),
        ("/spec/template/spec/restartPolicy", json!("OnFailure"), policy),
        (
            "/spec/template/spec/activeDeadlineSeconds",
            json!(1),
            "spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in ReplicationController is not Supported",
        ),
    ];
    table(validate, &controller(), &cases);
    updates(validate, &controller(), &cases);
}

#[test]
fn statuses_add_up() {
    let status = |status: Value| with(&controller(), &[("/status", status)]);
    let old = status(json!({"replicas": 3}));
    let cases = [
        (json!({"replicas": 3, "fullyLabeledReplicas": 3, "readyReplicas": 2, "availableReplicas": 1}), ""),
        (json!({"replicas": 3, "fullyLabeledReplicas": 4}), "status.fullyLabeledReplicas: Invalid value: 4: cannot be greater than status.replicas"),
        (
            json!({"replicas": 3, "readyReplicas": 1, "availableReplicas": 2}),
            "status.availableReplicas: Invalid value: 2: cannot be greater than readyReplicas",
        ),
        (json!({"replicas": 3, "observedGeneration": -2}), "status.observedGeneration: Invalid value: -2: must be greater than or equal to 0"),
    ];
    for (new, expected) in cases {
        assert_eq!(status_change(validate_status, &old, &status(new.clone())), expected, "{new}");
    }
}

#[test]
fn columns_count_pods() {
    let object = with(&controller(), &[("/status", json!({"replicas": 3, "readyReplicas": 2}))]);
    assert_eq!(row(cells, &object), ["x", "1", "3", "2", "2m30s", "c", "i", "a=b"]);
}
