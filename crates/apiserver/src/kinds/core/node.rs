//! Nodes. They register with their status, and take no pods until they are ready (plugin/pkg/admission/nodetaint).

use crate::defaults::{inner, set};
use crate::kind::Kind;
use crate::kind::SelectableField;
use crate::object;
use crate::table::text::{get, get_or, list, or_none};
use crate::table::{AGE, NAME, age, name, text, wide};
use crate::validation::addresses::{self, Form};
use crate::validation::field::{Errors, Field};
use crate::validation::scheduling;
use jiff::Timestamp;
use k8s_openapi::api::core;
use serde_json::{Map, Value, json};
use std::collections::HashSet;

const NOT_READY: &str = "node.kubernetes.io/not-ready";

pub fn kind() -> Kind {
    Kind::new("", "v1", "Node", "nodes", "io.k8s.api.core.v1.Node")
        .described_by::<core::v1::Node>()
        .cluster()
        .short(&["no"])
        .status()
        .status_on_create()
        .metadata_with_status()
        .connect("proxy", "NodeProxyOptions")
        .defaults(defaults)
        .validate(validate)
        .prepare_create(sync_pod_cidrs)
        .prepare_update(|_, node| sync_pod_cidrs(node))
        .admit_create(|_, node| {
            taint_not_ready(node);
            Ok(())
        })
        .selectable(SelectableField::new("spec.unschedulable").or("false"))
        .table(
            [
                NAME,
                text("Status"),
                text("Roles"),
                AGE,
                text("Version"),
                wide(text("Internal-IP")),
                wide(text("External-IP")),
                wide(text("OS-Image")),
                wide(text("Kernel-Version")),
                wide(text("Container-Runtime")),
            ],
            cells,
        )
}

fn defaults(object: &mut Map<String, Value>) {
    if let Some(status) = inner(object, "status")
        && let Some(capacity) = status.get("capacity").cloned()
    {
        set(status, "allocatable", || capacity);
    }
}

/// A new or changed Node.
fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let spec = new.get("spec");
    let before = old.map(|old| old.get("spec"));
    if before.as_ref().is_none_or(|before| before.value != spec.value) {
        scheduling::taints(&spec.get("taints"), errors);
    }
    let Some(before) = before else { return pod_cidrs(&spec.get("podCIDRs"), errors) };
    let mut seen = HashSet::new();
    for address in new.get("status").get("addresses").items() {
        let (kind, text) = (address.get("type").text(), address.get("address").text());
        if !seen.insert((kind, text)) {
            // Upstream prints its internal struct, whose members have Go's names.
            errors.duplicate(&address, json!({"Type": kind, "Address": text}));
        }
    }
    let had = before.get("podCIDRs");
    if had.is_empty() {
        pod_cidrs(&spec.get("podCIDRs"), errors);
    } else if spec.get("podCIDRs").value != had.value {
        errors.forbidden(&spec.get("podCIDRs"), "node updates may not change podCIDR except from \"\" to valid");
    }
    let provider = before.get("providerID");
    if !provider.is_empty() && spec.get("providerID").value != provider.value {
        errors.forbidden(&spec.get("providerID"), "node updates may not change providerID except from \"\" to valid");
    }
}

/// A node's networks: one, or one of each family.
fn pod_cidrs(all: &Field, errors: &mut Errors) {
    let items = all.items();
    for network in &items {
        errors.invalid_each(network, addresses::cidr(network.text(), Form::Any));
    }
    if items.len() > 1 && (items.len() > 2 || !addresses::both_families(items.iter().map(Field::text))) {
        errors.invalid(all, "may specify no more than one CIDR for each IP family");
    }
}

/// `podCIDR` and the first of `podCIDRs` are one; where they differ, the former counts, as older clients write it alone.
fn sync_pod_cidrs(node: &mut Value) {
    let (one, first) = (object::text(node, &["spec", "podCIDR"]).to_string(), object::list(node, &["spec", "podCIDRs"]).first().cloned());
    match first {
        Some(first) if one.is_empty() => object::map_mut(node, "spec").insert("podCIDR".into(), first),
        Some(first) if first == one.as_str() => return,
        None if one.is_empty() => return,
        _ => object::map_mut(node, "spec").insert("podCIDRs".into(), json!([one])),
    };
}

/// A new node takes no pods until it is ready.
fn taint_not_ready(node: &mut Value) {
    let taints = object::array_mut(object::map_mut(node, "spec"), "taints");
    if !taints
        .iter()
        .any(|taint| taint.get("key").is_some_and(|key| key == NOT_READY) && taint.get("effect").is_some_and(|effect| effect == "NoSchedule"))
    {
        taints.push(json!({"key": NOT_READY, "effect": "NoSchedule"}));
    }
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        name(object),
        node_status(object).into(),
        node_roles(object).into(),
        age(object, now),
        get(object, "/status/nodeInfo/kubeletVersion").into(),
        node_address(object, "InternalIP").into(),
        node_address(object, "ExternalIP").into(),
        get_or(object, "/status/nodeInfo/osImage", "<unknown>").into(),
        get_or(object, "/status/nodeInfo/kernelVersion", "<unknown>").into(),
        get_or(object, "/status/nodeInfo/containerRuntimeVersion", "<unknown>").into(),
    ]
}

