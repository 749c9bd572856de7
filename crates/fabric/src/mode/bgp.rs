//! Mode `bgp`: nodes tell each other, and routers, their pod CIDRs by BGP, as Calico's nodes do.
//!
//! From nodes and configuration follow the speaker's sessions and announcements; from what its peers told, the routes. A next hop
//! must be a neighbour. After a restart the routes of before stay until the peers have told theirs again.
//! Upstream: Calico's `confd` templates for BIRD, whose annotations and resources it reads.

mod learned;
mod peers;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use bgp::{Learned, PeerStatus, Secret};
use hcn::owned_id;
use ipnet::IpNet;

use super::{Desired, Inputs, PodSettings, Role, host_gateway};
use crate::calico::{self, Resources};
use crate::problem::{Kind, Problem};
use crate::rows::NodeRow;

/// Seconds without a message after which a peer is gone.
const HOLD: u16 = 90;
/// Seconds that routes stay while a speaker restarts (BIRD's default, and so Calico's).
const RESTART: u16 = 120;
/// What Calico's nodes give to their own blocks: it is the largest signed number less the metric 1024 of their kernel routes.
const LOCAL_PREF: u32 = i32::MAX as u32 - 1024;

/// Settings of the mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bgp {
    /// The AS of this node, where it is another one than the cluster's.
    pub asn: Option<u32>,
    /// Passwords of peers, by address.
    pub passwords: BTreeMap<IpAddr, Secret>,
    /// The password of the sessions between nodes.
    pub mesh_password: Option<Secret>,
    /// Routers beside those that BGPPeers name: address and AS.
    pub peers: BTreeMap<IpAddr, u32>,
}

/// The longest password of TCP MD5, in bytes.
const LONGEST_PASSWORD: usize = 80;

/// A text that is no password of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it has {0} bytes; write one line of 1 to {LONGEST_PASSWORD} bytes")]
pub struct NoPassword(usize);

/// The password in a file; the end of its line is no part of it.
///
/// # Errors
/// When it is empty or too long.
pub fn password(text: &str) -> Result<Secret, NoPassword> {
    let text = text.trim_end_matches(['\r', '\n']);
    if (1..=LONGEST_PASSWORD).contains(&text.len()) { Ok(Secret::new(text)) } else { Err(NoPassword(text.len())) }
}

/// What the sessions of this host have reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sessions {
    pub routes: Arc<BTreeMap<IpNet, Learned>>,
    /// Every peer told its routes since the start, or its time to do so is over.
    pub whole: bool,
    pub peers: BTreeMap<IpAddr, PeerStatus>,
    /// What the host refused.
    pub problems: Vec<String>,
}

/// What the mode decides from, beside nodes, settings and routes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    pub resources: Resources,
    pub sessions: Sessions,
    /// The host's sockets take passwords.
    pub passwords: bool,
}

/// What the host's speaker does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Speaker {
    pub config: bgp::Config,
    /// Where peers connect to.
    pub listen: BTreeSet<(IpAddr, u16)>,
}

pub(super) fn decide(inputs: &Inputs<'_>, desired: &mut Desired) {
    match &inputs.settings.role {
        // It has sessions of its own, or none.
        Role::Router => {}
        // It is no Node, so no peer knows it: pods answer to its own address, and it reaches them by the nodes'.
        Role::Host { .. } => {
            host_gateway::route_to_neighbours(inputs, desired, |peer| Ok(peer.row.calico.address(peer.address).unwrap_or(peer.address)));
        }
        Role::Node(pods) => {
            inputs.plain_network(desired);
            let own = inputs.nodes.get(&inputs.settings.node_name);
            let (Some(known), Some(own)) = (&inputs.state.bgp, own.and_then(|row| Own::of(inputs, pods, row))) else {
                learned::keep(inputs, desired);
                return;
            };
            // Says which pod CIDRs contradict each other.
            inputs.peers(desired);
            pools(inputs, known, desired);
            let announce = own.announced(inputs, known);
            let peers = peers::peers(inputs, known, &own, desired);
            let port = known.resources.configuration.port;
            desired.speaker =
                Some(Speaker { listen: own.addresses.iter().map(|net| (net.addr(), port)).collect(), config: own.config(inputs, announce, peers) });
            desired.annotations = calico::announce(&own.addresses, inputs.settings.bgp.asn);
            learned::routes(inputs, known, &own, desired);
        }
    }
}

