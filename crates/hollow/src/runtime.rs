//! A container runtime that keeps its containers in memory, spoken to over CRI.
//!
//! Models: sandboxes with addresses of the node's pod CIDR, containers that run until they are stopped, images that are there once pulled,
//! events, and a network that is ready as soon as the node has its pod CIDR. Refuses what a runtime refuses: unknown ids, containers in a
//! sandbox that is not ready or of an image that is not there, a second start, a sandbox without a free address.
//! Does not model: programs (a command in a container ends with 0 and says nothing), logs, streams, usage, limits.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::Ipv4Addr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cri::v1;
use cri::v1::image_service_server::ImageService;
use cri::v1::runtime_service_server::RuntimeService;
use ipnet::Ipv4Net;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Request, Response, Status};
use uuid::Uuid;

type Answer<T> = Result<Response<T>, Status>;
type Texts = HashMap<String, String>;

/// The first addresses of a pod CIDR are the network's own and its gateways'.
const FIRST: u32 = 3;

/// The runtime of one node.
pub struct Runtime {
    state: Mutex<State>,
    /// Begins the ids: a runtime that starts again gives none that an earlier one gave.
    prefix: String,
}

impl Default for Runtime {
    fn default() -> Self {
        let mut prefix = Uuid::new_v4().simple().to_string();
        prefix.truncate(12);
        Self { state: Mutex::default(), prefix }
    }
}

#[derive(Default)]
struct State {
    network: Option<Ipv4Net>,
    sandboxes: BTreeMap<String, Sandbox>,
    containers: BTreeMap<String, Container>,
    images: BTreeSet<String>,
    followers: Vec<mpsc::UnboundedSender<v1::ContainerEventResponse>>,
    serial: u64,
}

/// What is kept of a sandbox.
struct Sandbox {
    metadata: Option<v1::PodSandboxMetadata>,
    labels: Texts,
    annotations: Texts,
    handler: String,
    created_at: i64,
    ready: bool,
    /// None in the node's own network.
    ip: Option<Ipv4Addr>,
}

/// What is kept of a container.
struct Container {
    sandbox: String,
    metadata: Option<v1::ContainerMetadata>,
    labels: Texts,
    annotations: Texts,
    image: Option<v1::ImageSpec>,
    state: v1::ContainerState,
    created_at: i64,
    started_at: i64,
    finished_at: i64,
}

fn now() -> i64 {
    i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX)
}

fn missing(what: &str, id: &str) -> Status {
    Status::not_found(format!("{what} {id} does not exist"))
}

fn answer<T>(message: T) -> Answer<T> {
    Ok(Response::new(message))
}

fn selects(selector: &Texts, labels: &Texts) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

