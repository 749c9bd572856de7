//! The class `mullion-local`: volumes that are directories on the node of their first pod.
//!
//! Inputs: claims, volumes, classes, nodes; a [`LocalVolumes`] that reaches the nodes' disks. Outputs: the class itself, volumes, Events.
//! It behaves as an external provisioner does (`sig-storage-lib-external-provisioner`): it makes a volume for a claim once the scheduler
//! chose a node, and removes volume and directory once the claim is gone.
//! Guarantees: a directory's path follows from the node's system and the volume's name alone, never from what users write; a volume's
//! object outlives its directory (a finalizer holds it).

use std::{fmt, io, sync::Arc, time::Duration};

use anyhow::Context as _;
use backoff::Backoff;
use cluster::{ApiServer, Client, EventRecorder, EventType, Informer, Key, Selection, is_conflict, is_not_found, update_with_retry};
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::{Value, json};
use thiserror_ext::AsReport as _;
use tokio_util::sync::CancellationToken;

use super::{
    Work, reference,
    rows::{ClaimRow, ClassRow, PROVISIONED_BY, SELECTED_NODE, StorageViews, VolumeRow},
};
use crate::runner::{Next, Queue};

/// Name of the provisioner of our class.
pub(crate) const PROVISIONER: &str = "mullion.io/local";
/// The class that claims get which ask for none.
const CLASS: &str = "mullion-local";
/// The node of a volume of ours.
pub(crate) const NODE_ANNOTATION: &str = "mullion.io/node";
/// Holds a volume until its directory is gone (the name that external provisioners share).
const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// Makes and removes directories on nodes. Both may wait for a disk, so they are called from threads that may.
pub trait LocalVolumes: Send + Sync + 'static {
    /// Makes `path`, in the node's own form, on `node`. A directory that is there already is fine.
    ///
    /// # Errors
    /// The error of the operating system, or that the node cannot be reached.
    fn create(&self, node: &str, path: &str) -> io::Result<()>;

    /// Removes `path` on `node` with all that is in it. Nothing being there is fine.
    ///
    /// # Errors
    /// The error of the operating system, or that the node cannot be reached.
    fn remove(&self, node: &str, path: &str) -> io::Result<()>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct NodeRow {
    windows: bool,
    hostname: String,
}

impl NodeRow {
    fn new(node: &Node) -> Self {
        let label = |name: &str| node.metadata.labels.as_ref().and_then(|all| all.get(name));
        let name = node.metadata.name.clone().unwrap_or_default();
        Self {
            windows: label("kubernetes.io/os").is_some_and(|os| os == "windows"),
            hostname: label("kubernetes.io/hostname").cloned().unwrap_or(name),
        }
    }
}

struct Context {
    client: Client,
    storage: StorageViews,
    nodes: Informer<NodeRow>,
    disks: Arc<dyn LocalVolumes>,
    events: EventRecorder,
}

/// Runs until `shutdown`.
pub(crate) async fn run(client: Client, api: &ApiServer, disks: Arc<dyn LocalVolumes>, shutdown: CancellationToken) {
    let storage = StorageViews::start(&client, api);
    let nodes = Informer::start(Api::<Node>::all(client.clone()), Selection::all().of(api), |node| Some(NodeRow::new(node)));
    let ready = async {
        publish_class(&client).await;
        tokio::join!(storage.synced(), nodes.synced());
    };
    tokio::select! {
        () = ready => {}
        () = shutdown.cancelled() => return,
    }
    let queue = Queue::<Work>::default();
    let keys = queue.clone();
    storage.claims.subscribe(move |change| {
        if change.new.is_some() {
            keys.add(Work::Claim(change.key.clone()));
        }
    });
    let keys = queue.clone();
    storage.volumes.subscribe(move |change| {
        if change.new.is_some_and(|volume| is_ours(volume)) {
            keys.add(Work::Volume(change.key.name.clone()));
        }
    });
    let (keys, all) = (queue.clone(), storage.clone());
    nodes.subscribe(move |_| {
        keys.extend(
            all.claims
                .snapshot()
                .into_iter()
                .filter(|(_, claim)| claim.selected_node.is_some() && !claim.is_bound())
                .map(|(key, _)| Work::Claim(key)),
        );
        keys.extend(
            all.volumes
                .snapshot()
                .into_iter()
                .filter(|(_, volume)| is_ours(volume) && volume.phase == "Released")
                .map(|(key, _)| Work::Volume(key.name)),
        );
    });
    let events = EventRecorder::new(client.clone(), PROVISIONER, "");
    let context = Arc::new(Context { client, storage, nodes, disks, events });
    queue.run("localvolumes", 2, shutdown, |work| sync(context.clone(), work)).await;
}

