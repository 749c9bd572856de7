//! Whether this node takes a pod (upstream lifecycle/predicate.go and its handlers).

use k8s_openapi::api::core::v1::{Node, NodeSelector, Pod, Taint};
use kube_rules::requests::{self, Shortage};
use kube_rules::{Amounts, HostPort, Labels, NodeOs, Refusal, RequiredNodeAffinity, Resources, admit_os, pod_requests, sysctl, taints};

use super::features;

/// The node as admission sees it.
pub(crate) struct NodeView<'a> {
    pub os: NodeOs,
    /// The Node object, once known.
    pub node: Option<&'a Node>,
    pub allocatable: &'a Amounts,
    /// Whether the pod runs in a virtual machine of its own, where images of older builds fit too.
    pub isolated: bool,
    /// Kernel settings that it allows beside the safe ones, by name or beginning and `*`.
    pub unsafe_sysctls: &'a [String],
    /// Whether the runtime obeys `supplementalGroupsPolicy`; None where it has not said so, and the Node object counts.
    pub groups_policy: Option<bool>,
    /// The pod is a static one, which the node's taints do not concern.
    pub is_static: bool,
}

/// Checks a new pod against the node and the pods already on it.
pub(crate) fn admit<'a>(pod: &Pod, node: &NodeView<'_>, others: impl Iterator<Item = &'a Pod> + Clone) -> Result<(), Refusal> {
    admit_system(pod, node)?;
    resources(pod, node.allocatable, others.clone())?;
    admit_place(pod, node, others)
}

/// The same, as if the node had enough of everything.
pub(crate) fn admit_but_resources<'a>(pod: &Pod, node: &NodeView<'_>, others: impl Iterator<Item = &'a Pod> + Clone) -> Result<(), Refusal> {
    admit_system(pod, node)?;
    admit_place(pod, node, others)
}

fn admit_system(pod: &Pod, node: &NodeView<'_>) -> Result<(), Refusal> {
    sysctl::admit(pod, node.os, node.unsafe_sysctls)?;
    admit_os(pod, node.os, node.isolated)?;
    features::admit(pod, node.os)?;
    let context = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let is_strict = context.and_then(|context| context.supplemental_groups_policy.as_deref()) == Some("Strict");
    if is_strict && !obeys_groups_policy(node) {
        return Err(Refusal {
            reason: "SupplementalGroupsPolicyNotSupported".into(),
            message: "SupplementalGroupsPolicy=Strict is not supported in this node".into(),
        });
    }
    Ok(())
}

fn obeys_groups_policy(node: &NodeView<'_>) -> bool {
    let reported = || node.node?.status.as_ref()?.features.as_ref()?.supplemental_groups_policy;
    node.groups_policy.or_else(reported).unwrap_or(false)
}

fn admit_place<'a>(pod: &Pod, node: &NodeView<'_>, others: impl Iterator<Item = &'a Pod> + Clone) -> Result<(), Refusal> {
    host_ports(pod, others)?;
    let Some(object) = node.node else {
        return Ok(());
    };
    if !matches_node(pod, object) {
        return Err(Refusal {
            reason: "NodeAffinity".into(),
            message: "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector".into(),
        });
    }
    if !node.is_static && untolerated(pod, object).is_some() {
        return Err(Refusal {
            reason: "TaintToleration".into(),
            message: "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate".into(),
        });
    }
    Ok(())
}

/// Checks the requests of a pod against what the node has left beside `others`.
pub(crate) fn resources<'a>(pod: &Pod, allocatable: &Amounts, others: impl Iterator<Item = &'a Pod> + Clone) -> Result<(), Refusal> {
    match shortages(pod, allocatable, others).first() {
        Some(shortage) => Err(insufficient(shortage)),
        None => Ok(()),
    }
}

