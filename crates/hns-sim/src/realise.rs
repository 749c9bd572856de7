//! What each object means in the kernel. Pure: from documents to facts.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use hcn::document::{Action, DistributionType, EncapOverhead, EndpointPolicyType, InterfaceParameters, NetworkPolicyType};
use hcn::{
    EndpointPolicy, Guid, HostComputeNetwork, Kind, LoadBalancerFlags, LoadBalancerPortMapping, NamespaceType, NatFlags, NetworkPolicy, NetworkType,
    OutBoundNat, Protocol,
};
use ipnet::{IpNet, Ipv4Net};

use crate::fact::{BALANCED, Fact, Forwarding, Frontend, NatClass, ONLY_DESTINATIONS, Pick, Port, Spread, bridge_name, port_name};
use crate::state::{Balancer, Change, Endpoint, Object, State};
use crate::switches::Switches;

/// The facts of an object, given the networks of `state`.
pub fn facts(object: &Object, id: &Guid, state: &State, switches: &Switches) -> BTreeSet<Fact> {
    let mut facts = BTreeSet::new();
    match object {
        Object::Network(network) => network_facts(id, network, &mut facts),
        Object::Endpoint(endpoint) => {
            if let Some(network) = state.networks.get(&endpoint.document.host_compute_network) {
                endpoint_facts(id, endpoint, network, &mut facts);
            }
        }
        // The host's own compartment exists without a fact, and those of virtual machines are inside these.
        Object::Namespace(namespace) if namespace.namespace_type == NamespaceType::Host => drop(facts.insert(Fact::Compartment(*id))),
        Object::Namespace(_) => {}
        Object::Balancer(balancer) => balancer_facts(balancer, switches, &mut facts),
        // Every packet of a pod takes the host's path already, which is what these rules ask for.
        Object::Route(_) => {}
    }
    facts
}

/// Other objects whose facts a change may change: asked before it is made.
pub fn dependents(change: &Change, state: &State) -> Vec<(Kind, Guid)> {
    let (Kind::Network, Some(Object::Network(after))) = (change.kind, &change.after) else { return Vec::new() };
    // What pods leave as is the host's address on the network.
    let same = state.networks.get(&change.id).is_none_or(|before| before.management_ip() == after.management_ip());
    if same { Vec::new() } else { state.index().endpoints_of(change.id).map(|id| (Kind::Endpoint, id)).collect() }
}

/// Whether packets of IPv6 meet what the model keeps.
pub const HAS_IPV6: bool = false;

/// Whether networks of that type are made real.
pub fn is_real_network(network_type: &NetworkType) -> bool {
    matches!(network_type, NetworkType::L2Bridge | NetworkType::Nat | NetworkType::Internal | NetworkType::Private)
}

/// Whether packets meet a network policy, or need not.
pub fn is_real_network_policy(policy: &NetworkPolicy) -> bool {
    !matches!(policy.policy_type, NetworkPolicyType::NetworkAcl | NetworkPolicyType::L4Proxy)
}

/// Whether packets meet an endpoint policy, or need not.
pub fn is_real_endpoint_policy(policy: &EndpointPolicy) -> bool {
    use EndpointPolicyType as Type;
    match policy.policy_type {
        // Everything passes here, so a rule that lets pass is kept.
        Type::Acl => policy.as_acl().is_some_and(|acl| acl.action == Action::Allow),
        Type::TierAcl | Type::L4Proxy | Type::L4WfpProxy | Type::Encryption | Type::Firewall => false,
        _ => true,
    }
}

fn v4(prefix: &str) -> Option<Ipv4Net> {
    match prefix.parse() {
        Ok(IpNet::V4(net)) => Some(net),
        _ => prefix.parse::<Ipv4Addr>().ok().map(Ipv4Net::from),
    }
}

/// The host's own address on the network.
fn management(network: &HostComputeNetwork) -> Option<Ipv4Addr> {
    match network.management_ip() {
        Some(IpAddr::V4(address)) => Some(address),
        _ => None,
    }
}

