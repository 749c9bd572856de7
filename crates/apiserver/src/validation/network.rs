//! Services, Endpoints and EndpointSlices (pkg/apis/core/validation, pkg/apis/discovery/validation).

use super::container::port_or_name;
use super::field::{Errors, Field};
use super::{meta, names};
use serde_json::json;
use std::collections::HashSet;

/// A new or changed Service. Addresses and node ports are allotted afterwards.
pub fn service(new: &Field, old: Option<&Field>, errors: &mut Errors) {
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

/// An Endpoints object.
pub fn endpoints(new: &Field, errors: &mut Errors) {
    for subset in new.get("subsets").items() {
        let (ready, not_ready) = (subset.get("addresses"), subset.get("notReadyAddresses"));
        if ready.is_empty() && not_ready.is_empty() {
            errors.required(&subset, "must specify `addresses` or `notReadyAddresses`");
        }
        for address in ready.items().iter().chain(&not_ready.items()) {
            errors.invalid_each(&address.get("ip"), names::ip(address.get("ip").text()));
        }
        let several = subset.get("ports").items().len() > 1;
        for port in subset.get("ports").items() {
            let name = port.get("name");
            if several && name.is_empty() {
                errors.required(&name, "");
            } else if !name.is_empty() {
                errors.invalid_each(&name, names::dns_label(name.text()));
            }
            errors.invalid_each(&port.get("port"), names::port_number(port.get("port").number().unwrap_or_default()));
            errors.one_of(&port.get("protocol"), &["SCTP", "TCP", "UDP"]);
        }
    }
}

/// A new or changed EndpointSlice.
pub fn endpoint_slice(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    const MOST_ENDPOINTS: usize = 1000;
    const MOST_PORTS: usize = 20000;
    let kind = new.get("addressType");
    if let Some(old) = old {
        errors.immutable(&kind, &old.get("addressType"));
    }
    errors.one_of(&kind, &["FQDN", "IPv4", "IPv6"]);
    let endpoints = new.get("endpoints").items();
    if endpoints.len() > MOST_ENDPOINTS {
        return errors.too_many(&new.get("endpoints"), endpoints.len(), MOST_ENDPOINTS);
    }
    for endpoint in &endpoints {
        let addresses = endpoint.get("addresses");
        if addresses.is_empty() {
            errors.required(&addresses, "must contain at least 1 address");
        }
        for address in addresses.items() {
            let problems = if kind.text() == "FQDN" { names::dns_subdomain(address.text()) } else { names::ip(address.text()) };
            errors.invalid_each(&address, problems);
        }
    }
    let ports = new.get("ports").items();
    if ports.len() > MOST_PORTS {
        return errors.too_many(&new.get("ports"), ports.len(), MOST_PORTS);
    }
    let mut used = HashSet::new();
    for port in &ports {
        let name = port.get("name");
        if !name.is_empty() {
            errors.invalid_each(&name, names::dns_label(name.text()));
        }
        if !used.insert(name.text()) {
            errors.duplicate(&name, name.text());
        }
        errors.one_of(&port.get("protocol"), &["SCTP", "TCP", "UDP"]);
    }
}
