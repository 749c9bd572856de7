//! Validation and effects of calls on endpoints.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hcn::document::{Acl, Action, Dns, EndpointPolicyType, EndpointResource, MacPool, RuleType, SubnetFlags, v1};
use hcn::{
    Args, Direction, EndpointFlags, EndpointPolicy, EndpointState, Event, Guid, HResult, HostComputeEndpoint, HostComputeNetwork, IpConfiguration,
    Kind, ModifyRequest, NetworkType, Route,
};
use ipnet::IpNet;

use super::{Context, Result, Staged, explained, failure, has_vfp, new_id, policies, read_either};
use crate::latency::mix;
use crate::mac::Mac;
use crate::state::{Change, Endpoint, Object};

/// The priority of the rules that an endpoint without rules has.
const IMPLICIT_PRIORITY: u16 = 65500;

/// A subnet as endpoints need it.
struct Place {
    prefix: IpNet,
    gateway: Option<IpAddr>,
    gateway_reserved: bool,
}

fn places(network: &HostComputeNetwork) -> Vec<Place> {
    let place = |subnet: &hcn::Subnet| {
        let gateway_reserved = !subnet.flags.contains(SubnetFlags::DO_NOT_RESERVE_GATEWAY_ADDRESS);
        Some(Place { prefix: subnet.prefix()?.trunc(), gateway: subnet.gateway(), gateway_reserved })
    };
    network.subnets().filter_map(place).collect()
}

impl Place {
    /// Whether the address stands for the subnet or all of it.
    fn is_special(&self, address: IpAddr) -> bool {
        address == self.prefix.network() || self.prefix.addr().is_ipv4() && address == self.prefix.broadcast()
    }

    /// The address at a place of the subnet.
    fn at(&self, offset: u64) -> IpAddr {
        match self.prefix.network() {
            IpAddr::V4(network) => Ipv4Addr::from(u32::from(network).wrapping_add(offset as u32)).into(),
            IpAddr::V6(network) => Ipv6Addr::from(u128::from(network).wrapping_add(offset.into())).into(),
        }
    }

    /// How many addresses a search may try: all of an IPv4 subnet up to /16, else 65,536.
    fn room(&self) -> u64 {
        let bits = self.prefix.max_prefix_len() - self.prefix.prefix_len();
        1 << bits.min(16)
    }
}

