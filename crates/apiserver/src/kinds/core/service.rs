//! Services. Their addresses and ports are allotted by the registry.

use crate::defaults::{each, is_text, made, set};
use crate::kind::Kind;
use crate::kind::SelectableField;
use crate::object;
use crate::table::text::{get, get_or, integer, labels, list, or_none};
use crate::table::{AGE, NAME, age, name, text, wide};
use crate::validation::container::port_or_name;
use crate::validation::field::{Errors, Field};
use crate::validation::{meta, names};
use jiff::Timestamp;
use k8s_openapi::api::core;
use serde_json::{Map, Value, json};
use std::collections::HashSet;

pub fn kind() -> Kind {
    Kind::new("", "v1", "Service", "services", "io.k8s.api.core.v1.Service")
        .described_by::<core::v1::Service>()
        .short(&["svc"])
        .in_all()
        .status()
        .metadata_with_status()
        .connect("proxy", "ServiceProxyOptions")
        .name_rule(names::dns_1035_label)
        .defaults(defaults)
        .validate(validate)
        .prepare_create(|service| object::set(service, "status", json!({"loadBalancer": {}})))
        .prepare_update(prepare_update)
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
    if is_text(spec, "type", "LoadBalancer") {
        set(spec, "allocateLoadBalancerNodePorts", || true.into());
    }
}

/// A new or changed Service. Addresses and node ports are allotted afterwards.
fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let spec = new.get("spec");
    if old.is_some_and(|old| old.get("spec").value == spec.value) {
        return;
    }
    if let Some(old) = old {
        cluster_ip_update(&spec, &old.get("spec"), errors);
    }
    let headless = spec.get("clusterIP").text() == "None";
    let kind = spec.get("type");
    let ports = spec.get("ports");
    if ports.is_empty() && !headless && kind.text() != "ExternalName" {
        errors.required(&ports, "");
    }
    match kind.text() {
        "LoadBalancer" | "NodePort" if headless => {
            let field = Field { path: "spec.clusterIPs[0]".into(), value: spec.get("clusterIP").value };
            errors.invalid(&field, format!("may not be set to 'None' for {} services", kind.text()));
        }
        "ExternalName" => external_name(&spec, errors),
        _ => {}
    }
    service_ports(&ports, errors);
    meta::labels(&spec.get("selector"), errors);
    session_affinity(&spec, errors);
    addresses(&spec, errors);
    errors.one_of(&kind, &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]);
    if kind.text() == "ClusterIP" {
        for node_port in ports.items().iter().map(|port| port.get("nodePort")).filter(|port| port.number().is_some_and(|number| number != 0)) {
            errors.forbidden(&node_port, "may not be used when `type` is 'ClusterIP'");
        }
    }
    duplicate_ports(&ports, errors);
    load_balancer(&spec, errors);
    traffic_policies(&spec, errors);
}

fn external_name(spec: &Field, errors: &mut Errors) {
    for member in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        let field = spec.get(member);
        if !field.is_empty() {
            errors.forbidden(&field, "may not be set for ExternalName services");
        }
    }
    let name = spec.get("externalName");
    match name.text().strip_suffix('.').unwrap_or(name.text()) {
        "" => errors.required(&name, ""),
        text => errors.invalid_each(&name, names::dns_subdomain(text)),
    }
}

fn service_ports(ports: &Field, errors: &mut Errors) {
    let several = ports.items().len() > 1;
    let mut used = HashSet::new();
    for port in ports.items() {
        let name = port.get("name");
        if several && name.is_empty() {
            errors.required(&name, "");
        } else if !name.is_empty() {
            errors.invalid_each(&name, names::dns_label(name.text()));
            if !used.insert(name.text()) {
                errors.duplicate(&name, name.text());
            }
        }
        let number = port.get("port");
        for problem in names::port_number(number.number().unwrap_or_default()) {
            errors.invalid_value(&number, number.number().unwrap_or_default(), problem);
        }
        errors.one_of(&port.get("protocol"), &["SCTP", "TCP", "UDP"]);
        port_or_name(&port.get("targetPort"), errors);
        let protocol = port.get("appProtocol");
        if protocol.is_set() {
            errors.invalid_each(&protocol, names::qualified(protocol.text()));
        }
    }
}

