//! Compiler of endpoints: ports, source translation, port mappings, host paths, proxies.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use hcn::document::{EncapOverhead, EndpointPolicyType, InterfaceParameters, L4Proxy, Qos};
use hcn::{EndpointPolicy, Guid, HostComputeEndpoint, HostComputeNetwork, NatFlags, NetworkType, OutBoundNat};
use ipnet::IpNet;

use super::{access, awaits_compartment, bridge_address, bridge_of, forwarding, host_address, management, merged, next_hop, overlay, prefix, single};
use crate::fact::{Fact, Hop, Link, NatClass, ONLY_DESTINATIONS, Port, Rule, Vip, port_name, stable_hash};
use crate::state::{Endpoint, State};
use crate::switches::Switches;

/// Bytes that VXLAN takes from each packet.
const VXLAN_OVERHEAD: u16 = 50;

pub(super) fn facts(id: &Guid, endpoint: &Endpoint, network: &HostComputeNetwork, state: &State, switches: &Switches, facts: &mut BTreeSet<Fact>) {
    if endpoint.document.is_remote() {
        return overlay::remote_facts(endpoint, network, switches, facts);
    }
    let bridge = bridge_of(&endpoint.document.host_compute_network, network);
    let addresses: Vec<IpNet> = endpoint.all_addresses().collect();
    if endpoint.on_host {
        facts.extend(addresses.iter().flat_map(|address| bridge_address(&bridge, *address)));
        return;
    }
    let (Some(interface), Some(mac)) = (&endpoint.interface, endpoint.mac()) else { return };
    if state.namespaces.get(&endpoint.document.host_compute_namespace).is_some_and(awaits_compartment) {
        return;
    }
    let port = Port {
        name: port_name(id),
        bridge: bridge.clone(),
        forwarding: forwarding(&network.network_type),
        compartment: endpoint.document.host_compute_namespace,
        interface: interface.clone(),
        mac,
        routes: routes(endpoint),
        addresses,
        mtu: settings::<InterfaceParameters>(endpoint, &EndpointPolicyType::InterfaceParameters).map(|parameters| parameters.mtu),
        overhead: overhead(endpoint, network),
    };
    if network.network_type != NetworkType::Transparent {
        for address in &port.addresses {
            facts.insert(Fact::Link(Link::Neighbour { link: bridge.clone(), address: address.addr(), mac }));
        }
        outbound_facts(endpoint, network, state, &port.addresses, facts);
        port_mapping_facts(endpoint, &port.addresses, facts);
        route_facts(id, endpoint, &port, state, facts);
        proxy_facts(endpoint, network, &port.addresses, facts);
    }
    overlay::local_facts(endpoint, network, facts);
    if !endpoint.defects.unfiltered {
        access::facts(endpoint, network, &port, switches, facts);
    }
    if endpoint.defects.blocked {
        facts.insert(Fact::Link(Link::Blocked { port: port.name.clone() }));
    }
    if let Some(Qos { maximum_outgoing_bandwidth_in_bytes: bytes @ 1.., .. }) = settings(endpoint, &EndpointPolicyType::Qos) {
        facts.insert(Fact::Link(Link::Rate { compartment: port.compartment, interface: port.interface.clone(), bytes }));
    }
    facts.insert(Fact::Link(Link::Port(port)));
}

fn routes(endpoint: &Endpoint) -> Vec<(IpNet, IpAddr, u16)> {
    let routes = endpoint.document.routes.iter();
    routes
        .filter_map(|route| Some((prefix(&route.destination_prefix)?, route.next_hop.parse::<IpAddr>().ok()?, route.metric)))
        .filter(|(prefix, hop, _)| prefix.addr().is_ipv4() == hop.is_ipv4())
        .collect()
}

fn overhead(endpoint: &Endpoint, network: &HostComputeNetwork) -> u16 {
    let own = settings::<InterfaceParameters>(endpoint, &EndpointPolicyType::InterfaceParameters).is_some();
    let usual = if network.network_type == NetworkType::Overlay && !own { VXLAN_OVERHEAD } else { 0 };
    settings::<EncapOverhead>(endpoint, &EndpointPolicyType::EncapOverhead).map_or(usual, |encap| encap.overhead)
}

