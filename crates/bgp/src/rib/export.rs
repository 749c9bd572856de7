//! What a peer is told of a route.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use super::Path;
use super::select::PREFERENCE;
use crate::wire::Attributes;

/// Our own routes are better for another AS than those we only pass on.
const PASSED_ON: u32 = 100;

/// How one peer is told routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    pub peer: IpAddr,
    pub peer_id: Ipv4Addr,
    pub external: bool,
    /// The peer is a client of this reflector.
    pub client: bool,
    pub keep_next_hop: bool,
    pub asn: u32,
    /// Where we are a reflector.
    pub cluster: Option<Ipv4Addr>,
    /// The preference of our own routes inside the AS.
    pub local_pref: u32,
    pub next_hop_v4: Option<IpAddr>,
    pub next_hop_v6: Option<IpAddr>,
    /// Routes of others are passed on where they lie in one of these.
    pub forward: Vec<IpNet>,
}

/// A route as the peer gets it, without its prefix.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    pub attributes: Attributes,
    pub next_hop: IpAddr,
}

impl Rules {
    fn self_hop(&self, prefix: &IpNet) -> Option<IpAddr> {
        if prefix.addr().is_ipv4() { self.next_hop_v4 } else { self.next_hop_v6 }
    }

    /// A route of our own.
    pub fn own(&self, prefix: &IpNet) -> Option<Told> {
        let mut attributes = Attributes::default();
        if self.external {
            attributes.prepend(self.asn);
            attributes.med = Some(0);
        } else {
            attributes.local_pref = Some(self.local_pref);
        }
        Some(Told { attributes, next_hop: self.self_hop(prefix)? })
    }

    /// Whether routes to this prefix that another peer told are passed on.
    pub fn forwards(&self, prefix: &IpNet) -> bool {
        self.forward.iter().any(|net| net.contains(prefix))
    }
}

/// What the peer is told of a route of another one; none: nothing. Equal for all prefixes of a family that are passed on.
pub fn tell(rules: &Rules, prefix: &IpNet, path: &Path) -> Option<Told> {
    if path.from == rules.peer || !path.attributes.may_tell(rules.external) {
        return None;
    }
    let mut attributes = path.attributes.clone();
    if rules.external {
        attributes.prepend(rules.asn);
        (attributes.local_pref, attributes.originator, attributes.med) = (None, None, Some(PASSED_ON));
        attributes.clusters.clear();
        let next_hop = if rules.keep_next_hop { path.next_hop } else { rules.self_hop(prefix)? };
        return Some(Told { attributes, next_hop });
    }
    if path.external {
        // What another AS says of preference counts for nothing here.
        attributes.local_pref = Some(PREFERENCE);
        let next_hop = if rules.keep_next_hop { path.next_hop } else { rules.self_hop(prefix)? };
        return Some(Told { attributes, next_hop });
    }
    // Inside the AS only a reflector passes on, and between two that are no clients nothing (RFC 4456).
    let cluster = rules.cluster.filter(|_| path.client || rules.client)?;
    let originator = attributes.originator.unwrap_or(path.from_id);
    if originator == rules.peer_id {
        return None;
    }
    attributes.originator = Some(originator);
    attributes.clusters.insert(0, cluster);
    attributes.local_pref = Some(attributes.local_pref.unwrap_or(PREFERENCE));
    Some(Told { attributes, next_hop: path.next_hop })
}
