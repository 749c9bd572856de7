//! Networks.

use std::net::IpAddr;

use hcn::document::{Dns, IpamType, NetworkPolicyType};
use hcn::{Args, Event, Guid, HResult, HostComputeNetwork, Kind, ModifyRequest, NetworkPolicy, NetworkType, RequestType, Subnet};
use ipnet::IpNet;

use super::{Context, Result, Staged, error, explained, new_id, policies, read};
use crate::state::{Change, Object, is_real};

/// The alias of the host's physical adapter.
pub const ADAPTER: &str = "Ethernet";

impl Context<'_> {
    pub(super) fn create_network(&self, args: &Args<'_>) -> Result<Staged> {
        let mut network: HostComputeNetwork = read(args.settings)?;
        let id = new_id(args, network.id);
        if self.state.networks.contains_key(&id) || self.state.network_named(&network.name).is_some() {
            return Err(error(HResult::NETWORK_ALREADY_EXISTS));
        }
        if !is_real(&network.network_type) {
            let explanation = format!("Invalid network type. The simulator has no {} networks.", network.network_type);
            return Err(explained(HResult::INVALID_NETWORK_TYPE, &explanation));
        }
        check_subnets(&network)?;
        for policy in &network.policies {
            policies::check_network(policy, self.switches)?;
            if policy.as_net_adapter_name().is_some_and(|alias| !alias.eq_ignore_ascii_case(ADAPTER)) {
                return Err(error(HResult::ADAPTER_NOT_FOUND));
            }
        }
        network.id = id;
        network.state = 1;
        network.version = self.switches.version.packed();
        for subnet in network.ipams.iter_mut().flat_map(|ipam| &mut ipam.subnets) {
            if subnet.id.is_nil() {
                subnet.id = Guid::random();
            }
        }
        if network.network_type == NetworkType::L2Bridge {
            network.policies.retain(|policy| policy.policy_type != NetworkPolicyType::ProviderAddress);
            network.policies.extend(self.host.management.map(|address| NetworkPolicy::provider_address(address.into())));
        }
        let staged = Staged::change(Change::put(id, Object::Network(network)));
        Ok(staged.event(Event::NETWORK_PRE_CREATE, id, ().into()).event(Event::NETWORK_CREATE, id, ().into()))
    }

    pub(super) fn modify_network(&self, id: Guid, mut network: HostComputeNetwork, request: &ModifyRequest) -> Result<Staged> {
        match request.resource_type.as_str().to_ascii_lowercase().as_str() {
            "policy" | "0" => {
                let given: Vec<NetworkPolicy> = policies::given(request)?;
                for policy in &given {
                    policies::check_network(policy, self.switches)?;
                }
                policies::change(&mut network.policies, request.request_type.clone(), given, self.switches)?;
            }
            "dns" | "1" if request.request_type == RequestType::Update => {
                network.dns = serde_json::from_value::<Dns>(request.settings.clone()).map_err(|_| error(HResult::INVALID_JSON))?;
            }
            _ => return Err(error(HResult::REQUEST_UNSUPPORTED)),
        }
        Ok(Staged::change(Change::put(id, Object::Network(network))))
    }

    /// A network takes its endpoints with it; load balancers stay.
    pub(super) fn delete_network(&self, id: Guid) -> Staged {
        let mut staged = Staged::default();
        for endpoint in self.state.endpoints_of(id) {
            staged.changes.extend(self.detached_from_namespace(endpoint));
            staged.changes.push(Change::delete(Kind::Endpoint, endpoint));
        }
        staged.changes.push(Change::delete(Kind::Network, id));
        staged.event(Event::NETWORK_PRE_DELETE, id, ().into()).event(Event::NETWORK_DELETE, id, ().into())
    }
}

fn check_subnets(network: &HostComputeNetwork) -> Result<()> {
    let isolated = matches!(network.network_type, NetworkType::Internal | NetworkType::Private);
    if !isolated && network.subnets().next().is_none() {
        return Err(explained(HResult::INVALID_NETWORK, "The network has no subnet."));
    }
    if network.ipams.iter().any(|ipam| ipam.ipam_type != IpamType::Static) {
        return Err(explained(HResult::INVALID_NETWORK, "Only static addresses exist on this type of network."));
    }
    network.subnets().try_for_each(check_subnet)
}

fn check_subnet(subnet: &Subnet) -> Result<()> {
    let prefix = match subnet.prefix() {
        Some(IpNet::V4(prefix)) if prefix.prefix_len() <= 30 => prefix,
        Some(IpNet::V6(_)) => return Err(explained(HResult::INVALID_PARAMETER, "The simulated host has no IPv6.")),
        _ => return Err(error(HResult::INVALID_PREFIX)),
    };
    for route in &subnet.routes {
        let known = route.next_hop.parse::<IpAddr>().is_ok() && route.destination_prefix.parse::<IpNet>().is_ok();
        if !known {
            return Err(explained(HResult::INVALID_SUBNET, "A route has no next hop or no destination."));
        }
    }
    match subnet.gateway() {
        Some(IpAddr::V4(gateway)) if prefix.contains(&gateway) && gateway != prefix.network() && gateway != prefix.broadcast() => Ok(()),
        None => Ok(()),
        Some(_) => Err(explained(HResult::INVALID_SUBNET, "The gateway is not an address of the subnet.")),
    }
}
