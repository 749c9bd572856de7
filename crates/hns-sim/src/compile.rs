//! Compiler from objects to the facts that the kernel must hold. Pure.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use hcn::document::{EndpointPolicyType, NetworkFlags, NetworkPolicyType};
use hcn::{EndpointPolicy, Guid, HostComputeNamespace, HostComputeNetwork, Kind, NamespaceType, NetworkPolicy, NetworkType, Protocol};
use ipnet::IpNet;

use crate::fact::{Distribution, Fact, Forwarding, Hop, Link, Rule, Seen, Selector, Vip, bridge_name, uplink_bridge};
use crate::mac::Mac;
use crate::model::{is_external, is_nat};
use crate::state::{Change, Endpoint, Object, State};
use crate::switches::Switches;

mod access;
mod balancers;
mod endpoints;
mod overlay;

pub(crate) use endpoints::outbound_policies;

/// The facts of an object, given the networks and the routing rules of `state`.
pub fn facts(object: &Object, id: &Guid, state: &State, switches: &Switches) -> BTreeSet<Fact> {
    let mut facts = BTreeSet::new();
    match object {
        Object::Network(network) => network_facts(id, network, switches, &mut facts),
        Object::Endpoint(endpoint) => {
            if let Some(network) = state.networks.get(&endpoint.document.host_compute_network) {
                endpoints::facts(id, endpoint, network, state, switches, &mut facts);
            }
        }
        // The host's own compartment exists without a fact, and those of virtual machines are inside these.
        Object::Namespace(namespace) if namespace.namespace_type == NamespaceType::Host && !awaits_compartment(namespace) => {
            facts.insert(Fact::Compartment(*id));
        }
        Object::Namespace(_) => {}
        Object::Balancer(balancer) => balancers::facts(balancer, state, switches, &mut facts),
        // A routing rule is one of the endpoints that it names.
        Object::Route(_) => {}
    }
    facts
}

/// Other objects whose facts a change may change: asked before it is made.
pub fn dependents(change: &Change, state: &State) -> Vec<(Kind, Guid)> {
    match (change.kind, &change.after) {
        (Kind::Network, Some(Object::Network(after))) => {
            let Some(before) = state.networks.get(&change.id) else { return Vec::new() };
            let endpoints = || state.index().endpoints_of(change.id).map(|id| (Kind::Endpoint, id));
            // What pods and load balancers leave as is the host's address on the network.
            if before.management_ip() != after.management_ip() {
                endpoints().chain(state.index().balancers_of(change.id).map(|id| (Kind::LoadBalancer, id))).collect()
            } else if overlay::tunnel_of(&change.id, before) != overlay::tunnel_of(&change.id, after) || ruling(before) != ruling(after) {
                endpoints().collect()
            } else {
                // A remote endpoint may have become one that a route leads to, or the reverse.
                let moved = overlay::moved_prefixes(before, after);
                let within = |address: Ipv4Addr| moved.iter().any(|prefix| prefix.contains(&IpAddr::from(address)));
                let leads = |id: &Guid| state.endpoints.get(id).is_some_and(|row| row.is_remote() && row.v4.is_some_and(within));
                if moved.is_empty() { Vec::new() } else { endpoints().filter(|(_, id)| leads(id)).collect() }
            }
        }
        (Kind::Namespace, Some(Object::Namespace(after))) => {
            let late = |namespace: &HostComputeNamespace| awaits_compartment(namespace) != awaits_compartment(after);
            let before = state.namespaces.get(&change.id).filter(|before| late(before));
            before
                .into_iter()
                .flat_map(HostComputeNamespace::endpoints)
                .filter(|id| state.endpoints.contains_key(id))
                .map(|id| (Kind::Endpoint, id))
                .collect()
        }
        (Kind::Endpoint, after) => {
            let before = state.endpoints.get(&change.id).filter(|row| row.on_host).and_then(|row| gateway(&row.read()));
            let after = after.as_ref().and_then(|object| if let Object::Endpoint(endpoint) = object { gateway(endpoint) } else { None });
            let networks = [&before, &after].into_iter().filter(|_| before != after).flatten().map(|(network, _)| *network);
            networks.flat_map(|network| state.index().endpoints_of(network)).map(|id| (Kind::Endpoint, id)).collect()
        }
        (Kind::SdnRoute, after) => {
            let before = state.routes.get(&change.id);
            let after = after.as_ref().and_then(|object| if let Object::Route(route) = object { Some(route) } else { None });
            let named = before.into_iter().chain(after).flat_map(|route| &route.host_compute_endpoints);
            named.filter(|id| state.endpoints.contains_key(id)).map(|id| (Kind::Endpoint, *id)).collect()
        }
        _ => Vec::new(),
    }
}