/// Makes the class, unless there is one of its name: a user may have changed it.
async fn publish_class(client: &Client) {
    let class = json!({
        "metadata": {"name": CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": PROVISIONER, "reclaimPolicy": "Delete", "volumeBindingMode": "WaitForFirstConsumer",
    });
    let Ok(class) = serde_json::from_value::<StorageClass>(class) else { return };
    let api: Api<StorageClass> = Api::all(client.clone());
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
    loop {
        match api.create(&PostParams::default(), &class).await {
            Ok(_) => return,
            Err(error) if is_conflict(&error) => return,
            Err(error) if backoff.attempts() == 5 => {
                tracing::warn!(error = %error.as_report(), "the storage class {CLASS} could not be made; trying again");
            }
            Err(error) => tracing::debug!(error = %error.as_report(), "making the storage class {CLASS} failed; trying again"),
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

fn is_ours(volume: &VolumeRow) -> bool {
    volume.provisioned_by.as_deref() == Some(PROVISIONER)
}

/// The directory of a volume, in the form of the node's system.
fn directory(windows: bool, volume: &str) -> String {
    if windows { format!(r"C:\var\lib\mullion\volumes\{volume}") } else { format!("/var/lib/mullion/volumes/{volume}") }
}

/// Actions for a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Provision {
    /// Nothing, or not our business.
    Leave,
    /// Make a volume on this node.
    Make { node: String },
    /// The node is gone: let the scheduler choose again.
    ChooseAgain { node: String },
    /// It asks for what there is not.
    Refuse { why: &'static str },
}

impl fmt::Display for Provision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leave => f.write_str("leave"),
            Self::Make { node } => write!(f, "make a volume on {node}"),
            Self::ChooseAgain { node } => write!(f, "{node} is gone, choose again"),
            Self::Refuse { why } => write!(f, "refuse: {why}"),
        }
    }
}

/// Action for a claim of our class; `exists`: whether a node exists.
fn provision(claim: &ClaimRow, class: Option<&ClassRow>, exists: impl Fn(&str) -> bool) -> Provision {
    let Some(class) = class.filter(|class| class.provisioner == PROVISIONER) else { return Provision::Leave };
    if claim.deleting || !claim.volume.is_empty() || claim.provisioner.as_deref() != Some(PROVISIONER) {
        return Provision::Leave;
    }
    let refuse = |why| Provision::Refuse { why };
    if claim.mode != "Filesystem" {
        return refuse("mullion.io/local makes directories: only volumeMode Filesystem is possible");
    }
    if claim.selector.is_some() {
        return refuse("claim.spec.selector is not supported for dynamically made volumes");
    }
    if claim.modes.iter().any(|mode| !matches!(mode.as_str(), "ReadWriteOnce" | "ReadWriteOncePod")) {
        return refuse("a mullion.io/local volume is on one node: only ReadWriteOnce and ReadWriteOncePod are possible");
    }
    match &claim.selected_node {
        Some(node) if exists(node) => Provision::Make { node: node.clone() },
        Some(node) => Provision::ChooseAgain { node: node.clone() },
        None if class.waits => Provision::Leave,
        None => refuse("mullion.io/local volumes need a node: use a class with volumeBindingMode WaitForFirstConsumer"),
    }
}

/// Actions for a volume of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Removal {
    Leave,
    /// Remove the directory and the object.
    All,
    /// The directory is to stay: only let the object go.
    LetGo,
}

fn removal(volume: &VolumeRow) -> Removal {
    let free = matches!(volume.phase.as_str(), "Released" | "Failed");
    match (free, volume.policy.as_str(), volume.deleting) {
        (true, "Delete", _) => Removal::All,
        (_, policy, true) if policy != "Delete" && volume.phase != "Bound" => Removal::LetGo,
        _ => Removal::Leave,
    }
}

async fn sync(context: Arc<Context>, work: Work) -> anyhow::Result<Next> {
    match &work {
        Work::Claim(key) => {
            let Some(claim) = context.storage.claims.get(key) else { return Ok(Next::Change) };
            let class = context.storage.class_of(&claim);
            let step = provision(&claim, class.as_deref(), |node| context.nodes.get(Key::cluster(node)).is_some());
            if step != Provision::Leave {
                tracing::debug!(claim = %key, "{step}");
            }
            context.provide(key, &claim, class.as_deref(), step).await
        }
        Work::Volume(name) => {
            let Some(volume) = context.storage.volumes.get(Key::cluster(name)).filter(|volume| is_ours(volume)) else { return Ok(Next::Change) };
            match removal(&volume) {
                Removal::Leave => Ok(Next::Change),
                Removal::All => context.remove(name, &volume).await,
                Removal::LetGo => context.let_go(name).await,
            }
        }
    }
}

