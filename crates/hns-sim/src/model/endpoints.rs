//! Endpoints.

use std::net::{IpAddr, Ipv4Addr};

use hcn::document::{Dns, EndpointPolicyType};
use hcn::{
    Args, EndpointPolicy, EndpointState, Guid, HResult, HostComputeEndpoint, HostComputeNetwork, IpConfiguration, Kind, ModifyRequest, NetworkType,
    Route,
};
use ipnet::{IpNet, Ipv4Net};

use super::{Context, Result, Staged, error, explained, new_id, policies, read};
use crate::mac::Mac;
use crate::state::{Change, Endpoint, Object};

/// A subnet as endpoints need it.
struct Place {
    prefix: Ipv4Net,
    gateway: Option<Ipv4Addr>,
}

fn places(network: &HostComputeNetwork) -> Vec<Place> {
    let place = |subnet: &hcn::Subnet| match (subnet.prefix(), subnet.gateway()) {
        (Some(IpNet::V4(prefix)), Some(IpAddr::V4(gateway))) => Some(Place { prefix: prefix.trunc(), gateway: Some(gateway) }),
        (Some(IpNet::V4(prefix)), _) => Some(Place { prefix: prefix.trunc(), gateway: None }),
        _ => None,
    };
    network.subnets().filter_map(place).collect()
}

