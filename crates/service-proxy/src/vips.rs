//! VIPs of one Service: ports, traffic policies, topology, and selection of endpoints (pure).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use cluster::Key;
use ipnet::IpNet;

use crate::rows::{NodeHint, ServicePort, ServiceRow, SliceRow};
use crate::table::{BackendAddress, Backends, DesiredVips, HealthCheck, IpFamily, Kind, Protocol, Unserved, Vip, VipAddress, VipKey};

/// The node policy, which applies to every Service: facts of this node, and configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePolicy {
    /// The zone of this node, for topology hints.
    pub zone: Option<String>,
    /// The addresses of this node: source ranges that admit them admit a load balancer's address too, which a node
    /// that talks to itself has as its source.
    pub node_ips: Vec<IpAddr>,
    /// Load balancers ask at their own address how this node is, and HNS forwards that: on this port where the Service
    /// has no `healthCheckNodePort`. Absent makes no such VIPs.
    pub forwarded_health_port: Option<u16>,
}

/// The VIPs and the health check of one Service on this node.
pub fn desired_vips(service: &Key, row: &ServiceRow, slices: &[Arc<SliceRow>], policy: &NodePolicy) -> DesiredVips {
    let mut vips = Vec::new();
    for port in &row.ports {
        for family in IpFamily::ALL.into_iter().filter(|family| row.cluster_ips.iter().any(|ip| IpFamily::of(*ip) == *family)) {
            let name = if port.name.is_empty() { port.port.to_string() } else { port.name.clone() };
            let label = format!("{service}:{name}").into();
            let endpoints = Endpoints::of(port, family, slices, policy.zone.as_deref());
            PortVips { row, port, family, label, chosen: endpoints.choose(), urgent: is_urgent(service), policy }.list(&mut vips);
        }
    }
    let forwarded = policy.forwarded_health_port.map(|port| forwarded_health(row.health_port.unwrap_or(port), &vips)).unwrap_or_default();
    vips.extend(forwarded);
    let health_check = row.health_port.map(|port| HealthCheck { port, endpoints: ready_here(row, slices) });
    DesiredVips { vips, health_check }
}

/// Everything else needs names and the API server.
fn is_urgent(service: &Key) -> bool {
    (service.ns == "kube-system" && matches!(service.name.as_str(), "kube-dns" | "coredns"))
        || (service.ns == "default" && service.name == "kubernetes")
}

/// Ready endpoints on this node, in the Service's first family: a pod with two addresses counts once.
fn ready_here(row: &ServiceRow, slices: &[Arc<SliceRow>]) -> usize {
    let family = row.cluster_ips.first().map(|ip| IpFamily::of(*ip));
    let endpoints = slices.iter().flat_map(|slice| &slice.endpoints);
    let here = endpoints.filter(|e| e.local && e.ready && Some(IpFamily::of(e.address)) == family);
    here.map(|e| e.address).collect::<BTreeSet<_>>().len()
}

/// One for each address of a load balancer that is served from here; a port of the Service comes first.
fn forwarded_health(port: u16, vips: &[(VipKey, Vip)]) -> Vec<(VipKey, Vip)> {
    let served = vips.iter().filter(|(_, vip)| vip.kind == Kind::LoadBalancer && !vip.backends.is_empty());
    let mut checks: BTreeMap<VipKey, Vip> = BTreeMap::new();
    for (key, vip) in served {
        let key = VipKey { protocol: Protocol::Tcp, port, ..*key };
        checks.entry(key).or_insert_with(|| Vip::new(vip.service.clone(), Kind::HealthCheck));
    }
    checks.into_iter().filter(|(key, _)| vips.iter().all(|(taken, _)| taken != key)).collect()
}

/// One port of a Service in one family.
struct PortVips<'a> {
    row: &'a ServiceRow,
    port: &'a ServicePort,
    family: IpFamily,
    label: Arc<str>,
    chosen: Chosen,
    urgent: bool,
    policy: &'a NodePolicy,
}

