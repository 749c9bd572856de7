//! Staging and publishing volumes, and taking them down (upstream csi_attacher.go `MountDevice`, csi_mounter.go `SetUpAt`).

use std::collections::BTreeMap;

use csi::v1::{NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, VolumeCapability};
use csi::{Access, Capabilities, VolumeData};
use host::PodPath;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Secret, SecretReference};
use kube::Api;
use serde_json::json;

use super::object::DriverRow;
use super::source::{CsiVolume, pod_info};
use super::{Csi, CsiError, DIRECTORY, GLOBAL, MOUNT, Mounted};
use crate::claims::Source;
use crate::volumes::local::owner_of;
use crate::volumes::plugin::Request;

/// Where a driver finds the tokens it asked for.
const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// A volume on its way to a pod.
pub(super) struct Work<'a> {
    pod: &'a Pod,
    pub volume: &'a CsiVolume,
    object: Option<DriverRow>,
    pub driver: csi::Driver,
    pub can: Capabilities,
    /// What the attacher has to say to the driver.
    context: BTreeMap<String, String>,
}

impl Work<'_> {
    /// What is asked of the volume.
    fn capability(&self) -> VolumeCapability {
        let group = owner_of(self.pod, true).map(|owner| i64::from(owner.group)).filter(|_| self.can.mount_group);
        let mount = || Access::Mount { fs_type: self.volume.fs_type.clone(), options: self.volume.options.clone(), group };
        let access = if self.volume.block { Access::Block } else { mount() };
        csi::volume_capability(access, csi::access_mode(self.volume.access_mode(), self.can))
    }
}

impl Csi {
    /// Mounts a volume for a pod. One that is mounted already is left alone, unless its driver wants to be asked again.
    pub(super) async fn mount(&self, request: &Request<'_>) -> Result<PodPath, CsiError> {
        let inline = CsiVolume::inline(request.pod, request.volume)?;
        let volume = match request.claimed.map(|claimed| &claimed.source) {
            Some(Source::Csi(volume)) => Some(&**volume),
            Some(Source::Path(_) | Source::Device { .. } | Source::Flex(_)) | None => inline.as_ref(),
        };
        let Some(volume) = volume else { return Err(CsiError::NoDriver(String::new())) };
        if volume.block {
            return self.map(request, volume).await;
        }
        let place = request.dirs.volume(DIRECTORY, &volume.name)?.join(MOUNT)?;
        let Some(work) = self.work(request, volume).await? else {
            self.expand(request, volume, &place).await?;
            return Ok(place);
        };
        let (again, can) = (request.mounted.is_some(), work.can);
        let held = self.hold(&volume.unique_name()).await;
        if !volume.ephemeral {
            self.stage(&work).await?;
        }
        self.publish(&work, &place).await?;
        let policy = work.object.as_ref().map_or("", |object| &object.group_policy);
        if let Some(owner) = owner_of(request.pod, true).filter(|_| !again && !can.mount_group && volume.is_given_to_group(policy)) {
            let (root, place) = (self.root.clone(), place.clone());
            let given = tokio::task::spawn_blocking(move || root.give_to_group(&place, owner)).await;
            given.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
        }
        self.note_mounted(request, &work, &place);
        drop(held);
        self.expand(request, volume, &place).await?;
        Ok(place)
    }

    /// What there is to do for a volume that is attached; None when it is mounted and its driver does not want to be asked again.
    pub(super) async fn work<'a>(&self, request: &Request<'a>, volume: &'a CsiVolume) -> Result<Option<Work<'a>>, CsiError> {
        let object = self.objects.get(&volume.driver).await?;
        if request.mounted.is_some() && !object.as_ref().is_some_and(|object| object.republishes) {
            return Ok(None);
        }
        check_mode(volume, object.as_ref())?;
        let attaches = !volume.ephemeral && object.as_ref().is_none_or(|object| object.attaches);
        let context = if attaches { self.attached(volume, request.ends).await? } else { self.never_attached(volume) };
        let driver = self.driver(&volume.driver)?;
        let can = driver.capabilities().await?;
        Ok(Some(Work { pod: request.pod, volume, object, driver, can, context }))
    }

    /// Notes that a volume is at a place for a pod.
    pub(super) fn note_mounted(&self, request: &Request<'_>, work: &Work<'_>, place: &PodPath) {
        let uid = request.pod.metadata.uid.clone().unwrap_or_default();
        let mounted = Mounted {
            driver: work.volume.driver.clone(),
            handle: work.volume.handle.clone(),
            path: place.clone(),
            staging: self.staging(work.volume).ok().filter(|_| work.can.stages && !work.volume.ephemeral),
            claim: request.claimed.map(|claimed| claimed.claim.clone()),
            can: work.can,
        };
        self.mounted().insert((uid, request.volume.name.clone()), mounted);
    }

