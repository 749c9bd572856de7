//! Compiler of overlays: a tunnel, the subnets and the remote endpoints behind it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use hcn::document::NetworkPolicyType;
use hcn::{Guid, HostComputeNetwork, NetworkPolicy, NetworkType};
use ipnet::IpNet;

use super::{bridge_of, management, prefix};
use crate::fact::{Fact, Link, Rule, tunnel_name};
use crate::mac::Mac;
use crate::state::Endpoint;
use crate::switches::Switches;

/// The port of VXLAN (IANA).
const PORT: u16 = 4789;

/// What a tunnel is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tunnel {
    pub name: String,
    vni: u32,
    port: u16,
    local: Ipv4Addr,
    mac: Mac,
}

/// The way to a prefix on another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    host: IpAddr,
    /// That host's distributed router.
    mac: Mac,
    segment: u32,
}

/// The network's RemoteSubnetRoutes. A prefix that another route has already is not honoured until that one is gone.
fn ways(network: &HostComputeNetwork) -> BTreeMap<IpNet, Way> {
    let mut ways = BTreeMap::new();
    for route in network.policies.iter().filter_map(NetworkPolicy::as_remote_subnet_route) {
        if let (Some(prefix), Ok(host), Ok(mac)) =
            (prefix(&route.destination_prefix), route.provider_address.parse(), route.distributed_router_mac_address.parse())
        {
            ways.entry(prefix).or_insert(Way { host, mac, segment: route.isolation_id });
        }
    }
    ways
}

/// Where the network's routes lead an address: the longest prefix decides.
fn host_of(ways: &BTreeMap<IpNet, Way>, address: IpAddr) -> Option<IpAddr> {
    ways.iter().filter(|(prefix, _)| prefix.contains(&address)).max_by_key(|(prefix, _)| prefix.prefix_len()).map(|(_, way)| way.host)
}

/// The prefixes that a change of the network leads elsewhere.
pub(super) fn moved_prefixes(before: &HostComputeNetwork, after: &HostComputeNetwork) -> Vec<IpNet> {
    let (before, after) = (ways(before), ways(after));
    before.keys().chain(after.keys()).filter(|prefix| before.get(*prefix) != after.get(*prefix)).copied().collect()
}

/// The MAC of an overlay's distributed router.
pub(super) fn router(network: &HostComputeNetwork) -> Option<Mac> {
    let mac = network.policies.iter().find_map(NetworkPolicy::as_dr_mac_address)?;
    (network.network_type == NetworkType::Overlay).then(|| mac.parse().ok())?
}

/// The tunnel of an overlay: of its first subnet's segment.
pub(super) fn tunnel_of(id: &Guid, network: &HostComputeNetwork) -> Option<Tunnel> {
    let (mac, local) = (router(network)?, management(network)?);
    let vni = network.subnets().find_map(hcn::Subnet::vsid)?;
    let port = network.policies.iter().find_map(NetworkPolicy::as_vxlan_port).unwrap_or(PORT);
    Some(Tunnel { name: tunnel_name(id, vni, port, local), vni, port, local, mac })
}

pub(super) fn network_facts(id: &Guid, network: &HostComputeNetwork, switches: &Switches, facts: &mut BTreeSet<Fact>) {
    if network.network_type != NetworkType::Overlay {
        return;
    }
    let bridge = bridge_of(id, network);
    let host_route = network.policies.iter().any(|policy| policy.policy_type == NetworkPolicyType::HostRoute);
    if switches.host_needs_route && !host_route {
        facts.insert(Fact::Rule(Rule::Hostless { bridge: bridge.clone() }));
    }
    facts.insert(Fact::Rule(Rule::OverlayLink { link: bridge }));
    facts.extend(network.subnets().filter_map(|subnet| prefix(&subnet.ip_address_prefix)).map(|prefix| Rule::OverlayPrefix(prefix).into()));
    let Some(Tunnel { name, vni, port, local, mac }) = tunnel_of(id, network) else { return };
    facts.insert(Fact::Rule(Rule::OverlayLink { link: name.clone() }));
    for (prefix, Way { host, mac, segment }) in ways(network) {
        let router = prefix.network();
        let segment = Some(segment).filter(|id| *id != vni && *id != 0);
        facts.insert(Fact::Link(Link::Peer { tunnel: name.clone(), mac, host, vni: segment }));
        facts.insert(Fact::Link(Link::Neighbour { link: name.clone(), address: router, mac }));
        facts.insert(Fact::Link(Link::Route { tunnel: name.clone(), prefix, router: Some(router) }));
    }
    facts.insert(Fact::Rule(Rule::TunnelLink { tunnel: name.clone() }));
    facts.insert(Fact::Link(Link::Tunnel { name, vni, port, local, mac }));
}

/// A remote endpoint is a way to another host. What is on this host needs none, nor what a RemoteSubnetRoute leads to the same host; on other
/// types of network the fabric has the ways.
pub(super) fn remote_facts(endpoint: &Endpoint, network: &HostComputeNetwork, switches: &Switches, facts: &mut BTreeSet<Fact>) {
    let Some(tunnel) = tunnel_of(&endpoint.document.host_compute_network, network) else { return };
    let provider = endpoint.document.policies.iter().rev().find_map(hcn::EndpointPolicy::as_provider_address);
    let (Some(host), Some(mac)) = (provider.filter(|host| *host != IpAddr::from(tunnel.local)), endpoint.mac()) else { return };
    let Tunnel { name, .. } = tunnel;
    let ways = if switches.remote_endpoint_has_own_mac { BTreeMap::new() } else { ways(network) };
    let routed = |address: &IpAddr| host_of(&ways, *address) == Some(host);
    for address in endpoint.addresses().map(|address| IpAddr::from(address.addr())).filter(|address| !routed(address)) {
        facts.insert(Fact::Link(Link::Neighbour { link: name.clone(), address, mac }));
        facts.insert(Fact::Link(Link::Route { tunnel: name.clone(), prefix: IpNet::from(address), router: None }));
        facts.insert(Fact::Link(Link::Peer { tunnel: name.clone(), mac, host, vni: None }));
    }
}

/// The MACs by which other hosts know a local endpoint: its own, and the one that kube-proxy gives to remote endpoints.
pub(super) fn local_facts(endpoint: &Endpoint, network: &HostComputeNetwork, facts: &mut BTreeSet<Fact>) {
    let Some(tunnel) = tunnel_of(&endpoint.document.host_compute_network, network) else { return };
    let known = endpoint.addresses().map(|address| {
        let [a, b, c, d] = address.addr().octets();
        Mac([0x02, 0x11, a, b, c, d])
    });
    facts.extend(known.chain(endpoint.mac()).map(|mac| Fact::Rule(Rule::TunnelMac { tunnel: tunnel.name.clone(), mac })));
}
