//! The backend-neutral table: what listens where, and who answers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use cluster::Key;

/// A transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// The IP protocol number.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    /// Reads the API's spelling; absent means TCP.
    pub fn from_api(text: Option<&str>) -> Option<Self> {
        match text {
            None | Some("TCP") => Some(Self::Tcp),
            Some("UDP") => Some(Self::Udp),
            Some("SCTP") => Some(Self::Sctp),
            Some(_) => None,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        })
    }
}

/// The address a front end listens on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Vip {
    /// One address.
    Address(IpAddr),
    /// Every address of this node.
    Node,
}

/// What identifies a front end on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrontKey {
    /// Address.
    pub vip: Vip,
    /// Protocol.
    pub protocol: Protocol,
    /// Port.
    pub port: u16,
}

impl fmt::Display for FrontKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.vip {
            Vip::Address(ip) if ip.is_ipv6() => write!(f, "[{ip}]:{}/{}", self.port, self.protocol),
            Vip::Address(ip) => write!(f, "{ip}:{}/{}", self.port, self.protocol),
            Vip::Node => write!(f, "node:{}/{}", self.port, self.protocol),
        }
    }
}

/// Where a front end comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// `spec.clusterIPs`
    ClusterIp,
    /// `spec.ports[].nodePort`
    NodePort,
    /// `spec.externalIPs`
    ExternalIp,
    /// `status.loadBalancer.ingress`
    LoadBalancer,
}

/// What happens to packets when no backend may take them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unserved {
    /// The client is told at once: nobody serves this anywhere.
    Reject,
    /// Silence: others serve it, but the traffic policy keeps this node out.
    Drop,
}

/// One that answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Backend {
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Whether its pod runs on this node.
    pub local: bool,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = if self.local { "@here" } else { "" };
        match self.address {
            IpAddr::V4(ip) => write!(f, "{ip}:{}{at}", self.port),
            IpAddr::V6(ip) => write!(f, "[{ip}]:{}{at}", self.port),
        }
    }
}

/// A front end: who answers, and under which rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Front {
    /// `NAMESPACE/SERVICE:PORT`, for people.
    pub service: String,
    /// Where it comes from.
    pub kind: Kind,
    /// Who answers, sorted and without repetition; the traffic policy is already applied.
    pub backends: Vec<Backend>,
    /// With external traffic policy `Local`: who answers clients inside the cluster, who may use every backend.
    pub inside: Option<Vec<Backend>>,
    /// Backends must see the client's own address (external traffic policy `Local`).
    pub keep_client: bool,
    /// Session affinity by client address, with its timeout in seconds.
    pub affinity: Option<u32>,
    /// What happens without backends.
    pub unserved: Unserved,
    /// Programmed before others: cluster DNS and the API server.
    pub urgent: bool,
}

impl fmt::Display for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |backends: &[Backend]| backends.iter().map(Backend::to_string).collect::<Vec<_>>().join(" ");
        write!(f, "{} ({:?}) -> ", self.service, self.kind)?;
        match (self.backends.is_empty(), self.unserved) {
            (true, Unserved::Reject) => f.write_str("reject")?,
            (true, Unserved::Drop) => f.write_str("drop")?,
            (false, _) => f.write_str(&list(&self.backends))?,
        }
        if let Some(inside) = &self.inside {
            write!(f, "; inside -> {}", list(inside))?;
        }
        if self.keep_client {
            f.write_str("; keeps client")?;
        }
        if let Some(seconds) = self.affinity {
            write!(f, "; sticky {seconds}s")?;
        }
        Ok(())
    }
}

/// A difference between two states of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Which front end.
    pub key: FrontKey,
    /// Before; absent when it is new.
    pub old: Option<Arc<Front>>,
    /// After; absent when it is gone.
    pub new: Option<Arc<Front>>,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.old, &self.new) {
            (None, Some(new)) => write!(f, "+ {} {new}", self.key),
            (Some(old), None) => write!(f, "- {} {old}", self.key),
            (Some(_), Some(new)) => write!(f, "~ {} {new}", self.key),
            (None, None) => write!(f, "  {}", self.key),
        }
    }
}

/// Every front end of this node. Where two Services claim one, the first by name has it until it gives it up.
#[derive(Debug, Default)]
pub struct Table {
    claims: BTreeMap<FrontKey, Vec<(Key, Arc<Front>)>>,
    by_service: BTreeMap<Key, Vec<FrontKey>>,
}

impl Table {
    /// Replaces the front ends of one Service (none when it is gone) and returns what differs.
    pub fn set_service(&mut self, service: &Key, fronts: Vec<(FrontKey, Front)>) -> Vec<Change> {
        let before = self.by_service.remove(service).unwrap_or_default();
        let mut wanted: BTreeMap<FrontKey, Front> = fronts.into_iter().collect();
        let touched: BTreeSet<FrontKey> = before.iter().chain(wanted.keys()).copied().collect();
        if !wanted.is_empty() {
            self.by_service.insert(service.clone(), wanted.keys().copied().collect());
        }
        touched.into_iter().filter_map(|key| self.claim(service, key, wanted.remove(&key))).collect()
    }

    fn claim(&mut self, service: &Key, key: FrontKey, front: Option<Front>) -> Option<Change> {
        let claims = self.claims.entry(key).or_default();
        let old = claims.first().map(|(_, front)| front.clone());
        let at = claims.binary_search_by(|(claimant, _)| claimant.cmp(service));
        match (at, front) {
            (Ok(i), Some(front)) if *claims[i].1 != front => claims[i].1 = Arc::new(front),
            (Ok(_), Some(_)) | (Err(_), None) => {}
            (Ok(i), None) => drop(claims.remove(i)),
            (Err(i), Some(front)) => claims.insert(i, (service.clone(), Arc::new(front))),
        }
        let new = claims.first().map(|(_, front)| front.clone());
        if claims.len() > 1 {
            let losers: Vec<String> = claims[1..].iter().map(|(key, _)| key.to_string()).collect();
            tracing::warn!(front = %key, "also claimed by {}, which get nothing", losers.join(", "));
        }
        if claims.is_empty() {
            self.claims.remove(&key);
        }
        (old != new).then_some(Change { key, old, new })
    }

    /// The front end at `key`.
    pub fn get(&self, key: &FrontKey) -> Option<&Arc<Front>> {
        Some(&self.claims.get(key)?.first()?.1)
    }

    /// Every front end, in the order of keys.
    pub fn iter(&self) -> impl Iterator<Item = (&FrontKey, &Arc<Front>)> {
        self.claims.iter().filter_map(|(key, claims)| Some((key, &claims.first()?.1)))
    }

    /// How many front ends there are.
    pub fn len(&self) -> usize {
        self.claims.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// The whole table as text, a line a front end: for `--dry-run`, logs and golden tests.
    pub fn render(&self) -> String {
        self.iter().map(|(key, front)| format!("{key} {front}\n")).collect()
    }
}