    /// Where a volume is staged.
    pub(super) fn staging(&self, volume: &CsiVolume) -> Result<PodPath, CsiError> {
        if volume.block {
            return self.staged_device(&volume.name);
        }
        Ok(self.staged_dir(&volume.driver, &volume.handle)?.join(GLOBAL)?)
    }

    pub(super) async fn stage_request(&self, work: &Work<'_>, staging: &PodPath) -> Result<NodeStageVolumeRequest, CsiError> {
        Ok(NodeStageVolumeRequest {
            volume_id: work.volume.handle.clone(),
            publish_context: work.context.clone(),
            staging_target_path: staging.to_string(),
            volume_capability: Some(work.capability()),
            secrets: self.secrets(work.volume.stage_secret.as_ref()).await?,
            volume_context: work.volume.attributes.clone(),
        })
    }

    /// A volume that nobody attaches is not reported as in use.
    fn never_attached(&self, volume: &CsiVolume) -> BTreeMap<String, String> {
        self.in_use.send_if_modified(|all| all.remove(&volume.unique_name()));
        BTreeMap::new()
    }

    /// Prepares the volume on the node, once for all its pods.
    async fn stage(&self, work: &Work<'_>) -> Result<(), CsiError> {
        let volume = work.volume;
        let dir = self.staged_dir(&volume.driver, &volume.handle)?;
        let staging = dir.join(GLOBAL)?;
        if !work.can.stages || self.fresh().contains(&volume.unique_name()) {
            return Ok(());
        }
        let request = self.stage_request(work, &staging).await?;
        let first = self.load(&dir)?.is_none();
        self.root.create_dir_all(&staging, 0o750)?;
        self.save(&dir, &VolumeData { driver: volume.driver.clone(), handle: volume.handle.clone(), ..VolumeData::default() })?;
        if let Err(error) = work.driver.stage(request).await {
            self.undo(&error, first, &dir, GLOBAL);
            return Err(CsiError::Stage(error));
        }
        self.fresh().insert(volume.unique_name());
        Ok(())
    }

    /// A driver that did nothing, and is at nothing, is not asked to take anything down.
    fn undo(&self, error: &csi::Error, first: bool, dir: &PodPath, inner: &str) {
        if first
            && error.is_final()
            && let Err(error) = self.forget(dir, inner)
        {
            tracing::warn!(%dir, %error, "removing the directory of a volume that was not mounted failed");
        }
    }

    async fn publish(&self, work: &Work<'_>, place: &PodPath) -> Result<(), CsiError> {
        let volume = work.volume;
        let dir = place.parent().unwrap_or_else(|| place.clone());
        let request = self.publish_request(work, &self.staging(volume)?, place).await?;
        let first = self.load(&dir)?.is_none();
        self.save(
            &dir,
            &VolumeData {
                attachment: kube_rules::csi::attachment_name(&volume.driver, &volume.handle, &self.node_name),
                driver: volume.driver.clone(),
                node: self.node_name.clone(),
                name: volume.name.clone(),
                handle: volume.handle.clone(),
                mode: volume.mode().to_owned(),
            },
        )?;
        work.driver.publish(request).await.map_err(|error| {
            self.undo(&error, first, &dir, MOUNT);
            error.into()
        })
    }

    pub(super) async fn publish_request(&self, work: &Work<'_>, staging: &PodPath, target: &PodPath) -> Result<NodePublishVolumeRequest, CsiError> {
        let volume = work.volume;
        let mut secrets = self.secrets(volume.publish_secret.as_ref()).await?;
        let mut attributes = volume.attributes.clone();
        if let Some(object) = &work.object {
            if object.wants_pod_info {
                attributes.extend(pod_info(work.pod, volume));
            }
            let tokens = self.pod_tokens(work.pod, object).await?;
            if object.secret_tokens { secrets.extend(tokens) } else { attributes.extend(tokens) }
        }
        Ok(NodePublishVolumeRequest {
            volume_id: volume.handle.clone(),
            publish_context: work.context.clone(),
            staging_target_path: if work.can.stages && !volume.ephemeral { staging.to_string() } else { String::new() },
            target_path: target.to_string(),
            volume_capability: Some(work.capability()),
            readonly: volume.read_only,
            secrets,
            volume_context: attributes,
        })
    }

