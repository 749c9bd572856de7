//! EndpointSlices.

use crate::defaults::{each, set};
use crate::kind::Kind;
use crate::object;
use crate::table::text::{first_three, get, get_or, list};
use crate::table::{AGE, NAME, age, name, text};
use crate::validation::field::{Errors, Field};
use crate::validation::names;
use jiff::Timestamp;
use k8s_openapi::api::discovery;
use serde_json::{Map, Value};
use std::collections::HashSet;

pub fn kind() -> Kind {
    Kind::new("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", "io.k8s.api.discovery.v1.EndpointSlice")
        .described_by::<discovery::v1::EndpointSlice>()
        .counts_generations_by(content_changed)
        .defaults(defaults)
        .validate(validate)
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

/// A new or changed EndpointSlice.
fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
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
