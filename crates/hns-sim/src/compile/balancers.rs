//! Compiler of load balancers.

use std::collections::BTreeSet;
use std::net::IpAddr;

use hcn::document::{DistributionType, PortMappingFlags};
use hcn::{LoadBalancerFlags, LoadBalancerPortMapping, NetworkType};

use super::endpoints::class_of;
use super::{host_address, next_hop};
use crate::fact::{Distribution, Fact, Hop, Link, Rule, Seen, Selector};
use crate::state::{Balancer, State};
use crate::switches::Switches;

pub(super) fn facts(balancer: &Balancer, state: &State, switches: &Switches, facts: &mut BTreeSet<Fact>) {
    let network = state.networks.get(&balancer.network);
    let document = &balancer.document;
    let ipv6 = document.flags.contains(LoadBalancerFlags::IPV6);
    let backends: Vec<IpAddr> = balancer.backends.iter().filter(|address| address.is_ipv6() == ipv6).copied().collect();
    let count = u16::try_from(backends.len()).unwrap_or(u16::MAX);
    if count == 0 {
        return;
    }
    let host = network.and_then(|network| host_address(network, state, ipv6));
    let seen = seen(balancer, host, switches, ipv6, facts);
    let bridged = network.is_some_and(|network| matches!(network.network_type, NetworkType::L2Bridge | NetworkType::L2Tunnel));
    for vip in balancer.vips() {
        let same = |mapping: &&LoadBalancerPortMapping| (mapping.protocol, mapping.external_port) == (vip.protocol, vip.port);
        let Some(mapping) = document.port_mappings.iter().find(same) else { continue };
        let any_host_address = vip.address.is_unspecified();
        let kept = keeps(mapping, &backends, host) && !any_host_address;
        let mux = mapping.flags.contains(PortMappingFlags::USE_MUX) && returns_directly(switches) && seen != Seen::Client;
        let seen = if kept && mux { Seen::Client } else { seen };
        let selector = Selector {
            ipv6,
            count,
            distribution: distribution(mapping, switches),
            any_host_address,
            seen,
            host: if any_host_address { host_reaches_node_port(mapping, switches) } else { switches.host_reaches_load_balancers },
            guarded: bridged && switches.host_needs_route && seen != Seen::Client,
            kept,
            mux: mux && !kept,
        };
        facts.insert(Fact::Rule(Rule::Selector(selector)));
        for (slot, address) in (0..count).zip(&backends) {
            facts.insert(Fact::Rule(Rule::Backend { vip, slot, address: *address, port: mapping.internal_port }));
            if kept {
                let hop = Hop { address: *address, neighbour: false };
                facts.extend(next_hop(hop).into_iter().chain([Rule::KeptBackend { vip, slot, hop }.into()]));
            }
        }
        if kept {
            facts.extend([Fact::Link(Link::Hops { ipv6 }), Fact::Rule(Rule::Kept { ipv6 })]);
        }
        facts.insert(Fact::Rule(Rule::Vip { vip, selector }));
    }
}

/// Whether packets reach their backend with the address and port that the client dialled. The host itself is behind no port that
/// could take them.
fn keeps(mapping: &LoadBalancerPortMapping, backends: &[IpAddr], host: Option<IpAddr>) -> bool {
    mapping.flags.contains(PortMappingFlags::PRESERVE_DIP) && !backends.iter().any(|address| Some(*address) == host)
}

/// A version without direct server return keeps the flag and does not know it.
fn returns_directly(switches: &Switches) -> bool {
    switches.direct_server_return && switches.features().dsr
}

/// The client address that backends see: the client's with direct server return, else the load balancer's own source, else the host.
fn seen(balancer: &Balancer, host: Option<IpAddr>, switches: &Switches, ipv6: bool, facts: &mut BTreeSet<Fact>) -> Seen {
    if returns_directly(switches) && balancer.document.flags.contains(LoadBalancerFlags::DSR) {
        return Seen::Client;
    }
    let own = balancer.document.source_vip.parse::<IpAddr>().ok().filter(|address| address.is_ipv6() == ipv6);
    let Some(address) = own.or(host) else { return Seen::Link };
    let class = class_of(address, &[], &[]);
    facts.insert(Fact::Rule(Rule::Source { class, address }));
    Seen::Class(class)
}

/// The host's packets to its own addresses do not leave its stack, unless a route sends them to the switch.
fn host_reaches_node_port(mapping: &LoadBalancerPortMapping, switches: &Switches) -> bool {
    let routed = switches.local_routed_vip && mapping.flags.contains(PortMappingFlags::LOCAL_ROUTED_VIP);
    routed || !switches.node_port_needs_local_routed_vip
}

/// A version without session affinity spreads each connection by itself.
fn distribution(mapping: &LoadBalancerPortMapping, switches: &Switches) -> Distribution {
    match mapping.distribution_type {
        _ if !switches.features().session_affinity => Distribution::Connection,
        DistributionType::SOURCE_IP_PROTOCOL => Distribution::SourceProtocol,
        DistributionType::SOURCE_IP => Distribution::Source,
        _ => Distribution::Connection,
    }
}
