//! Dump of the rules at a switch's ports, in the form that Microsoft's scripts read: layers, groups and named rules. Pure.
//!
//! It renders the documents, by the names and places that networkhealth.ps1 checks for load balancers (C); the names of the layers
//! for access rules, for outgoing translation and for routes to other hosts are ours (I), since no source lists them.

use std::fmt;

use hcn::document::{Acl, Direction, EndpointPolicy, LoadBalancerPortMapping, NetworkPolicy, Subnet, TierAcl};
use hcn::{Guid, HostComputeNetwork, Kind, LoadBalancerFlags};
use serde::{Deserialize, Serialize};

use crate::compile::outbound_policies;
use crate::model::has_vfp;
use crate::state::{Balancer, Endpoint, State};

/// The rules of the ports that were asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dump {
    /// The ports: the host's first, then those of endpoints.
    pub ports: Vec<Port>,
}

/// One port of a switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// The endpoint, or the network whose host port it is.
    pub id: Guid,
    /// What it is called.
    pub name: String,
    /// Whether it passes nothing.
    #[serde(default)]
    pub blocked: bool,
    /// Its layers, in the order that packets leaving the port meet them.
    pub layers: Vec<Layer>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    pub name: String,
    /// Its groups: a direction and an address family each.
    pub groups: Vec<Group>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    pub name: String,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    pub name: String,
    /// What it matches and does.
    pub what: String,
}

impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for port in &self.ports {
            writeln!(f, "PORT {} ({}){}", port.id, port.name, if port.blocked { " Blocked" } else { "" })?;
            for layer in &port.layers {
                writeln!(f, "  LAYER {}", layer.name)?;
                for group in &layer.groups {
                    writeln!(f, "    GROUP {}", group.name)?;
                    for rule in &group.rules {
                        writeln!(f, "      RULE {}: {}", rule.name, rule.what)?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl Port {
    pub fn rule(&self, layer: &str, group: &str, name: &str) -> Option<&Rule> {
        let layer = self.layers.iter().find(|one| one.name == layer)?;
        layer.groups.iter().find(|one| one.name == group)?.rules.iter().find(|rule| rule.name == name)
    }

    fn add(&mut self, layer: &str, group: &str, name: String, what: String) {
        let layer = named(&mut self.layers, layer, |layer| &mut layer.name);
        let group = named(&mut layer.groups, group, |group| &mut group.name);
        group.rules.push(Rule { name, what });
    }
}

/// The entry of that name, made where there is none.
fn named<'a, T: Default>(entries: &'a mut Vec<T>, name: &str, of: fn(&mut T) -> &mut String) -> &'a mut T {
    let place = entries.iter_mut().position(|entry| of(entry) == name).unwrap_or_else(|| {
        let mut entry = T::default();
        name.clone_into(of(&mut entry));
        entries.push(entry);
        entries.len() - 1
    });
    &mut entries[place]
}

/// The rules of an endpoint's port, or of every port of every switch with the packet processor; none where there is no such endpoint.
pub fn dump(state: &State, endpoint: Option<Guid>) -> Option<Dump> {
    let mut dump = Dump::default();
    for (id, network) in state.networks.iter().filter(|(_, network)| has_vfp(&network.network_type)) {
        let balancers: Vec<(Guid, Balancer)> = state.index().balancers_of(*id).filter_map(|id| Some((id, state.balancer(&id)?))).collect();
        let members = state.index().endpoints_of(*id);
        let members: Vec<(Guid, Endpoint)> = members.filter_map(|id| Some((id, state.endpoint(&id)?))).collect();
        let near: Vec<_> = members.iter().filter(|(_, endpoint)| !endpoint.document.is_remote()).collect();
        if endpoint.is_none() {
            dump.ports.push(host_port(*id, network, &balancers, &near, state));
        }
        let shown = near.iter().filter(|(id, _)| endpoint.is_none_or(|asked| asked == *id));
        dump.ports.extend(shown.map(|(id, endpoint)| endpoint_port(*id, endpoint, network, &balancers, &members)));
    }
    (endpoint.is_none() || !dump.ports.is_empty()).then_some(dump)
}

/// A load balancer's mapping at one of its addresses.
struct VipMapping<'a> {
    id: Guid,
    vip: String,
    management: String,
    mapping: &'a LoadBalancerPortMapping,
    family: &'static str,
}

impl VipMapping<'_> {
    fn what(&self, balancer: &Balancer) -> String {
        let backends: Vec<String> = balancer.backends.iter().map(|ip| format!("{ip}:{}", self.mapping.internal_port)).collect();
        format!("{}:{} {} -> {}", self.vip, self.mapping.external_port, self.mapping.protocol, backends.join(" "))
    }
}

