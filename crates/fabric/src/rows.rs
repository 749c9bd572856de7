//! Rows of Nodes: the fields that the fabric uses.

use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;

/// A Node as far as its pods' reachability goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeRow {
    /// `spec.podCIDRs`; those that do not parse are left out.
    pub pod_cidrs: Vec<IpNet>,
    /// Its first `InternalIP` of IPv4.
    pub address: Option<IpAddr>,
}

impl NodeRow {
    /// Reads a Node; one without addresses or CIDRs is a row too.
    pub fn of(node: &Node) -> Option<Self> {
        let spec = node.spec.as_ref();
        let listed = spec.and_then(|s| s.pod_cidrs.as_deref()).unwrap_or_default();
        let single = spec.and_then(|s| s.pod_cidr.as_ref());
        let mut pod_cidrs: Vec<IpNet> = Vec::new();
        for cidr in listed.iter().chain(single).filter_map(|text| text.parse::<IpNet>().ok()).map(|cidr| cidr.trunc()) {
            if !pod_cidrs.contains(&cidr) {
                pod_cidrs.push(cidr);
            }
        }
        let addresses = node.status.as_ref().and_then(|s| s.addresses.as_deref()).unwrap_or_default();
        let internal = addresses.iter().filter(|a| a.type_ == "InternalIP").filter_map(|a| a.address.parse().ok());
        Some(Self { pod_cidrs, address: internal.into_iter().find(IpAddr::is_ipv4) })
    }

    /// The pod CIDR of IPv4.
    pub fn pod_cidr(&self) -> Option<IpNet> {
        self.pod_cidrs.iter().copied().find(|cidr| cidr.addr().is_ipv4())
    }
}