impl Context<'_> {
    pub(super) fn create_endpoint(&self, args: &Args<'_>, network: Option<Guid>) -> Result<Staged> {
        let mut document: HostComputeEndpoint = read(args.settings)?;
        let network_id = network.unwrap_or(document.host_compute_network);
        let network = self.state.networks.get(&network_id).ok_or_else(|| error(HResult::NETWORK_NOT_FOUND))?;
        let id = new_id(args, document.id);
        if self.state.endpoints.contains_key(&id) {
            return Err(error(HResult::OBJECT_ALREADY_EXISTS));
        }
        document.id = id;
        document.host_compute_network = network_id;
        document.host_compute_namespace = Guid::NIL;
        document.state = EndpointState::CREATED;
        document.version = self.switches.version.packed();
        document.policies.iter().try_for_each(policies::check_endpoint)?;
        self.check_port_mappings(id, &document)?;
        if document.is_remote() {
            self.complete_remote(network_id, &mut document)?;
        } else {
            self.complete_local(network_id, network, &mut document)?;
        }
        Ok(Staged::change(Change::put(id, Object::Endpoint(Endpoint { document, on_host: false, interface: None }))))
    }

    /// A remote endpoint is only a forwarding entry: no subnet rule, no clash with a local one.
    fn complete_remote(&self, network_id: Guid, document: &mut HostComputeEndpoint) -> Result<()> {
        if document.ip_configurations.is_empty() || document.ip_configurations.iter().any(|ip| ip.ip_address.parse::<IpAddr>().is_err()) {
            return Err(error(HResult::INVALID_IP));
        }
        self.complete_mac(network_id, document, false)
    }

    fn complete_local(&self, network_id: Guid, network: &HostComputeNetwork, document: &mut HostComputeEndpoint) -> Result<()> {
        let places = places(network);
        if document.ip_configurations.is_empty() && !places.is_empty() {
            let address = self.free_address(network_id, &document.id, &places[0])?;
            document.ip_configurations.push(IpConfiguration { ip_address: address.to_string(), ..IpConfiguration::default() });
        }
        for ip in &mut document.ip_configurations {
            let address: Ipv4Addr = ip.ip_address.parse().map_err(|_| error(HResult::INVALID_IP))?;
            let place = places.iter().find(|place| place.prefix.contains(&address)).ok_or_else(|| error(HResult::INVALID_IP))?;
            let reserved = address == place.prefix.network() || address == place.prefix.broadcast();
            if reserved || self.switches.reserve_gateway && place.gateway == Some(address) {
                return Err(error(HResult::ADDR_INVALID_OR_RESERVED));
            }
            if self.state.local_endpoint_at(network_id, address).is_some() {
                return Err(error(self.switches.duplicate_address));
            }
            if ip.prefix_length == 0 {
                ip.prefix_length = place.prefix.prefix_len();
            }
            if ip.prefix_length > 32 {
                return Err(error(HResult::INVALID_PREFIX));
            }
            ip.ip_address = address.to_string();
        }
        check_routes(&document.routes)?;
        if document.routes.is_empty() {
            document.routes.extend(places.first().and_then(|place| place.gateway).map(Route::default_via));
        }
        if document.dns == Dns::default() {
            document.dns = network.dns.clone();
        }
        self.complete_mac(network_id, document, true)?;
        let rewritten = document.policies.iter().any(|policy| policy.policy_type == EndpointPolicyType::L2Driver);
        if network.network_type == NetworkType::L2Bridge && !rewritten {
            document.policies.push(EndpointPolicy { policy_type: EndpointPolicyType::L2Driver, ..EndpointPolicy::default() });
        }
        Ok(())
    }

    /// Reads the MAC into HNS's form, or takes one from the network's pool. Local endpoints' MACs are unique.
    fn complete_mac(&self, network_id: Guid, document: &mut HostComputeEndpoint, local: bool) -> Result<()> {
        let taken = |mac: Mac| local && self.state.local_endpoint_with(network_id, mac).is_some();
        let mac = if document.mac_address.is_empty() {
            let pool = (0..4096).map(|attempt| Mac::from_pool(&network_id, &document.id, attempt));
            pool.into_iter()
                .find(|mac| !taken(*mac))
                .ok_or_else(|| explained(HResult::INVALID_ENDPOINT, "The network's MAC addresses are used up."))?
        } else {
            document.mac_address.parse().map_err(|()| explained(HResult::INVALID_ENDPOINT, "The MAC address cannot be read."))?
        };
        if taken(mac) {
            return Err(error(self.switches.duplicate_address));
        }
        document.mac_address = mac.to_string();
        Ok(())
    }

    /// A free address of the subnet. HNS's choices look scattered, so the search starts where the endpoint's id says.
    fn free_address(&self, network_id: Guid, endpoint: &Guid, place: &Place) -> Result<Ipv4Addr> {
        let first = u32::from(place.prefix.network()) + 1;
        let count = u32::from(place.prefix.broadcast()) - first;
        let [.., a, b, c, d] = *endpoint.0.as_bytes();
        let start = u32::from_be_bytes([a, b, c, d]) % count;
        let addresses = (0..count).map(|step| Ipv4Addr::from(first + (start + step) % count));
        let free = |address: &Ipv4Addr| place.gateway != Some(*address) && self.state.local_endpoint_at(network_id, *address).is_none();
        addresses.into_iter().find(free).ok_or_else(|| explained(HResult::ADDR_INVALID_OR_RESERVED, "The subnet's addresses are used up."))
    }

    fn check_port_mappings(&self, id: Guid, document: &HostComputeEndpoint) -> Result<()> {
        let endpoint = Endpoint { document: document.clone(), on_host: false, interface: None };
        let taken = endpoint.frontends().any(|frontend| self.state.listener(&frontend).is_some_and(|owner| owner != id));
        if taken { Err(error(HResult::PORT_ALREADY_EXISTS)) } else { Ok(()) }
    }

    pub(super) fn modify_endpoint(&self, id: Guid, mut endpoint: Endpoint, request: &ModifyRequest) -> Result<Staged> {
        match request.resource_type.as_str().to_ascii_lowercase().as_str() {
            "policy" | "1" => {
                let given: Vec<EndpointPolicy> = policies::given(request)?;
                given.iter().try_for_each(policies::check_endpoint)?;
                policies::change(&mut endpoint.document.policies, request.request_type.clone(), given, self.switches)?;
                self.check_port_mappings(id, &endpoint.document)?;
                Ok(Staged::change(Change::put(id, Object::Endpoint(endpoint))))
            }
            // Ports of virtual machines.
            _ => Err(error(HResult::REQUEST_UNSUPPORTED)),
        }
    }

    /// An attached endpoint is detached first. Load balancers keep naming it.
    pub(super) fn delete_endpoint(&self, id: Guid, _endpoint: &Endpoint) -> Staged {
        let mut staged = Staged { changes: self.detached_from_namespace(id).into_iter().collect(), ..Staged::default() };
        staged.changes.push(Change::delete(Kind::Endpoint, id));
        staged
    }
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
