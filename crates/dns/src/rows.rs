//! Rows of Services and EndpointSlices for DNS.

use std::net::IpAddr;

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};

/// The label by which a slice names its Service.
pub(crate) const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// A named or nameless port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Port {
    pub name: String,
    pub protocol: String,
    pub number: u16,
}

/// Target of a Service's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    Addresses(Vec<IpAddr>),
    /// Those of its endpoints.
    Endpoints,
    /// Another name.
    Alias(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServiceRow {
    pub target: Target,
    pub ports: Vec<Port>,
}

impl ServiceRow {
    pub fn new(service: &Service) -> Self {
        let spec = service.spec.clone().unwrap_or_default();
        let addresses = spec.cluster_ips.clone().unwrap_or_else(|| spec.cluster_ip.iter().cloned().collect());
        let target = match (spec.type_.as_deref(), spec.external_name) {
            (Some("ExternalName"), Some(name)) => Target::Alias(name),
            _ if addresses.iter().any(|address| address == "None") => Target::Endpoints,
            _ => Target::Addresses(addresses.iter().filter_map(|address| address.parse().ok()).collect()),
        };
        let port = |name: Option<String>, protocol: Option<String>, number: i32| {
            Some(Port { name: name.unwrap_or_default(), protocol: protocol.unwrap_or_else(|| "TCP".to_owned()), number: u16::try_from(number).ok()? })
        };
        let ports = spec.ports.into_iter().flatten();
        Self { target, ports: ports.filter_map(|one| port(one.name, one.protocol, one.port)).collect() }
    }
}

/// One ready endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub address: IpAddr,
    pub hostname: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SliceRow {
    pub service: String,
    pub ports: Vec<Port>,
    pub endpoints: Vec<Endpoint>,
}

impl SliceRow {
    pub fn new(slice: &EndpointSlice) -> Option<Self> {
        let service = slice.metadata.labels.as_ref()?.get(SERVICE_NAME)?.clone();
        let ports = slice.ports.iter().flatten().filter_map(|port| {
            Some(Port {
                name: port.name.clone().unwrap_or_default(),
                protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
                number: u16::try_from(port.port?).ok()?,
            })
        });
        // An unknown state counts as ready, as the API says.
        let ready = slice.endpoints.iter().flatten().filter(|one| one.conditions.as_ref().and_then(|state| state.ready).unwrap_or(true));
        let endpoints = ready.flat_map(|one| {
            let hostname = one.hostname.clone();
            one.addresses.iter().filter_map(move |address| Some(Endpoint { address: address.parse().ok()?, hostname: hostname.clone() }))
        });
        Some(Self { service, ports: ports.collect(), endpoints: endpoints.collect() })
    }
}