/// What the node has too little left of beside `others`: first of places for pods.
pub(crate) fn shortages<'a>(pod: &Pod, allocatable: &Amounts, others: impl Iterator<Item = &'a Pod> + Clone) -> Vec<Shortage> {
    let count = others.clone().count() as i64;
    let capacity = allocatable.get("pods").map_or(110, |q| q.value());
    let places = (count + 1 > capacity).then(|| Shortage { name: "pods".into(), requested: 1, used: count, allocatable: capacity });
    // Extended resources that the node does not have are not its to count: they are those of the cluster (upstream
    // `removeMissingExtendedResources`).
    let counted = |name: &String| allocatable.contains_key(name) || !requests::is_extended_resource(name);
    let requests = |pod: &Pod| {
        let mut all = pod.spec.as_ref().map(|spec| requests::counts(&pod_requests(spec))).unwrap_or_default();
        all.retain(|name, _| counted(name));
        all
    };
    let mut used = Resources::new();
    for (name, amount) in others.flat_map(requests) {
        let sum = used.entry(name).or_default();
        *sum = sum.saturating_add(amount);
    }
    let others = requests::shortages(&requests(pod), &used, &requests::counts(allocatable));
    places.into_iter().chain(others).collect()
}

fn insufficient(shortage: &Shortage) -> Refusal {
    let Shortage { name, requested, used, allocatable } = shortage;
    let message = format!("Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {allocatable}");
    Refusal { reason: format!("OutOf{name}").into(), message }
}

fn host_ports<'a>(pod: &Pod, others: impl Iterator<Item = &'a Pod>) -> Result<(), Refusal> {
    let ports = |pod: &'a Pod| pod.spec.iter().flat_map(kube_rules::host_ports);
    let own: Vec<HostPort> = pod.spec.iter().flat_map(kube_rules::host_ports).collect();
    if own.is_empty() || !others.flat_map(ports).any(|taken| own.iter().any(|port| port.conflicts_with(&taken))) {
        return Ok(());
    }
    Err(Refusal {
        reason: "NodePorts".into(),
        message: "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports".into(),
    })
}

/// nodeSelector and required node affinity.
pub(crate) fn matches_node(pod: &Pod, node: &Node) -> bool {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    pod.spec.as_ref().is_none_or(|spec| RequiredNodeAffinity::new(spec).matches(name, labels(node)))
}

/// Whether the node affinity of a volume lets this node use it.
pub(crate) fn reaches_volume(selector: &NodeSelector, node: &Node) -> bool {
    kube_rules::NodeSelector::new(selector).matches_volume(labels(node))
}

fn labels(node: &Node) -> &Labels {
    static NONE: Labels = Labels::new();
    node.metadata.labels.as_ref().unwrap_or(&NONE)
}

