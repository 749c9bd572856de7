//! Volumes of CSI drivers (upstream pkg/volume/csi, pkg/kubelet/pluginmanager).
//!
//! A driver makes itself known by a socket (`registry`), and the CSINode says so (`node_info`). A persistent volume is attached by others
//! (`attach`), staged once on the node, published to each pod (`mount`), and taken down in the reverse order. What is there is read from the
//! disk (`disk`), never from memory, so that the agent may end at any point, and so that upstream's may take over.

mod attach;
mod block;
mod disk;
mod expand;
mod mount;
mod node_info;
mod object;
mod registry;
mod source;
mod stats;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use csi::DataError;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use host::{HostError, HostRoot, PathError, PodPath};
use k8s_openapi::api::core::v1::{Node, Volume};
use kube_rules::csi::migration::{self, MigrationError};
use tokio::sync::{OwnedMutexGuard, watch};

use super::VolumeError;
use super::devices::Devices;
use super::plugin::{Left, Plugin, Request};
use crate::claims::{Claimed, Source};
use crate::devices;
use crate::error::ApiError;
use crate::tokens::{TokenCache, TokenError};
use attach::AttachError;
use object::Objects;
use registry::Registered;
pub(crate) use registry::keep;
pub(crate) use source::CsiVolume;

/// The directory of such volumes below a pod's `volumes/`.
const DIRECTORY: &str = "kubernetes.io~csi";
/// Where a volume is below its own directory.
const MOUNT: &str = "mount";
/// Where a volume is staged below its own directory.
const GLOBAL: &str = "globalmount";

/// Why a node is not ready whose CSINode has not been written yet, in upstream's words.
pub(crate) const UNINITIALIZED: &str = "CSINode is not yet initialized";

