//! Records of sandboxes and containers on disk, which a restarted runtime reads.
//!
//! `cri/sandboxes/ID/sandbox.json`, and below it `containers/ID/container.json`. What shims know better (start and end
//! of a container) lies beside in files of theirs.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use k8s_cri::v1;
use serde::{Deserialize, Serialize};

use super::limits::Holders;
use super::network::Netns;
use crate::shim::{Exit, Started, read_json, write_json};
use images::stand_in::StandIn;

/// Version of these files.
const FORMAT: u32 = 1;

/// A sandbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SandboxRecord {
    pub format: u32,
    pub id: String,
    /// Nanoseconds since 1970.
    pub created_at: i64,
    pub config: v1::PodSandboxConfig,
    pub runtime_handler: String,
    pub netns: Netns,
    pub ips: Vec<IpAddr>,
    /// Process id of the shim as the runtime sees it.
    pub shim_pid: i32,
    /// Whether its network was taken down and its shim ended.
    pub stopped: bool,
}

/// A container.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ContainerRecord {
    pub id: String,
    pub sandbox: String,
    pub created_at: i64,
    pub config: v1::ContainerConfig,
    pub image_id: String,
    pub image_ref: String,
    pub stand_in: Option<StandIn>,
    /// Number of the signal that asks it to end.
    pub stop_signal: i32,
    /// In the node's own form.
    pub log_path: String,
    /// What enforces its limits.
    #[serde(default)]
    pub holders: Holders,
    #[serde(skip)]
    pub started: Option<Started>,
    #[serde(skip)]
    pub exit: Option<Exit>,
}

impl ContainerRecord {
    pub(crate) fn state(&self) -> v1::ContainerState {
        match (&self.started, &self.exit) {
            (_, Some(_)) => v1::ContainerState::ContainerExited,
            (Some(_), None) => v1::ContainerState::ContainerRunning,
            (None, None) => v1::ContainerState::ContainerCreated,
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.state() == v1::ContainerState::ContainerRunning
    }
}

/// The directory of all sandboxes of a node.
#[derive(Clone, Debug)]
pub(crate) struct Records {
    dir: PathBuf,
}

impl Records {
    pub(crate) fn open(state_dir: &Path) -> Result<Self> {
        let dir = state_dir.join("cri").join("sandboxes");
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(Self { dir })
    }

    pub(crate) fn sandbox_dir(&self, id: &str) -> PathBuf {
        self.dir.join(id)
    }

    pub(crate) fn container_dir(&self, sandbox: &str, id: &str) -> PathBuf {
        self.sandbox_dir(sandbox).join("containers").join(id)
    }

    pub(crate) fn write_sandbox(&self, record: &SandboxRecord) -> Result<()> {
        let dir = self.sandbox_dir(&record.id);
        std::fs::create_dir_all(dir.join("containers")).with_context(|| format!("cannot make {}", dir.display()))?;
        write_json(&dir.join("sandbox.json"), &SandboxRecord { format: FORMAT, ..record.clone() })
    }

    pub(crate) fn write_container(&self, record: &ContainerRecord) -> Result<()> {
        let dir = self.container_dir(&record.sandbox, &record.id);
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        write_json(&dir.join("container.json"), record)
    }

    /// Start and end of a container as its shim wrote them.
    pub(crate) fn refresh(&self, record: &mut ContainerRecord) {
        let dir = self.container_dir(&record.sandbox, &record.id);
        record.started = read_json(&dir.join("started.json")).ok();
        record.exit = read_json(&dir.join("exit.json")).ok();
    }

    pub(crate) fn write_exit(&self, record: &ContainerRecord, exit: &Exit) -> Result<()> {
        write_json(&self.container_dir(&record.sandbox, &record.id).join("exit.json"), exit)
    }

    /// All records. What cannot be read is logged and left alone.
    pub(crate) fn load(&self) -> Result<(Vec<SandboxRecord>, Vec<ContainerRecord>)> {
        let mut sandboxes = Vec::new();
        let mut containers = Vec::new();
        for dir in subdirectories(&self.dir)? {
            match read_json::<SandboxRecord>(&dir.join("sandbox.json")) {
                Ok(record) if record.format <= FORMAT => sandboxes.push(record),
                Ok(record) => tracing::warn!(dir = %dir.display(), format = record.format, "sandbox was written by a newer version, ignored"),
                Err(error) => {
                    tracing::warn!(dir = %dir.display(), error = format!("{error:#}"), "sandbox cannot be read, ignored");
                    continue;
                }
            }
            for container in subdirectories(&dir.join("containers"))? {
                match read_json::<ContainerRecord>(&container.join("container.json")) {
                    Ok(mut record) => {
                        self.refresh(&mut record);
                        containers.push(record);
                    }
                    Err(error) => {
                        tracing::warn!(dir = %container.display(), error = format!("{error:#}"), "container cannot be read, ignored");
                    }
                }
            }
        }
        Ok((sandboxes, containers))
    }

    pub(crate) fn remove(path: &Path) -> Result<()> {
        // overlayfs makes its work directory inaccessible even to its owner.
        let inner = path.join("work").join("work");
        if inner.exists() {
            use std::os::unix::fs::PermissionsExt as _;
            let _ = std::fs::set_permissions(&inner, std::fs::Permissions::from_mode(0o700));
        }
        match std::fs::remove_dir_all(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).with_context(|| format!("cannot remove {}", path.display())),
            _ => Ok(()),
        }
    }
}

fn subdirectories(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("cannot list {}", dir.display())),
    };
    let mut found: Vec<PathBuf> = entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).filter(|path| path.is_dir()).collect();
    found.sort();
    Ok(found)
}

/// Whether `labels` hold everything that `selector` asks for.
pub(crate) fn selected<S: std::hash::BuildHasher>(
    labels: &std::collections::HashMap<String, String, S>,
    selector: &std::collections::HashMap<String, String, S>,
) -> bool {
    selector.iter().all(|(name, value)| labels.get(name) == Some(value))
}

/// The object that an id or its unambiguous beginning means.
pub(crate) fn by_prefix<'a, T>(objects: &'a BTreeMap<String, T>, id: &str) -> Option<&'a T> {
    if id.is_empty() {
        return None;
    }
    let mut found = objects.range(id.to_owned()..).take_while(|(known, _)| known.starts_with(id));
    match (found.next(), found.next()) {
        (Some((known, object)), second) if second.is_none() || known == id => Some(object),
        _ => None,
    }
}
