//! Plan for one node: pure.

use std::fmt;

use k8s_openapi::api::core::v1::Taint;
use kube_rules::readiness;

use crate::view::NodeRow;

const NO_SCHEDULE: &str = "NoSchedule";
const NO_EXECUTE: &str = "NoExecute";
const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const CORDONED: &str = "node.kubernetes.io/unschedulable";
/// Conditions that keep new pods away while they are true.
const PRESSURES: [(&str, &str); 4] = [
    ("MemoryPressure", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "node.kubernetes.io/pid-pressure"),
    ("NetworkUnavailable", "node.kubernetes.io/network-unavailable"),
];
/// Conditions that become Unknown when the node agent is silent.
const HEARD_FROM_AGENT: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];
/// Labels, and those of earlier releases that repeat them.
const LABELS: [(&str, &str); 2] = [("kubernetes.io/os", "beta.kubernetes.io/os"), ("kubernetes.io/arch", "beta.kubernetes.io/arch")];

/// Everything to do now.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Plan {
    /// Conditions to set to Unknown.
    pub unknown: Vec<String>,
    /// The node's taints, if they have to change.
    pub taints: Option<Vec<Taint>>,
    /// Whether its pods lose their readiness.
    pub silence_pods: bool,
    /// Labels that repeat others and are missing or say something else.
    pub labels: Vec<(&'static str, String)>,
}

impl Plan {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if !self.unknown.is_empty() {
            parts.push(format!("unknown: {}", self.unknown.join(" ")));
        }
        if let Some(taints) = &self.taints {
            let each = taints.iter().map(|taint| format!(" {}:{}", taint.key, taint.effect));
            parts.push(format!("taints:{}", each.collect::<String>()));
        }
        if self.silence_pods {
            parts.push("its pods are not ready".to_owned());
        }
        parts.extend(self.labels.iter().map(|(name, value)| format!("label {name}={value}")));
        f.write_str(&parts.join("; "))
    }
}

/// Whether the node says that it is ready.
pub(super) fn is_ready(node: &NodeRow) -> bool {
    readiness::ready(&node.conditions).is_some()
}

/// Whether the node's readiness is Unknown.
pub(super) fn is_unknown(node: &NodeRow) -> bool {
    node.condition("Ready").is_some_and(|one| one.status == "Unknown")
}

/// Whether pods of a lost node may be evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Evictions {
    Go,
    /// Not of further nodes: those that are evicted stay so.
    Hold,
    /// Of no node: none of the cluster is ready.
    Stop,
}

/// Whether the node is lost and its pods are not evicted yet.
pub(super) fn awaits_eviction(node: &NodeRow) -> bool {
    node.condition("Ready").is_some_and(|one| one.status != "True") && !is_evicted(node)
}

fn is_evicted(node: &NodeRow) -> bool {
    node.taints.iter().any(|taint| taint.effect == NO_EXECUTE && matches!(taint.key.as_str(), NOT_READY | UNREACHABLE))
}

/// Plan for a node; `expired`: it was silent for longer than its grace.
pub(super) fn plan(node: &NodeRow, expired: bool, evictions: Evictions) -> Plan {
    let known = |type_: &&&str| node.condition(type_).is_none_or(|condition| condition.status != "Unknown");
    // The others follow Ready alone, as upstream has it.
    let unknown = match expired && !is_unknown(node) {
        true => HEARD_FROM_AGENT.iter().filter(known).map(|type_| (*type_).to_owned()).collect(),
        false => Vec::new(),
    };
    // The taints that follow from new conditions are written once the conditions are seen.
    let taints = if unknown.is_empty() { taints(node, evictions) } else { None };
    Plan { silence_pods: is_unknown(node), unknown, taints, labels: labels(node) }
}

fn labels(node: &NodeRow) -> Vec<(&'static str, String)> {
    let wanted = LABELS.iter().filter_map(|(label, copy)| Some((*copy, node.labels.get(*label)?)));
    wanted.filter(|(copy, value)| node.labels.get(*copy) != Some(*value)).map(|(copy, value)| (copy, value.clone())).collect()
}

