//! The backend-neutral table: what listens where, and who answers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use cluster::Key;
use ipnet::IpNet;

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

/// Version of the Internet Protocol: front end and back ends always agree in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpFamily {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// That of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// The address a front end listens on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Vip {
    /// One address.
    Address(IpAddr),
    /// The addresses of this node, of one family, on which node ports listen.
    Node(IpFamily),
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

impl FrontKey {
    /// The family of its clients and back ends.
    pub fn family(&self) -> IpFamily {
        match self.vip {
            Vip::Address(ip) => IpFamily::of(ip),
            Vip::Node(family) => family,
        }
    }
}

impl fmt::Display for FrontKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.vip {
            Vip::Address(ip) if ip.is_ipv6() => write!(f, "[{ip}]:{}/{}", self.port, self.protocol),
            Vip::Address(ip) => write!(f, "{ip}:{}/{}", self.port, self.protocol),
            Vip::Node(IpFamily::V4) => write!(f, "node:{}/{}", self.port, self.protocol),
            Vip::Node(IpFamily::V6) => write!(f, "[node]:{}/{}", self.port, self.protocol),
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
    /// A load balancer's question, at its own address, how this node is: the node itself answers, on the key's port.
    /// Only where [`Terms::forwarded_health_port`](crate::Terms) asks for it.
    HealthCheck,
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

/// Back ends, sorted and without repetition; front ends that have the same share them.
pub type Backends = Arc<[Backend]>;

/// A front end: who answers, and under which rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Front {
    /// `NAMESPACE/SERVICE:PORT`, for people.
    pub service: Arc<str>,
    /// Where it comes from.
    pub kind: Kind,
    /// Who answers; traffic policy, topology hints and conditions are already applied.
    pub backends: Backends,
    /// With external traffic policy `Local`: who answers clients inside the cluster, who may use every backend.
    pub inside: Option<Backends>,
    /// Backends must see the client's own address (external traffic policy `Local`).
    pub keep_client: bool,
    /// Session affinity by client address, with its timeout in seconds.
    pub affinity: Option<u32>,
    /// Who may come (`loadBalancerSourceRanges`); absent is everybody. Others get silence.
    pub sources: Option<Arc<[IpNet]>>,
    /// Annotation `preserve-destination` of Windows: backends, local ones only, see the front end's own address.
    pub preserve_destination: bool,
    /// What happens without backends.
    pub unserved: Unserved,
    /// Programmed before others: cluster DNS and the API server.
    pub urgent: bool,
}

impl Front {
    /// A front end without back ends, with no rule of its own.
    pub fn new(service: impl Into<Arc<str>>, kind: Kind) -> Self {
        Self {
            service: service.into(),
            kind,
            backends: Arc::new([]),
            inside: None,
            keep_client: false,
            affinity: None,
            sources: None,
            preserve_destination: false,
            unserved: Unserved::Reject,
            urgent: false,
        }
    }
}

impl fmt::Display for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |backends: &[Backend]| backends.iter().map(Backend::to_string).collect::<Vec<_>>().join(" ");
        write!(f, "{} ({:?}) -> ", self.service, self.kind)?;
        match (self.kind, self.backends.is_empty(), self.unserved) {
            (Kind::HealthCheck, ..) => f.write_str("this node")?,
            (_, true, Unserved::Reject) => f.write_str("reject")?,
            (_, true, Unserved::Drop) => f.write_str("drop")?,
            (_, false, _) => f.write_str(&list(&self.backends))?,
        }
        if let Some(inside) = &self.inside {
            write!(f, "; inside -> {}", list(inside))?;
        }
        if self.keep_client {
            f.write_str("; keeps client")?;
        }
        if self.preserve_destination {
            f.write_str("; keeps destination")?;
        }
        if let Some(seconds) = self.affinity {
            write!(f, "; sticky {seconds}s")?;
        }
        if let Some(sources) = &self.sources {
            write!(f, "; from {}", sources.iter().map(IpNet::to_string).collect::<Vec<_>>().join(" "))?;
        }
        if self.urgent {
            f.write_str("; urgent")?;
        }
        Ok(())
    }
}

