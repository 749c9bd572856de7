//! State of the service: its documents and what it knows beside them.
//!
//! Reading: `state.networks`, `namespaces` and `routes` hold documents; endpoints and load balancers are rows, read whole by
//! [`State::endpoint`] and [`State::balancer`]. Writing: [`State::apply`] alone, which keeps the indexes.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hcn::document::{NamespaceResource, NamespaceResourceType, to_text};
use hcn::{
    EndpointFlags, Guid, HostComputeEndpoint, HostComputeLoadBalancer, HostComputeNamespace, HostComputeNetwork, HostComputeRoute, Kind,
    LoadBalancerFlags, LoadBalancerPortMapping, NatFlags, Protocol,
};
use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, Serialize};

use crate::fact::Vip;
use crate::mac::Mac;

mod index;

pub use index::{Index, is_address, sets_of};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Endpoint {
    pub document: HostComputeEndpoint,
    /// Whether it is attached to the host's own compartment.
    #[serde(default)]
    pub on_host: bool,
    /// Its interface's name in its namespace.
    #[serde(default)]
    pub interface: Option<String>,
    /// Defects that the document does not show.
    #[serde(default, skip_serializing_if = "Defects::is_none")]
    pub defects: Defects,
}

/// Defects of an endpoint that its document does not show. Attaching it anew repairs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Defects {
    /// Its access rules are kept and have no effect, until they are set anew.
    pub unfiltered: bool,
    /// Its port at the switch passes nothing.
    pub blocked: bool,
}

impl Defects {
    fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl Endpoint {
    /// An endpoint that is attached to nothing.
    pub fn detached(document: HostComputeEndpoint) -> Self {
        Self { document, on_host: false, interface: None, defects: Defects::default() }
    }

    /// Its IPv4 addresses with their lengths.
    pub fn addresses(&self) -> impl Iterator<Item = Ipv4Net> {
        self.all_addresses().filter_map(|address| match address {
            IpNet::V4(address) => Some(address),
            IpNet::V6(_) => None,
        })
    }

    /// Its addresses of both families with their lengths.
    pub fn all_addresses(&self) -> impl Iterator<Item = IpNet> {
        self.document.ip_configurations.iter().filter_map(|ip| {
            let address: IpAddr = ip.ip_address.parse().ok()?;
            let longest = if address.is_ipv4() { 32 } else { 128 };
            IpNet::new(address, if ip.prefix_length == 0 { longest } else { ip.prefix_length }).ok()
        })
    }

    /// The host ports that its port mappings take.
    pub fn listeners(&self) -> impl Iterator<Item = Listener> {
        let mappings = self.document.policies.iter().filter_map(hcn::EndpointPolicy::as_port_mapping);
        mappings
            .map(|mapping| Listener::new(mapping.vip.parse().ok(), mapping.flags.contains(NatFlags::IPV6), mapping.protocol, mapping.external_port))
    }

    pub fn mac(&self) -> Option<Mac> {
        self.document.mac_address.parse().ok()
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Balancer {
    pub document: HostComputeLoadBalancer,
    /// The network of its backends; nil once that is gone, and then it listens nowhere.
    #[serde(default)]
    pub network: Guid,
    /// Its backends' addresses as they were when it was written: an endpoint's later delete leaves them, and traffic to them is lost.
    pub backends: Vec<IpAddr>,
}

impl Balancer {
    /// What it listens on.
    pub fn listeners(&self) -> impl Iterator<Item = Listener> {
        let ipv6 = self.document.flags.contains(LoadBalancerFlags::IPV6);
        let vips: Vec<Option<IpAddr>> = match self.document.frontend_vips.as_slice() {
            _ if self.network.is_nil() => Vec::new(),
            [] => vec![None],
            vips => vips.iter().filter_map(|vip| vip.parse().ok()).map(Some).collect(),
        };
        let listener = move |address, mapping: &LoadBalancerPortMapping| Listener::new(address, ipv6, mapping.protocol, mapping.external_port);
        self.document.port_mappings.iter().flat_map(move |mapping| vips.clone().into_iter().map(move |address| listener(address, mapping)))
    }

    /// What it listens on, as seen by packets.
    pub fn vips(&self) -> impl Iterator<Item = Vip> {
        self.listeners().map(|listener| listener.vip())
    }
}

/// The endpoint that a resource of a namespace is.
pub fn endpoint_of(resource: &NamespaceResource) -> Option<Guid> {
    (resource.resource_type == NamespaceResourceType::Endpoint).then(|| resource.data.id.parse().ok()).flatten()
}

/// What only one load balancer or port mapping may listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Listener {
    /// The address; none is any address of the host.
    pub address: Option<IpAddr>,
    /// The family, where there is no address.
    pub ipv6: bool,
    /// TCP, UDP or another.
    pub protocol: Protocol,
    pub port: u16,
}

impl Listener {
    fn new(address: Option<IpAddr>, ipv6: bool, protocol: Protocol, port: u16) -> Self {
        Self { address, ipv6: address.map_or(ipv6, |address| address.is_ipv6()), protocol, port }
    }

    /// The same, as seen by packets.
    pub fn vip(&self) -> Vip {
        Vip::new(self.address, self.ipv6, self.protocol, self.port)
    }
}

/// An object of any kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    Network(HostComputeNetwork),
    Endpoint(Endpoint),
    Namespace(HostComputeNamespace),
    Balancer(Balancer),
    Route(HostComputeRoute),
}

/// One change of the state: an object appears, changes or goes.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    pub kind: Kind,
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

/// An endpoint as the state holds it: thousands of remote ones exist, so the document is kept as the text that queries answer.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointRow {
    text: Box<str>,
    pub network: Guid,
    /// Its first IPv4 address.
    pub v4: Option<Ipv4Addr>,
    /// Its first IPv6 address.
    pub v6: Option<Ipv6Addr>,
    pub flags: EndpointFlags,
    /// See [`hcn::EndpointState`].
    pub state: u32,
    /// Whether it is attached to the host's own compartment.
    pub on_host: bool,
    /// Its interface's name in its namespace.
    pub interface: Option<Box<str>>,
    /// Defects that the document does not show.
    pub defects: Defects,
}

