//! containerd's own event stream, for versions whose CRI has none (before 1.7): `containerd.services.events.v1.Events/Subscribe` on the
//! socket of CRI. It says that a task began or ended; what that means for a pod is read over CRI.

use tonic::Streaming;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

const SUBSCRIBE: &str = "/containerd.services.events.v1.Events/Subscribe";
/// Begin and end of tasks in CRI's namespace. A filter's comma means "and".
const FILTER: &str = "namespace==k8s.io,topic~=^/tasks/(start|exit)$";

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SubscribeRequest {
    #[prost(string, repeated, tag = "1")]
    pub filters: Vec<String>,
}

/// One event, in whatever namespace.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Envelope {
    #[prost(string, tag = "3")]
    pub topic: String,
    #[prost(message, optional, tag = "4")]
    pub event: Option<Any>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Any {
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

/// `TaskExit`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Task {
    #[prost(string, tag = "1")]
    pub container_id: String,
    /// The process that ended: the container's first one has the container's id, one of `exec` another.
    #[prost(string, tag = "2")]
    pub id: String,
}

/// `TaskStart` has the process number in the place of the second field.
#[derive(Clone, PartialEq, prost::Message)]
struct Started {
    #[prost(string, tag = "1")]
    container_id: String,
}

impl Envelope {
    /// The container that began or ended; None for other processes in it, such as a probe's.
    pub(crate) fn container(self) -> Option<String> {
        use prost::Message as _;
        let value = self.event?.value;
        if self.topic == "/tasks/start" {
            return Started::decode(value.as_slice()).ok().map(|task| task.container_id);
        }
        Task::decode(value.as_slice()).ok().filter(|task| task.id == task.container_id).map(|task| task.container_id)
    }
}

pub(crate) async fn subscribe(transport: Channel) -> Result<Streaming<Envelope>, Status> {
    let mut client = tonic::client::Grpc::new(transport);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let request = Request::new(SubscribeRequest { filters: vec![FILTER.to_owned()] });
    let answer = client.server_streaming(request, PathAndQuery::from_static(SUBSCRIBE), ProstCodec::default()).await?;
    Ok(answer.into_inner())
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    /// An event as containerd 1.6 sends it: the envelope's time and namespace, and the type's name, are not read.
    fn envelope(topic: &str, value: Vec<u8>) -> Envelope {
        #[derive(Clone, PartialEq, prost::Message)]
        struct Whole {
            #[prost(string, tag = "2")]
            namespace: String,
            #[prost(string, tag = "3")]
            topic: String,
            #[prost(message, optional, tag = "4")]
            event: Option<Typed>,
        }
        #[derive(Clone, PartialEq, prost::Message)]
        struct Typed {
            #[prost(string, tag = "1")]
            type_url: String,
            #[prost(bytes = "vec", tag = "2")]
            value: Vec<u8>,
        }
        let event = Some(Typed { type_url: "containerd.events.Task".into(), value });
        let whole = Whole { namespace: "k8s.io".into(), topic: topic.into(), event };
        Envelope::decode(whole.encode_to_vec().as_slice()).unwrap()
    }

    fn exit(container: &str, process: &str) -> Vec<u8> {
        Task { container_id: container.into(), id: process.into() }.encode_to_vec()
    }

    #[test]
    fn containers_count_and_programs_of_exec_do_not() {
        assert_eq!(envelope("/tasks/exit", exit("c1", "c1")).container().as_deref(), Some("c1"));
        assert_eq!(envelope("/tasks/exit", exit("c1", "probe")).container(), None);
        // TaskStart: container_id, then the process number as a varint.
        let start = [&[0x0a, 2][..], b"c1", &[0x10, 0x2a]].concat();
        assert_eq!(envelope("/tasks/start", start).container().as_deref(), Some("c1"));
        assert_eq!(envelope("/tasks/exit", vec![0xff]).container(), None);
    }
}
