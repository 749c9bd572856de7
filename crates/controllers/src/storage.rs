//! Claims and volumes: binds claims to volumes, writes the status of both, protects both while they are in use, and attaches CSI volumes to
//! nodes ([`attach`]).
//!
//! Inputs: claims, volumes, storage classes, pods. Outputs: bindings on both sides, phases, finalizers, Events; requests to provisioners, which make
//! volumes of a class ([`local`] is one of them). Mirrors `pkg/controller/volume/persistentvolume`, `pvcprotection`, `pvprotection` and
//! `ephemeral`.
//! Guarantees: every step of a binding is written over the version it was decided from, and a half-written binding is completed; a volume
//! is released only after its claim was looked for in the API itself.
//! It does not recycle volumes, delete volumes without a provisioner, or expand claims.

mod attach;
pub(crate) mod csi;
mod ephemeral;
pub(crate) mod local;
pub(crate) mod matching;
mod plan;
mod protection;
pub(crate) mod rows;
#[cfg(test)]
pub(crate) mod testing;

use std::sync::Arc;

use anyhow::Context as _;
use cluster::{Client, EventRecorder, Key, is_conflict, is_not_found};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    runner::{Next, Queue},
    view::Views,
};
use plan::{Action, ClaimInput, for_claim, for_volume};
use rows::{BIND_COMPLETED, BOUND_BY_CONTROLLER, ClaimRow, PROVISIONER, StorageViews, VolumeRow};

/// Key of a pass.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Work {
    Claim(Key),
    Volume(String),
}

struct Context {
    client: Client,
    views: Views,
    storage: StorageViews,
    events: EventRecorder,
}

/// Runs the controllers until `shutdown`.
pub(crate) async fn run(client: Client, views: Views, shutdown: CancellationToken) {
    let storage = StorageViews::start(&client, &views.api);
    tokio::select! {
        () = storage.synced() => {}
        () = shutdown.cancelled() => return,
    }
    let queue = Queue::<Work>::default();
    watch(&views, &storage, &queue);
    let events = EventRecorder::new(client.clone(), "persistentvolume-controller", "");
    let context = Arc::new(Context { client: client.clone(), views: views.clone(), storage: storage.clone(), events });
    tokio::join!(
        queue.run("persistentvolume", 4, shutdown.clone(), |work| sync(context.clone(), work)),
        protection::run(client.clone(), views.clone(), storage.clone(), shutdown.clone()),
        attach::run(client.clone(), views.clone(), storage.clone(), shutdown.clone()),
        ephemeral::run(client, views, storage, shutdown),
    );
}

fn watch(views: &Views, storage: &StorageViews, queue: &Queue<Work>) {
    let (keys, volumes) = (queue.clone(), storage.volumes.clone());
    storage.claims.subscribe(move |change| {
        keys.add(Work::Claim(change.key.clone()));
        for claim in [change.old, change.new].into_iter().flatten().filter(|claim| !claim.volume.is_empty()) {
            keys.add(Work::Volume(claim.volume.clone()));
        }
        if change.new.is_none() {
            let named = |volume: &VolumeRow| volume.claim.as_ref().is_some_and(|claim| claim.key == *change.key);
            keys.extend(volumes.snapshot().into_iter().filter(|(_, volume)| named(volume)).map(|(key, _)| Work::Volume(key.name)));
        }
    });
    let (keys, claims) = (queue.clone(), storage.claims.clone());
    storage.volumes.subscribe(move |change| {
        keys.add(Work::Volume(change.key.name.clone()));
        for claim in [change.old, change.new].into_iter().flatten().filter_map(|volume| volume.claim.as_ref()) {
            keys.add(Work::Claim(claim.key.clone()));
        }
        // A free volume may suit any claim that has none; one that went away leaves its claim lost.
        let concerned = |claim: &ClaimRow| claim.volume == change.key.name || (claim.volume.is_empty() && change.new.is_some());
        keys.extend(claims.snapshot().into_iter().filter(|(_, claim)| concerned(claim)).map(|(key, _)| Work::Claim(key)));
    });
    let (keys, claims) = (queue.clone(), storage.claims.clone());
    storage.classes.subscribe(move |change| {
        let waiting = claims.snapshot().into_iter().filter(|(_, claim)| claim.class == change.key.name && !claim.is_bound());
        keys.extend(waiting.map(|(key, _)| Work::Claim(key)));
    });
    let (keys, claims) = (queue.clone(), storage.claims.clone());
    views.pods.subscribe(move |change| {
        // The events about a claim name the pods that wait for it.
        if change.old.is_some() && change.new.is_some_and(|pod| pod.node.is_empty()) {
            return;
        }
        let pods = [change.old, change.new].into_iter().flatten();
        let names = pods.flat_map(|pod| pod.claims.iter()).map(|name| Key::new(&change.key.ns, name));
        keys.extend(names.filter(|key| claims.get(key).is_some_and(|claim| !claim.is_bound())).map(Work::Claim));
    });
}

