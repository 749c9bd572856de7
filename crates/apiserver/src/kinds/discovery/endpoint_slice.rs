//! EndpointSlices.

use crate::defaults::{each, set};
use crate::kind::Kind;
use crate::object;
use crate::table::text::{first_three, get, get_or, list};
use crate::table::{AGE, NAME, age, name, text};
use crate::validation::addresses::{self, Form};
use crate::validation::field::{Errors, Field};
use crate::validation::names;
use jiff::Timestamp;
use k8s_openapi::api::discovery;
use serde_json::{Map, Value};
use std::collections::HashSet;

const MOST_ENDPOINTS: usize = 1000;
const MOST_PORTS: usize = 20000;
const MOST_ADDRESSES: usize = 100;
const MOST_HINTS: usize = 8;

pub fn kind() -> Kind {
    Kind::new("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", "io.k8s.api.discovery.v1.EndpointSlice")
        .described_by::<discovery::v1::EndpointSlice>()
        .counts_generations_by(content_changed)
        .defaults(defaults)
        .validate(validate)
        .warnings(warnings)
        .prepare_create(drop_topology)
        .prepare_update(|old, new| {
            if old.get("endpoints") != new.get("endpoints") {
                drop_topology(new);
            }
        })
        .table([NAME, text("AddressType"), text("Ports"), text("Endpoints"), AGE], cells)
}

fn defaults(object: &mut Map<String, Value>) {
    for port in each(object, "ports") {
        if port.get("name").is_none_or(Value::is_null) {
            port.insert("name".into(), "".into());
        }
        set(port, "protocol", || "TCP".into());
    }
}

/// A new or changed EndpointSlice (`ValidateEndpointSlice`). Endpoints that do not change are not checked again.
fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let kind = new.get("addressType");
    errors.one_of(&kind, &["FQDN", "IPv4", "IPv6"]);
    check_ports(&new.get("ports"), errors);
    let endpoints = new.get("endpoints");
    if old.is_none_or(|old| old.get("endpoints").value != endpoints.value) {
        check_endpoints(&endpoints, kind.text(), errors);
    }
    if let Some(old) = old {
        errors.immutable(&kind, &old.get("addressType"));
    }
}

fn check_endpoints(endpoints: &Field, kind: &str, errors: &mut Errors) {
    let items = endpoints.items();
    if items.len() > MOST_ENDPOINTS {
        return errors.too_many(endpoints, items.len(), MOST_ENDPOINTS);
    }
    for endpoint in &items {
        let all = endpoint.get("addresses");
        match all.items().len() {
            0 => errors.required(&all, "must contain at least 1 address"),
            count if count > MOST_ADDRESSES => errors.too_many(&all, count, MOST_ADDRESSES),
            _ => {}
        }
        all.items().iter().for_each(|address| check_address(address, &all, kind, errors));
        let (node, hostname) = (endpoint.get("nodeName"), endpoint.get("hostname"));
        if node.is_set() {
            errors.invalid_each(&node, names::dns_subdomain(node.text()));
        }
        if hostname.is_set() {
            errors.invalid_each(&hostname, names::dns_label(hostname.text()));
        }
        check_hints(&endpoint.get("hints"), errors);
    }
}

fn check_address(address: &Field, all: &Field, kind: &str, errors: &mut Errors) {
    let text = address.text();
    let form = match kind {
        "IPv4" => Form::Any,
        "IPv6" => Form::Canonical,
        "FQDN" => return check_domain(address, errors),
        _ => return,
    };
    let problems = addresses::ip(text, form);
    if !problems.is_empty() {
        return errors.invalid_each(address, problems);
    }
    if text.contains(':') != (kind == "IPv6") {
        errors.invalid_value(all, text, format!("must be an {kind} address"));
    }
    errors.invalid_each(address, addresses::endpoint_ip(text));
}

