//! Client: one method for each call of CRI.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use k8s_cri::v1;
use k8s_cri::v1::image_service_client::ImageServiceClient;
use k8s_cri::v1::image_service_server::ImageService;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use k8s_cri::v1::runtime_service_server::RuntimeService;
use tonic::codegen::BoxStream;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};
use tower::service_fn;

use crate::calls::{Calls, Waiting};
use crate::containerd::{self, Envelope};
use crate::operations::{Operation, Operations};
use crate::{Endpoint, EndpointError, Error, Events, Extras, Signal, create, sandbox, status};

/// How long calls may take.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// Everything without a line of its own; upstream's kubelet allows 2 minutes (`runtimeRequestTimeout`).
    pub call: Duration,
    /// Pulling an image, unpacking included.
    pub pull: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { call: Duration::from_secs(120), pull: Duration::from_secs(3600) }
    }
}

/// Largest message upstream's client accepts (`cri-client/pkg/remote_runtime.go`).
pub(crate) const MAX_MESSAGE: usize = 16 * 1024 * 1024;

/// A runtime in this process, with its events.
type Runtime = dyn RuntimeService<GetContainerEventsStream = BoxStream<v1::ContainerEventResponse>>;

/// What carries a call to the runtime.
#[derive(Clone)]
enum Transport {
    Connection {
        channel: Channel,
        runtime: RuntimeServiceClient<Channel>,
        images: ImageServiceClient<Channel>,
    },
    /// The runtime itself takes the messages: nothing encodes them.
    Direct {
        runtime: Arc<Runtime>,
        images: Arc<dyn ImageService>,
    },
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connection { .. } => "Connection",
            Self::Direct { .. } => "Direct",
        })
    }
}

/// One call of a service. A call over a connection is on the heap: its future is a multiple of what its caller holds.
macro_rules! call {
    ($client:ident, $service:ident.$method:ident($request:ident)) => {
        async {
            match &$client.transport {
                Transport::Connection { $service, .. } => {
                    let mut service = $service.clone();
                    Box::pin(async move { service.$method($request).await }).await
                }
                Transport::Direct { $service, .. } => $service.$method(Request::new($request)).await,
            }
        }
    };
}

/// Where each service is, as it was given; for errors.
#[derive(Clone, Debug)]
struct Endpoints {
    runtime: Arc<str>,
    images: Arc<str>,
}

/// A client of one runtime. Clones share its connection.
#[derive(Clone, Debug)]
pub struct Client {
    transport: Transport,
    endpoints: Endpoints,
    deadlines: Deadlines,
    calls: Arc<Calls>,
    operations: Arc<Operations>,
}

impl Client {
    /// A client of the runtime at `endpoint`. Connects at the first call. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the address has none of the known forms.
    pub fn connect(endpoint: &str) -> Result<Self, EndpointError> {
        Self::with_deadlines(endpoint, Deadlines::default())
    }

