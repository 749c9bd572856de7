//! Defaults, both versions, checks, columns of HorizontalPodAutoscalers.

use super::*;
use crate::kinds::check::{change, defaulted, problems, row, status_change, table as cases, with};

fn autoscaler() -> Value {
    let spec = json!({"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "maxReplicas": 5});
    defaulted(defaults, json!({"kind": "HorizontalPodAutoscaler", "apiVersion": "autoscaling/v2", "metadata": {"name": "h"}, "spec": spec}))
}

#[test]
fn cpu_is_watched_unless_said_otherwise() {
    let spec = autoscaler()["spec"].clone();
    assert_eq!((&spec["minReplicas"], &spec["metrics"]), (&json!(1), &json!([cpu_utilization(80)])));
    let behavior = |said: Value| defaulted(defaults, json!({"spec": {"behavior": said}}))["spec"]["behavior"].clone();
    assert_eq!(
        behavior(json!({"scaleDown": {"stabilizationWindowSeconds": 60}})),
        json!({
            "scaleDown": {"stabilizationWindowSeconds": 60, "selectPolicy": "Max", "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]},
            "scaleUp": {"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": [
                {"type": "Pods", "value": 4, "periodSeconds": 15}, {"type": "Percent", "value": 100, "periodSeconds": 15}]},
        })
    );
}

#[test]
fn autoscalers_are_checked() {
    cases(
        validation::validate,
        &autoscaler(),
        &[
            (
                "/spec/minReplicas",
                json!(0),
                "spec.minReplicas: Invalid value: 0: must be greater than or equal to 1\n\
                spec.metrics: Forbidden: must specify at least one Object or External metric to support scaling to zero replicas",
            ),
            (
                "/spec/maxReplicas",
                json!(-1),
                "spec.maxReplicas: Invalid value: -1: must be greater than or equal to 1\n\
                spec.maxReplicas: Invalid value: -1: must be greater than or equal to `minReplicas`",
            ),
            ("/spec/minReplicas", json!(7), "spec.maxReplicas: Invalid value: 5: must be greater than or equal to `minReplicas`"),
            ("/spec/scaleTargetRef/kind", Value::Null, "spec.scaleTargetRef.kind: Required value"),
            ("/spec/scaleTargetRef/name", json!("a/b"), "spec.scaleTargetRef.name: Invalid value: \"a/b\": may not contain '/'"),
            (
                "/spec/scaleTargetRef/apiVersion",
                json!("v1"),
                "spec.scaleTargetRef.apiVersion: Invalid value: \"v1\": apiVersion must specify API group",
            ),
            (
                "/spec/scaleTargetRef/apiVersion",
                json!("a/b/c"),
                "spec.scaleTargetRef.apiVersion: Invalid value: \"a/b/c\": unexpected GroupVersion \
                string: a/b/c",
            ),
            (
                "/spec/behavior",
                json!({"scaleUp": {"stabilizationWindowSeconds": 3601, "selectPolicy": "Any", "policies": []}}),
                "spec.behavior.scaleUp.stabilizationWindowSeconds: Invalid value: 3601: must be less than or equal to 3600\n\
                 spec.behavior.scaleUp.selectPolicy: Unsupported value: \"Any\": supported values: \"Disabled\", \"Max\", \"Min\"\n\
                 spec.behavior.scaleUp.policies: Required value: must specify at least one Policy",
            ),
            (
                "/spec/behavior",
                json!({"scaleDown": {"policies": [{"type": "Nodes", "value": 0, "periodSeconds": 1801}], "tolerance": "-1m"}}),
                "spec.behavior.scaleDown.policies[0].type: Unsupported value: \"Nodes\": supported values: \"Percent\", \"Pods\"\n\
                 spec.behavior.scaleDown.policies[0].value: Invalid value: 0: must be greater than zero\n\
                 spec.behavior.scaleDown.policies[0].periodSeconds: Invalid value: 1801: must be less than or equal to 1800\n\
                 spec.behavior.scaleDown.tolerance: Invalid value: \"-1m\": must be greater than or equal to 0",
            ),
        ],
    );
    let core = with(&autoscaler(), &[("/spec/scaleTargetRef", json!({"kind": "ReplicationController", "name": "r", "apiVersion": "v1"}))]);
    assert_eq!(problems(validation::validate, &core), "");
    let odd = with(&autoscaler(), &[("/spec/scaleTargetRef/apiVersion", json!("v1"))]);
    assert_eq!(change(validation::validate, &odd, &with(&odd, &[("/spec/maxReplicas", json!(9))])), "", "an old reference may stay");
}

#[test]
fn metrics_are_checked() {
    let of = |metric: Value| problems(validation::validate, &with(&autoscaler(), &[("/spec/metrics", json!([metric]))]));
    let at = "spec.metrics[0]";
    let known = "supported values: \"ContainerResource\", \"External\", \"Object\", \"Pods\", \"Resource\"";
    for (metric, expected) in [
        (json!({"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}}), String::new()),
        (json!({"type": "Resource"}), format!("{at}.resource: Required value: must populate information for the given metric source")),
        (json!({"type": "Magic"}), format!("{at}.type: Unsupported value: \"Magic\": {known}\n{at}.type: Unsupported value: \"Magic\": {known}")),
        (
            json!({"type": "Pods", "pods": {"metric": {"name": "m"}, "target": {"type": "AverageValue"}}}),
            format!("{at}.pods.target.averageValue: Required value: must specify a positive target averageValue"),
        ),
        (
            json!({"type": "External", "external": {"metric": {"name": "a%"}, "target": {"type": "Sum", "value": "0", "averageValue": "1"}}}),
            format!(
                "{at}.external.metric.name: Invalid value: \"a%\": may not contain '%'\n\
                 {at}.external.target.type: Invalid value: \"Sum\": must be either Utilization, Value, or AverageValue\n\
                 {at}.external.target.value: Invalid value: \"0\": must be positive\n\
                 {at}.external.target.value: Forbidden: may not set both a target value for metric and a per-pod target"
            ),
        ),
        (
            json!({"type": "Object", "object": {"describedObject": {"kind": "Service", "name": "s"}, "metric": {}, "target": {"type": "Value"}}}),
            format!(
                "{at}.object.metric.name: Required value: must specify a metric name\n\
                 {at}.object.target.averageValue: Required value: must set either a target value or averageValue"
            ),
        ),
        (
            json!({"type": "ContainerResource", "containerResource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 0}}}),
            format!(
                "{at}.containerResource.container: Required value: must specify a container\n\
                 {at}.containerResource.target.averageUtilization: Invalid value: 0: must be greater than 0"
            ),
        ),
    ] {
        assert_eq!(of(metric.clone()), expected, "{metric}");
    }
    let mut both = cpu_utilization(50);
    both["pods"] = json!({"metric": {"name": "m"}, "target": {"type": "AverageValue", "averageValue": "1"}});
    assert_eq!(of(both), format!("{at}.pods: Forbidden: must populate the given metric source only"));
    let status = with(&autoscaler(), &[("/status", json!({"currentReplicas": -1, "desiredReplicas": 0}))]);
    let expected = "status.currentReplicas: Invalid value: -1: must be greater than or equal to 0";
    assert_eq!(status_change(validation::validate_status, &autoscaler(), &status), expected);
}

/// One metric of each kind, with behavior and status.
fn rich() -> Value {
    let selector = json!({"matchLabels": {"a": "b"}});
    let metric = json!({"name": "m", "selector": selector});
    let described = json!({"kind": "Service", "name": "s", "apiVersion": "v1"});
    let spec = json!({
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "minReplicas": 2, "maxReplicas": 5,
        "metrics": [
            {"type": "Object", "object": {"describedObject": described, "metric": metric, "target": {"averageValue": "3", "type": "AverageValue"}}},
            {"type": "Pods", "pods": {"metric": metric, "target": {"averageValue": "1", "type": "AverageValue"}}},
            {"type": "Resource", "resource": {"name": "memory", "target": {"averageUtilization": 60, "type": "Utilization"}}},
            {"type": "ContainerResource", "containerResource": {"name": "cpu", "target": {"averageUtilization": 60, "type": "Utilization"}, "container": "c"}},
            {"type": "External", "external": {"metric": metric, "target": {"value": "10", "type": "Value"}}},
            cpu_utilization(50),
        ],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 5, "selectPolicy": "Max", "policies": [{"type": "Pods", "value": 1, "periodSeconds": 15}]}},
    });
    let status = json!({
        "lastScaleTime": "2026-01-01T00:00:00Z", "currentReplicas": 3, "desiredReplicas": 3,
        "currentMetrics": [{"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 40, "averageValue": "4m"}}}],
        "conditions": [{"type": "AbleToScale", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    });
    json!({"kind": "HorizontalPodAutoscaler", "apiVersion": "autoscaling/v2", "metadata": {"name": "h", "annotations": {"own": "kept"}}, "spec": spec,
        "status": status})
}

#[test]
fn version_1_keeps_everything() {
    let old = conversion::outgoing(rich());
    assert_eq!((&old["apiVersion"], &old["spec"]["targetCPUUtilizationPercentage"]), (&json!("autoscaling/v1"), &json!(50)));
    assert_eq!(old["spec"].as_object().unwrap().len(), 4, "{}", old["spec"]);
    assert_eq!(
        old["status"],
        json!({"lastScaleTime": "2026-01-01T00:00:00Z", "currentReplicas": 3, "desiredReplicas": 3, "currentCPUUtilizationPercentage": 40})
    );
    let annotation = |name: &str| -> Value {
        serde_json::from_str(old["metadata"]["annotations"][format!("autoscaling.alpha.kubernetes.io/{name}")].as_str().unwrap()).unwrap()
    };
    let metrics = annotation("metrics");
    assert_eq!(metrics.as_array().unwrap().len(), 5, "CPU utilization has its field");
    assert_eq!(
        metrics[0],
        json!({"type": "Object", "object": {"target": {"kind": "Service", "name": "s", "apiVersion": "v1"}, "metricName": "m", "targetValue": "0",
            "selector": {"matchLabels": {"a": "b"}}, "averageValue": "3"}})
    );
    assert_eq!(annotation("behavior")["ScaleDown"]["StabilizationWindowSeconds"], 5);
    assert_eq!(annotation("conditions")[0]["type"], "AbleToScale");
    assert_eq!(conversion::incoming(old), rich());
}

#[test]
fn version_1_says_cpu_utilization() {
    let spec = json!({"scaleTargetRef": {"kind": "Deployment", "name": "web", "apiVersion": "apps/v1"}, "maxReplicas": 3});
    let old = |percent: Value, annotations: Value| {
        json!({"kind": "HorizontalPodAutoscaler", "apiVersion": "autoscaling/v1", "metadata": {"name": "h", "annotations": annotations},
            "spec": with(&json!({"spec": spec}), &[("/spec/targetCPUUtilizationPercentage", percent)])["spec"]})
    };
    assert_eq!(conversion::incoming(old(json!(30), json!({})))["spec"]["metrics"], json!([cpu_utilization(30)]));
    assert_eq!(conversion::incoming(old(Value::Null, json!({})))["spec"]["metrics"], json!([cpu_utilization(80)]));
    for nonsense in ["no JSON", "{}", "[1]", "[{\"type\": 5}]"] {
        let read = conversion::incoming(old(json!(30), json!({"autoscaling.alpha.kubernetes.io/metrics": nonsense})));
        assert_eq!(read["spec"]["metrics"], json!([cpu_utilization(30)]), "{nonsense}");
        assert_eq!(read["metadata"]["annotations"], json!({}));
    }
}

#[test]
fn columns_show_two_metrics() {
    assert_eq!(row(table::cells, &rich()), ["x", "Deployment/web", "<unknown>/3 (avg), <unknown>/1 + 4 more...", "2", "5", "3", "2m30s"]);
    let current =
        json!({"currentReplicas": 2, "currentMetrics": [{"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 41}}}]});
    assert_eq!(row(table::cells, &with(&autoscaler(), &[("/status", current)]))[2], "cpu: 41%/80%");
    assert_eq!(row(table::cells, &autoscaler())[2], "cpu: <unknown>/80%");
}