impl PortVips<'_> {
    fn list(&self, into: &mut Vec<(VipKey, Vip)>) {
        let row = self.row;
        for (kind, ips) in [(Kind::ClusterIp, &row.cluster_ips), (Kind::ExternalIp, &row.external_ips), (Kind::LoadBalancer, &row.load_balancer_ips)]
        {
            for ip in ips.iter().filter(|ip| IpFamily::of(**ip) == self.family) {
                into.push((self.key(VipAddress::Ip(*ip), self.port.port), self.vip(kind, Some(*ip))));
            }
        }
        if let Some(number) = self.port.node_port {
            into.push((self.key(VipAddress::Node(self.family), number), self.vip(Kind::NodePort, None)));
        }
    }

    fn key(&self, address: VipAddress, port: u16) -> VipKey {
        VipKey { address, protocol: self.port.protocol, port }
    }

    fn vip(&self, kind: Kind, ip: Option<IpAddr>) -> Vip {
        let inner = kind == Kind::ClusterIp;
        let local_only = if inner { self.row.internal_local } else { self.row.external_local };
        let Chosen { everyone, here } = &self.chosen;
        let keep_client = local_only && !inner;
        Vip {
            service: self.label.clone(),
            kind,
            backends: if local_only { here.clone() } else { everyone.clone() },
            inside: keep_client.then(|| everyone.clone()),
            keep_client,
            affinity: self.row.affinity,
            sources: ip.filter(|_| kind == Kind::LoadBalancer).and_then(|ip| self.sources(ip)),
            preserve_destination: self.row.preserve_destination && matches!(kind, Kind::NodePort | Kind::LoadBalancer),
            unserved: if everyone.is_empty() { Unserved::Reject } else { Unserved::Drop },
            urgent: self.urgent,
        }
    }

    /// Clients that a load balancer's address admits. Ranges of the other family do not restrict this one, as upstream.
    fn sources(&self, address: IpAddr) -> Option<Arc<[IpNet]>> {
        let ranges = self.row.sources.as_ref()?;
        let mut ours: Vec<IpNet> = ranges.iter().copied().filter(|net| IpFamily::of(net.addr()) == self.family).collect();
        if ours.is_empty() && !ranges.is_empty() {
            return None;
        }
        if self.policy.node_ips.iter().any(|node| ours.iter().any(|net| net.contains(node))) {
            ours.push(address.into());
            ours.sort();
            ours.dedup();
        }
        Some(ours.into())
    }
}

/// The endpoints that may answer at one port.
struct Chosen {
    /// Wherever they are.
    everyone: Backends,
    /// On this node.
    here: Backends,
}

/// One address and port of the slices.
#[derive(Clone, Copy, PartialEq)]
struct Endpoint {
    ready: bool,
    /// Gets no new connections, but answers until it ends.
    serving_terminating: bool,
    local: bool,
    node: NodeHint,
    /// Whether it is meant for this node's zone; absent without a hint.
    zone: Option<bool>,
}

/// The endpoints of one Service port in one family, one entry an address and port.
struct Endpoints(BTreeMap<(IpAddr, u16), Endpoint>);

impl Endpoints {
    fn of(port: &ServicePort, family: IpFamily, slices: &[Arc<SliceRow>], zone: Option<&str>) -> Self {
        let mut map: BTreeMap<(IpAddr, u16), Endpoint> = BTreeMap::new();
        for slice in slices {
            let ports = slice.ports.iter().filter(|p| p.name == port.name && p.protocol == port.protocol);
            for number in ports.map(|p| p.port) {
                for row in slice.endpoints.iter().filter(|e| IpFamily::of(e.address) == family) {
                    let endpoint = Endpoint {
                        ready: row.ready,
                        serving_terminating: row.serving && row.terminating,
                        local: row.local,
                        node: row.nodes,
                        zone: (row.zones != 0).then(|| zone.is_some_and(|zone| slice.is_for_zone(row, zone))),
                    };
                    // While a slice is split or merged an endpoint may be in two; the readier entry is the newer one.
                    let entry = map.entry((row.address, number)).or_insert(endpoint);
                    if endpoint.ready && !entry.ready {
                        *entry = endpoint;
                    }
                }
            }
        }
        Self(map)
    }

    /// The ready ones that topology admits; when none is ready, those that still serve while they terminate.
    fn choose(&self) -> Chosen {
        let select = |rule: &dyn Fn(&Endpoint) -> bool| -> Backends {
            let chosen = self.0.iter().filter(|(_, e)| rule(e));
            chosen.map(|(&(address, port), e)| BackendAddress { address, port, local: e.local }).collect()
        };
        let or_terminating = |ready: Backends, terminating: &dyn Fn(&Endpoint) -> bool| if ready.is_empty() { select(terminating) } else { ready };
        let near = self.nearness();
        let everyone = or_terminating(select(&|e| e.ready && near.admits(e)), &|e| e.serving_terminating);
        let here = or_terminating(select(&|e| e.ready && e.local), &|e| e.serving_terminating && e.local);
        let here = if here == everyone { everyone.clone() } else { here };
        Chosen { everyone, here }
    }

    /// Hints count when every ready endpoint has one and one of them is meant for us; those for nodes before those for zones.
    fn nearness(&self) -> Nearness {
        let ready = || self.0.values().filter(|e| e.ready);
        if ready().all(|e| e.node != NodeHint::None) && ready().any(|e| e.node == NodeHint::Here) {
            Nearness::Node
        } else if ready().all(|e| e.zone.is_some()) && ready().any(|e| e.zone == Some(true)) {
            Nearness::Zone
        } else {
            Nearness::Anywhere
        }
    }
}

/// How far from this node backends may be.
enum Nearness {
    Node,
    Zone,
    Anywhere,
}

impl Nearness {
    fn admits(&self, endpoint: &Endpoint) -> bool {
        match self {
            Self::Node => endpoint.node == NodeHint::Here,
            Self::Zone => endpoint.zone == Some(true),
            Self::Anywhere => true,
        }
    }
}

#[cfg(test)]
mod tests;