impl Context<'_> {
    pub(super) fn create_endpoint(&self, args: &Args<'_>, network: Option<Guid>) -> Result<Staged> {
        let document = read_either(args.settings, v1::endpoint)?;
        self.put_new_endpoint(new_id(args, document.id), network.unwrap_or(document.host_compute_network), document)
    }

    pub(super) fn put_new_endpoint(&self, id: Guid, network_id: Guid, mut document: HostComputeEndpoint) -> Result<Staged> {
        let network = self.state.networks.get(&network_id).ok_or_else(|| self.not_found(Kind::Network))?;
        if self.state.endpoints.contains_key(&id) {
            return Err(failure(HResult::OBJECT_ALREADY_EXISTS));
        }
        document.id = id;
        document.host_compute_network = network_id;
        document.host_compute_namespace = Guid::NIL;
        document.state = EndpointState::CREATED;
        document.version = self.switches.version.packed();
        self.check_policies(&document.policies, &document, network)?;
        if document.is_remote() {
            self.complete_remote(network, &mut document)?;
        } else {
            self.complete_local(network, &mut document)?;
        }
        let endpoint = Endpoint::detached(document);
        self.check_listeners(id, &endpoint, &network.network_type)?;
        Ok(Staged { opened: Some((Kind::Endpoint, id)), ..Staged::change(Change::put(id, Object::Endpoint(endpoint))) })
    }

    /// Checks new policies of an endpoint.
    fn check_policies(&self, given: &[EndpointPolicy], document: &HostComputeEndpoint, network: &HostComputeNetwork) -> Result<()> {
        given.iter().try_for_each(|policy| policies::check_endpoint(policy, document, network, self.switches))
    }

    /// A remote endpoint is only a forwarding entry: no subnet rule on any type of network, no clash with a local one.
    fn complete_remote(&self, network: &HostComputeNetwork, document: &mut HostComputeEndpoint) -> Result<()> {
        if document.ip_configurations.is_empty() {
            return Err(failure(HResult::INVALID_IP));
        }
        for ip in &mut document.ip_configurations {
            let address: IpAddr = ip.ip_address.parse().map_err(|_| failure(HResult::INVALID_IP))?;
            if ip.prefix_length > if address.is_ipv4() { 32 } else { 128 } {
                return Err(failure(HResult::INVALID_PREFIX));
            }
            let taken = self.state.index().local_endpoint_at(network.id, address).is_some();
            if taken && !self.switches.local_and_remote_share_address {
                return Err(failure(self.switches.duplicate_address));
            }
            ip.ip_address = address.to_string();
        }
        self.complete_mac(network, document, false)
    }

    fn complete_local(&self, network: &HostComputeNetwork, document: &mut HostComputeEndpoint) -> Result<()> {
        let places = places(network);
        let leased = document.flags.contains(EndpointFlags::ENABLE_DHCP);
        if let (true, Some(place)) = (document.ip_configurations.is_empty() && !leased, places.first()) {
            let address = self.free_address(network.id, &document.id, place)?;
            document.ip_configurations.push(IpConfiguration { ip_address: address.to_string(), ..IpConfiguration::default() });
        }
        let mut seen = Vec::new();
        for ip in &mut document.ip_configurations {
            let address = self.check_address(network, &places, ip)?;
            if seen.contains(&address) {
                return Err(failure(HResult::INVALID_IP));
            }
            seen.push(address);
        }
        check_routes(&document.routes)?;
        if document.routes.is_empty() {
            let families = [true, false].into_iter().filter(|v4| seen.is_empty() && *v4 || seen.iter().any(|address| address.is_ipv4() == *v4));
            let gateway = |v4: bool| places.iter().find_map(|place| place.gateway.filter(|gateway| gateway.is_ipv4() == v4));
            document.routes.extend(families.filter_map(gateway).map(default_via));
        }
        if document.dns == Dns::default() {
            document.dns = network.dns.clone();
        }
        self.complete_mac(network, document, true)?;
        self.add_own_policies(&network.network_type, document);
        Ok(())
    }

    /// What the service adds to an endpoint's policies.
    fn add_own_policies(&self, network_type: &NetworkType, document: &mut HostComputeEndpoint) {
        let has =
            |document: &HostComputeEndpoint, of_type: &EndpointPolicyType| document.policies.iter().any(|policy| policy.policy_type == *of_type);
        if has_vfp(network_type) && !has(document, &EndpointPolicyType::L2Driver) {
            document.policies.push(EndpointPolicy { policy_type: EndpointPolicyType::L2Driver, ..EndpointPolicy::default() });
        }
        if self.switches.implicit_acls && !has(document, &EndpointPolicyType::Acl) {
            for direction in [Direction::In, Direction::Out] {
                let rule = Acl { action: Action::Allow, direction, rule_type: RuleType::Switch, priority: IMPLICIT_PRIORITY, ..Acl::default() };
                document.policies.push(EndpointPolicy::acl(&rule));
            }
        }
    }

    /// Checks one address of a local endpoint and completes its prefix.
    fn check_address(&self, network: &HostComputeNetwork, places: &[Place], ip: &mut IpConfiguration) -> Result<IpAddr> {
        let address: IpAddr = ip.ip_address.parse().map_err(|_| failure(HResult::INVALID_IP))?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        if address.is_ipv6() {
            self.check_ipv6()?;
        }
        // On a network without subnets addresses are the client's own affair.
        let place = places.iter().find(|place| place.prefix.contains(&address));
        if place.is_none() && !places.is_empty() {
            return Err(failure(HResult::INVALID_IP));
        }
        if let Some(place) = place {
            let gateway = self.switches.reserve_gateway && place.gateway_reserved && place.gateway == Some(address);
            if place.is_special(address) || gateway {
                return Err(failure(HResult::ADDR_INVALID_OR_RESERVED));
            }
        }
        if self.state.index().local_endpoint_at(network.id, address).is_some() {
            return Err(failure(self.switches.duplicate_address));
        }
        if ip.prefix_length == 0 {
            ip.prefix_length = place.map_or(longest, |place| place.prefix.prefix_len());
        }
        let whole = ip.prefix_length == 32 && longest == 32;
        if ip.prefix_length > longest || whole && !self.switches.features().slash32_endpoint_prefixes {
            return Err(failure(HResult::INVALID_PREFIX));
        }
        let known = |id: &Guid| network.subnets().flat_map(|subnet| &subnet.ip_subnets).any(|part| part.id == *id);
        if !ip.ip_subnet_id.is_nil() && !known(&ip.ip_subnet_id) {
            return Err(failure(HResult::SUBNET_NOT_FOUND));
        }
        ip.ip_address = address.to_string();
        Ok(address)
    }

    /// Reads the MAC into HNS's form, or takes one from the network's pool. Local endpoints' MACs are unique.
    fn complete_mac(&self, network: &HostComputeNetwork, document: &mut HostComputeEndpoint, local: bool) -> Result<()> {
        let taken = |mac: Mac| local && self.state.index().local_endpoint_with(network.id, mac).is_some();
        let mac = if document.mac_address.is_empty() {
            from_pool(&network.mac_pool, &document.id, taken)
                .ok_or_else(|| explained(HResult::INVALID_ENDPOINT, "The network's MAC addresses are used up."))?
        } else {
            document.mac_address.parse().map_err(|()| explained(HResult::INVALID_ENDPOINT, "The MAC address cannot be read."))?
        };
        if taken(mac) {
            return Err(failure(self.switches.duplicate_address));
        }
        document.mac_address = mac.to_string();
        Ok(())
    }

    /// A free address of the subnet. HNS's choices look scattered, so the search starts at a place that follows from the endpoint's id.
    fn free_address(&self, network: Guid, endpoint: &Guid, place: &Place) -> Result<IpAddr> {
        let room = place.room();
        let start = mix(endpoint.0.as_u64_pair().1) % room;
        let addresses = (0..room).map(|step| place.at((start + step) % room));
        let free = |address: &IpAddr| {
            !place.is_special(*address) && place.gateway != Some(*address) && self.state.index().local_endpoint_at(network, *address).is_none()
        };
        addresses.into_iter().find(free).ok_or_else(|| explained(HResult::ADDR_INVALID_OR_RESERVED, "The subnet's addresses are used up."))
    }

    fn check_listeners(&self, id: Guid, endpoint: &Endpoint, network_type: &NetworkType) -> Result<()> {
        endpoint.listeners().try_for_each(|listener| self.check_port(listener))?;
        let mut seen = std::collections::BTreeSet::new();
        let taken =
            endpoint.listeners().any(|listener| !seen.insert(listener) || self.state.index().listener(&listener).is_some_and(|owner| owner != id));
        match (taken, network_type) {
            (false, _) => Ok(()),
            // WinNAT's port, not the switch's.
            (true, NetworkType::Nat) => Err(failure(HResult::SHARING_VIOLATION)),
            (true, _) => Err(failure(HResult::PORT_ALREADY_EXISTS)),
        }
    }

    pub(super) fn modify_endpoint(&self, id: Guid, mut endpoint: Endpoint, request: &ModifyRequest) -> Result<Staged> {
        match EndpointResource::parse(request.resource_type.as_str()) {
            EndpointResource::Policy => {
                let network = self.state.networks.get(&endpoint.document.host_compute_network).ok_or_else(|| self.not_found(Kind::Network))?;
                let given: Vec<EndpointPolicy> = policies::given(request)?;
                self.check_policies(&given, &endpoint.document, network)?;
                policies::change_endpoint(&mut endpoint.document.policies, &request.request_type, given, self.switches)?;
                endpoint.defects.unfiltered = false;
                self.check_listeners(id, &endpoint, &network.network_type)?;
                Ok(Staged::change(Change::put(id, Object::Endpoint(endpoint))))
            }
            // Ports of virtual machines.
            EndpointResource::Port | EndpointResource::Other(_) => Err(failure(HResult::REQUEST_UNSUPPORTED)),
        }
    }

    /// An attached endpoint is detached first. Load balancers keep naming it.
    pub(super) fn delete_endpoint(&self, id: Guid, endpoint: &Endpoint) -> Staged {
        let mut staged = Staged { changes: self.namespaces_without(&[id]), ..Staged::default() };
        staged.changes.push(Change::delete(Kind::Endpoint, id));
        let namespace = endpoint.document.host_compute_namespace;
        if namespace.is_nil() && !endpoint.on_host {
            return staged;
        }
        staged.event(Event::ENDPOINT_DETACHED, id, 0, serde_json::json!({"Namespace": namespace}))
    }
}

