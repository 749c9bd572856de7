//! What the proxy keeps of Services and EndpointSlices, and which Services changed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use cluster::{Change, Key};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;

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
    /// `externalTrafficPolicy: Local`
    pub external_local: bool,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Its name; empty when it has none.
    pub name: String,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its number.
    pub port: u16,
    /// Its port on every node.
    pub node_port: Option<u16>,
}

/// An EndpointSlice as far as the proxy cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceRow {
    /// Name of the Service, from the label.
    pub service: String,
    /// Its ports.
    pub ports: Vec<SlicePort>,
    /// Its endpoints.
    pub endpoints: Vec<EndpointRow>,
}

/// A port of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    /// Its name; empty when it has none.
    pub name: String,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its number.
    pub port: u16,
}

/// An endpoint of a slice.
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
}

fn port_number(port: i32) -> Option<u16> {
    u16::try_from(port).ok().filter(|port| *port != 0)
}

fn addresses<'a>(texts: impl IntoIterator<Item = &'a String>) -> Vec<IpAddr> {
    let mut ips: Vec<IpAddr> = Vec::new();
    for ip in texts.into_iter().filter_map(|text| text.parse().ok()) {
        if !ips.contains(&ip) {
            ips.push(ip);
        }
    }
    ips
}

impl ServiceRow {
    /// `None` for Services that need no proxy: headless, ExternalName, of another proxy
    /// (`service.kubernetes.io/service-proxy-name`), or without a usable port or address.
    pub fn of(service: &Service) -> Option<Self> {
        let spec = service.spec.as_ref()?;
        let labels = service.metadata.labels.as_ref();
        let foreign = labels.is_some_and(|l| l.contains_key("service.kubernetes.io/service-proxy-name"));
        if foreign || spec.type_.as_deref() == Some("ExternalName") || spec.cluster_ip.as_deref() == Some("None") {
            return None;
        }
        let listed = spec.cluster_ips.as_deref().unwrap_or_default();
        let cluster_ips = addresses(listed.iter().chain(&spec.cluster_ip));
        let ports: Vec<ServicePort> = spec.ports.iter().flatten().filter_map(service_port).collect();
        if ports.is_empty() || cluster_ips.is_empty() {
            return None;
        }
        let ingress = service.status.as_ref().and_then(|s| s.load_balancer.as_ref()).and_then(|l| l.ingress.as_deref()).unwrap_or_default();
        let for_nodes = ingress.iter().filter(|i| i.ip_mode.as_deref().is_none_or(|mode| mode == "VIP"));
        let timeout = || spec.session_affinity_config.as_ref()?.client_ip.as_ref()?.timeout_seconds;
        let affinity = (spec.session_affinity.as_deref() == Some("ClientIP"))
            .then(|| timeout().and_then(|s| u32::try_from(s).ok()).filter(|s| *s > 0).unwrap_or(10_800));
        Some(Self {
            cluster_ips,
            external_ips: addresses(spec.external_ips.iter().flatten()),
            load_balancer_ips: addresses(for_nodes.filter_map(|i| i.ip.as_ref())),
            ports,
            affinity,
            internal_local: spec.internal_traffic_policy.as_deref() == Some("Local"),
            external_local: spec.external_traffic_policy.as_deref() == Some("Local"),
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
    /// `None` for slices of no Service and for addresses that are host names. `node` is this node's name.
    pub fn of(slice: &EndpointSlice, node: &str) -> Option<Self> {
        if slice.address_type == "FQDN" {
            return None;
        }
        let labels = slice.metadata.labels.as_ref()?;
        let service = labels.get("kubernetes.io/service-name").filter(|name| !name.is_empty())?.clone();
        let port = |port: &k8s_openapi::api::discovery::v1::EndpointPort| {
            Some(SlicePort {
                name: port.name.clone().unwrap_or_default(),
                protocol: Protocol::from_api(port.protocol.as_deref())?,
                port: port.port.and_then(port_number)?,
            })
        };
        let endpoint = |endpoint: &k8s_openapi::api::discovery::v1::Endpoint| {
            let conditions = endpoint.conditions.as_ref();
            let ready = conditions.and_then(|c| c.ready).unwrap_or(true);
            Some(EndpointRow {
                address: endpoint.addresses.first()?.parse().ok()?,
                ready,
                serving: conditions.and_then(|c| c.serving).unwrap_or(ready),
                terminating: conditions.and_then(|c| c.terminating).unwrap_or(false),
                local: endpoint.node_name.as_deref() == Some(node),
            })
        };
        Some(Self {
            service,
            ports: slice.ports.iter().flatten().filter_map(port).collect(),
            endpoints: slice.endpoints.iter().flatten().filter_map(endpoint).collect(),
        })
    }
}

/// The newest rows, by Service, and which Services changed since they were last asked for.
#[derive(Debug, Default)]
pub struct Inputs {
    services: BTreeMap<Key, Arc<ServiceRow>>,
    slices: HashMap<Key, BTreeMap<String, Arc<SliceRow>>>,
    dirty: BTreeSet<Key>,
}

impl Inputs {
    /// Takes in a change of a Service.
    pub fn service(&mut self, change: &Change<'_, ServiceRow>) {
        match change.new {
            Some(row) => drop(self.services.insert(change.key.clone(), row.clone())),
            None => drop(self.services.remove(change.key)),
        }
        self.dirty.insert(change.key.clone());
    }

    /// Takes in a change of a slice.
    pub fn slice(&mut self, change: &Change<'_, SliceRow>) {
        let of = |row: &SliceRow| Key::new(change.key.ns.clone(), row.service.clone());
        if let Some(service) = change.old.map(|row| of(row)) {
            if let Some(slices) = self.slices.get_mut(&service) {
                slices.remove(&change.key.name);
                if slices.is_empty() {
                    self.slices.remove(&service);
                }
            }
            self.dirty.insert(service);
        }
        if let Some(row) = change.new {
            let service = of(row);
            self.slices.entry(service.clone()).or_default().insert(change.key.name.clone(), row.clone());
            self.dirty.insert(service);
        }
    }

    /// The Services that changed, each once.
    pub fn take_dirty(&mut self) -> BTreeSet<Key> {
        std::mem::take(&mut self.dirty)
    }

    /// The rows of one Service; none when it is gone or needs no proxy.
    pub fn rows(&self, service: &Key) -> Option<(Arc<ServiceRow>, Vec<Arc<SliceRow>>)> {
        let row = self.services.get(service)?.clone();
        let slices = self.slices.get(service).map(|slices| slices.values().cloned().collect()).unwrap_or_default();
        Some((row, slices))
    }
}
