//! What the service keeps: the documents, and what it knows beside them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use hcn::{Guid, HostComputeEndpoint, HostComputeLoadBalancer, HostComputeNamespace, HostComputeNetwork, HostComputeRoute, Kind, NetworkType};
use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use crate::fact::Frontend;
use crate::mac::Mac;

/// An endpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Its document.
    pub document: HostComputeEndpoint,
    /// Whether it is attached to the host's own compartment.
    #[serde(default)]
    pub on_host: bool,
    /// Its interface's name in its namespace.
    #[serde(default)]
    pub interface: Option<String>,
}

impl Endpoint {
    /// Its IPv4 addresses with their lengths.
    pub fn addresses(&self) -> impl Iterator<Item = Ipv4Net> {
        self.document.ip_configurations.iter().filter_map(|ip| {
            let address = ip.ip_address.parse::<Ipv4Addr>().ok()?;
            Ipv4Net::new(address, if ip.prefix_length == 0 { 32 } else { ip.prefix_length }).ok()
        })
    }

    /// The host ports that its port mappings take.
    pub fn frontends(&self) -> impl Iterator<Item = Frontend> {
        let mappings = self.document.policies.iter().filter_map(hcn::EndpointPolicy::as_port_mapping);
        mappings.map(|mapping| Frontend { address: mapping.vip.parse().ok(), protocol: mapping.protocol, port: mapping.external_port })
    }

    /// Its MAC.
    pub fn mac(&self) -> Option<Mac> {
        self.document.mac_address.parse().ok()
    }
}

/// A load balancer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Balancer {
    /// Its document.
    pub document: HostComputeLoadBalancer,
    /// Its backends' addresses as they were when it was written: an endpoint's later delete leaves them, and traffic to them is lost.
    pub backends: Vec<Ipv4Addr>,
}

impl Balancer {
    /// What it listens on.
    pub fn frontends(&self) -> impl Iterator<Item = Frontend> {
        let vips: Vec<Option<Ipv4Addr>> = if self.document.frontend_vips.is_empty() {
            vec![None]
        } else {
            self.document.frontend_vips.iter().filter_map(|vip| vip.parse().ok()).map(Some).collect()
        };
        let frontend =
            move |address, mapping: &hcn::LoadBalancerPortMapping| Frontend { address, protocol: mapping.protocol, port: mapping.external_port };
        self.document.port_mappings.iter().flat_map(move |mapping| vips.clone().into_iter().map(move |address| frontend(address, mapping)))
    }
}

/// An object of any kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// A network.
    Network(HostComputeNetwork),
    /// An endpoint.
    Endpoint(Endpoint),
    /// A namespace.
    Namespace(HostComputeNamespace),
    /// A load balancer.
    Balancer(Balancer),
    /// A routing rule.
    Route(HostComputeRoute),
}

/// One change of the state: an object appears, changes or goes.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The object's kind.
    pub kind: Kind,
    /// The object's id.
    pub id: Guid,
    /// What it is afterwards.
    pub after: Option<Object>,
}

impl Change {
    /// The object appears or changes.
    pub fn put(id: Guid, object: Object) -> Self {
        Self { kind: object.kind(), id, after: Some(object) }
    }

    /// The object goes.
    pub fn delete(kind: Kind, id: Guid) -> Self {
        Self { kind, id, after: None }
    }
}

impl Object {
    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Network(_) => Kind::Network,
            Self::Endpoint(_) => Kind::Endpoint,
            Self::Namespace(_) => Kind::Namespace,
            Self::Balancer(_) => Kind::LoadBalancer,
            Self::Route(_) => Kind::SdnRoute,
        }
    }
}

/// Everything the service keeps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Networks.
    pub networks: BTreeMap<Guid, HostComputeNetwork>,
    /// Endpoints, local and remote.
    pub endpoints: BTreeMap<Guid, Endpoint>,
    /// Namespaces.
    pub namespaces: BTreeMap<Guid, HostComputeNamespace>,
    /// Load balancers.
    pub balancers: BTreeMap<Guid, Balancer>,
    /// Routing rules.
    pub routes: BTreeMap<Guid, HostComputeRoute>,
    /// Which load balancer, or endpoint with a port mapping, listens on a frontend.
    frontends: BTreeMap<Frontend, Guid>,
    /// Which local endpoint has an address of a network.
    addresses: BTreeMap<(Guid, Ipv4Addr), Guid>,
    /// Which local endpoint has a MAC of a network.
    macs: BTreeMap<(Guid, Mac), Guid>,
    /// Which endpoints are of a network.
    members: BTreeSet<(Guid, Guid)>,
}

