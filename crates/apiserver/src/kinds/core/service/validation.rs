//! Checks of Services (pkg/apis/core/validation: `validateService` and what it calls). Addresses and ports have been allotted before.

use super::{is_externally_accessible, needs_health_check_port};
use crate::validation::addresses::{self, Form};
use crate::validation::container::port_or_name;
use crate::validation::field::{Errors, Field};
use crate::validation::{meta, names};
use serde_json::{Value, json};
use std::collections::HashSet;

const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
const MODE: &str = "service.kubernetes.io/topology-mode";
const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
const BALANCED_ONLY: &str = "may only be used when `type` is 'LoadBalancer'";
const ONCE: &str = "may not change once set";

/// A new or changed Service.
pub fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let spec = new.get("spec");
    if let Some(old) = old {
        update(new, old, errors);
    }
    let annotations = new.get("metadata").get("annotations");
    let (hints, mode) = (annotations.key(HINTS), annotations.key(MODE));
    if hints.is_set() && mode.is_set() && hints.text() != mode.text() {
        errors.invalid(&mode, format!("must match annotations[{HINTS}] when both are specified"));
    }
    let kind = spec.get("type");
    let ports = spec.get("ports");
    if ports.is_empty() && !is_headless(&spec) && kind.text() != "ExternalName" {
        errors.required(&ports, "");
    }
    match kind.text() {
        "LoadBalancer" | "NodePort" if is_headless(&spec) => {
            errors.invalid(&spec.get("clusterIPs").index(0), format!("may not be set to 'None' for {} services", kind.text()));
        }
        "ExternalName" => external_name(&spec, errors),
        _ => {}
    }
    service_ports(&ports, errors);
    meta::labels(&spec.get("selector"), errors);
    session_affinity(&spec, errors);
    cluster_ips(new, old, errors);
    external_ips(&spec, old, errors);
    errors.one_of(&kind, &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]);
    if kind.text() == "ClusterIP" {
        for node_port in ports.items().iter().map(|port| port.get("nodePort")).filter(|port| port.number().is_some_and(|number| number != 0)) {
            errors.forbidden(&node_port, "may not be used when `type` is 'ClusterIP'");
        }
    }
    duplicate_ports(&ports, errors);
    source_ranges(new, old, errors);
    load_balancer(&spec, errors);
    traffic_policies(new, errors);
}

fn is_headless(spec: &Field) -> bool {
    let ips = spec.get("clusterIPs").items();
    matches!(ips.as_slice(), [only] if only.text() == "None")
}

fn is_external(spec: &Field) -> bool {
    spec.get("type").text() == "ExternalName"
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
        text => names::dns_subdomain(text).into_iter().for_each(|problem| errors.invalid_value(&name, text, problem)),
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
    const WHEN: &str = "when session affinity type is ClientIP";
    let (affinity, config) = (spec.get("sessionAffinity"), spec.get("sessionAffinityConfig"));
    errors.one_of(&affinity, &["ClientIP", "None"]);
    let client = config.get("clientIP");
    let seconds = client.get("timeoutSeconds");
    match affinity.text() {
        "ClientIP" => match [&config, &client, &seconds].into_iter().find(|field| !field.is_set()) {
            Some(absent) => errors.required(absent, WHEN),
            None if matches!(seconds.number(), Some(1..=86400)) => {}
            None => errors.invalid(&seconds, "must be greater than 0 and less than 86400"),
        },
        "None" if config.is_set() => errors.forbidden(&config, "must not be set when session affinity is None"),
        _ => {}
    }
}