/// The network and addresses of an endpoint of the host: pods whose gateway it is send by the host.
fn gateway(endpoint: &Endpoint) -> Option<(Guid, Vec<IpNet>)> {
    endpoint.on_host.then(|| (endpoint.document.host_compute_network, endpoint.all_addresses().collect()))
}

/// Whether a namespace of this host has an id and not yet a compartment: then it has no number of one.
pub(crate) fn awaits_compartment(namespace: &HostComputeNamespace) -> bool {
    namespace.namespace_type == NamespaceType::Host && namespace.namespace_id == 0
}

/// The rules that every endpoint of a network has, and the sets that rules inside their compartments spell out.
fn ruling(network: &HostComputeNetwork) -> Vec<&NetworkPolicy> {
    let switched = forwarding(&network.network_type) == Forwarding::Switched;
    let spelt = |policy: &&NetworkPolicy| switched && policy.policy_type == NetworkPolicyType::SetPolicy;
    network.policies.iter().filter(|policy| policy.policy_type == NetworkPolicyType::NetworkAcl || spelt(policy)).collect()
}

/// Whether the kernel is programmed for IPv6.
pub const HAS_IPV6: bool = true;

/// Whether the kernel is programmed for networks of that type.
pub fn is_enforced_network(network_type: &NetworkType) -> bool {
    !matches!(network_type, NetworkType::Mirrored | NetworkType::Infiniband | NetworkType::Other(_))
}

/// Whether the kernel enforces a network policy, or need not.
pub fn is_enforced_network_policy(policy: &NetworkPolicy) -> bool {
    policy.policy_type != NetworkPolicyType::L4Proxy
}

/// Whether the kernel enforces an endpoint policy, or need not.
pub fn is_enforced_endpoint_policy(policy: &EndpointPolicy) -> bool {
    use EndpointPolicyType as Type;
    !matches!(policy.policy_type, Type::L4WfpProxy | Type::Encryption | Type::Firewall | Type::Vlan)
}

/// A prefix, or one address.
fn prefix(text: &str) -> Option<IpNet> {
    let net = text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
    net.map(|net: IpNet| net.trunc())
}

/// The same addresses in the fewest prefixes, none within another.
fn merged<'a>(prefixes: impl IntoIterator<Item = &'a str>) -> Vec<IpNet> {
    IpNet::aggregate(&prefixes.into_iter().filter_map(prefix).collect())
}

/// The host's own address on the network.
fn management(network: &HostComputeNetwork) -> Option<Ipv4Addr> {
    match network.management_ip() {
        Some(IpAddr::V4(address)) => Some(address),
        _ => None,
    }
}

/// The host's own address of a family, by which what leaves the network is known.
fn host_address(network: &HostComputeNetwork, state: &State, ipv6: bool) -> Option<IpAddr> {
    if ipv6 { state.host_ipv6.filter(|_| is_external(&network.network_type)).map(IpAddr::V6) } else { management(network).map(IpAddr::V4) }
}

fn forwarding(network_type: &NetworkType) -> Forwarding {
    match network_type {
        NetworkType::Internal | NetworkType::Private | NetworkType::Transparent => Forwarding::Switched,
        _ => Forwarding::Routed,
    }
}

/// The bridge of a network. Networks that are part of the LAN share the adapter's.
fn bridge_of(id: &Guid, network: &HostComputeNetwork) -> String {
    if network.network_type == NetworkType::Transparent { uplink_bridge() } else { bridge_name(id) }
}