impl Context {
    async fn provide(&self, key: &Key, claim: &ClaimRow, class: Option<&ClassRow>, step: Provision) -> anyhow::Result<Next> {
        let object = reference("PersistentVolumeClaim", key, &claim.uid);
        let fail = |why: &str| {
            let message = format!("failed to provision volume with StorageClass {:?}: {why}", claim.class);
            self.events.event(&object, EventType::Warning, "ProvisioningFailed", None, message);
        };
        match step {
            Provision::Leave => Ok(Next::Change),
            Provision::Refuse { why } => {
                fail(why);
                Ok(Next::Change)
            }
            Provision::ChooseAgain { node } => {
                fail(&format!("node {node:?} is gone"));
                let annotations = json!({SELECTED_NODE: Value::Null});
                let patch = json!({"metadata": {"uid": claim.uid, "resourceVersion": claim.version, "annotations": annotations}});
                let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &key.ns);
                match api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await {
                    Err(error) if !is_not_found(&error) && !is_conflict(&error) => Err(error).context("letting the scheduler choose again"),
                    _ => Ok(Next::Change),
                }
            }
            Provision::Make { node } => {
                let message = format!("External provisioner is provisioning volume for claim \"{key}\"");
                self.events.event(&object, EventType::Normal, "Provisioning", None, message);
                match self.make(key, claim, class, &node).await {
                    Ok(volume) => {
                        let message = format!("Successfully provisioned volume {volume}");
                        self.events.event(&object, EventType::Normal, "ProvisioningSucceeded", None, message);
                        Ok(Next::Change)
                    }
                    Err(error) => {
                        fail(&error.to_report_string());
                        Err(error)
                    }
                }
            }
        }
    }

    async fn make(&self, key: &Key, claim: &ClaimRow, class: Option<&ClassRow>, node: &str) -> anyhow::Result<String> {
        let row = self.nodes.get(Key::cluster(node)).with_context(|| format!("node {node:?} is gone"))?;
        let name = format!("pvc-{}", claim.uid);
        let path = directory(row.windows, &name);
        self.on_disk(node, &path, |disks, node, path| disks.create(node, path)).await.with_context(|| format!("making {path} on {node}"))?;
        let volume = object(key, claim, class, node, &row.hostname, &path)?;
        match Api::<PersistentVolume>::all(self.client.clone()).create(&PostParams::default(), &volume).await {
            // Made by an earlier attempt.
            Err(error) if is_conflict(&error) => Ok(name),
            other => other.map(|_| name).context("creating the volume"),
        }
    }

    async fn on_disk<F>(&self, node: &str, path: &str, work: F) -> io::Result<()>
    where
        F: FnOnce(&dyn LocalVolumes, &str, &str) -> io::Result<()> + Send + 'static,
    {
        let (disks, node, path) = (self.disks.clone(), node.to_owned(), path.to_owned());
        tokio::task::spawn_blocking(move || work(disks.as_ref(), &node, &path)).await.map_err(io::Error::other)?
    }

    async fn remove(&self, name: &str, volume: &VolumeRow) -> anyhow::Result<Next> {
        let windows = volume.host_path.as_ref().is_some_and(|path| path.as_bytes().get(1) == Some(&b':'));
        let (node, path) = (volume.node.as_deref().unwrap_or_default(), directory(windows, name));
        let fail = |why: &str| {
            let message = format!("removing {path} on node {node:?} failed: {why}");
            let object = reference("PersistentVolume", &Key::cluster(name), &volume.uid);
            self.events.event(&object, EventType::Warning, "VolumeFailedDelete", None, message.as_str());
            message
        };
        // The annotation may hold any text: only an existing node counts.
        if self.nodes.get(Key::cluster(node)).is_none() {
            fail("there is no such node; it will be done when the node is back");
            return Ok(Next::Change);
        }
        if let Err(error) = self.on_disk(node, &path, |disks, node, path| disks.remove(node, path)).await {
            anyhow::bail!(fail(&error.to_string()));
        }
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        let preconditions = Some(Preconditions { uid: Some(volume.uid.clone()), resource_version: None });
        match api.delete(name, &DeleteParams { preconditions, ..DeleteParams::default() }).await {
            Err(error) if !is_not_found(&error) && !is_conflict(&error) => return Err(error).with_context(|| format!("deleting {name}")),
            _ => {}
        }
        self.let_go(name).await
    }

    /// Removes our finalizer from a volume that is being deleted.
    async fn let_go(&self, name: &str) -> anyhow::Result<Next> {
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        let written = update_with_retry(&api, name, |volume| {
            let finalizers = volume.metadata.finalizers.get_or_insert_default();
            let before = finalizers.len();
            finalizers.retain(|one| one != FINALIZER);
            finalizers.len() != before
        })
        .await;
        match written {
            Err(cluster::Error::Request { source, .. }) if is_not_found(&source) => Ok(Next::Change),
            other => other.map(|_| Next::Change).with_context(|| format!("letting {name} go")),
        }
    }
}