impl Runtime {
    /// Gives the node its pod CIDR, or takes it away; sandboxes keep their addresses.
    pub(crate) fn set_network(&self, network: Option<Ipv4Net>) {
        self.lock().network = network;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn id(&mut self, prefix: &str) -> String {
        self.serial += 1;
        format!("{prefix}{:x}", self.serial)
    }

    /// The lowest address that no sandbox has.
    fn free_address(&self) -> Result<Ipv4Addr, Status> {
        let network = self.network.ok_or_else(|| Status::unavailable("the node has no pod CIDR yet"))?;
        let taken: BTreeSet<Ipv4Addr> = self.sandboxes.values().filter(|sandbox| sandbox.ready).filter_map(|sandbox| sandbox.ip).collect();
        let (first, last) = (u32::from(network.network()).saturating_add(FIRST), u32::from(network.broadcast()));
        let mut free = (first..last).map(Ipv4Addr::from).filter(|address| !taken.contains(address));
        free.next().ok_or_else(|| Status::resource_exhausted(format!("every address of {network} is in use")))
    }

    fn sandbox(&mut self, id: &str) -> Result<&mut Sandbox, Status> {
        self.sandboxes.get_mut(id).ok_or_else(|| missing("sandbox", id))
    }

    fn container(&mut self, id: &str) -> Result<&mut Container, Status> {
        self.containers.get_mut(id).ok_or_else(|| missing("container", id))
    }

    /// Ends a container that has not ended.
    fn stop(&mut self, id: &str) {
        let Some(container) = self.containers.get_mut(id).filter(|c| c.state != v1::ContainerState::ContainerExited) else { return };
        container.state = v1::ContainerState::ContainerExited;
        container.finished_at = now();
        self.tell(id, v1::ContainerEventType::ContainerStoppedEvent);
    }

    fn stop_sandbox(&mut self, id: &str) {
        let of_it = self.containers.iter().filter(|(_, container)| container.sandbox == id);
        let inside: Vec<String> = of_it.map(|(id, _)| id.clone()).collect();
        inside.iter().for_each(|container| self.stop(container));
        if let Some(sandbox) = self.sandboxes.get_mut(id) {
            sandbox.ready = false;
        }
    }

    fn tell(&mut self, id: &str, what: v1::ContainerEventType) {
        let Some(container) = self.containers.get(id) else { return };
        let event = v1::ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: what as i32,
            created_at: now(),
            pod_sandbox_status: self.sandboxes.get_key_value(&container.sandbox).map(|(id, sandbox)| sandbox_status(id, sandbox)),
            containers_statuses: Vec::new(),
        };
        self.followers.retain(|follower| follower.send(event.clone()).is_ok());
    }
}

fn sandbox_state(sandbox: &Sandbox) -> i32 {
    if sandbox.ready { v1::PodSandboxState::SandboxReady as i32 } else { v1::PodSandboxState::SandboxNotready as i32 }
}

fn sandbox_status(id: &str, sandbox: &Sandbox) -> v1::PodSandboxStatus {
    let ip = sandbox.ip.map(|ip| ip.to_string()).unwrap_or_default();
    v1::PodSandboxStatus {
        id: id.to_owned(),
        metadata: sandbox.metadata.clone(),
        state: sandbox_state(sandbox),
        created_at: sandbox.created_at,
        network: Some(v1::PodSandboxNetworkStatus { ip, additional_ips: Vec::new() }),
        labels: sandbox.labels.clone(),
        annotations: sandbox.annotations.clone(),
        runtime_handler: sandbox.handler.clone(),
        ..Default::default()
    }
}

fn container_status(id: &str, container: &Container) -> v1::ContainerStatus {
    let image = container.image.as_ref().map(|image| image.image.clone()).unwrap_or_default();
    let ended = container.state == v1::ContainerState::ContainerExited;
    v1::ContainerStatus {
        id: id.to_owned(),
        metadata: container.metadata.clone(),
        state: container.state as i32,
        created_at: container.created_at,
        started_at: container.started_at,
        finished_at: container.finished_at,
        reason: if ended { "Completed".to_owned() } else { String::new() },
        image: container.image.clone(),
        image_id: image.clone(),
        image_ref: image,
        labels: container.labels.clone(),
        annotations: container.annotations.clone(),
        ..Default::default()
    }
}

/// Whether the pod uses the node's own network and so has no address.
fn is_in_host_network(config: &v1::PodSandboxConfig) -> bool {
    let windows = config.windows.as_ref().and_then(|windows| windows.security_context.as_ref());
    let linux = config.linux.as_ref().and_then(|linux| linux.security_context.as_ref()?.namespace_options.as_ref());
    windows.is_some_and(|context| context.host_process) || linux.is_some_and(|options| options.network == v1::NamespaceMode::Node as i32)
}