fn duplicate_ports(ports: &Field, errors: &mut Errors) {
    let (mut node_ports, mut used) = (HashSet::new(), HashSet::new());
    for port in ports.items() {
        let node_port = port.get("nodePort");
        let number = node_port.number().unwrap_or_default();
        if number != 0 && !node_ports.insert((port.get("protocol").text(), number)) {
            errors.duplicate(&node_port, number);
        }
    }
    for port in ports.items() {
        let (protocol, number) = (port.get("protocol").text(), port.get("port").number().unwrap_or_default());
        if !used.insert((protocol, number)) {
            // Upstream prints its internal struct, whose members have Go's names.
            errors.duplicate(&port, json!({"Name": "", "Protocol": protocol, "AppProtocol": null, "Port": number, "TargetPort": 0, "NodePort": 0}));
        }
    }
}

fn session_affinity(spec: &Field, errors: &mut Errors) {
    let (affinity, config) = (spec.get("sessionAffinity"), spec.get("sessionAffinityConfig"));
    errors.one_of(&affinity, &["ClientIP", "None"]);
    match affinity.text() {
        "ClientIP" => {
            let seconds = config.get("clientIP").get("timeoutSeconds");
            match seconds.number() {
                None => errors.required(&config, "when session affinity type is ClientIP"),
                Some(1..=86400) => {}
                Some(_) => errors.invalid(&seconds, "must be greater than 0 and less than 86400"),
            }
        }
        "None" if config.is_set() => errors.forbidden(&config, "must not be set when session affinity is None"),
        _ => {}
    }
}

fn addresses(spec: &Field, errors: &mut Errors) {
    let (primary, all) = (spec.get("clusterIP"), spec.get("clusterIPs"));
    if !all.is_empty() && !primary.is_empty() && all.index(0).text() != primary.text() {
        errors.invalid(&all, "first value must match `clusterIP`");
    }
    let listed = all.items();
    let single = Field { path: "spec.clusterIPs[0]".into(), value: primary.value };
    let addresses = if listed.is_empty() { vec![single] } else { listed };
    for address in addresses.iter().filter(|address| !matches!(address.text(), "" | "None")) {
        errors.invalid_each(address, names::ip(address.text()));
    }
    errors.one_of_if_set(&spec.get("ipFamilyPolicy"), &["PreferDualStack", "RequireDualStack", "SingleStack"]);
    for family in spec.get("ipFamilies").items() {
        errors.one_of(&family, &["IPv4", "IPv6"]);
    }
    for external in spec.get("externalIPs").items() {
        errors.invalid_each(&external, names::ip(external.text()));
    }
}

fn load_balancer(spec: &Field, errors: &mut Errors) {
    let balanced = spec.get("type").text() == "LoadBalancer";
    let ranges = spec.get("loadBalancerSourceRanges");
    if !ranges.is_empty() && !balanced {
        let field = Field { path: "spec.LoadBalancerSourceRanges".into(), value: ranges.value };
        errors.forbidden(&field, "may only be used when `type` is 'LoadBalancer'");
    }
    for member in ["allocateLoadBalancerNodePorts", "loadBalancerClass"] {
        let field = spec.get(member);
        if field.is_set() && !balanced {
            errors.forbidden(&field, "may only be used when `type` is 'LoadBalancer'");
        }
    }
}

