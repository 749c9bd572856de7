//! Rows of claims, volumes and storage classes, for the controllers, the provisioner and the scheduler.

use std::collections::BTreeMap;

use cluster::{ApiServer, Client, Informer, Key, Selection};
use k8s_openapi::{
    api::{
        core::v1::{CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeClaim, TopologySelectorTerm},
        storage::v1::StorageClass,
    },
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use kube::Api;
use kube_rules::{Labels, NodeSelector, Quantity, Selector};

/// Annotation of a claim whose binding is complete.
pub(crate) const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// Annotation of a claim or volume that a controller bound, and not its author.
pub(crate) const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// The provisioner of a volume.
pub(crate) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// The provisioner that a claim is for, in the present and the old spelling.
pub(crate) const PROVISIONER: [&str; 2] = ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];
/// The node that the scheduler chose for a claim's first pod.
pub(crate) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// The old way to name a class.
const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

/// Holds a claim while pods use it.
pub(crate) const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";
/// Holds a volume while it is bound.
pub(crate) const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";

/// Row of a PersistentVolumeClaim.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ClaimRow {
    pub uid: String,
    pub version: String,
    pub deleting: bool,
    pub protected: bool,
    /// The volume it is bound to, or asks for.
    pub volume: String,
    pub class: String,
    pub modes: Vec<String>,
    pub mode: String,
    pub size: i64,
    /// The size as it was written.
    pub request: String,
    pub selector: Option<Selector>,
    pub phase: String,
    /// The modes and the capacity in its status.
    pub granted: (Vec<String>, BTreeMap<String, ApiQuantity>),
    pub bind_completed: bool,
    pub by_controller: bool,
    pub selected_node: Option<String>,
    pub provisioner: Option<String>,
}

impl ClaimRow {
    pub fn new(claim: &PersistentVolumeClaim) -> Self {
        let (meta, spec) = (&claim.metadata, claim.spec.clone().unwrap_or_default());
        let status = claim.status.clone().unwrap_or_default();
        let annotation = |name: &str| meta.annotations.as_ref().and_then(|all| all.get(name)).cloned();
        let requests = spec.resources.and_then(|resources| resources.requests);
        Self {
            uid: meta.uid.clone().unwrap_or_default(),
            version: meta.resource_version.clone().unwrap_or_default(),
            deleting: meta.deletion_timestamp.is_some(),
            protected: meta.finalizers.iter().flatten().any(|one| one == CLAIM_PROTECTION),
            volume: spec.volume_name.unwrap_or_default(),
            class: annotation(CLASS_ANNOTATION).or(spec.storage_class_name).unwrap_or_default(),
            modes: spec.access_modes.unwrap_or_default(),
            mode: spec.volume_mode.unwrap_or_else(|| "Filesystem".to_owned()),
            size: requests.as_ref().map(storage_size).unwrap_or_default(),
            request: requests.and_then(|mut amounts| amounts.remove("storage")).map(|amount| amount.0).unwrap_or_default(),
            selector: spec.selector.as_ref().map(Selector::new),
            phase: status.phase.unwrap_or_default(),
            granted: (status.access_modes.unwrap_or_default(), status.capacity.unwrap_or_default()),
            bind_completed: annotation(BIND_COMPLETED).is_some(),
            by_controller: annotation(BOUND_BY_CONTROLLER).is_some(),
            selected_node: annotation(SELECTED_NODE).filter(|node| !node.is_empty()),
            provisioner: PROVISIONER.iter().find_map(|name| annotation(name)),
        }
    }

    /// Whether nothing is left to do for its binding.
    pub fn is_bound(&self) -> bool {
        !self.volume.is_empty() && self.bind_completed
    }
}

fn storage_size(amounts: &BTreeMap<String, ApiQuantity>) -> i64 {
    // The API server refuses quantities that cannot be read.
    amounts.get("storage").and_then(|amount| Quantity::parse(&amount.0).ok()).map(Quantity::value).unwrap_or_default()
}

/// Whose a volume is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClaimRef {
    pub key: Key,
    /// Empty when a user reserved the volume for a claim of that name.
    pub uid: String,
}

/// Row of a PersistentVolume.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct VolumeRow {
    pub uid: String,
    pub version: String,
    pub deleting: bool,
    pub finalizers: Vec<String>,
    pub labels: Labels,
    pub class: String,
    pub modes: Vec<String>,
    pub mode: String,
    pub size: i64,
    pub capacity: BTreeMap<String, ApiQuantity>,
    pub policy: String,
    /// None: every node reaches it.
    pub affinity: Option<NodeSelector>,
    pub claim: Option<ClaimRef>,
    pub by_controller: bool,
    pub provisioned_by: Option<String>,
    /// The node of a volume that the local provisioner made.
    pub node: Option<String>,
    pub host_path: Option<String>,
    /// Its driver and what the driver calls it, if it is a CSI volume.
    pub csi: Option<CsiSource>,
    pub phase: String,
}

/// A CSI volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CsiSource {
    pub driver: String,
    pub handle: String,
}

/// A cloud's disk in the terms of the driver that mounts it today.
fn migrated(volume: &PersistentVolume) -> Option<CSIPersistentVolumeSource> {
    kube_rules::csi::migration::persistent(volume).ok().flatten()?.spec?.csi
}