cri::serve! { RuntimeService for Runtime {
    async fn version(&self, _: Request<v1::VersionRequest>) -> Answer<v1::VersionResponse> {
        answer(v1::VersionResponse {
            version: "0.1.0".to_owned(),
            runtime_name: "hollow".to_owned(),
            runtime_version: env!("CARGO_PKG_VERSION").to_owned(),
            runtime_api_version: "v1".to_owned(),
        })
    }

    async fn status(&self, _: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        let condition = |kind: &str, why: &str, status: bool| v1::RuntimeCondition {
            r#type: kind.to_owned(),
            status,
            reason: if status { String::new() } else { "NoPodCIDR".to_owned() },
            message: if status { String::new() } else { why.to_owned() },
        };
        let network = condition("NetworkReady", "the node has no pod CIDR yet", self.lock().network.is_some());
        let status = Some(v1::RuntimeStatus { conditions: vec![condition("RuntimeReady", "", true), network] });
        answer(v1::StatusResponse { status, ..Default::default() })
    }

    async fn run_pod_sandbox(&self, request: Request<v1::RunPodSandboxRequest>) -> Answer<v1::RunPodSandboxResponse> {
        let v1::RunPodSandboxRequest { config, runtime_handler } = request.into_inner();
        let config = config.ok_or_else(|| Status::invalid_argument("a sandbox needs a configuration"))?;
        let mut state = self.lock();
        let ip = if is_in_host_network(&config) { None } else { Some(state.free_address()?) };
        let id = state.id(&self.prefix);
        let v1::PodSandboxConfig { metadata, labels, annotations, .. } = config;
        let sandbox = Sandbox { metadata, labels, annotations, handler: runtime_handler, created_at: now(), ready: true, ip };
        state.sandboxes.insert(id.clone(), sandbox);
        answer(v1::RunPodSandboxResponse { pod_sandbox_id: id })
    }

    async fn stop_pod_sandbox(&self, request: Request<v1::StopPodSandboxRequest>) -> Answer<v1::StopPodSandboxResponse> {
        self.lock().stop_sandbox(&request.into_inner().pod_sandbox_id);
        answer(v1::StopPodSandboxResponse {})
    }

    async fn remove_pod_sandbox(&self, request: Request<v1::RemovePodSandboxRequest>) -> Answer<v1::RemovePodSandboxResponse> {
        let id = request.into_inner().pod_sandbox_id;
        let mut state = self.lock();
        state.stop_sandbox(&id);
        state.sandboxes.remove(&id);
        state.containers.retain(|_, container| container.sandbox != id);
        answer(v1::RemovePodSandboxResponse {})
    }

    async fn pod_sandbox_status(&self, request: Request<v1::PodSandboxStatusRequest>) -> Answer<v1::PodSandboxStatusResponse> {
        let id = request.into_inner().pod_sandbox_id;
        let status = sandbox_status(&id, self.lock().sandbox(&id)?);
        answer(v1::PodSandboxStatusResponse { status: Some(status), ..Default::default() })
    }

    async fn list_pod_sandbox(&self, request: Request<v1::ListPodSandboxRequest>) -> Answer<v1::ListPodSandboxResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let state = self.lock();
        let found = state.sandboxes.iter().filter(|(id, sandbox)| {
            (filter.id.is_empty() || filter.id == **id)
                && filter.state.as_ref().is_none_or(|wanted| wanted.state == sandbox_state(sandbox))
                && selects(&filter.label_selector, &sandbox.labels)
        });
        let items = found.map(|(id, sandbox)| v1::PodSandbox {
            id: id.clone(),
            metadata: sandbox.metadata.clone(),
            state: sandbox_state(sandbox),
            created_at: sandbox.created_at,
            labels: sandbox.labels.clone(),
            annotations: sandbox.annotations.clone(),
            runtime_handler: sandbox.handler.clone(),
        });
        answer(v1::ListPodSandboxResponse { items: items.collect() })
    }

    async fn create_container(&self, request: Request<v1::CreateContainerRequest>) -> Answer<v1::CreateContainerResponse> {
        let v1::CreateContainerRequest { pod_sandbox_id, config, .. } = request.into_inner();
        let config = config.ok_or_else(|| Status::invalid_argument("a container needs a configuration"))?;
        let mut state = self.lock();
        if !state.sandbox(&pod_sandbox_id)?.ready {
            return Err(Status::failed_precondition(format!("sandbox {pod_sandbox_id} is not ready")));
        }
        let image = config.image.as_ref().map(|image| image.image.as_str()).unwrap_or_default();
        if !state.images.contains(image) {
            return Err(missing("image", image));
        }
        let id = state.id(&self.prefix);
        let v1::ContainerConfig { metadata, labels, annotations, image, .. } = config;
        let container = Container {
            sandbox: pod_sandbox_id,
            metadata,
            labels,
            annotations,
            image,
            state: v1::ContainerState::ContainerCreated,
            created_at: now(),
            started_at: 0,
            finished_at: 0,
        };
        state.containers.insert(id.clone(), container);
        answer(v1::CreateContainerResponse { container_id: id })
    }

    async fn start_container(&self, request: Request<v1::StartContainerRequest>) -> Answer<v1::StartContainerResponse> {
        let id = request.into_inner().container_id;
        let mut state = self.lock();
        let container = state.container(&id)?;
        if container.state != v1::ContainerState::ContainerCreated {
            return Err(Status::failed_precondition(format!("container {id} was started already")));
        }
        container.state = v1::ContainerState::ContainerRunning;
        container.started_at = now();
        state.tell(&id, v1::ContainerEventType::ContainerStartedEvent);
        answer(v1::StartContainerResponse {})
    }

    async fn stop_container(&self, request: Request<v1::StopContainerRequest>) -> Answer<v1::StopContainerResponse> {
        self.lock().stop(&request.into_inner().container_id);
        answer(v1::StopContainerResponse {})
    }

    async fn remove_container(&self, request: Request<v1::RemoveContainerRequest>) -> Answer<v1::RemoveContainerResponse> {
        let id = request.into_inner().container_id;
        let mut state = self.lock();
        state.stop(&id);
        state.containers.remove(&id);
        answer(v1::RemoveContainerResponse {})
    }

    async fn list_containers(&self, request: Request<v1::ListContainersRequest>) -> Answer<v1::ListContainersResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let state = self.lock();
        let found = state.containers.iter().filter(|(id, container)| {
            (filter.id.is_empty() || filter.id == **id)
                && (filter.pod_sandbox_id.is_empty() || filter.pod_sandbox_id == container.sandbox)
                && filter.state.as_ref().is_none_or(|wanted| wanted.state == container.state as i32)
                && selects(&filter.label_selector, &container.labels)
        });
        let containers = found.map(|(id, container)| v1::Container {
            id: id.clone(),
            pod_sandbox_id: container.sandbox.clone(),
            metadata: container.metadata.clone(),
            image: container.image.clone(),
            image_ref: container.image.as_ref().map(|image| image.image.clone()).unwrap_or_default(),
            state: container.state as i32,
            created_at: container.created_at,
            labels: container.labels.clone(),
            annotations: container.annotations.clone(),
            ..Default::default()
        });
        answer(v1::ListContainersResponse { containers: containers.collect() })
    }

    async fn container_status(&self, request: Request<v1::ContainerStatusRequest>) -> Answer<v1::ContainerStatusResponse> {
        let id = request.into_inner().container_id;
        let status = container_status(&id, self.lock().container(&id)?);
        answer(v1::ContainerStatusResponse { status: Some(status), ..Default::default() })
    }

    async fn exec_sync(&self, request: Request<v1::ExecSyncRequest>) -> Answer<v1::ExecSyncResponse> {
        let id = request.into_inner().container_id;
        if self.lock().container(&id)?.state != v1::ContainerState::ContainerRunning {
            return Err(Status::failed_precondition(format!("container {id} does not run")));
        }
        answer(v1::ExecSyncResponse::default())
    }

    async fn update_container_resources(
        &self,
        request: Request<v1::UpdateContainerResourcesRequest>,
    ) -> Answer<v1::UpdateContainerResourcesResponse> {
        self.lock().container(&request.into_inner().container_id)?;
        answer(v1::UpdateContainerResourcesResponse {})
    }

    async fn list_container_stats(&self, _: Request<v1::ListContainerStatsRequest>) -> Answer<v1::ListContainerStatsResponse> {
        answer(v1::ListContainerStatsResponse::default())
    }

    async fn list_pod_sandbox_stats(&self, _: Request<v1::ListPodSandboxStatsRequest>) -> Answer<v1::ListPodSandboxStatsResponse> {
        answer(v1::ListPodSandboxStatsResponse::default())
    }

    type GetContainerEventsStream = std::pin::Pin<Box<dyn tokio_stream::Stream<Item = Result<v1::ContainerEventResponse, Status>> + Send>>;

    async fn get_container_events(&self, _: Request<v1::GetEventsRequest>) -> Answer<Self::GetContainerEventsStream> {
        let (follower, events) = mpsc::unbounded_channel();
        self.lock().followers.push(follower);
        answer(Box::pin(UnboundedReceiverStream::new(events).map(Ok)))
    }
} rest {
    exec(ExecRequest) -> ExecResponse;
    attach(AttachRequest) -> AttachResponse;
    port_forward(PortForwardRequest) -> PortForwardResponse;
    reopen_container_log(ReopenContainerLogRequest) -> ReopenContainerLogResponse;
    container_stats(ContainerStatsRequest) -> ContainerStatsResponse;
    pod_sandbox_stats(PodSandboxStatsRequest) -> PodSandboxStatsResponse;
    update_runtime_config(UpdateRuntimeConfigRequest) -> UpdateRuntimeConfigResponse;
    checkpoint_container(CheckpointContainerRequest) -> CheckpointContainerResponse;
    list_metric_descriptors(ListMetricDescriptorsRequest) -> ListMetricDescriptorsResponse;
    list_pod_sandbox_metrics(ListPodSandboxMetricsRequest) -> ListPodSandboxMetricsResponse;
    runtime_config(RuntimeConfigRequest) -> RuntimeConfigResponse;
} }

