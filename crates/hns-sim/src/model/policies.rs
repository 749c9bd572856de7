//! Policies: which are known, which settings they need, and how a request changes a list of them.

use std::net::IpAddr;

use hcn::document::{
    DrMacAddress, EncapOverhead, Encryption, EndpointPolicyType, Firewall, InterfaceConstraint, InterfaceParameters, Iov, Isolation, L4Proxy,
    L4WfpProxy, NatFlags, NetworkPolicyType, PolicySettings, PortMapping, PortName, ProviderAddress, Qos, RemoteSubnetRoute, SetPolicy,
    SetPolicyType, SourceMacAddress, VSwitchExtension, VxlanPort,
};
use hcn::{
    EndpointPolicy, HResult, HostComputeEndpoint, HostComputeNetwork, ModifyRequest, NetworkPolicy, NetworkType, OutBoundNat, RequestType, SdnRoute,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::networks::is_extension;
use super::{Result, acls, explained, failure, read_value};
use crate::compile::{is_enforced_endpoint_policy, is_enforced_network_policy};
use crate::mac::Mac;
use crate::state::is_address;
use crate::switches::Switches;
use crate::versions::{has_endpoint_policy, has_network_policy};

/// The policies of a modify request.
pub fn given<T: DeserializeOwned>(request: &ModifyRequest) -> Result<Vec<T>> {
    let Value::Object(members) = &request.settings else { return Err(failure(HResult::INVALID_POLICY)) };
    if !members.keys().any(|key| key.eq_ignore_ascii_case("Policies")) {
        return Err(failure(HResult::INVALID_POLICY));
    }
    let PolicySettings { policies, .. } = read_value(&request.settings)?;
    policies.iter().map(read_value).collect()
}

fn invalid() -> hcn::RawError {
    failure(HResult::INVALID_POLICY)
}

/// The settings of a policy, which must be readable.
fn settings<T: DeserializeOwned>(settings: &Value) -> Result<T> {
    if settings.is_null() {
        return Err(invalid());
    }
    serde_json::from_value(settings.clone()).map_err(|cause| explained(HResult::INVALID_POLICY, &format!("The settings cannot be read: {cause}")))
}

fn needs(holds: bool) -> Result<()> {
    if holds { Ok(()) } else { Err(invalid()) }
}

fn prefix(text: &str) -> Result<()> {
    if is_address(text) { Ok(()) } else { Err(explained(HResult::INVALID_POLICY, &format!("{text:?} is not a prefix."))) }
}

fn ip(text: &str) -> Result<()> {
    needs(text.parse::<IpAddr>().is_ok())
}

fn unsupported(policy_type: impl std::fmt::Display) -> hcn::RawError {
    explained(
        HResult::REQUEST_UNSUPPORTED,
        &format!("The specified request is unsupported. The simulator does not enforce this {policy_type} policy."),
    )
}

/// Refuses a network policy that is not one. `others` are the policies that the network has.
pub fn check_network(policy: &NetworkPolicy, others: &[NetworkPolicy], switches: &Switches) -> Result<()> {
    use NetworkPolicyType as Type;
    let given = &policy.settings;
    if matches!(policy.policy_type, Type::Other(_)) {
        return Err(failure(HResult::INVALID_POLICY_TYPE));
    }
    if !has_network_policy(&switches.features(), &policy.policy_type) {
        return Err(failure(switches.unknown_to_version));
    }
    if !switches.store_unenforced && !is_enforced_network_policy(policy) {
        return Err(unsupported(&policy.policy_type));
    }
    match &policy.policy_type {
        Type::SourceMacAddress => needs(settings::<SourceMacAddress>(given)?.source_mac_address.parse::<Mac>().is_ok()),
        Type::NetAdapterName => needs(policy.as_net_adapter_name().is_some()),
        Type::InterfaceConstraint => settings::<InterfaceConstraint>(given).map(drop),
        Type::VSwitchExtension if is_extension(&settings::<VSwitchExtension>(given)?.extension_id) => Ok(()),
        Type::VSwitchExtension => Err(failure(HResult::SWITCH_EXTENSION_NOT_FOUND)),
        Type::ProviderAddress => ip(&settings::<ProviderAddress>(given)?.provider_address),
        Type::DrMacAddress => needs(settings::<DrMacAddress>(given)?.address.parse::<Mac>().is_ok()),
        Type::RemoteSubnetRoute => {
            let route: RemoteSubnetRoute = settings(given)?;
            prefix(&route.destination_prefix)?;
            ip(&route.provider_address)?;
            needs(route.isolation_id >= 4096 && route.distributed_router_mac_address.parse::<Mac>().is_ok())
        }
        Type::VxlanPort => needs(settings::<VxlanPort>(given)?.port != 0),
        Type::SetPolicy => check_set(&settings(given)?, others, switches),
        Type::L4Proxy => check_proxy(&settings(given)?),
        Type::NetworkAcl => acls::check(&settings(given)?, others, switches),
        Type::Vlan | Type::Vsid => settings::<Isolation>(given).map(drop),
        _ => Ok(()),
    }
}

/// The sets of a list of network policies.
pub(super) fn sets(policies: &[NetworkPolicy]) -> impl Iterator<Item = SetPolicy> {
    policies.iter().filter_map(NetworkPolicy::as_set)
}

fn check_set(set: &SetPolicy, others: &[NetworkPolicy], switches: &Switches) -> Result<()> {
    needs(!set.id.is_empty())?;
    if !switches.hns_npm_ipset_limit_change && set.members().count() > acls::MOST_ADDRESSES {
        return Err(failure(HResult::INVALID_PARAMETER));
    }
    match &set.policy_type {
        SetPolicyType::IpSet => match set.members().find(|member| !is_set_member(member)) {
            Some(member) => Err(explained(HResult::INVALID_POLICY, &format!("{member:?} of set {:?} is no address.", set.id))),
            None => Ok(()),
        },
        SetPolicyType::NestedIpSet if !switches.features().nested_ip_set => Err(invalid()),
        SetPolicyType::NestedIpSet => {
            let known: Vec<String> = sets(others).map(|other| other.id).collect();
            match set.members().find(|member| !known.iter().any(|id| id.eq_ignore_ascii_case(member))) {
                Some(member) => Err(explained(HResult::INVALID_JSON_REFERENCE, &format!("Set {member:?} in set {:?} does not exist.", set.id))),
                None => Ok(()),
            }
        }
        SetPolicyType::Other(_) => Err(invalid()),
    }
}

/// An address or prefix, or one with ports (`10.0.0.1,tcp:80` is two entries to HNS; network policies write `10.0.0.1|tcp:80`).
fn is_set_member(member: &str) -> bool {
    is_address(member.split('|').next().unwrap_or(member))
}

fn check_proxy(proxy: &L4Proxy) -> Result<()> {
    needs(proxy.port.as_str().parse::<u16>().is_ok_and(|port| port != 0))?;
    needs(proxy.ip.is_empty() || proxy.ip.parse::<IpAddr>().is_ok())?;
    let destination = Some(&proxy.destination).filter(|text| !text.is_empty());
    proxy.exception_list.iter().chain(destination).try_for_each(|text| prefix(text))
}

/// Refuses an endpoint policy that is not one, or that this endpoint cannot have.
pub fn check_endpoint(policy: &EndpointPolicy, endpoint: &HostComputeEndpoint, network: &HostComputeNetwork, switches: &Switches) -> Result<()> {
    use EndpointPolicyType as Type;
    let given = &policy.settings;
    if matches!(policy.policy_type, Type::Other(_)) {
        return Err(failure(HResult::INVALID_POLICY_TYPE));
    }
    if !has_endpoint_policy(&switches.features(), &policy.policy_type) {
        return Err(failure(switches.unknown_to_version));
    }
    if !switches.store_unenforced && !is_enforced_endpoint_policy(policy) {
        return Err(unsupported(&policy.policy_type));
    }
    let ruled = matches!(policy.policy_type, Type::Acl | Type::TierAcl | Type::OutBoundNat | Type::PortMapping | Type::L4WfpProxy);
    if endpoint.is_remote() && ruled {
        return Err(failure(HResult::INVALID_REMOTE_ENDPOINT_OPERATION));
    }
    match &policy.policy_type {
        Type::Acl => acls::check(&settings(given)?, &network.policies, switches),
        Type::TierAcl => acls::check_tier(&settings(given)?, &network.policies, switches),
        Type::OutBoundNat => check_outbound_nat(&settings(given)?),
        Type::SdnRoute => {
            let route: SdnRoute = settings(given)?;
            needs(route.next_hop.is_empty() || route.next_hop.parse::<IpAddr>().is_ok())?;
            prefix(&route.destination_prefix)
        }
        Type::PortMapping => check_port_mapping(&settings(given)?, &network.network_type),
        Type::L4Proxy => check_proxy(&settings(given)?),
        Type::L4WfpProxy => {
            let proxy: L4WfpProxy = settings(given)?;
            let ports = [&proxy.inbound_proxy_port, &proxy.outbound_proxy_port];
            needs(ports.iter().any(|port| !port.as_str().is_empty()))?;
            needs(ports.iter().all(|port| port.as_str().is_empty() || port.as_str().parse::<u16>().is_ok()))
        }
        Type::Qos => settings::<Qos>(given).map(drop),
        Type::ProviderAddress => ip(&settings::<ProviderAddress>(given)?.provider_address),
        Type::PortName => settings::<PortName>(given).map(drop),
        Type::EncapOverhead => settings::<EncapOverhead>(given).map(drop),
        Type::InterfaceConstraint => settings::<InterfaceConstraint>(given).map(drop),
        Type::Encryption => settings::<Encryption>(given).map(drop),
        Type::Vlan => needs((1..=4094).contains(&settings::<Isolation>(given)?.isolation_id)),
        Type::InterfaceParameters => needs(settings::<InterfaceParameters>(given)?.mtu != 0),
        Type::Iov => settings::<Iov>(given).map(drop),
        Type::Firewall => settings::<Firewall>(given).map(drop),
        Type::L2Driver | Type::Other(_) => Ok(()),
    }
}

fn check_outbound_nat(nat: &OutBoundNat) -> Result<()> {
    needs(nat.virtual_ip.is_empty() || nat.virtual_ip.parse::<IpAddr>().is_ok())?;
    nat.exceptions.iter().chain(&nat.destinations).try_for_each(|text| prefix(text))
}

fn check_port_mapping(mapping: &PortMapping, network_type: &NetworkType) -> Result<()> {
    if matches!(network_type, NetworkType::Transparent | NetworkType::Private | NetworkType::Internal) {
        return Err(failure(HResult::MAPPING_NOT_SUPPORTED));
    }
    if mapping.internal_port == 0 {
        return Err(failure(HResult::INVALID_INTERNAL_PORT));
    }
    needs(mapping.external_port != 0)?;
    if !crate::compile::is_balanced(mapping.protocol) {
        return Err(failure(HResult::MAPPING_NOT_SUPPORTED));
    }
    let family = |address: IpAddr| address.is_ipv6() == mapping.flags.contains(NatFlags::IPV6);
    needs(mapping.vip.is_empty() || mapping.vip.parse().is_ok_and(family))
}

/// Applies a request to the policies of an endpoint.
pub fn change_endpoint(list: &mut Vec<EndpointPolicy>, request: &RequestType, given: Vec<EndpointPolicy>, switches: &Switches) -> Result<()> {
    let once = EndpointPolicyType::InterfaceParameters;
    match request {
        RequestType::Add => {
            let applied = list.iter().any(|policy| policy.policy_type == once);
            if applied && given.iter().any(|policy| policy.policy_type == once) {
                return Err(failure(HResult::INTERFACEPARAMETERS_ALREADY_APPLIED));
            }
            list.extend(given);
        }
        RequestType::Remove => {
            let taken = |policy: &EndpointPolicy| switches.hns_acl_update_change || policy.policy_type != EndpointPolicyType::Acl;
            remove(list, given.into_iter().filter(taken).collect(), switches)?;
        }
        RequestType::Update => {
            // The switch's driver is the service's own policy and stays in any case.
            let replaced = |policy: &EndpointPolicy| {
                policy.policy_type != EndpointPolicyType::L2Driver
                    && (switches.update_replaces_policies || given.iter().any(|new| new.policy_type == policy.policy_type))
            };
            list.retain(|policy| !replaced(policy));
            let driven = list.iter().any(|policy| policy.policy_type == EndpointPolicyType::L2Driver);
            list.extend(given.into_iter().filter(|policy| !(driven && policy.policy_type == EndpointPolicyType::L2Driver)));
        }
        RequestType::Refresh => {}
        RequestType::Reset => list.retain(|policy| policy.policy_type == EndpointPolicyType::L2Driver),
        RequestType::Other(_) => return Err(failure(HResult::REQUEST_UNSUPPORTED)),
    }
    Ok(())
}

fn remove<T: PartialEq>(list: &mut Vec<T>, given: Vec<T>, switches: &Switches) -> Result<()> {
    for policy in given {
        match list.iter().position(|existing| *existing == policy) {
            Some(index) => drop(list.remove(index)),
            None if switches.removing_absent_policy_fails => return Err(failure(HResult::POLICY_NOT_FOUND)),
            None => {}
        }
    }
    Ok(())
}

/// Applies a request to the policies of a network. `in_use` reports whether an access rule names a set.
pub fn change_network(
    list: &mut Vec<NetworkPolicy>,
    request: &RequestType,
    given: Vec<NetworkPolicy>,
    switches: &Switches,
    in_use: &dyn Fn(&str) -> bool,
) -> Result<()> {
    match request {
        RequestType::Add => {
            for policy in given {
                check_network(&policy, list, switches)?;
                if policy.as_set().is_some_and(|set| position(list, &set.id).is_some()) {
                    return Err(failure(HResult::POLICY_ALREADY_EXISTS));
                }
                list.push(policy);
            }
            Ok(())
        }
        RequestType::Update => update_network(list, given, switches, in_use),
        RequestType::Remove => {
            for policy in given {
                let Some(set) = policy.as_set() else {
                    remove(list, vec![policy], switches)?;
                    continue;
                };
                // Sets are known by their id: a removal need not name its values.
                match position(list, &set.id) {
                    Some(_) if is_named(list, &set.id) || in_use(&set.id) => return Err(failure(switches.set_in_use)),
                    Some(index) => drop(list.remove(index)),
                    None if switches.removing_absent_policy_fails => return Err(failure(HResult::POLICY_NOT_FOUND)),
                    None => {}
                }
            }
            Ok(())
        }
        RequestType::Refresh => Ok(()),
        RequestType::Reset | RequestType::Other(_) => Err(failure(HResult::REQUEST_UNSUPPORTED)),
    }
}

fn update_network(list: &mut Vec<NetworkPolicy>, given: Vec<NetworkPolicy>, switches: &Switches, in_use: &dyn Fn(&str) -> bool) -> Result<()> {
    if !switches.network_update_merges {
        let old = std::mem::take(list);
        for policy in given {
            check_network(&policy, list, switches)?;
            list.push(policy);
        }
        let kept = |id: &str| position(list, id).is_some();
        if sets(&old).any(|set| in_use(&set.id) && !kept(&set.id)) {
            return Err(failure(switches.set_in_use));
        }
        let own: Vec<_> = old.into_iter().filter(|policy| is_own(&policy.policy_type) && !given_type(list, &policy.policy_type)).collect();
        list.extend(own);
        return Ok(());
    }
    let (new_sets, others): (Vec<_>, Vec<_>) = given.into_iter().partition(|policy| policy.policy_type == NetworkPolicyType::SetPolicy);
    list.retain(|policy| !others.iter().any(|other| other.policy_type == policy.policy_type));
    for policy in others.into_iter().chain(new_sets) {
        check_network(&policy, list, switches)?;
        match policy.as_set() {
            // Updating a set that is not there does nothing.
            Some(set) => {
                if let Some(index) = position(list, &set.id) {
                    list[index] = policy;
                }
            }
            None => list.push(policy),
        }
    }
    Ok(())
}

fn given_type(list: &[NetworkPolicy], policy_type: &NetworkPolicyType) -> bool {
    list.iter().any(|policy| policy.policy_type == *policy_type)
}

/// What the service adds to a network by itself.
fn is_own(policy_type: &NetworkPolicyType) -> bool {
    matches!(policy_type, NetworkPolicyType::ProviderAddress | NetworkPolicyType::DrMacAddress)
}

fn position(list: &[NetworkPolicy], set: &str) -> Option<usize> {
    list.iter().position(|policy| policy.as_set().is_some_and(|other| other.id.eq_ignore_ascii_case(set)))
}

/// Whether another set, or a rule of the network, names the set.
fn is_named(list: &[NetworkPolicy], set: &str) -> bool {
    let nested = |other: SetPolicy| other.policy_type == SetPolicyType::NestedIpSet && other.members().any(|member| member.eq_ignore_ascii_case(set));
    let ruled = |policy: &NetworkPolicy| policy.settings_as(&NetworkPolicyType::NetworkAcl).is_some_and(|acl| acls::names(&acl, set));
    sets(list).any(nested) || list.iter().any(ruled)
}