/// The taints that a node should have, if they are others than it has.
pub(super) fn taints(node: &NodeRow, evictions: Evictions) -> Option<Vec<Taint>> {
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    let ready = node.condition("Ready").map(|one| one.status.as_str());
    match ready {
        Some("True") => {}
        Some("Unknown") => wanted.extend([(UNREACHABLE, NO_SCHEDULE), (UNREACHABLE, NO_EXECUTE)]),
        Some(_) => wanted.extend([(NOT_READY, NO_SCHEDULE), (NOT_READY, NO_EXECUTE)]),
        // No heartbeat yet: no pod is scheduled there, and none runs there.
        None => wanted.push((NOT_READY, NO_SCHEDULE)),
    }
    // When no node is ready, the fault is more likely ours: no pod is evicted.
    let evicts = match evictions {
        Evictions::Go => true,
        Evictions::Hold => is_evicted(node),
        Evictions::Stop => false,
    };
    wanted.retain(|(_, effect)| evicts || *effect != NO_EXECUTE);
    let pressed = PRESSURES.iter().filter(|(type_, _)| readiness::is_true(&node.conditions, type_));
    wanted.extend(pressed.map(|(_, key)| (*key, NO_SCHEDULE)));
    if node.unschedulable {
        wanted.push((CORDONED, NO_SCHEDULE));
    }
    let ours = |taint: &Taint| [NOT_READY, UNREACHABLE, CORDONED].contains(&taint.key.as_str()) || PRESSURES.iter().any(|(_, key)| *key == taint.key);
    let stays = |taint: &&Taint| !ours(taint) || wanted.contains(&(taint.key.as_str(), taint.effect.as_str()));
    let mut taints: Vec<Taint> = node.taints.iter().filter(stays).cloned().collect();
    for (key, effect) in wanted {
        if !taints.iter().any(|taint| taint.key == key && taint.effect == effect) {
            taints.push(Taint { key: key.to_owned(), effect: effect.to_owned(), ..Default::default() });
        }
    }
    (taints != node.taints).then_some(taints)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;

    use super::*;
    use crate::view::NodeCondition;

    fn node(conditions: &[(&str, &str)], taints: &[(&str, &str)], cordoned: bool) -> NodeRow {
        let mut row = NodeRow::new(&Node::default());
        let condition = |(type_, status): &(&str, &str)| NodeCondition { type_: (*type_).into(), status: (*status).into(), heartbeat: None };
        row.conditions = conditions.iter().map(condition).collect();
        row.taints = taints.iter().map(|(key, effect)| Taint { key: (*key).into(), effect: (*effect).into(), ..Default::default() }).collect();
        row.unschedulable = cordoned;
        row
    }

    #[test]
    fn labels_of_earlier_releases_repeat_those_of_today() {
        for (labels, expected) in [
            (&[][..], ""),
            (&[("kubernetes.io/os", "windows")], "label beta.kubernetes.io/os=windows"),
            (&[("kubernetes.io/os", "windows"), ("beta.kubernetes.io/os", "windows")], ""),
            (&[("kubernetes.io/arch", "amd64"), ("beta.kubernetes.io/arch", "arm64")], "label beta.kubernetes.io/arch=amd64"),
            (&[("beta.kubernetes.io/os", "linux")], ""),
        ] {
            let mut row = node(&[("Ready", "True")], &[], false);
            row.labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            assert_eq!(plan(&row, false, Evictions::Go).to_string(), expected, "{labels:?}");
        }
    }

    #[test]
    fn conditions_decide_taints_and_pods() {
        for (what, node, expired, evictions, expected) in [
            ("a new node", node(&[], &[(NOT_READY, NO_SCHEDULE)], false), false, Evictions::Go, ""),
            ("a node without its first taint", node(&[], &[], false), false, Evictions::Go, "taints: node.kubernetes.io/not-ready:NoSchedule"),
            (
                "a node became ready",
                node(&[("Ready", "True")], &[(NOT_READY, NO_SCHEDULE), (NOT_READY, NO_EXECUTE)], false),
                false,
                Evictions::Go,
                "taints:",
            ),
            ("others' taints stay", node(&[("Ready", "True")], &[("gpu", NO_SCHEDULE)], false), false, Evictions::Go, ""),
            (
                "a node says it is not ready",
                node(&[("Ready", "False")], &[("gpu", NO_SCHEDULE)], false),
                false,
                Evictions::Go,
                "taints: gpu:NoSchedule node.kubernetes.io/not-ready:NoSchedule node.kubernetes.io/not-ready:NoExecute",
            ),
            (
                "a node fell silent",
                node(&[("Ready", "True"), ("DiskPressure", "False")], &[], false),
                true,
                Evictions::Go,
                "unknown: Ready MemoryPressure DiskPressure PIDPressure",
            ),
            (
                "a node never spoke",
                node(&[], &[(NOT_READY, NO_SCHEDULE)], false),
                true,
                Evictions::Go,
                "unknown: Ready MemoryPressure DiskPressure PIDPressure",
            ),
            (
                "a silent node",
                node(&[("Ready", "Unknown")], &[(NOT_READY, NO_SCHEDULE)], false),
                true,
                Evictions::Go,
                "taints: node.kubernetes.io/unreachable:NoSchedule node.kubernetes.io/unreachable:NoExecute; its pods are not ready",
            ),
            (
                "another node of the zone was evicted just now",
                node(&[("Ready", "Unknown")], &[], false),
                true,
                Evictions::Hold,
                "taints: node.kubernetes.io/unreachable:NoSchedule; its pods are not ready",
            ),
            (
                "an evicted node falls silent",
                node(&[("Ready", "Unknown")], &[(NOT_READY, NO_SCHEDULE), (NOT_READY, NO_EXECUTE)], false),
                true,
                Evictions::Hold,
                "taints: node.kubernetes.io/unreachable:NoSchedule node.kubernetes.io/unreachable:NoExecute; its pods are not ready",
            ),
            (
                "all nodes are silent",
                node(&[("Ready", "Unknown")], &[(UNREACHABLE, NO_SCHEDULE), (UNREACHABLE, NO_EXECUTE)], false),
                true,
                Evictions::Stop,
                "taints: node.kubernetes.io/unreachable:NoSchedule; its pods are not ready",
            ),
            (
                "cordoned and short of memory",
                node(&[("Ready", "True"), ("MemoryPressure", "True")], &[], true),
                false,
                Evictions::Go,
                "taints: node.kubernetes.io/memory-pressure:NoSchedule node.kubernetes.io/unschedulable:NoSchedule",
            ),
        ] {
            assert_eq!(plan(&node, expired, evictions).to_string(), expected, "{what}");
        }
    }
}