/// What is wrong with `clusterIP`, `clusterIPs`, `ipFamilies` and `ipFamilyPolicy`, before and after allocation
/// (`ValidateServiceClusterIPsRelatedFields`).
pub fn cluster_ips(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let spec = new.get("spec");
    if is_external(&spec) {
        return;
    }
    let (primary, all, families) = (spec.get("clusterIP"), spec.get("clusterIPs"), spec.get("ipFamilies"));
    match (primary.is_empty(), all.is_empty()) {
        (false, true) => errors.required(&all, ""),
        (false, false) if all.index(0).text() != primary.text() => errors.invalid(&all, "first value must match `clusterIP`"),
        (true, false) => errors.invalid(&all, "must be empty when `clusterIP` is not specified"),
        _ => {}
    }
    let mut seen = HashSet::new();
    for family in families.items() {
        if !matches!(family.text(), "IPv4" | "IPv6") {
            errors.not_supported(&family, &["IPv4", "IPv6"]);
        }
        if !seen.insert(family.text()) {
            errors.duplicate(&family, family.text());
        }
    }
    let policy = spec.get("ipFamilyPolicy");
    if policy.is_set() && !matches!(policy.text(), "PreferDualStack" | "RequireDualStack" | "SingleStack") {
        errors.not_supported(&policy, &["PreferDualStack", "RequireDualStack", "SingleStack"]);
    }
    if addresses_are_malformed(&all, old, errors) {
        return;
    }
    let items = all.items();
    let is_v6 = |address: &Field| address.text().contains(':');
    if items.len() > 1 && !addresses::both_families(items.iter().map(Field::text)) {
        errors.invalid(&all, "may specify no more than one IP for each IP family");
    }
    if is_headless(&spec) {
        return;
    }
    for (index, (address, family)) in items.iter().zip(families.items()).enumerate() {
        match (family.text(), is_v6(address)) {
            ("IPv4", true) => errors.invalid(address, format!("expected an IPv4 value as indicated by `ipFamilies[{index}]`")),
            ("IPv6", false) => errors.invalid(address, format!("expected an IPv6 value as indicated by `ipFamilies[{index}]`")),
            _ => {}
        }
    }
}

fn addresses_are_malformed(all: &Field, old: Option<&Field>, errors: &mut Errors) -> bool {
    let items = all.items();
    let existing = texts(old, "clusterIPs");
    let mut malformed = false;
    for (index, address) in items.iter().enumerate() {
        if index == 0 && address.text() == "None" {
            if items.len() > 1 {
                malformed = true;
                errors.invalid(all, "'None' must be the first and only value");
            }
            continue;
        }
        let problems = legacy_ip(address, &existing);
        malformed |= !problems.is_empty();
        errors.invalid_each(address, problems);
    }
    if items.len() > 2 {
        errors.invalid(all, "may only hold up to 2 values");
    }
    malformed
}

/// The texts of a list of the old specification.
fn texts<'a>(old: Option<&Field<'a>>, list: &str) -> HashSet<&'a str> {
    let list = old.map(|old| old.get("spec").get(list).value);
    list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

/// What is wrong with an address, unless the old list has it too.
fn legacy_ip(address: &Field, existing: &HashSet<&str>) -> Vec<String> {
    if existing.contains(address.text()) { Vec::new() } else { addresses::ip(address.text(), Form::Any) }
}

fn external_ips(spec: &Field, old: Option<&Field>, errors: &mut Errors) {
    let existing = texts(old, "externalIPs");
    for external in spec.get("externalIPs").items() {
        let problems = legacy_ip(&external, &existing);
        let problems = if problems.is_empty() { addresses::endpoint_ip(external.text()) } else { problems };
        errors.invalid_each(&external, problems);
    }
}

fn source_ranges(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let balanced = new.get("spec").get("type").text() == "LoadBalancer";
    let ranges = new.get("spec").get("loadBalancerSourceRanges");
    if !ranges.is_empty() {
        let field = Field { path: "spec.LoadBalancerSourceRanges".into(), value: ranges.value };
        if !balanced {
            errors.forbidden(&field, BALANCED_ONLY);
        }
        let existing: HashSet<&str> = texts(old, "loadBalancerSourceRanges").into_iter().map(str::trim).collect();
        for range in field.items() {
            let text = range.text().trim();
            let problems = if existing.contains(text) { Vec::new() } else { addresses::cidr(text, Form::Any) };
            problems.into_iter().for_each(|problem| errors.invalid_value(&range, text, problem));
        }
        return;
    }
    let annotation = |object: &Field| object.get("metadata").get("annotations").key(SOURCE_RANGES).value.as_str().map(str::to_string);
    let Some(text) = annotation(new) else { return };
    let field = new.get("metadata").get("annotations").key(SOURCE_RANGES);
    if !balanced {
        errors.forbidden(&field, BALANCED_ONLY);
    }
    if old.and_then(annotation).as_ref() == Some(&text) || text.trim().is_empty() {
        return;
    }
    for part in text.split(',').map(str::trim) {
        addresses::cidr(part, Form::Any).into_iter().for_each(|problem| errors.invalid_value(&field, part, problem));
    }
}