    /// As [`Client::connect`], with deadlines of the caller's.
    ///
    /// # Errors
    /// When the address has none of the known forms.
    pub fn with_deadlines(endpoint: &str, deadlines: Deadlines) -> Result<Self, EndpointError> {
        let endpoint: Endpoint = endpoint.parse()?;
        let name: Arc<str> = endpoint.to_string().into();
        let channel = channel(endpoint);
        let runtime = RuntimeServiceClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE);
        let images = ImageServiceClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE);
        Ok(Self::over(name, deadlines, Transport::Connection { channel, runtime, images }))
    }

    /// The same client with another program for images, unless the runtime is in this process.
    ///
    /// # Errors
    /// When the address has none of the known forms.
    pub fn with_images(mut self, endpoint: &str) -> Result<Self, EndpointError> {
        let endpoint: Endpoint = endpoint.parse()?;
        self.endpoints.images = endpoint.to_string().into();
        if let Transport::Connection { images, .. } = &mut self.transport {
            *images = ImageServiceClient::new(channel(endpoint)).max_decoding_message_size(MAX_MESSAGE);
        }
        Ok(self)
    }

    /// A client of a runtime in this process: calls are the same messages, and neither bytes nor a socket carry them. `name` stands where an
    /// endpoint would.
    pub fn in_process<S>(name: &str, runtime: Arc<S>) -> Self
    where
        S: RuntimeService<GetContainerEventsStream = BoxStream<v1::ContainerEventResponse>> + ImageService,
    {
        Self::over(name.into(), Deadlines::default(), Transport::Direct { runtime: runtime.clone(), images: runtime })
    }

    fn over(endpoint: Arc<str>, deadlines: Deadlines, transport: Transport) -> Self {
        let endpoints = Endpoints { runtime: endpoint.clone(), images: endpoint };
        Self { transport, endpoints, deadlines, calls: Arc::default(), operations: Arc::default() }
    }

    /// Where the runtime listens, as it was given.
    pub fn endpoint(&self) -> &str {
        &self.endpoints.runtime
    }

    /// Calls without an answer so far, of this client and its clones, the oldest first.
    pub fn waiting(&self) -> Vec<Waiting> {
        self.calls.waiting()
    }

    /// How often each call was made by this client and its clones, how often it failed, and how long it took.
    pub fn operations(&self) -> Vec<(&'static str, Operation)> {
        self.operations.all()
    }

    /// Events of containers and sandboxes, subscribed again after each loss.
    pub fn events(&self) -> Events {
        Events::start(self.clone())
    }

    pub(crate) async fn open_events(&self) -> Result<BoxStream<v1::ContainerEventResponse>, Error> {
        let request = v1::GetEventsRequest {};
        let answer: Result<BoxStream<_>, Status> = match &self.transport {
            Transport::Connection { runtime, .. } => {
                let answer = runtime.clone().get_container_events(request).await;
                answer.map(|stream| Box::pin(stream.into_inner()) as BoxStream<_>)
            }
            Transport::Direct { runtime, .. } => runtime.get_container_events(Request::new(request)).await.map(Response::into_inner),
        };
        answer.map_err(|status| Error::from_status("GetContainerEvents", &self.endpoints.runtime, &status))
    }

    pub(crate) async fn open_containerd_events(&self) -> Result<Streaming<Envelope>, Error> {
        let answer = match &self.transport {
            Transport::Connection { channel, .. } => containerd::subscribe(channel.clone()).await,
            Transport::Direct { .. } => Err(Status::unimplemented("a runtime in this process has no events of containerd")),
        };
        answer.map_err(|status| Error::from_status("Subscribe", &self.endpoints.runtime, &status))
    }

    /// The answer to a call of the service at `endpoint`.
    async fn within<T>(
        &self,
        endpoint: &str,
        call: &'static str,
        limit: Duration,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Error> {
        let _counted = self.calls.begin(call);
        let began = std::time::Instant::now();
        let answer = tokio::time::timeout(limit, answer).await;
        self.operations.add(call, began.elapsed(), !matches!(answer, Ok(Ok(_))));
        match answer {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(Error::from_status(call, endpoint, &status)),
            Err(_) => Err(Error::Deadline { call, endpoint: endpoint.to_string(), within: limit }),
        }
    }

    /// `StopContainer`: asks the program to end, kills it after `grace`. May take the grace period and the usual deadline.
    ///
    /// # Errors
    /// As every call.
    pub async fn stop_container(&self, id: &str, grace: Duration) -> Result<(), Error> {
        let timeout = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX);
        let request = v1::StopContainerRequest { container_id: id.to_owned(), timeout };
        let limit = grace.saturating_add(self.deadlines.call);
        self.within(&self.endpoints.runtime, "StopContainer", limit, call!(self, runtime.stop_container(request))).await.map(|_| ())
    }

    /// `ExecSync`: runs a program in a container and collects its output. With a `timeout` of zero it may run for as long as the
    /// caller waits.
    ///
    /// # Errors
    /// As every call.
    pub async fn exec_sync(&self, id: &str, cmd: &[String], timeout: Duration) -> Result<v1::ExecSyncResponse, Error> {
        let seconds = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX);
        let request = v1::ExecSyncRequest { container_id: id.to_owned(), cmd: cmd.to_vec(), timeout: seconds };
        let limit = if timeout.is_zero() { Duration::MAX } else { timeout.saturating_add(self.deadlines.call) };
        self.within(&self.endpoints.runtime, "ExecSync", limit, call!(self, runtime.exec_sync(request))).await
    }

    /// `CreateContainer` with parts of images for mounts and a stop signal, which runtimes have since CRI of Kubernetes 1.33.
    ///
    /// # Errors
    /// As every call.
    pub async fn create_container_with(&self, request: v1::CreateContainerRequest, extras: &Extras) -> Result<String, Error> {
        if *extras == Extras::default() {
            return self.create_container(request).await;
        }
        let answer = async {
            match &self.transport {
                Transport::Connection { channel, .. } => create::create(channel.clone(), request, extras).await,
                // It has no images that could be mounted, and no programs that could be asked to end.
                Transport::Direct { runtime, .. } => runtime.create_container(Request::new(request)).await,
            }
        };
        Ok(self.within(&self.endpoints.runtime, "CreateContainer", self.deadlines.call, answer).await?.container_id)
    }

    /// `ContainerStatus` with the container's stop signal, which runtimes have since CRI of Kubernetes 1.33.
    ///
    /// # Errors
    /// As every call.
    pub async fn container_status_with(&self, request: v1::ContainerStatusRequest) -> Result<(v1::ContainerStatusResponse, Option<Signal>), Error> {
        let mut signal = None;
        let answer = async {
            let answer = match &self.transport {
                Transport::Connection { channel, .. } => status::status(channel.clone(), request).await,
                Transport::Direct { runtime, .. } => runtime.container_status(Request::new(request)).await,
            }?;
            signal = answer.extensions().get::<Signal>().copied();
            Ok(answer)
        };
        let answer = self.within(&self.endpoints.runtime, "ContainerStatus", self.deadlines.call, answer).await?;
        Ok((answer, signal))
    }

    /// `UpdatePodSandboxResources`, which few runtimes have.
    ///
    /// # Errors
    /// As every call.
    pub async fn update_sandbox(&self, request: sandbox::UpdateSandboxRequest) -> Result<(), Error> {
        let answer = async {
            match &self.transport {
                Transport::Connection { channel, .. } => sandbox::update(channel.clone(), request).await,
                Transport::Direct { .. } => Err(Status::unimplemented("UpdatePodSandboxResources")),
            }
        };
        self.within(&self.endpoints.runtime, "UpdatePodSandboxResources", self.deadlines.call, answer).await.map(drop)
    }

    /// `PullImage`; the answer is the reference to run by.
    ///
    /// # Errors
    /// As every call.
    pub async fn pull_image(&self, request: v1::PullImageRequest) -> Result<String, Error> {
        let answer = self.within(&self.endpoints.images, "PullImage", self.deadlines.pull, call!(self, images.pull_image(request))).await?;
        Ok(answer.image_ref)
    }
}

