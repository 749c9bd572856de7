//! Changes behind the owners' backs: lost objects and policies, renewed networks, endpoints whose rules or port have no effect, late
//! compartments. No call of a client makes them.

use hcn::{Args, Event, Guid, Kind, NamespaceType};

use super::{Context, Staged};
use crate::compile::awaits_compartment;
use crate::state::{Change, Endpoint, Object};

/// A change that no client asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tampering {
    /// The object is gone, as if another program had deleted it.
    LoseObject,
    /// The object's policies are gone; a load balancer is gone itself.
    LosePolicies,
    /// The network is another one of the same name, without endpoints.
    RenewNetwork,
    /// The endpoint's access rules have no effect.
    DisableRules,
    /// The endpoint's port passes nothing.
    BlockPort,
}

impl Context<'_> {
    /// Stages the change of `subject`, whatever kind of object that is; of the first network with endpoints, else the first, where the
    /// change needs one and none is named.
    pub(crate) fn tamper(&self, tampering: Tampering, subject: Option<Guid>) -> Staged {
        let kinds = [Kind::LoadBalancer, Kind::Endpoint, Kind::Network, Kind::Namespace, Kind::SdnRoute];
        let found = subject.and_then(|id| kinds.into_iter().find(|kind| self.state.has(*kind, &id)).map(|kind| (kind, id)));
        match (tampering, found) {
            (Tampering::LoseObject, Some((kind, id))) => self.lose(kind, id),
            (Tampering::LosePolicies, Some((kind, id))) => self.lose_policies(kind, id),
            (Tampering::DisableRules, Some((Kind::Endpoint, id))) => self.change_endpoint(id, disable_rules),
            (Tampering::BlockPort, Some((Kind::Endpoint, id))) => self.change_endpoint(id, block_port),
            (Tampering::RenewNetwork, _) => {
                let named = found.filter(|(kind, _)| *kind == Kind::Network).map(|(_, id)| id);
                let mut all = self.state.networks.keys().copied();
                let used = self.state.networks.keys().copied().find(|id| self.state.index().endpoints_of(*id).next().is_some());
                named.or(used).or_else(|| all.next()).map_or_else(Staged::default, |id| self.renew_network(id))
            }
            _ => Staged::default(),
        }
    }

    /// Stages the compartment of a namespace that waits for one.
    pub(crate) fn compartment_arrives(&self, id: Guid) -> Staged {
        let waiting = self.state.namespaces.get(&id).filter(|namespace| awaits_compartment(namespace));
        let Some(mut namespace) = waiting.cloned() else { return Staged::default() };
        namespace.namespace_id = self.next_compartment();
        Staged::change(Change::put(id, Object::Namespace(namespace)))
    }

    fn lose(&self, kind: Kind, id: Guid) -> Staged {
        let args = Args { id: Some(id), ..Args::default() };
        self.delete(kind, &args).unwrap_or_else(|_| Staged::change(Change::delete(kind, id)))
    }

    fn lose_policies(&self, kind: Kind, id: Guid) -> Staged {
        match self.state.get(kind, &id) {
            Some(Object::Network(mut network)) => {
                network.policies.clear();
                Staged::change(Change::put(id, Object::Network(network)))
            }
            Some(Object::Endpoint(mut endpoint)) => {
                endpoint.document.policies.clear();
                Staged::change(Change::put(id, Object::Endpoint(endpoint)))
            }
            Some(Object::Balancer(_)) => self.lose(kind, id),
            _ => Staged::default(),
        }
    }

    /// Deletes the network with its endpoints, and makes one of the same name.
    fn renew_network(&self, id: Guid) -> Staged {
        let Some(mut network) = self.state.networks.get(&id).cloned() else { return Staged::default() };
        let mut staged = self.delete_network(id, &network);
        network.id = Guid::random();
        let (new_id, flags) = (network.id, network.flags.0);
        staged.changes.push(Change::put(new_id, Object::Network(network)));
        staged.event(Event::NETWORK_CREATE, new_id, flags, serde_json::Value::Null)
    }

    fn change_endpoint(&self, id: Guid, change: impl FnOnce(&mut Endpoint) -> bool) -> Staged {
        let endpoint = self.state.endpoint(&id).and_then(|mut endpoint| change(&mut endpoint).then_some(endpoint));
        endpoint.map_or_else(Staged::default, |endpoint| Staged::change(Change::put(id, Object::Endpoint(endpoint))))
    }
}

/// The rules of a local endpoint lose their effect; false where there is no such defect.
fn disable_rules(endpoint: &mut Endpoint) -> bool {
    endpoint.defects.unfiltered = !endpoint.document.is_remote();
    endpoint.defects.unfiltered || endpoint.defects.blocked
}

/// The port of an attached endpoint passes nothing; false where there is no port.
fn block_port(endpoint: &mut Endpoint) -> bool {
    endpoint.defects.blocked = endpoint.interface.is_some();
    endpoint.defects.unfiltered || endpoint.defects.blocked
}

impl Staged {
    fn endpoints(&mut self, only: Option<Guid>) -> impl Iterator<Item = &mut Endpoint> {
        self.changes.iter_mut().filter(move |change| only.is_none_or(|only| only == change.id)).filter_map(|change| match &mut change.after {
            Some(Object::Endpoint(endpoint)) => Some(endpoint),
            _ => None,
        })
    }

    /// Attached endpoints get no adapter: they look attached, in the state of those that are not.
    pub(crate) fn leave_out_adapters(&mut self) {
        for endpoint in self.endpoints(None) {
            endpoint.interface = None;
            endpoint.document.state = hcn::EndpointState::CREATED;
        }
    }

    /// The rules of the endpoints that the call writes have no effect; of one of them where `only` names it.
    pub(crate) fn disable_rules(&mut self, only: Option<Guid>) {
        for endpoint in self.endpoints(only) {
            disable_rules(endpoint);
        }
    }

    /// The ports of the endpoints that the call writes pass nothing; of one of them where `only` names it.
    pub(crate) fn block_ports(&mut self, only: Option<Guid>) {
        for endpoint in self.endpoints(only) {
            block_port(endpoint);
        }
    }

    /// The namespaces that the call writes have no compartment yet; one of them where `only` names it. Returns those namespaces.
    pub(crate) fn withhold_compartments(&mut self, only: Option<Guid>) -> Vec<Guid> {
        let mut waiting = Vec::new();
        for change in self.changes.iter_mut().filter(|change| only.is_none_or(|only| only == change.id)) {
            if let Some(Object::Namespace(namespace)) = &mut change.after
                && namespace.namespace_type == NamespaceType::Host
            {
                namespace.namespace_id = 0;
                waiting.push(change.id);
            }
        }
        waiting
    }

    /// No client gets the events of the call.
    pub(crate) fn drop_events(&mut self) {
        self.announced.clear();
        self.events.clear();
    }

    /// The call succeeds without an effect on the state.
    pub(crate) fn drop_changes(&mut self) {
        self.changes.clear();
    }
}
