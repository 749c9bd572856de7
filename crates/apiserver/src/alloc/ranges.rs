//! The networks that addresses of Services come from: those of the configuration, and those of ServiceCIDRs
//! (pkg/registry/core/service/ipallocator/{ipallocator,cidrallocator}.go, pkg/api/servicecidr).

use crate::object;
use ipnet::IpNet;
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Longest IPv6 network that is allotted from: a shorter prefix has more addresses than upstream counts.
const SHORTEST_V6: u8 = 64;

/// The address family of an address or network, as the API names it.
pub fn family(address: &IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

/// Why a value of `--service-cluster-ip-range` is refused; the wording is upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangesError {
    /// Not a network.
    #[error("--service-cluster-ip-range must contain at least one valid cidr")]
    Malformed,
    /// More than two.
    #[error("--service-cluster-ip-range must not contain more than two entries")]
    TooMany,
    /// Two of one family.
    #[error("--service-cluster-ip-range[0] and --service-cluster-ip-range[1] must be of different IP family")]
    SameFamily,
    /// An IPv6 network of more than 64 bits.
    #[error("shortest allowed prefix length for service CIDR is 64, got {0}")]
    TooLarge(u8),
}

/// One network for the addresses of Services, or one of each family. The first one's family is the cluster's default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRanges {
    primary: IpNet,
    secondary: Option<IpNet>,
}

impl From<IpNet> for ServiceRanges {
    fn from(primary: IpNet) -> Self {
        Self { primary: primary.trunc(), secondary: None }
    }
}

impl FromStr for ServiceRanges {
    type Err = RangesError;

    /// Reads `A` or `A,B`, as kube-apiserver's `--service-cluster-ip-range`.
    fn from_str(text: &str) -> Result<Self, RangesError> {
        let networks: Vec<IpNet> = text.split(',').map(|part| part.trim().parse().map_err(|_| RangesError::Malformed)).collect::<Result<_, _>>()?;
        if let Some(large) = networks.iter().find(|network| network.addr().is_ipv6() && network.prefix_len() < SHORTEST_V6) {
            return Err(RangesError::TooLarge(large.prefix_len()));
        }
        match networks.as_slice() {
            [primary] => Ok((*primary).into()),
            [primary, secondary] if primary.addr().is_ipv4() == secondary.addr().is_ipv4() => Err(RangesError::SameFamily),
            [primary, secondary] => Ok(Self { primary: primary.trunc(), secondary: Some(secondary.trunc()) }),
            _ => Err(RangesError::TooMany),
        }
    }
}

impl ServiceRanges {
    /// The networks, the default family's first.
    pub fn networks(&self) -> impl Iterator<Item = IpNet> {
        [self.primary].into_iter().chain(self.secondary)
    }

    /// The families, the default one first.
    pub fn families(&self) -> Vec<&'static str> {
        self.networks().map(|network| family(&network.addr())).collect()
    }

    /// The first usable address: the `kubernetes` Service's.
    pub fn first_address(&self) -> IpAddr {
        Range::new(self.primary).nth(0)
    }
}

/// The usable addresses of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    network: IpNet,
}

impl Range {
    pub fn new(network: IpNet) -> Self {
        Self { network: network.trunc() }
    }

    pub fn family(&self) -> &'static str {
        family(&self.network.addr())
    }

    /// Whether this is one of its usable addresses: neither the network's own nor, of IPv4, the broadcast address
    /// (`PrefixContainsIP`).
    pub fn contains(&self, address: &IpAddr) -> bool {
        self.network.contains(address) && *address != self.network.network() && (address.is_ipv6() || *address != self.network.broadcast())
    }

    /// How many usable addresses there are (`hostsPerNetwork`).
    fn size(&self) -> u128 {
        let bits = u32::from(self.network.max_prefix_len() - self.network.prefix_len()).min(64);
        let edges = if self.network.addr().is_ipv4() { 2 } else { 1 };
        (1_u128 << bits).saturating_sub(edges)
    }

    /// The part for addresses that users choose (`calculateRangeOffset`).
    fn band(&self) -> u128 {
        let bits = u32::from(self.network.max_prefix_len() - self.network.prefix_len()).min(64);
        let all = 1_u128 << bits;
        if all <= 16 { 0 } else { (all / 16).clamp(16, 256) }
    }

    fn nth(&self, offset: u128) -> IpAddr {
        match self.network.network() {
            IpAddr::V4(base) => Ipv4Addr::from(u32::from(base).wrapping_add(u32::try_from(offset + 1).unwrap_or_default())).into(),
            IpAddr::V6(base) => Ipv6Addr::from(u128::from(base).wrapping_add(offset + 1)).into(),
        }
    }

    /// Every usable address once: those above the band for chosen addresses first, from a random place on.
    pub fn candidates(&self, random: u128) -> impl Iterator<Item = IpAddr> + use<> {
        let (range, size) = (*self, self.size());
        let band = self.band().min(size);
        let start = if size > band { band + random % (size - band) } else { size };
        (start..size).chain(band..start).chain(0..band).map(move |offset| range.nth(offset))
    }
}

