//! Mode `host-gateway`: every node and host routes the others' pod CIDRs to the nodes' addresses.
//!
//! A next hop must be a neighbour: behind a router, the router would have to know the pod CIDRs. Such nodes are reported, and
//! the rest goes on. A node announces itself in flannel's annotations, so that nodes of flannel's backend are peers.
//! Upstream: flannel's `host-gw` backend and `AddRoutes.ps1` of microsoft/SDN.

use std::net::IpAddr;

use host::HostRoute;

use super::{Desired, Hop, Inputs, Peer, Role, Through};
use crate::flannel::{Announcement, HOST_GATEWAY, announce_host_gateway};
use crate::problem::{Kind, Problem};

pub(super) fn decide(inputs: &Inputs<'_>, desired: &mut Desired) {
    inputs.plain_network(desired);
    if inputs.settings.role == Role::Router {
        return;
    }
    if let Some((pods, conf_inputs)) = inputs.own_pods() {
        desired.annotations =
            announce_host_gateway(conf_inputs.of(false).map(|family| family.node_ip), conf_inputs.of(true).map(|family| family.node_ip));
        desired.subnet_env = inputs.subnet_env(pods, &conf_inputs, inputs.state.uplink.map(|uplink| uplink.mtu));
    }
    route_to_neighbours(inputs, desired, next_hop);
}

/// Routes every peer's pods to where `next_hop` says; it must be a neighbour.
pub(super) fn route_to_neighbours(inputs: &Inputs<'_>, desired: &mut Desired, next_hop: impl Fn(&Peer<'_>) -> Result<IpAddr, Problem>) {
    let mode = inputs.settings.mode;
    // Few, however many nodes there are.
    let others: Vec<HostRoute> = inputs.routes.iter().filter(|route| !route.ours).cloned().collect();
    for peer in inputs.peers(desired) {
        let (node, cidr) = (peer.node, peer.cidr);
        let address = match next_hop(&peer) {
            Ok(address) => address,
            Err(problem) => {
                desired.problems.push(problem);
                continue;
            }
        };
        match way(&others, address) {
            Way::Link => {
                desired.routes.insert(cidr, Hop { via: address, through: Through::Network, node: node.to_owned() });
            }
            Way::Router(router) => {
                let text = format!(
                    "node {node}: its address {address} is behind router {router}, so {mode} cannot reach its pods {cidr}; put the nodes on one network, or use the mode l3"
                );
                desired.problems.push(Problem::of_node(Kind::NextHopUnreachable, node, text));
            }
            Way::None => {
                let text = format!(
                    "node {node}: no route leads to its address {address}, so its pods {cidr} are not reached; give this host an address on the nodes' network"
                );
                desired.problems.push(Problem::of_node(Kind::NextHopUnreachable, node, text));
            }
        }
    }
}

/// Where a peer's pods are: the address that it announces, else its Node's.
fn next_hop(peer: &Peer<'_>) -> Result<IpAddr, Problem> {
    let (node, cidr) = (peer.node, peer.cidr);
    let backend = match &peer.row.announcement {
        Announcement::None => return Ok(peer.address),
        Announcement::HostGateway { public_ip, public_ipv6 } => {
            let announced = if peer.address.is_ipv4() { public_ip } else { public_ipv6 };
            return Ok(announced.unwrap_or(peer.address));
        }
        Announcement::Bad(reason) => {
            let text = format!("node {node}: {reason}, so its pods {cidr} are not reached; restart its pod network to write it anew");
            return Err(Problem::of_node(Kind::AnnotationNotRead, node, text));
        }
        Announcement::Vxlan { .. } => "vxlan",
        Announcement::Other(backend) => backend,
    };
    let text =
        format!("node {node}: its flannel backend is {backend}, not {HOST_GATEWAY}, so its pods {cidr} are not reached; give all nodes one backend");
    Err(Problem::of_node(Kind::BackendDiffers, node, text))
}

/// How a neighbour is reached.
pub(super) enum Way {
    Link,
    Router(IpAddr),
    None,
}

/// The longest prefix of the main table decides, as it does for packets.
pub(super) fn way(routes: &[HostRoute], address: IpAddr) -> Way {
    let covering = routes.iter().filter(|route| !route.ours && route.dst.contains(&address));
    match covering.max_by_key(|route| route.dst.prefix_len()) {
        Some(HostRoute { via: None, .. }) => Way::Link,
        Some(HostRoute { via: Some(router), .. }) => Way::Router(*router),
        None => Way::None,
    }
}
