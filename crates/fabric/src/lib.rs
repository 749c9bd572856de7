//! The pod network between nodes, mode `host-gateway`: every node routes the other nodes' pod CIDRs to their addresses.
//!
//! Keeps true: routes to every peer's pod CIDR (marked as ours; others' are never touched); on a Windows node the HNS
//! L2Bridge network and the host's endpoint on it; on a Linux node forwarding and masquerading; and, written last, the
//! CNI configuration that lets pods start. Nodes must be neighbours on one link.
//! Flow: Nodes → [`routes`] plan (pure) → `host::Routes`; own pod CIDR → [`hns`] plan (pure) or `linux` → [`conf`].
//! Upstream: flannel's `host-gw` backend, whose Windows conventions (`.1` for HNS, `.2` for the host) it keeps.

pub mod conf;
pub mod hns;
#[cfg(target_os = "linux")]
pub mod linux;
pub mod routes;
mod rows;
mod run;

pub use rows::NodeRow;
pub use run::{Config, PodNetwork, Status, run};

use std::net::IpAddr;

use ipnet::IpNet;

/// The `n`th address of a subnet, counted from its network address.
pub(crate) fn nth(subnet: IpNet, n: u32) -> IpAddr {
    match subnet.network() {
        IpAddr::V4(ip) => IpAddr::V4((u32::from(ip).wrapping_add(n)).into()),
        IpAddr::V6(ip) => IpAddr::V6((u128::from(ip).wrapping_add(n.into())).into()),
    }
}
