//! Volumes of pods. A kind of volumes is a [`plugin::Plugin`]; everything on the node's disk goes through [`HostRoot`].

mod content;
pub(crate) mod csi;
mod devices;
pub(crate) mod flexvolume;
mod huge_pages;
mod local;
pub(crate) mod plugin;

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::join_all;
use host::{Hold, HostError, HostRoot, NodeOs, PathError, PodPath, Usage};
use k8s_openapi::api::core::v1::{Pod, Volume};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use content::ContentError;
pub(crate) use content::{Content, Tokens, references, wants_bundles};
use devices::Devices;
use local::Local;
use plugin::{Left, Plugin, Request};

/// A volume that could not be made ready. Upstream writes a space before the colon that its cause follows.
#[derive(Debug, thiserror::Error)]
#[error("{}Volume.{} failed for volume {volume:?} :", if *block { "Map" } else { "Mount" }, source.step(*block))]
pub(crate) struct SetUpError {
    volume: String,
    /// It is a device.
    block: bool,
    source: VolumeError,
}

impl SetUpError {
    /// The reason of its event.
    pub(crate) fn reason(&self) -> &'static str {
        if self.block { "FailedMapVolume" } else { "FailedMount" }
    }
}

/// A sub-path that a mount cannot show.
#[derive(Debug, thiserror::Error)]
#[error("failed to prepare subPath for volumeMount {volume:?}")]
pub(crate) struct SubPathError {
    volume: String,
    source: Box<VolumeError>,
}

