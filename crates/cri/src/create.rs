//! `CreateContainer` with fields that the generated messages do not have yet: the part of an image that a mount shows
//! (`Mount.image_sub_path` of upstream's api.proto) and the signal that asks the container to end (`ContainerConfig.stop_signal`). A runtime
//! that does not know them mounts the whole image, and sends the image's signal.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use k8s_cri::v1;
use k8s_cri::v1::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use prost::Message as _;
use tonic::body::Body;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::NamedService;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::Signal;
use crate::sandbox::{UPDATE, UpdateSandboxAnswer, UpdateSandboxRequest};
use crate::status::{self, STATUS};

const CREATE: &str = "/runtime.v1.RuntimeService/CreateContainer";
/// Of `ContainerConfig`.
const MOUNTS: u32 = 7;
/// Of `ContainerConfig`.
const STOP_SIGNAL: u32 = 18;
/// Of `Mount`.
const IMAGE_SUB_PATH: u32 = 10;

/// `CreateContainerRequest` whose `config` is encoded already: on the wire a message is bytes.
#[derive(Clone, PartialEq, prost::Message)]
struct Encoded {
    #[prost(string, tag = "1")]
    pod_sandbox_id: String,
    #[prost(bytes = "vec", tag = "2")]
    config: Vec<u8>,
    #[prost(message, optional, tag = "3")]
    sandbox_config: Option<v1::PodSandboxConfig>,
}

/// What a `ContainerConfig` says beside the generated messages.
#[derive(Clone, PartialEq, prost::Message)]
struct Shown {
    #[prost(message, repeated, tag = "7")]
    mounts: Vec<ShownMount>,
    #[prost(int32, tag = "18")]
    stop_signal: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ShownMount {
    #[prost(string, tag = "1")]
    container_path: String,
    #[prost(string, tag = "10")]
    image_sub_path: String,
}

/// What a new container has beside the generated messages: an extension of the request that a [`RuntimeServer`] hands on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// The parts of images that mounts show, by the mounts' paths in the container.
    pub sub_paths: BTreeMap<String, String>,
    /// The signal that asks it to end; by default its image's.
    pub stop_signal: Option<Signal>,
}

/// The request with what the generated messages lack.
fn encode(request: v1::CreateContainerRequest, extras: &Extras) -> Encoded {
    let mut config = request.config.unwrap_or_default();
    let mounts = std::mem::take(&mut config.mounts);
    // The fields of a message may come in any order.
    let mut bytes = config.encode_to_vec();
    for mount in mounts {
        let mut encoded = mount.encode_to_vec();
        if let Some(sub_path) = extras.sub_paths.get(&mount.container_path) {
            prost::encoding::string::encode(IMAGE_SUB_PATH, sub_path, &mut encoded);
        }
        prost::encoding::bytes::encode(MOUNTS, &encoded, &mut bytes);
    }
    if let Some(signal) = extras.stop_signal {
        prost::encoding::int32::encode(STOP_SIGNAL, &signal.cri(), &mut bytes);
    }
    Encoded { pod_sandbox_id: request.pod_sandbox_id, config: bytes, sandbox_config: request.sandbox_config }
}

pub(crate) async fn create(
    transport: Channel,
    request: v1::CreateContainerRequest,
    extras: &Extras,
) -> Result<Response<v1::CreateContainerResponse>, Status> {
    let mut client = tonic::client::Grpc::new(transport);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let request = Request::new(encode(request, extras));
    client.unary(request, PathAndQuery::from_static(CREATE), ProstCodec::default()).await
}

fn decode(encoded: Encoded) -> Result<(v1::CreateContainerRequest, Extras), prost::DecodeError> {
    let Encoded { pod_sandbox_id, config, sandbox_config } = encoded;
    let shown = Shown::decode(config.as_slice())?;
    let parts = shown.mounts.into_iter().filter(|mount| !mount.image_sub_path.is_empty());
    let sub_paths = parts.map(|mount| (mount.container_path, mount.image_sub_path)).collect();
    let extras = Extras { sub_paths, stop_signal: Signal::from_cri(shown.stop_signal) };
    let config = if config.is_empty() { None } else { Some(v1::ContainerConfig::decode(config.as_slice())?) };
    Ok((v1::CreateContainerRequest { pod_sandbox_id, config, sandbox_config }, extras))
}

/// Takes what a resized pod has as a whole.
type Updates = dyn Fn(UpdateSandboxRequest) -> Result<(), Status> + Send + Sync;