async fn sync(context: Arc<Context>, work: Work) -> anyhow::Result<Next> {
    match &work {
        Work::Claim(key) => {
            let Some(claim) = context.storage.claims.get(key).filter(|claim| !claim.deleting || claim.bind_completed) else {
                return Ok(Next::Change);
            };
            let (volumes, class) = (context.storage.volumes.snapshot(), context.storage.class_of(&claim));
            let pods = context.views.pods.in_namespace(&key.ns).into_iter();
            let waiting: Vec<String> =
                pods.filter(|(_, pod)| pod.node.is_empty() && pod.claims.contains(&key.name)).map(|(key, _)| key.name).collect();
            let actions = for_claim(&ClaimInput { key, claim: &claim, volumes: &volumes, class, waiting_pods: &waiting });
            let object = reference("PersistentVolumeClaim", key, &claim.uid);
            context.apply(&object, Some((key, &claim)), &actions).await
        }
        Work::Volume(name) => {
            let Some(volume) = context.storage.volumes.get(Key::cluster(name)) else { return Ok(Next::Change) };
            let claim = volume.claim.as_ref().and_then(|claim| Some((&claim.key, context.storage.claims.get(&claim.key)?)));
            let actions = for_volume(name, &volume, claim.as_ref().map(|(_, claim)| claim.as_ref()));
            let object = reference("PersistentVolume", &Key::cluster(name), &volume.uid);
            context.apply(&object, claim.as_ref().map(|(key, claim)| (*key, claim.as_ref())), &actions).await
        }
    }
}

fn reference(kind: &str, key: &Key, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some(kind.to_owned()),
        namespace: Some(key.ns.clone()).filter(|ns| !ns.is_empty()),
        name: Some(key.name.clone()),
        uid: Some(uid.to_owned()),
        ..Default::default()
    }
}

impl Context {
    async fn apply(&self, object: &ObjectReference, claim: Option<(&Key, &ClaimRow)>, actions: &[Action]) -> anyhow::Result<Next> {
        for action in actions {
            tracing::debug!(object = object.name, "{action}");
            let done = match action {
                Action::Reserve { volume, by_controller } => self.reserve(volume, claim, *by_controller).await,
                Action::VolumePhase { volume, phase, message } => self.volume_phase(volume, phase, message).await,
                Action::Name { volume, by_controller } => self.name(volume, claim, *by_controller).await,
                Action::ClaimPhase { phase, volume } => self.claim_phase(claim, phase, volume.as_deref()).await,
                Action::Ask { provisioner } => self.ask(claim, provisioner).await,
                Action::Release { volume } => self.release(volume).await,
                Action::Unbind { volume, keep_name } => self.unbind(volume, *keep_name).await,
                Action::Report { type_, reason, message } => {
                    self.events.event(object, *type_, reason, None, message.as_str());
                    Ok(())
                }
            };
            match done {
                // It changed or is gone: the informer enqueues it again, and later steps would use old state.
                Err(error) if is_not_found(&error) || is_conflict(&error) => return Ok(Next::Change),
                other => other.with_context(|| format!("{action}"))?,
            }
        }
        Ok(Next::Change)
    }

    fn volumes(&self) -> Api<PersistentVolume> {
        Api::all(self.client.clone())
    }

