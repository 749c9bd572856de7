//! Client of a plug-in: one method for each call.

use std::future::Future;
use std::io;
use std::time::Duration;

use csi::Error;
use csi::grpc::{Stream, channel, within};
use tonic::Streaming;
use tonic::transport::Channel;

use crate::v1beta1;
use crate::v1beta1::device_plugin_client::DevicePluginClient;

/// How long asking a plug-in what it can may take (upstream: ten seconds to connect).
const OPTIONS: Duration = Duration::from_secs(10);
/// How long Allocate and GetPreferredAllocation may take. Upstream waits for ever, and its admission with it.
const ALLOCATE: Duration = Duration::from_secs(120);
/// How long PreStartContainer may take (upstream: `KubeletPreStartContainerRPCTimeoutInSecs`).
const PRE_START: Duration = Duration::from_secs(30);
/// Bytes of a message of a plug-in: a list of some ten thousand devices.
const MAX_MESSAGE: usize = 16 << 20;

/// A plug-in. Clones share its connection.
#[derive(Clone, Debug)]
pub struct Plugin {
    client: DevicePluginClient<Channel>,
}

impl Plugin {
    /// The plug-in that `connect` reaches. Must be called within a tokio runtime.
    pub fn new<C, F>(connect: C) -> Self
    where
        C: Fn() -> F + Clone + Send + 'static,
        F: Future<Output = io::Result<Stream>> + Send + 'static,
    {
        Plugin { client: DevicePluginClient::new(channel(connect)).max_decoding_message_size(MAX_MESSAGE) }
    }

    /// What it wants to be called for.
    ///
    /// # Errors
    /// As every call: when the plug-in refuses, fails, is away or is late.
    pub async fn options(&self) -> Result<v1beta1::DevicePluginOptions, Error> {
        within("GetDevicePluginOptions", OPTIONS, self.client.clone().get_device_plugin_options(v1beta1::Empty {})).await
    }

    /// Its devices, now and whenever they change.
    ///
    /// # Errors
    /// As every call.
    pub async fn watch(&self) -> Result<Devices, Error> {
        // A plug-in may take its time until it has a first list to send, and the answer comes with it.
        let stream = self.client.clone().list_and_watch(v1beta1::Empty {}).await.map_err(|status| Error::of(&status))?;
        Ok(Devices(stream.into_inner()))
    }

    /// Which of `available` it would rather give away, `size` of them, with `must` among them.
    ///
    /// # Errors
    /// As every call.
    pub async fn preferred(&self, available: Vec<String>, must: Vec<String>, size: i32) -> Result<Vec<String>, Error> {
        let request = v1beta1::PreferredAllocationRequest {
            container_requests: vec![v1beta1::ContainerPreferredAllocationRequest {
                available_device_i_ds: available,
                must_include_device_i_ds: must,
                allocation_size: size,
            }],
        };
        let answer = within("GetPreferredAllocation", ALLOCATE, self.client.clone().get_preferred_allocation(request)).await?;
        Ok(answer.container_responses.into_iter().next().map(|first| first.device_i_ds).unwrap_or_default())
    }

    /// What a container needs in order to use `devices`; None when the plug-in says nothing of it.
    ///
    /// # Errors
    /// As every call.
    pub async fn allocate(&self, devices: Vec<String>) -> Result<Option<v1beta1::ContainerAllocateResponse>, Error> {
        let request = v1beta1::AllocateRequest { container_requests: vec![v1beta1::ContainerAllocateRequest { devices_ids: devices }] };
        let answer = within("Allocate", ALLOCATE, self.client.clone().allocate(request)).await?;
        Ok(answer.container_responses.into_iter().next())
    }

    /// Says that a container with `devices` is about to start.
    ///
    /// # Errors
    /// As every call.
    pub async fn pre_start(&self, devices: Vec<String>) -> Result<(), Error> {
        let request = v1beta1::PreStartContainerRequest { devices_ids: devices };
        within("PreStartContainer", PRE_START, self.client.clone().pre_start_container(request)).await.map(drop)
    }
}

/// The lists that a plug-in sends.
#[derive(Debug)]
pub struct Devices(Streaming<v1beta1::ListAndWatchResponse>);

impl Devices {
    /// The next list; None when the plug-in ends it.
    ///
    /// # Errors
    /// When the connection is lost.
    pub async fn next(&mut self) -> Result<Option<Vec<v1beta1::Device>>, Error> {
        Ok(self.0.message().await.map_err(|status| Error::of(&status))?.map(|message| message.devices))
    }
}
