//! Volumes whose content the agent makes itself, or that are there already: emptyDir, Secret, ConfigMap, downward API, projected, hostPath,
//! and persistent volumes of types hostPath and local.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use host::{FileKind, GroupOwner, HostError, HostRoot, PathError, PodPath, Reader};
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, HostPathVolumeSource, Pod, Volume};
use tokio::sync::Semaphore;

use super::devices::{Devices, Map};
use super::huge_pages::{Medium, medium};
use super::plugin::{Left, Plugin, Request};
use super::{Content, PodDirs, VolumeError};
use crate::claims::{Claimed, Source};

/// The kinds that need nothing but files.
pub(crate) struct Local {
    pub root: Arc<HostRoot>,
    /// Persistent volumes of type local that are devices.
    pub devices: Devices,
    /// Places for looks at other machines, which last as long as these are silent.
    pub looks: Arc<Semaphore>,
}

/// Looks at other machines at once.
pub(crate) const LOOKS: usize = 4;
/// How long a volume waits for another machine.
const SILENCE: Duration = Duration::from_secs(10);

/// The directory of persistent volumes of type local below a pod's `volumeDevices`, and below the agent's `plugins`.
const LOCAL: &str = "kubernetes.io~local-volume";

impl Plugin for Local {
    fn takes(&self, _volume: &Volume, _claimed: Option<&Claimed>) -> bool {
        true
    }

    fn owns(&self, _kind: &str) -> bool {
        true
    }

    fn set_up<'a>(&'a self, request: Request<'a>) -> BoxFuture<'a, Result<PodPath, VolumeError>> {
        match host_path(&request).filter(|source| is_on_share(&self.root, source)) {
            Some(source) => self.look(source.clone()).boxed(),
            None => std::future::ready(self.place(&request)).boxed(),
        }
    }

    /// Files and what is mounted at them go with the pod's directory.
    fn tear_down<'a>(&'a self, left: &'a Left) -> BoxFuture<'a, Result<(), VolumeError>> {
        std::future::ready(if left.is_device { self.unmap(&left.dir) } else { Ok(()) }).boxed()
    }
}

impl Local {
    /// Checks a path on a share beside the agent's other work.
    async fn look(&self, source: HostPathVolumeSource) -> Result<PodPath, VolumeError> {
        let path = source.path.clone();
        let look = async {
            let place = self.looks.clone().acquire_owned().await.ok();
            let root = self.root.clone();
            let check = tokio::task::spawn_blocking(move || (check_host_path(&root, &source), place));
            check.await.map(|(checked, _)| checked)
        };
        match tokio::time::timeout(SILENCE, look).await {
            Ok(Ok(checked)) => checked,
            Ok(Err(_)) | Err(_) => Err(VolumeError::ShareSilent { path }),
        }
    }

    fn place(&self, request: &Request<'_>) -> Result<PodPath, VolumeError> {
        match request.claimed.map(|claimed| &claimed.source) {
            Some(Source::Path(source)) => check_host_path(&self.root, source),
            Some(Source::Device { path }) => self.map(request, path),
            Some(Source::Csi(_) | Source::Flex(_)) | None => set_up(&self.root, request.dirs, request.volume, request.content),
        }
    }
}

impl Local {
    /// Where the device of a volume is bound for its pods, in upstream's place; `pod` is a pod's directory.
    fn global(pod: &PodPath, name: &str) -> Result<PodPath, PathError> {
        let dir = pod.parent().and_then(|pods| pods.parent()).unwrap_or_else(|| pod.clone());
        dir.join("plugins")?.join(LOCAL)?.join("volumeDevices")?.join(name)
    }

    fn map(&self, request: &Request<'_>, path: &str) -> Result<PodPath, VolumeError> {
        let name = request.claimed.map_or(&request.volume.name, |claimed| &claimed.volume);
        let map = Map::new(request.dirs, &Self::global(&request.dirs.pod, name)?, LOCAL, name)?;
        if request.mounted.is_none() {
            let device = self.root.parse(path)?;
            self.devices.announce(&map, &device)?;
            self.devices.map(&map, &device)?;
        }
        Ok(map.place)
    }

