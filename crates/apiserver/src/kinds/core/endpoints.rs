//! Endpoints, which EndpointSlices have replaced.

use crate::defaults::{each, set};
use crate::kind::Kind;
use crate::table::text::{first_three, get, host_port, integer, list};
use crate::table::{AGE, NAME, age, name, text};
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
        .validate(|new, _, errors| validate(new, errors))
        .table([NAME, text("Endpoints"), AGE], cells)
}

fn defaults(object: &mut Map<String, Value>) {
    for subset in each(object, "subsets") {
        for port in each(subset, "ports") {
            set(port, "protocol", || "TCP".into());
        }
    }
}

/// An Endpoints object.
fn validate(new: &Field, errors: &mut Errors) {
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
