//! Mode `host-gateway`: every node and host routes the others' pod CIDRs to the nodes' addresses.
//!
//! A next hop must be a neighbour: behind a router, the router would have to know the pod CIDRs. Such nodes are reported, and
//! the rest goes on. Upstream: flannel's `host-gw` backend and `AddRoutes.ps1` of microsoft/SDN.

use std::net::IpAddr;

use host::HostRoute;

use super::{Desired, Hop, Inputs, Role, Through};

pub(super) fn decide(inputs: &Inputs<'_>, desired: &mut Desired) {
    inputs.plain_network(desired);
    if inputs.settings.role == Role::Router {
        return;
    }
    for peer in inputs.peers(desired) {
        match way(inputs.routes, peer.address) {
            Way::Link => {
                desired.routes.insert(peer.cidr, Hop { via: peer.address, through: Through::Network, node: peer.node.to_owned() });
            }
            Way::Router(router) => desired.problems.push(format!(
                "node {}: its address {} is behind router {router}, so host-gateway cannot reach its pods {}; put the nodes on one network, or use the mode l3",
                peer.node, peer.address, peer.cidr
            )),
            Way::None => desired.problems.push(format!(
                "node {}: no route leads to its address {}, so its pods {} are not reached; give this host an address on the nodes' network",
                peer.node, peer.address, peer.cidr
            )),
        }
    }
}

/// How a neighbour is reached.
enum Way {
    Link,
    Router(IpAddr),
    None,
}

/// The longest prefix of the main table decides, as it does for packets.
fn way(routes: &[HostRoute], address: IpAddr) -> Way {
    let covering = routes.iter().filter(|route| !route.ours && route.dst.contains(&address));
    match covering.max_by_key(|route| route.dst.prefix_len()) {
        Some(HostRoute { via: None, .. }) => Way::Link,
        Some(HostRoute { via: Some(router), .. }) => Way::Router(*router),
        None => Way::None,
    }
}
