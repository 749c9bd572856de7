//! `CreateContainer` with a field that the generated messages do not have yet: the part of an image that a mount shows
//! (`Mount.image_sub_path` of upstream's api.proto). A runtime that does not know it mounts the whole image.

use std::collections::BTreeMap;

use k8s_cri::v1;
use prost::Message as _;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

const CREATE: &str = "/runtime.v1.RuntimeService/CreateContainer";
/// Of `ContainerConfig`.
const MOUNTS: u32 = 7;
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

/// The request with sub-paths of images, by the path of their mount in the container.
fn encode(request: v1::CreateContainerRequest, sub_paths: &BTreeMap<String, String>) -> Encoded {
    let mut config = request.config.unwrap_or_default();
    let mounts = std::mem::take(&mut config.mounts);
    // The fields of a message may come in any order.
    let mut bytes = config.encode_to_vec();
    for mount in mounts {
        let mut encoded = mount.encode_to_vec();
        if let Some(sub_path) = sub_paths.get(&mount.container_path) {
            prost::encoding::string::encode(IMAGE_SUB_PATH, sub_path, &mut encoded);
        }
        prost::encoding::bytes::encode(MOUNTS, &encoded, &mut bytes);
    }
    Encoded { pod_sandbox_id: request.pod_sandbox_id, config: bytes, sandbox_config: request.sandbox_config }
}

pub(crate) async fn create(
    transport: Channel,
    request: v1::CreateContainerRequest,
    sub_paths: &BTreeMap<String, String>,
) -> Result<Response<v1::CreateContainerResponse>, Status> {
    let mut client = tonic::client::Grpc::new(transport);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let request = Request::new(encode(request, sub_paths));
    client.unary(request, PathAndQuery::from_static(CREATE), ProstCodec::default()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, PartialEq, prost::Message)]
    struct Whole {
        #[prost(message, optional, tag = "2")]
        config: Option<Config>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct Config {
        #[prost(message, repeated, tag = "7")]
        mounts: Vec<Mount>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct Mount {
        #[prost(string, tag = "1")]
        container_path: String,
        #[prost(string, tag = "10")]
        image_sub_path: String,
    }

    #[test]
    fn a_sub_path_stands_beside_what_every_runtime_knows() {
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
        let bytes = encode(request.clone(), &BTreeMap::from([("/b".to_owned(), "x/y".to_owned())])).encode_to_vec();
        assert_eq!(v1::CreateContainerRequest::decode(bytes.as_slice()).unwrap(), request, "nothing else changes");
        let shown = Whole::decode(bytes.as_slice()).unwrap().config.unwrap().mounts;
        let shown: Vec<_> = shown.iter().map(|mount| (mount.container_path.as_str(), mount.image_sub_path.as_str())).collect();
        assert_eq!(shown, [("/a", ""), ("/b", "x/y")]);
    }
}