/// `IsFullyQualifiedDomainName`.
fn check_domain(address: &Field, errors: &mut Errors) {
    if address.is_empty() {
        return errors.required(address, "");
    }
    let name = address.text().strip_suffix('.').unwrap_or(address.text());
    let problems = names::dns_subdomain(name);
    if !problems.is_empty() {
        errors.invalid_value(address, name, problems.join(","));
    } else if !name.contains('.') {
        errors.invalid_value(address, name, "should be a domain with at least two segments separated by dots");
    } else if let Some(problems) = name.split('.').map(names::dns_label).find(|problems| !problems.is_empty()) {
        errors.invalid_value(address, name, problems.join(","));
    }
}

fn check_hints(hints: &Field, errors: &mut Errors) {
    for (list, rule) in [("forZones", names::label_value as fn(&str) -> Vec<String>), ("forNodes", names::dns_subdomain)] {
        let all = hints.get(list);
        let items = all.items();
        if items.len() > MOST_HINTS {
            return errors.too_many(&all, items.len(), MOST_HINTS);
        }
        let mut used = HashSet::new();
        for name in items.iter().map(|hint| hint.get("name")) {
            if !used.insert(name.text()) {
                errors.duplicate(&name, name.text());
            }
            errors.invalid_each(&name, rule(name.text()));
        }
    }
}

fn check_ports(ports: &Field, errors: &mut Errors) {
    let items = ports.items();
    if items.len() > MOST_PORTS {
        return errors.too_many(ports, items.len(), MOST_PORTS);
    }
    let mut used = HashSet::new();
    for port in &items {
        let (name, protocol) = (port.get("name"), port.get("appProtocol"));
        if !name.is_empty() {
            errors.invalid_each(&name, names::dns_label(name.text()));
        }
        if !used.insert(name.text()) {
            errors.duplicate(&name, name.text());
        }
        errors.one_of_if_set(&port.get("protocol"), &["SCTP", "TCP", "UDP"]);
        if !port.get("protocol").is_set() {
            errors.required(&port.get("protocol"), "");
        }
        if protocol.is_set() {
            errors.invalid_each(&protocol, names::qualified(protocol.text()));
        }
    }
}

/// What is deprecated or should be written otherwise. The controllers of this cluster write addresses as they should be.
fn warnings(slice: &Field, found: &mut Vec<String>) {
    if slice.get("addressType").text() == "FQDN" {
        found.push("spec.addressType: FQDN endpoints are deprecated".into());
    }
    let manager = slice.get("metadata").get("labels").key("endpointslice.kubernetes.io/managed-by").text();
    if matches!(manager, "endpointslice-controller.k8s.io" | "endpointslicemirroring-controller.k8s.io") {
        return;
    }
    for endpoint in slice.get("endpoints").items() {
        found.extend(endpoint.get("addresses").items().iter().filter_map(|address| addresses::ip_warning(&address.path, address.text())));
    }
}

/// The topology of the API's first version is not taken from clients (`dropTopologyOnV1`).
fn drop_topology(slice: &mut Value) {
    let endpoints = slice.get_mut("endpoints").and_then(Value::as_array_mut).into_iter().flatten();
    for endpoint in endpoints.filter_map(Value::as_object_mut) {
        endpoint.shift_remove("deprecatedTopology");
    }
}