/// Why a volume of a driver is not mounted, or not taken down.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CsiError {
    #[error("kubernetes.io/csi: driver name {0} not found in the list of registered CSI drivers")]
    NoDriver(String),
    #[error("reading CSIDriver {driver} failed")]
    Object { driver: String, source: ApiError },
    #[error("kubernetes.io/csi: volume mode {mode:?} not supported by driver {driver} ({})", supported(.modes.as_deref()))]
    Mode { driver: String, mode: &'static str, modes: Option<Vec<String>> },
    #[error("volumeMode Block is not supported on Windows nodes; claim a volume with volumeMode Filesystem")]
    Block,
    #[error(transparent)]
    Migration(#[from] MigrationError),
    #[error(transparent)]
    Attach(#[from] AttachError),
    #[error(transparent)]
    Stage(csi::Error),
    #[error(transparent)]
    Call(#[from] csi::Error),
    #[error(transparent)]
    Expand(csi::Error),
    #[error("cannot grow the volume of claim {claim}: reading or writing its objects failed")]
    Claim { claim: String, source: ApiError },
    #[error("fetching secret {namespace}/{name} for the driver failed")]
    Secret { namespace: String, name: String, source: ApiError },
    #[error("key {key:?} of secret {namespace}/{name} is no UTF-8 text, which is all that CSI can carry")]
    SecretText { namespace: String, name: String, key: String },
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error("cannot read what {dir} says of its volume")]
    Data { dir: PodPath, source: DataError },
    #[error("cannot remove {path}: the driver has left something mounted there")]
    StillMounted { path: PodPath },
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Path(#[from] PathError),
}

impl CsiError {
    /// The step that failed, in upstream's words.
    pub(super) fn step(&self, block: bool) -> &'static str {
        match self {
            CsiError::Stage(_) if block => "SetUpDevice",
            CsiError::Call(_) if block => "MapPodDevice",
            CsiError::Host(_) if block => "MapBlockVolume",
            CsiError::Attach(_) => "WaitForAttach",
            CsiError::Stage(_) => "MountDevice",
            CsiError::Expand(_) | CsiError::Claim { .. } => "NodeExpandVolume",
            _ if block => "SetUpDevice",
            _ => "SetUp",
        }
    }
}

/// What a driver's object says of modes.
fn supported(modes: Option<&[String]>) -> String {
    modes.map_or_else(|| "no CSIDriver object".to_owned(), |modes| format!("only supports {modes:?}"))
}

/// Volumes of drivers.
pub(crate) struct Csi {
    root: Arc<HostRoot>,
    /// The agent's directory on the node.
    dir: PodPath,
    client: kube::Client,
    node: cluster::Informer<Node>,
    node_name: String,
    tokens: Arc<TokenCache>,
    objects: Objects,
    registered: Mutex<BTreeMap<String, Registered>>,
    /// What the Node's status says is in use.
    in_use: watch::Sender<BTreeSet<String>>,
    /// Why the node cannot have volumes of drivers yet.
    trouble: watch::Sender<Option<String>>,
    /// What this agent has staged.
    fresh: Mutex<BTreeSet<String>>,
    /// The volumes of pods that this agent has mounted, by pod UID and volume.
    mounted: Mutex<BTreeMap<(String, String), Mounted>>,
    /// Those that are devices.
    devices: Devices,
    /// One thing at a time is done with a volume.
    locks: Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>,
    /// They register in the same directory.
    device_plugins: Arc<devices::Devices>,
}

/// A volume that is mounted for a pod.
#[derive(Clone)]
struct Mounted {
    driver: String,
    handle: String,
    path: PodPath,
    /// Where it is staged, where it is.
    staging: Option<PodPath>,
    /// The claim behind it; None for one that is written into the pod.
    claim: Option<String>,
    can: csi::Capabilities,
}

/// What [`Csi`] is built from.
pub(crate) struct Parts {
    pub root: Arc<HostRoot>,
    pub dir: PodPath,
    pub client: kube::Client,
    pub api: cluster::ApiServer,
    pub node: cluster::Informer<Node>,
    pub node_name: String,
    pub tokens: Arc<TokenCache>,
    pub in_use: watch::Sender<BTreeSet<String>>,
    /// Why the node cannot have volumes of drivers yet, in the words of the Ready condition; it begins with [`UNINITIALIZED`].
    pub trouble: watch::Sender<Option<String>>,
    pub device_plugins: Arc<devices::Devices>,
}

impl Csi {
    /// Volumes of drivers; those that an earlier agent left are in use from the start.
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { root, dir, client, api, node, node_name, tokens, in_use, trouble, device_plugins } = parts;
        let objects = Objects::new(client.clone(), api);
        let csi = Csi {
            devices: Devices::new(root.clone()),
            root,
            dir,
            client,
            node,
            node_name,
            tokens,
            objects,
            registered: Mutex::default(),
            in_use,
            trouble,
            fresh: Mutex::default(),
            mounted: Mutex::default(),
            locks: Mutex::default(),
            device_plugins,
        };
        csi.in_use.send_replace(csi.used().unwrap_or_default());
        csi
    }

    /// The persistent volumes that the disk says are in use.
    fn used(&self) -> Result<BTreeSet<String>, HostError> {
        let published = self.published()?.into_iter().filter(|data| data.mode != "Ephemeral");
        let staged = self.staged()?.into_iter().map(|(_, data)| data);
        let all = published.chain(staged).chain(self.devices_there()?.into_iter().map(|(_, data)| data));
        Ok(all.map(|data| kube_rules::csi::unique_name(&data.driver, &data.handle)).collect())
    }

    fn registered(&self) -> MutexGuard<'_, BTreeMap<String, Registered>> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fresh(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.fresh.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mounted(&self) -> MutexGuard<'_, BTreeMap<(String, String), Mounted>> {
        self.mounted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn driver(&self, name: &str) -> Result<csi::Driver, CsiError> {
        self.registered().get(name).map(|known| known.driver.clone()).ok_or_else(|| CsiError::NoDriver(name.to_owned()))
    }

    /// Holds a volume until the guard is dropped.
    async fn hold(&self, unique: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
            locks.retain(|_, lock| lock.strong_count() > 0);
            let known = locks.get(unique).and_then(Weak::upgrade);
            let lock = known.unwrap_or_default();
            locks.insert(unique.to_owned(), Arc::downgrade(&lock));
            lock
        };
        lock.lock_owned().await
    }
}

impl Plugin for Csi {
    fn takes(&self, volume: &Volume, claimed: Option<&Claimed>) -> bool {
        volume.csi.is_some() || migration::is_inline(volume) || claimed.is_some_and(|claimed| matches!(claimed.source, Source::Csi(_)))
    }

    fn owns(&self, kind: &str) -> bool {
        kind == DIRECTORY
    }

    fn set_up<'a>(&'a self, request: Request<'a>) -> BoxFuture<'a, Result<PodPath, VolumeError>> {
        async move { Ok(self.mount(&request).await?) }.boxed()
    }

    fn tear_down<'a>(&'a self, left: &'a Left) -> BoxFuture<'a, Result<(), VolumeError>> {
        async move {
            if left.is_device {
                self.unmap(&left.dir).await?;
            } else {
                self.unmount(&left.dir).await?;
            }
            Ok(())
        }
        .boxed()
    }
}
