//! The port of volumes: what a kind of volumes does for a pod. The pod machine only hears of outcomes.

use futures::future::BoxFuture;
use host::PodPath;
use k8s_openapi::api::core::v1::{Pod, Volume};
use tokio_util::sync::CancellationToken;

use super::{Content, PodDirs, VolumeError};
use crate::claims::Claimed;

/// A volume that a pod wants.
pub(crate) struct Request<'a> {
    pub pod: &'a Pod,
    pub dirs: &'a PodDirs,
    pub volume: &'a Volume,
    /// What stands behind the volume's claim, where it has one.
    pub claimed: Option<&'a Claimed>,
    pub content: &'a Content<'a>,
    /// Where the volume is, when this agent has made it ready before.
    pub mounted: Option<&'a PodPath>,
    /// The pod ends: nothing is to be waited for any more.
    pub ends: &'a CancellationToken,
}

/// What is left of a volume when its pod ends, as its directory says: the agent may not have made it.
pub(crate) struct Left {
    /// `…/pods/UID/volumes/KIND/NAME`, or of a device the link `…/pods/UID/volumeDevices/KIND/NAME`.
    pub dir: PodPath,
    pub is_device: bool,
}

/// One kind of volumes.
pub(crate) trait Plugin: Send + Sync {
    /// Whether it makes this volume ready.
    fn takes(&self, volume: &Volume, claimed: Option<&Claimed>) -> bool;

    /// Whether the directories of this name, below `volumes/` of a pod, are its own.
    fn owns(&self, kind: &str) -> bool;

    /// Makes a volume ready, or brings it up to date. Returns where it is. May be called any number of times, by this agent and the next.
    fn set_up<'a>(&'a self, request: Request<'a>) -> BoxFuture<'a, Result<PodPath, VolumeError>>;

    /// Takes down what is left of a volume, so that its directory may be removed. May be called any number of times.
    fn tear_down<'a>(&'a self, left: &'a Left) -> BoxFuture<'a, Result<(), VolumeError>>;
}