    /// A secret's texts.
    pub(super) async fn secrets(&self, reference: Option<&SecretReference>) -> Result<BTreeMap<String, String>, CsiError> {
        let Some(reference) = reference else { return Ok(BTreeMap::new()) };
        let (namespace, name) = (reference.namespace.clone().unwrap_or_default(), reference.name.clone().unwrap_or_default());
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &namespace);
        let found = match api.get(&name).await {
            Ok(found) => found,
            Err(error) => return Err(CsiError::Secret { namespace, name, source: error.into() }),
        };
        let mut texts = BTreeMap::new();
        for (key, bytes) in found.data.unwrap_or_default() {
            let Ok(text) = String::from_utf8(bytes.0) else { return Err(CsiError::SecretText { namespace, name, key }) };
            texts.insert(key, text);
        }
        Ok(texts)
    }

    /// The tokens of the pod that a driver asked for (upstream: `podServiceAccountTokenAttrs`).
    async fn pod_tokens(&self, pod: &Pod, object: &DriverRow) -> Result<BTreeMap<String, String>, CsiError> {
        if object.tokens.is_empty() {
            return Ok(BTreeMap::new());
        }
        let mut all = serde_json::Map::new();
        for (audience, seconds) in &object.tokens {
            let (token, expires) = self.tokens.one(pod, audience, *seconds, Timestamp::now()).await?;
            all.insert(audience.clone(), json!({"token": token, "expirationTimestamp": whole_seconds(expires).to_string()}));
        }
        Ok(BTreeMap::from([(TOKENS.to_owned(), serde_json::Value::Object(all).to_string())]))
    }

    /// Takes down what a pod's directory holds of a volume, and the volume's staging with its last pod.
    pub(super) async fn unmount(&self, dir: &PodPath) -> Result<(), CsiError> {
        let place = dir.join(MOUNT)?;
        self.mounted().retain(|_, mounted| mounted.path != place);
        let Some(data) = self.load(dir)? else { return self.forget(dir, MOUNT) };
        let unique = kube_rules::csi::unique_name(&data.driver, &data.handle);
        let _held = self.hold(&unique).await;
        let target_path = place.to_string();
        let request = NodeUnpublishVolumeRequest { volume_id: data.handle.clone(), target_path };
        self.driver(&data.driver)?.unpublish(request).await?;
        self.forget(dir, MOUNT)?;
        if data.mode != "Ephemeral" {
            self.unstage(&data).await?;
        }
        Ok(())
    }

    /// Undoes the staging of a volume that no pod has any more. The volume is held.
    async fn unstage(&self, data: &VolumeData) -> Result<(), CsiError> {
        if self.published()?.iter().any(|other| other.driver == data.driver && other.handle == data.handle) {
            return Ok(());
        }
        let unique = kube_rules::csi::unique_name(&data.driver, &data.handle);
        let dir = self.staged_dir(&data.driver, &data.handle)?;
        if self.load(&dir)?.is_some() {
            let driver = self.driver(&data.driver)?;
            if driver.capabilities().await?.stages {
                let staging_target_path = dir.join(GLOBAL)?.to_string();
                driver.unstage(NodeUnstageVolumeRequest { volume_id: data.handle.clone(), staging_target_path }).await?;
            }
            self.forget(&dir, GLOBAL)?;
        }
        self.fresh().remove(&unique);
        self.in_use.send_if_modified(|all| all.remove(&unique));
        Ok(())
    }

    /// Takes down volumes that are staged for no pod, as an agent leaves them that ended between two steps. Returns whether none is left.
    pub(crate) async fn sweep(&self) -> Result<bool, CsiError> {
        let mut all = self.sweep_devices().await?;
        for (_, data) in self.staged()? {
            let _held = self.hold(&kube_rules::csi::unique_name(&data.driver, &data.handle)).await;
            match self.unstage(&data).await {
                Ok(()) => {}
                // It may still come.
                Err(CsiError::NoDriver(_)) => all = false,
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }
}

fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// Whether a driver makes volumes that live so long (upstream: `supportsVolumeLifecycleMode`).
fn check_mode(volume: &CsiVolume, object: Option<&DriverRow>) -> Result<(), CsiError> {
    let mode = volume.mode();
    let modes = object.map(|object| object.modes.clone());
    let fits = match &modes {
        // No information: persistent volumes alone.
        None => !volume.ephemeral,
        Some(modes) => modes.iter().any(|supported| supported == mode),
    };
    if fits { Ok(()) } else { Err(CsiError::Mode { driver: volume.driver.clone(), mode, modes }) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_driver_names_the_modes_it_has() {
        let object = |modes: &[&str]| {
            DriverRow::of(&serde_json::from_value(json!({"metadata": {"name": "d"}, "spec": {"volumeLifecycleModes": modes}})).unwrap())
        };
        let volume = |ephemeral| CsiVolume { driver: "d".into(), ephemeral, ..CsiVolume::default() };
        assert!(check_mode(&volume(false), None).is_ok());
        assert!(check_mode(&volume(true), Some(&object(&["Persistent", "Ephemeral"]))).is_ok());
        let error = check_mode(&volume(true), None).unwrap_err().to_string();
        assert_eq!(error, "kubernetes.io/csi: volume mode \"Ephemeral\" not supported by driver d (no CSIDriver object)");
        let error = check_mode(&volume(true), Some(&object(&["Persistent"]))).unwrap_err().to_string();
        assert_eq!(error, "kubernetes.io/csi: volume mode \"Ephemeral\" not supported by driver d (only supports [\"Persistent\"])");
    }
}
