//! Storage, namespaces and owners, as one scheduling decision sees them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use cluster::{ApiServer, Client, Informer, Key, Selection};
use k8s_openapi::api::{
    apps::v1::{ReplicaSet, StatefulSet},
    core::v1::{Namespace, ReplicationController, Service},
    storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, VolumeAttachment},
};
use kube::Api;

use super::{
    neighbours::{Spread, default_spread},
    profile::{Plugin, Profile},
    rows::PodRow,
};
use crate::storage::{
    csi::{AttachmentRow, CapacityRow, CsiNodeRow, DriverRow},
    rows::{ClaimRow, ClassRow, StorageViews, VolumeRow},
};
use kube_rules::{Labels, Selector};

/// Labels of namespaces.
pub(super) type Spaces = BTreeMap<String, Arc<Labels>>;

/// The informers of it.
#[derive(Clone)]
pub(super) struct Sources {
    pub storage: StorageViews,
    pub spaces: Informer<Labels>,
    pub csi_nodes: Informer<CsiNodeRow>,
    pub drivers: Informer<DriverRow>,
    pub attachments: Informer<AttachmentRow>,
    pub capacities: Informer<CapacityRow>,
    /// The selectors of what pods belong to: pods are spread by them.
    services: Informer<Labels>,
    replication_controllers: Informer<Labels>,
    replica_sets: Informer<Selector>,
    stateful_sets: Informer<Selector>,
}

impl Sources {
    pub fn start(client: &Client, api: &ApiServer) -> Self {
        let all = || Selection::all().of(api);
        let labels = |namespace: &Namespace| Some(namespace.metadata.labels.clone().unwrap_or_default());
        Self {
            storage: StorageViews::start(client, api),
            spaces: Informer::start(Api::<Namespace>::all(client.clone()), all(), labels),
            csi_nodes: Informer::start(Api::<CSINode>::all(client.clone()), all(), |node| Some(CsiNodeRow::new(node))),
            drivers: Informer::start(Api::<CSIDriver>::all(client.clone()), all(), |driver| Some(DriverRow::new(driver))),
            attachments: Informer::start(Api::<VolumeAttachment>::all(client.clone()), all(), |one| Some(AttachmentRow::new(one))),
            capacities: Informer::start(Api::<CSIStorageCapacity>::all(client.clone()), all(), |one| Some(CapacityRow::new(one))),
            services: Informer::start(Api::<Service>::all(client.clone()), all(), |service| {
                service.spec.as_ref()?.selector.clone().filter(|labels| !labels.is_empty())
            }),
            replication_controllers: Informer::start(Api::<ReplicationController>::all(client.clone()), all(), |one| {
                one.spec.as_ref()?.selector.clone()
            }),
            replica_sets: Informer::start(Api::<ReplicaSet>::all(client.clone()), all(), |one| Some(Selector::new(&one.spec.as_ref()?.selector))),
            stateful_sets: Informer::start(Api::<StatefulSet>::all(client.clone()), all(), |one| Some(Selector::new(&one.spec.as_ref()?.selector))),
        }
    }

    /// Whether what is known of storage is complete.
    pub fn are_synced(&self) -> bool {
        let csi = self.csi_nodes.is_synced() && self.drivers.is_synced() && self.attachments.is_synced() && self.capacities.is_synced();
        csi && self.storage.are_synced()
    }

    /// Waits until what pods belong to is known.
    pub async fn owners_synced(&self) {
        self.services.synced().await;
        self.replication_controllers.synced().await;
        self.replica_sets.synced().await;
        self.stateful_sets.synced().await;
    }

