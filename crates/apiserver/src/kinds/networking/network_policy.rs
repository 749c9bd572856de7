//! NetworkPolicies (pkg/apis/networking, pkg/registry/networking/networkpolicy).

#[cfg(test)]
mod tests;

use crate::defaults::{each, inner, made, set};
use crate::kind::Kind;
use crate::table::text::selector;
use crate::table::{AGE, NAME, age, name, text};
use crate::validation::addresses::{self, Form};
use crate::validation::field::{Errors, Field};
use crate::validation::{meta, names};
use ipnet::IpNet;
use jiff::Timestamp;
use k8s_openapi::api::networking;
use serde_json::{Map, Value, json};

const TYPES: [&str; 2] = ["Ingress", "Egress"];
/// The two lists of rules, and the peers in each.
const DIRECTIONS: [(&str, &str); 2] = [("ingress", "from"), ("egress", "to")];

pub fn kind() -> Kind {
    Kind::new("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", "io.k8s.api.networking.v1.NetworkPolicy")
        .described_by::<networking::v1::NetworkPolicy>()
        .short(&["netpol"])
        .counts_generations()
        .defaults(defaults)
        .validate(validate)
        .table([NAME, text("Pod-Selector"), AGE], cells)
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), selector(object, "/spec/podSelector").into(), age(object, now)]
}

fn defaults(object: &mut Map<String, Value>) {
    let Some(spec) = made(object, "spec") else { return };
    made(spec, "podSelector");
    for (direction, _) in DIRECTIONS {
        for rule in each(spec, direction) {
            each(rule, "ports").for_each(|port| set(port, "protocol", || "TCP".into()));
        }
    }
    let filled = |spec: &Map<String, Value>, member: &str| spec.get(member).and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    if !filled(spec, "policyTypes") {
        let types = if filled(spec, "egress") { json!(TYPES) } else { json!(["Ingress"]) };
        spec.insert("policyTypes".into(), types);
    }
    if let Some(selector) = inner(spec, "podSelector") {
        selector.retain(|_, value| !value.is_null());
    }
}

fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let spec = new.get("spec");
    if old.is_some_and(|old| old.get("spec").value == spec.value) {
        return;
    }
    let known = old.map(|old| networks(&old.get("spec"))).unwrap_or_default();
    meta::selector(&spec.get("podSelector"), errors);
    for (direction, peers) in DIRECTIONS {
        for rule in spec.get(direction).items() {
            rule.get("ports").items().iter().for_each(|port| check_port(port, errors));
            rule.get(peers).items().iter().for_each(|peer| check_peer(peer, &known, errors));
        }
    }
    let types = spec.get("policyTypes");
    let found = types.items();
    if found.len() > TYPES.len() {
        return errors.invalid(&types, "may not specify more than two policyTypes");
    }
    found.iter().filter(|kind| !TYPES.contains(&kind.text())).for_each(|kind| errors.not_supported(kind, &TYPES));
}

/// The networks that a policy names: they may stay as they are written.
fn networks(spec: &Field) -> Vec<String> {
    let rules = DIRECTIONS.iter().flat_map(|(direction, peers)| spec.get(direction).items().into_iter().flat_map(|rule| rule.get(peers).items()));
    let blocks = rules.map(|peer| peer.get("ipBlock"));
    blocks.flat_map(|block| std::iter::once(block.get("cidr")).chain(block.get("except").items())).map(|cidr| cidr.text().to_string()).collect()
}

fn check_port(entry: &Field, errors: &mut Errors) {
    let (protocol, port, end) = (entry.get("protocol"), entry.get("port"), entry.get("endPort"));
    if protocol.is_set() && !["TCP", "UDP", "SCTP"].contains(&protocol.text()) {
        errors.not_supported(&protocol, &["TCP", "UDP", "SCTP"]);
    }
    match (port.number(), end.number()) {
        (Some(first), last) => {
            errors.invalid_each(&port, names::port_number(first));
            if let Some(last) = last {
                if last < first {
                    errors.invalid_value(&end, first, "must be greater than or equal to `port`");
                }
                errors.invalid_each(&end, names::port_number(last));
            }
        }
        (None, last) if port.is_set() => {
            if last.is_some() {
                errors.invalid(&end, "may not be specified when `port` is non-numeric");
            }
            errors.invalid_each(&port, names::port_name(port.text()));
        }
        (None, Some(_)) => errors.invalid(&end, "may not be specified when `port` is not specified"),
        (None, None) => {}
    }
}

fn check_peer(peer: &Field, known: &[String], errors: &mut Errors) {
    let (pods, namespaces, block) = (peer.get("podSelector"), peer.get("namespaceSelector"), peer.get("ipBlock"));
    for selector in [&pods, &namespaces].into_iter().filter(|selector| selector.is_set()) {
        meta::selector(selector, errors);
    }
    if block.is_set() {
        check_block(&block, known, errors);
    }
    match (pods.is_set() || namespaces.is_set(), block.is_set()) {
        (false, false) => errors.required(peer, "must specify a peer"),
        (true, true) => errors.forbidden(peer, "may not specify both ipBlock and another peer"),
        _ => {}
    }
}

fn check_block(block: &Field, known: &[String], errors: &mut Errors) {
    let cidr = block.get("cidr");
    if cidr.is_empty() {
        return errors.required(&cidr, "");
    }
    let check = |field: &Field, errors: &mut Errors| {
        if !known.iter().any(|known| known == field.text()) {
            errors.invalid_each(field, addresses::cidr(field.text(), Form::Any));
        }
        field.text().parse::<IpNet>().ok()
    };
    let Some(network) = check(&cidr, errors) else { return };
    for except in block.get("except").items() {
        let Some(hole) = check(&except, errors) else { continue };
        if !network.contains(&hole.network()) || network.prefix_len() >= hole.prefix_len() {
            errors.invalid(&except, "must be a strict subset of `cidr`");
        }
    }
}
