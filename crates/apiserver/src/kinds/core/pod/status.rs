//! Pods: grace of a deletion, QoS class (pkg/registry/core/pod/strategy.go, pkg/apis/core/v1/helper/qos).

use crate::object;
use kube_rules::Quantity;
use kube_rules::qos::{RESOURCES, qos_class_of};
use serde_json::{Value, json};

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
pub(super) fn initial(pod: &Value) -> Value {
    json!({"phase": "Pending", "qosClass": qos_class(pod)})
}

/// `ComputePodQOS`.
fn qos_class(pod: &Value) -> &'static str {
    let amount = |resources: Option<&Value>, list: &str, name: &str| {
        let quantity = object::lookup(resources?, &[list, name])?;
        quantity.as_str().map_or_else(|| Quantity::parse(&quantity.to_string()), Quantity::parse).ok()
    };
    let bounds = |resources: Option<&Value>| RESOURCES.map(|name| (amount(resources, "requests", name), amount(resources, "limits", name)));
    let given = |resources: &&Value| ["requests", "limits"].iter().any(|list| object::lookup(resources, &[list]).is_some());
    if let Some(pod_level) = object::lookup(pod, &["spec", "resources"]).filter(given) {
        return qos_class_of([bounds(Some(pod_level))].into_iter());
    }
    let containers = object::list(pod, &["spec", "containers"]).iter().chain(object::list(pod, &["spec", "initContainers"]));
    qos_class_of(containers.map(|container| bounds(object::lookup(container, &["resources"]))))
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
        let pod_level = json!({"spec": {"resources": {"requests": full, "limits": full}, "containers": [{"name": "a"}]}});
        assert_eq!(qos_class(&pod_level), "Guaranteed", "pod-level resources decide alone");
        let equal = json!({"requests": {"cpu": "1000m", "memory": "1024Mi"}, "limits": full});
        assert_eq!(qos_class(&pod(equal)), "Guaranteed", "quantities are compared, not their texts");
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
