//! Calico's configuration of BGP: annotations of Nodes, and the resources of `crd.projectcalico.org/v1`.
//!
//! Source: Calico's `libcalico-go/lib/apis/v3` and its node's `confd` templates, as the facts of upstream's behaviour.

mod resources;
mod selector;
mod watch;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

pub use resources::{Configuration, Pool, Remote, ResourcePeer, Resources};
pub use selector::{Selector, SelectorError};
pub(crate) use watch::Watch;

const PREFIX: &str = "projectcalico.org/";
/// The AS of clusters that name none.
pub const AS_NUMBER: u32 = 64512;
/// The port of BGP.
pub const PORT: u16 = 179;

/// What a Node's annotations say of BGP. Those that cannot be read are absent, and named in `unread`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announced {
    /// Where its sessions are, with the length of its network's prefix.
    pub ipv4: Option<IpNet>,
    pub ipv6: Option<IpNet>,
    pub asn: Option<u32>,
    /// It is a route reflector of this cluster.
    pub cluster: Option<Ipv4Addr>,
    /// Annotations that cannot be read.
    pub unread: Vec<&'static str>,
}

impl Announced {
    pub fn read(annotations: &BTreeMap<String, String>) -> Self {
        let mut read = Self::default();
        let get = |name: &str| annotations.get(&format!("{PREFIX}{name}")).map(String::as_str).filter(|text| !text.is_empty());
        let host = |text: &str, v4: bool| address(text).filter(|net| net.addr().is_ipv4() == v4 && is_host(net.addr()));
        let mut note = |name: &'static str, text: Option<&str>, found: bool| {
            if text.is_some() && !found {
                read.unread.push(name);
            }
        };
        let (ipv4, ipv6) = (get("IPv4Address"), get("IPv6Address"));
        let (v4, v6) = (ipv4.and_then(|text| host(text, true)), ipv6.and_then(|text| host(text, false)));
        note("IPv4Address", ipv4, v4.is_some());
        note("IPv6Address", ipv6, v6.is_some());
        let asn = get("ASNumber").and_then(as_number);
        note("ASNumber", get("ASNumber"), asn.is_some());
        let cluster = get("RouteReflectorClusterID").and_then(|text| text.parse::<Ipv4Addr>().ok());
        note("RouteReflectorClusterID", get("RouteReflectorClusterID"), cluster.is_some());
        (read.ipv4, read.ipv6, read.asn, read.cluster) = (v4, v6, asn, cluster);
        read
    }

    /// Its address of the family that `like` has.
    pub fn address(&self, like: IpAddr) -> Option<IpAddr> {
        if like.is_ipv4() { self.ipv4 } else { self.ipv6 }.map(|net| net.addr())
    }

    /// Whether what `other` says is said here too.
    pub fn says(&self, other: &Self) -> bool {
        (other.ipv4.is_none() || other.ipv4 == self.ipv4)
            && (other.ipv6.is_none() || other.ipv6 == self.ipv6)
            && (other.asn.is_none() || other.asn == self.asn)
    }
}

/// The annotations of a node with these addresses. Its AS is announced where it is the node's own.
pub fn announce(addresses: &[IpNet], asn: Option<u32>) -> BTreeMap<String, String> {
    let name = |net: &IpNet| if net.addr().is_ipv4() { "IPv4Address" } else { "IPv6Address" };
    let addresses = addresses.iter().map(|net| (format!("{PREFIX}{}", name(net)), net.to_string()));
    addresses.chain(asn.map(|asn| (format!("{PREFIX}ASNumber"), asn.to_string()))).collect()
}

/// An address with or without the length of a prefix.
fn address(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

/// Something can be sent to it.
pub(crate) fn is_host(ip: IpAddr) -> bool {
    !(ip.is_unspecified() || ip.is_multicast() || ip.is_loopback()) && ip != IpAddr::from([255; 4])
}

/// An AS number as `64512` or, of two parts, as `1.10`.
pub fn as_number(text: &str) -> Option<u32> {
    let number = match text.split_once('.') {
        Some((high, low)) => u32::from(high.parse::<u16>().ok()?) << 16 | u32::from(low.parse::<u16>().ok()?),
        None => text.parse().ok()?,
    };
    (number != 0).then_some(number)
}

#[cfg(test)]
mod tests;