/// The server of a runtime that knows what the generated messages lack: requests of `CreateContainer` have the extension [`Extras`], and a
/// [`Signal`] that is an extension of the answer to `ContainerStatus` becomes the container's stop signal.
pub struct RuntimeServer<T> {
    runtime: Arc<T>,
    generated: RuntimeServiceServer<T>,
    updates: Option<Arc<Updates>>,
}

impl<T> Clone for RuntimeServer<T> {
    fn clone(&self) -> Self {
        Self { runtime: self.runtime.clone(), generated: self.generated.clone(), updates: self.updates.clone() }
    }
}

impl<T> RuntimeServer<T> {
    /// Serves a runtime.
    pub fn new(runtime: T) -> Self {
        let runtime = Arc::new(runtime);
        Self { generated: RuntimeServiceServer::from_arc(runtime.clone()), runtime, updates: None }
    }

    /// The same, which answers `UpdatePodSandboxResources` too.
    #[must_use]
    pub fn with_updates(self, take: impl Fn(UpdateSandboxRequest) -> Result<(), Status> + Send + Sync + 'static) -> Self {
        Self { updates: Some(Arc::new(take)), ..self }
    }
}

impl<T> NamedService for RuntimeServer<T> {
    const NAME: &'static str = <RuntimeServiceServer<T> as NamedService>::NAME;
}

impl<T: RuntimeService> Service<http::Request<Body>> for RuntimeServer<T> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Service::<http::Request<Body>>::poll_ready(&mut self.generated, cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if let Some(take) = self.updates.clone().filter(|_| request.uri().path() == UPDATE) {
            let update = tower::service_fn(move |request: Request<UpdateSandboxRequest>| {
                let taken = take(request.into_inner());
                async move { taken.map(|()| Response::new(UpdateSandboxAnswer {})) }
            });
            return Box::pin(async move { Ok(tonic::server::Grpc::new(ProstCodec::default()).unary(update, request).await) });
        }
        let runtime = self.runtime.clone();
        if request.uri().path() == STATUS {
            let show = tower::service_fn(move |request: Request<v1::ContainerStatusRequest>| {
                let runtime = runtime.clone();
                async move {
                    let (metadata, answer, extensions) = runtime.container_status(request).await?.into_parts();
                    let encoded = status::encode(answer, extensions.get::<Signal>().copied());
                    Ok(Response::from_parts(metadata, encoded, extensions))
                }
            });
            return Box::pin(async move { Ok(tonic::server::Grpc::new(ProstCodec::default()).unary(show, request).await) });
        }
        if request.uri().path() != CREATE {
            return self.generated.call(request);
        }
        let create = tower::service_fn(move |request: Request<Encoded>| {
            let runtime = runtime.clone();
            async move {
                let (metadata, mut extensions, encoded) = request.into_parts();
                let (request, extras) = decode(encoded).map_err(|error| Status::invalid_argument(error.to_string()))?;
                extensions.insert(extras);
                runtime.create_container(Request::from_parts(metadata, extensions, request)).await
            }
        });
        Box::pin(async move { Ok(tonic::server::Grpc::new(ProstCodec::default()).unary(create, request).await) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extras_stand_beside_what_every_runtime_knows() {
        let mount = |path: &str| v1::Mount { container_path: path.into(), readonly: true, ..Default::default() };
        let config = v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata { name: "c".into(), attempt: 1 }),
            mounts: vec![mount("/a"), mount("/b")],
            log_path: "c/1.log".into(),
            ..Default::default()
        };
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: "s".into(),
            config: Some(config),
            sandbox_config: Some(v1::PodSandboxConfig { hostname: "h".into(), ..Default::default() }),
        };
        let sub_paths = BTreeMap::from([("/b".to_owned(), "x/y".to_owned())]);
        let stop_signal = Signal::named("SIGRTMIN+3");
        for extras in [
            Extras { sub_paths: sub_paths.clone(), stop_signal },
            Extras { sub_paths, stop_signal: None },
            Extras { sub_paths: BTreeMap::new(), stop_signal },
            Extras::default(),
        ] {
            let bytes = encode(request.clone(), &extras).encode_to_vec();
            assert_eq!(v1::CreateContainerRequest::decode(bytes.as_slice()).unwrap(), request, "nothing else changes");
            assert_eq!(decode(Encoded::decode(bytes.as_slice()).unwrap()).unwrap(), (request.clone(), extras));
        }
        let plain = Encoded::decode(request.encode_to_vec().as_slice()).unwrap();
        assert_eq!(decode(plain).unwrap(), (request, Extras::default()), "of a client that knows none");
        let empty = v1::CreateContainerRequest::default();
        assert_eq!(decode(Encoded::default()).unwrap(), (empty, Extras::default()));
        assert!(decode(Encoded { config: vec![0xff], ..Encoded::default() }).is_err());
    }
}