    fn unmap(&self, link: &PodPath) -> Result<(), VolumeError> {
        let name = link.name().unwrap_or_default();
        let pod = link.parent().and_then(|kind| kind.parent()?.parent()).unwrap_or_else(|| link.clone());
        let global = Self::global(&pod, name)?;
        let map = Map { place: global.join(pod.name().unwrap_or_default())?, link: link.clone() };
        self.devices.unmap(&map)?;
        self.devices.forget(&map)?;
        if self.root.read_dir(&global)?.is_empty() {
            self.root.remove_dir(&global)?;
        }
        Ok(())
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
        let medium = medium(empty.medium.as_deref().unwrap_or_default(), content.pod, root.os())?;
        let is_new = root.kind(&path)?.is_none() || (medium != Medium::Disk && !root.is_mount(&path)?);
        empty_dir(root, &path, empty, medium)?;
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
        let readers = (volume.config_map.is_none() && root.os().is_windows()).then(|| readers(content.pod));
        root.write_volume(&path, &files, readers.as_ref())?;
    }
    Ok(path)
}

/// An empty directory for everyone on its medium.
fn empty_dir(root: &HostRoot, path: &PodPath, source: &EmptyDirVolumeSource, medium: Medium) -> Result<(), HostError> {
    root.create_dir_all(&parent(path), 0o755)?;
    root.create_dir_all(path, 0o777)?;
    match medium {
        Medium::Disk => Ok(()),
        Medium::Memory => {
            let size = source.size_limit.as_ref().and_then(|q| kube_rules::Quantity::parse(&q.0).ok());
            root.mount_memory(path, size.map(|q| q.value().max(0) as u64))
        }
        Medium::HugePages(page) => root.mount_huge_pages(path, page),
    }
}

/// Who may read a pod's Secrets and tokens on a Windows node: the accounts of containers and of IIS' workers, those of the system that the
/// pod names, and all users where it names an account that only its image knows.
fn readers(pod: &Pod) -> BTreeSet<Reader> {
    let mut readers = BTreeSet::from([Reader::ContainerAdministrator, Reader::ContainerUser, Reader::WebServer]);
    let Some(spec) = &pod.spec else { return readers };
    let of_pod = spec.security_context.iter().filter_map(|context| context.windows_options.as_ref());
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let of_containers = containers.filter_map(|container| container.security_context.as_ref()?.windows_options.as_ref());
    for name in of_pod.chain(of_containers).filter_map(|options| options.run_as_user_name.as_deref()) {
        let name = name.to_lowercase();
        readers.extend(match name.rsplit('\\').next().unwrap_or_default() {
            "" | "system" | "containeradministrator" | "containeruser" => None,
            "local service" | "localservice" => Some(Reader::LocalService),
            "network service" | "networkservice" => Some(Reader::NetworkService),
            _ => Some(Reader::Users),
        });
    }
    readers
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

/// Checks a named pipe or a path on a share against its type. Without a type nothing is checked, as for every hostPath: the runtime opens it.
fn check_remote(source: &HostPathVolumeSource, path: PodPath, kind: impl Fn(&str) -> Option<FileKind>) -> Result<PodPath, VolumeError> {
    let wanted = source.type_.as_deref().unwrap_or_default();
    // A pipe is none of the kinds that have a type, as upstream.
    let found = if is_pipe(&path) { None } else { kind(&path.to_string()) };
    let is_not = |expected| Err(VolumeError::HostPathType { path: source.path.clone(), expected });
    match (wanted, found) {
        ("", _) | ("DirectoryOrCreate" | "Directory", Some(FileKind::Directory)) | ("FileOrCreate" | "File", Some(FileKind::File)) => Ok(path),
        ("DirectoryOrCreate" | "Directory", _) => is_not("directory"),
        ("FileOrCreate" | "File", _) => is_not("file"),
        ("Socket", _) => is_not("socket"),
        ("CharDevice", _) => is_not("character device"),
        ("BlockDevice", _) => is_not("block device"),
        (other, _) => Err(VolumeError::HostPathTypeUnknown(other.to_owned())),
    }
}

/// The path of the node that a volume is, its own or that of its claim.
fn host_path<'a>(request: &Request<'a>) -> Option<&'a HostPathVolumeSource> {
    match request.claimed.map(|claimed| &claimed.source) {
        Some(Source::Path(source)) => Some(source),
        Some(_) => None,
        None => request.volume.host_path.as_ref(),
    }
}

