//! The peers of a node: the mesh, nodes that BGPPeers select, routers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use bgp::{Connect, Family, Peer, Secret};

use super::{Known, Own, RESTART, cluster_asn};
use crate::calico::{PORT, Remote, ResourcePeer};
use crate::mode::{Desired, Inputs};
use crate::problem::{Kind, Problem};
use crate::rows::NodeRow;

/// The way out where a password is in a Secret.
const NO_SECRETS: &str = "is in a Secret, and Mullion's nodes read no Secrets for BGP";

pub(super) fn peers(inputs: &Inputs<'_>, known: &Known, own: &Own<'_>, desired: &mut Desired) -> BTreeMap<IpAddr, Peer> {
    let mut all = Peers { inputs, known, own, found: BTreeMap::new(), problems: Vec::new() };
    all.mesh();
    for (name, peer) in &known.resources.peers {
        match peer {
            Ok(peer) => all.resource(name, peer),
            Err(reason) => all.refuse(&format!("BGPPeer/{name}"), format!("BGPPeer {name}: {reason}; it has no effect")),
        }
    }
    for (address, asn) in &inputs.settings.bgp.peers {
        let password = inputs.settings.bgp.passwords.get(address).cloned();
        all.router("router", (*address, PORT, *asn), password, Options::default());
    }
    for trouble in &known.resources.troubles {
        all.refuse("Calico", trouble.clone());
    }
    let unused = &known.resources.configuration.unused;
    if !unused.is_empty() {
        all.refuse("BGPConfiguration/default", format!("BGPConfiguration default: {} has no effect on Mullion's nodes", unused.join(", ")));
    }
    if !known.passwords {
        all.without_passwords();
    }
    desired.problems.append(&mut all.problems);
    all.found
}

/// What a BGPPeer says of its sessions.
#[derive(Clone, Copy, Default)]
struct Options {
    keep_next_hop: bool,
    own_as_allowed: u8,
    longest_restart: Option<u16>,
}

struct Peers<'a> {
    inputs: &'a Inputs<'a>,
    known: &'a Known,
    own: &'a Own<'a>,
    found: BTreeMap<IpAddr, Peer>,
    problems: Vec<Problem>,
}

impl<'a> Peers<'a> {
    fn refuse(&mut self, about: &str, text: String) {
        self.problems.push(Problem::of_node(Kind::BgpNotUsed, about, text));
    }

