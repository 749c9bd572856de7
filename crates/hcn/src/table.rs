//! Lists of HNS objects: a table, or the documents as JSON.

use std::collections::HashMap;

use serde::Serialize;

use crate::blocking::Client;
use crate::document::{
    EndpointPolicyType, HostComputeEndpoint, HostComputeLoadBalancer, HostComputeNamespace, HostComputeNetwork, LoadBalancerFlags,
    NamespaceResourceType, Query,
};
use crate::error::HcnError;
use crate::guid::Guid;

/// What can be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listing {
    Networks,
    /// Endpoints, local and remote.
    Endpoints,
    LoadBalancers,
    Namespaces,
}

impl Listing {
    /// Every listing, in the order of help texts.
    pub const ALL: [Self; 4] = [Self::Networks, Self::Endpoints, Self::LoadBalancers, Self::Namespaces];

    /// Its name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Networks => "networks",
            Self::Endpoints => "endpoints",
            Self::LoadBalancers => "loadbalancers",
            Self::Namespaces => "namespaces",
        }
    }
}

/// A name of nothing that can be listed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot be listed: use one of {names}", names = Listing::ALL.map(Listing::as_str).join(", "))]
pub struct ListingError(String);

impl std::str::FromStr for Listing {
    type Err = ListingError;

    fn from_str(text: &str) -> Result<Self, ListingError> {
        Self::ALL.into_iter().find(|listing| listing.as_str() == text).ok_or_else(|| ListingError(text.to_owned()))
    }
}

/// Reads `listing` from the service and renders it: a table, or JSON where `json` is set. The text ends with a line break.
pub fn render(client: &Client, listing: Listing, json: bool) -> Result<String, HcnError> {
    let all = Query::default();
    match listing {
        Listing::Networks => {
            let networks = client.list::<HostComputeNetwork>(&all)?;
            Ok(if json { documents(&networks) } else { networks_table(&networks) })
        }
        Listing::Endpoints => {
            let endpoints = client.list::<HostComputeEndpoint>(&all)?;
            if json {
                return Ok(documents(&endpoints));
            }
            Ok(endpoints_table(&endpoints, &client.list(&all)?))
        }
        Listing::LoadBalancers => {
            let load_balancers = client.list::<HostComputeLoadBalancer>(&all)?;
            if json {
                return Ok(documents(&load_balancers));
            }
            Ok(load_balancers_table(&load_balancers, &client.list(&all)?))
        }
        Listing::Namespaces => {
            let namespaces = client.list::<HostComputeNamespace>(&all)?;
            Ok(if json { documents(&namespaces) } else { namespaces_table(&namespaces) })
        }
    }
}

/// Documents as an indented JSON array.
///
/// # Panics
/// Never: documents hold only strings, numbers, lists and maps with string keys.
pub fn documents<T: Serialize>(objects: &[T]) -> String {
    let mut text = serde_json::to_string_pretty(objects).expect("documents serialize");
    text.push('\n');
    text
}

pub fn networks_table(networks: &[HostComputeNetwork]) -> String {
    let rows = networks.iter().map(|network| {
        let subnets = network.subnets().map(|subnet| subnet.ip_address_prefix.clone()).collect::<Vec<_>>();
        let gateways = network.subnets().filter_map(|subnet| subnet.gateway()).map(|gateway| gateway.to_string()).collect::<Vec<_>>();
        let management = network.management_ip().map(|ip| ip.to_string());
        vec![
            network.name.clone(),
            network.network_type.to_string(),
            subnets.join(","),
            gateways.join(","),
            management.unwrap_or_default(),
            network.id.to_string(),
        ]
    });
    table(&["NAME", "TYPE", "SUBNETS", "GATEWAY", "MANAGEMENT-IP", "ID"], rows.collect())
}

/// Endpoints as a table; `networks` gives names to their networks.
pub fn endpoints_table(endpoints: &[HostComputeEndpoint], networks: &[HostComputeNetwork]) -> String {
    let names: HashMap<Guid, &str> = networks.iter().map(|network| (network.id, network.name.as_str())).collect();
    let rows = endpoints.iter().map(|endpoint| {
        let addresses = endpoint.ip_configurations.iter().map(|ip| ip.ip_address.as_str()).collect::<Vec<_>>();
        let network = names.get(&endpoint.host_compute_network).map_or_else(|| endpoint.host_compute_network.to_string(), |name| (*name).to_owned());
        let policies = endpoint.policies.iter().map(|policy| &policy.policy_type).filter(|kind| **kind != EndpointPolicyType::L2Driver);
        let namespace = if endpoint.host_compute_namespace.is_nil() { String::new() } else { endpoint.host_compute_namespace.to_string() };
        vec![
            if endpoint.name.is_empty() { endpoint.id.to_string() } else { endpoint.name.clone() },
            network,
            addresses.join(","),
            endpoint.mac_address.clone(),
            if endpoint.is_remote() { "remote" } else { "local" }.to_owned(),
            endpoint_state(endpoint.state),
            policies.map(ToString::to_string).collect::<Vec<_>>().join(","),
            namespace,
        ]
    });
    table(&["NAME", "NETWORK", "ADDRESS", "MAC", "WHERE", "STATE", "POLICIES", "NAMESPACE"], rows.collect())
}