fn network_facts(id: &Guid, network: &HostComputeNetwork, switches: &Switches, facts: &mut BTreeSet<Fact>) {
    let bridge = bridge_of(id, network);
    facts.insert(Fact::Link(Link::Bridge { name: bridge.clone(), forwarding: forwarding(&network.network_type) }));
    if switches.block_other_protocols && network.network_type != NetworkType::Transparent {
        facts.insert(Fact::Rule(Rule::Closed { bridge: bridge.clone() }));
    }
    if network.network_type == NetworkType::Transparent {
        facts.insert(Fact::Link(Link::Uplink { bridge }));
    } else {
        facts.insert(Fact::Link(Link::BridgeMac { bridge: bridge.clone(), mac: overlay::router(network).unwrap_or_else(|| own_mac(id)) }));
        // A private network has no host port, so the host has no address there.
        if network.network_type != NetworkType::Private {
            gateway_facts(&bridge, network, facts);
        }
        match network.network_type {
            NetworkType::L2Bridge | NetworkType::L2Tunnel if switches.host_needs_route => {
                facts.insert(Fact::Rule(Rule::Guarded { bridge: bridge.clone() }));
            }
            _ => {}
        }
        if network.network_type == NetworkType::L2Tunnel {
            facts.extend([Fact::Link(Link::Fabric), Fact::Rule(Rule::ToFabric { bridge })]);
        }
    }
    if is_nat(&network.network_type) {
        facts.extend(network.subnets().filter_map(|subnet| prefix(&subnet.ip_address_prefix)).map(|prefix| Rule::Masquerade(prefix).into()));
        name_server_facts(network, facts);
    }
    overlay::network_facts(id, network, switches, facts);
    access::set_facts(id, network, facts);
}

/// An address of the host on a bridge; rules know it too.
fn bridge_address(bridge: &str, address: IpNet) -> [Fact; 2] {
    [Link::BridgeAddress { bridge: bridge.to_owned(), address }.into(), Rule::HostAddress(address.addr()).into()]
}

/// A next hop; rules find its address by its mark.
fn next_hop(hop: Hop) -> [Fact; 2] {
    [Link::Hop(hop).into(), Rule::HopAddress(hop).into()]
}

/// A bridge's own MAC is fixed, or it would follow the bridge's ports and pods would lose their gateway.
fn own_mac(id: &Guid) -> Mac {
    let [.., a, b, c, d] = *id.0.as_bytes();
    Mac([0x02, 0x4d, a, b, c, d])
}

fn gateway_facts(bridge: &str, network: &HostComputeNetwork, facts: &mut BTreeSet<Fact>) {
    for subnet in network.subnets() {
        if let (Some(prefix), Some(gateway)) = (subnet.prefix(), subnet.gateway())
            && prefix.addr().is_ipv4() == gateway.is_ipv4()
            && let Ok(address) = IpNet::new(gateway, prefix.prefix_len())
        {
            facts.extend(bridge_address(bridge, address));
        }
    }
}

/// The host answers for the network's name server at the gateway.
fn name_server_facts(network: &HostComputeNetwork, facts: &mut BTreeSet<Fact>) {
    let server = network.dns.server_list.iter().find_map(|server| server.parse::<Ipv4Addr>().ok());
    let Some(server) = server.filter(|_| network.flags.contains(NetworkFlags::ENABLE_DNS_PROXY)) else { return };
    for gateway in network.subnets().filter_map(|subnet| subnet.gateway().filter(IpAddr::is_ipv4)) {
        for protocol in [Protocol::UDP, Protocol::TCP] {
            let vip = Vip { address: gateway, protocol, port: 53 };
            single(vip, server.into(), 53, false, facts);
        }
    }
}

/// A VIP with one backend, which sees the client.
fn single(vip: Vip, address: IpAddr, port: u16, host: bool, facts: &mut BTreeSet<Fact>) {
    let selector = Selector {
        ipv6: address.is_ipv6(),
        count: 1,
        distribution: Distribution::Connection,
        any_host_address: vip.address.is_unspecified(),
        seen: Seen::Client,
        host,
        guarded: false,
        kept: false,
        mux: false,
    };
    facts.insert(Fact::Rule(Rule::Selector(selector)));
    facts.insert(Fact::Rule(Rule::Backend { vip, slot: 0, address, port }));
    facts.insert(Fact::Rule(Rule::Vip { vip, selector }));
}

/// The protocols that a VIP can have.
pub fn is_balanced(protocol: Protocol) -> bool {
    matches!(protocol, Protocol::TCP | Protocol::UDP | Protocol::SCTP)
}
