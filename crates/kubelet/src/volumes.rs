//! Volumes of pods: directories below the agent's own, filled through [`HostRoot`] only.

mod content;

use std::collections::BTreeMap;

use host::{FileKind, HostRoot, PodPath};
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, HostPathVolumeSource, Pod, Volume};

pub(crate) use content::{Content, Tokens, references};

/// A volume that could not be made ready.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("MountVolume.SetUp failed for volume {volume:?} : {why}")]
pub(crate) struct VolumeError {
    pub volume: String,
    pub why: String,
}

/// The directories of one pod.
#[derive(Clone, Debug)]
pub(crate) struct PodDirs {
    /// `…/pods/UID`.
    pub pod: PodPath,
    /// `…/log/pods/NS_NAME_UID`.
    pub logs: PodPath,
}

/// A path that HostRoot or the path rules refused, as text for messages.
fn text(e: impl std::error::Error) -> String {
    let mut out = e.to_string();
    let mut source = e.source();
    while let Some(s) = source {
        out.push_str(": ");
        out.push_str(&s.to_string());
        source = s.source();
    }
    out
}

impl PodDirs {
    /// The directories of a pod below the agent's root directory.
    pub(crate) fn new(root: &HostRoot, agent_dir: &PodPath, pod: &Pod) -> Result<Self, host::HostError> {
        let meta = &pod.metadata;
        let uid = meta.uid.as_deref().unwrap_or_default();
        let name = meta.name.as_deref().unwrap_or_default();
        let ns = meta.namespace.as_deref().unwrap_or_default();
        let logs = root.parse("/var/log/pods")?.join(&format!("{ns}_{name}_{uid}"))?;
        Ok(PodDirs { pod: agent_dir.join("pods")?.join(uid)?, logs })
    }

    fn volume(&self, plugin: &str, name: &str) -> Result<PodPath, String> {
        self.pod.join("volumes").and_then(|p| p.join(plugin)).and_then(|p| p.join(name)).map_err(text)
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
pub(crate) fn set_up(root: &HostRoot, dirs: &PodDirs, pod: &Pod, content: &Content<'_>) -> Result<BTreeMap<String, PodPath>, VolumeError> {
    let mut out = BTreeMap::new();
    for volume in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
        let failed = |why: String| VolumeError { volume: volume.name.clone(), why };
        let path = if let Some(host_path) = &volume.host_path {
            check_host_path(root, host_path).map_err(failed)?
        } else if let Some(claimed) = content.claims.get(&volume.name) {
            // Messages name the persistent volume, as upstream's.
            let failed = |why: String| VolumeError { volume: claimed.volume.clone(), why };
            check_host_path(root, &claimed.source).map_err(failed)?
        } else {
            let plugin = plugin(volume).ok_or_else(|| failed(unsupported(volume)))?;
            let path = dirs.volume(plugin, &volume.name).map_err(failed)?;
            if let Some(empty) = &volume.empty_dir {
                empty_dir(root, &path, empty).map_err(|e| failed(text(e)))?;
            } else {
                let files = content.files(volume).map_err(failed)?;
                root.create_dir_all(&parent(&path), 0o755).map_err(|e| failed(text(e)))?;
                root.write_volume(&path, &files).map_err(|e| failed(text(e)))?;
            }
            path
        };
        out.insert(volume.name.clone(), path);
    }
    Ok(out)
}

/// An empty directory for everyone, in memory where asked for and Linux has it.
fn empty_dir(root: &HostRoot, path: &PodPath, source: &EmptyDirVolumeSource) -> Result<(), host::HostError> {
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

fn unsupported(volume: &Volume) -> String {
    let value = serde_json::to_value(volume).unwrap_or_default();
    let kind = value.as_object().and_then(|o| o.keys().find(|k| *k != "name").cloned());
    format!(
        "volumes of type {} are not supported by this node agent; supported are emptyDir, hostPath, persistentVolumeClaim, ephemeral, secret, configMap, downwardAPI and projected",
        kind.as_deref().unwrap_or("(none)")
    )
}

/// Checks a hostPath against its type (upstream hostpath volume's type checkers).
fn check_host_path(root: &HostRoot, source: &HostPathVolumeSource) -> Result<PodPath, String> {
    let path = root.parse(&source.path).map_err(text)?;
    let found = root.kind(&path).map_err(text)?;
    let wanted = source.type_.as_deref().unwrap_or_default();
    let is_not = |what: &str| Err(format!("hostPath type check failed: {} is not a {what}", source.path));
    match (wanted, found) {
        ("", _)
        | ("DirectoryOrCreate" | "Directory", Some(FileKind::Directory))
        | ("FileOrCreate" | "File", Some(FileKind::File))
        | ("Socket", Some(FileKind::Socket))
        | ("CharDevice", Some(FileKind::CharDevice))
        | ("BlockDevice", Some(FileKind::BlockDevice)) => Ok(path),
        ("DirectoryOrCreate", None) => {
            root.create_dir_all(&path, 0o755).map_err(text)?;
            Ok(path)
        }
        ("FileOrCreate", None) => {
            root.create_file(&path, 0o644).map_err(text)?;
            Ok(path)
        }
        ("DirectoryOrCreate" | "Directory", _) => is_not("directory"),
        ("FileOrCreate" | "File", _) => is_not("file"),
        ("Socket", _) => is_not("socket"),
        ("CharDevice", _) => is_not("character device"),
        ("BlockDevice", _) => is_not("block device"),
        (other, _) => Err(format!("hostPath type {other:?} is unknown")),
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
pub(crate) fn mount_source(root: &HostRoot, dirs: &PodDirs, mount: &MountOf<'_>, sub_path: &str) -> Result<PodPath, String> {
    if sub_path.is_empty() {
        return Ok(mount.path.clone());
    }
    let name = &mount.volume.name;
    let refused = |why: String| format!("failed to prepare subPath for volumeMount {name:?}: {why}");
    if plugin(mount.volume).is_some() && mount.volume.empty_dir.is_none() {
        // Written by us alone: the names are our links into the current generation.
        let full = mount.path.join(sub_path).map_err(|e| refused(text(e)))?;
        let relative = &full.components()[mount.path.components().len()..];
        return content::current(root, mount.path, relative).map_err(refused);
    }
    let place = format!("volume-subpaths/{name}/{}/{}", mount.container, mount.index);
    let place = dirs.pod.join(&place).map_err(|e| refused(text(e)))?;
    root.sub_path(mount.path, sub_path, &place).map_err(|e| refused(text(e)))
}

/// Removes the pod's volumes; emptyDir content goes, hostPath targets stay.
pub(crate) fn tear_down(root: &HostRoot, dirs: &PodDirs) -> Result<(), host::HostError> {
    root.unmount_below(&dirs.pod)?;
    root.remove_tree(&dirs.pod.join("volumes")?)
}

/// Removes all directories of the pod.
pub(crate) fn remove_all(root: &HostRoot, dirs: &PodDirs) -> Result<(), host::HostError> {
    root.unmount_below(&dirs.pod)?;
    root.remove_tree(&dirs.pod)?;
    root.remove_tree(&dirs.logs)
}

#[cfg(test)]
mod tests;