impl EndpointRow {
    fn new(endpoint: &Endpoint) -> Self {
        let (mut v4, mut v6) = (None, None);
        for address in endpoint.all_addresses() {
            match address.addr() {
                IpAddr::V4(address) => v4 = v4.or(Some(address)),
                IpAddr::V6(address) => v6 = v6.or(Some(address)),
            }
        }
        let document = &endpoint.document;
        Self {
            text: to_text(document).into(),
            network: document.host_compute_network,
            v4,
            v6,
            flags: document.flags,
            state: document.state,
            on_host: endpoint.on_host,
            interface: endpoint.interface.as_deref().map(Into::into),
            defects: endpoint.defects,
        }
    }

    /// Its document's text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Its document.
    ///
    /// # Panics
    /// Never: the text was written from a document.
    pub fn document(&self) -> HostComputeEndpoint {
        serde_json::from_str(&self.text).expect("a document's text is read back")
    }

    pub fn read(&self) -> Endpoint {
        Endpoint { document: self.document(), on_host: self.on_host, interface: self.interface.as_deref().map(str::to_owned), defects: self.defects }
    }

    /// Whether it is on another host.
    pub fn is_remote(&self) -> bool {
        self.flags.contains(EndpointFlags::REMOTE)
    }
}

/// A load balancer as the state holds it.
#[derive(Clone, Debug, PartialEq)]
pub struct BalancerRow {
    text: Box<str>,
    /// The network of its backends; nil once that is gone.
    pub network: Guid,
    /// See [`Balancer::backends`].
    pub backends: Box<[IpAddr]>,
    pub flags: LoadBalancerFlags,
    /// 2 is normal.
    pub state: u32,
}

impl BalancerRow {
    fn new(balancer: &Balancer) -> Self {
        Self {
            text: to_text(&balancer.document).into(),
            network: balancer.network,
            backends: balancer.backends.as_slice().into(),
            flags: balancer.document.flags,
            state: balancer.document.state,
        }
    }

    /// Its document's text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The load balancer.
    ///
    /// # Panics
    /// Never: the text was written from a document.
    pub fn read(&self) -> Balancer {
        let document = serde_json::from_str(&self.text).expect("a document's text is read back");
        Balancer { document, network: self.network, backends: self.backends.to_vec() }
    }
}

