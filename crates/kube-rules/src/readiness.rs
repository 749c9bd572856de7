//! Conditions of pods and nodes, and readiness (upstream: `podutil.IsPodReady`, `nodeutil.IsNodeReady`).

use k8s_openapi::api::core::v1::{Node, NodeCondition, Pod, PodCondition};
use serde_json::Value;

const READY: &str = "Ready";

/// A condition of an object's status.
pub trait Condition {
    /// What it is about, such as `Ready`.
    fn kind(&self) -> &str;
    /// `True`, `False` or `Unknown`.
    fn status(&self) -> &str;
}

impl Condition for PodCondition {
    fn kind(&self) -> &str {
        &self.type_
    }

    fn status(&self) -> &str {
        &self.status
    }
}

impl Condition for NodeCondition {
    fn kind(&self) -> &str {
        &self.type_
    }

    fn status(&self) -> &str {
        &self.status
    }
}

impl Condition for Value {
    fn kind(&self) -> &str {
        self["type"].as_str().unwrap_or_default()
    }

    fn status(&self) -> &str {
        self["status"].as_str().unwrap_or_default()
    }
}

/// The first condition of a kind.
pub fn find<'a, C: Condition + 'a>(conditions: impl IntoIterator<Item = &'a C>, kind: &str) -> Option<&'a C> {
    conditions.into_iter().find(|one| one.kind() == kind)
}

/// Whether a condition is there and true.
pub fn is_true<'a, C: Condition + 'a>(conditions: impl IntoIterator<Item = &'a C>, kind: &str) -> bool {
    find(conditions, kind).is_some_and(|one| one.status() == "True")
}

/// The condition Ready, if it is there and true.
pub fn ready<'a, C: Condition + 'a>(conditions: impl IntoIterator<Item = &'a C>) -> Option<&'a C> {
    find(conditions, READY).filter(|one| one.status() == "True")
}

/// Whether a pod is ready.
pub fn is_pod_ready(pod: &Pod) -> bool {
    ready(pod.status.iter().flat_map(|status| status.conditions.iter().flatten())).is_some()
}

/// Whether a node is ready.
pub fn is_node_ready(node: &Node) -> bool {
    ready(node.status.iter().flat_map(|status| status.conditions.iter().flatten())).is_some()
}

/// Whether a `status` in JSON says that its pod or node is ready.
pub fn is_status_ready(status: &Value) -> bool {
    ready(status["conditions"].as_array().into_iter().flatten()).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_a_true_condition_is_readiness() {
        for (conditions, expected) in [
            (json!([]), false),
            (json!([{"type": "Ready", "status": "True"}]), true),
            (json!([{"type": "Ready", "status": "False"}]), false),
            (json!([{"type": "Ready", "status": "Unknown"}]), false),
            (json!([{"type": "ContainersReady", "status": "True"}]), false),
            (json!([{"type": "Initialized", "status": "False"}, {"type": "Ready", "status": "True"}]), true),
        ] {
            let object = json!({"metadata": {}, "status": {"conditions": conditions}});
            assert_eq!(is_pod_ready(&serde_json::from_value(object.clone()).unwrap()), expected, "pod {conditions}");
            assert_eq!(is_node_ready(&serde_json::from_value(object.clone()).unwrap()), expected, "node {conditions}");
            assert_eq!(is_status_ready(&object["status"]), expected, "JSON {conditions}");
        }
        assert!(!is_pod_ready(&Pod::default()) && !is_node_ready(&Node::default()) && !is_status_ready(&Value::Null));
    }
}
