//! Volumes that are devices (upstream pkg/volume/csi/csi_block.go). Their places, below the agent's directory, are upstream's:
//! `plugins/kubernetes.io/csi/volumeDevices/staging/PV` is the driver's, `…/volumeDevices/publish/PV/UID` the device that the driver makes for
//! a pod, `…/volumeDevices/PV/dev/UID` the same device, bound by the agent, and `…/volumeDevices/PV/data` says what volume it is. The link
//! `pods/UID/volumeDevices/kubernetes.io~csi/PV` says which pods have it.

use csi::v1::{NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest};
use csi::{DATA_FILE, VolumeData};
use host::{HostError, PodPath};

use super::mount::Work;
use super::{Csi, CsiError, CsiVolume, DIRECTORY};
use crate::volumes::devices::Map;
use crate::volumes::plugin::Request;

/// Where such volumes are, below the agent's directory.
const DEVICES: &str = "plugins/kubernetes.io/csi/volumeDevices";

/// The places of one volume.
struct Places {
    /// Holds `data` and `dev`.
    own: PodPath,
    data: PodPath,
    /// Where it is bound, for each pod.
    global: PodPath,
    staging: PodPath,
    /// Where the driver makes a device for each pod.
    published: PodPath,
}

impl Csi {
    fn places(&self, name: &str) -> Result<Places, CsiError> {
        let all = self.dir.join(DEVICES)?;
        let own = all.join(name)?;
        Ok(Places {
            data: own.join("data")?,
            global: own.join("dev")?,
            own,
            staging: all.join("staging")?.join(name)?,
            published: all.join("publish")?.join(name)?,
        })
    }

    /// Where a volume is staged.
    pub(super) fn staged_device(&self, name: &str) -> Result<PodPath, CsiError> {
        Ok(self.places(name)?.staging)
    }

    /// The device that a driver has made for a pod.
    pub(super) fn published_device(&self, request: &Request<'_>, name: &str) -> Result<PodPath, CsiError> {
        Ok(self.places(name)?.published.join(request.dirs.pod.name().unwrap_or_default())?)
    }

    /// Maps a volume to a pod. Returns where its device is for the pod alone.
    pub(super) async fn map(&self, request: &Request<'_>, volume: &CsiVolume) -> Result<PodPath, CsiError> {
        if self.root.os().is_windows() {
            return Err(CsiError::Block);
        }
        let places = self.places(&volume.name)?;
        let map = Map::new(request.dirs, &places.global, DIRECTORY, &volume.name)?;
        let device = self.published_device(request, &volume.name)?;
        let Some(work) = self.work(request, volume).await? else {
            self.expand(request, volume, &device).await?;
            return Ok(map.place);
        };
        let held = self.hold(&volume.unique_name()).await;
        let first = self.load(&places.data)?.is_none();
        let attachment = kube_rules::csi::attachment_name(&volume.driver, &volume.handle, &self.node_name);
        let (driver, handle, name) = (volume.driver.clone(), volume.handle.clone(), volume.name.clone());
        self.save(&places.data, &VolumeData { attachment, driver, node: self.node_name.clone(), name, handle, ..VolumeData::default() })?;
        self.devices.announce(&map, &device)?;
        let done = self.stage_and_publish(&work, &places, &device).await;
        if let Err(error) = done {
            self.undo_map(&error, first, &places, &map);
            return Err(error);
        }
        self.devices.map(&map, &device)?;
        self.note_mounted(request, &work, &device);
        drop(held);
        self.expand(request, volume, &device).await?;
        Ok(map.place)
    }

    async fn stage_and_publish(&self, work: &Work<'_>, places: &Places, device: &PodPath) -> Result<(), CsiError> {
        let volume = work.volume;
        if work.can.stages && !self.fresh().contains(&volume.unique_name()) {
            self.root.create_dir_all(&places.staging, 0o750)?;
            let request = self.stage_request(work, &places.staging).await?;
            work.driver.stage(request).await.map_err(CsiError::Stage)?;
            self.fresh().insert(volume.unique_name());
        }
        // The driver makes the device itself.
        self.root.create_dir_all(&places.published, 0o750)?;
        let request = self.publish_request(work, &places.staging, device).await?;
        Ok(work.driver.publish(request).await?)
    }

