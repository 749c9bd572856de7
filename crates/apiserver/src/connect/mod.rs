//! Subresources that are connections to a node or a pod: the request's own body and upgrade go through instead of being read first.
//! Requests have been authenticated and authorized before.

pub mod kubelet;
mod log;
mod proxy;
mod stream;
mod unverified;

use crate::http::call::Call;
use crate::http::respond::{self, Body};
use crate::kind::{Attributes, Kind, Operation, Route, Subresource, WriteContext};
use crate::object;
use crate::server::Api;
use crate::status::ApiError;
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use kubelet::{KubeletClient, Location};
use serde_json::{Value, json};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use streaming::upgrade::{self, Answer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

const CONNECT: Duration = Duration::from_secs(10);
/// Largest refusal that is passed on.
const LARGEST_REFUSAL: usize = 64 << 10;

/// The kind whose subresource is a connection, if the request asks for one.
pub fn kind_of(api: &Api, call: &Call) -> Option<Arc<Kind>> {
    let info = &call.info;
    let kind = api.registry.kinds.find(&info.group, &info.version, &info.resource)?;
    let connects = kind.subresource(&info.subresource).is_some_and(|subresource| matches!(subresource.route, Route::Connect));
    connects.then_some(kind)
}

/// Answers such a request: `call` says what is asked for (its body is empty), `request` brings the body and the upgrade.
pub async fn serve(api: &Api, call: &Call, kind: &Arc<Kind>, request: Request<Body>) -> Result<Response<Body>, ApiError> {
    // A log is read, not connected to.
    if let Some(subresource) = kind.subresource(&call.info.subresource).filter(|subresource| subresource.name != "log") {
        let context = WriteContext::new(call.user.clone(), false).with_options(serde_json::Map::new(), Arc::clone(&call.audit));
        let attributes = Attributes::create(&api.registry, &context, kind, &call.info.namespace, &call.info.name);
        let attributes = attributes.below(Operation::Connect, subresource.name);
        api.registry.admission.admit(&attributes, &mut options(call, subresource)).await?;
    }
    match (call.info.subresource.as_str(), request.method()) {
        ("proxy", _) => proxy::serve(api, call, kind, request).await,
        ("log", &Method::GET) => log::serve(api, call, kind, request).await,
        ("exec" | "attach" | "portforward", &Method::GET | &Method::POST) => stream::serve(api, call, kind, request).await,
        _ => Err(ApiError::method_not_allowed(kind, call.info.verb)),
    }
}

/// The options of a connection as admission sees them, from the query.
fn options(call: &Call, subresource: &Subresource) -> Value {
    let mut options = json!({"kind": subresource.body.kind, "apiVersion": "v1"});
    for flag in ["stdin", "stdout", "stderr", "tty"] {
        if call.query.flag(flag) {
            options[flag] = true.into();
        }
    }
    let texts: Vec<&str> = call.query.all("command").collect();
    if !texts.is_empty() {
        options["command"] = json!(texts);
    }
    let ports: Vec<i64> = call.query.all("ports").filter_map(|port| port.parse().ok()).collect();
    if !ports.is_empty() {
        options["ports"] = json!(ports);
    }
    if let Some(container) = call.query.get("container") {
        options["container"] = container.into();
    }
    if subresource.name == "proxy" {
        options["path"] = call.info.rest.as_str().into();
    }
    options
}

/// `ADDRESS:PORT`.
fn authority(address: IpAddr, port: u16) -> String {
    std::net::SocketAddr::new(address, port).to_string()
}

fn encode(value: &str) -> String {
    percent_encoding::utf8_percent_encode(value, percent_encoding::NON_ALPHANUMERIC).to_string()
}

fn pod_of(api: &Api, call: &Call, kind: &Arc<Kind>) -> Result<Value, ApiError> {
    Ok(api.registry.get(kind, &call.info.namespace, &call.info.name)?.value())
}

/// The container that is meant (pkg/registry/core/pod/strategy.go `validateContainer`).
fn container(pod: &Value, name: &str, asked: &str) -> Result<String, ApiError> {
    let names = |list: &str| object::list(pod, &["spec", list]).iter().map(|container| object::name_of(container).to_string()).collect::<Vec<_>>();
    let containers = names("containers");
    let all = || [names("initContainers"), containers.clone(), names("ephemeralContainers")].concat();
    if !asked.is_empty() {
        let known = all().iter().any(|own| own == asked);
        return if known { Ok(asked.to_string()) } else { Err(ApiError::bad_request(format!("container {asked} is not valid for pod {name}"))) };
    }
    match containers.as_slice() {
        [only] => Ok(only.clone()),
        [] => Err(ApiError::bad_request(format!("a container name must be specified for pod {name}"))),
        _ => {
            let message = format!("a container name must be specified for pod {name}, choose one of: [{}]", all().join(" "));
            Err(ApiError::bad_request(message))
        }
    }
}

/// How a connection is made.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Transport {
    /// TLS with our certificate, to the kubelet of this node.
    Kubelet(String),
    /// None but TCP.
    Plain,
    /// TLS to whoever answers, as upstream: pods' certificates are of no authority that the server knows.
    Unverified,
}

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    transport: Transport,
    address: IpAddr,
    port: u16,
    /// With its query.
    path: String,
}

