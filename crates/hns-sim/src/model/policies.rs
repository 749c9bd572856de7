//! Policies: which are known, which settings they need, and how a request changes a list of them.

use hcn::document::{EndpointPolicyType, NetworkPolicyType, OutBoundNat, PortMapping, RemoteSubnetRoute};
use hcn::{EndpointPolicy, HResult, ModifyRequest, NetworkPolicy, RequestType, SdnRoute};
use ipnet::IpNet;
use serde::de::DeserializeOwned;

use super::{Result, error, explained};
use crate::realise::is_balanced;
use crate::switches::Switches;

/// The policies of a modify request.
pub fn given<T: DeserializeOwned>(request: &ModifyRequest) -> Result<Vec<T>> {
    let policies = request.settings.as_object().and_then(|settings| settings.iter().find(|(key, _)| key.eq_ignore_ascii_case("Policies")));
    match policies {
        Some((_, policies)) => serde_json::from_value(policies.clone()).map_err(|cause| explained(HResult::INVALID_JSON, &cause.to_string())),
        None => Err(error(HResult::INVALID_POLICY)),
    }
}

/// Changes a list of policies as a request says.
pub fn change<T: PartialEq>(list: &mut Vec<T>, request_type: RequestType, given: Vec<T>, switches: &Switches) -> Result<()> {
    match request_type {
        RequestType::Add => list.extend(given),
        RequestType::Update => *list = given,
        RequestType::Reset => list.clear(),
        RequestType::Refresh => {}
        RequestType::Remove => {
            for policy in given {
                match list.iter().position(|existing| *existing == policy) {
                    Some(index) => drop(list.remove(index)),
                    None if switches.removing_absent_policy_fails => return Err(error(HResult::POLICY_NOT_FOUND)),
                    None => {}
                }
            }
        }
        RequestType::Other(_) => return Err(error(HResult::REQUEST_UNSUPPORTED)),
    }
    Ok(())
}

fn unsupported(policy_type: impl std::fmt::Display) -> hcn::RawError {
    explained(HResult::REQUEST_UNSUPPORTED, &format!("The specified request is unsupported. The simulator does not enforce {policy_type} policies."))
}

/// Refuses a network policy that is not one, or that the simulator would not keep to.
pub fn check_network(policy: &NetworkPolicy, switches: &Switches) -> Result<()> {
    use NetworkPolicyType as Type;
    match &policy.policy_type {
        Type::Other(_) => Err(error(HResult::INVALID_POLICY_TYPE)),
        Type::NetworkAcl | Type::L4Proxy => Err(unsupported(&policy.policy_type)),
        Type::SetPolicy if !switches.features().set_policy => Err(error(HResult::INVALID_POLICY_TYPE)),
        Type::VxlanPort if !switches.features().vxlan_port => Err(error(HResult::INVALID_POLICY_TYPE)),
        Type::RemoteSubnetRoute => {
            let route: RemoteSubnetRoute = policy.settings_as(&Type::RemoteSubnetRoute).ok_or_else(|| error(HResult::INVALID_POLICY))?;
            prefix(&route.destination_prefix)
        }
        _ => Ok(()),
    }
}

fn prefix(text: &str) -> Result<()> {
    let known = text.parse::<IpNet>().is_ok() || text.parse::<std::net::IpAddr>().is_ok();
    if known { Ok(()) } else { Err(explained(HResult::INVALID_POLICY, &format!("{text:?} is not a prefix."))) }
}

/// Refuses an endpoint policy that is not one, or that the simulator would not keep to.
pub fn check_endpoint(policy: &EndpointPolicy) -> Result<()> {
    use EndpointPolicyType as Type;
    let bad = || error(HResult::INVALID_POLICY);
    match &policy.policy_type {
        Type::Other(_) => Err(error(HResult::INVALID_POLICY_TYPE)),
        Type::Acl => match policy.settings_as::<hcn::document::Acl>(&Type::Acl).ok_or_else(bad)?.action {
            // Everything passes here, so a rule that lets pass is kept.
            hcn::document::Action::Allow => Ok(()),
            _ => Err(unsupported("blocking ACL")),
        },
        Type::TierAcl | Type::L4Proxy | Type::L4WfpProxy | Type::Encryption | Type::Firewall => Err(unsupported(&policy.policy_type)),
        Type::OutBoundNat => {
            let nat: OutBoundNat = policy.settings_as(&Type::OutBoundNat).ok_or_else(bad)?;
            if !nat.virtual_ip.is_empty() && nat.virtual_ip.parse::<std::net::Ipv4Addr>().is_err() {
                return Err(bad());
            }
            nat.exceptions.iter().chain(&nat.destinations).try_for_each(|text| prefix(text))
        }
        Type::SdnRoute => prefix(&policy.settings_as::<SdnRoute>(&Type::SdnRoute).ok_or_else(bad)?.destination_prefix),
        Type::PortMapping => {
            let mapping: PortMapping = policy.settings_as(&Type::PortMapping).ok_or_else(bad)?;
            match mapping {
                PortMapping { internal_port: 0, .. } => Err(error(HResult::INVALID_INTERNAL_PORT)),
                PortMapping { external_port: 0, .. } => Err(bad()),
                PortMapping { protocol, .. } if !is_balanced(protocol) => Err(error(HResult::MAPPING_NOT_SUPPORTED)),
                _ => Ok(()),
            }
        }
        _ => Ok(()),
    }
}
