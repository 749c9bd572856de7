//! Validation and effects of calls on subnets.

use std::net::IpAddr;

use hcn::document::{IpSubnet, IpSubnetSettings, NetworkPolicyType, SubnetSettings};
use hcn::{Guid, HResult, HostComputeNetwork, Ipam, ModifyRequest, NetworkType, RequestType, Subnet};
use ipnet::IpNet;

use super::networks::name_subnet;
use super::{Context, Result, explained, failure, read_value};
use crate::versions::can_change_subnets;

/// The lowest number of an overlay's virtual network.
const LOWEST_VSID: u32 = 4096;

/// The highest number of a VLAN.
const HIGHEST_VLAN: u32 = 4094;

impl Context<'_> {
    pub(super) fn check_subnet(&self, network_type: &NetworkType, subnet: &Subnet) -> Result<()> {
        let prefix = subnet.prefix().ok_or_else(|| failure(HResult::INVALID_PREFIX))?;
        match prefix {
            IpNet::V4(prefix) if prefix.prefix_len() > 30 => return Err(failure(HResult::INVALID_PREFIX)),
            IpNet::V6(_) if *network_type == NetworkType::Overlay => {
                return Err(explained(HResult::INVALID_PARAMETER, "An overlay has no IPv6."));
            }
            IpNet::V6(prefix) if prefix.prefix_len() > 126 => return Err(failure(HResult::INVALID_PREFIX)),
            IpNet::V6(_) => self.check_ipv6()?,
            IpNet::V4(_) => {}
        }
        for route in &subnet.routes {
            if route.next_hop.parse::<IpAddr>().is_err() || route.destination_prefix.parse::<IpNet>().is_err() {
                return Err(explained(HResult::INVALID_SUBNET, "A route has no next hop or no destination."));
            }
        }
        if subnet.gateway().is_some_and(|gateway| !is_gateway(gateway, &prefix)) {
            return Err(explained(HResult::INVALID_SUBNET, "The gateway is not an address of the subnet."));
        }
        self.check_isolation(network_type, subnet)?;
        subnet.ip_subnets.iter().try_for_each(|part| check_ip_subnet(&prefix, part))
    }

    /// Whether the version and the host have IPv6.
    pub(super) fn check_ipv6(&self) -> Result<()> {
        if !self.switches.ipv6 {
            return Err(failure(HResult::ELEMENT_NOT_FOUND));
        }
        if !self.switches.features().ipv6_dual_stack {
            return Err(explained(HResult::INVALID_PARAMETER, "This version has no IPv6."));
        }
        if !self.switches.store_unenforced && !crate::compile::HAS_IPV6 {
            return Err(explained(HResult::INVALID_PARAMETER, "The simulated host has no IPv6."));
        }
        Ok(())
    }

    fn check_isolation(&self, network_type: &NetworkType, subnet: &Subnet) -> Result<()> {
        for policy in &subnet.policies {
            let id = match policy.policy_type {
                NetworkPolicyType::Vsid => subnet.vsid(),
                NetworkPolicyType::Vlan => subnet.vlan().filter(|id| *id <= HIGHEST_VLAN),
                _ => return Err(failure(HResult::INVALID_POLICY_TYPE)),
            };
            if id.is_none() {
                return Err(failure(HResult::INVALID_POLICY));
            }
        }
        if *network_type == NetworkType::Overlay && subnet.vsid().is_none_or(|id| !(LOWEST_VSID..1 << 24).contains(&id)) {
            return Err(explained(self.switches.bad_isolation_id, "An overlay's subnet needs a VSID of at least 4096."));
        }
        Ok(())
    }

    /// Whether an endpoint of the network has an address of the prefix.
    fn is_inhabited(&self, network: &Guid, prefix: &IpNet) -> bool {
        let rows = self.state.index().endpoints_of(*network).filter_map(|id| self.state.endpoints.get(&id));
        let inside = |address: Option<IpAddr>| address.is_some_and(|address| prefix.contains(&address));
        rows.filter(|row| !row.is_remote()).any(|row| inside(row.v4.map(IpAddr::V4)) || inside(row.v6.map(IpAddr::V6)))
    }

    pub(super) fn change_subnets(&self, network: &mut HostComputeNetwork, request: &ModifyRequest) -> Result<()> {
        if !can_change_subnets(self.switches.version) {
            return Err(failure(HResult::REQUEST_UNSUPPORTED));
        }
        let SubnetSettings { subnets, .. } = read_value(&request.settings)?;
        for mut given in subnets {
            let same = |subnet: &Subnet| if given.id.is_nil() { subnet.prefix() == given.prefix() } else { subnet.id == given.id };
            let place = network.ipams.iter_mut().flat_map(|ipam| &mut ipam.subnets).find(|subnet| same(subnet));
            match (&request.request_type, place) {
                (RequestType::Add, None) => {
                    self.check_subnet(&network.network_type, &given)?;
                    self.check_prefix(&network.id, &network.network_type, &given)?;
                    name_subnet(&network.id, network.subnets().count(), &mut given);
                    if network.ipams.is_empty() {
                        network.ipams.push(Ipam::default());
                    }
                    network.ipams[0].subnets.push(given);
                }
                (RequestType::Add, Some(_)) => return Err(failure(HResult::OBJECT_ALREADY_EXISTS)),
                (RequestType::Update, Some(place)) => {
                    self.check_subnet(&network.network_type, &given)?;
                    self.check_prefix(&network.id, &network.network_type, &given)?;
                    (given.id, given.state) = (place.id, 1);
                    *place = given;
                }
                (RequestType::Remove, Some(place)) => {
                    let (id, prefix) = (place.id, place.prefix());
                    if prefix.is_some_and(|prefix| self.is_inhabited(&network.id, &prefix)) {
                        return Err(failure(HResult::ENTITY_HAS_REFERENCES));
                    }
                    network.ipams.iter_mut().for_each(|ipam| ipam.subnets.retain(|subnet| subnet.id != id));
                }
                (RequestType::Update | RequestType::Remove, None) => return Err(failure(HResult::SUBNET_NOT_FOUND)),
                _ => return Err(failure(HResult::REQUEST_UNSUPPORTED)),
            }
        }
        Ok(())
    }

    pub(super) fn change_ip_subnets(&self, network: &mut HostComputeNetwork, request: &ModifyRequest) -> Result<()> {
        if !can_change_subnets(self.switches.version) {
            return Err(failure(HResult::REQUEST_UNSUPPORTED));
        }
        let IpSubnetSettings { subnet_id, ip_subnets, .. } = read_value(&request.settings)?;
        let subnets = network.ipams.iter_mut().flat_map(|ipam| &mut ipam.subnets);
        let subnet = subnets.into_iter().find(|subnet| subnet.id == subnet_id).ok_or_else(|| failure(HResult::SUBNET_NOT_FOUND))?;
        let prefix = subnet.prefix().ok_or_else(|| failure(HResult::INVALID_PREFIX))?;
        for mut given in ip_subnets {
            let place = subnet
                .ip_subnets
                .iter()
                .position(|part| if given.id.is_nil() { part.ip_address_prefix == given.ip_address_prefix } else { part.id == given.id });
            match (&request.request_type, place) {
                (RequestType::Add, None) => {
                    check_ip_subnet(&prefix, &given)?;
                    if given.id.is_nil() {
                        given.id = hcn::owned_id("hns", "ipsubnet", &format!("{subnet_id} {}", given.ip_address_prefix));
                    }
                    given.state = 1;
                    subnet.ip_subnets.push(given);
                }
                (RequestType::Add, Some(_)) => return Err(failure(HResult::OBJECT_ALREADY_EXISTS)),
                (RequestType::Remove, Some(index)) => drop(subnet.ip_subnets.remove(index)),
                (RequestType::Remove, None) => return Err(failure(HResult::SUBNET_NOT_FOUND)),
                _ => return Err(failure(HResult::REQUEST_UNSUPPORTED)),
            }
        }
        Ok(())
    }
}

fn check_ip_subnet(prefix: &IpNet, part: &IpSubnet) -> Result<()> {
    match part.ip_address_prefix.parse::<IpNet>() {
        Ok(inner) if prefix.contains(&inner) => Ok(()),
        _ => Err(failure(HResult::INVALID_IP_SUBNET)),
    }
}

/// Whether an address can be the gateway of a subnet. IPv6 gateways are often link-local.
fn is_gateway(gateway: IpAddr, prefix: &IpNet) -> bool {
    match (gateway, prefix) {
        (IpAddr::V4(gateway), IpNet::V4(prefix)) => prefix.contains(&gateway) && gateway != prefix.network() && gateway != prefix.broadcast(),
        (IpAddr::V6(gateway), IpNet::V6(prefix)) => prefix.contains(&gateway) || gateway.is_unicast_link_local(),
        _ => false,
    }
}
