//! What the node's disk says of volumes: which are published to pods, and which are staged. It outlives the agent, and it is upstream's.

use csi::VolumeData;
use host::{HostError, PodPath};

use super::{Csi, CsiError, DIRECTORY};

/// Where volumes are staged, below the agent's directory.
const STAGED: &str = "plugins/kubernetes.io/csi";

impl Csi {
    /// The directory that holds a volume's staging directory.
    pub(super) fn staged_dir(&self, driver: &str, handle: &str) -> Result<PodPath, CsiError> {
        Ok(self.dir.join(STAGED)?.join(driver)?.join(&kube_rules::csi::digest(handle))?)
    }

    pub(super) fn save(&self, dir: &PodPath, data: &VolumeData) -> Result<(), CsiError> {
        self.root.create_dir_all(dir, 0o750)?;
        Ok(self.root.write_file(&dir.join(csi::DATA_FILE)?, &data.to_bytes(), 0o644)?)
    }

    /// What the file in a directory says; None when there is none.
    pub(super) fn load(&self, dir: &PodPath) -> Result<Option<VolumeData>, CsiError> {
        let bytes = self.root.read(&dir.join(csi::DATA_FILE)?, csi::MAX_DATA_FILE + 1)?;
        bytes.map(|bytes| VolumeData::parse(&bytes)).transpose().map_err(|source| CsiError::Data { dir: dir.clone(), source })
    }

    /// Removes a volume's file and its two directories, which are empty unless the driver has left something.
    pub(super) fn forget(&self, dir: &PodPath, inner: &str) -> Result<(), CsiError> {
        let mount = dir.join(inner)?;
        if self.root.is_mount(&mount)? {
            return Err(CsiError::StillMounted { path: mount });
        }
        self.root.remove_dir(&mount)?;
        self.root.remove_tree(&dir.join(csi::DATA_FILE)?)?;
        Ok(self.root.remove_dir(dir)?)
    }

    /// The volumes that are published to pods.
    pub(super) fn published(&self) -> Result<Vec<VolumeData>, HostError> {
        let pods = self.dir.join("pods")?;
        let mut all = Vec::new();
        for (pod, _) in self.root.read_dir(&pods)? {
            let volumes = pods.join(&pod)?.join("volumes")?.join(DIRECTORY)?;
            for (name, _) in self.root.read_dir(&volumes)? {
                // One that cannot be read is reported by whoever takes it down.
                all.extend(self.load(&volumes.join(&name)?).ok().flatten());
            }
        }
        Ok(all)
    }

    /// The volumes that are staged, with the directory of each.
    pub(super) fn staged(&self) -> Result<Vec<(PodPath, VolumeData)>, HostError> {
        let drivers = self.dir.join(STAGED)?;
        let mut all = Vec::new();
        for (driver, _) in self.root.read_dir(&drivers)?.into_iter().filter(|(name, _)| name != "volumeDevices") {
            let volumes = drivers.join(&driver)?;
            for (name, _) in self.root.read_dir(&volumes)? {
                let dir = volumes.join(&name)?;
                all.extend(self.load(&dir).ok().flatten().map(|data| (dir, data)));
            }
        }
        Ok(all)
    }
}