/// The last policy of that type: later ones win.
fn settings<T: serde::de::DeserializeOwned>(endpoint: &Endpoint, policy_type: &EndpointPolicyType) -> Option<T> {
    endpoint.document.policies.iter().rev().find_map(|policy| policy.settings_as(policy_type))
}

/// A policy that names its destinations stands beside one that does not; of two of the same kind the last one counts.
pub(crate) fn outbound_policies(document: &HostComputeEndpoint) -> impl Iterator<Item = OutBoundNat> {
    let last = |named: bool| {
        let policies = document.policies.iter().rev().filter_map(EndpointPolicy::as_outbound_nat);
        policies.into_iter().find(move |nat| nat.destinations.is_empty() != named)
    };
    [last(true), last(false)].into_iter().flatten()
}

fn outbound_facts(endpoint: &Endpoint, network: &HostComputeNetwork, state: &State, addresses: &[IpNet], facts: &mut BTreeSet<Fact>) {
    for nat in outbound_policies(&endpoint.document) {
        translation_facts(&nat, network, state, addresses, facts);
    }
}

fn translation_facts(nat: &OutBoundNat, network: &HostComputeNetwork, state: &State, addresses: &[IpNet], facts: &mut BTreeSet<Fact>) {
    let own = nat.virtual_ip.parse::<IpAddr>().ok();
    let exceptions = merged(nat.exceptions.iter().map(String::as_str));
    let destinations = merged(nat.destinations.iter().map(String::as_str));
    for ipv6 in [false, true] {
        let of_family = |net: &&IpNet| net.addr().is_ipv6() == ipv6;
        let exceptions: Vec<IpNet> = exceptions.iter().filter(of_family).copied().collect();
        let listed: Vec<IpNet> = destinations.iter().filter(of_family).copied().collect();
        let host = host_address(network, state, ipv6);
        let Some(source) = own.filter(|own| own.is_ipv6() == ipv6).or(host) else { continue };
        // Destinations of the other family alone translate nothing of this one.
        if listed.is_empty() && !destinations.is_empty() {
            continue;
        }
        let class = class_of(source, &exceptions, &listed);
        facts.insert(Fact::Rule(Rule::Source { class, address: source }));
        facts.extend(exceptions.into_iter().map(|destination| Fact::Rule(Rule::Exception { class, destination })));
        facts.extend(listed.into_iter().map(|destination| Fact::Rule(Rule::Destination { class, destination })));
        let addresses = addresses.iter().map(IpNet::addr).filter(|address| address.is_ipv6() == ipv6);
        facts.extend(addresses.map(|address| Fact::Rule(Rule::Outbound { address, class })));
    }
}

/// The number of a class follows from its contents, so endpoints with equal policies share it and a restart finds it again.
pub(super) fn class_of(source: IpAddr, exceptions: &[IpNet], destinations: &[IpNet]) -> NatClass {
    let hash = stable_hash(&format!("{source} {exceptions:?} {destinations:?}"));
    let flag = if destinations.is_empty() { 0 } else { ONLY_DESTINATIONS };
    0x8000_0000 | (hash & !ONLY_DESTINATIONS) | flag
}

fn port_mapping_facts(endpoint: &Endpoint, addresses: &[IpNet], facts: &mut BTreeSet<Fact>) {
    for mapping in endpoint.document.policies.iter().filter_map(EndpointPolicy::as_port_mapping) {
        let ipv6 = mapping.flags.contains(NatFlags::IPV6);
        let vip = Vip::new(mapping.vip.parse().ok(), ipv6, mapping.protocol, mapping.external_port);
        let address = addresses.iter().map(IpNet::addr).find(|address| address.is_ipv6() == vip.address.is_ipv6());
        let Some(address) = address else { continue };
        single(vip, address, mapping.internal_port, mapping.flags.contains(NatFlags::LOCAL_ROUTED_VIP), facts);
    }
}

