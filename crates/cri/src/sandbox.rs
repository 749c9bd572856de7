//! `UpdatePodSandboxResources`, which the generated messages do not have yet: it tells a runtime what a resized pod has as a whole.

use k8s_cri::v1;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

pub(crate) const UPDATE: &str = "/runtime.v1.RuntimeService/UpdatePodSandboxResources";

/// `UpdatePodSandboxResourcesRequest` of upstream's api.proto.
#[derive(Clone, PartialEq, prost::Message)]
pub struct UpdateSandboxRequest {
    /// The sandbox.
    #[prost(string, tag = "1")]
    pub pod_sandbox_id: String,
    /// What the sandbox itself costs.
    #[prost(message, optional, tag = "2")]
    pub overhead: Option<v1::LinuxContainerResources>,
    /// The sum of its containers.
    #[prost(message, optional, tag = "3")]
    pub resources: Option<v1::LinuxContainerResources>,
}

/// `UpdatePodSandboxResourcesResponse`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct UpdateSandboxAnswer {}

pub(crate) async fn update(transport: Channel, request: UpdateSandboxRequest) -> Result<Response<UpdateSandboxAnswer>, Status> {
    let mut client = tonic::client::Grpc::new(transport);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    client.unary(Request::new(request), PathAndQuery::from_static(UPDATE), ProstCodec::default()).await
}
