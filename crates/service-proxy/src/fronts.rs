//! From one Service and its slices to its front ends: ports, traffic policies, and which endpoints may answer.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use cluster::Key;

use crate::rows::{EndpointRow, ServicePort, ServiceRow, SliceRow};
use crate::table::{Backend, Front, FrontKey, Kind, Unserved, Vip};

/// The front ends of one Service. IPv4 only for now.
pub fn fronts(service: &Key, row: &ServiceRow, slices: &[Arc<SliceRow>]) -> Vec<(FrontKey, Front)> {
    row.ports.iter().flat_map(|port| port_fronts(service, row, port, &Endpoints::of(port, slices))).collect()
}

fn port_fronts(service: &Key, row: &ServiceRow, port: &ServicePort, endpoints: &Endpoints) -> Vec<(FrontKey, Front)> {
    let label = if port.name.is_empty() { format!("{service}:{}", port.port) } else { format!("{service}:{}", port.name) };
    let front = |vip: Vip, number: u16, kind: Kind| {
        let local_only = if kind == Kind::ClusterIp { row.internal_local } else { row.external_local };
        let everyone = endpoints.usable(|_| true);
        let backends = if local_only { endpoints.usable(|e| e.local) } else { everyone.clone() };
        let keep_client = local_only && kind != Kind::ClusterIp;
        let unserved = if everyone.is_empty() { Unserved::Reject } else { Unserved::Drop };
        let front = Front {
            service: label.clone(),
            kind,
            backends,
            inside: keep_client.then_some(everyone),
            keep_client,
            affinity: row.affinity,
            unserved,
            urgent: is_urgent(service),
        };
        (FrontKey { vip, protocol: port.protocol, port: number }, front)
    };
    let v4 = |ips: &[IpAddr]| ips.iter().copied().filter(IpAddr::is_ipv4).map(Vip::Address).collect::<Vec<_>>();
    let mut list = Vec::new();
    list.extend(v4(&row.cluster_ips).into_iter().map(|vip| front(vip, port.port, Kind::ClusterIp)));
    list.extend(v4(&row.external_ips).into_iter().map(|vip| front(vip, port.port, Kind::ExternalIp)));
    list.extend(v4(&row.load_balancer_ips).into_iter().map(|vip| front(vip, port.port, Kind::LoadBalancer)));
    list.extend(port.node_port.map(|number| front(Vip::Node, number, Kind::NodePort)));
    list
}

/// Everything else needs names and the API server.
fn is_urgent(service: &Key) -> bool {
    (service.ns == "kube-system" && matches!(service.name.as_str(), "kube-dns" | "coredns"))
        || (service.ns == "default" && service.name == "kubernetes")
}

/// The endpoints of one Service port, one entry an address and port.
struct Endpoints(BTreeMap<(IpAddr, u16), EndpointRow>);

impl Endpoints {
    fn of(port: &ServicePort, slices: &[Arc<SliceRow>]) -> Self {
        let mut map: BTreeMap<(IpAddr, u16), EndpointRow> = BTreeMap::new();
        for slice in slices {
            let ports = slice.ports.iter().filter(|p| p.name == port.name && p.protocol == port.protocol);
            for number in ports.map(|p| p.port) {
                for endpoint in slice.endpoints.iter().filter(|e| e.address.is_ipv4()) {
                    // While a slice is split or merged an endpoint may be in two; the readier entry is the newer one.
                    let entry = map.entry((endpoint.address, number)).or_insert(*endpoint);
                    if endpoint.ready && !entry.ready {
                        *entry = *endpoint;
                    }
                }
            }
        }
        Self(map)
    }

    /// The ready ones that `admit` lets through; when there are none, those that still serve while they terminate.
    fn usable(&self, admit: impl Fn(&EndpointRow) -> bool) -> Vec<Backend> {
        let pick = |rule: &dyn Fn(&EndpointRow) -> bool| -> Vec<Backend> {
            let chosen = self.0.iter().filter(|(_, e)| admit(e) && rule(e));
            chosen.map(|(&(address, port), e)| Backend { address, port, local: e.local }).collect()
        };
        let ready = pick(&|e| e.ready);
        if ready.is_empty() { pick(&|e| e.serving && e.terminating) } else { ready }
    }
}

#[cfg(test)]
#[path = "fronts_tests.rs"]
mod tests;
