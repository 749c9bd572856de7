//! Block devices of volumes, as upstream maps them to pods (pkg/volume/util/volumepathhandler): bound at the volume's own directory of the
//! node, one for each pod, and named by a link in the pod's directory, by which the next agent finds them.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use host::{FileKind, HostError, HostRoot, PathError, PodPath};

use super::PodDirs;

/// Devices that are mapped to pods.
pub(crate) struct Devices {
    root: Arc<HostRoot>,
    /// Open devices, by the place at which each is bound: as long as one is open, no other device gets its number.
    held: Mutex<BTreeMap<PodPath, File>>,
}

/// The places of one volume for one pod.
pub(crate) struct Map {
    /// Where the device is bound, for the pod alone.
    pub place: PodPath,
    /// The link in the pod's directory.
    pub link: PodPath,
}

impl Map {
    /// Of a volume whose devices are bound below `global`; `kind` is its directory below the pod's `volumeDevices`.
    pub(crate) fn new(dirs: &PodDirs, global: &PodPath, kind: &str, name: &str) -> Result<Self, PathError> {
        let uid = dirs.pod.name().unwrap_or_default();
        Ok(Map { place: global.join(uid)?, link: dirs.devices()?.join(kind)?.join(name)? })
    }
}

impl Devices {
    pub(crate) fn new(root: Arc<HostRoot>) -> Self {
        Devices { root, held: Mutex::default() }
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<PodPath, File>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says in the pod's directory that the pod has the volume, before it has.
    pub(crate) fn announce(&self, map: &Map, device: &PodPath) -> Result<(), HostError> {
        self.root.create_dir_all(&parent(&map.link), 0o750)?;
        self.root.link(&map.link, device)
    }

    /// Maps a device to the pod. May be called any number of times.
    pub(crate) fn map(&self, map: &Map, device: &PodPath) -> Result<(), HostError> {
        let open = self.root.map_device(device, &map.place)?;
        self.held().insert(map.place.clone(), open);
        Ok(())
    }

    /// Takes the device from the pod; the pod's link stays.
    pub(crate) fn unmap(&self, map: &Map) -> Result<(), HostError> {
        self.held().remove(&map.place);
        self.root.unmount_below(&map.place)?;
        self.root.remove_tree(&map.place)
    }

    /// The pod has the volume no more.
    pub(crate) fn forget(&self, map: &Map) -> Result<(), HostError> {
        self.root.remove_tree(&map.link)
    }

    /// The pods, by UID, whose directories name a volume of a kind.
    pub(crate) fn users(&self, pods: &PodPath, kind: &str, name: &str) -> Result<Vec<String>, HostError> {
        let mut users = Vec::new();
        for (uid, _) in self.root.read_dir(pods)? {
            let links = self.root.read_dir(&pods.join(&uid)?.join(super::DEVICES)?.join(kind)?)?;
            if links.iter().any(|(link, kind)| link == name && *kind == FileKind::Link) {
                users.push(uid);
            }
        }
        Ok(users)
    }
}

fn parent(path: &PodPath) -> PodPath {
    path.parent().unwrap_or_else(|| path.clone())
}
