//! Rows: the fields that the proxy keeps of Services, EndpointSlices and its Node.

use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

use crate::table::Protocol;

/// A Service as far as the proxy cares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceRow {
    /// `spec.clusterIPs`
    pub cluster_ips: Vec<IpAddr>,
    /// `spec.externalIPs`
    pub external_ips: Vec<IpAddr>,
    /// `status.loadBalancer.ingress[].ip` that the node itself should serve.
    pub load_balancer_ips: Vec<IpAddr>,
    /// Ports with a number and a protocol that exist.
    pub ports: Vec<ServicePort>,
    /// `sessionAffinity: ClientIP`, with its timeout in seconds.
    pub affinity: Option<u32>,
    /// `internalTrafficPolicy: Local`
    pub internal_local: bool,
    /// `externalTrafficPolicy: Local`, on a Service that the outside can reach.
    pub external_local: bool,
    /// `healthCheckNodePort`, on load balancers with external traffic policy `Local`.
    pub health_port: Option<u16>,
    /// `loadBalancerSourceRanges`; absent lets everybody in.
    pub sources: Option<Vec<IpNet>>,
    /// Annotation `preserve-destination: "true"` of Windows nodes.
    pub preserve_destination: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Its name; empty when it has none.
    pub name: String,
    pub protocol: Protocol,
    pub port: u16,
    /// Its port on every node.
    pub node_port: Option<u16>,
}

/// An EndpointSlice as far as the proxy cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceRow {
    /// Name of the Service, from the label.
    pub service: String,
    pub ports: Vec<SlicePort>,
    pub endpoints: Vec<EndpointRow>,
    /// The zones that its endpoints' hints name; [`EndpointRow::zones`] points here.
    pub zones: Vec<Box<str>>,
    /// When what led to its newest version happened, in milliseconds since 1970.
    pub triggered: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    /// Its name; empty when it has none.
    pub name: String,
    pub protocol: Protocol,
    pub port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointRow {
    /// Its first address: the API calls them interchangeable.
    pub address: IpAddr,
    /// May get new connections.
    pub ready: bool,
    /// Answers, ready or not.
    pub serving: bool,
    /// Its pod is being deleted.
    pub terminating: bool,
    /// Its pod runs on this node.
    pub local: bool,
    /// For which nodes it is meant.
    pub nodes: NodeHint,
    /// For which zones it is meant: bit n is the slice's zone n. None hints at no zone.
    pub zones: u64,
}

/// For which nodes an endpoint is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeHint {
    /// There is no hint.
    #[default]
    None,
    /// This one.
    Here,
    /// Others.
    Elsewhere,
}

/// This Node as far as the proxy cares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeRow {
    /// Label `topology.kubernetes.io/zone`.
    pub zone: Option<String>,
    /// Its internal addresses, then its external ones.
    pub addresses: Vec<IpAddr>,
    /// `spec.podCIDRs`
    pub pod_cidrs: Vec<IpNet>,
    /// It is being deleted, or an autoscaler is about to: load balancers should send nothing new.
    pub leaving: bool,
}

impl NodeRow {
    pub fn of(node: &Node) -> Self {
        let meta = &node.metadata;
        let spec = node.spec.as_ref();
        let listed = node.status.as_ref().and_then(|s| s.addresses.as_deref()).unwrap_or_default();
        let of_kind = |kind: &'static str| listed.iter().filter(move |a| a.type_ == kind).map(|a| &a.address);
        let taints = spec.and_then(|s| s.taints.as_deref()).unwrap_or_default();
        let cidrs = spec.and_then(|s| s.pod_cidrs.as_deref()).unwrap_or_default();
        Self {
            zone: meta.labels.as_ref().and_then(|l| l.get("topology.kubernetes.io/zone")).filter(|zone| !zone.is_empty()).cloned(),
            addresses: addresses(of_kind("InternalIP").chain(of_kind("ExternalIP"))),
            pod_cidrs: cidrs.iter().filter_map(|text| text.parse().ok()).collect(),
            leaving: meta.deletion_timestamp.is_some() || taints.iter().any(|t| t.key == "ToBeDeletedByClusterAutoscaler"),
        }
    }
}