fn load_balancer(spec: &Field, errors: &mut Errors) {
    let balanced = spec.get("type").text() == "LoadBalancer";
    let allocates = spec.get("allocateLoadBalancerNodePorts");
    if allocates.is_set() && !balanced {
        errors.forbidden(&allocates, BALANCED_ONLY);
    }
    if !allocates.is_set() && balanced {
        errors.required(&Field { path: "allocateLoadBalancerNodePorts".into(), value: &Value::Null }, "");
    }
    class(spec, errors);
}

fn class(spec: &Field, errors: &mut Errors) {
    let class = spec.get("loadBalancerClass");
    if class.is_set() && spec.get("type").text() == "LoadBalancer" {
        errors.invalid_each(&class, names::qualified(class.text()));
    } else if class.is_set() {
        errors.forbidden(&class, BALANCED_ONLY);
    }
}

fn traffic_policies(service: &Field, errors: &mut Errors) {
    let spec = service.get("spec");
    let external = spec.get("externalTrafficPolicy");
    if is_externally_accessible(service.value) {
        errors.one_of(&external, &["Cluster", "Local"]);
    } else if !external.is_empty() {
        errors.invalid(&external, "may only be set for externally-accessible services");
    }
    let health = spec.get("healthCheckNodePort");
    match (needs_health_check_port(service.value), health.number().unwrap_or_default()) {
        (true, 0) => errors.required(&health, ""),
        (true, port) => errors.invalid_each(&health, names::port_number(port)),
        (false, 0) => {}
        (false, _) => errors.invalid(&health, "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"),
    }
    let internal = spec.get("internalTrafficPolicy");
    if !internal.is_set() && matches!(spec.get("type").text(), "NodePort" | "LoadBalancer" | "ClusterIP") {
        errors.required(&internal, "");
    }
    if internal.is_set() && !matches!(internal.text(), "Cluster" | "Local") {
        errors.not_supported(&internal, &["Cluster", "Local"]);
    }
    let distribution = spec.get("trafficDistribution");
    if distribution.is_set() && !matches!(distribution.text(), "PreferClose" | "PreferSameZone" | "PreferSameNode") {
        errors.not_supported(&distribution, &["PreferClose", "PreferSameZone", "PreferSameNode"]);
    }
}

/// What may not change.
fn update(new: &Field, old: &Field, errors: &mut Errors) {
    let (spec, before) = (new.get("spec"), old.get("spec"));
    if !is_external(&spec) && !is_external(&before) {
        cluster_ips_update(&spec, &before, errors);
        families_update(&spec, &before, errors);
    }
    let balanced = |spec: &Field| spec.get("type").text() == "LoadBalancer";
    let now = spec.get("loadBalancerClass");
    if balanced(&spec) && balanced(&before) && now.value != before.get("loadBalancerClass").value {
        errors.invalid_value(&now, shown(&now), ONCE);
    }
    class(&spec, errors);
    let health = spec.get("healthCheckNodePort");
    let needed = needs_health_check_port(new.value) && needs_health_check_port(old.value);
    if needed && health.number().unwrap_or_default() != before.get("healthCheckNodePort").number().unwrap_or_default() {
        errors.forbidden(&health, "field is immutable");
    }
}

/// A pointer's value as upstream prints it.
fn shown(field: &Field) -> Value {
    if field.is_set() { field.value.clone() } else { "null".into() }
}

