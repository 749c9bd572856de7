//! Services → addresses of load balancers: those of the cluster, and those of gateways for NodePorts and external addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use cluster::Key;
use ovsdb::{Datum, Replica};

use crate::cluster_rows::{Protocol, ServicePort, ServiceRow, SliceRow};
use crate::rows::{Ownership, Ref, Want};
use crate::topology::{cluster_balancer, gateway_balancer, gateways};

/// Addresses of a load balancer, with their backends.
type Vips = BTreeMap<String, String>;

/// The backends of a port, for addresses of one family.
fn backends(port: &ServicePort, slices: &[&SliceRow], ipv4: bool) -> BTreeSet<SocketAddr> {
    let fits = |slice: &&SliceRow| {
        let ports = slice.ports.iter().filter(|found| found.name == port.name && found.protocol == port.protocol);
        let pair = |found: &crate::SlicePort| slice.addresses.iter().map(|ip| SocketAddr::new(*ip, found.port)).collect::<Vec<_>>();
        ports.flat_map(pair).collect::<Vec<_>>()
    };
    slices.iter().flat_map(fits).filter(|address| address.is_ipv4() == ipv4).collect()
}

struct Balancers<'a> {
    gateways: &'a [(String, Ipv4Addr, bool)],
    /// By router (none: the cluster's) and protocol.
    vips: BTreeMap<(Option<&'a str>, Protocol), Vips>,
}

impl<'a> Balancers<'a> {
    fn add(&mut self, router: Option<&'a str>, protocol: Protocol, ip: IpAddr, port: u16, backends: &BTreeSet<SocketAddr>) {
        // An address without backends is none: OVN would refuse its connections, which upstream leaves to the router.
        if !backends.is_empty() {
            let list = backends.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            self.vips.entry((router, protocol)).or_default().insert(SocketAddr::new(ip, port).to_string(), list);
        }
    }

    fn add_port(&mut self, service: &ServiceRow, port: &ServicePort, slices: &[&SliceRow]) {
        let of = |ip: &IpAddr| backends(port, slices, ip.is_ipv4());
        for ip in &service.cluster_ips {
            self.add(None, port.protocol, *ip, port.port, &of(ip));
        }
        for (router, address, is_first) in self.gateways {
            let ip = IpAddr::V4(*address);
            if let Some(node_port) = port.node_port {
                self.add(Some(router), port.protocol, ip, node_port, &of(&ip));
            }
            if *is_first {
                for ip in &service.external_ips {
                    self.add(Some(router), port.protocol, *ip, port.port, &of(ip));
                }
            }
        }
    }
}

/// The load balancers with the addresses that they should have; those of the cluster and of all gateways.
#[must_use]
pub fn balancers(replica: &Replica, services: &[(Key, Arc<ServiceRow>)], slices: &[(Key, Arc<SliceRow>)]) -> Vec<Want> {
    let mut of_service: BTreeMap<(&str, &str), Vec<&SliceRow>> = BTreeMap::new();
    for (key, slice) in slices {
        of_service.entry((&key.ns, &slice.service)).or_default().push(slice);
    }
    let gateways = gateways(replica);
    let mut balancers = Balancers { gateways: &gateways, vips: BTreeMap::new() };
    for (key, service) in services {
        let slices = of_service.get(&(&*key.ns, &*key.name)).map(Vec::as_slice).unwrap_or_default();
        service.ports.iter().for_each(|port| balancers.add_port(service, port, slices));
    }
    let mut wants = Vec::new();
    let routers = std::iter::once(None).chain(gateways.iter().map(|(router, ..)| Some(router.as_str())));
    for (router, protocol) in routers.flat_map(|router| Protocol::ALL.map(|protocol| (router, protocol))) {
        let at: Ref = match router {
            None => cluster_balancer(protocol),
            Some(router) => gateway_balancer(protocol, router),
        };
        let vips = balancers.vips.remove(&(router, protocol)).unwrap_or_default();
        let (table, id) = (at.table, at.id);
        let crate::rows::Id::External(key, value) = id else { continue };
        wants.push(Want::external(table, key, value).owned(Ownership::Others).with("vips", Datum::map(vips)));
    }
    wants
}

#[cfg(test)]
mod tests;