    /// A driver that did nothing, and is at nothing, is not asked to take anything down.
    fn undo_map(&self, error: &CsiError, first: bool, places: &Places, map: &Map) {
        let failed = matches!(error, CsiError::Stage(error) | CsiError::Call(error) if error.is_final());
        let staged = self.root.kind(&places.staging).is_ok_and(|kind| kind.is_some()) && matches!(error, CsiError::Call(_));
        if first && failed && !staged {
            let undone = self.devices.forget(map).map_err(CsiError::from).and_then(|()| self.clear(places));
            if let Err(error) = undone {
                tracing::warn!(volume = %places.own, %error, "removing the directory of a volume that was not mapped failed");
            }
        }
    }

    /// Removes the directories of a volume that no pod has and that is not staged.
    fn clear(&self, places: &Places) -> Result<(), CsiError> {
        for empty in [&places.published, &places.staging, &places.global] {
            self.root.remove_dir(empty)?;
        }
        self.root.remove_tree(&places.data.join(DATA_FILE)?)?;
        self.root.remove_dir(&places.data)?;
        Ok(self.root.remove_dir(&places.own)?)
    }

    /// Takes a volume from the pod in whose directory the link is, and down with its last pod.
    pub(super) async fn unmap(&self, link: &PodPath) -> Result<(), CsiError> {
        let name = link.name().unwrap_or_default().to_owned();
        let pod = link.parent().and_then(|kind| kind.parent()?.parent()).unwrap_or_else(|| link.clone());
        let uid = pod.name().unwrap_or_default();
        let places = self.places(&name)?;
        let map = Map { place: places.global.join(uid)?, link: link.clone() };
        let device = places.published.join(uid)?;
        self.mounted().retain(|_, mounted| mounted.path != device);
        let Some(data) = self.load(&places.data)? else {
            self.devices.unmap(&map)?;
            return Ok(self.devices.forget(&map)?);
        };
        let _held = self.hold(&kube_rules::csi::unique_name(&data.driver, &data.handle)).await;
        self.devices.unmap(&map)?;
        let request = NodeUnpublishVolumeRequest { volume_id: data.handle.clone(), target_path: device.to_string() };
        self.driver(&data.driver)?.unpublish(request).await?;
        self.devices.forget(&map)?;
        self.unstage_device(&name, &data).await
    }

    /// Undoes the staging of a volume that no pod has any more. The volume is held.
    async fn unstage_device(&self, name: &str, data: &VolumeData) -> Result<(), CsiError> {
        if !self.devices.users(&self.dir.join("pods")?, DIRECTORY, name)?.is_empty() {
            return Ok(());
        }
        let places = self.places(name)?;
        let driver = self.driver(&data.driver)?;
        if self.root.kind(&places.staging)?.is_some() && driver.capabilities().await?.stages {
            let staging_target_path = places.staging.to_string();
            driver.unstage(NodeUnstageVolumeRequest { volume_id: data.handle.clone(), staging_target_path }).await?;
        }
        self.clear(&places)?;
        let unique = kube_rules::csi::unique_name(&data.driver, &data.handle);
        self.fresh().remove(&unique);
        self.in_use.send_if_modified(|all| all.remove(&unique));
        Ok(())
    }

    /// The volumes that the disk says are devices.
    pub(super) fn devices_there(&self) -> Result<Vec<(String, VolumeData)>, HostError> {
        let mut all = Vec::new();
        for (name, _) in self.root.read_dir(&self.dir.join(DEVICES)?)? {
            let data = self.places(&name).and_then(|places| self.load(&places.data));
            all.extend(data.ok().flatten().map(|data| (name, data)));
        }
        Ok(all)
    }

    /// Takes down devices that are staged for no pod. Returns whether none is left.
    pub(super) async fn sweep_devices(&self) -> Result<bool, CsiError> {
        let mut all = true;
        for (name, data) in self.devices_there()? {
            let _held = self.hold(&kube_rules::csi::unique_name(&data.driver, &data.handle)).await;
            match self.unstage_device(&name, &data).await {
                Ok(()) => {}
                // It may still come.
                Err(CsiError::NoDriver(_)) => all = false,
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }
}
