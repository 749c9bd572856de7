//! containerd's own event stream, for versions whose CRI has none (before 1.7): `containerd.services.events.v1.Events/Subscribe` on the
//! socket of CRI. It says that a task began or ended; what that means for a pod is read over CRI.

use tonic::Streaming;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use crate::events::TaskChange;

const SUBSCRIBE: &str = "/containerd.services.events.v1.Events/Subscribe";
/// What becomes of tasks in CRI's namespace. A filter's comma means "and".
const FILTER: &str = "namespace==k8s.io,topic~=^/tasks/(start|exit|delete)$";

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

/// `TaskDelete`. The third and the fourth field, the exit's status and time, are not read.
#[derive(Clone, PartialEq, prost::Message)]
struct Deleted {
    #[prost(string, tag = "1")]
    container_id: String,
    /// Empty for a container's first process, in some versions and shims the container's id.
    #[prost(string, tag = "5")]
    id: String,
}

impl Envelope {
    /// What became of a container; None for other processes in it, such as a probe's.
    pub(crate) fn change(self) -> Option<(String, TaskChange)> {
        use prost::Message as _;
        let value = self.event?.value;
        let value = value.as_slice();
        Some(match self.topic.as_str() {
            "/tasks/start" => (Started::decode(value).ok()?.container_id, TaskChange::Started),
            "/tasks/delete" => {
                let task = Deleted::decode(value).ok()?;
                (task.id.is_empty() || task.id == task.container_id).then_some((task.container_id, TaskChange::Deleted))?
            }
            _ => {
                let task = Task::decode(value).ok()?;
                (task.id == task.container_id).then_some((task.container_id, TaskChange::Ended))?
            }
        })
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
        let of = |topic: &str, value: Vec<u8>| envelope(topic, value).change().map(|(container, change)| format!("{container} {change:?}"));
        assert_eq!(of("/tasks/exit", exit("c1", "c1")).as_deref(), Some("c1 Ended"));
        assert_eq!(of("/tasks/exit", exit("c1", "probe")), None);
        // TaskStart: container_id, then the process number as a varint.
        let start = [&[0x0a, 2][..], b"c1", &[0x10, 0x2a]].concat();
        assert_eq!(of("/tasks/start", start.clone()).as_deref(), Some("c1 Started"));
        // TaskDelete: container_id, process number, exit status, time, id.
        assert_eq!(of("/tasks/delete", start.clone()).as_deref(), Some("c1 Deleted"), "as shims of 1.6 send it");
        for (id, want) in [(b"c1", Some("c1 Deleted")), (b"e1", None)] {
            assert_eq!(of("/tasks/delete", [&start[..], &[0x2a, 2], id].concat()).as_deref(), want);
        }
        for topic in ["/tasks/exit", "/tasks/start", "/tasks/delete"] {
            assert_eq!(of(topic, vec![0xff]), None, "{topic}");
        }
    }
}
