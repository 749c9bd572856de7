//! Validation and effects of calls on load balancers and routes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use hcn::document::DistributionType;
use hcn::{Args, Guid, HResult, HnsVersion, HostComputeLoadBalancer, HostComputeNetwork, HostComputeRoute, Kind, LoadBalancerFlags, NetworkType};
use ipnet::IpNet;

use super::{Context, Result, Staged, explained, failure, new_id, read};
use crate::compile::is_balanced;
use crate::state::{Balancer, Change, EndpointRow, Listener, Object};

/// The version in which a modify succeeds without an effect.
const MODIFIES_NOTHING: HnsVersion = HnsVersion::new(15, 4);

/// The first port that Windows takes for connections of its own.
const FIRST_EPHEMERAL: u16 = 49152;

/// Blocks of 64 ports in the ephemeral range.
const BLOCKS_OF_PORTS: usize = (u16::MAX - FIRST_EPHEMERAL + 1) as usize / 64;

/// A load balancer that works.
const HEALTHY: u32 = 2;

impl Context<'_> {
    pub(super) fn create_balancer(&self, args: &Args<'_>) -> Result<Staged> {
        let document: HostComputeLoadBalancer = read(args.settings)?;
        let id = new_id(args, document.id);
        self.put_new_balancer(id, document)
    }

    pub(super) fn put_new_balancer(&self, id: Guid, document: HostComputeLoadBalancer) -> Result<Staged> {
        if self.state.balancers.contains_key(&id) {
            return Err(failure(self.switches.duplicate_load_balancer));
        }
        let direct = document.flags.contains(LoadBalancerFlags::DSR);
        let staged = self.put_balancer(id, document)?;
        let taken = || self.state.balancers.values().filter(|row| !row.flags.contains(LoadBalancerFlags::DSR)).count();
        if !self.switches.hns_preallocate_port_range && !direct && taken() >= BLOCKS_OF_PORTS {
            return Err(explained(HResult::OUT_OF_MEMORY, "The host's ephemeral ports are used up."));
        }
        Ok(Staged { opened: Some((Kind::LoadBalancer, id)), ..staged })
    }

    pub(super) fn modify_balancer(&self, id: Guid, settings: Option<&str>) -> Result<Staged> {
        let document: HostComputeLoadBalancer = read(settings)?;
        if self.switches.version == MODIFIES_NOTHING {
            return Ok(Staged::default());
        }
        if !self.switches.features().modify_load_balancer {
            return Err(failure(HResult::NOT_IMPLEMENTED));
        }
        self.put_balancer(id, document)
    }

    fn put_balancer(&self, id: Guid, mut document: HostComputeLoadBalancer) -> Result<Staged> {
        self.check_vips(&document)?;
        let ipv6 = document.flags.contains(LoadBalancerFlags::IPV6);
        let (network, backends) = self.backends(&document.host_compute_endpoints, ipv6)?;
        if !document.host_compute_network.is_nil() {
            match self.state.networks.contains_key(&document.host_compute_network) {
                false => return Err(failure(HResult::NETWORK_NOT_FOUND)),
                true if document.host_compute_network != network => return Err(failure(HResult::INVALID_JSON_REFERENCE)),
                true => {}
            }
        }
        self.check_source(network, &document)?;
        document.id = id;
        document.state = HEALTHY;
        document.version = self.switches.version.packed();
        let balancer = Balancer { document, network, backends };
        let mut listeners = BTreeSet::new();
        for listener in balancer.listeners() {
            let taken = self.state.index().listener(&listener).is_some_and(|owner| owner != id);
            if taken || !listeners.insert(listener) {
                return Err(failure(self.switches.duplicate_load_balancer));
            }
            self.check_port(listener)?;
        }
        Ok(Staged::change(Change::put(id, Object::Balancer(balancer))))
    }

    fn check_vips(&self, document: &HostComputeLoadBalancer) -> Result<()> {
        let ipv6 = document.flags.contains(LoadBalancerFlags::IPV6);
        if ipv6 {
            self.check_ipv6()?;
        }
        let fits = |vip: &String| vip.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6() == ipv6);
        if !document.frontend_vips.iter().all(fits) {
            return Err(failure(HResult::INVALID_IP));
        }
        if document.port_mappings.is_empty() {
            return Err(failure(HResult::INVALID_POLICY));
        }
        for mapping in &document.port_mappings {
            if mapping.internal_port == 0 {
                return Err(failure(HResult::INVALID_INTERNAL_PORT));
            }
            let spread = [DistributionType::PER_CONNECTION, DistributionType::SOURCE_IP_PROTOCOL, DistributionType::SOURCE_IP];
            if mapping.external_port == 0 || !is_balanced(mapping.protocol) || !spread.contains(&mapping.distribution_type) {
                return Err(failure(HResult::INVALID_PARAMETER));
            }
        }
        if document.host_compute_endpoints.len() > self.switches.most_backends {
            return Err(explained(HResult::INVALID_PARAMETER, "Invalid number of destinations."));
        }
        Ok(())
    }

    /// The source of connections that are not returned directly.
    fn check_source(&self, network: Guid, document: &HostComputeLoadBalancer) -> Result<()> {
        if document.source_vip.is_empty() {
            return Ok(());
        }
        let source: IpAddr = document.source_vip.parse().map_err(|_| failure(HResult::INVALID_IP))?;
        // kube-proxy takes the node's own address where a backend is outside the pods' network.
        let foreign = |network: &HostComputeNetwork| network.network_type == NetworkType::Overlay && network.management_ip() != Some(source);
        let needed = self.switches.source_vip_must_exist
            && !document.flags.contains(LoadBalancerFlags::DSR)
            && self.state.networks.get(&network).is_some_and(foreign);
        if needed && self.state.index().local_endpoint_at(network, source).is_none() {
            return Err(explained(HResult::ADDR_INVALID_OR_RESERVED, "No local endpoint has the SourceVIP."));
        }
        Ok(())
    }

    /// The network and the addresses of backends; none, one that does not exist, or one of another network is a bad reference.
    fn backends(&self, endpoints: &[Guid], ipv6: bool) -> Result<(Guid, Vec<IpAddr>)> {
        let bad = || failure(self.switches.load_balancer_without_endpoint);
        let first = endpoints.first().and_then(|id| self.state.endpoints.get(id)).ok_or_else(bad)?;
        let detached = |row: &EndpointRow| !row.is_remote() && !row.on_host && row.interface.is_none();
        if self.switches.backends_must_be_attached && endpoints.iter().filter_map(|id| self.state.endpoints.get(id)).any(detached) {
            return Err(failure(HResult::PORT_NOT_FOUND));
        }
        if !self.switches.hns_lb_nat_dup_rule_change && endpoints.iter().collect::<BTreeSet<_>>().len() < endpoints.len() {
            return Err(failure(HResult::ALREADY_EXISTS));
        }
        let address = |id: &Guid| {
            let row = self.state.endpoints.get(id).filter(|row| row.network == first.network)?;
            if ipv6 { row.v6.map(IpAddr::V6) } else { row.v4.map(IpAddr::V4) }
        };
        let addresses: Option<Vec<_>> = endpoints.iter().map(address).collect();
        Ok((first.network, addresses.ok_or_else(bad)?))
    }

    /// Refuses a port of the host that its own connections take.
    pub(super) fn check_port(&self, listener: Listener) -> Result<()> {
        let excluded = !self.switches.port_exclusion_change && listener.address.is_none() && listener.port >= FIRST_EPHEMERAL;
        if excluded { Err(failure(HResult::PORT_ALREADY_EXISTS)) } else { Ok(()) }
    }

    /// The rules of a load balancer are on its network's ports: without them the service does not find its way to it.
    pub(super) fn delete_balancer(&self, id: Guid, balancer: &Balancer) -> Result<Staged> {
        if balancer.network.is_nil() && !self.switches.orphaned_load_balancer_deletable {
            return Err(failure(HResult::NETWORK_NOT_FOUND));
        }
        Ok(Staged::change(Change::delete(Kind::LoadBalancer, id)))
    }

    pub(super) fn create_route(&self, args: &Args<'_>) -> Result<Staged> {
        let route: HostComputeRoute = read(args.settings)?;
        self.put_new_route(new_id(args, route.id), route)
    }

    pub(super) fn put_new_route(&self, id: Guid, mut route: HostComputeRoute) -> Result<Staged> {
        if self.state.routes.contains_key(&id) {
            return Err(failure(HResult::ALREADY_EXISTS));
        }
        let exists = |id: &Guid| self.state.endpoints.contains_key(id);
        if route.host_compute_endpoints.is_empty() || !route.host_compute_endpoints.iter().all(exists) {
            return Err(failure(HResult::INVALID_JSON_REFERENCE));
        }
        if !route.host_compute_network.is_nil() && !self.state.networks.contains_key(&route.host_compute_network) {
            return Err(failure(HResult::NETWORK_NOT_FOUND));
        }
        for rule in &route.routes {
            let known = rule.destination_prefix.parse::<IpNet>().is_ok() || rule.destination_prefix.parse::<IpAddr>().is_ok();
            if !known || !rule.next_hop.is_empty() && rule.next_hop.parse::<IpAddr>().is_err() {
                return Err(failure(HResult::INVALID_POLICY));
            }
        }
        route.id = id;
        route.state = 1;
        route.version = self.switches.version.packed();
        let staged = Staged::change(Change::put(id, Object::Route(route)));
        Ok(Staged { opened: Some((Kind::SdnRoute, id)), ..staged })
    }
}
