//! Rows of the cluster's objects: the fields that are used.

use std::fmt;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;

use network_policy::rows as policy_rows;
use ovsdb::names::{ANNOTATION, MIRROR, NETWORKS, port_version};

/// A transport protocol that OVN's load balancers have here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Tcp, Self::Udp];

    fn read(text: Option<&str>) -> Option<Self> {
        match text {
            None | Some("TCP") => Some(Self::Tcp),
            Some("UDP") => Some(Self::Udp),
            Some(_) => None,
        }
    }

    pub(crate) fn upper(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

/// A pod that needs a logical port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRow {
    /// The node on which it is.
    pub node: String,
    /// Its UID.
    pub uid: String,
    /// The UID that its runtime is told, which is another one of a pod from a file.
    pub version: String,
    /// Its annotation [`ANNOTATION`].
    pub annotation: Option<String>,
    /// Its annotation [`NETWORKS`].
    pub networks: Option<String>,
    /// What policies ask of it.
    pub rules: policy_rows::PodRow,
}

impl PodRow {
    /// Reads a pod. None: it is on no node yet, has its node's network, or has ended.
    #[must_use]
    pub fn of(pod: &Pod) -> Option<Self> {
        let spec = pod.spec.as_ref()?;
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if spec.host_network == Some(true) || matches!(phase, Some("Succeeded" | "Failed")) {
            return None;
        }
        let annotation = |name: &str| pod.metadata.annotations.as_ref()?.get(name).cloned();
        let node = spec.node_name.clone().filter(|node| !node.is_empty())?;
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let version = port_version(&uid, annotation(MIRROR).as_deref()).to_owned();
        let rules = policy_rows::PodRow::of(pod)?;
        Some(Self { node, uid, version, annotation: annotation(ANNOTATION), networks: annotation(NETWORKS), rules })
    }
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
    /// Its port on every gateway.
    pub node_port: Option<u16>,
}

/// A Service with addresses of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceRow {
    /// Its addresses in the cluster.
    pub cluster_ips: Vec<IpAddr>,
    /// Its `externalIPs`.
    pub external_ips: Vec<IpAddr>,
    /// Its ports; those of other protocols are left out.
    pub ports: Vec<ServicePort>,
}

fn number(port: i32) -> Option<u16> {
    u16::try_from(port).ok().filter(|port| *port != 0)
}

impl ServiceRow {
    /// Reads a Service. None: it has no address.
    #[must_use]
    pub fn of(service: &Service) -> Option<Self> {
        let spec = service.spec.as_ref()?;
        let addresses = |list: &Option<Vec<String>>| list.iter().flatten().filter_map(|text| text.parse().ok()).collect::<Vec<IpAddr>>();
        let mut cluster_ips = addresses(&spec.cluster_ips);
        if cluster_ips.is_empty() {
            cluster_ips.extend(spec.cluster_ip.as_ref().and_then(|text| text.parse::<IpAddr>().ok()));
        }
        let port = |port: &k8s_openapi::api::core::v1::ServicePort| {
            Some(ServicePort {
                name: port.name.clone().unwrap_or_default(),
                protocol: Protocol::read(port.protocol.as_deref())?,
                port: number(port.port)?,
                node_port: port.node_port.and_then(number),
            })
        };
        let ports = spec.ports.iter().flatten().filter_map(port).collect();
        (!cluster_ips.is_empty()).then(|| Self { cluster_ips, external_ips: addresses(&spec.external_ips), ports })
    }
}

/// A port of an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    /// Its name; empty when it has none.
    pub name: String,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its number, which may differ from slice to slice: of a named `targetPort` each pod has its own.
    pub port: u16,
}

/// An EndpointSlice: the addresses that get connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SliceRow {
    /// The name of its Service.
    pub service: String,
    /// Its ports.
    pub ports: Vec<SlicePort>,
    /// Addresses that are ready.
    pub addresses: Vec<IpAddr>,
}

impl SliceRow {
    /// Reads an EndpointSlice. None: it is of no Service.
    #[must_use]
    pub fn of(slice: &EndpointSlice) -> Option<Self> {
        let service = slice.metadata.labels.as_ref()?.get("kubernetes.io/service-name").filter(|name| !name.is_empty())?.clone();
        let port = |port: &k8s_openapi::api::discovery::v1::EndpointPort| {
            let (name, protocol) = (port.name.clone().unwrap_or_default(), Protocol::read(port.protocol.as_deref())?);
            Some(SlicePort { name, protocol, port: port.port.and_then(number)? })
        };
        let ready = slice.endpoints.iter().flatten().filter(|endpoint| endpoint.conditions.as_ref().and_then(|c| c.ready) != Some(false));
        Some(Self {
            service,
            ports: slice.ports.iter().flatten().filter_map(port).collect(),
            addresses: ready.filter_map(|endpoint| endpoint.addresses.first()?.parse().ok()).collect(),
        })
    }
}