/// Every mapping of a load balancer at every address; a node port's is the host's own.
fn vips_of<'a>(id: Guid, balancer: &'a Balancer, network: &HostComputeNetwork) -> Vec<VipMapping<'a>> {
    let document = &balancer.document;
    let management = network.management_ip().map(|ip| ip.to_string()).unwrap_or_default();
    let vips = if document.frontend_vips.is_empty() { vec![management.clone()] } else { document.frontend_vips.clone() };
    let at = |vip: &String, mapping| VipMapping {
        id,
        vip: vip.clone(),
        management: management.clone(),
        mapping,
        family: if vip.contains(':') { "IPv6" } else { "IPv4" },
    };
    vips.iter().flat_map(|vip| document.port_mappings.iter().map(move |mapping| at(vip, mapping)).collect::<Vec<_>>()).collect()
}

fn is_direct(balancer: &Balancer) -> bool {
    balancer.document.flags.contains(LoadBalancerFlags::DSR)
}

/// The host's own port: it translates for clients that have none.
fn host_port(id: Guid, network: &HostComputeNetwork, balancers: &[(Guid, Balancer)], near: &[&(Guid, Endpoint)], state: &State) -> Port {
    let mut port = Port { id, name: format!("host, network {}", network.name), ..Port::default() };
    for (_, endpoint) in near {
        for mapping in endpoint.document.policies.iter().filter_map(EndpointPolicy::as_port_mapping) {
            let address = endpoint.document.ip().map(|ip| ip.to_string()).unwrap_or_default();
            let (external, internal, protocol) = (mapping.external_port, mapping.internal_port, mapping.protocol);
            let name = format!("NAT_{address}_{external}_{internal}_{}", protocol.0);
            port.add("SLB_NAT_LAYER", "SLB_GROUP_NAT_IPv4_IN", name, format!("host port {external} {protocol} -> {address}:{internal}"));
        }
    }
    for (id, balancer) in balancers {
        let is_remote = |id: &Guid| state.endpoints.get(id).is_some_and(|row| row.is_remote());
        let backends = &balancer.document.host_compute_endpoints;
        let remote = backends.iter().any(is_remote);
        let local = backends.iter().filter(|id| state.has(Kind::Endpoint, id) && !is_remote(id)).count();
        for mapped in vips_of(*id, balancer, network) {
            let VipMapping { id, vip, mapping, family, .. } = &mapped;
            let (external, internal, protocol) = (mapping.external_port, mapping.internal_port, mapping.protocol.0);
            let what = mapped.what(balancer);
            if remote || !is_direct(balancer) {
                port.add("LB", "LB_OUT", format!("LB_HOST_{id}_{vip}_{external}_{internal}_{protocol}"), what.clone());
            } else if local > 0 {
                let kind = if local == 1 { "NAT" } else { "LB" };
                let group = format!("SLB_GROUP_LB_{family}_OUT");
                port.add("SLB_LB_LAYER", &group, format!("{kind}_{id}_{vip}_{external}_{external}_{protocol}"), what.clone());
            }
            if local > 0 && is_direct(balancer) {
                let group = format!("SLB_GROUP_HAIRPIN_{family}_IN");
                port.add("SLB_HAIRPIN_LAYER", &group, format!("HairPin_{id}_{vip}_{external}_{external}_{protocol}"), what);
            }
        }
    }
    port
}

fn endpoint_port(id: Guid, endpoint: &Endpoint, network: &HostComputeNetwork, balancers: &[(Guid, Balancer)], members: &[(Guid, Endpoint)]) -> Port {
    let document = &endpoint.document;
    let addresses = document.ip_configurations.iter().map(|ip| ip.ip_address.as_str()).collect::<Vec<_>>().join(" ");
    let name = format!("{} {addresses}, network {}", document.name, network.name);
    let mut port = Port { id, name, blocked: endpoint.defects.blocked, ..Port::default() };
    if endpoint.defects.unfiltered {
        access_rules(&mut port, &[], &[]);
    } else {
        access_rules(&mut port, &document.policies, &network.policies);
    }
    for (balancer_id, balancer) in balancers.iter().filter(|(_, balancer)| is_direct(balancer)) {
        for mapped in vips_of(*balancer_id, balancer, network) {
            let VipMapping { id: lb, vip, management, mapping, family } = &mapped;
            let (external, internal, protocol) = (mapping.external_port, mapping.internal_port, mapping.protocol.0);
            let what = mapped.what(balancer);
            let name = format!("LB_DSR_{lb}_{management}_{vip}_{external}_{internal}_{protocol}");
            port.add("LB_DSR", &format!("LB_DSR_{family}_OUT"), name, what.clone());
            if balancer.document.host_compute_endpoints.contains(&id) {
                let nat = |direction: &str| format!("SLB_GROUP_NAT_{family}_{direction}");
                port.add("SLB_NAT_LAYER", &nat("IN"), format!("NAT_{lb}_{vip}_{external}_{protocol}"), what.clone());
                port.add("SLB_NAT_LAYER", &nat("OUT"), format!("ALLOW_NAT_{lb}_{vip}_{external}_{protocol}"), what);
            }
        }
    }
    for nat in outbound_policies(document) {
        let name = if nat.destinations.is_empty() { format!("OUTNAT_{id}") } else { format!("OUTNAT_TO_{id}") };
        let management = network.management_ip().map(|ip| ip.to_string()).unwrap_or_default();
        let source = if nat.virtual_ip.is_empty() { management } else { nat.virtual_ip };
        let to = if nat.destinations.is_empty() { "any".to_owned() } else { nat.destinations.join(" ") };
        let but = if nat.exceptions.is_empty() { String::new() } else { format!(" but {}", nat.exceptions.join(" ")) };
        port.add("SLB_NAT_LAYER", "SLB_GROUP_NAT_IPv4_OUT", name, format!("tcp, udp to {to}{but}: source {source}"));
    }
    routes(&mut port, network, members);
    port
}