impl VolumeRow {
    pub fn new(volume: &PersistentVolume) -> Self {
        let (meta, spec) = (&volume.metadata, volume.spec.clone().unwrap_or_default());
        let annotation = |name: &str| meta.annotations.as_ref().and_then(|all| all.get(name)).cloned();
        let affinity = spec.node_affinity.and_then(|affinity| affinity.required);
        let claim = spec.claim_ref.map(|claim| ClaimRef {
            key: Key::new(claim.namespace.unwrap_or_default(), claim.name.unwrap_or_default()),
            uid: claim.uid.unwrap_or_default(),
        });
        let capacity = spec.capacity.unwrap_or_default();
        Self {
            uid: meta.uid.clone().unwrap_or_default(),
            version: meta.resource_version.clone().unwrap_or_default(),
            deleting: meta.deletion_timestamp.is_some(),
            finalizers: meta.finalizers.clone().unwrap_or_default(),
            labels: meta.labels.clone().unwrap_or_default(),
            class: annotation(CLASS_ANNOTATION).or(spec.storage_class_name).unwrap_or_default(),
            modes: spec.access_modes.unwrap_or_default(),
            mode: spec.volume_mode.unwrap_or_else(|| "Filesystem".to_owned()),
            size: storage_size(&capacity),
            capacity,
            policy: spec.persistent_volume_reclaim_policy.unwrap_or_else(|| "Retain".to_owned()),
            affinity: affinity.as_ref().map(NodeSelector::new),
            claim,
            by_controller: annotation(BOUND_BY_CONTROLLER).is_some(),
            provisioned_by: annotation(PROVISIONED_BY),
            node: annotation(super::local::NODE_ANNOTATION),
            host_path: spec.host_path.map(|source| source.path),
            csi: spec.csi.or_else(|| migrated(volume)).map(|source| CsiSource { driver: source.driver, handle: source.volume_handle }),
            phase: volume.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default(),
        }
    }

    /// Whether a node with these labels reaches it.
    pub fn reaches(&self, labels: &Labels) -> bool {
        self.affinity.as_ref().is_none_or(|affinity| affinity.matches_volume(labels))
    }

    /// Whether it is reserved for, or bound to, this claim.
    pub fn is_for(&self, key: &Key, claim: &ClaimRow) -> bool {
        self.claim.as_ref().is_some_and(|one| one.key == *key && (one.uid.is_empty() || one.uid == claim.uid))
    }
}

/// Row of a StorageClass.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ClassRow {
    pub provisioner: String,
    /// Nothing is bound or made before a pod needs it.
    pub waits: bool,
    pub policy: String,
    /// Where volumes may be made: one of these terms, all of whose labels have one of their values; none means anywhere.
    topologies: Vec<Vec<(String, Vec<String>)>>,
}

impl ClassRow {
    pub fn new(class: &StorageClass) -> Self {
        let term = |term: &TopologySelectorTerm| {
            let labels = term.match_label_expressions.iter().flatten();
            labels.map(|label| (label.key.clone(), label.values.clone())).collect()
        };
        Self {
            provisioner: class.provisioner.clone(),
            waits: class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"),
            policy: class.reclaim_policy.clone().unwrap_or_else(|| "Delete".to_owned()),
            topologies: class.allowed_topologies.iter().flatten().map(term).collect(),
        }
    }

    /// Whether the class has a provisioner.
    pub fn provisions(&self) -> bool {
        !matches!(self.provisioner.as_str(), "" | "kubernetes.io/no-provisioner")
    }

    /// Whether volumes may be made for a node with these labels.
    pub fn allows(&self, labels: &Labels) -> bool {
        let fits = |term: &Vec<(String, Vec<String>)>| {
            !term.is_empty() && term.iter().all(|(key, values)| labels.get(key).is_some_and(|value| values.contains(value)))
        };
        self.topologies.is_empty() || self.topologies.iter().any(fits)
    }
}

/// The informers of storage.
#[derive(Debug, Clone)]
pub(crate) struct StorageViews {
    pub claims: Informer<ClaimRow>,
    pub volumes: Informer<VolumeRow>,
    pub classes: Informer<ClassRow>,
}

impl StorageViews {
    /// Starts all three.
    pub fn start(client: &Client, api: &ApiServer) -> Self {
        let all = || Selection::all().of(api);
        Self {
            claims: Informer::start(Api::<PersistentVolumeClaim>::all(client.clone()), all(), |claim| Some(ClaimRow::new(claim))),
            volumes: Informer::start(Api::<PersistentVolume>::all(client.clone()), all(), |volume| Some(VolumeRow::new(volume))),
            classes: Informer::start(Api::<StorageClass>::all(client.clone()), all(), |class| Some(ClassRow::new(class))),
        }
    }

    /// Waits until each has its first list.
    pub async fn synced(&self) {
        self.claims.synced().await;
        self.volumes.synced().await;
        self.classes.synced().await;
    }

    /// Whether each has its first list.
    pub fn are_synced(&self) -> bool {
        self.claims.is_synced() && self.volumes.is_synced() && self.classes.is_synced()
    }

    /// A claim's class, if it exists.
    pub fn class_of(&self, claim: &ClaimRow) -> Option<std::sync::Arc<ClassRow>> {
        self.classes.get(Key::cluster(&claim.class))
    }
}
