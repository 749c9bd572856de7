//! A front end as a load balancer of the Host Networking Service, with the same values as upstream's proxy.

use std::collections::BTreeMap;
use std::net::IpAddr;

use hcn::document::DistributionType;
use hcn::{Guid, HostComputeLoadBalancer, LoadBalancerFlags, PortMappingFlags, SupportedFeatures, owned_id};

use crate::table::{Backend, Front, FrontKey, IpFamily, Kind, Protocol, Vip};

/// What this version of the service and the configuration allow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// ClusterIP load balancers use direct server return.
    pub cluster_ip_dsr: bool,
    /// The service has direct server return, which external traffic policy `Local` needs.
    pub dsr: bool,
    /// The service has session affinity.
    pub affinity: bool,
    /// Load balancers can be modified in place.
    pub modify: bool,
}

impl Rules {
    /// The rules for a service with `features`; `dsr` is the configuration's wish.
    pub fn new(features: &SupportedFeatures, dsr: bool) -> Self {
        Self { cluster_ip_dsr: dsr && features.dsr, dsr: features.dsr, affinity: features.session_affinity, modify: features.modify_load_balancer }
    }
}

/// The id of the load balancer for `key`: the same after every restart, so ours are told from others'.
pub fn load_balancer_id(cluster_uid: &str, key: &FrontKey) -> Guid {
    owned_id(cluster_uid, "loadbalancer", &key.to_string())
}

/// The id of the remote endpoint for `address`.
pub fn remote_id(cluster_uid: &str, address: IpAddr) -> Guid {
    owned_id(cluster_uid, "remote-endpoint", &address.to_string())
}

/// Which front end a load balancer is for, as far as the document says.
pub fn front_key(document: &HostComputeLoadBalancer) -> Option<FrontKey> {
    let mapping = document.port_mappings.first()?;
    let protocol = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(|p| u32::from(p.number()) == mapping.protocol.0)?;
    let vip = match document.frontend_vips.first() {
        Some(text) => Vip::Address(text.parse().ok()?),
        None if document.flags.0 & LoadBalancerFlags::IPV6.0 != 0 => Vip::Node(IpFamily::V6),
        None => Vip::Node(IpFamily::V4),
    };
    Some(FrontKey { vip, protocol, port: mapping.external_port })
}

/// A load balancer has one port for all its backends: the one that most have, the lowest among equals.
/// Returns it with the backends that have it.
pub fn backends_of_one_port(front: &Front) -> Option<(u16, Vec<Backend>)> {
    let mut counts: BTreeMap<u16, usize> = BTreeMap::new();
    for backend in front.backends.iter() {
        *counts.entry(backend.port).or_default() += 1;
    }
    let (port, _) = counts.into_iter().rev().max_by_key(|(_, count)| *count)?;
    Some((port, front.backends.iter().filter(|b| b.port == port).copied().collect()))
}

/// The document for `front`. `endpoints` are its backends' ids.
pub fn load_balancer(id: Guid, key: &FrontKey, front: &Front, internal_port: u16, endpoints: Vec<Guid>, rules: Rules) -> HostComputeLoadBalancer {
    let vip = match key.vip {
        Vip::Address(ip) => Some(ip),
        Vip::Node(_) => None,
    };
    let protocol = hcn::Protocol(key.protocol.number().into());
    let mut document = HostComputeLoadBalancer::new(vip, protocol, key.port, internal_port, endpoints);
    document.id = id;
    let mapping = &mut document.port_mappings[0];
    let (dsr, flags) = match front.kind {
        Kind::ClusterIp => (rules.cluster_ip_dsr, PortMappingFlags::default()),
        Kind::NodePort => (front.keep_client && rules.dsr, PortMappingFlags::LOCAL_ROUTED_VIP | PortMappingFlags::VIP_EXTERNAL_IP),
        Kind::ExternalIp | Kind::LoadBalancer | Kind::HealthCheck => (front.keep_client && rules.dsr, PortMappingFlags::VIP_EXTERNAL_IP),
    };
    mapping.flags = flags;
    if front.affinity.is_some() && rules.affinity {
        mapping.distribution_type = DistributionType::SOURCE_IP;
    }
    if dsr {
        document.flags = document.flags | LoadBalancerFlags::DSR;
    }
    if key.family() == IpFamily::V6 {
        document.flags = document.flags | LoadBalancerFlags::IPV6;
    }
    document
}

/// Whether `actual`, as the service reports it, does what `wanted` says. Members that we do not set are the
/// service's own.
pub fn same(wanted: &HostComputeLoadBalancer, actual: &HostComputeLoadBalancer) -> bool {
    let endpoints = |document: &HostComputeLoadBalancer| {
        let mut ids = document.host_compute_endpoints.clone();
        ids.sort();
        ids
    };
    let mapping = |document: &HostComputeLoadBalancer| {
        let m = document.port_mappings.first()?;
        Some((m.protocol.0, m.internal_port, m.external_port, m.distribution_type, m.flags))
    };
    endpoints(wanted) == endpoints(actual)
        && mapping(wanted) == mapping(actual)
        && wanted.flags == actual.flags
        && front_key(wanted) == front_key(actual)
}