fn forwarding(network_type: &NetworkType) -> Forwarding {
    match network_type {
        NetworkType::Internal | NetworkType::Private => Forwarding::Switched,
        _ => Forwarding::Routed,
    }
}

fn network_facts(id: &Guid, network: &HostComputeNetwork, facts: &mut BTreeSet<Fact>) {
    let bridge = bridge_name(id);
    facts.insert(Fact::Bridge { name: bridge.clone(), forwarding: forwarding(&network.network_type) });
    // A private network has no host port, so the host has no address there.
    if network.network_type != NetworkType::Private {
        for subnet in network.subnets() {
            if let (Some(IpNet::V4(prefix)), Some(IpAddr::V4(gateway))) = (subnet.prefix(), subnet.gateway())
                && let Ok(address) = Ipv4Net::new(gateway, prefix.prefix_len())
            {
                facts.insert(Fact::BridgeAddress { bridge: bridge.clone(), address });
            }
        }
    }
    if network.network_type == NetworkType::Nat {
        facts.extend(network.subnets().filter_map(|subnet| v4(&subnet.ip_address_prefix)).map(|prefix| Fact::Masquerade(prefix.trunc())));
    }
    facts.extend(management(network).map(|address| Fact::Source { class: BALANCED, address }));
}

fn endpoint_facts(id: &Guid, endpoint: &Endpoint, network: &HostComputeNetwork, facts: &mut BTreeSet<Fact>) {
    let bridge = bridge_name(&endpoint.document.host_compute_network);
    let addresses: Vec<Ipv4Net> = endpoint.addresses().collect();
    if endpoint.on_host {
        facts.extend(addresses.iter().map(|address| Fact::BridgeAddress { bridge: bridge.clone(), address: *address }));
        return;
    }
    let (Some(interface), Some(mac)) = (&endpoint.interface, endpoint.mac()) else { return };
    let forwarding = forwarding(&network.network_type);
    for address in &addresses {
        facts.insert(Fact::Neighbour { bridge: bridge.clone(), address: address.addr(), mac });
    }
    outbound_facts(endpoint, network, &addresses, facts);
    port_mapping_facts(endpoint, &addresses, facts);
    let routes =
        endpoint.document.routes.iter().filter_map(|route| Some((v4(&route.destination_prefix)?, route.next_hop.parse().ok()?, route.metric)));
    facts.insert(Fact::Port(Port {
        name: port_name(id),
        bridge,
        forwarding,
        compartment: endpoint.document.host_compute_namespace,
        interface: interface.clone(),
        mac,
        routes: routes.collect(),
        addresses,
        mtu: settings::<InterfaceParameters>(endpoint, &EndpointPolicyType::InterfaceParameters).map(|parameters| parameters.mtu),
        overhead: settings::<EncapOverhead>(endpoint, &EndpointPolicyType::EncapOverhead).map_or(0, |encap| encap.overhead),
    }));
}

/// The last policy of that type: later ones win.
fn settings<T: serde::de::DeserializeOwned>(endpoint: &Endpoint, policy_type: &EndpointPolicyType) -> Option<T> {
    endpoint.document.policies.iter().rev().find_map(|policy| policy.settings_as(policy_type))
}

fn outbound_facts(endpoint: &Endpoint, network: &HostComputeNetwork, addresses: &[Ipv4Net], facts: &mut BTreeSet<Fact>) {
    let Some(nat) = settings::<OutBoundNat>(endpoint, &EndpointPolicyType::OutBoundNat) else { return };
    let Some(source) = nat.virtual_ip.parse().ok().or(management(network)) else { return };
    let prefixes = |list: &[String]| list.iter().filter_map(|prefix| v4(prefix)).map(|prefix| prefix.trunc()).collect::<BTreeSet<_>>();
    let (exceptions, destinations) = (prefixes(&nat.exceptions), prefixes(&nat.destinations));
    let class = class_of(source, &exceptions, &destinations);
    facts.insert(Fact::Source { class, address: source });
    facts.extend(exceptions.into_iter().map(|destination| Fact::Exception { class, destination }));
    facts.extend(destinations.into_iter().map(|destination| Fact::Destination { class, destination }));
    facts.extend(addresses.iter().map(|address| Fact::Outbound { address: address.addr(), class }));
}