/// Where the endpoint's packets go that its gateway does not decide: its `SDNRoute`s and the routing rules that name it. With `NeedEncap`
/// they go by the host, else to the next hop. What has an endpoint of the host for its gateway goes by the host, too.
fn route_facts(id: &Guid, endpoint: &Endpoint, port: &Port, state: &State, facts: &mut BTreeSet<Fact>) {
    let own = endpoint.document.policies.iter().filter_map(EndpointPolicy::as_sdn_route);
    let named = state.routes.values().filter(|route| route.host_compute_endpoints.contains(id)).flat_map(|route| route.routes.iter().cloned());
    let network = endpoint.document.host_compute_network;
    let hosts = |hop: IpAddr| state.index().local_endpoint_at(network, hop).is_some_and(|id| state.endpoints.get(&id).is_some_and(|row| row.on_host));
    let mut paths: Vec<String> = port.routes.iter().filter(|(_, hop, _)| hosts(*hop)).map(|(prefix, ..)| prefix.to_string()).collect();
    let mut hops: BTreeMap<IpNet, Option<IpAddr>> = BTreeMap::new();
    for route in own.chain(named) {
        let hop = route.next_hop.parse::<IpAddr>().ok();
        let by_host = route.need_encap || hop.is_some_and(hosts);
        if let Some(destination) = prefix(&route.destination_prefix) {
            hops.insert(destination, hop.filter(|hop| !by_host && hop.is_ipv4() == destination.addr().is_ipv4()));
        }
        if by_host {
            paths.push(route.destination_prefix);
        }
    }
    for destination in merged(paths.iter().map(String::as_str)) {
        let addresses = port.addresses.iter().map(IpNet::addr).filter(|address| address.is_ipv4() == destination.addr().is_ipv4());
        facts.extend(addresses.map(|address| Fact::Rule(Rule::HostPath { address, destination })));
    }
    for (destination, address) in &hops {
        let Some(hop) = address.map(|address| Hop { address, neighbour: true }) else { continue };
        for destination in without(*destination, &hops.keys().copied().collect::<Vec<_>>()) {
            let of_family = port.addresses.iter().map(IpNet::addr).filter(|address| address.is_ipv4() == hop.address.is_ipv4());
            facts.extend(of_family.map(|address| Fact::Rule(Rule::PodHop { address, destination, hop })));
        }
        let ipv6 = hop.address.is_ipv6();
        facts.extend(next_hop(hop).into_iter().chain([Link::Hops { ipv6 }.into(), Rule::PodHops { ipv6 }.into()]));
    }
}

/// The parts of a prefix that are in none of the `others` that are longer.
fn without(net: IpNet, others: &[IpNet]) -> Vec<IpNet> {
    let inside: Vec<IpNet> = others.iter().filter(|other| net.contains(*other) && **other != net).copied().collect();
    match net.subnets(net.prefix_len() + 1) {
        Ok(halves) if !inside.is_empty() => halves.filter(|half| !inside.contains(half)).flat_map(|half| without(half, &inside)).collect(),
        _ => vec![net],
    }
}

/// The endpoint's connections end at a proxy: the host's where it has no address of its own.
fn proxy_facts(endpoint: &Endpoint, network: &HostComputeNetwork, addresses: &[IpNet], facts: &mut BTreeSet<Fact>) {
    let Some(proxy) = settings::<L4Proxy>(endpoint, &EndpointPolicyType::L4Proxy) else { return };
    let host = management(network).map(IpAddr::from);
    let to = proxy.ip.parse::<IpAddr>().ok().filter(|address| !address.is_loopback()).or(host);
    let (Some(to), Ok(port)) = (to, proxy.port.as_str().parse()) else { return };
    let everything = if to.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
    let Some(destination) = prefix(if proxy.destination.is_empty() { everything } else { &proxy.destination }) else { return };
    let exceptions = merged(proxy.exception_list.iter().map(String::as_str));
    for address in addresses.iter().map(IpNet::addr).filter(|address| address.is_ipv4() == to.is_ipv4()) {
        let of_family = exceptions.iter().filter(|net| net.addr().is_ipv4() == to.is_ipv4());
        facts.extend(of_family.map(|destination| Fact::Rule(Rule::Unproxied { address, destination: *destination })));
        facts.insert(Fact::Rule(Rule::Proxied { address, protocol: proxy.protocol, destination, proxy: (to, port) }));
    }
}
