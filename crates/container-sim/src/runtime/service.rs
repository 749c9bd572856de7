//! CRI's gRPC services: unpack requests, call the runtime, pack answers.

use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, StreamExt as _};
use k8s_cri::v1;
use k8s_cri::v1::image_service_server::ImageService;
use k8s_cri::v1::runtime_service_server::RuntimeService;
use serde_json::json;
use tokio_stream::wrappers::BroadcastStream;
use tonic::{Request, Response, Status};

use super::filter::by_prefix;
use super::{Runtime, isolation, not_found};
use crate::streaming;

/// How this runtime calls itself; nodes report it as `mullion-sim://VERSION`.
const NAME: &str = "mullion-sim";

/// Both services of CRI over one runtime.
#[derive(Clone)]
pub(crate) struct Service(pub(crate) Arc<Runtime>, pub(crate) Arc<streaming::Server>);

type Answer<T> = Result<Response<T>, Status>;

fn ok<T>(answer: T) -> Answer<T> {
    Ok(Response::new(answer))
}

/// A call of CRI that is not implemented.
fn missing<T>(what: &str) -> Answer<T> {
    Err(Status::unimplemented(format!("this version of the simulated runtime cannot {what}")))
}

fn handler(name: String) -> v1::RuntimeHandler {
    v1::RuntimeHandler { name, features: Some(v1::RuntimeHandlerFeatures { recursive_read_only_mounts: false, user_namespaces: false }) }
}

#[tonic::async_trait]
impl RuntimeService for Service {
    async fn version(&self, request: Request<v1::VersionRequest>) -> Answer<v1::VersionResponse> {
        ok(v1::VersionResponse {
            version: request.into_inner().version,
            runtime_name: NAME.to_owned(),
            runtime_version: env!("CARGO_PKG_VERSION").to_owned(),
            runtime_api_version: "v1".to_owned(),
        })
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        let problem = self.0.network.not_ready();
        let condition = |kind: &str, problem: Option<String>, reason: &str| v1::RuntimeCondition {
            r#type: kind.to_owned(),
            status: problem.is_none(),
            reason: if problem.is_some() { reason.to_owned() } else { String::new() },
            message: problem.unwrap_or_default(),
        };
        let network = condition(
            "NetworkReady",
            problem.map(|problem| format!("Network plugin returns error: cni plugin not initialized: {problem}")),
            "NetworkPluginNotReady",
        );
        let info = json!({
            "node": self.0.config.node,
            "os": self.0.config.os.name(),
            "standIns": self.0.config.stand_ins,
            "resources": { "memory": self.0.cgroups.has_memory(), "cpu": self.0.cgroups.has_cpu() },
        });
        let info = if request.into_inner().verbose { [("config".to_owned(), info.to_string())].into() } else { Default::default() };
        ok(v1::StatusResponse {
            status: Some(v1::RuntimeStatus { conditions: vec![condition("RuntimeReady", None, ""), network] }),
            info,
            runtime_handlers: std::iter::once(String::new()).chain(isolation::handlers(self.0.config.os)).map(handler).collect(),
            features: Some(self.0.system.features()),
        })
    }

    async fn run_pod_sandbox(&self, request: Request<v1::RunPodSandboxRequest>) -> Answer<v1::RunPodSandboxResponse> {
        let runtime = self.0.clone();
        let request = request.into_inner();
        // In a task of its own: a client that gives up must not leave a sandbox half made.
        let pod_sandbox_id = detached(async move { runtime.run_sandbox(request).await }).await?;
        ok(v1::RunPodSandboxResponse { pod_sandbox_id })
    }

    async fn stop_pod_sandbox(&self, request: Request<v1::StopPodSandboxRequest>) -> Answer<v1::StopPodSandboxResponse> {
        let runtime = self.0.clone();
        detached(async move { runtime.stop_sandbox(&request.into_inner().pod_sandbox_id).await }).await?;
        ok(v1::StopPodSandboxResponse {})
    }

    async fn remove_pod_sandbox(&self, request: Request<v1::RemovePodSandboxRequest>) -> Answer<v1::RemovePodSandboxResponse> {
        let runtime = self.0.clone();
        detached(async move { runtime.remove_sandbox(&request.into_inner().pod_sandbox_id).await }).await?;
        ok(v1::RemovePodSandboxResponse {})
    }

