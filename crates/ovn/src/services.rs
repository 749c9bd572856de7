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
        for (router, address, _) in self.gateways {
            let ip = IpAddr::V4(*address);
            if let Some(node_port) = port.node_port {
                self.add(Some(router), port.protocol, ip, node_port, &of(&ip));
            }
        }
    }

    /// External addresses come last, and take no address that is a gateway's or another Service's: their Service's author chose them.
    fn add_external(&mut self, service: &ServiceRow, port: &ServicePort, slices: &[&SliceRow]) {
        let gateways = self.gateways;
        let is_gateway = |ip: &IpAddr| gateways.iter().any(|(_, address, _)| IpAddr::V4(*address) == *ip);
        for (router, ..) in gateways.iter().filter(|(_, _, is_first)| *is_first) {
            for ip in service.external_ips.iter().filter(|ip| !is_gateway(ip)) {
                let taken =
                    self.vips.get(&(Some(router), port.protocol)).is_some_and(|vips| vips.contains_key(&SocketAddr::new(*ip, port.port).to_string()));
                if !taken {
                    self.add(Some(router), port.protocol, *ip, port.port, &backends(port, slices, ip.is_ipv4()));
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
    let all: Vec<(&ServiceRow, &[&SliceRow])> =
        services.iter().map(|(key, service)| (&**service, of_service.get(&(&*key.ns, &*key.name)).map(Vec::as_slice).unwrap_or_default())).collect();
    for (service, slices) in &all {
        service.ports.iter().for_each(|port| balancers.add_port(service, port, slices));
    }
    for (service, slices) in &all {
        service.ports.iter().for_each(|port| balancers.add_external(service, port, slices));
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