    fn claims(&self, key: &Key) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), &key.ns)
    }

    async fn reserve(&self, volume: &str, claim: Option<(&Key, &ClaimRow)>, by_controller: bool) -> kube::Result<()> {
        let (Some(row), Some((key, claim))) = (self.storage.volumes.get(Key::cluster(volume)), claim) else { return Ok(()) };
        patch_volume(&self.volumes(), volume, &reservation(key, claim, &row.version, by_controller)).await
    }

    async fn volume_phase(&self, volume: &str, phase: &str, message: &str) -> kube::Result<()> {
        let Some(row) = self.storage.volumes.get(Key::cluster(volume)) else { return Ok(()) };
        let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default();
        let message = if message.is_empty() { Value::Null } else { json!(message) };
        let patch = json!({
            "metadata": {"uid": row.uid},
            "status": {"phase": phase, "message": message, "lastPhaseTransitionTime": now.to_string()},
        });
        self.volumes().patch_status(volume, &PatchParams::default(), &Patch::Merge(patch)).await.map(|_| ())
    }

    async fn name(&self, volume: &str, claim: Option<(&Key, &ClaimRow)>, by_controller: bool) -> kube::Result<()> {
        let Some((key, claim)) = claim else { return Ok(()) };
        let mut annotations = json!({BIND_COMPLETED: "yes"});
        if by_controller {
            annotations[BOUND_BY_CONTROLLER] = json!("yes");
        }
        let patch = json!({
            "metadata": {"uid": claim.uid, "resourceVersion": claim.version, "annotations": annotations},
            "spec": {"volumeName": volume},
        });
        self.claims(key).patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await.map(|_| ())
    }

    async fn claim_phase(&self, claim: Option<(&Key, &ClaimRow)>, phase: &str, volume: Option<&str>) -> kube::Result<()> {
        let Some((key, claim)) = claim else { return Ok(()) };
        let volume = volume.and_then(|name| self.storage.volumes.get(Key::cluster(name)));
        let status = match volume {
            Some(volume) => json!({"phase": phase, "accessModes": volume.modes, "capacity": volume.capacity}),
            None => json!({"phase": phase, "accessModes": Value::Null, "capacity": Value::Null}),
        };
        let patch = json!({"metadata": {"uid": claim.uid}, "status": status});
        self.claims(key).patch_status(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await.map(|_| ())
    }

    async fn ask(&self, claim: Option<(&Key, &ClaimRow)>, provisioner: &str) -> kube::Result<()> {
        let Some((key, claim)) = claim else { return Ok(()) };
        let annotations = json!({PROVISIONER[0]: provisioner, PROVISIONER[1]: provisioner});
        let patch = json!({"metadata": {"uid": claim.uid, "resourceVersion": claim.version, "annotations": annotations}});
        self.claims(key).patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await.map(|_| ())
    }

    /// Our view may be late: only the API knows that a claim is gone.
    async fn release(&self, volume: &str) -> kube::Result<()> {
        let Some(row) = self.storage.volumes.get(Key::cluster(volume)) else { return Ok(()) };
        let Some(owner) = &row.claim else { return Ok(()) };
        let live = self.claims(&owner.key).get_metadata_opt(&owner.key.name).await?;
        let same = live.is_some_and(|live| live.metadata.uid.as_ref() == Some(&owner.uid));
        let elsewhere = self.storage.claims.get(&owner.key).is_some_and(|claim| claim.uid == owner.uid && claim.volume != volume);
        if same && !elsewhere {
            return Ok(());
        }
        self.volume_phase(volume, "Released", "").await
    }

    async fn unbind(&self, volume: &str, keep_name: bool) -> kube::Result<()> {
        let Some(row) = self.storage.volumes.get(Key::cluster(volume)) else { return Ok(()) };
        let claim = if keep_name { json!({"uid": Value::Null, "resourceVersion": Value::Null}) } else { Value::Null };
        let patch = json!({
            "metadata": {"resourceVersion": row.version, "annotations": {BOUND_BY_CONTROLLER: Value::Null}},
            "spec": {"claimRef": claim},
        });
        patch_volume(&self.volumes(), volume, &patch).await
    }
}

/// The patch by which a volume is reserved for a claim, over the version it was decided from.
pub(crate) fn reservation(key: &Key, claim: &ClaimRow, version: &str, by_controller: bool) -> Value {
    let owner = json!({
        "kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": key.ns, "name": key.name,
        "uid": claim.uid, "resourceVersion": claim.version,
    });
    let mut meta = json!({"resourceVersion": version});
    if by_controller {
        meta["annotations"] = json!({BOUND_BY_CONTROLLER: "yes"});
    }
    json!({"metadata": meta, "spec": {"claimRef": owner}})
}

/// Writes a patch of a volume.
pub(crate) async fn patch_volume(volumes: &Api<PersistentVolume>, name: &str, patch: &Value) -> kube::Result<()> {
    volumes.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map(|_| ())
}