/// Calls that are their request and answer and nothing more.
macro_rules! calls {
    ($($(#[$doc:meta])* $service:ident.$method:ident = $call:literal ($request:ident) -> $answer:ty $(= $field:ident $($required:literal)?)?;)*) => {
        impl Client {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// When the runtime refuses, fails, is away or is late.
                pub async fn $method(&self, request: v1::$request) -> Result<$answer, Error> {
                    let answer = self.within(&self.endpoints.$service, $call, self.deadlines.call, call!(self, $service.$method(request))).await?;
                    calls!(@answer answer $call $(, $field $($required)?)?)
                }
            )*
        }
    };
    (@answer $answer:ident $call:literal) => {{ let _ = $answer; Ok(()) }};
    (@answer $answer:ident $call:literal, whole) => { Ok($answer) };
    (@answer $answer:ident $call:literal, $field:ident) => { Ok($answer.$field) };
    (@answer $answer:ident $call:literal, $field:ident $missing:literal) => {
        $answer.$field.ok_or(Error::Incomplete { call: $call, missing: $missing })
    };
}

calls! {
    /// Name and version of the runtime.
    runtime.version = "Version"(VersionRequest) -> v1::VersionResponse = whole;
    /// Conditions (`RuntimeReady`, `NetworkReady`), handlers and features.
    runtime.status = "Status"(StatusRequest) -> v1::StatusResponse = whole;
    /// What the runtime wants its client to know, such as the cgroup driver.
    runtime.runtime_config = "RuntimeConfig"(RuntimeConfigRequest) -> v1::RuntimeConfigResponse = whole;
    /// Passes the node's pod CIDR to the runtime.
    runtime.update_runtime_config = "UpdateRuntimeConfig"(UpdateRuntimeConfigRequest) -> ();
    /// Makes and starts a pod's sandbox; the answer is its id.
    runtime.run_pod_sandbox = "RunPodSandbox"(RunPodSandboxRequest) -> String = pod_sandbox_id;
    /// Stops a sandbox and everything in it; fine when already stopped or gone.
    runtime.stop_pod_sandbox = "StopPodSandbox"(StopPodSandboxRequest) -> ();
    /// Removes a sandbox and its containers; fine when already gone.
    runtime.remove_pod_sandbox = "RemovePodSandbox"(RemovePodSandboxRequest) -> ();
    /// State of one sandbox.
    runtime.pod_sandbox_status = "PodSandboxStatus"(PodSandboxStatusRequest) -> v1::PodSandboxStatusResponse = whole;
    /// Sandboxes that match.
    runtime.list_pod_sandbox = "ListPodSandbox"(ListPodSandboxRequest) -> Vec<v1::PodSandbox> = items;
    /// Makes a container; the answer is its id.
    runtime.create_container = "CreateContainer"(CreateContainerRequest) -> String = container_id;
    /// Starts a container that was made.
    runtime.start_container = "StartContainer"(StartContainerRequest) -> ();
    /// Removes a container, killing it if it runs; fine when already gone.
    runtime.remove_container = "RemoveContainer"(RemoveContainerRequest) -> ();
    /// Containers that match.
    runtime.list_containers = "ListContainers"(ListContainersRequest) -> Vec<v1::Container> = containers;
    /// State of one container.
    runtime.container_status = "ContainerStatus"(ContainerStatusRequest) -> v1::ContainerStatusResponse = whole;
    /// Changes the limits of a container.
    runtime.update_container_resources = "UpdateContainerResources"(UpdateContainerResourcesRequest) -> ();
    /// Makes the runtime open the log file again after it was renamed.
    runtime.reopen_container_log = "ReopenContainerLog"(ReopenContainerLogRequest) -> ();
    /// URL at which to run a program in a container, streams attached.
    runtime.exec = "Exec"(ExecRequest) -> String = url;
    /// URL at which to attach to a container's streams.
    runtime.attach = "Attach"(AttachRequest) -> String = url;
    /// URL at which to reach a pod's ports.
    runtime.port_forward = "PortForward"(PortForwardRequest) -> String = url;
    /// Usage of one container.
    runtime.container_stats = "ContainerStats"(ContainerStatsRequest) -> v1::ContainerStats = stats "stats";
    /// Usage of the containers that match.
    runtime.list_container_stats = "ListContainerStats"(ListContainerStatsRequest) -> Vec<v1::ContainerStats> = stats;
    /// Usage of one sandbox.
    runtime.pod_sandbox_stats = "PodSandboxStats"(PodSandboxStatsRequest) -> v1::PodSandboxStats = stats "stats";
    /// Usage of the sandboxes that match.
    runtime.list_pod_sandbox_stats = "ListPodSandboxStats"(ListPodSandboxStatsRequest) -> Vec<v1::PodSandboxStats> = stats;
    /// The names of the metrics that the runtime has of sandboxes and containers.
    runtime.list_metric_descriptors = "ListMetricDescriptors"(ListMetricDescriptorsRequest) -> Vec<v1::MetricDescriptor> = descriptors;
    /// Their values.
    runtime.list_pod_sandbox_metrics = "ListPodSandboxMetrics"(ListPodSandboxMetricsRequest) -> Vec<v1::PodSandboxMetrics> = pod_metrics;
    /// Images on the node.
    images.list_images = "ListImages"(ListImagesRequest) -> Vec<v1::Image> = images;
    /// One image; `image` is empty when the node does not have it.
    images.image_status = "ImageStatus"(ImageStatusRequest) -> v1::ImageStatusResponse = whole;
    /// Removes an image; fine when already gone.
    images.remove_image = "RemoveImage"(RemoveImageRequest) -> ();
    /// The directories of images and their usage.
    images.image_fs_info = "ImageFsInfo"(ImageFsInfoRequest) -> v1::ImageFsInfoResponse = whole;
}

fn channel(endpoint: Endpoint) -> Channel {
    // The URI is never resolved: the connector below knows where to go.
    let builder = tonic::transport::Endpoint::from_static("http://cri.invalid").connect_timeout(Duration::from_secs(10));
    match endpoint {
        #[cfg(unix)]
        Endpoint::Unix(path) => builder.connect_with_connector_lazy(service_fn(move |_| {
            let path = path.clone();
            async move { tokio::net::UnixStream::connect(path).await.map(TokioIo::new) }
        })),
        #[cfg(windows)]
        Endpoint::Pipe(name) => builder.connect_with_connector_lazy(service_fn(move |_| {
            let name = name.clone();
            async move { open_pipe(&name).await.map(TokioIo::new) }
        })),
        Endpoint::Tcp(address) => builder.connect_with_connector_lazy(service_fn(move |_| {
            let address = address.clone();
            async move { tokio::net::TcpStream::connect(address).await.map(TokioIo::new) }
        })),
        other => builder.connect_with_connector_lazy(service_fn(move |_| {
            let reason = format!("{other} cannot be reached from this operating system");
            async move { Err::<TokioIo<tokio::net::TcpStream>, _>(std::io::Error::new(std::io::ErrorKind::Unsupported, reason)) }
        })),
    }
}

/// Opens a named pipe, waiting while all its instances are busy (ERROR_PIPE_BUSY).
#[cfg(windows)]
async fn open_pipe(name: &str) -> std::io::Result<tokio::net::windows::named_pipe::NamedPipeClient> {
    const PIPE_BUSY: i32 = 231;
    loop {
        match tokio::net::windows::named_pipe::ClientOptions::new().open(name) {
            Err(error) if error.raw_os_error() == Some(PIPE_BUSY) => tokio::time::sleep(Duration::from_millis(50)).await,
            other => return other,
        }
    }
}
