//! Endpoints, which EndpointSlices have replaced.

use crate::defaults::{each, set};
use crate::kind::Kind;
use crate::table::text::{first_three, get, host_port, integer, list};
use crate::table::{AGE, NAME, age, name, text};
use crate::validation::addresses::{self, Form};
use crate::validation::field::{Errors, Field};
use crate::validation::names;
use jiff::Timestamp;
use k8s_openapi::api::core;
use serde_json::{Map, Value};

pub fn kind() -> Kind {
    Kind::new("", "v1", "Endpoints", "endpoints", "io.k8s.api.core.v1.Endpoints")
        .described_by::<core::v1::Endpoints>()
        .short(&["ep"])
        .deprecated("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice")
        .create_on_update()
        .defaults(defaults)
        .validate(validate)
        .warnings(warnings)
        .table([NAME, text("Endpoints"), AGE], cells)
}

fn defaults(object: &mut Map<String, Value>) {
    for subset in each(object, "subsets") {
        for port in each(subset, "ports") {
            set(port, "protocol", || "TCP".into());
        }
    }
}

/// A new or changed Endpoints object (`ValidateEndpoints`). Subsets that do not change are not checked again.
fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let subsets = new.get("subsets");
    if old.is_some_and(|old| old.get("subsets").value == subsets.value) {
        return;
    }
    for subset in subsets.items() {
        let (ready, not_ready) = (subset.get("addresses"), subset.get("notReadyAddresses"));
        if ready.is_empty() && not_ready.is_empty() {
            errors.required(&subset, "must specify `addresses` or `notReadyAddresses`");
        }
        ready.items().iter().chain(&not_ready.items()).for_each(|entry| address(entry, errors));
        let several = subset.get("ports").items().len() > 1;
        subset.get("ports").items().iter().for_each(|entry| port(entry, several, errors));
    }
}

fn address(entry: &Field, errors: &mut Errors) {
    let (ip, hostname, node) = (entry.get("ip"), entry.get("hostname"), entry.get("nodeName"));
    errors.invalid_each(&ip, addresses::ip(ip.text(), Form::Any));
    if !hostname.is_empty() {
        errors.invalid_each(&hostname, names::dns_label(hostname.text()));
    }
    if node.is_set() {
        errors.invalid_each(&node, names::dns_subdomain(node.text()));
    }
    errors.invalid_each(&ip, addresses::endpoint_ip(ip.text()));
}

fn port(entry: &Field, several: bool, errors: &mut Errors) {
    let (name, number, protocol) = (entry.get("name"), entry.get("port"), entry.get("appProtocol"));
    if several && name.is_empty() {
        errors.required(&name, "");
    } else if !name.is_empty() {
        errors.invalid_each(&name, names::dns_label(name.text()));
    }
    let port = number.number().unwrap_or_default();
    names::port_number(port).into_iter().for_each(|problem| errors.invalid_value(&number, port, problem));
    errors.one_of(&entry.get("protocol"), &["SCTP", "TCP", "UDP"]);
    if protocol.is_set() {
        errors.invalid_each(&protocol, names::qualified(protocol.text()));
    }
}

/// Addresses that should be written otherwise. The endpoints controller writes them as they should be.
fn warnings(endpoints: &Field, found: &mut Vec<String>) {
    if endpoints.get("metadata").get("labels").key("endpoints.kubernetes.io/managed-by").text() == "endpoint-controller" {
        return;
    }
    for subset in endpoints.get("subsets").items() {
        for list in ["addresses", "notReadyAddresses"] {
            let ips = subset.get(list).items().into_iter().map(|address| address.get("ip"));
            found.extend(ips.filter_map(|ip| addresses::ip_warning(&ip.path, ip.text())));
        }
    }
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let mut found = Vec::new();
    for subset in list(object, "/subsets") {
        let addresses = || list(subset, "/addresses").iter().map(|address| get(address, "/ip"));
        let ports = list(subset, "/ports");
        if ports.is_empty() {
            found.extend(addresses().map(str::to_string));
        }
        for port in ports {
            found.extend(addresses().map(|address| host_port(address, integer(port, "/port"))));
        }
    }
    vec![name(object), first_three(&found, "<none>").into(), age(object, now)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::check::{change, table, warned, with};
    use serde_json::json;

    fn endpoints() -> Value {
        json!({"metadata": {"name": "e"}, "subsets": [{"addresses": [{"ip": "10.10.1.1"}], "ports": [{"name": "a", "port": 8675, "protocol": "TCP"}]}]})
    }

    /// Upstream's `TestValidateEndpointsCreate`.
    #[test]
    fn endpoints_are_checked() {
        table(
            validate,
            &endpoints(),
            &[
                ("/subsets/0/addresses", json!([]), "subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`"),
                ("/subsets/0/addresses/0/ip", json!("2001:DB8::1"), ""),
                (
                    "/subsets/0/addresses/0/ip",
                    json!("[2001:0db8:85a3:0042:1000:8a2e:0370:7334]"),
                    "subsets[0].addresses[0].ip: Invalid value: \"[2001:0db8:85a3:0042:1000:8a2e:0370:7334]\": must be a valid IP address, (e.g. \
                     10.9.8.7 or 2001:db8::ffff)\nsubsets[0].addresses[0].ip: Invalid value: \"[2001:0db8:85a3:0042:1000:8a2e:0370:7334]\": must be a \
                     valid IP address",
                ),
                (
                    "/subsets/0/addresses/0/ip",
                    json!("169.254.169.254"),
                    "subsets[0].addresses[0].ip: Invalid value: \"169.254.169.254\": may not be in the link-local range (169.254.0.0/16, fe80::/10)",
                ),
                ("/subsets/0/addresses/0/hostname", json!("a.b"), "subsets[0].addresses[0].hostname: Invalid value: \"a.b\": must not contain dots"),
                ("/subsets/0/ports/0/port", json!(66000), "subsets[0].ports[0].port: Invalid value: 66000: must be between 1 and 65535, inclusive"),
                ("/subsets/0/ports/0/protocol", json!(""), "subsets[0].ports[0].protocol: Required value"),
                (
                    "/subsets/0/ports",
                    json!([{"port": 1, "protocol": "TCP"}, {"name": "b", "port": 2, "protocol": "TCP"}]),
                    "subsets[0].ports[0].name: Required value",
                ),
            ],
        );
        let stored = with(&endpoints(), &[("/subsets/0/addresses/0/ip", json!("127.0.0.1"))]);
        let labelled = with(&stored, &[("/metadata/labels", json!({"a": "b"}))]);
        assert_eq!(change(validate, &stored, &labelled), "", "what does not change is not checked again");
        assert_ne!(change(validate, &endpoints(), &stored), "");
    }

    #[test]
    fn addresses_in_other_forms_are_warned_of() {
        let six = with(&endpoints(), &[("/subsets/0/addresses/0/ip", json!("2001:DB8::1"))]);
        let warning = "subsets[0].addresses[0].ip: IPv6 address \"2001:DB8::1\" should be in RFC 5952 canonical format (\"2001:db8::1\")";
        assert_eq!(warned(warnings, &six), [warning]);
        let managed = with(&six, &[("/metadata/labels", json!({"endpoints.kubernetes.io/managed-by": "endpoint-controller"}))]);
        assert!(warned(warnings, &managed).is_empty());
    }
}
