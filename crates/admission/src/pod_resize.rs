//! PodResizeValidator: a resize fits the node that the pod runs on (plugin/pkg/admission/podresize).

use crate::amounts::{Options, Side, of_pod};
use crate::value::{amounts, lookup, text};
use crate::{Attributes, Operation};
use kube_rules::Quantity;
use serde_json::Value;

const OS_LABEL: &str = "kubernetes.io/os";

/// The number that messages show of a quantity.
type Shown = fn(Quantity) -> i64;

/// Why a resize is refused: the cause that the error's details name, where upstream has one, and the sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResizeRefusal {
    pub cause: Option<&'static str>,
    pub why: String,
}

/// The node to ask about a resize; none when the request resizes no pod, changes nothing, or the pod has no node.
pub fn node_of<'r>(request: &'r Attributes<'_>) -> Option<&'r str> {
    let resizes = (request.group, request.resource, request.subresource) == ("", "pods", "resize") && request.operation == Operation::Update;
    let generation = |pod: &Value| lookup(pod, &["metadata", "generation"]).and_then(Value::as_i64);
    let pod = request.object();
    let changes = resizes && generation(pod) != generation(request.old_object());
    Some(text(pod, &["spec", "nodeName"])).filter(|node| changes && !node.is_empty())
}

/// Whether the node can carry the resized pod.
pub fn validate(pod: &Value, name: &str, node: Option<&Value>) -> Result<(), ResizeRefusal> {
    let Some(node) = node else { return Err(ResizeRefusal { cause: None, why: format!("node {name:?} not found") }) };
    if let Some(os) = lookup(node, &["metadata", "labels", OS_LABEL]).and_then(Value::as_str).filter(|os| *os != "linux") {
        let why = format!("pod resize is only supported on linux nodes, node {name:?} is {os:?}");
        return Err(ResizeRefusal { cause: Some("UnsupportedPlatform"), why });
    }
    let requests = of_pod(pod, Side::Requests, Options { statuses: false, overhead: true });
    let allocatable = amounts(node, &["status", "allocatable"]);
    let bounds: [(&str, Shown); 2] = [("cpu", Quantity::milli_value), ("memory", Quantity::value)];
    let lacking: Vec<String> = bounds
        .iter()
        .filter_map(|(resource, shown)| {
            let of = |all: &kube_rules::Amounts| all.get(*resource).copied().unwrap_or(Quantity::ZERO);
            let (requested, has) = (of(&requests), of(&allocatable));
            (requested > has).then(|| format!("{resource}, requested: {}, allocatable: {}", shown(requested), shown(has)))
        })
        .collect();
    if lacking.is_empty() {
        return Ok(());
    }
    let why = format!("node didn't have enough allocatable resources: {}", lacking.join("; "));
    Err(ResizeRefusal { cause: Some("NodeCapacity"), why })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(cpu: &str, memory: &str) -> Value {
        json!({"metadata": {"generation": 2}, "spec": {"nodeName": "n", "overhead": {"cpu": "100m"},
            "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}}]}})
    }

    fn node(os: &str) -> Value {
        json!({"metadata": {"labels": {OS_LABEL: os}}, "status": {"allocatable": {"cpu": "2", "memory": "1Gi"}}})
    }

    #[test]
    fn a_resize_fits_the_node() {
        assert_eq!(validate(&pod("1900m", "1Gi"), "n", Some(&node("linux"))), Ok(()));
        let why = |pod: &Value, node: Option<&Value>| validate(pod, "n", node).unwrap_err();
        let both = why(&pod("2", "2Gi"), Some(&node("linux")));
        let sentence = "node didn't have enough allocatable resources: cpu, requested: 2100, allocatable: 2000; \
                        memory, requested: 2147483648, allocatable: 1073741824";
        assert_eq!((both.cause, both.why.as_str()), (Some("NodeCapacity"), sentence));
        let windows = why(&pod("1", "1Gi"), Some(&node("windows")));
        assert_eq!(windows.why, "pod resize is only supported on linux nodes, node \"n\" is \"windows\"");
        assert_eq!(windows.cause, Some("UnsupportedPlatform"));
        assert_eq!(why(&pod("1", "1Gi"), None), ResizeRefusal { cause: None, why: "node \"n\" not found".into() });
    }

    #[test]
    fn only_changes_of_a_pod_on_a_node_are_judged() {
        let (new, old) = (pod("1", "1Gi"), json!({"metadata": {"generation": 1}}));
        let request = |resource: &str, new: &Value, old: &Value| node_of(&crate::test_requests::request(resource, new, Some(old))).map(str::to_owned);
        assert_eq!(request("pods/resize", &new, &old), Some("n".to_owned()));
        assert_eq!(request("pods", &new, &old), None);
        assert_eq!(request("pods/resize", &new, &new), None);
        assert_eq!(request("pods/resize", &json!({"metadata": {"generation": 2}, "spec": {}}), &old), None);
    }
}