fn endpoint_state(state: u32) -> String {
    match state {
        0 => "uninitialised".into(),
        1 => "created".into(),
        2 => "attached".into(),
        3 => "attached-sharing".into(),
        4 => "detached".into(),
        5 => "degraded".into(),
        6 => "destroyed".into(),
        other => other.to_string(),
    }
}

/// Load balancers as a table; `endpoints` gives addresses to their backends.
pub fn load_balancers_table(load_balancers: &[HostComputeLoadBalancer], endpoints: &[HostComputeEndpoint]) -> String {
    let addresses: HashMap<Guid, &str> =
        endpoints.iter().filter_map(|endpoint| Some((endpoint.id, endpoint.ip_configurations.first()?.ip_address.as_str()))).collect();
    let mut rows = Vec::new();
    for balancer in load_balancers {
        for mapping in &balancer.port_mappings {
            let vips = if balancer.frontend_vips.is_empty() { "*".to_owned() } else { balancer.frontend_vips.join(",") };
            let backends = balancer.host_compute_endpoints.iter().map(|id| match addresses.get(id) {
                Some(address) => format!("{address}:{}", mapping.internal_port),
                None => format!("gone({id})"),
            });
            let affinity = match mapping.distribution_type.0 {
                0 => "",
                1 => "source-ip-protocol",
                _ => "source-ip",
            };
            let dsr = if balancer.flags.contains(LoadBalancerFlags::DSR) { "dsr" } else { "" };
            rows.push(vec![
                vips,
                mapping.external_port.to_string(),
                mapping.protocol.to_string(),
                backends.collect::<Vec<_>>().join(","),
                [affinity, dsr].into_iter().filter(|flag| !flag.is_empty()).collect::<Vec<_>>().join(","),
                balancer.id.to_string(),
            ]);
        }
    }
    table(&["VIP", "PORT", "PROTOCOL", "BACKENDS", "FLAGS", "ID"], rows)
}

pub fn namespaces_table(namespaces: &[HostComputeNamespace]) -> String {
    let rows = namespaces.iter().map(|namespace| {
        let containers = namespace.resources.iter().filter(|resource| resource.resource_type == NamespaceResourceType::Container).count();
        let endpoints = namespace.endpoints().map(|id| id.to_string()).collect::<Vec<_>>();
        vec![
            namespace.id.to_string(),
            namespace.namespace_id.to_string(),
            namespace.namespace_type.to_string(),
            containers.to_string(),
            endpoints.join(","),
        ]
    });
    table(&["ID", "COMPARTMENT", "TYPE", "CONTAINERS", "ENDPOINTS"], rows.collect())
}

/// Columns as wide as their widest cell, three blanks apart, as kubectl prints; an empty cell is `<none>`.
fn table(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut lines = vec![header.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>()];
    lines.extend(rows.into_iter().map(|row| row.into_iter().map(|cell| if cell.is_empty() { "<none>".into() } else { cell }).collect()));
    let widths: Vec<usize> = (0..header.len()).map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0)).collect();
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("   ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{NetworkPolicy, NetworkType, Protocol, Subnet};

    #[test]
    fn tables_have_headings() {
        let subnet = Subnet::new("10.1.0.0/24".parse().unwrap(), "10.1.0.1".parse().unwrap());
        let mut network =
            HostComputeNetwork::new("mullion", NetworkType::L2Bridge, subnet).with_policy(NetworkPolicy::provider_address([10, 0, 0, 4].into()));
        network.id = "00000000-0000-0000-0000-00000000000a".parse().unwrap();
        let mut endpoint = HostComputeEndpoint::local("pod_mullion", "10.1.0.7/24".parse().unwrap(), None);
        endpoint.id = "00000000-0000-0000-0000-00000000000b".parse().unwrap();
        endpoint.host_compute_network = network.id;
        endpoint.state = 3;
        let vip = [10, 96, 0, 1].into();
        let balancer = HostComputeLoadBalancer::new(Some(vip), Protocol::TCP, 80, 8080, vec![endpoint.id, network.id]);

        assert_eq!(
            networks_table(std::slice::from_ref(&network)),
            "NAME      TYPE       SUBNETS       GATEWAY    MANAGEMENT-IP   ID\n\
             mullion   L2Bridge   10.1.0.0/24   10.1.0.1   10.0.0.4        00000000-0000-0000-0000-00000000000a\n"
        );
        let endpoints = endpoints_table(std::slice::from_ref(&endpoint), &[network]);
        assert!(endpoints.contains("pod_mullion   mullion   10.1.0.7   <none>   local   attached-sharing   <none>"), "{endpoints}");
        let balancers = load_balancers_table(&[balancer], &[endpoint]);
        assert!(balancers.contains("10.96.0.1   80     tcp        10.1.0.7:8080,gone(00000000-0000-0000-0000-00000000000a)"), "{balancers}");
    }
}
