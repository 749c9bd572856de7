//! Volumes of pods: directories below the agent's own, filled through [`HostRoot`] only.

mod content;

use std::collections::BTreeMap;

use host::{FileKind, HostError, HostRoot, PathError, PodPath};
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, HostPathVolumeSource, Pod, Volume};

use content::ContentError;
pub(crate) use content::{Content, Tokens, references};

/// A volume that could not be made ready. Upstream writes a space before the colon that its cause follows.
#[derive(Debug, thiserror::Error)]
#[error("MountVolume.SetUp failed for volume {volume:?} :")]
pub(crate) struct SetUpError {
    volume: String,
    source: VolumeError,
}

/// A sub-path that a mount cannot show.
#[derive(Debug, thiserror::Error)]
#[error("failed to prepare subPath for volumeMount {volume:?}")]
pub(crate) struct SubPathError {
    volume: String,
    source: VolumeError,
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
        "volumes of type {0} are not supported by this node agent; supported are emptyDir, hostPath, persistentVolumeClaim, ephemeral, secret, configMap, downwardAPI, projected and, on Linux, image"
    )]
    Unsupported(String),
    #[error("hostPath type check failed: {path} is not a {expected}")]
    HostPathType { path: String, expected: &'static str },
    #[error("hostPath type {0:?} is unknown")]
    HostPathTypeUnknown(String),
}

#[derive(Clone, Debug)]
pub(crate) struct PodDirs {
    /// `…/pods/UID`.
    pub pod: PodPath,
    /// `…/log/pods/NS_NAME_UID`.
    pub logs: PodPath,
}

impl PodDirs {
    /// The directories of a pod below the agent's root directory.
    pub(crate) fn new(root: &HostRoot, agent_dir: &PodPath, pod: &Pod) -> Result<Self, HostError> {
        let meta = &pod.metadata;
        let uid = meta.uid.as_deref().unwrap_or_default();
        let name = meta.name.as_deref().unwrap_or_default();
        let ns = meta.namespace.as_deref().unwrap_or_default();
        let logs = root.parse("/var/log/pods")?.join(&format!("{ns}_{name}_{uid}"))?;
        Ok(PodDirs { pod: agent_dir.join("pods")?.join(uid)?, logs })
    }

    /// The file with the resources that the pod has.
    pub(crate) fn resources(&self) -> Result<PodPath, PathError> {
        self.pod.join("resources.json")
    }

    /// Where a volume emptyDir is.
    pub(crate) fn empty_dir(&self, name: &str) -> Result<PodPath, PathError> {
        self.volume("kubernetes.io~empty-dir", name)
    }

    fn volume(&self, plugin: &str, name: &str) -> Result<PodPath, PathError> {
        self.pod.join("volumes")?.join(plugin)?.join(name)
    }
}

/// The API name of a volume's source, and the directory it has below `volumes/`.
fn plugin(volume: &Volume) -> Option<&'static str> {
    if volume.empty_dir.is_some() {
        Some("kubernetes.io~empty-dir")
    } else if volume.secret.is_some() {
        Some("kubernetes.io~secret")
    } else if volume.config_map.is_some() {
        Some("kubernetes.io~configmap")
    } else if volume.downward_api.is_some() {
        Some("kubernetes.io~downward-api")
    } else if volume.projected.is_some() {
        Some("kubernetes.io~projected")
    } else {
        None
    }
}

/// Makes every volume of the pod ready, or brings its content up to date. Returns where each is.
pub(crate) fn set_up(root: &HostRoot, dirs: &PodDirs, pod: &Pod, content: &Content<'_>) -> Result<BTreeMap<String, PodPath>, SetUpError> {
    let mut out = BTreeMap::new();
    for volume in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
        // The runtime mounts it.
        if volume.image.is_some() && !root.os().is_windows() {
            continue;
        }
        let (name, path) = match content.claims.get(&volume.name).filter(|_| volume.host_path.is_none()) {
            // Messages name the persistent volume, as upstream's.
            Some(claimed) => (&claimed.volume, check_host_path(root, &claimed.source)),
            None => (&volume.name, set_up_one(root, dirs, volume, content)),
        };
        let path = path.map_err(|source| SetUpError { volume: name.clone(), source })?;
        out.insert(volume.name.clone(), path);
    }
    Ok(out)
}

/// Makes a volume ready that no claim stands behind.
fn set_up_one(root: &HostRoot, dirs: &PodDirs, volume: &Volume, content: &Content<'_>) -> Result<PodPath, VolumeError> {
    if let Some(host_path) = &volume.host_path {
        return check_host_path(root, host_path);
    }
    let plugin = plugin(volume).ok_or_else(|| unsupported(volume))?;
    let path = dirs.volume(plugin, &volume.name)?;
    if let Some(empty) = &volume.empty_dir {
        empty_dir(root, &path, empty)?;
    } else {
        let mut files = content.files(volume)?;
        if !root.os().is_windows() {
            content.give_to_group(&mut files);
        }
        root.create_dir_all(&parent(&path), 0o755)?;
        root.write_volume(&path, &files)?;
    }
    Ok(path)
}

