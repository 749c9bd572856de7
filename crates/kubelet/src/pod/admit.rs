//! Whether this node takes a pod (upstream lifecycle/predicate.go and its handlers).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, Taint, Toleration};
use kube_rules::{NodeOs, Quantity, Refusal, admit_os, sysctl};

use super::resources::{Amounts, pod_requests};

/// The node as admission sees it.
pub(crate) struct NodeView<'a> {
    pub os: NodeOs,
    /// The Node object, once known.
    pub node: Option<&'a Node>,
    pub allocatable: &'a Amounts,
    /// Whether the pod runs in a virtual machine of its own, where images of older builds fit too.
    pub isolated: bool,
}

/// Checks a new pod against the node and the pods already on it.
pub(crate) fn admit<'a>(pod: &Pod, node: &NodeView<'_>, others: impl Iterator<Item = &'a Pod> + Clone) -> Result<(), Refusal> {
    sysctl::admit(pod, node.os)?;
    admit_os(pod, node.os, node.isolated)?;
    resources(pod, node.allocatable, others.clone())?;
    host_ports(pod, others)?;
    let Some(object) = node.node else {
        return Ok(());
    };
    if !matches_node(pod, object) {
        return Err(Refusal {
            reason: "NodeAffinity",
            message: "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector".into(),
        });
    }
    if let Some(taint) = untolerated(pod, object) {
        return Err(Refusal {
            reason: "TaintToleration",
            message: format!("Predicate TaintToleration failed: node has the untolerated taint {}", taint.key),
        });
    }
    Ok(())
}

fn resources<'a>(pod: &Pod, allocatable: &Amounts, others: impl Iterator<Item = &'a Pod> + Clone) -> Result<(), Refusal> {
    let count = others.clone().count() as i64;
    let capacity = allocatable.get("pods").map_or(110, |q| q.value());
    if count + 1 > capacity {
        return Err(insufficient("pods", Quantity::from_units(1), Quantity::from_units(count), Quantity::from_units(capacity)));
    }
    for (name, request) in pod_requests(pod) {
        if request.is_zero() {
            continue;
        }
        let used: Quantity = others.clone().filter_map(|p| pod_requests(p).get(&name).copied()).sum();
        let capacity = allocatable.get(&name).copied().unwrap_or(Quantity::ZERO);
        if used + request > capacity {
            return Err(insufficient(&name, request, used, capacity));
        }
    }
    Ok(())
}

fn insufficient(name: &str, request: Quantity, used: Quantity, capacity: Quantity) -> Refusal {
    let number = |q: Quantity| {
        if name == "cpu" { q.milli_value() } else { q.value() }
    };
    let reason = match name {
        "cpu" => "OutOfcpu",
        "memory" => "OutOfmemory",
        "pods" => "OutOfpods",
        "ephemeral-storage" => "OutOfephemeral-storage",
        _ => "UnexpectedAdmissionError",
    };
    Refusal {
        reason,
        message: format!(
            "Node didn't have enough resource: {name}, requested: {}, used: {}, capacity: {}",
            number(request),
            number(used),
            number(capacity)
        ),
    }
}

/// Host ports of a pod as (protocol, address, port); a host-network pod's ports are all on the host.
fn ports(pod: &Pod) -> impl Iterator<Item = (String, String, i32)> + '_ {
    pod.spec.iter().flat_map(|s| &s.containers).flat_map(|c| c.ports.iter().flatten()).filter_map(|p| {
        let port = p.host_port.filter(|p| *p > 0)?;
        let address = p.host_ip.clone().filter(|a| !a.is_empty()).unwrap_or_else(|| "0.0.0.0".into());
        Some((p.protocol.clone().unwrap_or_else(|| "TCP".into()), address, port))
    })
}

fn host_ports<'a>(pod: &Pod, others: impl Iterator<Item = &'a Pod> + Clone) -> Result<(), Refusal> {
    let any = |a: &str| a == "0.0.0.0" || a == "::";
    for (protocol, address, port) in ports(pod) {
        let clash = others.clone().flat_map(ports).any(|(p, a, n)| p == protocol && n == port && (a == address || any(&a) || any(&address)));
        if clash {
            return Err(Refusal {
                reason: "NodePorts",
                message: "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports".into(),
            });
        }
    }
    Ok(())
}

/// nodeSelector and required node affinity.
pub(crate) fn matches_node(pod: &Pod, node: &Node) -> bool {
    let Some(spec) = &pod.spec else { return true };
    let empty = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&empty);
    if !spec.node_selector.iter().flatten().all(|(k, v)| labels.get(k) == Some(v)) {
        return false;
    }
    let required =
        spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref()).and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    required.is_none_or(|r| matches_terms(r, node))
}

/// Whether one of the selector's terms fits the node.
pub(crate) fn matches_terms(selector: &NodeSelector, node: &Node) -> bool {
    let empty = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&empty);
    let name = node.metadata.name.as_deref().unwrap_or_default();
    selector.node_selector_terms.iter().any(|t| term(t, labels, name))
}

