//! What becomes of a packet, and by which rule (pure): the same profiles that backends program.

use std::fmt;
use std::net::IpAddr;

use cluster::Key;

use crate::policy::{Action, Direction, Protocol};
use crate::profile::Origin;
use crate::world::World;

/// The first packet of a connection, with its addresses as they are between the two pods: after load balancers, before translation of
/// the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    pub source: IpAddr,
    pub destination: IpAddr,
    /// Protocol and port at the destination; none for protocols without ports.
    pub port: Option<(Protocol, u16)>,
}

/// What one side of a connection says to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub direction: Direction,
    /// The pod whose policies decide; none where that side is no pod that counts.
    pub pod: Option<Key>,
    pub action: Action,
    pub origin: Origin,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = self.pod.as_ref().map_or_else(|| "outside the cluster's pods".to_owned(), |key| format!("pod {key}"));
        write!(f, "{} of {who}: {}: {}", self.direction, self.action, self.origin)
    }
}

/// Whether a connection comes about: both sides have to allow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub egress: Verdict,
    pub ingress: Verdict,
}

impl Decision {
    pub fn is_allowed(&self) -> bool {
        self.egress.action == Action::Allow && self.ingress.action == Action::Allow
    }

    /// The verdict that decides: of a connection that is denied the one that denies it first.
    pub fn deciding(&self) -> &Verdict {
        if self.egress.action == Action::Deny || self.ingress.origin == Origin::Nothing { &self.egress } else { &self.ingress }
    }
}

impl World {
    /// What becomes of a packet, as far as this world's endpoints decide.
    pub fn decide(&self, packet: &Packet) -> Decision {
        let own = packet.source == packet.destination;
        let verdict = |direction, local: IpAddr, peer: IpAddr| {
            let Some((key, endpoint)) = self.endpoints().find(|(_, endpoint)| endpoint.ips.contains(&local)) else {
                return Verdict { direction, pod: None, action: Action::Allow, origin: Origin::Nothing };
            };
            let (action, origin) = match endpoint.profiles.of(direction) {
                _ if own || self.node_ips(key).contains(&peer) => (Action::Allow, Origin::Own),
                None => (Action::Allow, Origin::Nothing),
                Some(profile) => {
                    let has = |group: &_, ip, port| self.has_member(group, (ip, port));
                    let (action, origin) = profile.decide(peer, (packet.destination, packet.port), &has);
                    (action, origin.clone())
                }
            };
            Verdict { direction, pod: Some(key.clone()), action, origin }
        };
        Decision {
            egress: verdict(Direction::Egress, packet.source, packet.destination),
            ingress: verdict(Direction::Ingress, packet.destination, packet.source),
        }
    }
}
