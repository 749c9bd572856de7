//! The pod network between nodes: every pod reaches every other pod at its own address.
//!
//! Keeps true, per [`Mode`]: routes (marked as ours; others' are never touched); on a Windows node the HNS network and the
//! host's endpoint on it; on a Linux node forwarding and masquerading; and, written last, the CNI configuration that lets
//! pods start.
//! Flow: Nodes, settings and the host's routes → [`mode`] (pure) → [`Desired`] → [`apply`], part by part → [`Status`].
//! Guarantees: a restart leaves everything in place; drift is repaired by the next pass; what cannot be done for one node is
//! reported and stops nothing else.
//! Upstream: flannel's `host-gw` backend, whose Windows conventions (`.1` for HNS, `.2` for the host) it keeps.

pub mod apply;
pub mod calico;
pub mod conf;
#[cfg(test)]
mod examples;
pub mod flannel;
pub mod hns;
pub mod mode;
pub mod problem;
pub mod render;
#[cfg(unix)]
pub mod router;
mod rows;
mod run;

pub use mode::bgp::Bgp;
pub use mode::{Attachment, Desired, Mode, NetworkFacts, PodSettings, Role, Settings, UnknownMode, Vxlan};
pub use problem::Problem;
pub use rows::{Condition, NodeRow};
pub use run::{Config, Status, run};

use std::net::IpAddr;

use ipnet::IpNet;

/// The `n`th address of a subnet, counted from its network address.
pub(crate) fn nth(subnet: IpNet, n: u32) -> IpAddr {
    match subnet.network() {
        IpAddr::V4(ip) => IpAddr::V4((u32::from(ip).wrapping_add(n)).into()),
        IpAddr::V6(ip) => IpAddr::V6((u128::from(ip).wrapping_add(n.into())).into()),
    }
}
