//! Specifications of sandboxes and containers: plain types that the runtime writes and the stages read.
//!
//! `root` holds the behaviour of each root, `program` that of each program.

use std::collections::BTreeMap;
use std::path::PathBuf;

use host::{HostError, HostRoot, NodeOs};
use serde::{Deserialize, Serialize};

use super::limits::Limits;
use super::seccomp::Seccomp;

/// Where a node's files are on the machine that simulates it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostDirs {
    /// `/` of a Linux node.
    Root(PathBuf),
    /// Drive letter → directory.
    Drives(BTreeMap<char, PathBuf>),
}

impl HostDirs {
    /// Opens them.
    ///
    /// # Errors
    /// When a directory is missing.
    pub fn open(&self, os: NodeOs) -> Result<HostRoot, HostError> {
        match self {
            Self::Root(dir) => HostRoot::linux(dir),
            Self::Drives(drives) => HostRoot::windows(os, drives.iter().map(|(letter, dir)| (*letter, dir.clone()))),
        }
    }
}

/// `shim.json`: what stages 1 and 2 have to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ShimSpec {
    /// Network namespace to enter; none for pods on the host's network.
    pub netns: Option<PathBuf>,
    /// Host name of the pod; none keeps the node's.
    pub hostname: Option<String>,
    /// Whether System V and POSIX queues are the node's.
    #[serde(default)]
    pub host_ipc: bool,
    /// Kernel settings of the pod's own namespaces, by their dotted names.
    pub sysctls: BTreeMap<String, String>,
    pub os: NodeOs,
    pub host: HostDirs,
}

/// `start.json` of a container: what stage 3 has to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StartSpec {
    pub os: NodeOs,
    pub host: HostDirs,
    pub root: RootSpec,
    pub mounts: Vec<MountSpec>,
    pub program: Program,
    pub env: Vec<(String, String)>,
    /// In the node's own form; none: output is dropped.
    pub log: Option<String>,
    pub stdin: bool,
    /// Whether the input ends with the first client that was attached to it.
    #[serde(default)]
    pub stdin_once: bool,
    pub tty: bool,
    /// Which processes the program sees. Read at the start only.
    #[serde(default)]
    pub pids: Pids,
    pub security: Security,
    #[serde(default)]
    pub limits: Limits,
    /// Account of a Windows program, as the pod or the image names it; empty: ContainerAdministrator.
    #[serde(default)]
    pub account: String,
}

/// Which processes a container's program sees.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Pids {
    /// Its own, in a pid namespace where it is pid 1.
    #[default]
    Own,
    /// Those of the pod.
    Pod,
    /// Those of the running container with this id.
    Container(String),
}

/// How a container's root is put together.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RootSpec {
    /// Layers, lowest first, by directory name below `layers_dir`.
    Layers { layers_dir: PathBuf, layers: Vec<String> },
    /// One directory per drive letter below the container's `root` directory.
    Drives,
    /// Drives that Windows programs can use.
    Wine(WineRoot),
}

/// A root in which Wine runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WineRoot {
    /// What the Windows prefix is made of, highest first.
    pub lowers: Vec<PathBuf>,
    /// Modules of Wine's, and those of the machine in whose place they are used.
    #[serde(default)]
    pub modules: Vec<(PathBuf, PathBuf)>,
    /// The pod's resolver file.
    pub resolver: Option<PathBuf>,
    /// For HostProcess containers: unpacked layers of the image, highest first. Drive C is the node's then, and they are below `C:\hpc`.
    #[serde(default)]
    pub host_process: Option<Vec<PathBuf>>,
    /// For HostProcess containers: the power switch of the node's machine.
    #[serde(default)]
    pub power: Option<PathBuf>,
    /// The domain of the container's group managed service account.
    #[serde(default)]
    pub domain: Option<String>,
}

/// Something that appears in a container.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MountSpec {
    pub source: MountSource,
    /// Path in the container, in its own form.
    pub target: String,
    pub readonly: bool,
    #[serde(default)]
    pub propagation: Propagation,
}

/// Whether mounts that are made below a volume later on are seen on the other side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Propagation {
    #[default]
    None,
    /// The node's in the container.
    FromNode,
    /// And the container's on the node.
    Both,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MountSource {
    /// A path of the node, as the CRI request named it.
    Node(String),
    /// A device of the node, as the CRI request named it.
    Device(String),
    /// A file that the runtime made.
    Own(PathBuf),
    /// Layers of another image, lowest first; never to be written.
    Layers {
        layers_dir: PathBuf,
        layers: Vec<String>,
        /// The part that is shown: a path in the image; empty for all of it.
        #[serde(default)]
        part: String,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Program {
    /// The image's or the pod's command.
    Exec { argv: Vec<String>, cwd: String },
    /// A command line of Windows.
    Windows { line: String, cwd: String },
    /// A program of `guest`, in this same process.
    StandIn { name: String, dns: guest::Dns },
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Security {
    pub privileged: bool,
    pub no_new_privs: bool,
    pub readonly_root: bool,
    pub add_capabilities: Vec<String>,
    pub drop_capabilities: Vec<String>,
    pub masked_paths: Vec<String>,
    pub readonly_paths: Vec<String>,
    /// `UID[:GID]` or a name out of the image's `/etc/passwd`.
    pub user: String,
    pub group: Option<u32>,
    pub groups: Vec<u32>,
    /// Whether the groups that the image's `/etc/group` gives the user are left out.
    #[serde(default)]
    pub strict_groups: bool,
    #[serde(default)]
    pub seccomp: Seccomp,
}