/// The networks of a ServiceCIDR that Services may get addresses from now; none unless it is ready. One without conditions is taken as
/// ready, because no controller may run.
pub fn ready_networks(cidr: &Value) -> Vec<IpNet> {
    let ready = object::list(cidr, &["status", "conditions"]).iter().rfind(|condition| object::text(condition, &["type"]) == "Ready");
    if object::is_deleting(cidr) || ready.is_some_and(|condition| object::text(condition, &["status"]) != "True") {
        return Vec::new();
    }
    networks(cidr)
}

/// The networks of a ServiceCIDR.
pub fn networks(cidr: &Value) -> Vec<IpNet> {
    object::list(cidr, &["spec", "cidrs"]).iter().filter_map(|network| network.as_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::collections::HashSet;

    fn range(text: &str) -> Range {
        Range::new(text.parse().unwrap())
    }

    #[test]
    fn ranges_are_one_of_each_family() {
        let both: ServiceRanges = "10.96.0.0/12,fd00:10:96::/108".parse().unwrap();
        assert_eq!((both.families(), both.first_address().to_string()), (vec!["IPv4", "IPv6"], "10.96.0.1".to_string()));
        let six: ServiceRanges = "fd00::/64, 10.0.0.0/16".parse().unwrap();
        assert_eq!((six.families(), six.first_address().to_string()), (vec!["IPv6", "IPv4"], "fd00::1".to_string()));
        for (text, error) in [
            ("", "--service-cluster-ip-range must contain at least one valid cidr"),
            ("10.0.0.0/16,10.1.0.0/16", "--service-cluster-ip-range[0] and --service-cluster-ip-range[1] must be of different IP family"),
            ("10.0.0.0/16,fd00::/108,fd01::/108", "--service-cluster-ip-range must not contain more than two entries"),
            ("fd00::/48", "shortest allowed prefix length for service CIDR is 64, got 48"),
        ] {
            assert_eq!(text.parse::<ServiceRanges>().unwrap_err().to_string(), error, "{text}");
        }
    }

    /// Upstream's tables of `hostsPerNetwork` and `calculateRangeOffset`.
    #[test]
    fn sizes_and_bands_are_upstream_s() {
        for (network, size, band) in [
            ("192.168.1.0/24", 254, 16),
            ("10.0.0.0/16", 65534, 256),
            ("10.0.0.0/20", 4094, 256),
            ("192.168.1.0/28", 14, 0),
            ("192.168.1.0/27", 30, 16),
            ("192.168.1.0/31", 0, 0),
            ("2001:db2::/126", 3, 0),
            ("2001:db2::/112", 65535, 256),
            ("fd00::/64", u128::from(u64::MAX), 256),
        ] {
            assert_eq!((range(network).size(), range(network).band()), (size, band), "{network}");
        }
    }

    #[test]
    fn candidates_are_all_usable_addresses_once() {
        for network in ["10.0.0.0/29", "10.0.0.0/26", "fd00::/123", "10.0.0.0/31", "10.0.0.4/32"] {
            for random in [0, 7, u128::MAX] {
                let all: Vec<IpAddr> = range(network).candidates(random).collect();
                assert_eq!(all.iter().collect::<HashSet<_>>().len() as u128, range(network).size(), "{network}");
                assert!(all.iter().all(|address| range(network).contains(address)), "{network}");
            }
        }
        let first = range("10.0.0.0/24").candidates(0).next();
        assert_eq!(first, "10.0.0.17".parse().ok(), "the lowest 16 are left for addresses that users choose");
        assert!(range("fd00::/120").contains(&"fd00::ff".parse().unwrap()), "IPv6 has no broadcast address");
        assert!(!range("10.0.0.0/24").contains(&"10.0.0.255".parse().unwrap()) && !range("10.0.0.0/24").contains(&"10.0.0.0".parse().unwrap()));
    }

    #[test]
    fn only_ready_networks_are_allotted_from() {
        let cidr = |conditions: Value| json!({"spec": {"cidrs": ["10.1.0.0/16"]}, "status": {"conditions": conditions}});
        assert_eq!(ready_networks(&cidr(json!([]))).len(), 1);
        assert_eq!(ready_networks(&cidr(json!([{"type": "Ready", "status": "True"}]))).len(), 1);
        assert!(ready_networks(&cidr(json!([{"type": "Ready", "status": "False"}]))).is_empty());
        assert!(ready_networks(&json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"cidrs": ["10.1.0.0/16"]}})).is_empty());
    }
}
