//! The old Endpoints object of a Service, for clients that still read it: pure.

use std::collections::BTreeMap;

use cluster::Key;
use k8s_openapi::{
    api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::rows::{Group, HEADLESS, Member, target};
use crate::view::ServiceRow;

/// An Endpoints object holds no more addresses than this (upstream: `maxCapacity`).
const MOST: usize = 1000;

/// The label of Endpoints that a controller writes.
pub(super) const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const MANAGER: &str = "endpoint-controller";

/// Whether this controller wrote an object.
pub(super) fn is_ours(found: &Endpoints) -> bool {
    found.metadata.labels.as_ref().and_then(|labels| labels.get(MANAGED_BY)).is_some_and(|manager| manager == MANAGER)
}

/// The Endpoints of a Service, from its first address family's groups: ready addresses and those that are not, by ports.
pub(super) fn endpoints(key: &Key, service: &ServiceRow, groups: &[Group]) -> Endpoints {
    let mut labels = service.labels.clone();
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    if service.headless {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    let mut room = MOST;
    let mut subsets = Vec::new();
    for group in groups.iter().filter(|group| Some(&group.family) == service.families.first()) {
        let alive = group.members.iter().filter(|member| !member.terminating || member.ready);
        let taken: Vec<&Member> = alive.take(room).collect();
        room -= taken.len();
        let (ready, waiting): (Vec<&Member>, Vec<&Member>) = taken.into_iter().partition(|member| member.ready);
        let addresses = |members: Vec<&Member>| {
            let sorted: BTreeMap<(&str, &str), &Member> =
                members.into_iter().map(|member| ((member.address.as_str(), member.uid.as_str()), member)).collect();
            let all: Vec<EndpointAddress> = sorted.into_values().map(|member| address(key, member)).collect();
            (!all.is_empty()).then_some(all)
        };
        let (addresses, not_ready_addresses) = (addresses(ready), addresses(waiting));
        if addresses.is_none() && not_ready_addresses.is_none() {
            continue;
        }
        let ports = group.ports.iter().map(|port| EndpointPort {
            name: (!port.name.is_empty()).then(|| port.name.clone()),
            port: port.port,
            protocol: Some(port.protocol.clone()),
            app_protocol: port.app_protocol.clone(),
        });
        let ports: Vec<_> = ports.collect();
        subsets.push(EndpointSubset { addresses, not_ready_addresses, ports: (!ports.is_empty()).then_some(ports) });
    }
    Endpoints {
        metadata: ObjectMeta { name: Some(key.name.clone()), namespace: Some(key.ns.clone()), labels: Some(labels), ..Default::default() },
        subsets: (!subsets.is_empty()).then_some(subsets),
    }
}

fn address(key: &Key, member: &Member) -> EndpointAddress {
    EndpointAddress {
        ip: member.address.clone(),
        hostname: member.hostname.clone(),
        node_name: member.node.clone(),
        target_ref: Some(target(key, member)),
    }
}

/// Whether an object says all that `wanted` says.
pub(super) fn same(found: &Endpoints, wanted: &Endpoints) -> bool {
    found.subsets.as_deref().unwrap_or_default() == wanted.subsets.as_deref().unwrap_or_default() && found.metadata.labels == wanted.metadata.labels
}