/// Label of objects that another proxy serves.
const OTHER_PROXY: &str = "service.kubernetes.io/service-proxy-name";

fn port_number(port: i32) -> Option<u16> {
    u16::try_from(port).ok().filter(|port| *port != 0)
}

/// There are many rows, and what collects keeps room for more.
fn exact<T>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut list: Vec<T> = items.into_iter().collect();
    list.shrink_to_fit();
    list
}

fn addresses<'a>(texts: impl IntoIterator<Item = &'a String>) -> Vec<IpAddr> {
    let mut ips: Vec<IpAddr> = Vec::new();
    for ip in texts.into_iter().filter_map(|text| text.parse().ok()) {
        if !ips.contains(&ip) {
            ips.push(ip);
        }
    }
    exact(ips)
}

/// A range that is no network admits no client.
fn networks(texts: &[String]) -> Vec<IpNet> {
    let mut nets: Vec<IpNet> = texts.iter().filter_map(|text| text.trim().parse::<IpNet>().ok()).map(|net| net.trunc()).collect();
    nets.sort();
    nets.dedup();
    nets
}

impl ServiceRow {
    /// `None` for Services that need no proxy: headless, ExternalName, of another proxy
    /// (`service.kubernetes.io/service-proxy-name`), or without a usable port or address.
    pub fn of(service: &Service) -> Option<Self> {
        let spec = service.spec.as_ref()?;
        let labels = service.metadata.labels.as_ref();
        let foreign = labels.is_some_and(|l| l.contains_key(OTHER_PROXY));
        if foreign || spec.type_.as_deref() == Some("ExternalName") || spec.cluster_ip.as_deref() == Some("None") {
            return None;
        }
        let listed = spec.cluster_ips.as_deref().unwrap_or_default();
        let cluster_ips = addresses(listed.iter().chain(&spec.cluster_ip));
        let ports = exact(spec.ports.iter().flatten().filter_map(service_port));
        if ports.is_empty() || cluster_ips.is_empty() {
            return None;
        }
        let ingress = service.status.as_ref().and_then(|s| s.load_balancer.as_ref()).and_then(|l| l.ingress.as_deref()).unwrap_or_default();
        let for_nodes = ingress.iter().filter(|i| i.ip_mode.as_deref().is_none_or(|mode| mode == "VIP"));
        let timeout = || spec.session_affinity_config.as_ref()?.client_ip.as_ref()?.timeout_seconds;
        let affinity = (spec.session_affinity.as_deref() == Some("ClientIP"))
            .then(|| timeout().and_then(|s| u32::try_from(s).ok()).filter(|s| *s > 0).unwrap_or(10_800));
        let external_ips = addresses(spec.external_ips.iter().flatten());
        let kind = spec.type_.as_deref().unwrap_or("ClusterIP");
        let reachable = matches!(kind, "NodePort" | "LoadBalancer") || !external_ips.is_empty();
        let external_local = reachable && spec.external_traffic_policy.as_deref() == Some("Local");
        let annotations = service.metadata.annotations.as_ref();
        Some(Self {
            cluster_ips,
            external_ips,
            load_balancer_ips: addresses(for_nodes.filter_map(|i| i.ip.as_ref())),
            ports,
            affinity,
            internal_local: spec.internal_traffic_policy.as_deref() == Some("Local"),
            external_local,
            health_port: spec.health_check_node_port.filter(|_| kind == "LoadBalancer" && external_local).and_then(port_number),
            sources: spec.load_balancer_source_ranges.as_deref().filter(|ranges| !ranges.is_empty()).map(networks),
            preserve_destination: annotations.and_then(|a| a.get("preserve-destination")).is_some_and(|v| v == "true"),
        })
    }
}

