//! Conditions, events and sizes that follow from metrics.

use jiff::SignedDuration;
use serde_json::{Value, json};

use super::*;
use crate::autoscaler::{
    behavior::{Bounds, History},
    replicas::{Sample, Samples},
};

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

fn spec(value: Value) -> HorizontalPodAutoscalerSpec {
    let mut whole = json!({"maxReplicas": 10, "scaleTargetRef": {"kind": "Deployment", "name": "web", "apiVersion": "apps/v1"}});
    whole.as_object_mut().unwrap().extend(value.as_object().cloned().unwrap());
    serde_json::from_value(whole).unwrap()
}

fn pods(count: usize) -> Vec<Pod> {
    let pod = |index: usize| {
        serde_json::from_value(json!({
            "metadata": {"name": format!("p{index}")},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1", "memory": "1Mi"}}}]},
            "status": {"phase": "Running", "startTime": "2026-01-01T11:00:00Z",
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T11:00:00Z"}]},
        }))
        .unwrap()
    };
    (0..count).map(pod).collect()
}

fn samples(values: &[i64]) -> Result<Measure, String> {
    let sample = |value: &i64| Sample { value: *value, at: now(), window: SignedDuration::from_mins(1) };
    Ok(Measure::Pods(values.iter().enumerate().map(|(index, value)| (format!("p{index}"), sample(value))).collect::<Samples>()))
}

fn resource(name: &str, target: Value) -> Value {
    json!({"type": "Resource", "resource": {"name": name, "target": target}})
}

/// Two pods, these metrics and what was measured of each.
fn run(metrics: &[(Value, Result<Measure, String>)], behavior: Value) -> (Recommendation, Report) {
    let hpa = spec(json!({"behavior": behavior}));
    let pods = pods(2);
    let input = Input { ns: "ns", spec: &hpa, current: 2, present: 2, pods: &pods, now: now() };
    let measures: Vec<_> = metrics.iter().map(|(metric, measure)| (serde_json::from_value(metric.clone()).unwrap(), measure.clone())).collect();
    let mut report = Report::new(&HorizontalPodAutoscaler::default(), now());
    (recommend(&input, &measures, &mut report), report)
}

fn condition(report: &Report, type_: &str) -> (String, String, String) {
    let found = report.status.conditions.iter().flatten().find(|one| one.type_ == type_).unwrap().clone();
    (found.status, found.reason.unwrap_or_default(), found.message.unwrap_or_default())
}

fn told(report: &Report) -> Vec<String> {
    report.events.iter().map(|(_, reason, message)| format!("{reason}: {message}")).collect()
}

#[test]
fn a_size_out_of_bounds_needs_no_metrics() {
    let bounds = spec(json!({"minReplicas": 2}));
    for (current, expected) in [
        (0, Course::Off),
        (1, Course::Resize(2, "Current number of replicas below Spec.MinReplicas")),
        (2, Course::Measure),
        (10, Course::Measure),
        (11, Course::Resize(10, "Current number of replicas above Spec.MaxReplicas")),
    ] {
        assert_eq!(course(&bounds, current), expected, "{current}");
    }
    assert_eq!(least(&spec(json!({}))), 1);
    assert_eq!(metrics(&spec(json!({"metrics": []})))[0].resource.as_ref().unwrap().target.average_utilization, Some(80));
}

#[test]
fn each_kind_of_metric_has_its_status_and_name() {
    let object = json!({"kind": "Service", "name": "web", "apiVersion": "v1"});
    let metric = json!({"name": "qps", "selector": {"matchLabels": {"a": "b"}}});
    let by_label = "external metric qps(&LabelSelector{MatchLabels:map[string]string{a: b,},MatchExpressions:[]LabelSelectorRequirement{},})";
    let value = || Ok(Measure::Value(30_000));
    for (spec, measure, replicas, name, status) in [
        (
            resource("cpu", json!({"type": "Utilization", "averageUtilization": 50})),
            samples(&[1000, 1000]),
            4,
            "cpu resource utilization (percentage of request)",
            json!({"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 100, "averageValue": "1"}}}),
        ),
        (
            resource("memory", json!({"type": "AverageValue", "averageValue": "1Mi"})),
            samples(&[3 << 20, 3 << 20].map(|bytes: i64| bytes * 1000)),
            6,
            "memory resource",
            json!({"type": "Resource", "resource": {"name": "memory", "current": {"averageValue": "3Mi"}}}),
        ),
        (
            json!({"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "c", "target": {"type": "Utilization", "averageUtilization": 50}}}),
            samples(&[750, 750]),
            3,
            "cpu container resource utilization (percentage of request)",
            json!({"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "c", "current": {"averageUtilization": 75, "averageValue": "750m"}}}),
        ),
        (
            json!({"type": "Pods", "pods": {"metric": {"name": "qps"}, "target": {"type": "AverageValue", "averageValue": 10}}}),
            samples(&[20_000, 20_000]),
            4,
            "pods metric qps",
            json!({"type": "Pods", "pods": {"metric": {"name": "qps"}, "current": {"averageValue": "20"}}}),
        ),
        (
            json!({"type": "Object", "object": {"describedObject": object, "metric": metric, "target": {"type": "Value", "value": 10}}}),
            value(),
            6,
            "Service metric qps",
            json!({"type": "Object", "object": {"describedObject": object, "metric": metric, "current": {"value": "30"}}}),
        ),
        (
            json!({"type": "Object", "object": {"describedObject": object, "metric": metric, "target": {"type": "AverageValue", "averageValue": 10}}}),
            value(),
            3,
            by_label,
            json!({"type": "Object", "object": {"describedObject": object, "metric": metric, "current": {"averageValue": "15"}}}),
        ),
        (
            json!({"type": "External", "external": {"metric": metric, "target": {"type": "AverageValue", "averageValue": 10}}}),
            Ok(Measure::Values(vec![10_000, 20_000])),
            3,
            by_label,
            json!({"type": "External", "external": {"metric": metric, "current": {"averageValue": "15"}}}),
        ),
        (
            json!({"type": "External", "external": {"metric": {"name": "qps"}, "target": {"type": "Value", "value": 10}}}),
            Ok(Measure::Values(vec![10_000, 20_000])),
            6,
            "external metric qps(nil)",
            json!({"type": "External", "external": {"metric": {"name": "qps"}, "current": {"value": "30"}}}),
        ),
    ] {
        let (recommendation, report) = run(&[(spec.clone(), measure)], Value::Null);
        assert_eq!(recommendation, Recommendation { replicas: Some(replicas), metric: name.to_owned(), error: None }, "{spec}");
        assert_eq!(serde_json::to_value(&report.status.current_metrics.as_ref().unwrap()[0]).unwrap(), status, "{spec}");
        let message = format!("the HPA was able to successfully calculate a replica count from {name}");
        assert_eq!(condition(&report, "ScalingActive"), ("True".into(), "ValidMetricFound".into(), message));
        assert!(report.events.is_empty());
    }
}

#[test]
fn a_metric_that_says_nothing_is_told_in_upstreams_words() {
    let gone = || Err("gone".to_owned());
    let object = json!({"kind": "Service", "name": "web"});
    let cpu = json!({"type": "Utilization", "averageUtilization": 50});
    for (spec, reason, error, whole) in [
        (
            resource("cpu", cpu.clone()),
            "FailedGetResourceMetric",
            "failed to get cpu utilization: unable to get metrics for resource cpu: gone",
            "failed to get cpu resource metric value: failed to get cpu utilization: unable to get metrics for resource cpu: gone",
        ),
        (
            resource("cpu", json!({"type": "AverageValue", "averageValue": 1})),
            "FailedGetResourceMetric",
            "failed to get cpu usage: unable to get metrics for resource cpu: gone",
            "failed to get cpu resource metric value: failed to get cpu usage: unable to get metrics for resource cpu: gone",
        ),
        (
            json!({"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "c", "target": cpu}}),
            "FailedGetContainerResourceMetric",
            "failed to get cpu utilization: unable to get metrics for resource cpu: gone",
            "failed to get c container metric value: failed to get cpu utilization: unable to get metrics for resource cpu: gone",
        ),
        (
            json!({"type": "Pods", "pods": {"metric": {"name": "qps"}, "target": {"type": "AverageValue", "averageValue": 10}}}),
            "FailedGetPodsMetric",
            "unable to get metric qps: gone",
            "failed to get pods metric value: unable to get metric qps: gone",
        ),
        (
            json!({"type": "Object", "object": {"describedObject": object, "metric": {"name": "qps"}, "target": {"type": "Value", "value": 10}}}),
            "FailedGetObjectMetric",
            "unable to get metric qps: Service on ns web/gone",
            "failed to get object metric value: unable to get metric qps: Service on ns web/gone",
        ),
        (
            json!({"type": "Object", "object": {"describedObject": object, "metric": {"name": "qps"}, "target": {"type": "AverageValue", "averageValue": 10}}}),
            "FailedGetObjectMetric",
            "unable to get metric qps: Service on ns web/gone",
            "failed to get object metric value: failed to get qps object metric: unable to get metric qps: Service on ns web/gone",
        ),
        (
            json!({"type": "External", "external": {"metric": {"name": "qps"}, "target": {"type": "AverageValue", "averageValue": 10}}}),
            "FailedGetExternalMetric",
            "unable to get external metric ns/qps/nil: gone",
            "failed to get qps external metric value: failed to get qps external metric: unable to get external metric ns/qps/nil: gone",
        ),
        (
            json!({"type": "External", "external": {"metric": {"name": "qps"}, "target": {"type": "Value", "value": 10}}}),
            "FailedGetExternalMetric",
            "unable to get external metric ns/qps/nil: gone",
            "failed to get qps external metric value: failed to get external metric qps: unable to get external metric ns/qps/nil: gone",
        ),
    ] {
        let (recommendation, report) = run(&[(spec, gone())], Value::Null);
        let first = format!("invalid metrics (1 invalid out of 1), first error is: {whole}");
        assert_eq!(recommendation, Recommendation { replicas: None, metric: String::new(), error: Some(first) });
        assert_eq!(told(&report), [format!("{reason}: {error}")]);
        let message = format!("the HPA was unable to compute the replica count: {error}");
        assert_eq!(condition(&report, "ScalingActive"), ("False".into(), reason.into(), message));
    }
}

#[test]
fn the_largest_size_wins_and_nothing_shrinks_on_half_knowledge() {
    let cpu = || resource("cpu", json!({"type": "Utilization", "averageUtilization": 50}));
    let qps = || json!({"type": "Pods", "pods": {"metric": {"name": "qps"}, "target": {"type": "AverageValue", "averageValue": 10}}});
    let (both, _) = run(&[(cpu(), samples(&[1000, 1000])), (qps(), samples(&[30_000, 30_000]))], Value::Null);
    assert_eq!((both.replicas, both.metric.as_str()), (Some(6), "pods metric qps"));
    let (grows, report) = run(&[(cpu(), samples(&[1000, 1000])), (qps(), Err("gone".into()))], Value::Null);
    assert_eq!((grows.replicas, grows.error.is_some()), (Some(4), true));
    assert_eq!(condition(&report, "ScalingActive").1, "ValidMetricFound");
    assert_eq!(report.status.current_metrics.unwrap().len(), 2, "one has no values");
    let (shrinks, report) = run(&[(cpu(), samples(&[100, 100])), (qps(), Err("gone".into()))], Value::Null);
    assert_eq!(shrinks.replicas, None);
    assert_eq!(condition(&report, "ScalingActive").1, "FailedGetPodsMetric");
}

#[test]
fn tolerances_of_the_behavior_count() {
    let cpu = resource("cpu", json!({"type": "Utilization", "averageUtilization": 50}));
    let size = |behavior: Value| run(&[(cpu.clone(), samples(&[600, 600]))], behavior).0.replicas;
    assert_eq!(size(Value::Null), Some(3));
    assert_eq!(size(json!({"scaleUp": {"tolerance": "300m"}})), Some(2));
    assert_eq!(size(json!({"scaleDown": {"tolerance": "300m"}})), Some(3));
}

#[test]
fn conditions_change_their_time_with_their_status_only() {
    let earlier: Timestamp = "2026-01-01T11:00:00Z".parse().unwrap();
    let mut report = Report::new(&HorizontalPodAutoscaler::default(), earlier);
    report.condition("AbleToScale", true, "SucceededGetScale", "a");
    report.now = now();
    report.condition("AbleToScale", true, "ReadyForNewScale", "b");
    let time = |report: &Report| report.status.conditions.as_ref().unwrap()[0].last_transition_time.clone().unwrap().0;
    assert_eq!((time(&report), condition(&report, "AbleToScale").2.as_str()), (earlier, "b"));
    report.no_scale("deployments.apps \"web\" not found");
    assert_eq!(time(&report), now());
    assert_eq!(told(&report), ["FailedGetScale: deployments.apps \"web\" not found"]);
}

#[test]
fn a_change_of_size_is_told() {
    let mut report = Report::new(&HorizontalPodAutoscaler::default(), now());
    let normalized = History::default().normalize(None, Bounds { current: 2, min: 1, max: 3 }, 9, now());
    report.normalized(&normalized);
    let limited = ("True".into(), "TooManyReplicas".into(), "the desired replica count is more than the maximum replica count".into());
    assert_eq!(condition(&report, "ScalingLimited"), limited);
    report.resized(3, "cpu resource above target", Ok(()));
    report.numbers(2, Some(3), true);
    assert_eq!(condition(&report, "AbleToScale").2, "the HPA controller was able to update the target scale to 3");
    assert_eq!(told(&report), ["SuccessfulRescale: New size: 3; reason: cpu resource above target"]);
    assert_eq!((report.status.desired_replicas, report.status.last_scale_time.is_some()), (3, true));
    report.resized(4, "x", Err("refused".into()));
    assert_eq!(told(&report)[1], "FailedRescale: New size: 4; reason: x; error: refused");
    assert_eq!(condition(&report, "AbleToScale").1, "FailedUpdateScale");
}