/// The second address may come and go, the first one stays (`validateUpgradeDowngradeClusterIPs`).
fn cluster_ips_update(spec: &Field, before: &Field, errors: &mut Errors) {
    if is_headless(spec) && is_headless(before) {
        return;
    }
    let all = spec.get("clusterIPs");
    let (new, old) = (all.items(), before.get("clusterIPs").items());
    let at = |index: usize| all.index(index);
    if new.len() == old.len() {
        for (index, (new, old)) in new.iter().zip(&old).enumerate() {
            if new.value != old.value {
                errors.invalid_value(&at(index), all.value.clone(), ONCE);
            }
        }
        return;
    }
    if new.is_empty() {
        errors.invalid_value(&at(0), all.value.clone(), "primary clusterIP can not be unset");
    }
    if let (Some(new), Some(old)) = (new.first(), old.first())
        && new.value != old.value
    {
        errors.invalid_value(&at(0), all.value.clone(), ONCE);
    }
    let policy = spec.get("ipFamilyPolicy");
    if new.len() == 1 && old.len() > 1 && policy.text() != "SingleStack" {
        errors.invalid_value(&policy, shown(&policy), "must be set to 'SingleStack' when releasing the secondary clusterIP");
    }
}

/// The second family may come and go, the first one stays (`validateUpgradeDowngradeIPFamilies`).
fn families_update(spec: &Field, before: &Field, errors: &mut Errors) {
    if is_headless(spec) || is_headless(before) {
        return;
    }
    let all = spec.get("ipFamilies");
    let (new, old) = (all.items(), before.get("ipFamilies").items());
    let first = all.index(0);
    if new.len() == old.len() {
        for _ in new.iter().zip(&old).filter(|(new, old)| new.value != old.value) {
            errors.invalid_value(&first, all.value.clone(), ONCE);
        }
        return;
    }
    if new.len() < old.len() && spec.get("clusterIPs").is_empty() {
        errors.invalid_value(&first, all.value.clone(), "primary ipFamily can not be unset");
    }
    if let (Some(new), Some(old)) = (new.first(), old.first())
        && new.value != old.value
    {
        // Upstream shows the addresses here.
        errors.invalid_value(&first, spec.get("clusterIPs").value.clone(), ONCE);
    }
    let policy = spec.get("ipFamilyPolicy");
    if new.len() == 1 && old.len() > 1 && policy.text() != "SingleStack" {
        errors.invalid_value(&policy, shown(&policy), "must be set to 'SingleStack' when releasing the secondary ipFamily");
    }
}

/// A changed status (`ValidateLoadBalancerStatus`).
pub fn status(new: &Field, old: &Field, errors: &mut Errors) {
    let balanced = new.get("spec").get("type").text() == "LoadBalancer";
    if !balanced && !ingress(new).is_empty() {
        return errors.forbidden(&ingress(new), "may only be used when `spec.type` is 'LoadBalancer'");
    }
    load_balancer_status(&ingress(new), &ingress(old), errors);
}

fn ingress<'a>(service: &Field<'a>) -> Field<'a> {
    service.get("status").get("loadBalancer").get("ingress")
}

fn load_balancer_status(new: &Field, old: &Field, errors: &mut Errors) {
    let existing: HashSet<&str> = old.items().iter().map(|entry| entry.get("ip").text()).collect();
    for entry in new.items() {
        let (ip, mode, hostname) = (entry.get("ip"), entry.get("ipMode"), entry.get("hostname"));
        if !ip.is_empty() && !existing.contains(ip.text()) {
            errors.invalid_each(&ip, addresses::ip(ip.text(), Form::Any));
        }
        match (ip.is_empty(), mode.is_set()) {
            (false, false) => errors.required(&mode, "must be specified when `ip` is set"),
            (true, true) => errors.forbidden(&mode, "may not be specified when `ip` is not set"),
            (false, true) if !matches!(mode.text(), "Proxy" | "VIP") => errors.not_supported(&mode, &["Proxy", "VIP"]),
            _ => {}
        }
        if !hostname.is_empty() {
            errors.invalid_each(&hostname, names::dns_subdomain(hostname.text()));
            if hostname.text().parse::<std::net::IpAddr>().is_ok() {
                errors.invalid(&hostname, "must be a DNS name, not an IP address");
            }
        }
    }
}