fn node_status(node: &Value) -> String {
    let ready = list(node, "/status/conditions").iter().find(|condition| get(condition, "/type") == "Ready");
    let status = match ready.map(|condition| get(condition, "/status")) {
        None => "Unknown",
        Some("True") => "Ready",
        Some(_) => "NotReady",
    };
    let cordoned = node.pointer("/spec/unschedulable") == Some(&Value::Bool(true));
    if cordoned { format!("{status},SchedulingDisabled") } else { status.to_string() }
}

fn node_roles(node: &Value) -> String {
    const PREFIX: &str = "node-role.kubernetes.io/";
    let labels = node.pointer("/metadata/labels").and_then(Value::as_object);
    let mut roles: Vec<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| match key.strip_prefix(PREFIX) {
            Some(role) => Some(role).filter(|role| !role.is_empty()),
            None if key == "kubernetes.io/role" => value.as_str().filter(|role| !role.is_empty()),
            None => None,
        })
        .collect();
    roles.sort_unstable();
    roles.dedup();
    or_none(roles.join(","))
}

fn node_address<'a>(node: &'a Value, kind: &str) -> &'a str {
    let address = list(node, "/status/addresses").iter().find(|address| get(address, "/type") == kind);
    address.map_or("<none>", |address| get(address, "/address"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::check::{change, problems};

    fn node(networks: Value) -> Value {
        json!({"metadata": {"name": "n"}, "spec": {"podCIDRs": networks}})
    }

    #[test]
    fn nodes_have_one_network_of_each_family() {
        for (networks, expected) in [
            (json!(["192.168.0.0/24", "2000::/64"]), ""),
            (json!(["192.168.0.0/16"]), ""),
            (json!(["192.168.0.0/24", "192.168.1.0/24"]), "may specify no more than one CIDR for each IP family"),
            (json!(["192.168.0.0/24", "2000::/64", "2001::/64"]), "may specify no more than one CIDR for each IP family"),
            (json!(["192.168.0.0"]), "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"),
            (json!(["192.168.0.1/24"]), "must not have bits set beyond the prefix length"),
        ] {
            assert!(problems(validate, &node(networks.clone())).ends_with(expected), "{networks}");
            assert_eq!(problems(validate, &node(networks.clone())).is_empty(), expected.is_empty(), "{networks}");
            assert_eq!(change(validate, &node(json!(null)), &node(networks.clone())).is_empty(), expected.is_empty(), "{networks} come later");
        }
        let forbidden = "spec.podCIDRs: Forbidden: node updates may not change podCIDR except from \"\" to valid";
        assert_eq!(change(validate, &node(json!(["10.0.0.0/24"])), &node(json!(["10.0.0.0/24", "2000::/64"]))), forbidden);
        let twice = json!({"status": {"addresses": [{"type": "Hostname", "address": "a"}, {"type": "Hostname", "address": "a"}]}});
        assert_eq!(change(validate, &json!({}), &twice), "status.addresses[1]: Duplicate value: {\"Type\":\"Hostname\",\"Address\":\"a\"}");
    }

    #[test]
    fn the_old_member_for_the_network_follows_the_new_one() {
        for (one, all, expected) in [
            (json!(null), json!(["10.0.0.0/24", "2000::/64"]), json!(["10.0.0.0/24", ["10.0.0.0/24", "2000::/64"]])),
            (json!("10.0.0.0/24"), json!(null), json!(["10.0.0.0/24", ["10.0.0.0/24"]])),
            (json!("10.0.1.0/24"), json!(["10.0.0.0/24", "2000::/64"]), json!(["10.0.1.0/24", ["10.0.1.0/24"]])),
            (json!("10.0.0.0/24"), json!(["10.0.0.0/24", "2000::/64"]), json!(["10.0.0.0/24", ["10.0.0.0/24", "2000::/64"]])),
        ] {
            let mut node = json!({"spec": {"podCIDR": one, "podCIDRs": all}});
            sync_pod_cidrs(&mut node);
            assert_eq!(json!([node["spec"]["podCIDR"], node["spec"]["podCIDRs"]]), expected);
        }
    }

    #[test]
    fn new_nodes_are_not_ready_once() {
        let mut node = json!({"metadata": {"name": "n"}});
        taint_not_ready(&mut node);
        taint_not_ready(&mut node);
        assert_eq!(node["spec"]["taints"], json!([{"key": NOT_READY, "effect": "NoSchedule"}]));
    }
}