fn term(t: &NodeSelectorTerm, labels: &BTreeMap<String, String>, name: &str) -> bool {
    let expressions = t.match_expressions.iter().flatten();
    let fields = t.match_fields.iter().flatten();
    if expressions.clone().next().is_none() && fields.clone().next().is_none() {
        return false;
    }
    expressions.clone().all(|e| requirement(e, labels.get(&e.key).map(String::as_str)))
        && fields.clone().all(|f| f.key == "metadata.name" && requirement(f, Some(name)))
}

fn requirement(r: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let listed = || value.is_some_and(|v| r.values.iter().flatten().any(|x| x == v));
    let number = || Some((value?.parse::<i64>().ok()?, r.values.as_ref()?.first()?.parse::<i64>().ok()?));
    match r.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => number().is_some_and(|(a, b)| a > b),
        "Lt" => number().is_some_and(|(a, b)| a < b),
        _ => false,
    }
}

/// The first NoExecute taint the pod does not tolerate.
fn untolerated<'a>(pod: &Pod, node: &'a Node) -> Option<&'a Taint> {
    let tolerations: Vec<&Toleration> = pod.spec.iter().flat_map(|s| s.tolerations.iter().flatten()).collect();
    let taints = node.spec.as_ref()?.taints.as_ref()?;
    taints.iter().filter(|t| t.effect == "NoExecute").find(|t| !tolerations.iter().any(|o| tolerates(o, t)))
}

fn tolerates(o: &Toleration, t: &Taint) -> bool {
    let effect = o.effect.as_deref().unwrap_or_default();
    let key = o.key.as_deref().unwrap_or_default();
    let exists = o.operator.as_deref() == Some("Exists");
    (effect.is_empty() || effect == t.effect)
        && (key == t.key || (key.is_empty() && exists))
        && (exists || o.value.as_deref().unwrap_or_default() == t.value.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(spec: serde_json::Value) -> Pod {
        let mut full = json!({"containers": [{"name": "c", "image": "i"}]});
        for (k, v) in spec.as_object().unwrap() {
            full[k] = v.clone();
        }
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": full})).unwrap()
    }

    fn refusal(spec: serde_json::Value, others: &[Pod]) -> Option<(&'static str, String)> {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "win01", "labels": {"kubernetes.io/os": "windows", "n": "5"}},
            "spec": {"taints": [{"key": "dead", "effect": "NoExecute"}, {"key": "soft", "effect": "NoSchedule"}]}
        }))
        .unwrap();
        let allocatable = Amounts::from([("cpu".to_owned(), Quantity::from_units(2)), ("pods".to_owned(), Quantity::from_units(2))]);
        let view = NodeView { os: NodeOs::Windows { build: 20348 }, node: Some(&node), allocatable: &allocatable, isolated: false };
        admit(&pod(spec), &view, others.iter()).err().map(|r| (r.reason, r.message))
    }

    #[test]
    fn table() {
        let tolerate = json!([{"operator": "Exists"}]);
        let cpu = |n: &str| json!([{"name": "c", "image": "i", "resources": {"requests": {"cpu": n}}}]);
        let port = json!([{"name": "c", "image": "i", "ports": [{"containerPort": 80, "hostPort": 80}]}]);
        let reason = |spec, others: &[Pod]| refusal(spec, others).map(|r| r.0);
        assert_eq!(reason(json!({"tolerations": tolerate}), &[]), None);
        assert_eq!(reason(json!({}), &[]), Some("TaintToleration"));
        assert_eq!(
            refusal(json!({"tolerations": tolerate, "containers": cpu("1500m")}), &[pod(json!({"containers": cpu("1")}))]),
            Some(("OutOfcpu", "Node didn't have enough resource: cpu, requested: 1500, used: 1000, capacity: 2000".into()))
        );
        assert_eq!(reason(json!({}), &[pod(json!({})), pod(json!({}))]), Some("OutOfpods"));
        assert_eq!(reason(json!({"tolerations": tolerate, "containers": port}), &[pod(json!({"containers": port}))]), Some("NodePorts"));
        assert_eq!(reason(json!({"tolerations": tolerate, "nodeSelector": {"kubernetes.io/os": "linux"}}), &[]), Some("NodeAffinity"));
        let affinity = |op: &str, values: serde_json::Value| {
            json!({"tolerations": tolerate, "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [{"matchExpressions": [{"key": "n", "operator": op, "values": values}]}]}}}})
        };
        assert_eq!(reason(affinity("Gt", json!(["4"])), &[]), None);
        assert_eq!(reason(affinity("Lt", json!(["4"])), &[]), Some("NodeAffinity"));
        assert_eq!(reason(affinity("NotIn", json!(["5"])), &[]), Some("NodeAffinity"));
        assert_eq!(reason(affinity("In", json!(["5", "6"])), &[]), None);
    }
}
