//! From what peers told to routes of this host.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use bgp::session::State;
use ipnet::IpNet;

use super::{Known, Own};
use crate::mode::host_gateway::{Way, way};
use crate::mode::{Desired, Hop, Inputs, Through};
use crate::problem::{Kind, Problem};

pub(super) fn routes(inputs: &Inputs<'_>, known: &Known, own: &Own<'_>, desired: &mut Desired) {
    if !known.sessions.whole {
        keep(inputs, desired);
    }
    let owners = Owners::of(inputs);
    let mut ways: HashMap<IpAddr, Way> = HashMap::new();
    let mut refused: BTreeMap<(IpAddr, Refusal), (IpNet, usize)> = BTreeMap::new();
    for (prefix, learned) in &*known.sessions.routes {
        let way = ways.entry(learned.next_hop).or_insert_with(|| way(inputs.routes, learned.next_hop));
        let refusal = match (refusal(inputs, own, prefix), &*way) {
            (Some(refusal), _) => Some(refusal),
            (None, Way::Link) => None,
            (None, Way::Router(_) | Way::None) => Some(Refusal::NextHop(learned.next_hop)),
        };
        if let Some(refusal) = refusal {
            refused.entry((learned.peer, refusal)).or_insert((*prefix, 0)).1 += 1;
            continue;
        }
        let peer = known.sessions.peers.get(&learned.peer).map_or("a peer", |peer| &peer.name);
        let hop = Hop { via: learned.next_hop, through: Through::Network, node: owners.name(prefix, peer) };
        desired.routes.insert(*prefix, hop);
    }
    for ((address, refusal), (first, count)) in refused {
        let peer = known.sessions.peers.get(&address).map_or("", |peer| &peer.name);
        desired.problems.push(refusal.problem(address, peer, first, count));
    }
    sessions(known, desired);
}

/// The routes of before the restart: packets go on until the peers have told theirs.
pub(super) fn keep(inputs: &Inputs<'_>, desired: &mut Desired) {
    let owners = Owners::of(inputs);
    for route in inputs.routes.iter().filter(|route| route.ours) {
        if let Some(via) = route.via {
            let node = owners.name(&route.dst, "a peer of before the restart");
            desired.routes.insert(route.dst, Hop { via, through: Through::Network, node });
        }
    }
}

/// Sessions that are not established, and why.
fn sessions(known: &Known, desired: &mut Desired) {
    for (address, peer) in &known.sessions.peers {
        if let (true, Some(trouble)) = (peer.state != State::Established, &peer.trouble) {
            let stay = if peer.stale { "; its routes stay for a while" } else { "" };
            let text = format!(
                "peer {address} ({}): no BGP session: {trouble}{stay}; see that it has this node as its peer, and that port 179 is open",
                peer.name
            );
            desired.problems.push(Problem::of_node(Kind::SessionDown, &peer.name, text));
        }
    }
    desired.problems.extend(known.sessions.problems.iter().map(Problem::failed));
}

/// Why a route is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Refusal {
    /// It leads to this node's own pods.
    OwnPods,
    /// It leads to Services.
    Services,
    /// It leads to hosts of the nodes' network.
    Nodes,
    /// No other host has such addresses.
    Martian,
    /// The next hop is no neighbour.
    NextHop(IpAddr),
}

fn refusal(inputs: &Inputs<'_>, own: &Own<'_>, prefix: &IpNet) -> Option<Refusal> {
    if own.row.pod_cidrs.iter().any(|cidr| cidr.contains(prefix)) {
        return Some(Refusal::OwnPods);
    }
    if is_martian(prefix) {
        return Some(Refusal::Martian);
    }
    // Pods are never Services or nodes, whatever those two networks contain.
    if inputs.settings.cluster_cidrs.iter().any(|cluster| cluster.contains(prefix)) {
        return None;
    }
    if own.pods.service_cidrs.iter().any(|net| net.contains(prefix)) {
        return Some(Refusal::Services);
    }
    let connected = own.addresses.iter().any(|address| address.trunc().contains(prefix));
    (connected || own.pods.lans.iter().any(|net| net.contains(prefix))).then_some(Refusal::Nodes)
}

/// Loopback, link-local and multicast addresses, of which no route of another host can be true.
fn is_martian(prefix: &IpNet) -> bool {
    match prefix {
        IpNet::V4(net) => {
            let network = net.network();
            net.prefix_len() >= 4 && (network.is_loopback() || network.is_link_local() || network.is_multicast())
        }
        IpNet::V6(net) => {
            let network = net.network();
            network.is_loopback() || net.prefix_len() >= 8 && (network.is_unicast_link_local() || network.is_multicast())
        }
    }
}

impl Refusal {
    fn problem(self, address: IpAddr, peer: &str, first: IpNet, count: usize) -> Problem {
        let routes = if count == 1 { format!("its route {first}") } else { format!("{count} of its routes, {first} among them,") };
        let verb = if count == 1 { "is" } else { "are" };
        let (kind, reason) = match self {
            Self::OwnPods => (Kind::RouteRefused, "it leads to pods of this node; let one node alone announce them".to_owned()),
            Self::Services => (Kind::RouteRefused, "it leads to Services, which this node serves itself; do not announce them to nodes".to_owned()),
            Self::Nodes => (Kind::RouteRefused, "it leads to hosts of the nodes' network; do not announce them to nodes".to_owned()),
            Self::Martian => (Kind::RouteRefused, "no other host has loopback, link-local or multicast addresses; do not announce them".to_owned()),
            Self::NextHop(hop) => (
                Kind::NextHopUnreachable,
                format!(
                    "its next hop {hop} is no neighbour of this host; let the peer put itself in its place (next hop self), or put both on one network"
                ),
            ),
        };
        Problem::of_node(kind, peer, format!("peer {address} ({peer}): {routes} {verb} not used: {reason}"))
    }
}

/// Which node has the pods of a prefix.
struct Owners<'a>(BTreeMap<IpNet, &'a str>);

impl<'a> Owners<'a> {
    fn of(inputs: &Inputs<'a>) -> Self {
        Self(inputs.nodes.iter().flat_map(|(name, row)| row.pod_cidrs.iter().map(move |cidr| (*cidr, name.as_str()))).collect())
    }

    fn name(&self, prefix: &IpNet, other: &str) -> String {
        self.0.get(prefix).copied().unwrap_or(other).to_owned()
    }
}