    async fn pod_sandbox_status(&self, request: Request<v1::PodSandboxStatusRequest>) -> Answer<v1::PodSandboxStatusResponse> {
        let request = request.into_inner();
        let state = self.0.state();
        let sandbox = by_prefix(&state.sandboxes, &request.pod_sandbox_id).ok_or_else(|| not_found("sandbox", &request.pod_sandbox_id))?;
        let containers = state.containers.values().filter(|container| container.sandbox == sandbox.record.id);
        ok(v1::PodSandboxStatusResponse {
            status: Some(self.0.sandbox_status(sandbox)),
            info: if request.verbose { self.0.sandbox_info(sandbox) } else { Default::default() },
            containers_statuses: containers.map(|container| self.0.container_status(container)).collect(),
            timestamp: crate::shim::now(),
        })
    }

    async fn list_pod_sandbox(&self, request: Request<v1::ListPodSandboxRequest>) -> Answer<v1::ListPodSandboxResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        ok(v1::ListPodSandboxResponse { items: self.0.list_sandboxes(&filter) })
    }

    async fn create_container(&self, request: Request<v1::CreateContainerRequest>) -> Answer<v1::CreateContainerResponse> {
        let extras = request.extensions().get::<cri::Extras>().cloned().unwrap_or_default();
        let container_id = self.0.create_container(request.into_inner(), &extras).await?;
        ok(v1::CreateContainerResponse { container_id })
    }

    async fn start_container(&self, request: Request<v1::StartContainerRequest>) -> Answer<v1::StartContainerResponse> {
        let runtime = self.0.clone();
        detached(async move { runtime.start_container(&request.into_inner().container_id).await }).await?;
        ok(v1::StartContainerResponse {})
    }

    async fn stop_container(&self, request: Request<v1::StopContainerRequest>) -> Answer<v1::StopContainerResponse> {
        let request = request.into_inner();
        self.0.stop_container(&request.container_id, request.timeout).await?;
        ok(v1::StopContainerResponse {})
    }

    async fn remove_container(&self, request: Request<v1::RemoveContainerRequest>) -> Answer<v1::RemoveContainerResponse> {
        self.0.remove_container(&request.into_inner().container_id).await?;
        ok(v1::RemoveContainerResponse {})
    }

    async fn list_containers(&self, request: Request<v1::ListContainersRequest>) -> Answer<v1::ListContainersResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        ok(v1::ListContainersResponse { containers: self.0.list_containers(&filter) })
    }

    async fn container_status(&self, request: Request<v1::ContainerStatusRequest>) -> Answer<v1::ContainerStatusResponse> {
        let request = request.into_inner();
        let record = self.0.container(&request.container_id).ok_or_else(|| not_found("container", &request.container_id))?;
        let info = if request.verbose { self.0.container_info(&record) } else { Default::default() };
        let mut answer = Response::new(v1::ContainerStatusResponse { status: Some(self.0.container_status(&record)), info });
        if let Some(signal) = cri::Signal::from_linux(record.stop_signal) {
            answer.extensions_mut().insert(signal);
        }
        Ok(answer)
    }

    async fn update_container_resources(
        &self,
        request: Request<v1::UpdateContainerResourcesRequest>,
    ) -> Answer<v1::UpdateContainerResourcesResponse> {
        self.0.update_resources(request.into_inner()).await?;
        ok(v1::UpdateContainerResourcesResponse {})
    }

    async fn reopen_container_log(&self, request: Request<v1::ReopenContainerLogRequest>) -> Answer<v1::ReopenContainerLogResponse> {
        self.0.reopen_log(&request.into_inner().container_id).await?;
        ok(v1::ReopenContainerLogResponse {})
    }

    async fn exec_sync(&self, request: Request<v1::ExecSyncRequest>) -> Answer<v1::ExecSyncResponse> {
        ok(self.0.exec_sync(request.into_inner()).await?)
    }

    async fn exec(&self, request: Request<v1::ExecRequest>) -> Answer<v1::ExecResponse> {
        let request = request.into_inner();
        self.0.running(&request.container_id)?;
        ok(self.1.exec(request)?)
    }

    async fn attach(&self, request: Request<v1::AttachRequest>) -> Answer<v1::AttachResponse> {
        let request = request.into_inner();
        self.0.running(&request.container_id)?;
        ok(self.1.attach(request)?)
    }

    async fn port_forward(&self, request: Request<v1::PortForwardRequest>) -> Answer<v1::PortForwardResponse> {
        ok(self.1.port_forward(request.into_inner())?)
    }

    async fn container_stats(&self, request: Request<v1::ContainerStatsRequest>) -> Answer<v1::ContainerStatsResponse> {
        let id = request.into_inner().container_id;
        let record = self.0.container(&id).ok_or_else(|| not_found("container", &id))?;
        ok(v1::ContainerStatsResponse { stats: Some(self.0.stats(&record)) })
    }

    async fn list_container_stats(&self, request: Request<v1::ListContainerStatsRequest>) -> Answer<v1::ListContainerStatsResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        ok(v1::ListContainerStatsResponse { stats: self.0.list_stats(&filter) })
    }

    async fn pod_sandbox_stats(&self, request: Request<v1::PodSandboxStatsRequest>) -> Answer<v1::PodSandboxStatsResponse> {
        let id = request.into_inner().pod_sandbox_id;
        let stats = self.0.sandbox_stats(&id).ok_or_else(|| not_found("sandbox", &id))?;
        ok(v1::PodSandboxStatsResponse { stats: Some(stats) })
    }

    async fn list_pod_sandbox_stats(&self, request: Request<v1::ListPodSandboxStatsRequest>) -> Answer<v1::ListPodSandboxStatsResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        ok(v1::ListPodSandboxStatsResponse { stats: self.0.list_sandbox_stats(&filter) })
    }

    async fn update_runtime_config(&self, request: Request<v1::UpdateRuntimeConfigRequest>) -> Answer<v1::UpdateRuntimeConfigResponse> {
        let network = request.into_inner().runtime_config.and_then(|config| config.network_config);
        // containerd would write a CNI configuration from a template; here fabric alone writes it.
        tracing::info!(pod_cidr = network.map(|network| network.pod_cidr), "the node's pod CIDR is known");
        ok(v1::UpdateRuntimeConfigResponse {})
    }

    async fn checkpoint_container(&self, _: Request<v1::CheckpointContainerRequest>) -> Answer<v1::CheckpointContainerResponse> {
        missing("checkpoint containers (CheckpointContainer)")
    }

    type GetContainerEventsStream = Pin<Box<dyn Stream<Item = Result<v1::ContainerEventResponse, Status>> + Send>>;

    async fn get_container_events(&self, _: Request<v1::GetEventsRequest>) -> Answer<Self::GetContainerEventsStream> {
        let events = BroadcastStream::new(self.0.events.subscribe());
        let events = events.map(|event| event.map_err(|error| Status::data_loss(format!("too slow a reader of events: {error}; list again"))));
        ok(Box::pin(events))
    }

    async fn list_metric_descriptors(&self, _: Request<v1::ListMetricDescriptorsRequest>) -> Answer<v1::ListMetricDescriptorsResponse> {
        missing("describe metrics (ListMetricDescriptors)")
    }

    async fn list_pod_sandbox_metrics(&self, _: Request<v1::ListPodSandboxMetricsRequest>) -> Answer<v1::ListPodSandboxMetricsResponse> {
        missing("list metrics (ListPodSandboxMetrics); ListPodSandboxStats works")
    }

    async fn runtime_config(&self, _: Request<v1::RuntimeConfigRequest>) -> Answer<v1::RuntimeConfigResponse> {
        ok(v1::RuntimeConfigResponse { linux: self.0.system.runtime_config() })
    }
}

