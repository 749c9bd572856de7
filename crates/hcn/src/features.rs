//! Features of HNS by version.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The version of the Host Networking Service, as `GET /globals/version` answers it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HnsVersion {
    #[serde(rename = "Major", alias = "major")]
    pub major: u32,
    #[serde(rename = "Minor", alias = "minor")]
    pub minor: u32,
}

impl HnsVersion {
    /// A version.
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// The number objects carry in `Version`: major in the high 32 bits.
    pub fn packed(self) -> u64 {
        u64::from(self.major) << 32 | u64::from(self.minor)
    }

    /// The version that a Windows build ships with (late patch level), where it has one with the V2 API.
    pub fn of_build(build: u32) -> Self {
        match build {
            0..=17133 => Self::new(6, 0),
            17134..=17762 => Self::new(7, 2),
            17763..=18361 => Self::new(9, 5),
            18362..=19040 => Self::new(10, 5),
            19041..=20347 => Self::new(11, 11),
            20348..=21999 => Self::new(13, 3),
            22000..=22620 => Self::new(14, 0),
            22621..=26099 => Self::new(15, 2),
            _ => Self::new(15, 5),
        }
    }
}

impl fmt::Display for HnsVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A text that is no version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an HNS version: write it as MAJOR.MINOR, for example 13.3")]
pub struct VersionError(String);

impl std::str::FromStr for HnsVersion {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, VersionError> {
        let parts = text.split_once('.').and_then(|(major, minor)| Some(Self::new(major.parse().ok()?, minor.parse().ok()?)));
        parts.ok_or_else(|| VersionError(text.to_owned()))
    }
}

/// From a version on; on an older major, only from a minor on.
type Since = &'static [(u32, u32)];

/// Whether `version` is in the ranges: each entry but the last holds within its major, the last holds for everything above.
fn since(version: HnsVersion, ranges: Since) -> bool {
    ranges.iter().enumerate().any(|(index, &(major, minor))| {
        let above = version >= HnsVersion::new(major, minor);
        above && (index + 1 == ranges.len() || version.major == major)
    })
}

macro_rules! features {
    ($( $(#[$meta:meta])* $field:ident = $name:literal, $ranges:expr; )*) => {
        /// The features of a version of the service. Source: hnslib's `hcnsupport.go` and `hcnglobals.go`.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct SupportedFeatures {
            pub version: HnsVersion,
            $( $(#[$meta])* pub $field: bool, )*
        }

        impl SupportedFeatures {
            /// What `version` can do.
            pub fn of(version: HnsVersion) -> Self {
                Self { version, $( $field: since(version, $ranges), )* }
            }

            /// Every feature by hnslib's name, and whether it is there.
            pub fn list(&self) -> Vec<(&'static str, bool)> {
                vec![$( ($name, self.$field), )*]
            }
        }
    };
}

features! {
    /// Several addresses in an ACL.
    acl_address_lists = "AclAddressLists", &[(7, 2)];
    /// Host ACLs without priority.
    acl_no_host_rule_priority = "AclNoHostRulePriority", &[(7, 2)];
    acl_port_ranges = "AclPortRanges", &[(7, 2)];
    /// Names of ACLs.
    acl_rule_id = "AclRuleId", &[(7, 2)];
    /// The older interface (HNSCall).
    api_v1 = "V1", &[(0, 0)];
    /// The documents of this crate.
    api_v2 = "V2", &[(9, 2)];
    /// RemoteSubnetRoute.
    remote_subnet = "RemoteSubnet", &[(9, 2)];
    host_route = "HostRoute", &[(9, 2)];
    /// Direct server return.
    dsr = "DSR", &[(9, 3), (10, 2)];
    /// Endpoints with /32 prefixes.
    slash32_endpoint_prefixes = "Slash32EndpointPrefixes", &[(9, 3), (10, 4)];
    vxlan_port = "VxlanPort", &[(10, 3)];
    /// VXLAN in ACLs.
    acl_support_for_protocol_252 = "AclSupportForProtocol252", &[(11, 0)];
    /// Two address families.
    ipv6_dual_stack = "IPv6DualStack", &[(11, 10)];
    /// Affinity of load balancers.
    session_affinity = "SessionAffinity", &[(12, 0)];
    set_policy = "SetPolicy", &[(13, 0)];
    l4_proxy = "L4Proxy", &[(9, 5), (10, 5), (11, 11), (12, 1), (13, 1)];
    l4_wfp_proxy = "L4WfpProxy", &[(13, 2)];
    /// ACLs in tiers.
    tier_acl = "TierAcl", &[(14, 0)];
    /// ACLs of networks.
    network_acl = "NetworkACL", &[(15, 0)];
    nested_ip_set = "NestedIpSet", &[(15, 0)];
    /// Networks without a host port.
    disable_host_port = "DisableHostPort", &[(15, 1)];
    /// Hardware offload.
    accelnet = "Accelnet", &[(15, 4)];
    /// Changing a load balancer in place.
    modify_load_balancer = "ModifyLoadbalancer", &[(15, 5), (16, 0)];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_follow_their_version_ranges() {
        let of = |major, minor| SupportedFeatures::of(HnsVersion::new(major, minor));
        assert!(!of(9, 2).dsr && of(9, 3).dsr && !of(10, 0).dsr && !of(10, 1).dsr && of(10, 2).dsr && of(13, 0).dsr);
        assert!(!of(15, 4).modify_load_balancer && of(15, 5).modify_load_balancer && of(16, 0).modify_load_balancer);
        assert!(of(9, 5).l4_proxy && !of(10, 4).l4_proxy && !of(11, 10).l4_proxy && of(12, 1).l4_proxy && !of(13, 0).l4_proxy && of(13, 1).l4_proxy);
        assert!(of(9, 2).api_v2 && !of(9, 1).api_v2 && of(7, 0).api_v1 && !SupportedFeatures::default().api_v1);
        let of_build = |build| SupportedFeatures::of(HnsVersion::of_build(build));
        assert!(!of_build(17134).api_v2 && of_build(17763).dsr && !of_build(17763).set_policy && of_build(20348).l4_wfp_proxy);
        assert!(!of_build(20348).tier_acl && of_build(26100).modify_load_balancer && of_build(26100).nested_ip_set);
        assert!(!SupportedFeatures::default().api_v2, "an unknown version has no feature");
        assert_eq!(HnsVersion::new(13, 3).packed(), 55_834_574_851);
        assert_eq!("15.5".parse(), Ok(HnsVersion::new(15, 5)));
        assert!("15".parse::<HnsVersion>().is_err());
    }
}