/// The first NoExecute taint the pod does not tolerate.
fn untolerated<'a>(pod: &Pod, node: &'a Node) -> Option<&'a Taint> {
    let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default();
    let all = node.spec.as_ref()?.taints.as_ref()?;
    taints::find_untolerated(all, tolerations, taints::evicts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube_rules::Quantity;
    use serde_json::json;

    fn pod(spec: serde_json::Value) -> Pod {
        let mut full = json!({"containers": [{"name": "c", "image": "i"}]});
        for (k, v) in spec.as_object().unwrap() {
            full[k] = v.clone();
        }
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": full})).unwrap()
    }

    fn refusal(spec: serde_json::Value, others: &[Pod]) -> Option<(String, String)> {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "win01", "labels": {"kubernetes.io/os": "windows", "n": "5"}},
            "spec": {"taints": [{"key": "dead", "effect": "NoExecute"}, {"key": "soft", "effect": "NoSchedule"}]}
        }))
        .unwrap();
        let allocatable = Amounts::from([
            ("cpu".to_owned(), Quantity::from_units(2)),
            ("pods".to_owned(), Quantity::from_units(2)),
            ("example.com/seat".to_owned(), Quantity::from_units(3)),
        ]);
        let view = NodeView {
            os: NodeOs::Windows { build: 20348 },
            node: Some(&node),
            allocatable: &allocatable,
            isolated: false,
            unsafe_sysctls: &[],
            groups_policy: None,
            is_static: false,
        };
        admit(&pod(spec), &view, others.iter()).err().map(|r| (r.reason.into_owned(), r.message))
    }

    #[test]
    fn strict_groups_need_a_runtime_that_knows_them() {
        let strict = pod(json!({"securityContext": {"supplementalGroupsPolicy": "Strict"}}));
        let node = |features: serde_json::Value| -> Node {
            serde_json::from_value(json!({"metadata": {"name": "lin01"}, "status": {"features": features}})).unwrap()
        };
        let (with, without) = (node(json!({"supplementalGroupsPolicy": true})), node(json!({})));
        let refused = |pod: &Pod, node: Option<&Node>, groups_policy| {
            let allocatable = Amounts::new();
            let view = NodeView {
                os: NodeOs::Linux,
                node,
                allocatable: &allocatable,
                isolated: false,
                unsafe_sysctls: &[],
                groups_policy,
                is_static: false,
            };
            admit_system(pod, &view).err().map(|refusal| (refusal.reason.into_owned(), refusal.message))
        };
        let want =
            Some(("SupplementalGroupsPolicyNotSupported".to_owned(), "SupplementalGroupsPolicy=Strict is not supported in this node".to_owned()));
        assert_eq!(refused(&strict, Some(&with), Some(false)), want, "what the runtime says counts first");
        assert_eq!(refused(&strict, Some(&with), None), None);
        assert_eq!(refused(&strict, Some(&without), None), want);
        assert_eq!(refused(&strict, None, None), want);
        assert_eq!(refused(&strict, None, Some(true)), None);
        assert_eq!(refused(&pod(json!({"securityContext": {"supplementalGroupsPolicy": "Merge"}})), None, Some(false)), None);
    }

    #[test]
    fn table() {
        let tolerate = json!([{"operator": "Exists"}]);
        let cpu = |n: &str| json!([{"name": "c", "image": "i", "resources": {"requests": {"cpu": n}}}]);
        let port = json!([{"name": "c", "image": "i", "ports": [{"containerPort": 80, "hostPort": 80}]}]);
        let reason = |spec, others: &[Pod]| refusal(spec, others).map(|r| r.0);
        assert_eq!(reason(json!({"tolerations": tolerate}), &[]), None);
        assert_eq!(
            refusal(json!({"tolerations": tolerate, "containers": cpu("1500m")}), &[pod(json!({"containers": cpu("1")}))]),
            Some(("OutOfcpu".into(), "Node didn't have enough resource: cpu, requested: 1500, used: 1000, capacity: 2000".into()))
        );
        let seats = |n: &str| json!([{"name": "c", "image": "i", "resources": {"requests": {"example.com/seat": n, "example.com/other": "9"}}}]);
        assert_eq!(
            refusal(json!({"tolerations": tolerate, "containers": seats("2")}), &[pod(json!({"containers": seats("2")}))]),
            Some(("OutOfexample.com/seat".into(), "Node didn't have enough resource: example.com/seat, requested: 2, used: 2, capacity: 3".into())),
            "of what the node does not have at all nobody asks it"
        );
        assert_eq!(
            refusal(json!({}), &[]),
            Some(("TaintToleration".into(), "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate".into()))
        );
        assert_eq!(reason(json!({}), &[pod(json!({})), pod(json!({}))]), Some("OutOfpods".into()));
        assert_eq!(reason(json!({"tolerations": tolerate, "containers": port}), &[pod(json!({"containers": port}))]), Some("NodePorts".into()));
        assert_eq!(reason(json!({"tolerations": tolerate, "nodeSelector": {"kubernetes.io/os": "linux"}}), &[]), Some("NodeAffinity".into()));
        let affinity = |op: &str, values: serde_json::Value| {
            json!({"tolerations": tolerate, "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [{"matchExpressions": [{"key": "n", "operator": op, "values": values}]}]}}}})
        };
        assert_eq!(reason(affinity("Gt", json!(["4"])), &[]), None);
        assert_eq!(reason(affinity("Lt", json!(["4"])), &[]), Some("NodeAffinity".into()));
        assert_eq!(reason(affinity("NotIn", json!(["5"])), &[]), Some("NodeAffinity".into()));
        assert_eq!(reason(affinity("In", json!(["5", "6"])), &[]), None);
    }
}