#[tonic::async_trait]
impl ImageService for Service {
    async fn list_images(&self, request: Request<v1::ListImagesRequest>) -> Answer<v1::ListImagesResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        ok(v1::ListImagesResponse { images: self.0.list_images(&filter)? })
    }

    async fn image_status(&self, request: Request<v1::ImageStatusRequest>) -> Answer<v1::ImageStatusResponse> {
        ok(self.0.image_status(&request.into_inner())?)
    }

    async fn pull_image(&self, request: Request<v1::PullImageRequest>) -> Answer<v1::PullImageResponse> {
        ok(v1::PullImageResponse { image_ref: self.0.pull_image(request.into_inner()).await? })
    }

    async fn remove_image(&self, request: Request<v1::RemoveImageRequest>) -> Answer<v1::RemoveImageResponse> {
        self.0.remove_image(&request.into_inner())?;
        ok(v1::RemoveImageResponse {})
    }

    async fn image_fs_info(&self, _: Request<v1::ImageFsInfoRequest>) -> Answer<v1::ImageFsInfoResponse> {
        ok(self.0.image_fs_info()?)
    }
}

/// Runs an operation to its end even when the client is gone.
async fn detached<T: Send + 'static>(operation: impl Future<Output = Result<T, Status>> + Send + 'static) -> Result<T, Status> {
    match tokio::spawn(operation).await {
        Ok(result) => result,
        Err(error) => Err(Status::internal(format!("the operation ended unexpectedly: {error}"))),
    }
}
