//! Clients: one method for each call.

use std::future::Future;
use std::io;
use std::time::Duration;

use tonic::transport::Channel;

use crate::grpc::{Stream, channel, within};
use crate::registration::registration_client::RegistrationClient;
use crate::registration::{InfoRequest, PluginInfo, RegistrationStatus};
use crate::v1::node_client::NodeClient;
use crate::{Capabilities, Error, v1};

/// How long a call about a volume may take (upstream: `csiTimeout`).
const CALL: Duration = Duration::from_secs(120);
/// How long the questions of a registration may take.
const REGISTRATION: Duration = Duration::from_secs(10);

/// A driver. Clones share its connection, which is made at the first call and again after each loss.
#[derive(Clone, Debug)]
pub struct Driver {
    node: NodeClient<Channel>,
}

impl Driver {
    /// The driver that `connect` reaches. Must be called within a tokio runtime.
    pub fn new<C, F>(connect: C) -> Self
    where
        C: Fn() -> F + Clone + Send + 'static,
        F: Future<Output = io::Result<Stream>> + Send + 'static,
    {
        Driver { node: NodeClient::new(channel(connect)) }
    }

    /// What it can do.
    ///
    /// # Errors
    /// As every call: when the driver refuses, fails, is away or is late.
    pub async fn capabilities(&self) -> Result<Capabilities, Error> {
        let request = v1::NodeGetCapabilitiesRequest {};
        let answer = within("NodeGetCapabilities", CALL, self.node.clone().node_get_capabilities(request)).await?;
        Ok(Capabilities::of(&answer))
    }

    /// Who the node is to it, and what it can hold.
    ///
    /// # Errors
    /// As every call.
    pub async fn info(&self) -> Result<v1::NodeGetInfoResponse, Error> {
        within("NodeGetInfo", REGISTRATION, self.node.clone().node_get_info(v1::NodeGetInfoRequest {})).await
    }

    /// Prepares a volume on the node.
    ///
    /// # Errors
    /// As every call.
    pub async fn stage(&self, request: v1::NodeStageVolumeRequest) -> Result<(), Error> {
        within("NodeStageVolume", CALL, self.node.clone().node_stage_volume(request)).await.map(drop)
    }

    /// Undoes what [`Self::stage`] did.
    ///
    /// # Errors
    /// As every call.
    pub async fn unstage(&self, request: v1::NodeUnstageVolumeRequest) -> Result<(), Error> {
        within("NodeUnstageVolume", CALL, self.node.clone().node_unstage_volume(request)).await.map(drop)
    }

    /// Shows a volume to one pod.
    ///
    /// # Errors
    /// As every call.
    pub async fn publish(&self, request: v1::NodePublishVolumeRequest) -> Result<(), Error> {
        within("NodePublishVolume", CALL, self.node.clone().node_publish_volume(request)).await.map(drop)
    }

    /// Takes a volume from one pod.
    ///
    /// # Errors
    /// As every call.
    pub async fn unpublish(&self, request: v1::NodeUnpublishVolumeRequest) -> Result<(), Error> {
        within("NodeUnpublishVolume", CALL, self.node.clone().node_unpublish_volume(request)).await.map(drop)
    }

    /// What a volume holds.
    ///
    /// # Errors
    /// As every call.
    pub async fn stats(&self, request: v1::NodeGetVolumeStatsRequest) -> Result<v1::NodeGetVolumeStatsResponse, Error> {
        within("NodeGetVolumeStats", REGISTRATION, self.node.clone().node_get_volume_stats(request)).await
    }

    /// Makes a volume's file system as large as the volume has become. Returns the bytes it has.
    ///
    /// # Errors
    /// As every call.
    pub async fn expand(&self, request: v1::NodeExpandVolumeRequest) -> Result<i64, Error> {
        within("NodeExpandVolume", CALL, self.node.clone().node_expand_volume(request)).await.map(|answer| answer.capacity_bytes)
    }
}

/// A socket by which a plug-in makes itself known.
#[derive(Clone, Debug)]
pub struct Registrar {
    client: RegistrationClient<Channel>,
}

impl Registrar {
    /// The plug-in that `connect` reaches. Must be called within a tokio runtime.
    pub fn new<C, F>(connect: C) -> Self
    where
        C: Fn() -> F + Clone + Send + 'static,
        F: Future<Output = io::Result<Stream>> + Send + 'static,
    {
        Registrar { client: RegistrationClient::new(channel(connect)) }
    }

    /// What the plug-in is.
    ///
    /// # Errors
    /// As every call.
    pub async fn info(&self) -> Result<PluginInfo, Error> {
        within("GetInfo", REGISTRATION, self.client.clone().get_info(InfoRequest {})).await
    }

    /// Tells the plug-in whether it is registered, or why not.
    ///
    /// # Errors
    /// As every call.
    pub async fn notify(&self, refusal: Option<String>) -> Result<(), Error> {
        let status = RegistrationStatus { plugin_registered: refusal.is_none(), error: refusal.unwrap_or_default() };
        within("NotifyRegistrationStatus", REGISTRATION, self.client.clone().notify_registration_status(status)).await.map(drop)
    }
}
