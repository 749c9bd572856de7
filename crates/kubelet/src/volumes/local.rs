//! Volumes whose content the agent makes itself, or that are there already: emptyDir, Secret, ConfigMap, downward API, projected, hostPath,
//! and persistent volumes of types hostPath and local.

use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use host::{FileKind, GroupOwner, HostError, HostRoot, PodPath};
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, HostPathVolumeSource, Pod, Volume};

use super::plugin::{Left, Plugin, Request};
use super::{Content, PodDirs, VolumeError};
use crate::claims::{Claimed, Source};

/// The kinds that need nothing but files.
pub(crate) struct Local {
    pub root: Arc<HostRoot>,
}

impl Plugin for Local {
    fn takes(&self, _volume: &Volume, _claimed: Option<&Claimed>) -> bool {
        true
    }

    fn owns(&self, _kind: &str) -> bool {
        true
    }

    fn set_up<'a>(&'a self, request: Request<'a>) -> BoxFuture<'a, Result<PodPath, VolumeError>> {
        std::future::ready(self.place(&request)).boxed()
    }

    /// Files and what is mounted at them go with the pod's directory.
    fn tear_down<'a>(&'a self, _left: &'a Left) -> BoxFuture<'a, Result<(), VolumeError>> {
        std::future::ready(Ok(())).boxed()
    }
}

impl Local {
    fn place(&self, request: &Request<'_>) -> Result<PodPath, VolumeError> {
        match request.claimed.map(|claimed| &claimed.source) {
            Some(Source::Path(source)) => check_host_path(&self.root, source),
            Some(Source::Csi(_) | Source::Flex(_)) | None => set_up(&self.root, request.dirs, request.volume, request.content),
        }
    }
}

/// The API name of a volume's source, and the directory it has below `volumes/`.
pub(super) fn plugin(volume: &Volume) -> Option<&'static str> {
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

/// Makes a volume ready that no claim stands behind.
fn set_up(root: &HostRoot, dirs: &PodDirs, volume: &Volume, content: &Content<'_>) -> Result<PodPath, VolumeError> {
    if let Some(host_path) = &volume.host_path {
        return check_host_path(root, host_path);
    }
    let plugin = plugin(volume).ok_or_else(|| unsupported(volume))?;
    let path = dirs.volume(plugin, &volume.name)?;
    if let Some(empty) = &volume.empty_dir {
        let is_new = root.kind(&path)?.is_none();
        empty_dir(root, &path, empty)?;
        // Once, as upstream: what the pod makes of it afterwards is the pod's.
        if let Some(owner) = owner_of(content.pod, true).filter(|_| is_new) {
            root.give_to_group(&path, owner)?;
        }
    } else {
        let mut files = content.files(volume)?;
        if !root.os().is_windows() {
            content.give_to_group(&mut files);
        }
        root.create_dir_all(&parent(&path), 0o755)?;
        if volume.config_map.is_none() && !root.os().is_windows() {
            keep_off_the_disk(root, &path)?;
        }
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

/// A memory file system for what must not reach a disk, as upstream has it. A directory with content of an earlier agent's stays what it is.
fn keep_off_the_disk(root: &HostRoot, path: &PodPath) -> Result<(), HostError> {
    root.create_dir_all(path, 0o755)?;
    if !root.is_mount(path)? && !root.read_dir(path)?.is_empty() {
        return Ok(());
    }
    match root.mount_memory(path, None) {
        Err(error) if error.is_denied() => {
            tracing::warn!(%path, "the node agent may not mount file systems: secrets and tokens are written to the disk; run it as root");
            Ok(())
        }
        other => other,
    }
}

fn parent(path: &PodPath) -> PodPath {
    path.parent().unwrap_or_else(|| path.clone())
}

pub(super) fn unsupported(volume: &Volume) -> VolumeError {
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

/// To whom the pod's volumes are given, where its security context names a group.
pub(super) fn owner_of(pod: &Pod, writable: bool) -> Option<GroupOwner> {
    let context = pod.spec.as_ref()?.security_context.as_ref()?;
    let group = u32::try_from(context.fs_group?).ok()?;
    let only_on_mismatch = context.fs_group_change_policy.as_deref() == Some("OnRootMismatch");
    Some(GroupOwner { group, writable, only_on_mismatch })
}