/// A MAC that is free, from a network's ranges. The search starts at a place that follows from the endpoint's id, and is bounded.
fn from_pool(pool: &MacPool, endpoint: &Guid, taken: impl Fn(Mac) -> bool) -> Option<Mac> {
    let ranges: Vec<(u64, u64)> = pool
        .ranges
        .iter()
        .filter_map(|range| {
            let [first, last] = [&range.start_mac_address, &range.end_mac_address].map(|text| text.parse::<Mac>().ok().map(Mac::to_number));
            Some((first?, last?.checked_sub(first?)? + 1))
        })
        .collect();
    let total: u64 = ranges.iter().map(|(_, count)| count).sum();
    let at = |mut offset: u64| {
        for (first, count) in &ranges {
            if offset < *count {
                return Mac::from_number(first + offset);
            }
            offset -= count;
        }
        Mac::default()
    };
    let start = mix(endpoint.0.as_u64_pair().0 ^ endpoint.0.as_u64_pair().1).checked_rem(total)?;
    (0..total.min(1 << 16)).map(|step| at((start + step) % total)).find(|mac| !taken(*mac))
}

fn default_via(gateway: IpAddr) -> Route {
    let prefix = if gateway.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
    Route { next_hop: gateway.to_string(), destination_prefix: prefix.into(), ..Route::default() }
}

fn check_routes(routes: &[Route]) -> Result<()> {
    let bad = |route: &&Route| route.destination_prefix.parse::<IpNet>().is_err() || route.next_hop.parse::<IpAddr>().is_err();
    match routes.iter().find(bad) {
        Some(route) => {
            Err(explained(HResult::INVALID_ENDPOINT, &format!("The route to {:?} by {:?} cannot be read.", route.destination_prefix, route.next_hop)))
        }
        None => Ok(()),
    }
}