fn traffic_policies(spec: &Field, errors: &mut Errors) {
    let kind = spec.get("type").text();
    let external = spec.get("externalTrafficPolicy");
    let reachable = matches!(kind, "LoadBalancer" | "NodePort") || (kind == "ClusterIP" && !spec.get("externalIPs").is_empty());
    if reachable {
        errors.one_of(&external, &["Cluster", "Local"]);
    } else if !external.is_empty() {
        errors.invalid(&external, "may only be set for externally-accessible services");
    }
    let health = spec.get("healthCheckNodePort");
    let checked = kind == "LoadBalancer" && external.text() == "Local";
    if !checked && health.number().is_some_and(|port| port != 0) {
        errors.invalid(&health, "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'");
    }
    let internal = spec.get("internalTrafficPolicy");
    if kind != "ExternalName" {
        if !internal.is_set() {
            errors.required(&internal, "");
        } else {
            errors.one_of(&internal, &["Cluster", "Local"]);
        }
    }
    errors.one_of_if_set(&spec.get("trafficDistribution"), &["PreferClose", "PreferSameNode", "PreferSameZone"]);
}

/// Once set, the address stays as long as the Service has one.
fn cluster_ip_update(new: &Field, old: &Field, errors: &mut Errors) {
    let external = |spec: &Field| spec.get("type").text() == "ExternalName";
    if external(new) || external(old) {
        return;
    }
    let first = |spec: &Field| {
        let listed = spec.get("clusterIPs");
        if listed.is_empty() { spec.get("clusterIP").text().to_string() } else { listed.index(0).text().to_string() }
    };
    let (address, before) = (first(new), first(old));
    if before.is_empty() || address == before {
        return;
    }
    let field = new.get("clusterIPs").index(0);
    if address.is_empty() {
        errors.invalid_value(&field, new.get("clusterIPs").value.clone(), "primary clusterIP can not be unset");
    } else {
        errors.invalid_value(&field, json!([address]), "may not change once set");
    }
}

pub fn service_type(service: &Value) -> &str {
    match object::text(service, &["spec", "type"]) {
        "" => "ClusterIP",
        other => other,
    }
}

pub fn needs_cluster_ip(service: &Value) -> bool {
    service_type(service) != "ExternalName" && object::text(service, &["spec", "clusterIP"]) != "None"
}

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

/// `patchAllocatedValues` and `dropTypeDependentFields`: an update that leaves allocated values out keeps them; one that changes the type
/// drops those that no longer apply.
fn prepare_update(old: &Value, new: &mut Value) {
    let old_spec = old.get("spec").cloned().unwrap_or_default();
    if needs_cluster_ip(old) && needs_cluster_ip(new) {
        let spec = object::map_mut(new, "spec");
        for member in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            let empty = spec.get(member).is_none_or(|value| value.is_null() || value == "" || value == &json!([]));
            if let Some(value) = old_spec.get(member).filter(|_| empty) {
                spec.insert(member.into(), value.clone());
            }
        }
    }
    if needs_node_ports(old) && needs_node_ports(new) {
        let before = object::list(old, &["spec", "ports"]).to_vec();
        for port in object::array_mut(object::map_mut(new, "spec"), "ports") {
            let same = |other: &&Value| other.get("port") == port.get("port") && other.get("protocol") == port.get("protocol");
            let kept = before.iter().find(same).and_then(|port| port.get("nodePort")).cloned();
            if let (Some(kept), Some(port)) = (kept, port.as_object_mut())
                && port.get("nodePort").and_then(Value::as_u64).unwrap_or_default() == 0
            {
                port.insert("nodePort".into(), kept);
            }
        }
    }
    if needs_health_check_port(old) && needs_health_check_port(new) {
        let spec = object::map_mut(new, "spec");
        if let Some(port) = old_spec.get("healthCheckNodePort").filter(|_| spec.get("healthCheckNodePort").is_none()) {
            spec.insert("healthCheckNodePort".into(), port.clone());
        }
    }
    drop_type_dependent(old, new);
}