/// An empty directory for everyone, in memory where asked for and Linux has it.
fn empty_dir(root: &HostRoot, path: &PodPath, source: &EmptyDirVolumeSource) -> Result<(), HostError> {
    root.create_dir_all(&parent(path), 0o755)?;
    root.create_dir_all(path, 0o777)?;
    if source.medium.as_deref() == Some("Memory") && !root.os().is_windows() {
        let size = source.size_limit.as_ref().and_then(|q| kube_rules::Quantity::parse(&q.0).ok());
        root.mount_memory(path, size.map(|q| q.value().max(0) as u64))?;
    }
    Ok(())
}

fn parent(path: &PodPath) -> PodPath {
    path.parent().unwrap_or_else(|| path.clone())
}

fn unsupported(volume: &Volume) -> VolumeError {
    let value = serde_json::to_value(volume).unwrap_or_default();
    let kind = value.as_object().and_then(|o| o.keys().find(|k| *k != "name").cloned());
    VolumeError::Unsupported(kind.unwrap_or_else(|| "(none)".to_owned()))
}

/// Checks a hostPath against its type (upstream hostpath volume's type checkers).
fn check_host_path(root: &HostRoot, source: &HostPathVolumeSource) -> Result<PodPath, VolumeError> {
    let path = root.parse(&source.path)?;
    let found = root.kind(&path)?;
    let wanted = source.type_.as_deref().unwrap_or_default();
    let is_not = |expected| Err(VolumeError::HostPathType { path: source.path.clone(), expected });
    match (wanted, found) {
        ("", _)
        | ("DirectoryOrCreate" | "Directory", Some(FileKind::Directory))
        | ("FileOrCreate" | "File", Some(FileKind::File))
        | ("Socket", Some(FileKind::Socket))
        | ("CharDevice", Some(FileKind::CharDevice))
        | ("BlockDevice", Some(FileKind::BlockDevice)) => Ok(path),
        ("DirectoryOrCreate", None) => {
            root.create_dir_all(&path, 0o755)?;
            Ok(path)
        }
        ("FileOrCreate", None) => {
            root.create_file(&path, 0o644)?;
            Ok(path)
        }
        ("DirectoryOrCreate" | "Directory", _) => is_not("directory"),
        ("FileOrCreate" | "File", _) => is_not("file"),
        ("Socket", _) => is_not("socket"),
        ("CharDevice", _) => is_not("character device"),
        ("BlockDevice", _) => is_not("block device"),
        (other, _) => Err(VolumeError::HostPathTypeUnknown(other.to_owned())),
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
/// passes no link that a pod could have made, then or later.
pub(crate) fn mount_source(root: &HostRoot, dirs: &PodDirs, mount: &MountOf<'_>, sub_path: &str) -> Result<PodPath, SubPathError> {
    if sub_path.is_empty() {
        return Ok(mount.path.clone());
    }
    prepare_sub_path(root, dirs, mount, sub_path).map_err(|source| SubPathError { volume: mount.volume.name.clone(), source })
}

fn prepare_sub_path(root: &HostRoot, dirs: &PodDirs, mount: &MountOf<'_>, sub_path: &str) -> Result<PodPath, VolumeError> {
    if plugin(mount.volume).is_some() && mount.volume.empty_dir.is_none() {
        // Written by us alone: the names are our links into the current generation.
        let full = mount.path.join(sub_path)?;
        let relative = &full.components()[mount.path.components().len()..];
        return Ok(content::current(root, mount.path, relative)?);
    }
    let place = format!("volume-subpaths/{}/{}/{}", mount.volume.name, mount.container, mount.index);
    let place = dirs.pod.join(&place)?;
    Ok(root.sub_path(mount.path, sub_path, &place)?)
}

/// Removes the pod's volumes; emptyDir content goes, hostPath targets stay.
pub(crate) fn tear_down(root: &HostRoot, dirs: &PodDirs) -> Result<(), HostError> {
    root.unmount_below(&dirs.pod)?;
    root.remove_tree(&dirs.pod.join("volumes")?)
}

pub(crate) fn remove_all(root: &HostRoot, dirs: &PodDirs) -> Result<(), HostError> {
    root.unmount_below(&dirs.pod)?;
    root.remove_tree(&dirs.pod)?;
    root.remove_tree(&dirs.logs)
}

#[cfg(test)]
mod tests;
