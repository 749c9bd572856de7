//! Records of sandboxes and containers on disk, which a restarted runtime reads.
//!
//! `cri/sandboxes/ID/sandbox.json`, and below it `containers/ID/container.json`. What shims know better (start and end
//! of a container) lies beside in files of theirs.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use k8s_cri::v1;
use serde::{Deserialize, Serialize};

use super::limits::Holders;
use super::network::Netns;
use crate::shim::{Exit, Started, read_json, write_json};
use images::stand_in::StandIn;
use thiserror_ext::AsReport as _;

/// Version of a sandbox's file and of its containers' files.
const FORMAT: u32 = 1;

/// The version that a sandbox's file has.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

/// Everything that was found on disk.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    pub sandboxes: Vec<SandboxRecord>,
    pub containers: Vec<ContainerRecord>,
    /// Ids of sandboxes that this version cannot read. Their shims may be running: their addresses stay taken.
    pub ignored: Vec<String>,
}

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

    /// Everything that was written. What cannot be read is logged and left alone, a sandbox with its containers.
    pub(crate) fn load(&self) -> Result<Loaded> {
        let mut loaded = Loaded::default();
        for dir in subdirectories(&self.dir)? {
            match read_sandbox(&dir) {
                Ok(record) => {
                    loaded.sandboxes.push(record);
                    self.load_containers(&dir, &mut loaded.containers)?;
                }
                Err(error) => {
                    tracing::warn!(dir = %dir.display(), error = %error.as_report(), "a sandbox cannot be read, ignored");
                    loaded.ignored.extend(dir.file_name().map(|id| id.to_string_lossy().into_owned()));
                }
            }
        }
        Ok(loaded)
    }

    fn load_containers(&self, sandbox: &Path, containers: &mut Vec<ContainerRecord>) -> Result<()> {
        for dir in subdirectories(&sandbox.join("containers"))? {
            match read_json::<ContainerRecord>(&dir.join("container.json")) {
                Ok(mut record) => {
                    self.refresh(&mut record);
                    containers.push(record);
                }
                Err(error) => tracing::warn!(dir = %dir.display(), error = %error.as_report(), "a container cannot be read, ignored"),
            }
        }
        Ok(())
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

/// The record of the sandbox in `dir`.
fn read_sandbox(dir: &Path) -> Result<SandboxRecord> {
    let path = dir.join("sandbox.json");
    // The format first: a newer one may have anything else in other places.
    let Format { format } = read_json(&path)?;
    if format > FORMAT {
        bail!("{} has format {format}, written by a newer version: this one reads up to {FORMAT}", path.display());
    }
    read_json(&path)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn written(records: &Records, id: &str, format: u32) {
        let dir = records.sandbox_dir(id);
        let container = dir.join("containers").join(format!("{id}-c"));
        std::fs::create_dir_all(&container).unwrap();
        let sandbox = SandboxRecord {
            format,
            id: id.to_owned(),
            created_at: 1,
            config: v1::PodSandboxConfig::default(),
            runtime_handler: String::new(),
            netns: Netns::Own,
            ips: Vec::new(),
            shim_pid: 1,
            stopped: false,
        };
        let record = ContainerRecord {
            id: format!("{id}-c"),
            sandbox: id.to_owned(),
            created_at: 1,
            config: v1::ContainerConfig::default(),
            image_id: String::new(),
            image_ref: String::new(),
            stand_in: None,
            stop_signal: 15,
            log_path: String::new(),
            holders: Holders::default(),
            started: None,
            exit: None,
        };
        write_json(&dir.join("sandbox.json"), &sandbox).unwrap();
        write_json(&container.join("container.json"), &record).unwrap();
    }

    #[test]
    fn sandboxes_of_newer_versions_are_left_alone_with_their_containers() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path()).unwrap();
        written(&records, "known", FORMAT);
        written(&records, "newer", FORMAT + 1);
        // A newer version may write its other members differently.
        std::fs::create_dir_all(records.sandbox_dir("newest")).unwrap();
        std::fs::write(records.sandbox_dir("newest").join("sandbox.json"), format!(r#"{{"format": {}, "id": 7}}"#, FORMAT + 2)).unwrap();
        let loaded = records.load().unwrap();
        assert_eq!(loaded.sandboxes.iter().map(|record| record.id.as_str()).collect::<Vec<_>>(), ["known"]);
        assert_eq!(loaded.containers.iter().map(|record| record.id.as_str()).collect::<Vec<_>>(), ["known-c"]);
        assert_eq!(loaded.ignored, ["newer", "newest"], "their addresses stay taken");
    }
}