/// Everything the service keeps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    pub networks: BTreeMap<Guid, HostComputeNetwork>,
    /// Endpoints, local and remote.
    pub endpoints: BTreeMap<Guid, EndpointRow>,
    pub namespaces: BTreeMap<Guid, HostComputeNamespace>,
    pub balancers: BTreeMap<Guid, BalancerRow>,
    /// Routing rules.
    pub routes: BTreeMap<Guid, HostComputeRoute>,
    /// The host's own IPv6 address, which no document has.
    pub host_ipv6: Option<Ipv6Addr>,
    index: Index,
}

impl State {
    pub fn get(&self, kind: Kind, id: &Guid) -> Option<Object> {
        match kind {
            Kind::Network => self.networks.get(id).cloned().map(Object::Network),
            Kind::Endpoint => self.endpoint(id).map(Object::Endpoint),
            Kind::Namespace => self.namespaces.get(id).cloned().map(Object::Namespace),
            Kind::LoadBalancer => self.balancer(id).map(Object::Balancer),
            Kind::SdnRoute => self.routes.get(id).cloned().map(Object::Route),
            Kind::GuestNetworkService => None,
        }
    }

    pub fn endpoint(&self, id: &Guid) -> Option<Endpoint> {
        self.endpoints.get(id).map(EndpointRow::read)
    }

    /// The load balancer of that id.
    pub fn balancer(&self, id: &Guid) -> Option<Balancer> {
        self.balancers.get(id).map(BalancerRow::read)
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

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.networks.len() + self.endpoints.len() + self.namespaces.len() + self.balancers.len() + self.routes.len()
    }

    /// Whether there is no object.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every object's kind and id, in the order in which they can be made.
    pub fn ids(&self) -> impl Iterator<Item = (Kind, Guid)> {
        (self.networks.keys().map(|id| (Kind::Network, *id)))
            .chain(self.namespaces.keys().map(|id| (Kind::Namespace, *id)))
            .chain(self.endpoints.keys().map(|id| (Kind::Endpoint, *id)))
            .chain(self.balancers.keys().map(|id| (Kind::LoadBalancer, *id)))
            .chain(self.routes.keys().map(|id| (Kind::SdnRoute, *id)))
    }

    /// The ids of a kind, in order.
    pub fn ids_of(&self, kind: Kind) -> Vec<Guid> {
        match kind {
            Kind::Network => self.networks.keys().copied().collect(),
            Kind::Endpoint => self.endpoints.keys().copied().collect(),
            Kind::Namespace => self.namespaces.keys().copied().collect(),
            Kind::LoadBalancer => self.balancers.keys().copied().collect(),
            Kind::SdnRoute => self.routes.keys().copied().collect(),
            Kind::GuestNetworkService => Vec::new(),
        }
    }

    /// The indexes over the objects.
    pub fn index(&self) -> &Index {
        &self.index
    }

    pub fn apply(&mut self, change: Change) {
        let Change { kind, id, after } = change;
        self.unindex(kind, &id);
        match after {
            None => self.remove(kind, &id),
            Some(object) => {
                self.index.add(id, &object);
                match object {
                    Object::Network(network) => drop(self.networks.insert(id, network)),
                    Object::Namespace(namespace) => drop(self.namespaces.insert(id, namespace)),
                    Object::Route(route) => drop(self.routes.insert(id, route)),
                    Object::Endpoint(endpoint) => drop(self.endpoints.insert(id, EndpointRow::new(&endpoint))),
                    Object::Balancer(balancer) => drop(self.balancers.insert(id, BalancerRow::new(&balancer))),
                }
            }
        }
    }

    /// A listener without an owner that stays taken until the host reboots.
    pub fn leak(&mut self, listener: Listener) {
        self.index.leak(listener);
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
        // Networks can be large: what is indexed of them is cheap to take out without a copy.
        if let (Kind::Network, Some(network)) = (kind, self.networks.get(id)) {
            self.index.remove_network(*id, network);
        } else if let Some(object) = self.get(kind, id) {
            self.index.remove(*id, &object);
        }
    }
}