/// The volume for a claim, a directory of this path on this node.
fn object(key: &Key, claim: &ClaimRow, class: Option<&ClassRow>, node: &str, hostname: &str, path: &str) -> anyhow::Result<PersistentVolume> {
    let on_node = json!({"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [hostname]}]});
    let volume = json!({
        "metadata": {
            "name": format!("pvc-{}", claim.uid),
            "annotations": {PROVISIONED_BY: PROVISIONER, NODE_ANNOTATION: node},
            "finalizers": [FINALIZER],
        },
        "spec": {
            "capacity": {"storage": claim.request},
            "accessModes": claim.modes,
            "persistentVolumeReclaimPolicy": class.map_or("Delete", |class| class.policy.as_str()),
            "storageClassName": claim.class,
            "volumeMode": "Filesystem",
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": key.ns, "name": key.name,
                "uid": claim.uid, "resourceVersion": claim.version,
            },
            "hostPath": {"path": path, "type": "DirectoryOrCreate"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [on_node]}},
        },
    });
    serde_json::from_value(volume).context("building the volume")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::testing::{claim, class, volume};

    #[test]
    fn claims_get_local_volumes() {
        let asked = |change: fn(&mut ClaimRow)| {
            claim(|row| {
                row.provisioner = Some(PROVISIONER.into());
                row.selected_node = Some("win01".into());
                change(row);
            })
        };
        let ours = class(PROVISIONER, true);
        for (what, row, class, expected) in [
            ("a volume on the chosen node", asked(|_| {}), Some(ours.clone()), "make a volume on win01"),
            ("nothing before a node is chosen", asked(|row| row.selected_node = None), Some(ours.clone()), "leave"),
            ("another choice", asked(|row| row.selected_node = Some("gone".into())), Some(ours.clone()), "gone is gone, choose again"),
            ("nothing twice", asked(|row| row.volume = "v".into()), Some(ours.clone()), "leave"),
            ("nothing from us", asked(|_| {}), Some(class("other.io/disk", true)), "leave"),
            ("nothing without being asked", claim(|row| row.selected_node = Some("win01".into())), Some(ours.clone()), "leave"),
            (
                "no blocks",
                asked(|row| row.mode = "Block".into()),
                Some(ours.clone()),
                "refuse: mullion.io/local makes directories: only volumeMode Filesystem is possible",
            ),
            (
                "no sharing between nodes",
                asked(|row| row.modes = vec!["ReadWriteMany".into()]),
                Some(ours),
                "refuse: a mullion.io/local volume is on one node: only ReadWriteOnce and ReadWriteOncePod are possible",
            ),
            (
                "not without a node",
                asked(|row| row.selected_node = None),
                Some(class(PROVISIONER, false)),
                "refuse: mullion.io/local volumes need a node: use a class with volumeBindingMode WaitForFirstConsumer",
            ),
        ] {
            assert_eq!(provision(&row, class.as_deref(), |node| node == "win01").to_string(), expected, "{what}");
        }
    }

    #[test]
    fn local_volumes_are_removed_after_their_claim() {
        for (phase, policy, deleting, expected) in [
            ("Bound", "Delete", false, Removal::Leave),
            ("Bound", "Delete", true, Removal::Leave),
            ("Released", "Delete", false, Removal::All),
            ("Released", "Delete", true, Removal::All),
            ("Released", "Retain", false, Removal::Leave),
            ("Released", "Retain", true, Removal::LetGo),
            ("Bound", "Retain", true, Removal::Leave),
        ] {
            let (_, row) = volume("pvc-1", |row| {
                row.phase = phase.into();
                row.policy = policy.into();
                row.deleting = deleting;
            });
            assert_eq!(removal(&row), expected, "{phase} {policy} {deleting}");
        }
    }

    #[test]
    fn paths_are_those_of_the_nodes_system() {
        assert_eq!(directory(true, "pvc-1"), r"C:\var\lib\mullion\volumes\pvc-1");
        assert_eq!(directory(false, "pvc-1"), "/var/lib/mullion/volumes/pvc-1");
        let volume = object(&Key::new("a", "data"), &claim(|row| row.request = "1Gi".into()), None, "win01", "WIN01", r"C:\v").unwrap();
        let row = VolumeRow::new(&volume);
        assert!(row.reaches(&[("kubernetes.io/hostname".to_owned(), "WIN01".to_owned())].into()));
        assert!(!row.reaches(&[("kubernetes.io/hostname".to_owned(), "win02".to_owned())].into()));
        assert_eq!((row.node.as_deref(), row.size), (Some("win01"), 1 << 30));
    }
}
