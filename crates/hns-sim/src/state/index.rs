//! Indexes over the objects: the cost of a rule does not grow with their number.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use hcn::document::{Acl, EndpointPolicyType};
use hcn::{Guid, HostComputeNetwork, Kind, NamespaceType};

use super::{Endpoint, Listener, Object};
use crate::mac::Mac;

/// A name as it is compared.
fn key(name: &str) -> Box<str> {
    name.to_ascii_lowercase().into()
}

/// What is looked up by something else than an id.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Index {
    names: BTreeMap<(Kind, Box<str>), BTreeSet<Guid>>,
    listeners: BTreeMap<Listener, Guid>,
    leaked: BTreeSet<Listener>,
    addresses: BTreeMap<(Guid, IpAddr), Guid>,
    macs: BTreeMap<(Guid, Mac), Guid>,
    members: BTreeSet<(Guid, Guid)>,
    balancers: BTreeSet<(Guid, Guid)>,
    sets: BTreeMap<(Guid, Box<str>), u32>,
    compartments: BTreeSet<u32>,
}

impl Index {
    /// The objects of that kind and name, in any case. Objects without a name are not found.
    pub fn named(&self, kind: Kind, name: &str) -> impl Iterator<Item = Guid> {
        self.names.get(&(kind, key(name))).into_iter().flatten().copied()
    }

    /// Whether an object has a name.
    pub fn is_named(&self, kind: Kind, id: &Guid) -> bool {
        self.names.range((kind, Box::default())..).take_while(|((of, _), _)| *of == kind).any(|(_, ids)| ids.contains(id))
    }

    /// The load balancer, or endpoint with a port mapping, that listens there.
    pub fn listener(&self, listener: &Listener) -> Option<Guid> {
        self.listeners.get(listener).copied().or_else(|| self.leaked.contains(listener).then_some(Guid::NIL))
    }

    /// The local endpoint that has that address on that network.
    pub fn local_endpoint_at(&self, network: Guid, address: IpAddr) -> Option<Guid> {
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

    /// The load balancers of a network.
    pub fn balancers_of(&self, network: Guid) -> impl Iterator<Item = Guid> {
        self.balancers.range((network, Guid::NIL)..).take_while(move |(of, _)| *of == network).map(|(_, balancer)| *balancer)
    }

    /// Whether an access rule of a network's endpoints names that set.
    pub fn is_set_used(&self, network: Guid, set: &str) -> bool {
        self.sets.contains_key(&(network, key(set)))
    }

    /// The highest number of a compartment of this host, beside its own.
    pub fn highest_compartment(&self) -> Option<u32> {
        self.compartments.last().copied()
    }

    pub(super) fn leak(&mut self, listener: Listener) {
        self.leaked.insert(listener);
    }

    pub(super) fn add(&mut self, id: Guid, object: &Object) {
        match object {
            Object::Network(network) => self.add_name(Kind::Network, &network.name, id),
            Object::Namespace(namespace) => {
                self.add_name(Kind::Namespace, &namespace.name, id);
                self.compartments.extend((namespace.namespace_type == NamespaceType::Host).then_some(namespace.namespace_id));
            }
            Object::Endpoint(endpoint) => {
                let network = endpoint.document.host_compute_network;
                self.add_name(Kind::Endpoint, &endpoint.document.name, id);
                self.members.insert((network, id));
                if !endpoint.document.is_remote() {
                    self.addresses.extend(endpoint.all_addresses().map(|address| ((network, address.addr()), id)));
                    self.macs.extend(endpoint.mac().map(|mac| ((network, mac), id)));
                }
                self.listeners.extend(endpoint.listeners().map(|listener| (listener, id)));
                for set in used_sets(endpoint) {
                    *self.sets.entry((network, set)).or_default() += 1;
                }
            }
            Object::Balancer(balancer) => {
                self.add_name(Kind::LoadBalancer, &balancer.document.name, id);
                self.balancers.insert((balancer.network, id));
                self.listeners.extend(balancer.listeners().map(|listener| (listener, id)));
            }
            Object::Route(route) => self.add_name(Kind::SdnRoute, &route.name, id),
        }
    }

    pub(super) fn remove_network(&mut self, id: Guid, network: &HostComputeNetwork) {
        self.remove_name(Kind::Network, &network.name, id);
    }

    pub(super) fn remove(&mut self, id: Guid, object: &Object) {
        match object {
            Object::Network(network) => self.remove_network(id, network),
            Object::Namespace(namespace) => {
                self.remove_name(Kind::Namespace, &namespace.name, id);
                if namespace.namespace_type == NamespaceType::Host {
                    self.compartments.remove(&namespace.namespace_id);
                }
            }
            Object::Endpoint(endpoint) => self.remove_endpoint(id, endpoint),
            Object::Balancer(balancer) => {
                self.remove_name(Kind::LoadBalancer, &balancer.document.name, id);
                self.balancers.remove(&(balancer.network, id));
                self.remove_listeners(id, balancer.listeners());
            }
            Object::Route(route) => self.remove_name(Kind::SdnRoute, &route.name, id),
        }
    }

    fn remove_endpoint(&mut self, id: Guid, endpoint: &Endpoint) {
        let network = endpoint.document.host_compute_network;
        self.remove_name(Kind::Endpoint, &endpoint.document.name, id);
        self.members.remove(&(network, id));
        for address in endpoint.all_addresses().map(|address| address.addr()) {
            if self.addresses.get(&(network, address)) == Some(&id) {
                self.addresses.remove(&(network, address));
            }
        }
        if let Some(mac) = endpoint.mac().filter(|mac| self.macs.get(&(network, *mac)) == Some(&id)) {
            self.macs.remove(&(network, mac));
        }
        self.remove_listeners(id, endpoint.listeners());
        for set in used_sets(endpoint) {
            if let Some(count) = self.sets.get_mut(&(network, set.clone())) {
                *count -= 1;
                if *count == 0 {
                    self.sets.remove(&(network, set));
                }
            }
        }
    }

    fn remove_listeners(&mut self, id: Guid, listeners: impl Iterator<Item = Listener>) {
        for listener in listeners {
            if self.listeners.get(&listener) == Some(&id) {
                self.listeners.remove(&listener);
            }
        }
    }

    fn add_name(&mut self, kind: Kind, name: &str, id: Guid) {
        if !name.is_empty() {
            self.names.entry((kind, key(name))).or_default().insert(id);
        }
    }

    fn remove_name(&mut self, kind: Kind, name: &str, id: Guid) {
        let key = (kind, key(name));
        if let Some(ids) = self.names.get_mut(&key) {
            ids.remove(&id);
            if ids.is_empty() {
                self.names.remove(&key);
            }
        }
    }
}

/// The parts of an access rule's address lists that are no addresses: sets of the network.
pub fn sets_of(acl: &Acl) -> impl Iterator<Item = &str> {
    let words = acl.local_addresses.split(',').chain(acl.remote_addresses.split(','));
    words.map(str::trim).filter(|word| !word.is_empty() && !is_address(word))
}

/// Whether a word of an address list is an address or a prefix.
pub fn is_address(word: &str) -> bool {
    word.parse::<IpAddr>().is_ok() || word.parse::<ipnet::IpNet>().is_ok()
}

fn used_sets(endpoint: &Endpoint) -> BTreeSet<Box<str>> {
    let acls = endpoint.document.policies.iter().filter_map(|policy| policy.settings_as::<Acl>(&EndpointPolicyType::Acl));
    acls.flat_map(|acl| sets_of(&acl).map(key).collect::<Vec<_>>()).collect()
}
