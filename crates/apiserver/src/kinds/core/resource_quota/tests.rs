//! Checks, warnings, columns of ResourceQuotas.

use super::*;
use crate::kinds::check::{change, problems, row, status_change, table, warned, with};

fn quota() -> Value {
    json!({"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": {"cpu": "100", "pods": "10", "requests.nvidia.com/gpu": "2",
        "count/jobs.batch": "5", "hugepages-2Mi": "4Mi"}}})
}

#[test]
fn amounts_are_checked() {
    table(
        validate,
        &quota(),
        &[
            ("/spec/hard", json!({"pods": "-1"}), "spec.hard[pods]: Invalid value: \"-1\": must be greater than or equal to 0"),
            ("/spec/hard", json!({"pods": "1500m"}), "spec.hard[pods]: Invalid value: \"1500m\": must be an integer"),
            ("/spec/hard", json!({"example.com/dongle": "0.5"}), "spec.hard[example.com/dongle]: Invalid value: \"0.5\": must be an integer"),
            ("/spec/hard", json!({"services.nodeports": "0.5"}), "spec.hard[services.nodeports]: Invalid value: \"0.5\": must be an integer"),
            ("/spec/hard", json!({"requests.cpu": "500m"}), ""),
            ("/spec/hard", json!({"storage": "5Gi"}), "spec.hard[storage]: Invalid value: \"storage\": must be a standard resource for quota"),
            (
                "/spec/hard",
                json!({"dongles": "5"}),
                "spec.hard[dongles]: Invalid value: \"dongles\": must be a standard resource type or fully qualified\n\
                 spec.hard[dongles]: Invalid value: \"dongles\": must be a standard resource for quota",
            ),
        ],
    );
}

#[test]
fn scopes_fit_resources_and_each_other() {
    let with_scopes = |scopes: Value, hard: Value| problems(validate, &with(&quota(), &[("/spec/scopes", scopes), ("/spec/hard", hard)]));
    assert_eq!(with_scopes(json!(["Terminating"]), json!({"pods": "1", "limits.cpu": "1"})), "");
    assert_eq!(
        with_scopes(json!(["BestEffort"]), json!({"pods": "1", "cpu": "1"})),
        "spec.scopes: Invalid value: [\"BestEffort\"]: unsupported scope applied to resource"
    );
    assert_eq!(
        with_scopes(json!(["BestEffort", "NotBestEffort"]), json!({"pods": "1"})),
        "spec.scopes: Invalid value: [\"BestEffort\",\"NotBestEffort\"]: conflicting scopes"
    );
    assert_eq!(with_scopes(json!(["Any"]), json!({"pods": "1"})), "spec.scopes: Invalid value: [\"Any\"]: unsupported scope");
    assert_eq!(with_scopes(json!(["VolumeAttributesClass"]), json!({"persistentvolumeclaims": "1"})), "");
}

#[test]
fn scope_selectors_are_checked() {
    let base = with(&quota(), &[("/spec/hard", json!({"pods": "1"}))]);
    let selected = |requirement: Value| problems(validate, &with(&base, &[("/spec/scopeSelector", json!({"matchExpressions": [requirement]}))]));
    assert_eq!(selected(json!({"scopeName": "PriorityClass", "operator": "In", "values": ["high"]})), "");
    assert_eq!(
        selected(json!({"scopeName": "PriorityClass", "operator": "In"})),
        "spec.scopeSelector.matchExpressions.values: Required value: must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
    );
    assert_eq!(
        selected(json!({"scopeName": "PriorityClass", "operator": "Exists", "values": ["a"]})),
        "spec.scopeSelector.matchExpressions.values: Invalid value: [\"a\"]: must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope \
         selector"
    );
    assert!(selected(json!({"scopeName": "BestEffort", "operator": "In", "values": ["a"]})).contains("must be 'Exists' when scope is any of"));
    assert_eq!(
        selected(json!({"scopeName": "Cheap", "operator": "Is"})),
        "spec.scopeSelector.matchExpressions.scopeName: Invalid value: \"Cheap\": unsupported scope\n\
         spec.scopeSelector.matchExpressions.operator: Invalid value: \"Is\": not a valid selector operator"
    );
}

#[test]
fn scopes_never_change() {
    let scoped = with(&quota(), &[("/spec/hard", json!({"pods": "1"})), ("/spec/scopes", json!(["BestEffort", "Terminating"]))]);
    let turned = with(&scoped, &[("/spec/scopes", json!(["Terminating", "BestEffort"]))]);
    assert_eq!(change(validate, &scoped, &turned), "");
    let less = with(&scoped, &[("/spec/scopes", json!(["Terminating"]))]);
    assert_eq!(change(validate, &scoped, &less), "spec.scopes: Invalid value: [\"Terminating\"]: field is immutable");
    let status = kind_status(&quota(), json!({"hard": {"pods": "1"}, "used": {"pods": "-1"}}));
    assert_eq!(status, "status.used[pods]: Invalid value: \"-1\": must be greater than or equal to 0");
}

fn kind_status(base: &Value, status: Value) -> String {
    status_change(|new, _, errors| amounts_of_status(&new.get("status"), errors), base, &with(base, &[("/status", status)]))
}

#[test]
fn requests_above_limits_are_warned_of() {
    let warned_of = |hard: Value| warned(warnings, &with(&quota(), &[("/spec/hard", hard)]));
    assert_eq!(warned_of(json!({"cpu": "2", "limits.cpu": "1"})), ["ResourceQuota cpu (2) should be less than limits.cpu (1)"]);
    assert_eq!(
        warned_of(json!({"requests.memory": "2Gi", "limits.memory": "1Gi", "limits.cpu": "1", "requests.cpu": "500m"})),
        ["ResourceQuota requests.memory (2Gi) should be less than limits.memory (1Gi)"]
    );
}

#[test]
fn columns_show_use_and_limits() {
    let status = json!({"hard": {"pods": "5", "limits.cpu": "2", "cpu": "4"}, "used": {"pods": "3", "limits.cpu": "500m"}});
    assert_eq!(row(cells, &with(&quota(), &[("/status", status)])), ["x", "cpu: 0/4, pods: 3/5", "limits.cpu: 500m/2", "2m30s"]);
}
