//! Pods: grace of a deletion, QoS class (pkg/registry/core/pod/strategy.go, pkg/apis/core/v1/helper/qos).

use crate::object;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const DEFAULT_GRACE: i64 = 30;

/// How long a pod may take to stop: `podStrategy.CheckGracefulDelete`.
pub(super) fn grace(pod: &Value, asked: Option<i64>) -> i64 {
    let own = || object::integer(pod, &["spec", "terminationGracePeriodSeconds"]).unwrap_or(DEFAULT_GRACE);
    let grace = asked.unwrap_or_else(own);
    let unscheduled = object::text(pod, &["spec", "nodeName"]).is_empty();
    let over = matches!(object::text(pod, &["status", "phase"]), "Failed" | "Succeeded");
    if unscheduled || over {
        return 0;
    }
    // A negative period means "as short as can be".
    if grace < 0 { 1 } else { grace }
}

/// The status a new pod starts with.
pub(super) fn initial_status(pod: &Value) -> Value {
    json!({"phase": "Pending", "qosClass": qos_class(pod)})
}

/// `ComputePodQOS`.
fn qos_class(pod: &Value) -> &'static str {
    const RESOURCES: [&str; 2] = ["cpu", "memory"];
    let (mut requests, mut limits) = (BTreeMap::<&str, Vec<&Value>>::new(), BTreeMap::<&str, Vec<&Value>>::new());
    let mut guaranteed = true;
    let containers = object::list(pod, &["spec", "containers"]).iter().chain(object::list(pod, &["spec", "initContainers"]));
    for container in containers {
        let mut limited = 0;
        for resource in RESOURCES {
            if let Some(quantity) = object::lookup(container, &["resources", "requests", resource]).filter(|quantity| !is_zero(quantity)) {
                requests.entry(resource).or_default().push(quantity);
            }
            if let Some(quantity) = object::lookup(container, &["resources", "limits", resource]).filter(|quantity| !is_zero(quantity)) {
                limits.entry(resource).or_default().push(quantity);
                limited += 1;
            }
        }
        guaranteed &= limited == RESOURCES.len();
    }
    if requests.is_empty() && limits.is_empty() {
        "BestEffort"
    } else if guaranteed && requests == limits {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

fn is_zero(quantity: &Value) -> bool {
    let text = quantity.as_str().map_or_else(|| quantity.to_string(), str::to_string);
    let digits = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
    digits.parse::<f64>().is_ok_and(|number| number == 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(resources: Value) -> Value {
        json!({"spec": {"containers": [{"name": "a", "resources": resources}]}})
    }

    #[test]
    fn qos_classes_are_upstream_s() {
        assert_eq!(qos_class(&pod(json!({}))), "BestEffort");
        assert_eq!(qos_class(&pod(json!({"requests": {"cpu": "0"}}))), "BestEffort");
        assert_eq!(qos_class(&pod(json!({"requests": {"cpu": "1"}}))), "Burstable");
        let full = json!({"cpu": "1", "memory": "1Gi"});
        assert_eq!(qos_class(&pod(json!({"requests": full, "limits": full}))), "Guaranteed");
        assert_eq!(qos_class(&pod(json!({"requests": {"cpu": "1"}, "limits": full}))), "Burstable");
    }

    #[test]
    fn finished_and_unscheduled_pods_need_no_grace() {
        let running = json!({"spec": {"nodeName": "n"}, "status": {"phase": "Running"}});
        assert_eq!(grace(&running, None), 30);
        assert_eq!(grace(&running, Some(2)), 2);
        assert_eq!(grace(&running, Some(-1)), 1);
        assert_eq!(grace(&json!({"spec": {}}), Some(5)), 0);
        assert_eq!(grace(&json!({"spec": {"nodeName": "n"}, "status": {"phase": "Succeeded"}}), None), 0);
    }
}