cri::serve! { ImageService for Runtime {
    async fn list_images(&self, _: Request<v1::ListImagesRequest>) -> Answer<v1::ListImagesResponse> {
        answer(v1::ListImagesResponse { images: self.lock().images.iter().map(|name| image(name)).collect() })
    }

    async fn image_status(&self, request: Request<v1::ImageStatusRequest>) -> Answer<v1::ImageStatusResponse> {
        let name = request.into_inner().image.unwrap_or_default().image;
        let found = self.lock().images.contains(&name).then(|| image(&name));
        answer(v1::ImageStatusResponse { image: found, ..Default::default() })
    }

    async fn pull_image(&self, request: Request<v1::PullImageRequest>) -> Answer<v1::PullImageResponse> {
        let name = request.into_inner().image.unwrap_or_default().image;
        self.lock().images.insert(name.clone());
        answer(v1::PullImageResponse { image_ref: name })
    }

    async fn remove_image(&self, request: Request<v1::RemoveImageRequest>) -> Answer<v1::RemoveImageResponse> {
        self.lock().images.remove(&request.into_inner().image.unwrap_or_default().image);
        answer(v1::RemoveImageResponse {})
    }

    async fn image_fs_info(&self, _: Request<v1::ImageFsInfoRequest>) -> Answer<v1::ImageFsInfoResponse> {
        let fs_id = Some(v1::FilesystemIdentifier { mountpoint: r"C:\".to_owned() });
        let usage = v1::FilesystemUsage { fs_id, ..Default::default() };
        answer(v1::ImageFsInfoResponse { image_filesystems: vec![usage], ..Default::default() })
    }
} rest {} }

/// An image is called by its name alone: nothing is in it.
fn image(name: &str) -> v1::Image {
    v1::Image { id: name.to_owned(), repo_tags: vec![name.to_owned()], ..Default::default() }
}

#[cfg(test)]
mod tests;