    fn others(&self) -> impl Iterator<Item = (&'a String, &'a NodeRow)> + use<'a> {
        let own = self.own.name;
        self.inputs.nodes.iter().filter(move |(name, _)| *name != own)
    }

    /// Every node with every other one. Reflectors have the peers that BGPPeers give them.
    fn mesh(&mut self) {
        let (configuration, bgp) = (&self.known.resources.configuration, &self.inputs.settings.bgp);
        for (name, row) in self.others() {
            if !row.calico.unread.is_empty() {
                let text = format!(
                    "node {name}: its annotations {} of projectcalico.org cannot be read and count as absent; write them anew, or remove them",
                    row.calico.unread.join(", ")
                );
                self.problems.push(Problem::of_node(Kind::AnnotationNotRead, name, text));
            }
            if configuration.mesh && self.own.row.calico.cluster.is_none() && row.calico.cluster.is_none() {
                let options = Options { longest_restart: configuration.longest_restart, ..Options::default() };
                self.node(name, row, bgp.mesh_password.as_ref(), options);
            }
        }
        if configuration.mesh && configuration.mesh_password && bgp.mesh_password.is_none() {
            let text = format!(
                "BGPConfiguration default: its nodeMeshPassword {NO_SECRETS}, so sessions with Calico's nodes do not begin; write the password into a file on each node, and name it in bgp.meshPasswordFile of the node's configuration"
            );
            self.refuse("BGPConfiguration/default", text);
        }
    }

    /// The sessions with another node: one per family.
    fn node(&mut self, name: &str, row: &NodeRow, password: Option<&Secret>, options: Options) {
        let asn = row.calico.asn.unwrap_or_else(|| cluster_asn(self.known));
        let client = self.own.row.calico.cluster.is_some_and(|own| row.calico.cluster != Some(own)) && asn == self.own.asn;
        for v4 in [true, false] {
            let Some(local) = self.own.address(v4) else { continue };
            let of_node = row.addresses.iter().copied().find(|address| address.is_ipv4() == v4);
            let Some(address) = row.calico.address(local).or(of_node).filter(|address| *address != local) else { continue };
            if let Some(held) = self.found.get(&address).filter(|held| held.name != name) {
                let text =
                    format!("node {name}: its address {address} is that of {}, so there is no session with it; give each node its own", held.name);
                self.problems.push(Problem::of_node(Kind::NextHopUnreachable, name, text));
                continue;
            }
            let peer = Peer {
                name: name.to_owned(),
                asn,
                connect: Connect { port: self.known.resources.configuration.port, local, password: password.cloned() },
                families: [Family::of(local)].into(),
                client,
                keep_next_hop: options.keep_next_hop,
                own_as_allowed: options.own_as_allowed,
                longest_restart: options.longest_restart.unwrap_or(RESTART),
            };
            self.found.insert(address, peer);
        }
    }

    fn resource(&mut self, name: &str, peer: &ResourcePeer) {
        let has = |node: &str, row: &NodeRow| peer.node.as_deref().map_or_else(|| peer.nodes.selects(&row.labels), |named| named == node);
        let options = Options { keep_next_hop: peer.keep_next_hop, own_as_allowed: peer.own_as_allowed, longest_restart: peer.longest_restart };
        let selected = has(self.own.name, self.own.row);
        let mut used = false;
        match &peer.remote {
            Remote::Address { ip, port, asn } if selected => {
                let password = self.inputs.settings.bgp.passwords.get(ip);
                if peer.password && password.is_none() {
                    let text = format!(
                        "BGPPeer {name}: its password {NO_SECRETS}; write it into a file on each node, and name the file in bgp.passwordFiles of the node's configuration, under {ip}"
                    );
                    self.refuse(&format!("BGPPeer/{name}"), text);
                    return;
                }
                used = true;
                self.router(name, (*ip, *port, *asn), password.cloned(), options);
            }
            Remote::Address { .. } => {}
            // A session has two ends: the resource is about the other node as well.
            Remote::Nodes(peers) => {
                for (other, row) in self.others() {
                    if selected && peers.selects(&row.labels) || has(other, row) && peers.selects(&self.own.row.labels) {
                        used = true;
                        self.node(other, row, self.inputs.settings.bgp.mesh_password.as_ref(), options);
                    }
                }
                if used && peer.password && self.inputs.settings.bgp.mesh_password.is_none() {
                    let text = format!(
                        "BGPPeer {name}: its password {NO_SECRETS}; write it into a file on each node, and name it in bgp.meshPasswordFile of the node's configuration"
                    );
                    self.refuse(&format!("BGPPeer/{name}"), text);
                }
            }
        }
        if used && !peer.unused.is_empty() {
            self.refuse(&format!("BGPPeer/{name}"), format!("BGPPeer {name}: {} has no effect on Mullion's nodes", peer.unused.join(", ")));
        }
    }

    /// The session with a router: every family that this node has.
    fn router(&mut self, name: &str, (address, port, asn): (IpAddr, u16, u32), password: Option<Secret>, options: Options) {
        let Some(local) = self.own.address(address.is_ipv4()) else {
            let family = Family::of(address);
            self.refuse(name, format!("peer {address} ({name}): this node has no {family} address, so there is no session with it"));
            return;
        };
        let families: BTreeSet<Family> = self.own.addresses.iter().map(|own| Family::of(own.addr())).collect();
        let peer = Peer {
            name: name.to_owned(),
            asn,
            connect: Connect { port, local, password },
            families,
            client: self.own.row.calico.cluster.is_some() && asn == self.own.asn,
            keep_next_hop: options.keep_next_hop,
            own_as_allowed: options.own_as_allowed,
            longest_restart: options.longest_restart.unwrap_or(RESTART),
        };
        self.found.insert(address, peer);
    }

    /// Windows' sockets take no passwords, and a session without would be refused by the peer.
    fn without_passwords(&mut self) {
        let with: Vec<(IpAddr, String)> =
            self.found.iter().filter(|(_, peer)| peer.connect.password.is_some()).map(|(address, peer)| (*address, peer.name.clone())).collect();
        for (address, name) in with {
            self.found.remove(&address);
            let text = format!(
                "peer {address} ({name}): its session has a password, but Windows has no TCP MD5; take the password away on both sides, or peer by a Linux node"
            );
            self.refuse(&name, text);
        }
    }
}
