//! Nodes. They register with their status, and take no pods until they are ready (plugin/pkg/admission/nodetaint).

use crate::defaults::{inner, set};
use crate::kind::Kind;
use crate::kind::SelectableField;
use crate::object;
use crate::table::text::{get, get_or, list, or_none};
use crate::table::{AGE, NAME, age, name, text, wide};
use crate::validation::field::{Errors, Field};
use crate::validation::scheduling;
use jiff::Timestamp;
use k8s_openapi::api::core;
use serde_json::{Map, Value, json};

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
        for range in spec.get("podCIDRs").items() {
            let valid = range.text().parse::<ipnet::IpNet>().is_ok();
            if !valid {
                errors.invalid(&range, "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)");
            }
        }
    }
    let Some(before) = before else { return };
    let had = before.get("podCIDRs");
    if !had.is_empty() && spec.get("podCIDRs").value != had.value {
        errors.forbidden(&spec.get("podCIDRs"), "node updates may not change podCIDR except from \"\" to valid");
    }
    let provider = before.get("providerID");
    if !provider.is_empty() && spec.get("providerID").value != provider.value {
        errors.forbidden(&spec.get("providerID"), "node updates may not change providerID except from \"\" to valid");
    }
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

    #[test]
    fn new_nodes_are_not_ready_once() {
        let mut node = json!({"metadata": {"name": "n"}});
        taint_not_ready(&mut node);
        taint_not_ready(&mut node);
        assert_eq!(node["spec"]["taints"], json!([{"key": NOT_READY, "effect": "NoSchedule"}]));
    }
}
