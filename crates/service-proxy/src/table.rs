//! The backend-neutral table: VIPs, their backends and their rules.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use cluster::Key;
use ipnet::IpNet;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    Tcp,
    Udp,
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

/// Version of the Internet Protocol: VIP and backends always agree in it.
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

    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// The address a VIP listens on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VipAddress {
    Ip(IpAddr),
    /// The addresses of this node, of one family, on which node ports listen.
    Node(IpFamily),
}

/// What identifies a VIP on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VipKey {
    pub address: VipAddress,
    pub protocol: Protocol,
    pub port: u16,
}

impl VipKey {
    /// The family of its clients and backends.
    pub fn family(&self) -> IpFamily {
        match self.address {
            VipAddress::Ip(ip) => IpFamily::of(ip),
            VipAddress::Node(family) => family,
        }
    }
}

impl fmt::Display for VipKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            VipAddress::Ip(ip) if ip.is_ipv6() => write!(f, "[{ip}]:{}/{}", self.port, self.protocol),
            VipAddress::Ip(ip) => write!(f, "{ip}:{}/{}", self.port, self.protocol),
            VipAddress::Node(IpFamily::V4) => write!(f, "node:{}/{}", self.port, self.protocol),
            VipAddress::Node(IpFamily::V6) => write!(f, "[node]:{}/{}", self.port, self.protocol),
        }
    }
}

/// Where a VIP comes from.
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
    /// The health check that a load balancer sends to its own address: the node itself answers, on the key's port.
    /// Only where [`NodePolicy::forwarded_health_port`](crate::NodePolicy) asks for it.
    HealthCheck,
}

/// What happens to packets when no backend may take them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unserved {
    /// The client is refused at once: there is no backend anywhere.
    Reject,
    /// Packets are dropped: other nodes serve it, but the traffic policy excludes this node.
    Drop,
}

/// Address and port of a backend of a VIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackendAddress {
    pub address: IpAddr,
    pub port: u16,
    /// Whether its pod runs on this node.
    pub local: bool,
}

impl fmt::Display for BackendAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = if self.local { "@here" } else { "" };
        match self.address {
            IpAddr::V4(ip) => write!(f, "{ip}:{}{at}", self.port),
            IpAddr::V6(ip) => write!(f, "[{ip}]:{}{at}", self.port),
        }
    }
}

/// Backends, sorted and without repetition; VIPs that have the same share them.
pub type Backends = Arc<[BackendAddress]>;

/// A VIP: its backends and its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vip {
    /// `NAMESPACE/SERVICE:PORT`, for people.
    pub service: Arc<str>,
    /// Where it comes from.
    pub kind: Kind,
    /// Its backends; traffic policy, topology hints and conditions are already applied.
    pub backends: Backends,
    /// With external traffic policy `Local`: the backends for clients inside the cluster, which may use every one.
    pub inside: Option<Backends>,
    /// Backends must see the client's own address (external traffic policy `Local`).
    pub keep_client: bool,
    /// Session affinity by client address, with its timeout in seconds.
    pub affinity: Option<u32>,
    /// Clients that are admitted (`loadBalancerSourceRanges`); absent admits all. Packets of others are dropped.
    pub sources: Option<Arc<[IpNet]>>,
    /// Annotation `preserve-destination` of Windows: backends, local ones only, see the VIP's own address.
    pub preserve_destination: bool,
    /// What happens without backends.
    pub unserved: Unserved,
    /// Programmed before others: cluster DNS and the API server.
    pub urgent: bool,
}

impl Vip {
    /// A VIP without backends, with no rule of its own.
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

impl fmt::Display for Vip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |backends: &[BackendAddress]| backends.iter().map(BackendAddress::to_string).collect::<Vec<_>>().join(" ");
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

/// The health check of a Service at `healthCheckNodePort`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    pub port: u16,
    /// How many ready endpoints of the Service are on this node.
    pub endpoints: usize,
}

/// Everything that one Service needs of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredVips {
    /// Its VIPs.
    pub vips: Vec<(VipKey, Vip)>,
    /// Its health check, when it has one.
    pub health_check: Option<HealthCheck>,
}

/// A difference between two states of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub key: VipKey,
    /// Before; absent when it is new.
    pub old: Option<Arc<Vip>>,
    /// After; absent when it is gone.
    pub new: Option<Arc<Vip>>,
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

impl From<Vec<(VipKey, Vip)>> for DesiredVips {
    fn from(vips: Vec<(VipKey, Vip)>) -> Self {
        Self { vips, health_check: None }
    }
}