/// This node.
struct Own<'a> {
    name: &'a str,
    row: &'a NodeRow,
    /// Where its sessions are, with the length of the network's prefix.
    addresses: Vec<IpNet>,
    asn: u32,
    id: Ipv4Addr,
    pods: &'a PodSettings,
}

impl<'a> Own<'a> {
    /// None: its Node has no address yet.
    fn of(inputs: &Inputs<'a>, pods: &'a PodSettings, row: &'a NodeRow) -> Option<Self> {
        let name = &inputs.settings.node_name;
        let first = |v4: bool| row.addresses.iter().copied().find(|address| address.is_ipv4() == v4);
        let with_prefix = |address: IpAddr| {
            let connected = inputs.routes.iter().filter(|route| route.via.is_none() && !route.ours && route.dst.contains(&address));
            let longest = connected.map(|route| route.dst.prefix_len()).max();
            IpNet::new(address, longest.unwrap_or(if address.is_ipv4() { 32 } else { 128 })).unwrap_or(IpNet::from(address))
        };
        let addresses: Vec<IpNet> = [first(true), first(false)].into_iter().flatten().map(with_prefix).collect();
        let id = match addresses.first()?.addr() {
            IpAddr::V4(address) => address,
            IpAddr::V6(_) => owned_id(&pods.cluster_uid, "router", name).0.as_u128().to_be_bytes().last_chunk::<4>().copied().map(Ipv4Addr::from)?,
        };
        let known = inputs.state.bgp.as_ref()?;
        let asn = inputs.settings.bgp.asn.or(row.calico.asn).unwrap_or_else(|| cluster_asn(known));
        Some(Self { name, row, addresses, asn, id, pods })
    }

    fn address(&self, v4: bool) -> Option<IpAddr> {
        self.addresses.iter().map(IpNet::addr).find(|address| address.is_ipv4() == v4)
    }

    /// Its pod CIDRs, but those of pools that are not announced.
    fn announced(&self, inputs: &Inputs<'_>, known: &Known) -> BTreeSet<IpNet> {
        let silent = |cidr: &IpNet| known.resources.pools.values().flatten().any(|pool| pool.silent && !pool.disabled && pool.cidr.contains(cidr));
        let of_cluster = |cidr: &IpNet| inputs.settings.cluster_cidrs.iter().any(|cluster| cluster.contains(cidr));
        self.row.pod_cidrs.iter().copied().filter(|cidr| of_cluster(cidr) && !silent(cidr)).collect()
    }

    fn config(&self, inputs: &Inputs<'_>, announce: BTreeSet<IpNet>, peers: BTreeMap<IpAddr, bgp::Peer>) -> bgp::Config {
        bgp::Config {
            asn: self.asn,
            id: self.id,
            hold: HOLD,
            restart_time: Some(RESTART),
            cluster: self.row.calico.cluster,
            local_pref: LOCAL_PREF,
            next_hop_v4: self.address(true),
            next_hop_v6: self.address(false),
            forward: inputs.settings.cluster_cidrs.clone(),
            announce,
            peers,
        }
    }
}

/// The AS of nodes that name none.
fn cluster_asn(known: &Known) -> u32 {
    known.resources.configuration.asn.unwrap_or(calico::AS_NUMBER)
}

/// Pools whose packets other nodes would put into tunnels.
fn pools(inputs: &Inputs<'_>, known: &Known, desired: &mut Desired) {
    let ours = |cidr: &IpNet| inputs.settings.cluster_cidrs.iter().any(|cluster| cluster.contains(cidr) || cidr.contains(cluster));
    for (name, pool) in &known.resources.pools {
        let text = match pool {
            Err(reason) => format!("IPPool {name}: {reason}; it has no effect on Mullion's nodes"),
            Ok(pool) if pool.disabled || !ours(&pool.cidr) => continue,
            Ok(pool) => match &pool.tunnel {
                Some(("ipipMode", mode)) => format!(
                    "IPPool {name}: its ipipMode is {mode}, but Windows has no IP-in-IP, and Mullion's nodes send packets as they are; set ipipMode: Never"
                ),
                Some((member, mode)) => format!(
                    "IPPool {name}: its {member} is {mode}, but with bgp Mullion's nodes send packets as they are; set {member}: Never, or use the mode vxlan"
                ),
                None => continue,
            },
        };
        desired.problems.push(Problem::of_node(Kind::BgpNotUsed, &format!("IPPool/{name}"), text));
    }
}

#[cfg(test)]
mod tests;