impl Target {
    fn kubelet(location: Location, path: String) -> Self {
        Self { transport: Transport::Kubelet(location.node), address: location.address, port: location.port, path }
    }

    fn authority(&self) -> String {
        authority(self.address, self.port)
    }
}

/// Any connection.
trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

async fn dial(kubelet: &KubeletClient, target: &Target) -> Result<Box<dyn Io>, String> {
    let (address, port) = (target.address, target.port);
    if let Transport::Kubelet(node) = &target.transport {
        return Ok(Box::new(kubelet.connect(&Location { node: node.clone(), address, port }).await?));
    }
    let connect = tokio::time::timeout(CONNECT, TcpStream::connect((address, port))).await;
    let stream = connect.map_err(|_| format!("dial tcp {}: i/o timeout", target.authority()))?;
    let stream = stream.map_err(|error| format!("dial tcp {}: {error}", target.authority()))?;
    // Key strokes are small, and wait for nothing.
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    if target.transport == Transport::Unverified {
        let connect = tokio::time::timeout(CONNECT, unverified::connect(stream, address)).await;
        let stream = connect.map_err(|_| format!("tls to {}: i/o timeout", target.authority()))?;
        return Ok(Box::new(stream.map_err(|error| format!("tls to {}: {error}", target.authority()))?));
    }
    Ok(Box::new(stream))
}

/// What became of a request for an upgrade.
enum Connected {
    Switched(Response<()>, TokioIo<Upgraded>),
    /// The backend's answer, for the client.
    Refused(Response<Body>),
}

async fn send(kubelet: &KubeletClient, target: &Target, request: Request<Full<Bytes>>) -> Result<Connected, ApiError> {
    let failed = |error: String| ApiError::new(500, "", error);
    let stream = dial(kubelet, target).await.map_err(|error| failed(format!("error dialing backend: {error}")))?;
    match upgrade::send(stream, request).await.map_err(|error| failed(format!("error dialing backend: {error}")))? {
        Answer::Switched(response, upgraded) => Ok(Connected::Switched(response, upgraded)),
        Answer::Refused(response) if response.status().as_u16() < 400 => {
            Err(failed(format!("invalid upgrade response: status code {}", response.status().as_u16())))
        }
        Answer::Refused(response) => {
            let (mut parts, body) = response.into_parts();
            parts.headers.remove(http::header::CONTENT_LENGTH);
            parts.headers.remove(http::header::TRANSFER_ENCODING);
            Ok(Connected::Refused(Response::from_parts(parts, respond::full(text_of(body).await))))
        }
    }
}

/// Passes an upgrade and everything after it through.
async fn pass_through(api: &Api, call: &Call, request: &mut Request<Body>, target: &Target) -> Result<Response<Body>, ApiError> {
    let passed = upgrade::passed_on(request, &target.path, &target.authority()).map_err(ApiError::internal)?;
    match send(&api.kubelet, target, passed).await? {
        Connected::Refused(response) => Ok(response),
        Connected::Switched(answer, upgraded) => {
            let (response, copying) = upgrade::join(request, &answer, upgraded);
            let (shutdown, completion) = (api.shutdown.clone(), call.completion.clone());
            tokio::spawn(async move {
                let _last = completion;
                shutdown.run_until_cancelled(copying).await
            });
            Ok(response.map(|()| respond::full("")))
        }
    }
}

async fn text_of(body: hyper::body::Incoming) -> String {
    let bytes = Limited::new(body, LARGEST_REFUSAL).collect().await.map(|collected| collected.to_bytes()).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_container_must_be_clear() {
        let pod = json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]}});
        assert_eq!(container(&pod, "p", "").unwrap_err().message, "a container name must be specified for pod p, choose one of: [i a b]");
        assert_eq!(container(&pod, "p", "i").unwrap(), "i");
        assert_eq!(container(&pod, "p", "x").unwrap_err().message, "container x is not valid for pod p");
        let one = json!({"spec": {"containers": [{"name": "a"}], "initContainers": [{"name": "i"}]}});
        assert_eq!(container(&one, "p", "").unwrap(), "a");
    }
}