/// The number of a class follows from what it says, so endpoints with equal policies share it and a restart finds it again.
fn class_of(source: Ipv4Addr, exceptions: &BTreeSet<Ipv4Net>, destinations: &BTreeSet<Ipv4Net>) -> NatClass {
    let text = format!("{source} {exceptions:?} {destinations:?}");
    // FNV-1a: stable between versions, unlike the standard library's hasher.
    let hash = text.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let flag = if destinations.is_empty() { 0 } else { ONLY_DESTINATIONS };
    0x8000_0000 | (hash & !ONLY_DESTINATIONS) | flag
}

fn port_mapping_facts(endpoint: &Endpoint, addresses: &[Ipv4Net], facts: &mut BTreeSet<Fact>) {
    let Some(address) = addresses.first() else { return };
    for mapping in endpoint.document.policies.iter().filter_map(EndpointPolicy::as_port_mapping) {
        let frontend = Frontend { address: mapping.vip.parse().ok(), protocol: mapping.protocol, port: mapping.external_port };
        let pick = Pick {
            count: 1,
            spread: Spread::Connection,
            any_host_address: frontend.address.is_none(),
            keep_source: true,
            host: mapping.flags.contains(NatFlags::LOCAL_ROUTED_VIP),
        };
        facts.insert(Fact::Pick(pick));
        facts.insert(Fact::Backend { frontend, slot: 0, address: address.addr(), port: mapping.internal_port });
        facts.insert(Fact::Frontend { frontend, pick });
    }
}

fn balancer_facts(balancer: &Balancer, switches: &Switches, facts: &mut BTreeSet<Fact>) {
    let backends = balancer.backends.iter().filter_map(|address| match address {
        IpAddr::V4(address) => Some(*address),
        IpAddr::V6(_) => None,
    });
    let backends: Vec<Ipv4Addr> = backends.collect();
    let count = u16::try_from(backends.len()).unwrap_or(u16::MAX);
    if count == 0 {
        return;
    }
    let mappings = &balancer.document.port_mappings;
    for frontend in balancer.frontends() {
        let same = |mapping: &&LoadBalancerPortMapping| (mapping.protocol, mapping.external_port) == (frontend.protocol, frontend.port);
        let Some(mapping) = mappings.iter().find(same) else { continue };
        let pick = Pick {
            count,
            spread: spread(mapping, switches),
            any_host_address: frontend.address.is_none(),
            keep_source: switches.direct_server_return && balancer.document.flags.contains(LoadBalancerFlags::DSR),
            host: true,
        };
        facts.insert(Fact::Pick(pick));
        for (slot, address) in (0..count).zip(&backends) {
            facts.insert(Fact::Backend { frontend, slot, address: *address, port: mapping.internal_port });
        }
        facts.insert(Fact::Frontend { frontend, pick });
    }
}

/// A version without session affinity spreads each connection by itself.
fn spread(mapping: &LoadBalancerPortMapping, switches: &Switches) -> Spread {
    match mapping.distribution_type {
        _ if !switches.features().session_affinity => Spread::Connection,
        DistributionType::SOURCE_IP_PROTOCOL => Spread::SourceProtocol,
        DistributionType::SOURCE_IP => Spread::Source,
        _ => Spread::Connection,
    }
}

/// The protocols that a frontend can have.
pub fn is_balanced(protocol: Protocol) -> bool {
    matches!(protocol, Protocol::TCP | Protocol::UDP | Protocol::SCTP)
}