fn service_port(port: &k8s_openapi::api::core::v1::ServicePort) -> Option<ServicePort> {
    Some(ServicePort {
        name: port.name.clone().unwrap_or_default(),
        protocol: Protocol::from_api(port.protocol.as_deref())?,
        port: port_number(port.port)?,
        node_port: port.node_port.and_then(port_number),
    })
}

impl SliceRow {
    /// `None` for slices of no Service, of headless ones and of other proxies, and for addresses that are host names.
    /// `node` is this node's name.
    pub fn of(slice: &EndpointSlice, node: &str) -> Option<Self> {
        let labels = slice.metadata.labels.as_ref()?;
        if slice.address_type == "FQDN" || labels.contains_key("service.kubernetes.io/headless") || labels.contains_key(OTHER_PROXY) {
            return None;
        }
        let service = labels.get("kubernetes.io/service-name").filter(|name| !name.is_empty())?.clone();
        let port = |port: &k8s_openapi::api::discovery::v1::EndpointPort| {
            Some(SlicePort {
                name: port.name.clone().unwrap_or_default(),
                protocol: Protocol::from_api(port.protocol.as_deref())?,
                port: port.port.and_then(port_number)?,
            })
        };
        let mut zones: Vec<Box<str>> = Vec::new();
        let endpoints = exact(slice.endpoints.iter().flatten().filter_map(|endpoint| EndpointRow::of(endpoint, node, &mut zones)));
        let annotations = slice.metadata.annotations.as_ref();
        let triggered = annotations.and_then(|a| a.get("endpoints.kubernetes.io/last-change-trigger-time"));
        Some(Self {
            service,
            ports: exact(slice.ports.iter().flatten().filter_map(port)),
            endpoints,
            zones,
            triggered: triggered.and_then(|text| text.parse::<jiff::Timestamp>().ok()).map(jiff::Timestamp::as_millisecond),
        })
    }

    /// Whether `endpoint`, one of this slice's, is meant for `zone`.
    pub fn is_for_zone(&self, endpoint: &EndpointRow, zone: &str) -> bool {
        self.zones.iter().enumerate().any(|(n, name)| endpoint.zones >> n & 1 == 1 && **name == *zone)
    }
}

/// How many zones the hints of one slice may name; an endpoint with others counts as one without hints.
const MOST_ZONES: usize = 64;

impl EndpointRow {
    fn of(endpoint: &Endpoint, node: &str, zones: &mut Vec<Box<str>>) -> Option<Self> {
        let conditions = endpoint.conditions.as_ref();
        let ready = conditions.and_then(|c| c.ready).unwrap_or(true);
        let hints = endpoint.hints.as_ref();
        let for_nodes = hints.and_then(|h| h.for_nodes.as_deref()).unwrap_or_default();
        let mut zone_bits = 0;
        for hint in hints.and_then(|h| h.for_zones.as_deref()).unwrap_or_default() {
            let at = zones.iter().position(|zone| **zone == *hint.name).unwrap_or(zones.len());
            if at == zones.len() && at < MOST_ZONES {
                zones.push(hint.name.as_str().into());
            }
            zone_bits |= 1u64.checked_shl(at.try_into().unwrap_or(u32::MAX)).unwrap_or(0);
        }
        Some(Self {
            address: endpoint.addresses.first()?.parse().ok()?,
            ready,
            serving: conditions.and_then(|c| c.serving).unwrap_or(ready),
            terminating: conditions.and_then(|c| c.terminating).unwrap_or(false),
            local: endpoint.node_name.as_deref() == Some(node),
            nodes: match for_nodes {
                [] => NodeHint::None,
                list if list.iter().any(|hint| hint.name == node) => NodeHint::Here,
                _ => NodeHint::Elsewhere,
            },
            zones: zone_bits,
        })
    }
}
