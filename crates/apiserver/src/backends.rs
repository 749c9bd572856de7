//! Who answers for a Service: the ready endpoints of its EndpointSlices.

use crate::object;
use serde_json::Value;
use std::net::IpAddr;

/// Ready backends of a Service's port by its name.
pub fn backends(slices: &[Value], service: &str, port: &str) -> Vec<(IpAddr, u16)> {
    let of_service = slices.iter().filter(|slice| {
        object::lookup(slice, &["metadata", "labels"]).and_then(|labels| labels.get("kubernetes.io/service-name")).is_some_and(|name| name == service)
    });
    let mut found = Vec::new();
    for slice in of_service {
        let own = object::list(slice, &["ports"]).iter().find(|own| object::name_of(own) == port);
        let Some(number) = own.and_then(|own| object::integer(own, &["port"])).and_then(|number| u16::try_from(number).ok()) else { continue };
        let ready = object::list(slice, &["endpoints"])
            .iter()
            .filter(|endpoint| object::lookup(endpoint, &["conditions", "ready"]).and_then(Value::as_bool).unwrap_or(true));
        let addresses = ready.flat_map(|endpoint| object::list(endpoint, &["addresses"])).filter_map(|address| address.as_str()?.parse().ok());
        found.extend(addresses.filter(is_global).map(|address| (address, number)));
    }
    found
}

/// An address of a pod or node, by its kind alone (`IsProxyableIP`).
pub fn is_global(address: &IpAddr) -> bool {
    let special = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !special && !address.is_loopback() && !address.is_unspecified() && !address.is_multicast()
}
