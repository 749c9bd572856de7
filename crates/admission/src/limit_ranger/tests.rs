//! Tests of defaults and bounds: upstream's cases.

use super::*;
use crate::test_requests::request;
use serde_json::json;

fn resources(requests: Value, limits: Value) -> Value {
    json!({"requests": requests, "limits": limits})
}

fn pod(containers: usize, resources: &Value) -> Value {
    let containers: Vec<Value> = (0..containers).map(|index| json!({"name": format!("foo-{index}"), "resources": resources})).collect();
    json!({"metadata": {"name": "p"}, "spec": {"containers": containers}})
}

fn range(kind: &str, bounds: Value) -> Value {
    let mut limit = bounds;
    limit["type"] = kind.into();
    json!({"spec": {"limits": [limit]}})
}

fn refusal(range: &Value, pod: &Value) -> String {
    validate([range], &request("pods", pod, None)).err().map(|refusal| refusal.to_string()).unwrap_or_default()
}

#[test]
fn defaults_fill_what_containers_leave_open() {
    let range = range("Container", json!({"defaultRequest": {"cpu": "50m", "memory": "5Mi"}, "default": {"cpu": "75m", "memory": "10Mi"}}));
    let annotation = |pod: &Value| text(pod, &["metadata", "annotations", ANNOTATION]).to_owned();
    let mut empty = pod(1, &json!({}));
    set_defaults([&range], &mut empty);
    assert_eq!(annotation(&empty), "LimitRanger plugin set: cpu, memory request for container foo-0; cpu, memory limit for container foo-0");
    assert_eq!(
        empty["spec"]["containers"][0]["resources"],
        resources(json!({"cpu": "50m", "memory": "5Mi"}), json!({"cpu": "75m", "memory": "10Mi"}))
    );
    let mut some = pod(1, &resources(json!({"memory": "512Mi"}), json!({})));
    some["spec"]["initContainers"] = json!([{"name": "init", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}]);
    set_defaults([&range], &mut some);
    assert_eq!(
        annotation(&some),
        "LimitRanger plugin set: cpu request for container foo-0; cpu, memory limit for container foo-0; cpu, memory request for init container init"
    );
    assert_eq!(some["spec"]["containers"][0]["resources"]["requests"], json!({"memory": "512Mi", "cpu": "50m"}));
    let full = pod(1, &resources(json!({"cpu": "1", "memory": "1"}), json!({"cpu": "1", "memory": "1"})));
    let mut same = full.clone();
    set_defaults([&range], &mut same);
    assert_eq!(same, full);
}

