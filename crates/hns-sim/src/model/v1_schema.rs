//! Objects in HNS's V1 schema: networks, endpoints and policy lists.

use hcn::document::{VSwitchExtension, v1};
use hcn::{Guid, HostComputeNetwork, LoadBalancerFlags, NetworkType, PortMappingFlags};
use serde_json::{Map, Value, json};

use super::networks::EXTENSIONS;
use super::{Context, is_nat};
use crate::state::{Balancer, Endpoint, Object};

/// The compartment in which HNS resolves names.
const DNS_COMPARTMENT: u32 = 3;

fn value<T: serde::Serialize>(document: &T) -> Value {
    serde_json::to_value(document).unwrap_or_default()
}

impl Context<'_> {
    /// The older shape of an object.
    pub(super) fn older(&self, id: Guid, object: &Object) -> Value {
        match object {
            Object::Network(network) => value(&self.v1_network(network)),
            Object::Endpoint(endpoint) => value(&self.v1_endpoint(endpoint)),
            Object::Namespace(namespace) => value(&v1::Namespace::of(namespace)),
            Object::Balancer(balancer) => value(&policy_list(id, balancer)),
            Object::Route(route) => {
                let rule = |rule: &hcn::SdnRoute| json!({"Type": "ROUTE", "DestinationPrefix": rule.destination_prefix, "NextHop": rule.next_hop, "EncapEnabled": rule.need_encap});
                let rules: Vec<Value> = route.routes.iter().map(rule).collect();
                json!({"ID": id, "References": references(&route.host_compute_endpoints), "Policies": rules, "State": route.state, "Version": route.version})
            }
        }
    }

    fn v1_network(&self, network: &HostComputeNetwork) -> v1::Network {
        let count = u32::try_from(self.state.index().endpoints_of(network.id).count()).unwrap_or(u32::MAX);
        let switched = |id: &Guid| {
            let settings = network.policies.iter().filter_map(|policy| policy.settings_as::<VSwitchExtension>(&policy.policy_type));
            settings.into_iter().find(|settings| settings.extension_id == *id).map(|settings| settings.enable)
        };
        let extension = |(id, name): (&str, &str)| {
            let id: Guid = id.parse().unwrap_or_default();
            let vfp = name.contains("VFP") && super::has_vfp(&network.network_type);
            v1::Extension { id, name: name.to_owned(), is_enabled: switched(&id).unwrap_or(vfp), ..v1::Extension::default() }
        };
        let family = |network_type: &NetworkType| if *network_type == NetworkType::Nat { "NAT" } else { "ICS" };
        v1::Network {
            dns_server_compartment: DNS_COMPARTMENT,
            current_endpoint_count: count,
            total_endpoints: count,
            max_concurrent_endpoints: count,
            nat_name: if is_nat(&network.network_type) { format!("{}{}", family(&network.network_type), network.id) } else { String::new() },
            layered_on: hcn::owned_id("hns", "layer", if super::is_external(&network.network_type) { "external" } else { &network.name }),
            switch_guid: hcn::owned_id("hns", "switch", if super::is_external(&network.network_type) { "external" } else { &network.name }),
            ipv6: network.subnets().any(|subnet| subnet.prefix().is_some_and(|prefix| prefix.addr().is_ipv6())),
            extensions: EXTENSIONS.into_iter().map(extension).collect(),
            ..v1::Network::of(network)
        }
    }

    fn v1_endpoint(&self, endpoint: &Endpoint) -> v1::Endpoint {
        let document = &endpoint.document;
        let mut older = v1::Endpoint::of(document, self.state.networks.get(&document.host_compute_network));
        if let Some(namespace) = self.state.namespaces.get(&document.host_compute_namespace) {
            older.namespace = Some(Box::new(v1::NamespaceReference {
                id: namespace.id,
                compartment_id: namespace.namespace_id,
                compartment_guid: namespace.namespace_guid,
                is_default: namespace.is_default,
                ..v1::NamespaceReference::default()
            }));
            let containers = namespace.resources.iter().filter(|resource| crate::state::endpoint_of(resource).is_none());
            older.shared_containers = containers.map(|resource| resource.data.id.clone()).collect();
        }
        older
    }
}

fn references(endpoints: &[Guid]) -> Vec<String> {
    endpoints.iter().map(|id| format!("/endpoints/{id}")).collect()
}

/// A load balancer as a policy list.
fn policy_list(id: Guid, balancer: &Balancer) -> v1::PolicyList {
    let document = &balancer.document;
    let policies = document.port_mappings.iter().map(|mapping| {
        let mut settings = Map::new();
        let mut member = |name: &str, value: Value| drop(settings.insert(name.to_owned(), value));
        member("SourceVIP", document.source_vip.clone().into());
        member("VIPs", document.frontend_vips.clone().into());
        member("Protocol", mapping.protocol.0.into());
        member("InternalPort", mapping.internal_port.into());
        member("ExternalPort", mapping.external_port.into());
        member("ILB", mapping.flags.contains(PortMappingFlags::INTERNAL).into());
        member("DSR", document.flags.contains(LoadBalancerFlags::DSR).into());
        v1::Policy { policy_type: "ELB".into(), extra: settings }
    });
    v1::PolicyList {
        id,
        references: references(&document.host_compute_endpoints),
        policies: policies.collect(),
        state: document.state,
        version: document.version,
        ..v1::PolicyList::default()
    }
}
