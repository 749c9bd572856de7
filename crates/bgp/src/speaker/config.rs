//! Configuration of a speaker.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ipnet::IpNet;

use crate::rib::Rules;
use crate::session::{Agreed, Settings};
use crate::wire::Family;

/// A password of TCP MD5. Its text is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    pub fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// How a peer is connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect {
    pub port: u16,
    /// Our address of the session.
    pub local: IpAddr,
    pub password: Option<Secret>,
}

/// One peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// For people.
    pub name: String,
    pub asn: u32,
    pub connect: Connect,
    pub families: BTreeSet<Family>,
    /// We reflect routes to it.
    pub client: bool,
    /// Routes that are passed on to it keep their next hops.
    pub keep_next_hop: bool,
    /// How often our own AS may be on the way of its routes.
    pub own_as_allowed: u8,
    /// Seconds, at most, that its routes stay while it restarts.
    pub longest_restart: u16,
}

impl Peer {
    /// Whether a session of this configuration goes on under the other one.
    pub(super) fn connects_as(&self, other: &Self) -> bool {
        *self == Self { own_as_allowed: self.own_as_allowed, longest_restart: self.longest_restart, name: self.name.clone(), ..other.clone() }
    }
}

/// The speaker and its peers, by address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub asn: u32,
    pub id: Ipv4Addr,
    /// Seconds without a message after which a peer is gone; 0 or at least 3.
    pub hold: u16,
    /// Seconds that routes stay while we restart; none: no graceful restart.
    pub restart_time: Option<u16>,
    /// We are a route reflector of this cluster.
    pub cluster: Option<Ipv4Addr>,
    /// Preference of our routes inside the AS.
    pub local_pref: u32,
    /// Where our routes of a family lead, on sessions of the other.
    pub next_hop_v4: Option<IpAddr>,
    pub next_hop_v6: Option<IpAddr>,
    /// Routes of others are passed on, as the roles of peers allow, where they lie in one of these.
    pub forward: Vec<IpNet>,
    /// What we announce.
    pub announce: BTreeSet<IpNet>,
    pub peers: BTreeMap<IpAddr, Peer>,
}

impl Config {
    /// Whether sessions of this configuration go on under the other one.
    pub(super) fn speaks_as(&self, other: &Self) -> bool {
        *self == Self { announce: self.announce.clone(), peers: self.peers.clone(), ..other.clone() }
    }

    pub(super) fn session(&self, peer: &Peer) -> Settings {
        Settings { asn: self.asn, id: self.id, peer_asn: peer.asn, hold: self.hold, families: peer.families.clone(), restart_time: self.restart_time }
    }

    pub(super) fn rules(&self, peer: &Peer, address: IpAddr, agreed: &Agreed) -> Rules {
        let local = peer.connect.local;
        Rules {
            peer: address,
            peer_id: agreed.peer_id,
            external: peer.asn != self.asn,
            client: peer.client,
            keep_next_hop: peer.keep_next_hop,
            asn: self.asn,
            cluster: self.cluster,
            local_pref: self.local_pref,
            next_hop_v4: Some(local).filter(IpAddr::is_ipv4).or(self.next_hop_v4),
            next_hop_v6: Some(local).filter(IpAddr::is_ipv6).or(self.next_hop_v6),
            forward: self.forward.clone(),
        }
    }
}
