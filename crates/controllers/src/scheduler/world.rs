//! Storage and namespaces, as one scheduling decision sees them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use cluster::{ApiServer, Client, Informer, Key, Selection};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;

use super::rows::PodRow;
use crate::storage::rows::{ClaimRow, ClassRow, StorageViews, VolumeRow};
use kube_rules::Labels;

/// Labels of namespaces.
pub(super) type Spaces = BTreeMap<String, Arc<Labels>>;

/// The informers of it.
#[derive(Clone)]
pub(super) struct Sources {
    pub storage: StorageViews,
    pub spaces: Informer<Labels>,
}

impl Sources {
    pub fn start(client: &Client, api: &ApiServer) -> Self {
        let labels = |namespace: &Namespace| Some(namespace.metadata.labels.clone().unwrap_or_default());
        Self {
            storage: StorageViews::start(client, api),
            spaces: Informer::start(Api::<Namespace>::all(client.clone()), Selection::all().of(api), labels),
        }
    }
}

/// Storage and namespaces, and the volumes that the scheduler assigned but has not written yet.
#[derive(Debug, Default)]
pub(super) struct World {
    pub claims: BTreeMap<Key, Arc<ClaimRow>>,
    pub volumes: Vec<(Key, Arc<VolumeRow>)>,
    pub classes: BTreeMap<String, Arc<ClassRow>>,
    /// Volumes given to claims that the API does not show yet.
    pub given: HashMap<String, Key>,
    pub spaces: Spaces,
}

impl World {
    /// The part that concerns this pod; storage only if it has claims.
    pub fn of(pod: &PodRow, sources: &Sources, given: &HashMap<String, Key>) -> Self {
        let spaces = sources.spaces.snapshot().into_iter().map(|(key, labels)| (key.name, labels)).collect();
        if pod.claims.is_empty() {
            return Self { spaces, ..Self::default() };
        }
        let (views, keys) = (&sources.storage, pod.claims.iter().map(|claim| Key::new(&pod.ns, &claim.name)));
        Self {
            claims: keys.filter_map(|key| views.claims.get(&key).map(|claim| (key, claim))).collect(),
            volumes: views.volumes.snapshot(),
            classes: views.classes.snapshot().into_iter().map(|(key, class)| (key.name, class)).collect(),
            given: given.clone(),
            spaces,
        }
    }

    pub fn volume(&self, name: &str) -> Option<&VolumeRow> {
        self.volumes.iter().find(|(key, _)| key.name == name).map(|(_, volume)| volume.as_ref())
    }
}
