//! Services. Their addresses and ports are allotted by the registry (pkg/registry/core/service).

pub mod families;
#[cfg(test)]
mod tests;
pub mod update;
mod validation;
mod warnings;

use crate::defaults::{each, inner, is_text, made, set};
use crate::kind::Kind;
use crate::kind::SelectableField;
use crate::object;
use crate::table::text::{get, get_or, integer, labels, list, or_none};
use crate::table::{AGE, NAME, age, name, text, wide};
use crate::validation::names;
use jiff::Timestamp;
use k8s_openapi::api::core;
use serde_json::{Map, Value, json};

pub fn kind() -> Kind {
    Kind::new("", "v1", "Service", "services", "io.k8s.api.core.v1.Service")
        .described_by::<core::v1::Service>()
        .short(&["svc"])
        .in_all()
        .status()
        .metadata_with_status()
        .connect("proxy", "ServiceProxyOptions")
        .create_on_update()
        .name_rule(names::dns_label)
        .defaults(defaults)
        .validate(validation::validate)
        .validate_status(validation::status)
        .warnings(warnings::warnings)
        .prepare_create(|service| object::set(service, "status", json!({"loadBalancer": {}})))
        .prepare_update(update::drop_type_dependent)
        .selectable(SelectableField::new("spec.clusterIP"))
        .selectable(SelectableField::new("spec.type"))
        .table([NAME, text("Type"), text("Cluster-IP"), text("External-IP"), text("Port(s)"), AGE, wide(text("Selector"))], cells)
}

fn defaults(object: &mut Map<String, Value>) {
    let Some(spec) = made(object, "spec") else { return };
    set(spec, "sessionAffinity", || "None".into());
    if is_text(spec, "sessionAffinity", "None") {
        spec.shift_remove("sessionAffinityConfig");
    }
    if is_text(spec, "sessionAffinity", "ClientIP")
        && let Some(client) = made(spec, "sessionAffinityConfig").and_then(|config| made(config, "clientIP"))
    {
        set(client, "timeoutSeconds", || 10800.into());
    }
    set(spec, "type", || "ClusterIP".into());
    for port in each(spec, "ports") {
        set(port, "protocol", || "TCP".into());
        let number = port.get("port").cloned();
        if let Some(number) = number
            && port.get("targetPort").is_none_or(|target| target == 0 || target == "")
        {
            port.insert("targetPort".into(), number);
        }
    }
    let external = spec.get("externalIPs").and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    if is_text(spec, "type", "NodePort") || is_text(spec, "type", "LoadBalancer") || (external && is_text(spec, "type", "ClusterIP")) {
        set(spec, "externalTrafficPolicy", || "Cluster".into());
    }
    if !is_text(spec, "type", "ExternalName") {
        set(spec, "internalTrafficPolicy", || "Cluster".into());
    }
    if !is_text(spec, "type", "LoadBalancer") {
        return;
    }
    set(spec, "allocateLoadBalancerNodePorts", || true.into());
    let Some(status) = inner(object, "status").and_then(|status| inner(status, "loadBalancer")) else { return };
    for ingress in each(status, "ingress").filter(|ingress| ingress.get("ip").is_some_and(|ip| ip != "")) {
        set(ingress, "ipMode", || "VIP".into());
    }
}

pub fn service_type(service: &Value) -> &str {
    match object::text(service, &["spec", "type"]) {
        "" => "ClusterIP",
        other => other,
    }
}

/// Whether `clusterIP` means something: "None" counts as a value.
pub fn needs_cluster_ip(service: &Value) -> bool {
    service_type(service) != "ExternalName"
}

/// Whether traffic from outside the cluster may come to it.
pub fn is_externally_accessible(service: &Value) -> bool {
    match service_type(service) {
        "LoadBalancer" | "NodePort" => true,
        "ClusterIP" => !object::list(service, &["spec", "externalIPs"]).is_empty(),
        _ => false,
    }
}

/// Whether each of its ports gets a node port. Others of type LoadBalancer may still ask for some.
pub fn needs_node_ports(service: &Value) -> bool {
    match service_type(service) {
        "NodePort" => true,
        "LoadBalancer" => object::lookup(service, &["spec", "allocateLoadBalancerNodePorts"]).and_then(Value::as_bool).unwrap_or(true),
        _ => false,
    }
}

pub fn needs_health_check_port(service: &Value) -> bool {
    service_type(service) == "LoadBalancer" && object::text(service, &["spec", "externalTrafficPolicy"]) == "Local"
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let ports: Vec<String> = list(object, "/spec/ports").iter().map(service_port).collect();
    vec![
        name(object),
        get(object, "/spec/type").into(),
        get_or(object, "/spec/clusterIPs/0", get_or(object, "/spec/clusterIP", "<none>")).into(),
        external_ip(object).into(),
        or_none(ports.join(",")).into(),
        age(object, now),
        labels(object, "/spec/selector").into(),
    ]
}

fn service_port(port: &Value) -> String {
    let (number, node_port, protocol) = (integer(port, "/port"), integer(port, "/nodePort"), get(port, "/protocol"));
    if node_port > 0 { format!("{number}:{node_port}/{protocol}") } else { format!("{number}/{protocol}") }
}

fn external_ip(service: &Value) -> String {
    let texts = |pointer: &str| list(service, pointer).iter().filter_map(Value::as_str).map(str::to_string).collect::<Vec<_>>();
    let mut external = texts("/spec/externalIPs");
    match get(service, "/spec/type") {
        "ExternalName" => get(service, "/spec/externalName").to_string(),
        "LoadBalancer" => {
            let ingress = list(service, "/status/loadBalancer/ingress").iter();
            let mut found: Vec<String> = ingress.map(|entry| get_or(entry, "/ip", get(entry, "/hostname")).to_string()).collect();
            found.append(&mut external);
            if found.is_empty() { "<pending>".into() } else { found.join(",") }
        }
        _ => or_none(external.join(",")),
    }
}