/// Whether another machine has to be asked what a path is.
fn is_on_share(root: &HostRoot, source: &HostPathVolumeSource) -> bool {
    let has_type = source.type_.as_deref().is_some_and(|type_| !type_.is_empty());
    has_type && PodPath::remote(root.os(), &source.path).is_some_and(|path| !is_pipe(&path))
}

fn is_pipe(path: &PodPath) -> bool {
    path.components().first().is_some_and(|name| name == ".")
}

/// What a path on a share is, which is below no drive of the node.
fn kind_on_share(path: &str) -> Option<FileKind> {
    let metadata = std::fs::metadata(path).ok().filter(|_| cfg!(windows))?;
    Some(if metadata.is_dir() { FileKind::Directory } else { FileKind::File })
}

/// Checks a hostPath against its type (upstream hostpath volume's type checkers).
fn check_host_path(root: &HostRoot, source: &HostPathVolumeSource) -> Result<PodPath, VolumeError> {
    if let Some(remote) = PodPath::remote(root.os(), &source.path) {
        return check_remote(source, remote, kind_on_share);
    }
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
            root.create_shared_dir_all(&path, 0o755)?;
            Ok(path)
        }
        ("FileOrCreate", None) => {
            root.create_shared_file(&path, 0o644)?;
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pipes_and_shares_are_host_paths_of_windows() {
        let os = host::NodeOs::Windows { build: 20348 };
        let of = |path: &str, type_: &str| {
            let source = HostPathVolumeSource { path: path.to_owned(), type_: Some(type_.to_owned()).filter(|type_| !type_.is_empty()) };
            let kind = |path: &str| path.ends_with("dir").then_some(FileKind::Directory).or(path.ends_with("file").then_some(FileKind::File));
            let remote = PodPath::remote(os, path).unwrap();
            check_remote(&source, remote, kind).map(|path| path.to_string()).map_err(|error| error.to_string())
        };
        let pipe = r"\\.\pipe\docker_engine";
        assert_eq!(of(pipe, ""), Ok(pipe.to_owned()));
        for kind in ["File", "Directory", "Socket", "CharDevice", "FileOrCreate", "Other"] {
            assert!(of(pipe, kind).is_err(), "{kind}");
        }
        assert_eq!(of(r"\\files\share\dir", "Directory"), Ok(r"\\files\share\dir".to_owned()));
        assert!(of("//files/share/file", "File").is_ok() && of("//files/share/gone", "").is_ok());
        assert!(of("//files/share/file", "Directory").unwrap_err().contains("directory"));
        // A whole check, and what never was a path.
        let dir = tempfile::tempdir().unwrap();
        let root = HostRoot::windows(os, [('C', dir.path().to_owned())]).unwrap();
        let check = |path: &str| check_host_path(&root, &HostPathVolumeSource { path: path.to_owned(), type_: None }).map(|path| path.to_string());
        assert_eq!(check("//./pipe/x").unwrap(), r"\\.\pipe\x");
        assert!(check(r"\\.\PhysicalDrive0").is_err() && check(r"\\?\C:\x").is_err());
    }

    #[test]
    fn secrets_are_read_by_the_accounts_that_the_pod_names() {
        let usual = [Reader::ContainerAdministrator, Reader::ContainerUser, Reader::WebServer];
        let with = |more: &[Reader]| usual.iter().chain(more).copied().collect::<BTreeSet<_>>();
        let of = |pod: &str, container: &str| {
            let options = |name: &str| json!({"windowsOptions": {"runAsUserName": name}});
            let spec = json!({"securityContext": options(pod), "containers": [{"name": "c", "securityContext": options(container)}]});
            readers(&serde_json::from_value(json!({"spec": spec})).unwrap())
        };
        assert_eq!(readers(&Pod::default()), with(&[]));
        assert_eq!(of("ContainerUser", r"User Manager\ContainerAdministrator"), with(&[]));
        assert_eq!(of(r"NT AUTHORITY\SYSTEM", r"NT AUTHORITY\NETWORK SERVICE"), with(&[Reader::NetworkService]));
        assert_eq!(of(r"nt authority\local service", "ContainerUser"), with(&[Reader::LocalService]));
        assert_eq!(of("ContainerUser", "imageuser"), with(&[Reader::Users]));
    }
}
