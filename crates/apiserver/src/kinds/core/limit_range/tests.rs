//! Defaults and checks of LimitRanges.

use super::*;
use crate::kinds::check::{defaulted, problems};
use serde_json::json;

fn of(limit: Value) -> String {
    problems(validate, &json!({"spec": {"limits": [limit]}}))
}

#[test]
fn containers_get_default_limits_and_requests() {
    let made = |limit: Value| defaulted(defaults, json!({"spec": {"limits": [limit]}}))["spec"]["limits"][0].clone();
    assert_eq!(
        made(json!({"type": "Container", "max": {"cpu": "2", "memory": "1Gi"}, "min": {"cpu": "100m", "storage": "1"}, "default": {"cpu": "1"}})),
        json!({"type": "Container", "max": {"cpu": "2", "memory": "1Gi"}, "min": {"cpu": "100m", "storage": "1"},
            "default": {"cpu": "1", "memory": "1Gi"}, "defaultRequest": {"cpu": "1", "memory": "1Gi", "storage": "1"}})
    );
    let pod = json!({"type": "Pod", "max": {"cpu": "2"}});
    assert_eq!(made(pod.clone()), pod);
}

#[test]
fn limits_are_checked() {
    let cases = [
        (json!({"type": "Container", "max": {"cpu": "2"}, "min": {"cpu": "1"}, "default": {"cpu": "1"}, "defaultRequest": {"cpu": "1"}}), ""),
        (json!({"type": "Room"}), "spec.limits[0].type: Invalid value: \"Room\": must be a standard limit type or fully qualified"),
        (
            json!({"type": "Pod", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "1"}}),
            "spec.limits[0].default: Forbidden: may not be specified when `type` is 'Pod'\n\
             spec.limits[0].defaultRequest: Forbidden: may not be specified when `type` is 'Pod'",
        ),
        (
            json!({"type": "Container", "max": {"cpu": "1"}, "min": {"cpu": "2"}}),
            "spec.limits[0].min[cpu]: Invalid value: \"2\": min value 2 is greater than max value 1",
        ),
        (
            json!({"type": "Container", "min": {"cpu": "2"}, "defaultRequest": {"cpu": "1"}}),
            "spec.limits[0].defaultRequest[cpu]: Invalid value: \"1\": min value 2 is greater than default request value 1",
        ),
        (
            json!({"type": "Container", "max": {"cpu": "1"}, "defaultRequest": {"cpu": "2"}}),
            "spec.limits[0].defaultRequest[cpu]: Invalid value: \"2\": default request value 2 is greater than max value 1",
        ),
        (
            json!({"type": "Container", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "2"}}),
            "spec.limits[0].defaultRequest[cpu]: Invalid value: \"2\": default request value 2 is greater than default limit value 1",
        ),
        (
            json!({"type": "Container", "min": {"cpu": "2"}, "default": {"cpu": "1"}}),
            "spec.limits[0].default[cpu]: Invalid value: \"2\": min value 2 is greater than default value 1",
        ),
        (
            json!({"type": "Container", "max": {"cpu": "1"}, "default": {"cpu": "2"}}),
            "spec.limits[0].default[cpu]: Invalid value: \"1\": default value 2 is greater than max value 1",
        ),
        (
            json!({"type": "Pod", "maxLimitRequestRatio": {"cpu": "800m"}}),
            "spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: \"800m\": ratio 800m is less than 1",
        ),
        (
            json!({"type": "Pod", "max": {"cpu": "2"}, "min": {"cpu": "1"}, "maxLimitRequestRatio": {"cpu": "10"}}),
            "spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: \"10\": ratio 10 is greater than max/min = 2.000000",
        ),
        (
            json!({"type": "Container", "default": {"example.com/gpu": "1"}, "defaultRequest": {"example.com/gpu": "0"}}),
            "spec.limits[0].defaultRequest[example.com/gpu]: Invalid value: \"0\": default value 1 must equal to defaultRequest value 0 in \
             example.com/gpu",
        ),
        (
            json!({"type": "PersistentVolumeClaim", "max": {"cpu": "1"}}),
            "spec.limits[0].limits: Required value: either minimum or maximum storage value is required, but neither was provided",
        ),
        (json!({"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}}), ""),
        (
            json!({"type": "Container", "max": {"dongles": "1"}}),
            "spec.limits[0].max[dongles]: Invalid value: \"dongles\": must be a standard resource for containers",
        ),
    ];
    for (limit, expected) in cases {
        assert_eq!(of(limit.clone()), expected, "{limit}");
    }
    let twice = json!({"spec": {"limits": [{"type": "Pod"}, {"type": "Pod"}]}});
    assert_eq!(problems(validate, &twice), "spec.limits[1].type: Duplicate value: \"Pod\"");
}