/// Access rules, tier by tier, and the rules that let pass what none matched.
fn access_rules(port: &mut Port, policies: &[EndpointPolicy], shared: &[NetworkPolicy]) {
    let mut tiers: Vec<TierAcl> = policies.iter().filter_map(EndpointPolicy::as_tier_acl).collect();
    tiers.sort_by_key(|tier| tier.order);
    for tier in tiers {
        let mut rules = tier.rules;
        rules.sort_by_key(|rule| rule.priority);
        for rule in rules {
            let what = matched(
                rule.priority,
                rule.protocols.as_str(),
                [&rule.local_addresses, &rule.remote_addresses],
                [rule.local_ports.as_str(), rule.remote_ports.as_str()],
            );
            let name = if rule.id.is_empty() { format!("{}_{}", rule.action, rule.priority) } else { rule.id };
            let layer = format!("ACL_TIER_{}_{}", tier.order, tier.name);
            port.add(&layer, &group_of(&tier.direction), name, format!("{} {what}", rule.action));
        }
    }
    let mut rules: Vec<Acl> = policies.iter().filter_map(EndpointPolicy::as_acl).collect();
    rules.extend(shared.iter().filter_map(|policy| policy.settings_as(&hcn::document::NetworkPolicyType::NetworkAcl)));
    rules.sort_by_key(|rule| rule.priority);
    for rule in &rules {
        let what = matched(
            rule.priority,
            rule.protocols.as_str(),
            [&rule.local_addresses, &rule.remote_addresses],
            [rule.local_ports.as_str(), rule.remote_ports.as_str()],
        );
        let name = if rule.id.is_empty() { format!("{}_{}", rule.action, rule.priority) } else { rule.id.clone() };
        let layer = if rule.rule_type == hcn::document::RuleType::Host { "ACL_HOST_LAYER" } else { "ACL_ENDPOINT_LAYER" };
        port.add(layer, &group_of(&rule.direction), name, format!("{} {what}", rule.action));
    }
    for direction in [Direction::In, Direction::Out] {
        port.add("ACL_ENDPOINT_LAYER", &group_of(&direction), "Allow_65500".into(), "Allow any (65500)".into());
    }
}

fn group_of(direction: &Direction) -> String {
    format!("ACL_GROUP_{}", direction.as_str().to_uppercase())
}

fn matched(priority: u16, protocols: &str, addresses: [&str; 2], ports: [&str; 2]) -> String {
    let any = |text: &str| if text.is_empty() { "any".to_owned() } else { text.to_owned() };
    let protocols = if protocols == "256" { "" } else { protocols };
    let [local, remote] = [0, 1].map(|side| format!("{} port {}", any(addresses[side]), any(ports[side])));
    format!("protocol {}, local {local}, remote {remote} ({priority})", any(protocols))
}

/// Where an overlay sends what is elsewhere: single endpoints before prefixes.
fn routes(port: &mut Port, network: &HostComputeNetwork, members: &[(Guid, Endpoint)]) {
    let vsid = network.subnets().find_map(Subnet::vsid);
    let Some(vsid) = vsid else { return };
    let mut route = |prefix: &str, number: u32, host: &str| {
        let name = format!("PA_ROUTE_{prefix}");
        port.add("VNET_PA_ROUTE_LAYER", "VNET_GROUP_PA_ROUTE_IPv4_OUT", name, format!("{prefix}: encapsulated to {host}, number {number}"));
    };
    for (_, endpoint) in members.iter().filter(|(_, endpoint)| endpoint.document.is_remote()) {
        let host = endpoint.document.policies.iter().find_map(EndpointPolicy::as_provider_address);
        if let (Some(address), Some(host)) = (endpoint.document.ip(), host) {
            route(&format!("{address}/32"), vsid, &host.to_string());
        }
    }
    for remote in network.policies.iter().filter_map(NetworkPolicy::as_remote_subnet_route) {
        route(&remote.destination_prefix, remote.isolation_id, &remote.provider_address);
    }
}
