//! A device plug-in: it records each call, and its devices change on demand.
#![allow(clippy::result_large_err, reason = "tonic's own error type")]

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use ::device_plugin::v1beta1::device_plugin_server::{DevicePlugin, DevicePluginServer};
use ::device_plugin::v1beta1::registration_client::RegistrationClient;
use ::device_plugin::v1beta1::*;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::{UnixListenerStream, WatchStream};
use tonic::{Request, Response, Status};

type Answer<T> = Result<Response<T>, Status>;

#[derive(Clone)]
struct Service {
    options: DevicePluginOptions,
    lists: watch::Receiver<Vec<Device>>,
    calls: Arc<Mutex<Vec<String>>>,
    refuses: Arc<Mutex<bool>>,
}

/// A plug-in that runs until it is dropped.
pub struct Plugin {
    pub socket: PathBuf,
    pub lists: watch::Sender<Vec<Device>>,
    calls: Arc<Mutex<Vec<String>>>,
    pub refuses: Arc<Mutex<bool>>,
    task: tokio::task::JoinHandle<()>,
}

pub fn device(id: &str, health: &str) -> Device {
    Device { id: id.into(), health: health.into(), topology: None }
}

impl Plugin {
    /// Serves devices at a socket of `dir`; nobody knows it yet.
    ///
    /// Panics when the socket cannot be made.
    pub fn serve(dir: &Path, name: &str, devices: &[&str]) -> Self {
        std::fs::create_dir_all(dir).unwrap();
        let socket = dir.join(name);
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListenerStream::new(UnixListener::bind(&socket).unwrap());
        let (lists, receiver) = watch::channel(devices.iter().map(|id| device(id, "Healthy")).collect());
        let options = DevicePluginOptions { pre_start_required: true, get_preferred_allocation_available: true };
        let (calls, refuses): (Arc<Mutex<Vec<String>>>, Arc<Mutex<bool>>) = Default::default();
        let service = Service { options, lists: receiver, calls: calls.clone(), refuses: refuses.clone() };
        let router = tonic::transport::Server::builder().add_service(DevicePluginServer::new(service));
        let task = tokio::spawn(async move { router.serve_with_incoming(listener).await.unwrap() });
        Plugin { socket, lists, calls, refuses, task }
    }

    pub fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        self.task.abort();
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Makes a plug-in known at the agent's socket.
///
/// # Errors
/// The agent's refusal, or no agent.
pub async fn register(agent: &Path, endpoint: &str, resource: &str, version: &str) -> Result<(), Status> {
    let socket = agent.join("device-plugins/kubelet.sock");
    let channel = ::csi::grpc::channel(move || UnixStream::connect(socket.clone()));
    let request = RegisterRequest { version: version.into(), endpoint: endpoint.into(), resource_name: resource.into(), options: None };
    RegistrationClient::new(channel).register(request).await.map(drop)
}

#[tonic::async_trait]
impl DevicePlugin for Service {
    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Answer<DevicePluginOptions> {
        Ok(Response::new(self.options))
    }

    type ListAndWatchStream = Pin<Box<dyn tokio_stream::Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn list_and_watch(&self, _: Request<Empty>) -> Answer<Self::ListAndWatchStream> {
        let lists = WatchStream::new(self.lists.clone());
        Ok(Response::new(Box::pin(lists.map(|devices| Ok(ListAndWatchResponse { devices })))))
    }

    async fn get_preferred_allocation(&self, request: Request<PreferredAllocationRequest>) -> Answer<PreferredAllocationResponse> {
        let wanted = &request.get_ref().container_requests[0];
        let mut available = wanted.available_device_i_ds.clone();
        self.calls.lock().unwrap().push(format!(
            "prefer {} of {}, with {:?}",
            wanted.allocation_size,
            available.join(" "),
            wanted.must_include_device_i_ds
        ));
        // The last ones.
        available.reverse();
        let container_responses = vec![ContainerPreferredAllocationResponse { device_i_ds: available }];
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Answer<AllocateResponse> {
        let ids = request.get_ref().container_requests[0].devices_ids.join(" ");
        self.calls.lock().unwrap().push(format!("allocate {ids}"));
        if *self.refuses.lock().unwrap() {
            return Err(Status::internal("the device is on fire"));
        }
        let response = ContainerAllocateResponse {
            envs: [("GPUS".to_owned(), ids.clone())].into(),
            mounts: vec![Mount { container_path: "/opt/gpu".into(), host_path: "/etc".into(), read_only: true }],
            devices: vec![DeviceSpec { container_path: "/dev/gpu0".into(), host_path: "/dev/null".into(), permissions: "rw".into() }],
            annotations: [("example.com/gpus".to_owned(), ids.clone())].into(),
            cdi_devices: vec![CdiDevice { name: format!("example.com/gpu={ids}") }],
        };
        Ok(Response::new(AllocateResponse { container_responses: vec![response] }))
    }

    async fn pre_start_container(&self, request: Request<PreStartContainerRequest>) -> Answer<PreStartContainerResponse> {
        self.calls.lock().unwrap().push(format!("start {}", request.get_ref().devices_ids.join(" ")));
        Ok(Response::new(PreStartContainerResponse {}))
    }
}
