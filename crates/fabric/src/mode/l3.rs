//! Mode `l3`: the router between the nodes has a route for every pod CIDR. Nodes need none: what is not theirs goes to the
//! router, their default gateway.
//!
//! Source: the beta document's "Upstream L3 Routing Topology". The router must not answer with redirects, since packets
//! leave by the link that they came by.

use super::{Desired, Hop, Inputs, Role, Through};

pub(super) fn decide(inputs: &Inputs<'_>, desired: &mut Desired) {
    inputs.plain_network(desired);
    let peers = inputs.peers(desired);
    if inputs.settings.role == Role::Router {
        desired.routes =
            peers.into_iter().map(|peer| (peer.cidr, Hop { via: peer.address, through: Through::Network, node: peer.node.to_owned() })).collect();
    }
}
