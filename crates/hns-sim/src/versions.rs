//! Features of each version: types of networks and policies, and their settings.

use hcn::document::{EndpointPolicyType, NetworkPolicyType};
use hcn::{HnsVersion, NetworkType, SupportedFeatures};

/// Windows Server 2022: schema 2.11, so everything up to 2.10 is there.
const SCHEMA_2_10: HnsVersion = HnsVersion::new(13, 0);
/// Windows 10 1903: schema 2.1 to 2.5.
const SCHEMA_2_4: HnsVersion = HnsVersion::new(10, 0);
/// Windows 10 2004: schema 2.6.
const SCHEMA_2_6: HnsVersion = HnsVersion::new(11, 0);
/// Windows 11 22H2: schema 2.16.
const SCHEMA_2_16: HnsVersion = HnsVersion::new(15, 0);

/// Whether networks of that type exist. Mirrored and Infiniband ones need hardware or a client system that no server has.
pub fn has_network_type(version: HnsVersion, network_type: &NetworkType) -> bool {
    match network_type {
        NetworkType::Mirrored | NetworkType::Infiniband | NetworkType::Other(_) => false,
        NetworkType::ConstrainedIcs => version >= SCHEMA_2_10,
        _ => true,
    }
}

/// Whether networks have policies of that type.
pub fn has_network_policy(features: &SupportedFeatures, policy_type: &NetworkPolicyType) -> bool {
    use NetworkPolicyType as Type;
    match policy_type {
        Type::Other(_) => false,
        Type::SetPolicy => features.set_policy,
        Type::VxlanPort => features.vxlan_port,
        Type::NetworkAcl => features.network_acl,
        Type::L4Proxy => features.l4_proxy,
        Type::RemoteSubnetRoute => features.remote_subnet,
        Type::HostRoute => features.host_route,
        _ => true,
    }
}

/// Whether endpoints have policies of that type.
pub fn has_endpoint_policy(features: &SupportedFeatures, policy_type: &EndpointPolicyType) -> bool {
    use EndpointPolicyType as Type;
    let version = features.version;
    match policy_type {
        Type::Other(_) => false,
        Type::L4Proxy => features.l4_proxy,
        Type::L4WfpProxy => features.l4_wfp_proxy,
        Type::TierAcl => features.tier_acl,
        Type::Vlan | Type::InterfaceParameters | Type::Encryption => version >= SCHEMA_2_4,
        Type::Iov => version >= SCHEMA_2_10,
        Type::Firewall => version >= SCHEMA_2_16,
        _ => true,
    }
}

/// Whether an access rule can send packets on to the next tier.
pub fn has_pass(version: HnsVersion) -> bool {
    version >= SCHEMA_2_10
}

/// Whether the subnets of a network can be changed.
pub fn can_change_subnets(version: HnsVersion) -> bool {
    version >= SCHEMA_2_6
}
