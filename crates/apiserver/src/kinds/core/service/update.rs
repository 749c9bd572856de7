//! What an update keeps of the old Service, and what it drops (pkg/registry/core/service: `patchAllocatedValues`,
//! `dropTypeDependentFields`).

use super::{is_externally_accessible, needs_cluster_ip, needs_health_check_port, needs_node_ports, service_type};
use crate::object;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};

/// Allocated values that a client leaves out stay: the object of a creation can be sent again.
pub fn keep_allocated(old: &Value, new: &mut Value) {
    if needs_cluster_ip(old) && needs_cluster_ip(new) {
        for (member, empty) in [("clusterIP", json!("")), ("clusterIPs", json!([]))] {
            let kept = object::lookup(old, &["spec", member]).cloned();
            let spec = object::map_mut(new, "spec");
            let missing = spec.get(member).is_none_or(|value| value.is_null() || *value == empty);
            if let Some(kept) = kept.filter(|_| missing) {
                spec.insert(member.into(), kept);
            }
        }
    }
    if needs_node_ports(old) && needs_node_ports(new) {
        keep_node_ports(old, new);
    }
    if needs_health_check_port(old)
        && needs_health_check_port(new)
        && health_check_port(new) == 0
        && let Some(port) = object::lookup(old, &["spec", "healthCheckNodePort"]).cloned()
    {
        object::map_mut(new, "spec").insert("healthCheckNodePort".into(), port);
    }
}

pub fn node_port(port: &Value) -> u64 {
    port.get("nodePort").and_then(Value::as_u64).unwrap_or_default()
}

fn node_ports(service: &Value) -> HashSet<u64> {
    object::list(service, &["spec", "ports"]).iter().map(node_port).filter(|port| *port != 0).collect()
}

pub fn health_check_port(service: &Value) -> i64 {
    object::integer(service, &["spec", "healthCheckNodePort"]).unwrap_or_default()
}

/// A port without a node port gets that of the old port of its name, unless another port has it now.
fn keep_node_ports(old: &Value, new: &mut Value) {
    let name = |port: &Value| object::text(port, &["name"]).to_string();
    let before: HashMap<String, u64> = object::list(old, &["spec", "ports"]).iter().map(|port| (name(port), node_port(port))).collect();
    let used: HashSet<u64> = node_ports(old).intersection(&node_ports(new)).copied().collect();
    for port in object::array_mut(object::map_mut(new, "spec"), "ports") {
        let kept = before.get(&name(port)).copied().filter(|kept| *kept != 0 && !used.contains(kept));
        if let (0, Some(kept)) = (node_port(port), kept) {
            object::set(port, "nodePort", kept.into());
        }
    }
}

/// Members that mean nothing for the new type go, unless the client changed them along with it: validation refuses those.
pub fn drop_type_dependent(old: &Value, new: &mut Value) {
    let same = |new: &Value, member: &str| object::lookup(old, &["spec", member]) == object::lookup(new, &["spec", member]);
    if needs_cluster_ip(old) && !needs_cluster_ip(new) {
        let addresses = same(new, "clusterIP") && same(new, "clusterIPs");
        let (families, policy) = (same(new, "ipFamilies"), same(new, "ipFamilyPolicy"));
        let spec = object::map_mut(new, "spec");
        for (member, drops) in [("clusterIP", addresses), ("clusterIPs", addresses), ("ipFamilies", families), ("ipFamilyPolicy", policy)] {
            if drops {
                spec.shift_remove(member);
            }
        }
    }
    let by_type = |service: &Value| matches!(service_type(service), "NodePort" | "LoadBalancer");
    if by_type(old) && !by_type(new) && node_ports(old).is_superset(&node_ports(new)) {
        for port in object::array_mut(object::map_mut(new, "spec"), "ports").iter_mut().filter_map(Value::as_object_mut) {
            port.shift_remove("nodePort");
        }
    }
    let is_balanced = |service: &Value| service_type(service) == "LoadBalancer";
    for (member, applied, applies) in [
        ("healthCheckNodePort", needs_health_check_port(old), needs_health_check_port(new)),
        ("allocateLoadBalancerNodePorts", is_balanced(old), is_balanced(new)),
        ("loadBalancerClass", is_balanced(old), is_balanced(new)),
        ("externalTrafficPolicy", is_externally_accessible(old), is_externally_accessible(new)),
    ] {
        if applied && !applies && same(new, member) {
            object::map_mut(new, "spec").shift_remove(member);
        }
    }
    if !is_balanced(new) && object::lookup(new, &["status", "loadBalancer"]).is_some_and(|status| *status != json!({})) {
        object::map_mut(new, "status").insert("loadBalancer".into(), json!({}));
    }
}