    /// What selects a pod and its like: the Services that select it and its controller (upstream: `helper.DefaultSelector`).
    fn selector_of(&self, pod: &PodRow) -> Selector {
        let mut labels = Labels::new();
        for (_, selector) in self.services.in_namespace(&pod.ns) {
            if selector.iter().all(|(key, value)| pod.labels.get(key) == Some(value)) {
                labels.extend(selector.iter().map(|(key, value)| (key.clone(), value.clone())));
            }
        }
        let Some(owner) = &pod.owner else { return Selector::from_labels(&labels) };
        let key = Key::new(&pod.ns, &owner.name);
        let further = match owner.kind.as_str() {
            "ReplicationController" => {
                labels.extend(self.replication_controllers.get(&key).iter().flat_map(|all| all.iter()).map(|(k, v)| (k.clone(), v.clone())));
                None
            }
            "ReplicaSet" => self.replica_sets.get(&key),
            "StatefulSet" => self.stateful_sets.get(&key),
            _ => None,
        };
        let selector = Selector::from_labels(&labels);
        match further {
            Some(further) => selector.and(further.as_ref().clone()),
            None => selector,
        }
    }
}

/// Storage, namespaces and owners, and the volumes that the scheduler assigned but has not written yet.
#[derive(Debug, Default)]
pub(super) struct World {
    pub profile: Arc<Profile>,
    pub claims: BTreeMap<Key, Arc<ClaimRow>>,
    pub volumes: Vec<(Key, Arc<VolumeRow>)>,
    pub classes: BTreeMap<String, Arc<ClassRow>>,
    /// Volumes given to claims that the API does not show yet.
    pub given: HashMap<String, Key>,
    pub spaces: Spaces,
    pub csi_nodes: BTreeMap<String, Arc<CsiNodeRow>>,
    pub drivers: BTreeMap<String, Arc<DriverRow>>,
    pub attachments: Vec<Arc<AttachmentRow>>,
    pub capacities: Vec<Arc<CapacityRow>>,
    /// What selects the pod and its like; empty if nothing does.
    pub siblings: Selector,
}

impl World {
    /// The part that concerns this pod; storage only if it has claims.
    pub fn of(pod: &PodRow, profile: &Arc<Profile>, sources: &Sources, given: &HashMap<String, Key>) -> Self {
        let spread = profile.has(Plugin::PodTopologySpread) || profile.weight(Plugin::PodTopologySpread) > 0;
        let world = Self {
            profile: profile.clone(),
            spaces: sources.spaces.snapshot().into_iter().map(|(key, labels)| (key.name, labels)).collect(),
            siblings: if spread && pod.rules.spreads_by_default() { sources.selector_of(pod) } else { Selector::default() },
            ..Self::default()
        };
        if pod.claims.is_empty() {
            return world;
        }
        let views = &sources.storage;
        let csi_nodes: BTreeMap<_, _> = sources.csi_nodes.snapshot().into_iter().map(|(key, node)| (key.name, node)).collect();
        // The claims of other pods count only where volumes are limited.
        let claims = match csi_nodes.values().any(|node| !node.limits.is_empty()) {
            true => views.claims.snapshot(),
            false => {
                let keys = pod.claims.iter().map(|claim| Key::new(&pod.ns, &claim.name));
                keys.filter_map(|key| views.claims.get(&key).map(|claim| (key, claim))).collect()
            }
        };
        Self {
            claims: claims.into_iter().collect(),
            volumes: views.volumes.snapshot(),
            classes: views.classes.snapshot().into_iter().map(|(key, class)| (key.name, class)).collect(),
            given: given.clone(),
            csi_nodes,
            drivers: sources.drivers.snapshot().into_iter().map(|(key, driver)| (key.name, driver)).collect(),
            attachments: sources.attachments.snapshot().into_iter().map(|(_, row)| row).collect(),
            capacities: sources.capacities.snapshot().into_iter().map(|(_, row)| row).collect(),
            ..world
        }
    }

    pub fn volume(&self, name: &str) -> Option<&VolumeRow> {
        self.volumes.iter().find(|(key, _)| key.name == name).map(|(_, volume)| volume.as_ref())
    }

    /// The spread constraints of a pod that says nothing.
    pub fn spread_defaults(&self) -> Vec<Spread> {
        if self.siblings.is_empty() { Vec::new() } else { default_spread(self.profile.spread_defaults.as_ref(), &self.siblings) }
    }
}