impl State {
    /// The object of that kind and id.
    pub fn get(&self, kind: Kind, id: &Guid) -> Option<Object> {
        match kind {
            Kind::Network => self.networks.get(id).cloned().map(Object::Network),
            Kind::Endpoint => self.endpoints.get(id).cloned().map(Object::Endpoint),
            Kind::Namespace => self.namespaces.get(id).cloned().map(Object::Namespace),
            Kind::LoadBalancer => self.balancers.get(id).cloned().map(Object::Balancer),
            Kind::SdnRoute => self.routes.get(id).cloned().map(Object::Route),
            Kind::GuestNetworkService => None,
        }
    }

    /// Whether there is an object of that kind and id.
    pub fn has(&self, kind: Kind, id: &Guid) -> bool {
        match kind {
            Kind::Network => self.networks.contains_key(id),
            Kind::Endpoint => self.endpoints.contains_key(id),
            Kind::Namespace => self.namespaces.contains_key(id),
            Kind::LoadBalancer => self.balancers.contains_key(id),
            Kind::SdnRoute => self.routes.contains_key(id),
            Kind::GuestNetworkService => false,
        }
    }

    /// The network of that name.
    pub fn network_named(&self, name: &str) -> Option<&HostComputeNetwork> {
        self.networks.values().find(|network| network.name.eq_ignore_ascii_case(name))
    }

    /// The load balancer, or endpoint with a port mapping, that listens there.
    pub fn listener(&self, frontend: &Frontend) -> Option<Guid> {
        self.frontends.get(frontend).copied()
    }

    /// The local endpoint that has that address on that network.
    pub fn local_endpoint_at(&self, network: Guid, address: Ipv4Addr) -> Option<Guid> {
        self.addresses.get(&(network, address)).copied()
    }

    /// The local endpoint that has that MAC on that network.
    pub fn local_endpoint_with(&self, network: Guid, mac: Mac) -> Option<Guid> {
        self.macs.get(&(network, mac)).copied()
    }

    /// The endpoints of a network, local and remote.
    pub fn endpoints_of(&self, network: Guid) -> impl Iterator<Item = Guid> {
        self.members.range((network, Guid::NIL)..).take_while(move |(of, _)| *of == network).map(|(_, endpoint)| *endpoint)
    }

    /// Makes a change.
    pub fn apply(&mut self, change: Change) {
        let Change { kind, id, after } = change;
        self.unindex(kind, &id);
        match after {
            None => self.remove(kind, &id),
            Some(Object::Network(network)) => drop(self.networks.insert(id, network)),
            Some(Object::Namespace(namespace)) => drop(self.namespaces.insert(id, namespace)),
            Some(Object::Route(route)) => drop(self.routes.insert(id, route)),
            Some(Object::Endpoint(endpoint)) => {
                let network = endpoint.document.host_compute_network;
                self.members.insert((network, id));
                if !endpoint.document.is_remote() {
                    self.addresses.extend(endpoint.addresses().map(|address| ((network, address.addr()), id)));
                    self.macs.extend(endpoint.mac().map(|mac| ((network, mac), id)));
                }
                self.frontends.extend(endpoint.frontends().map(|frontend| (frontend, id)));
                self.endpoints.insert(id, endpoint);
            }
            Some(Object::Balancer(balancer)) => {
                self.frontends.extend(balancer.frontends().map(|frontend| (frontend, id)));
                self.balancers.insert(id, balancer);
            }
        }
    }

    fn remove(&mut self, kind: Kind, id: &Guid) {
        match kind {
            Kind::Network => drop(self.networks.remove(id)),
            Kind::Endpoint => drop(self.endpoints.remove(id)),
            Kind::Namespace => drop(self.namespaces.remove(id)),
            Kind::LoadBalancer => drop(self.balancers.remove(id)),
            Kind::SdnRoute => drop(self.routes.remove(id)),
            Kind::GuestNetworkService => {}
        }
    }

    fn unindex(&mut self, kind: Kind, id: &Guid) {
        let mut frontends = Vec::new();
        if let (Kind::Endpoint, Some(endpoint)) = (kind, self.endpoints.get(id)) {
            let network = endpoint.document.host_compute_network;
            self.members.remove(&(network, *id));
            for address in endpoint.addresses() {
                if self.addresses.get(&(network, address.addr())) == Some(id) {
                    self.addresses.remove(&(network, address.addr()));
                }
            }
            if let Some(mac) = endpoint.mac().filter(|mac| self.macs.get(&(network, *mac)) == Some(id)) {
                self.macs.remove(&(network, mac));
            }
            frontends.extend(endpoint.frontends());
        }
        if let (Kind::LoadBalancer, Some(balancer)) = (kind, self.balancers.get(id)) {
            frontends.extend(balancer.frontends());
        }
        for frontend in frontends {
            if self.frontends.get(&frontend) == Some(id) {
                self.frontends.remove(&frontend);
            }
        }
    }
}

/// Whether the simulator makes networks of that type real.
pub fn is_real(network_type: &NetworkType) -> bool {
    matches!(network_type, NetworkType::L2Bridge | NetworkType::Nat | NetworkType::Internal | NetworkType::Private)
}
