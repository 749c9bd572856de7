//! Attaches CSI volumes to the nodes whose pods need them, and detaches them when no pod does.
//!
//! Inputs: pods, claims, volumes, CSIDrivers, VolumeAttachments, nodes. Outputs: VolumeAttachments (the drivers' attachers act on them),
//! `status.volumesAttached` of nodes, Events about pods. Mirrors `pkg/controller/volume/attachdetach` with the CSI plug-in.
//! Guarantees: a volume is no longer reported as attached before it is detached; one that is mounted is detached only from a node that is
//! out of service, or that is unhealthy and whose volume nobody has wanted for six minutes; an exclusive volume is attached to one node.
//! Volumes of other kinds and inline volumes are left alone.

mod plan;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::Context as _;
use cluster::{Client, EventRecorder, EventType, Informer, Key, Selection, is_conflict, is_not_found};
use k8s_openapi::api::{
    core::v1::{Node, ObjectReference},
    storage::v1::{CSIDriver, VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec},
};
use kube::{
    Api,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    csi::{AttachmentRow, DriverRow},
    rows::{StorageViews, VolumeRow},
};
use crate::{
    runner::{Next, Queue},
    view::{PodRow, Views},
};
use plan::{Attached, Input, NodeRow, Step, Wanted, unique_name};

/// Says that a node's volumes are attached by a controller.
const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// How soon to look again for a volume that is not known yet.
const SOON: Duration = Duration::from_secs(1);

impl NodeRow {
    fn new(node: &Node) -> Self {
        let annotation = node.metadata.annotations.as_ref().and_then(|all| all.get(MANAGED));
        let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
        let status = node.status.as_ref();
        Self {
            managed: annotation.is_some_and(|value| value == "true"),
            ready: kube_rules::is_node_ready(node),
            out_of_service: taints.into_iter().any(|taint| taint.key == OUT_OF_SERVICE),
            in_use: status.iter().flat_map(|status| status.volumes_in_use.iter().flatten()).cloned().collect(),
            reported: status.iter().flat_map(|status| status.volumes_attached.iter().flatten()).map(|one| one.name.clone()).collect(),
        }
    }
}

#[derive(Default)]
struct State {
    /// Since when volumes of nodes are not wanted any more.
    idle: HashMap<(String, String), Instant>,
    /// Attachments that are on their way.
    pending: HashMap<String, Pending>,
    /// Pods, and why they were told that they do not get a volume yet.
    refused: BTreeSet<(Key, String)>,
}

/// An attachment that is on its way.
#[derive(Default)]
struct Pending {
    /// The last error that was reported.
    error: Option<String>,
    /// Made by us, and not yet seen among the attachments.
    unseen: bool,
}

struct Context {
    client: Client,
    views: Views,
    storage: StorageViews,
    nodes: Informer<NodeRow>,
    drivers: Informer<DriverRow>,
    attachments: Informer<AttachmentRow>,
    events: EventRecorder,
    state: Mutex<State>,
}

/// Runs the controller until `shutdown`.
pub(super) async fn run(client: Client, views: Views, storage: StorageViews, shutdown: CancellationToken) {
    let all = || Selection::all().of(&views.api);
    let nodes = Informer::start(Api::<Node>::all(client.clone()), all(), |node| Some(NodeRow::new(node)));
    let drivers = Informer::start(Api::<CSIDriver>::all(client.clone()), all(), |driver| Some(DriverRow::new(driver)));
    let attachments = Informer::start(Api::<VolumeAttachment>::all(client.clone()), all(), |one| Some(AttachmentRow::new(one)));
    tokio::select! {
        () = async { tokio::join!(nodes.synced(), drivers.synced(), attachments.synced()); } => {}
        () = shutdown.cancelled() => return,
    }
    let events = EventRecorder::new(client.clone(), "attachdetach-controller", "");
    let state = Mutex::default();
    let context = Arc::new(Context { client, views, storage, nodes, drivers, attachments, events, state });
    let queue = Queue::<String>::default();
    watch(&context, &queue);
    queue.run("attachdetach", 4, shutdown, |node| sync(context.clone(), node)).await;
}

fn watch(context: &Context, queue: &Queue<String>) {
    let keys = queue.clone();
    context.nodes.subscribe(move |change| keys.add(change.key.name.clone()));
    let keys = queue.clone();
    context.views.pods.subscribe(move |change| {
        let both = [change.old, change.new].into_iter().flatten();
        keys.extend(both.filter(|pod| !pod.claims.is_empty() && !pod.node.is_empty()).map(|pod| pod.node.clone()));
    });
    let (keys, pods) = (queue.clone(), context.views.pods.clone());
    context.storage.claims.subscribe(move |change| {
        let of_claim = pods.in_namespace(&change.key.ns).into_iter().filter(|(_, pod)| pod.claims.contains(&change.key.name));
        keys.extend(of_claim.map(|(_, pod)| pod.node.clone()).filter(|node| !node.is_empty()));
    });
    let (keys, nodes) = (queue.clone(), context.nodes.clone());
    context.attachments.subscribe(move |change| {
        let both = [change.old, change.new].into_iter().flatten();
        keys.extend(both.map(|row| row.node.clone()));
        // Another node may wait for the volume.
        if change.new.is_none() {
            keys.extend(nodes.snapshot().into_iter().map(|(key, _)| key.name));
        }
    });
    let (keys, nodes) = (queue.clone(), context.nodes.clone());
    context.drivers.subscribe(move |_| keys.extend(nodes.snapshot().into_iter().map(|(key, _)| key.name)));
}