/// Why a volume has no place on the node, or not its content.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VolumeError {
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Content(#[from] ContentError),
    #[error(
        "volumes of type {0} are not supported by this node agent; supported are emptyDir, hostPath, persistentVolumeClaim, ephemeral, csi, flexVolume, secret, configMap, downwardAPI, projected, disks of clouds whose CSI driver is registered and, on Linux, image"
    )]
    Unsupported(String),
    #[error("hostPath type check failed: {path} is not a {expected}")]
    HostPathType { path: String, expected: &'static str },
    #[error("hostPath {path}: its server did not answer within 10 s; leave the type out, or make the server answer")]
    ShareSilent { path: String },
    #[error("hostPath type {0:?} is unknown")]
    HostPathTypeUnknown(String),
    #[error(transparent)]
    Medium(#[from] huge_pages::MediumError),
    #[error(transparent)]
    Csi(#[from] csi::CsiError),
    #[error(transparent)]
    Flex(#[from] flexvolume::FlexError),
}

impl VolumeError {
    /// The step that failed, in upstream's words.
    fn step(&self, block: bool) -> &'static str {
        match self {
            VolumeError::Csi(error) => error.step(block),
            _ if block => "MapBlockVolume",
            _ => "SetUp",
        }
    }
}

/// The directory of devices below a pod's.
const DEVICES: &str = "volumeDevices";

#[derive(Clone, Debug)]
pub(crate) struct PodDirs {
    /// `…/pods/UID`.
    pub pod: PodPath,
    /// `…/log/pods/NS_NAME_UID`.
    pub logs: PodPath,
}

/// Permissions of directories of logs. On Windows, where bits for others are for every user of the node, there are none (CVE-2024-5321).
pub(crate) fn log_mode(os: NodeOs) -> u32 {
    if os.is_windows() { 0o750 } else { 0o755 }
}

impl PodDirs {
    /// The directories of a pod below the agent's root directory and that of all pods' logs.
    pub(crate) fn new(agent_dir: &PodPath, logs_dir: &PodPath, pod: &Pod) -> Result<Self, PathError> {
        let meta = &pod.metadata;
        let uid = meta.uid.as_deref().unwrap_or_default();
        let name = meta.name.as_deref().unwrap_or_default();
        let ns = meta.namespace.as_deref().unwrap_or_default();
        let logs = logs_dir.join(&format!("{ns}_{name}_{uid}"))?;
        Ok(PodDirs { pod: agent_dir.join("pods")?.join(uid)?, logs })
    }

    /// The file with the resources that the pod has.
    pub(crate) fn resources(&self) -> Result<PodPath, PathError> {
        self.pod.join("resources.json")
    }

    /// Holds a link for each device of a volume.
    pub(crate) fn devices(&self) -> Result<PodPath, PathError> {
        self.pod.join(DEVICES)
    }

    /// Where a volume is that is measured by its files, and whether it counts to the local storage of its pod (upstream
    /// `IsLocalEphemeralVolume`): what is in memory does not.
    pub(crate) fn measured(&self, volume: &Volume) -> Result<Option<(PodPath, bool)>, PathError> {
        let Some(plugin) = local::plugin(volume) else { return Ok(None) };
        let on_disk = volume.empty_dir.as_ref().is_some_and(|source| source.medium.as_deref().is_none_or(str::is_empty));
        Ok(Some((self.volume(plugin, &volume.name)?, on_disk || volume.config_map.is_some())))
    }

    /// What the agent's own files for the pod take: termination messages and the hosts file.
    pub(crate) fn own_usage(&self, root: &HostRoot) -> Result<Usage, HostError> {
        let (messages, hosts) = (root.usage(&self.pod.join("containers")?)?, root.usage_of_file(&self.hosts()?)?);
        Ok(Usage { bytes: messages.bytes.saturating_add(hosts.bytes), inodes: messages.inodes.saturating_add(hosts.inodes) })
    }

    /// The pod's hosts file.
    pub(crate) fn hosts(&self) -> Result<PodPath, PathError> {
        self.pod.join("etc-hosts")
    }

    fn volume(&self, plugin: &str, name: &str) -> Result<PodPath, PathError> {
        self.pod.join("volumes")?.join(plugin)?.join(name)
    }
}

/// The volumes of a node.
pub(crate) struct Volumes {
    root: Arc<HostRoot>,
    /// The first that takes a volume has it; the last takes all.
    plugins: Vec<Arc<dyn Plugin>>,
}

/// The places of the volumes that are ready.
pub(crate) type Places = BTreeMap<String, PodPath>;

impl Volumes {
    /// Volumes of these kinds, and of those that need nothing but files.
    pub(crate) fn new(root: Arc<HostRoot>, mut plugins: Vec<Arc<dyn Plugin>>) -> Self {
        plugins.push(Arc::new(Local { devices: Devices::new(root.clone()), root: root.clone(), looks: Arc::new(Semaphore::new(local::LOOKS)) }));
        Volumes { root, plugins }
    }

    /// Makes every volume of the pod ready, or brings it up to date, all at once; those in `places` are mounted already. Adds where each is.
    /// Returns the first error in the order of the volumes.
    pub(crate) async fn set_up(
        &self,
        dirs: &PodDirs,
        pod: &Pod,
        content: &Content<'_>,
        places: &mut Places,
        ends: &CancellationToken,
    ) -> Result<(), SetUpError> {
        let all = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
        // The runtime mounts images.
        let ours = all.filter(|volume| volume.image.is_none() || self.root.os().is_windows());
        let mounted = &*places;
        let works = ours.map(|volume| async move {
            let claimed = content.claims.get(&volume.name).filter(|_| volume.host_path.is_none());
            let request = Request { pod, dirs, volume, claimed, content, mounted: mounted.get(&volume.name), ends };
            // Messages name the persistent volume, as upstream's.
            let name = claimed.map_or(&volume.name, |claimed| &claimed.volume);
            let plugin = self.plugins.iter().find(|plugin| plugin.takes(volume, claimed));
            let place = match plugin {
                Some(plugin) => plugin.set_up(request).await,
                None => Err(local::unsupported(volume)),
            };
            let block = claimed.is_some_and(|claimed| claimed.block);
            (volume.name.clone(), place.map_err(|source| SetUpError { volume: name.clone(), block, source }))
        });
        let mut first = Ok(());
        for (name, place) in join_all(works).await {
            match place {
                Ok(place) => drop(places.insert(name, place)),
                Err(error) => first = first.and(Err(error)),
            }
        }
        first
    }

    /// Takes down the pod's volumes, as its directory says, and removes them; content of emptyDir goes, targets of hostPath stay.
    pub(crate) async fn tear_down(&self, dirs: &PodDirs) -> Result<(), VolumeError> {
        // They hold parts of volumes.
        self.root.unmount_below(&dirs.pod.join("volume-subpaths")?)?;
        let (volumes, devices) = (dirs.pod.join("volumes")?, dirs.devices()?);
        for (all, is_device) in [(&volumes, false), (&devices, true)] {
            for (kind, _) in self.root.read_dir(all)? {
                let Some(plugin) = self.plugins.iter().find(|plugin| plugin.owns(&kind)) else { continue };
                let of_kind = all.join(&kind)?;
                for (name, _) in self.root.read_dir(&of_kind)? {
                    plugin.tear_down(&Left { dir: of_kind.join(&name)?, is_device }).await?;
                }
            }
        }
        let (root, pod) = (self.root.clone(), dirs.pod.clone());
        let removed = tokio::task::spawn_blocking(move || -> Result<(), HostError> {
            root.unmount_below(&pod)?;
            root.remove_tree(&devices)?;
            root.remove_tree(&volumes)
        });
        Ok(removed.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?)
    }

    /// Removes everything that the node has of a pod.
    pub(crate) async fn remove_all(&self, dirs: &PodDirs) -> Result<(), VolumeError> {
        self.tear_down(dirs).await?;
        let (root, dirs) = (self.root.clone(), dirs.clone());
        let removed = tokio::task::spawn_blocking(move || -> Result<(), HostError> {
            root.remove_tree(&dirs.pod)?;
            root.remove_tree(&dirs.logs)
        });
        Ok(removed.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?)
    }
}

/// One mount of a container.
pub(crate) struct MountOf<'a> {
    pub volume: &'a Volume,
    /// Where the volume is.
    pub path: &'a PodPath,
    pub container: &'a str,
    /// Which of the container's mounts.
    pub index: usize,
}

/// The object of the host that a mount shows: the volume, or what its sub-path names. A sub-path
/// passes no link that a pod could have made, then or as long as the hold lives.
pub(crate) fn mount_source(root: &HostRoot, dirs: &PodDirs, mount: &MountOf<'_>, sub_path: &str) -> Result<(PodPath, Hold), SubPathError> {
    if sub_path.is_empty() {
        return Ok((mount.path.clone(), Hold::default()));
    }
    prepare_sub_path(root, dirs, mount, sub_path).map_err(|source| SubPathError { volume: mount.volume.name.clone(), source: Box::new(source) })
}

fn prepare_sub_path(root: &HostRoot, dirs: &PodDirs, mount: &MountOf<'_>, sub_path: &str) -> Result<(PodPath, Hold), VolumeError> {
    if local::plugin(mount.volume).is_some() && mount.volume.empty_dir.is_none() {
        // Written by us alone: the names are our links into the current generation.
        let full = mount.path.join(sub_path)?;
        let relative = &full.components()[mount.path.components().len()..];
        return Ok((content::current(root, mount.path, relative)?, Hold::default()));
    }
    let place = format!("volume-subpaths/{}/{}/{}", mount.volume.name, mount.container, mount.index);
    let place = dirs.pod.join(&place)?;
    Ok(root.sub_path(mount.path, sub_path, &place)?)
}

#[cfg(test)]
mod cve_tests;
#[cfg(test)]
mod tests;
