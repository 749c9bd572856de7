//! `ContainerStatus` with a field that the generated messages do not have yet: the signal that asks a container to end
//! (`ContainerStatus.stop_signal` of upstream's api.proto). A runtime that does not know it leaves it out.

use std::collections::HashMap;

use k8s_cri::v1;
use prost::Message as _;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::Signal;
use crate::client::MAX_MESSAGE;

pub(crate) const STATUS: &str = "/runtime.v1.RuntimeService/ContainerStatus";
/// Of `ContainerStatus`.
const STOP_SIGNAL: u32 = 19;

/// `ContainerStatusResponse` whose `status` is encoded: on the wire a message is bytes.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Encoded {
    #[prost(bytes = "vec", optional, tag = "1")]
    status: Option<Vec<u8>>,
    #[prost(map = "string, string", tag = "2")]
    info: HashMap<String, String>,
}

/// What [`STOP_SIGNAL`] says beside the generated messages.
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Shown {
    #[prost(int32, tag = "19")]
    stop_signal: i32,
}

/// The answer with a stop signal.
pub(crate) fn encode(answer: v1::ContainerStatusResponse, signal: Option<Signal>) -> Encoded {
    let status = answer.status.map(|status| {
        let mut bytes = status.encode_to_vec();
        if let Some(signal) = signal {
            prost::encoding::int32::encode(STOP_SIGNAL, &signal.cri(), &mut bytes);
        }
        bytes
    });
    Encoded { status, info: answer.info }
}

fn decode(encoded: Encoded) -> Result<(v1::ContainerStatusResponse, Option<Signal>), prost::DecodeError> {
    let Encoded { status, info } = encoded;
    let signal = status.as_deref().map(Shown::decode).transpose()?.and_then(|shown| Signal::from_cri(shown.stop_signal));
    let status = status.as_deref().map(v1::ContainerStatus::decode).transpose()?;
    Ok((v1::ContainerStatusResponse { status, info }, signal))
}

/// The answer's extensions have the stop signal, where there is one.
pub(crate) async fn status(transport: Channel, request: v1::ContainerStatusRequest) -> Result<Response<v1::ContainerStatusResponse>, Status> {
    let mut client = tonic::client::Grpc::new(transport).max_decoding_message_size(MAX_MESSAGE);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let answer: Response<Encoded> = client.unary(Request::new(request), PathAndQuery::from_static(STATUS), ProstCodec::default()).await?;
    let (metadata, encoded, mut extensions) = answer.into_parts();
    let (answer, signal) = decode(encoded).map_err(|error| Status::internal(format!("cannot read the answer: {error}")))?;
    if let Some(signal) = signal {
        extensions.insert(signal);
    }
    Ok(Response::from_parts(metadata, answer, extensions))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_signal_stands_beside_what_every_client_knows() {
        let status = v1::ContainerStatus { id: "c".into(), exit_code: 7, log_path: "l".into(), ..Default::default() };
        let info = HashMap::from([("pid".to_owned(), "1".to_owned())]);
        let answer = v1::ContainerStatusResponse { status: Some(status), info };
        let quit = Signal::named("SIGQUIT");
        let bytes = encode(answer.clone(), quit).encode_to_vec();
        assert_eq!(v1::ContainerStatusResponse::decode(bytes.as_slice()).unwrap(), answer, "nothing else changes");
        assert_eq!(decode(Encoded::decode(bytes.as_slice()).unwrap()).unwrap(), (answer.clone(), quit));
        let plain = Encoded::decode(answer.encode_to_vec().as_slice()).unwrap();
        assert_eq!(decode(plain.clone()).unwrap(), (answer.clone(), None), "of a runtime that knows no signals");
        assert_eq!(encode(answer, None).encode_to_vec(), plain.encode_to_vec());
        let empty = v1::ContainerStatusResponse::default();
        assert_eq!(decode(encode(empty.clone(), quit)).unwrap(), (empty, None));
        assert!(decode(Encoded { status: Some(vec![0xff]), info: HashMap::new() }).is_err());
    }
}