async fn sync(context: Arc<Context>, name: String) -> anyhow::Result<Next> {
    let (wanted, elsewhere, complete) = context.wanted(&name);
    let attachments = context.attached();
    let node = context.nodes.get(Key::cluster(&name));
    let idle = context.idle(&name, &wanted, &attachments);
    let input = Input { name: &name, node: node.as_deref(), wanted: &wanted, attachments: &attachments, elsewhere: &elsewhere, idle: &idle };
    let plan = plan::plan(&input);
    context.announce(&name, &wanted, &attachments);
    context.forget_refusals();
    if !plan.steps.is_empty() {
        tracing::debug!(node = name, "{plan}");
    }
    for step in &plan.steps {
        context.apply(&name, step).await.with_context(|| format!("{step} on node {name}"))?;
    }
    let soon = (!complete).then_some(SOON);
    Ok([plan.recheck, soon].into_iter().flatten().min().map_or(Next::Change, Next::Within))
}

impl Context {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The volumes that pods of a node need, the pods of other nodes by volume, and whether every volume was known.
    fn wanted(&self, node: &str) -> (Vec<Wanted>, BTreeMap<String, Vec<Key>>, bool) {
        let mut here: BTreeMap<String, Wanted> = BTreeMap::new();
        let mut elsewhere: BTreeMap<String, Vec<Key>> = BTreeMap::new();
        let mut complete = true;
        let uses = |pod: &PodRow| !pod.claims.is_empty() && !pod.node.is_empty() && !pod.is_finished();
        for (key, pod) in self.views.pods.snapshot().into_iter().filter(|(_, pod)| uses(pod)) {
            for claim in &pod.claims {
                let Some(claim) = self.storage.claims.get(Key::new(&key.ns, claim)).filter(|claim| claim.is_bound()) else { continue };
                let Some(volume) = self.storage.volumes.get(Key::cluster(&claim.volume)) else {
                    complete = false;
                    continue;
                };
                let Some(csi) = volume.csi.as_ref().filter(|csi| self.attaches(&csi.driver)) else { continue };
                if pod.node == node {
                    let wanted = || Wanted { volume: claim.volume.clone(), csi: csi.clone(), exclusive: is_exclusive(&volume), pods: Vec::new() };
                    here.entry(claim.volume.clone()).or_insert_with(wanted).pods.push(key.clone());
                } else {
                    elsewhere.entry(claim.volume.clone()).or_default().push(key.clone());
                }
            }
        }
        (here.into_values().collect(), elsewhere, complete)
    }

    /// Whether a driver's volumes are attached at all. A driver that says nothing of itself attaches.
    fn attaches(&self, driver: &str) -> bool {
        self.drivers.get(Key::cluster(driver)).is_none_or(|driver| driver.attaches)
    }

    fn attached(&self) -> Vec<Attached> {
        let volume = |row: &AttachmentRow| Some((row.volume.clone()?, self.storage.volumes.get(Key::cluster(row.volume.as_deref()?))?.csi.clone()?));
        let attached = |(key, row): (Key, Arc<AttachmentRow>)| {
            let (volume, csi) = volume(&row)?;
            Some(Attached { name: key.name, csi, volume, row })
        };
        self.attachments.snapshot().into_iter().filter_map(attached).collect()
    }

    /// For how long each volume of the node has not been wanted.
    fn idle(&self, node: &str, wanted: &[Wanted], attachments: &[Attached]) -> BTreeMap<String, Duration> {
        let names: BTreeSet<String> = wanted.iter().map(|one| unique_name(&one.csi)).collect();
        let unwanted = attachments.iter().filter(|one| one.row.node == node).map(|one| unique_name(&one.csi)).filter(|name| !names.contains(name));
        let unwanted: BTreeSet<String> = unwanted.collect();
        let mut state = self.state();
        state.idle.retain(|(other, volume), _| other != node || unwanted.contains(volume));
        let now = Instant::now();
        let since = |volume: String| {
            let since = *state.idle.entry((node.to_owned(), volume.clone())).or_insert(now);
            (volume, now.saturating_duration_since(since))
        };
        unwanted.into_iter().map(since).collect()
    }