#[test]
fn bounds_refuse_with_upstream_s_words() {
    let empty = || json!({});
    for (kind, bounds, containers, requests, limits, expected) in [
        ("Container", json!({"min": {"cpu": "50m"}}), 1, json!({"cpu": "100m"}), json!({"cpu": "200m"}), ""),
        (
            "Container",
            json!({"min": {"cpu": "50m"}}),
            1,
            json!({"cpu": "40m"}),
            empty(),
            "minimum cpu usage per Container is 50m, but request is 40m",
        ),
        ("Container", json!({"min": {"cpu": "50m"}}), 1, empty(), empty(), "minimum cpu usage per Container is 50m.  No request is specified"),
        (
            "Container",
            json!({"min": {"memory": "50Mi"}}),
            1,
            json!({"memory": "60Mi"}),
            json!({"memory": "40Mi"}),
            "minimum memory usage per Container is 50Mi, but limit is 40Mi",
        ),
        ("Container", json!({"max": {"cpu": "2"}}), 1, json!({"cpu": "500m"}), json!({"cpu": "1"}), ""),
        (
            "Container",
            json!({"max": {"cpu": "2"}}),
            2,
            json!({"cpu": "500m"}),
            json!({"cpu": "2500m"}),
            "maximum cpu usage per Container is 2, but limit is 2500m",
        ),
        ("Container", json!({"max": {"cpu": "2"}}), 1, empty(), empty(), "maximum cpu usage per Container is 2.  No limit is specified"),
        (
            "Container",
            json!({"max": {"cpu": "2"}}),
            1,
            json!({"cpu": "3"}),
            json!({"cpu": "1"}),
            "maximum cpu usage per Container is 2, but request is 3",
        ),
        ("Container", json!({"maxLimitRequestRatio": {"cpu": "1.5"}}), 1, json!({"cpu": "500m"}), json!({"cpu": "750m"}), ""),
        (
            "Container",
            json!({"maxLimitRequestRatio": {"cpu": "1"}}),
            1,
            json!({"cpu": "1250m"}),
            json!({"cpu": "2500m"}),
            "cpu max limit to request ratio per Container is 1, but provided ratio is 2.000000",
        ),
        (
            "Container",
            json!({"maxLimitRequestRatio": {"cpu": "1"}}),
            1,
            json!({"cpu": "0"}),
            json!({"cpu": "1"}),
            "cpu max limit to request ratio per Container is 1, but no request is specified or request is 0",
        ),
        (
            "Pod",
            json!({"maxLimitRequestRatio": {"cpu": "1"}}),
            1,
            json!({"cpu": "1"}),
            empty(),
            "cpu max limit to request ratio per Pod is 1, but no limit is specified or limit is 0",
        ),
        ("Pod", json!({"min": {"cpu": "100m"}}), 2, json!({"cpu": "75m"}), empty(), ""),
        ("Pod", json!({"min": {"cpu": "100m"}}), 1, json!({"cpu": "75m"}), empty(), "minimum cpu usage per Pod is 100m, but request is 75m"),
        ("Pod", json!({"max": {"cpu": "2"}}), 3, json!({"cpu": "500m"}), json!({"cpu": "1"}), "maximum cpu usage per Pod is 2, but limit is 3"),
        (
            "Container",
            json!({"min": {"cpu": "50m", "memory": "5Mi"}}),
            2,
            json!({"cpu": "1m"}),
            empty(),
            "[minimum cpu usage per Container is 50m, but request is 1m, minimum memory usage per Container is 5Mi.  No request is specified]",
        ),
    ] {
        assert_eq!(refusal(&range(kind, bounds.clone()), &pod(containers, &resources(requests, limits))), expected, "{kind} {bounds}");
    }
}

#[test]
fn pods_count_init_containers_and_their_own_level() {
    let most = range("Pod", json!({"max": {"memory": "1Gi"}}));
    let mut with_init = pod(1, &resources(json!({}), json!({"memory": "500Mi"})));
    with_init["spec"]["initContainers"] = json!([{"name": "i", "resources": {"limits": {"memory": "1.5Gi"}}}]);
    assert_eq!(refusal(&most, &with_init), "maximum memory usage per Pod is 1Gi, but limit is 1536Mi");
    with_init["spec"]["resources"] = resources(json!({}), json!({"memory": "1Gi", "hugepages-2Mi": "4Mi"}));
    assert_eq!(refusal(&most, &with_init), "", "the pod's own limit replaces the containers'");
    with_init["spec"]["overhead"] = json!({"memory": "1Gi"});
    assert_eq!(refusal(&most, &with_init), "", "overhead does not count here");
}

#[test]
fn claims_are_bounded_by_their_requests() {
    let range = range("PersistentVolumeClaim", json!({"min": {"storage": "1Gi"}, "max": {"storage": "2Gi"}}));
    let refusal = |size: &str| {
        let claim = json!({"spec": {"resources": {"requests": {"storage": size}}}});
        validate([&range], &request("persistentvolumeclaims", &claim, None)).err().map(|refusal| refusal.to_string()).unwrap_or_default()
    };
    assert_eq!(refusal("2Gi"), "");
    assert_eq!(refusal("500Mi"), "minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 500Mi");
    assert_eq!(refusal("3Gi"), "maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi");
}

#[test]
fn only_creations_resizes_and_claims_concern_limit_ranges() {
    let (object, gone) = (json!({}), json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    for (resource, old, expected) in [
        ("pods", None, true),
        ("pods", Some(&object), false),
        ("pods/resize", Some(&object), true),
        ("pods/status", Some(&object), false),
        ("persistentvolumeclaims", Some(&object), true),
        ("persistentvolumeclaims", Some(&gone), false),
        ("persistentvolumeclaims/status", Some(&object), false),
        ("pods.metrics.k8s.io", None, false),
        ("services", None, false),
    ] {
        assert_eq!(concerns(&request(resource, &object, old)), expected, "{resource} {old:?}");
    }
}
