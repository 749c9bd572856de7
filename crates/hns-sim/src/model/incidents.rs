//! Changes of objects behind their owners' backs.

use hcn::{Args, Event, Guid, Kind};

use super::{Context, Staged};
use crate::compile::awaits_compartment;
use crate::faults::{Defect, Incident};
use crate::state::{Change, Endpoint, Object};

impl Context<'_> {
    /// What an incident does to `subject`, whatever kind of object that is; to the first network where it needs one and none is named.
    pub(crate) fn incident(&self, incident: Incident, subject: Option<Guid>) -> Staged {
        let kinds = [Kind::LoadBalancer, Kind::Endpoint, Kind::Network, Kind::Namespace, Kind::SdnRoute];
        let found = subject.and_then(|id| kinds.into_iter().find(|kind| self.state.has(*kind, &id)).map(|kind| (kind, id)));
        match (incident, found) {
            (Incident::LoseObject, Some((kind, id))) => self.lose(kind, id),
            (Incident::LosePolicies, Some((kind, id))) => self.lose_policies(kind, id),
            (Incident::Defect(defect), Some((Kind::Endpoint, id))) => {
                let endpoint = self.state.endpoint(&id).and_then(|mut endpoint| add_defect(&mut endpoint, defect).then_some(endpoint));
                endpoint.map_or_else(Staged::default, |endpoint| Staged::change(Change::put(id, Object::Endpoint(endpoint))))
            }
            (Incident::NewNetwork, _) => {
                let named = found.filter(|(kind, _)| *kind == Kind::Network).map(|(_, id)| id);
                named.or_else(|| self.state.networks.keys().next().copied()).map_or_else(Staged::default, |id| self.renew_network(id))
            }
            _ => Staged::default(),
        }
    }

    /// The compartment of a namespace that waits for one is there.
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

    /// The network goes with its endpoints, and one of the same name is there.
    fn renew_network(&self, id: Guid) -> Staged {
        let Some(mut network) = self.state.networks.get(&id).cloned() else { return Staged::default() };
        let mut staged = self.delete_network(id, &network);
        network.id = Guid::random();
        let (new_id, flags) = (network.id, network.flags.0);
        staged.changes.push(Change::put(new_id, Object::Network(network)));
        staged.event(Event::NETWORK_CREATE, new_id, flags, serde_json::Value::Null)
    }
}

/// Gives an endpoint a defect; says whether it can have it.
fn add_defect(endpoint: &mut Endpoint, defect: Defect) -> bool {
    match defect {
        Defect::Rules => endpoint.defects.unfiltered = !endpoint.document.is_remote(),
        // An endpoint without an adapter has no port.
        Defect::Port => endpoint.defects.blocked = endpoint.interface.is_some(),
        Defect::Compartment => return false,
    }
    endpoint.defects.unfiltered || endpoint.defects.blocked
}

impl Staged {
    /// Gives what the call makes a defect, or of it the object that is named. Answers the namespaces that wait for their compartments.
    pub(crate) fn add_defect(&mut self, defect: Defect, only: Option<Guid>) -> Vec<Guid> {
        let mut waiting = Vec::new();
        for change in self.changes.iter_mut().filter(|change| only.is_none_or(|only| only == change.id)) {
            match &mut change.after {
                Some(Object::Endpoint(endpoint)) => drop(add_defect(endpoint, defect)),
                Some(Object::Namespace(namespace)) if defect == Defect::Compartment && namespace.namespace_type == hcn::NamespaceType::Host => {
                    namespace.namespace_id = 0;
                    waiting.push(change.id);
                }
                _ => {}
            }
        }
        waiting
    }
}
