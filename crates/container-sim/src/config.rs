//! Configuration of a runtime.

use std::path::PathBuf;

use host::NodeOs;

pub use crate::shim::HostDirs;
use images::registry::Registries;

/// Settings of one node's runtime.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the node, for messages.
    pub node: String,
    /// What the node runs.
    pub os: NodeOs,
    /// Unix socket to serve CRI on (`RUN/NODE.cri`). A left-over socket is replaced.
    pub socket: PathBuf,
    /// `DIR/hosts/NODE`: sandboxes go to `cri/`, image references to `images/`, CNI's memory to `cni/cache/`.
    pub state_dir: PathBuf,
    /// Cache of unpacked layers, shared by all clusters.
    pub cache_dir: PathBuf,
    /// The node's own files, to which CRI host paths refer.
    pub host: HostDirs,
    /// Where network namespaces are pinned (`RUN/ns/NODE.d`): by us on Linux nodes, by HNS on Windows nodes.
    pub netns_dir: PathBuf,
    /// Address of the node's HNS (`unix:PATH`); required on Windows nodes.
    pub hcn: Option<String>,
    /// Network configurations, and plug-ins that are not ours.
    pub cni: CniDirs,
    /// Logical processors of the simulated machine, of which Windows' CPU limits are shares.
    pub processors: u32,
    /// How registries are reached.
    pub registries: Registries,
    /// Whether stand-ins may answer for images that need a real Windows.
    pub stand_ins: bool,
    /// The power switch of the node's machine, for HostProcess containers: a directory with a pipe for requests
    /// ([`guest::tools::REQUEST`]).
    pub power_dir: Option<PathBuf>,
    /// Version of the Windows template that containers need ([`wine::template::Programs::version`]); none accepts any.
    pub template: Option<String>,
}

/// Where CNI finds its files.
#[derive(Clone, Debug)]
pub struct CniDirs {
    /// Network configurations; the first by name is used.
    pub conf_dir: PathBuf,
    /// Plug-ins beside our own.
    pub bin_dir: PathBuf,
}