/// What a load balancer may ask this node at `healthCheckNodePort`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The port.
    pub port: u16,
    /// How many ready endpoints of the Service are on this node.
    pub endpoints: usize,
}

/// Everything that one Service wants of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Its front ends.
    pub fronts: Vec<(FrontKey, Front)>,
    /// Its health check, when it has one.
    pub health_check: Option<HealthCheck>,
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

impl From<Vec<(FrontKey, Front)>> for Wanted {
    fn from(fronts: Vec<(FrontKey, Front)>) -> Self {
        Self { fronts, health_check: None }
    }
}

/// Namespace and name of a Service in one piece of memory, for there are very many. They are in the order of [`Key`]s: what is between
/// them comes before every character of a name.
type Name = Arc<str>;

const BETWEEN: char = '\0';

fn name_of(service: &Key) -> Name {
    format!("{}{BETWEEN}{}", service.ns, service.name).into()
}

/// Who wants a front end, and how.
type Claim = (Name, Arc<Front>);

/// Every front end of this node. Where two Services claim one, the first by name has it until it gives it up.
#[derive(Debug, Default)]
pub struct Table {
    claims: BTreeMap<FrontKey, Vec<Claim>>,
    by_service: BTreeMap<Name, Box<[FrontKey]>>,
    health_checks: BTreeMap<Key, HealthCheck>,
}

impl Table {
    /// Replaces what one Service wants (nothing when it is gone) and returns what differs, in the order of keys.
    pub fn set_service(&mut self, service: &Key, wanted: impl Into<Wanted>) -> Vec<Change> {
        let wanted: Wanted = wanted.into();
        match wanted.health_check {
            Some(check) => drop(self.health_checks.insert(service.clone(), check)),
            None => drop(self.health_checks.remove(service)),
        }
        let name = name_of(service);
        let service = self.by_service.get_key_value(&name).map_or(name, |(known, _)| known.clone());
        let before = self.by_service.remove(&service).unwrap_or_default();
        let mut fronts: BTreeMap<FrontKey, Front> = wanted.fronts.into_iter().collect();
        let touched: BTreeSet<FrontKey> = before.iter().chain(fronts.keys()).copied().collect();
        if !fronts.is_empty() {
            self.by_service.insert(service.clone(), fronts.keys().copied().collect());
        }
        touched.into_iter().filter_map(|key| self.claim(&service, key, fronts.remove(&key))).collect()
    }

    fn claim(&mut self, service: &Name, key: FrontKey, front: Option<Front>) -> Option<Change> {
        let claims = self.claims.entry(key).or_insert_with(|| Vec::with_capacity(1));
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
            let losers: Vec<String> = claims[1..].iter().map(|(service, _)| service.replace(BETWEEN, "/")).collect();
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

    /// Whether a Service has this ClusterIP.
    pub fn has_cluster_ip(&self, ip: IpAddr) -> bool {
        let first = FrontKey { vip: Vip::Address(ip), protocol: Protocol::Tcp, port: 0 };
        let claims = self.claims.range(first..).take_while(|(key, _)| key.vip == first.vip);
        claims.into_iter().any(|(_, claims)| claims.first().is_some_and(|(_, front)| front.kind == Kind::ClusterIp))
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

    /// The health checks of Services, by name.
    pub fn health_checks(&self) -> impl Iterator<Item = (&Key, HealthCheck)> {
        self.health_checks.iter().map(|(service, check)| (service, *check))
    }

    /// The whole table as text, a line a front end: for `--dry-run`, logs and golden tests.
    pub fn render(&self) -> String {
        let fronts = self.iter().map(|(key, front)| format!("{key} {front}\n"));
        let checks = self.health_checks().map(|(service, check)| format!("health :{} {service} {} ready here\n", check.port, check.endpoints));
        fronts.chain(checks).collect()
    }
}

#[cfg(test)]
mod tests;