/// Namespace and name of a Service in one piece of memory, for there are very many. They are in the order of [`Key`]s: what is between
/// them comes before every character of a name.
type Name = Arc<str>;

const BETWEEN: char = '\0';

fn name_of(service: &Key) -> Name {
    format!("{}{BETWEEN}{}", service.ns, service.name).into()
}

/// A Service's claim to a VIP.
type Claim = (Name, Arc<Vip>);

/// Every VIP of this node. Where two Services claim one, the first by name has it until it gives it up.
#[derive(Debug, Default)]
pub struct Table {
    claims: BTreeMap<VipKey, Vec<Claim>>,
    by_service: BTreeMap<Name, Box<[VipKey]>>,
    health_checks: BTreeMap<Key, HealthCheck>,
}

impl Table {
    /// Replaces the VIPs of one Service (none when it is gone) and returns the differences, in the order of keys.
    pub fn set_service(&mut self, service: &Key, desired: impl Into<DesiredVips>) -> Vec<Change> {
        let desired: DesiredVips = desired.into();
        match desired.health_check {
            Some(check) => drop(self.health_checks.insert(service.clone(), check)),
            None => drop(self.health_checks.remove(service)),
        }
        let name = name_of(service);
        let service = self.by_service.get_key_value(&name).map_or(name, |(known, _)| known.clone());
        let before = self.by_service.remove(&service).unwrap_or_default();
        let mut vips: BTreeMap<VipKey, Vip> = desired.vips.into_iter().collect();
        let touched: BTreeSet<VipKey> = before.iter().chain(vips.keys()).copied().collect();
        if !vips.is_empty() {
            self.by_service.insert(service.clone(), vips.keys().copied().collect());
        }
        touched.into_iter().filter_map(|key| self.claim(&service, key, vips.remove(&key))).collect()
    }

    fn claim(&mut self, service: &Name, key: VipKey, vip: Option<Vip>) -> Option<Change> {
        let claims = self.claims.entry(key).or_insert_with(|| Vec::with_capacity(1));
        let old = claims.first().map(|(_, vip)| vip.clone());
        let at = claims.binary_search_by(|(claimant, _)| claimant.cmp(service));
        match (at, vip) {
            (Ok(i), Some(vip)) if *claims[i].1 != vip => claims[i].1 = Arc::new(vip),
            (Ok(_), Some(_)) | (Err(_), None) => {}
            (Ok(i), None) => drop(claims.remove(i)),
            (Err(i), Some(vip)) => claims.insert(i, (service.clone(), Arc::new(vip))),
        }
        let new = claims.first().map(|(_, vip)| vip.clone());
        if claims.len() > 1 {
            let losers: Vec<String> = claims[1..].iter().map(|(service, _)| service.replace(BETWEEN, "/")).collect();
            tracing::warn!(vip = %key, "also claimed by {}, which get nothing", losers.join(", "));
        }
        if claims.is_empty() {
            self.claims.remove(&key);
        }
        (old != new).then_some(Change { key, old, new })
    }

    /// The VIP at `key`.
    pub fn get(&self, key: &VipKey) -> Option<&Arc<Vip>> {
        Some(&self.claims.get(key)?.first()?.1)
    }

    /// Whether a Service has this ClusterIP.
    pub fn has_cluster_ip(&self, ip: IpAddr) -> bool {
        let first = VipKey { address: VipAddress::Ip(ip), protocol: Protocol::Tcp, port: 0 };
        let claims = self.claims.range(first..).take_while(|(key, _)| key.address == first.address);
        claims.into_iter().any(|(_, claims)| claims.first().is_some_and(|(_, vip)| vip.kind == Kind::ClusterIp))
    }

    /// Every VIP, in the order of keys.
    pub fn iter(&self) -> impl Iterator<Item = (&VipKey, &Arc<Vip>)> {
        self.claims.iter().filter_map(|(key, claims)| Some((key, &claims.first()?.1)))
    }

    /// How many VIPs there are.
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

    /// The whole table as text, a line a VIP: for `--dry-run`, logs and golden tests.
    pub fn render(&self) -> String {
        let vips = self.iter().map(|(key, vip)| format!("{key} {vip}\n"));
        let checks = self.health_checks().map(|(service, check)| format!("health :{} {service} {} ready here\n", check.port, check.endpoints));
        vips.chain(checks).collect()
    }
}

#[cfg(test)]
mod tests;