    /// Tells pods what became of attachments that were on their way.
    fn announce(&self, node: &str, wanted: &[Wanted], attachments: &[Attached]) {
        let mut state = self.state();
        for attached in attachments.iter().filter(|one| one.row.node == node) {
            let pods = wanted.iter().filter(|one| one.csi == attached.csi).flat_map(|one| &one.pods);
            if attached.row.attached {
                if state.pending.remove(&attached.name).is_some() {
                    let message = format!("AttachVolume.Attach succeeded for volume {:?} ", attached.volume);
                    pods.for_each(|pod| self.tell(pod, EventType::Normal, "SuccessfulAttachVolume", &message));
                }
                continue;
            }
            let error = attached.row.attach_error.clone();
            let last = state.pending.entry(attached.name.clone()).or_default();
            last.unseen = false;
            if let Some(error) = error.filter(|error| last.error.as_ref() != Some(error)) {
                let message = format!("AttachVolume.Attach failed for volume {:?} : {error}", attached.volume);
                pods.for_each(|pod| self.tell(pod, EventType::Warning, "FailedAttachVolume", &message));
                last.error = Some(error);
            }
        }
        state.pending.retain(|name, one| one.unseen || self.attachments.get(Key::cluster(name)).is_some());
    }

    fn forget_refusals(&self) {
        self.state().refused.retain(|(pod, _)| self.views.pods.get(pod).is_some());
    }

    fn tell(&self, pod: &Key, type_: EventType, reason: &str, message: &str) {
        let Some(row) = self.views.pods.get(pod) else { return };
        let object = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(pod.ns.clone()),
            name: Some(pod.name.clone()),
            uid: Some(row.uid.clone()),
            ..Default::default()
        };
        self.events.event(&object, type_, reason, None, message);
    }

    async fn apply(&self, node: &str, step: &Step) -> anyhow::Result<()> {
        match step {
            Step::Report { volumes } => self.report(node, volumes).await,
            Step::Attach { attachment, volume, driver } => self.attach(node, attachment, volume, driver).await,
            Step::Detach { attachment, unique, checked } => self.detach(node, attachment, unique, *checked).await,
            Step::Refuse { pod, message } => {
                // Once a pod and volume: the wait may be long.
                if self.state().refused.insert((pod.clone(), message.clone())) {
                    self.tell(pod, EventType::Warning, "FailedAttachVolume", message);
                }
                Ok(())
            }
        }
    }

    async fn report(&self, node: &str, volumes: &[String]) -> anyhow::Result<()> {
        let volumes: Vec<_> = volumes.iter().map(|name| json!({"name": name, "devicePath": ""})).collect();
        // A merge patch replaces the list as a whole.
        let patch = json!({"status": {"volumesAttached": if volumes.is_empty() { json!(null) } else { json!(volumes) }}});
        let nodes: Api<Node> = Api::all(self.client.clone());
        match nodes.patch_status(node, &PatchParams::default(), &Patch::Merge(patch)).await {
            Err(error) if is_not_found(&error) => Ok(()),
            other => Ok(other.map(|_| ())?),
        }
    }

    async fn attach(&self, node: &str, name: &str, volume: &str, driver: &str) -> anyhow::Result<()> {
        let attachment = VolumeAttachment {
            metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
            spec: VolumeAttachmentSpec {
                attacher: driver.to_owned(),
                node_name: node.to_owned(),
                source: VolumeAttachmentSource { persistent_volume_name: Some(volume.to_owned()), ..VolumeAttachmentSource::default() },
            },
            ..VolumeAttachment::default()
        };
        let attachments: Api<VolumeAttachment> = Api::all(self.client.clone());
        match attachments.create(&PostParams::default(), &attachment).await {
            // It exists.
            Err(error) if is_conflict(&error) => Ok(()),
            other => {
                other?;
                // A quick driver attaches it before it is seen here, and the pod is told all the same.
                self.state().pending.insert(name.to_owned(), Pending { error: None, unseen: true });
                Ok(())
            }
        }
    }

    async fn detach(&self, node: &str, name: &str, unique: &str, checked: bool) -> anyhow::Result<()> {
        if checked {
            let nodes: Api<Node> = Api::all(self.client.clone());
            let live = nodes.get_opt(node).await?.map(|node| NodeRow::new(&node));
            if live.is_some_and(|live| live.in_use.contains(unique)) {
                anyhow::bail!("the node still uses the volume");
            }
        }
        let attachments: Api<VolumeAttachment> = Api::all(self.client.clone());
        match attachments.delete(name, &DeleteParams::default()).await {
            Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(()),
            other => Ok(other.map(|_| ())?),
        }
    }
}

/// Whether a volume must not be on two nodes at once (upstream: `IsMultiAttachAllowed`).
fn is_exclusive(volume: &VolumeRow) -> bool {
    !volume.modes.is_empty() && !volume.modes.iter().any(|mode| mode == "ReadWriteMany" || mode == "ReadOnlyMany")
}
