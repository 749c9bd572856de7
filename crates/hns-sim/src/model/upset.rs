//! What faults do to objects behind their owners' backs.

use hcn::{Args, Guid, Kind};

use super::{Context, Staged};
use crate::faults::Upset;
use crate::state::{Change, Object};

impl Context<'_> {
    /// What an upset does to `subject`, whatever kind of object that is; to the first network where it needs one and none is named.
    pub(crate) fn upset(&self, upset: Upset, subject: Option<Guid>) -> Staged {
        let kinds = [Kind::LoadBalancer, Kind::Endpoint, Kind::Network, Kind::Namespace, Kind::SdnRoute];
        let found = subject.and_then(|id| kinds.into_iter().find(|kind| self.state.has(*kind, &id)).map(|kind| (kind, id)));
        match (upset, found) {
            (Upset::LoseObject, Some((kind, id))) => self.lose(kind, id),
            (Upset::LosePolicies, Some((kind, id))) => self.lose_policies(kind, id),
            (Upset::NewNetwork, _) => {
                let named = found.filter(|(kind, _)| *kind == Kind::Network).map(|(_, id)| id);
                named.or_else(|| self.state.networks.keys().next().copied()).map_or_else(Staged::default, |id| self.renew_network(id))
            }
            _ => Staged::default(),
        }
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
        staged.changes.push(Change::put(network.id, Object::Network(network)));
        staged
    }
}