fn content_changed(old: &Value, new: &Value) -> bool {
    let differs = |member: &str| old.get(member) != new.get(member);
    let labels = ["metadata", "labels"];
    differs("endpoints") || differs("ports") || object::lookup(old, &labels) != object::lookup(new, &labels)
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let ports: Vec<String> = list(object, "/ports")
        .iter()
        .map(|port| match port.get("port").and_then(Value::as_i64) {
            Some(number) => number.to_string(),
            None => get_or(port, "/name", "*").to_string(),
        })
        .collect();
    let addresses: Vec<String> =
        list(object, "/endpoints").iter().flat_map(|endpoint| list(endpoint, "/addresses")).filter_map(Value::as_str).map(str::to_string).collect();
    vec![
        name(object),
        get(object, "/addressType").into(),
        first_three(&ports, "<unset>").into(),
        first_three(&addresses, "<unset>").into(),
        age(object, now),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::check::{change, table, warned, with};
    use serde_json::json;

    fn slice(kind: &str, address: &str) -> Value {
        json!({"metadata": {"name": "s"}, "addressType": kind, "ports": [{"name": "http", "protocol": "TCP", "port": 80}],
            "endpoints": [{"addresses": [address], "hostname": "a", "nodeName": "n"}]})
    }

    /// Upstream's `TestValidateEndpointSlice`.
    #[test]
    fn slices_are_checked() {
        let hints = |zones: &[&str]| json!({"forZones": zones.iter().map(|zone| json!({"name": zone})).collect::<Vec<_>>()});
        table(
            validate,
            &slice("IPv4", "10.1.2.3"),
            &[
                ("/addressType", json!(""), "addressType: Required value"),
                ("/endpoints/0/addresses", json!([]), "endpoints[0].addresses: Required value: must contain at least 1 address"),
                ("/endpoints/0/addresses", json!(vec!["10.1.2.3"; 101]), "endpoints[0].addresses: Too many: 101: must have at most 100 items"),
                ("/endpoints/0/addresses/0", json!("2001:db8::1"), "endpoints[0].addresses: Invalid value: \"2001:db8::1\": must be an IPv4 address"),
                (
                    "/endpoints/0/addresses/0",
                    json!("127.0.0.1"),
                    "endpoints[0].addresses[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)",
                ),
                ("/endpoints/0/hints", hints(&["a", "b"]), ""),
                ("/endpoints/0/hints", hints(&["a", "a"]), "endpoints[0].hints.forZones[1].name: Duplicate value: \"a\""),
                ("/endpoints/0/hints", hints(&["a"; 9]), "endpoints[0].hints.forZones: Too many: 9: must have at most 8 items"),
                ("/endpoints/0/hostname", json!("a.b"), "endpoints[0].hostname: Invalid value: \"a.b\": must not contain dots"),
                ("/ports/0/protocol", json!("foo"), "ports[0].protocol: Unsupported value: \"foo\": supported values: \"SCTP\", \"TCP\", \"UDP\""),
                ("/ports", json!([{"name": "a", "protocol": "TCP"}, {"name": "a", "protocol": "TCP"}]), "ports[1].name: Duplicate value: \"a\""),
            ],
        );
        table(
            validate,
            &slice("IPv6", "2001:db8::1"),
            &[(
                "/endpoints/0/addresses/0",
                json!("2001:DB8::1"),
                "endpoints[0].addresses[0]: Invalid value: \"2001:DB8::1\": must be in canonical form (\"2001:db8::1\")",
            )],
        );
        table(
            validate,
            &slice("FQDN", "foo.example.com."),
            &[(
                "/endpoints/0/addresses/0",
                json!("foo"),
                "endpoints[0].addresses[0]: Invalid value: \"foo\": should be a domain with at least two segments separated by dots",
            )],
        );
    }

    #[test]
    fn the_address_type_stays() {
        let old = slice("IPv4", "127.0.0.1");
        assert_eq!(change(validate, &old, &with(&old, &[("/ports", json!([]))])), "", "endpoints that do not change are not checked again");
        let other = with(&old, &[("/addressType", json!("IPv6"))]);
        assert_eq!(change(validate, &old, &other), "addressType: Invalid value: \"IPv6\": field is immutable");
    }

    #[test]
    fn names_instead_of_addresses_are_warned_of() {
        assert_eq!(warned(warnings, &slice("FQDN", "a.example")), ["spec.addressType: FQDN endpoints are deprecated".to_string(),]);
        assert!(warned(warnings, &slice("IPv4", "10.1.2.3")).is_empty());
        let mut written = slice("IPv4", "10.1.2.3");
        written["endpoints"][0]["deprecatedTopology"] = json!({"a": "b"});
        drop_topology(&mut written);
        assert_eq!(written, slice("IPv4", "10.1.2.3"));
    }
}