fn drop_type_dependent(old: &Value, new: &mut Value) {
    if needs_cluster_ip(old) && service_type(new) == "ExternalName" {
        let spec = object::map_mut(new, "spec");
        for member in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            spec.shift_remove(member);
        }
    }
    if needs_node_ports(old) && !needs_node_ports(new) {
        let before: HashSet<u64> = object::list(old, &["spec", "ports"]).iter().filter_map(|port| port.get("nodePort")?.as_u64()).collect();
        for port in object::array_mut(object::map_mut(new, "spec"), "ports") {
            let stale = port.get("nodePort").and_then(Value::as_u64).is_some_and(|port| before.contains(&port));
            if let Some(port) = port.as_object_mut().filter(|_| stale) {
                port.shift_remove("nodePort");
            }
        }
    }
    if needs_health_check_port(old) && !needs_health_check_port(new) {
        object::map_mut(new, "spec").shift_remove("healthCheckNodePort");
    }
    let is_balanced = |service: &Value| service_type(service) == "LoadBalancer";
    let is_accessible =
        |service: &Value| is_balanced(service) || service_type(service) == "NodePort" || !object::list(service, &["spec", "externalIPs"]).is_empty();
    for (member, applied, applies) in [
        ("allocateLoadBalancerNodePorts", is_balanced(old), is_balanced(new)),
        ("loadBalancerClass", is_balanced(old), is_balanced(new)),
        ("externalTrafficPolicy", is_accessible(old), is_accessible(new)),
    ] {
        let same = object::lookup(old, &["spec", member]) == object::lookup(new, &["spec", member]);
        if applied && !applies && same {
            object::map_mut(new, "spec").shift_remove(member);
        }
    }
    if is_balanced(old) && !is_balanced(new) {
        object::map_mut(new, "status").insert("loadBalancer".into(), json!({}));
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_update_keeps_what_it_leaves_out() {
        let old = json!({"spec": {"type": "NodePort", "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"],
            "ports": [{"port": 80, "protocol": "TCP", "nodePort": 30080}]}});
        let mut new = json!({"spec": {"type": "NodePort", "ports": [{"port": 80, "protocol": "TCP"}, {"port": 81, "protocol": "TCP"}]}});
        prepare_update(&old, &mut new);
        assert_eq!(new["spec"]["clusterIP"], "10.96.0.9");
        assert_eq!(new["spec"]["ports"][0]["nodePort"], 30080);
        assert!(new["spec"]["ports"][1].get("nodePort").is_none());
    }

    #[test]
    fn a_change_of_type_drops_what_no_longer_applies() {
        let old = json!({"spec": {"type": "NodePort", "clusterIP": "10.96.0.9", "ports": [{"port": 80, "nodePort": 30080}]}});
        let mut new = old.clone();
        new["spec"]["type"] = "ClusterIP".into();
        prepare_update(&old, &mut new);
        assert!(new["spec"]["ports"][0].get("nodePort").is_none());
        assert_eq!(new["spec"]["clusterIP"], "10.96.0.9");
        new["spec"]["type"] = "ExternalName".into();
        prepare_update(&old, &mut new);
        assert!(new["spec"].get("clusterIP").is_none());
    }

    #[test]
    fn a_load_balancer_becomes_a_service_of_another_type() {
        let spec = json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": true, "loadBalancerClass": "a/b", "externalTrafficPolicy": "Cluster", "ports": []});
        let old = json!({"spec": spec, "status": {"loadBalancer": {"ingress": [{"ip": "10.241.0.1"}]}}});
        let mut new = old.clone();
        new["spec"]["type"] = "NodePort".into();
        prepare_update(&old, &mut new);
        assert_eq!(new["spec"], json!({"type": "NodePort", "externalTrafficPolicy": "Cluster", "ports": []}));
        assert_eq!(new["status"], json!({"loadBalancer": {}}));
        let mut new = old.clone();
        new["spec"]["type"] = "ClusterIP".into();
        // What was changed along with the type is left for validation to refuse.
        new["spec"]["loadBalancerClass"] = "a/c".into();
        prepare_update(&old, &mut new);
        assert_eq!(new["spec"], json!({"type": "ClusterIP", "loadBalancerClass": "a/c", "ports": []}));
    }
}
