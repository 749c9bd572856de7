//! Address families of this node's pods: what mode and host carry, and what is missing. Pure.

use ipnet::IpNet;

use super::{Attachment, Inputs, Role};
use crate::problem::{Kind, Problem};

fn name(cidr: IpNet) -> &'static str {
    if cidr.addr().is_ipv6() { "IPv6" } else { "IPv4" }
}

/// Why this node's pods get no addresses of that network: the reason and the way out.
pub(super) fn refusal(inputs: &Inputs<'_>, cidr: IpNet) -> Option<String> {
    let Role::Node(pods) = &inputs.settings.role else { return None };
    if cidr.addr().is_ipv4() {
        return None;
    }
    if let Some(reason) = inputs.settings.mode.one_family() {
        return Some(format!("the mode {} carries IPv4 alone ({reason}); use host-gateway, l3 or bgp for IPv6", inputs.settings.mode));
    }
    let windows = matches!(pods.attachment, Attachment::Windows { .. });
    let text = "its Host Networking Service has no IPv6 for pods; Windows Server 2022 (build 20348) and later have it";
    (windows && !inputs.state.hns_ipv6).then(|| text.to_owned())
}

/// A node without an address of the family of a pod CIDR.
pub(super) fn no_address(node: &str, cidr: IpNet, consequence: &str) -> Problem {
    let text = format!(
        "node {node}: it has the pod CIDR {cidr} and no {} address, so {consequence}; give it an address of each family (--node-ip, InternalIP of the Node)",
        name(cidr)
    );
    Problem::of_node(Kind::FamilyMissing, node, text)
}

/// What this node's pods lack of the cluster's families. A node that has no pod CIDR or no address yet lacks nothing: it will have them.
pub(super) fn problems(inputs: &Inputs<'_>) -> Vec<Problem> {
    let node = &inputs.settings.node_name;
    let (Role::Node(_), Some(row)) = (&inputs.settings.role, inputs.nodes.get(node)) else { return Vec::new() };
    let mut problems = Vec::new();
    for cidr in &row.pod_cidrs {
        if let Some(reason) = refusal(inputs, *cidr) {
            problems.push(Problem::of_node(Kind::FamilyMissing, node, format!("node {node}: its pods get no addresses of {cidr}: {reason}")));
        } else if row.address(*cidr).is_none() && !row.addresses.is_empty() {
            problems.push(no_address(node, *cidr, "its pods get none of these addresses"));
        }
    }
    if row.pod_cidrs.is_empty() {
        return problems;
    }
    let carried = inputs.settings.cluster_cidrs.iter().filter(|cluster| refusal(inputs, **cluster).is_none());
    let missing = carried.filter(|cluster| !row.pod_cidrs.iter().any(|cidr| name(*cidr) == name(**cluster)));
    problems.extend(missing.map(|cluster| {
        let text = format!(
            "node {node}: it has no pod CIDR out of the cluster's {cluster}, so its pods get no {} addresses; give kube-controller-manager both networks (--cluster-cidr), and register the node anew",
            name(*cluster)
        );
        Problem::of_node(Kind::FamilyMissing, node, text)
    }));
    problems
}
