//! `/exec`, `/attach` and `/portForward`: the runtime is asked for a URL, and the connection is passed through to it
//! (upstream pkg/kubelet/server/server.go `getExec`, pkg/kubelet/kubelet_pods.go `GetExec`). Nothing of the bytes is looked at.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cri::labels::{CONTAINER_NAME, POD_UID};
use cri::v1;
use http::uri::InvalidUri;
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use k8s_openapi::api::core::v1::Pod;
use streaming::upgrade::{self, Answer};
use thiserror_ext::AsReport as _;
use tokio::net::TcpStream;

use super::{Body, Server, text};
use crate::error::RuntimeError;

/// How long the runtime's server may take to accept a connection.
const DIAL: Duration = Duration::from_secs(10);
/// The most of the runtime's reason for a refusal that is passed on.
const REASON: usize = 64 << 10;

/// Why a stream is not served, in upstream's words.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error("you must specify at least 1 of stdin, stdout, stderr")]
    NoStreams,
    #[error("container not found ({container:?})")]
    NoContainer { container: String },
    #[error("container {container} not found in pod {pod}")]
    NotInPod { container: String, pod: String },
    #[error("pod not found ({pod:?})")]
    NoSandbox { pod: String },
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    #[error("the container runtime's streaming server at {url}")]
    Server { url: String, source: ServerError },
}

impl StreamError {
    fn status(&self) -> StatusCode {
        match self {
            StreamError::NoStreams => StatusCode::BAD_REQUEST,
            StreamError::Server { .. } => StatusCode::BAD_GATEWAY,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// Why the runtime's streaming server did not take a request.
#[derive(Debug, thiserror::Error)]
enum ServerError {
    #[error("not a URL")]
    Url(#[from] InvalidUri),
    #[error("only http:// is understood; switch TLS of the runtime's streaming server off")]
    NotHttp,
    #[error("connecting timed out")]
    Timeout,
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Request(#[from] http::Error),
    #[error(transparent)]
    Http(#[from] hyper::Error),
}

/// What is asked for, apart from the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What<'a> {
    Exec(&'a str),
    Attach(&'a str),
    PortForward,
}

/// Whether a path is one of these.
pub(super) fn is_stream(path: &str) -> bool {
    matches!(path.trim_start_matches('/').split('/').next(), Some("exec" | "attach" | "portForward"))
}

/// Answers such a request.
pub(super) async fn serve(server: &Arc<Server>, mut request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    if request.headers().get(http::header::UPGRADE).is_some_and(|wire| wire.as_bytes().eq_ignore_ascii_case(b"websocket")) {
        server.agent.timings.requests.websocket(&path);
    }
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (namespace, name, uid, what) = match parts.as_slice() {
        ["exec", namespace, pod, container] => (namespace, pod, None, What::Exec(container)),
        ["exec", namespace, pod, uid, container] => (namespace, pod, Some(uid), What::Exec(container)),
        ["attach", namespace, pod, container] => (namespace, pod, None, What::Attach(container)),
        ["attach", namespace, pod, uid, container] => (namespace, pod, Some(uid), What::Attach(container)),
        ["portForward", namespace, pod] => (namespace, pod, None, What::PortForward),
        ["portForward", namespace, pod, uid] => (namespace, pod, Some(uid), What::PortForward),
        _ => return text(StatusCode::NOT_FOUND, "404 page not found"),
    };
    let pod = server.agent.pod(&cluster::Key::new(*namespace, *name));
    let Some(pod) = pod.filter(|pod| uid.is_none_or(|uid| pod.metadata.uid.as_deref() == Some(*uid))) else {
        return text(StatusCode::NOT_FOUND, "pod does not exist");
    };
    let answer = async {
        let options = Options::read(request.uri().query().unwrap_or_default(), what)?;
        let url = url(&server.agent.cri, &pod, what, options).await?;
        pass_through(&mut request, &url).await.map_err(|source| StreamError::Server { url, source })
    };
    answer.await.unwrap_or_else(|error| text(error.status(), error.to_report_string()))
}

/// The streams and the command that are asked for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    stdin: bool,
    stdout: bool,
    stderr: bool,
    tty: bool,
    command: Vec<String>,
}

impl Options {
    fn read(query: &str, what: What<'_>) -> Result<Self, StreamError> {
        let decode = |text: &str| percent_encoding::percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
        let mut options = Options::default();
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            match name {
                "input" => options.stdin = value == "1",
                "output" => options.stdout = value == "1",
                "error" => options.stderr = value == "1",
                "tty" => options.tty = value == "1",
                "command" => options.command.push(decode(value)),
                _ => {}
            }
        }
        if what == What::PortForward {
            return Ok(options);
        }
        // A terminal has one output.
        options.stderr &= !options.tty;
        if !options.stdin && !options.stdout && !options.stderr {
            return Err(StreamError::NoStreams);
        }
        Ok(options)
    }
}

/// The runtime's URL.
async fn url(cri: &cri::Client, pod: &Pod, what: What<'_>, options: Options) -> Result<String, StreamError> {
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let full = format!("{name}_{}", pod.metadata.namespace.as_deref().unwrap_or_default());
    let Options { stdin, stdout, stderr, tty, command } = options;
    let answer = match what {
        What::Exec(container) => {
            let found = running(cri, uid, container).await?;
            let container_id = found.ok_or_else(|| StreamError::NoContainer { container: container.to_owned() })?;
            cri.exec(v1::ExecRequest { container_id, cmd: command, tty, stdin, stdout, stderr }).await
        }
        What::Attach(container) => {
            let found = running(cri, uid, container).await?;
            let container_id = found.ok_or_else(|| StreamError::NotInPod { container: container.to_owned(), pod: full })?;
            // Whether there is a terminal was decided when the container was made.
            let tty = pod.spec.as_ref().is_some_and(|spec| has_tty(spec, container));
            cri.attach(v1::AttachRequest { container_id, tty, stdin, stdout, stderr: stderr && !tty }).await
        }
        What::PortForward => {
            let filter = v1::PodSandboxFilter {
                label_selector: HashMap::from([(POD_UID.to_owned(), uid)]),
                state: Some(v1::PodSandboxStateValue { state: v1::PodSandboxState::SandboxReady as i32 }),
                ..Default::default()
            };
            let found = cri.list_pod_sandbox(v1::ListPodSandboxRequest { filter: Some(filter) }).await.map_err(RuntimeError::from)?;
            let newest = found.into_iter().max_by_key(|sandbox| sandbox.created_at).ok_or_else(|| StreamError::NoSandbox { pod: full })?;
            cri.port_forward(v1::PortForwardRequest { pod_sandbox_id: newest.id, port: Vec::new() }).await
        }
    };
    Ok(answer.map_err(RuntimeError::from)?)
}

fn has_tty(spec: &k8s_openapi::api::core::v1::PodSpec, container: &str) -> bool {
    let ephemeral = spec.ephemeral_containers.iter().flatten().find(|own| own.name == container).and_then(|own| own.tty);
    let mut others = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    ephemeral.or_else(|| others.find(|own| own.name == container).and_then(|own| own.tty)).unwrap_or(false)
}

/// The newest running container of a name.
pub(super) async fn running(cri: &cri::Client, uid: String, container: &str) -> Result<Option<String>, RuntimeError> {
    let filter = v1::ContainerFilter {
        label_selector: HashMap::from([(POD_UID.to_owned(), uid), (CONTAINER_NAME.to_owned(), container.to_owned())]),
        state: Some(v1::ContainerStateValue { state: v1::ContainerState::ContainerRunning as i32 }),
        ..Default::default()
    };
    let found = cri.list_containers(v1::ListContainersRequest { filter: Some(filter) }).await?;
    Ok(found.into_iter().max_by_key(|container| container.created_at).map(|container| container.id))
}

/// Sends the request on, and the answer back; after an upgrade bytes are copied both ways.
async fn pass_through(request: &mut Request<Incoming>, url: &str) -> Result<Response<Body>, ServerError> {
    let url: Uri = url.parse()?;
    let (Some("http"), Some(authority)) = (url.scheme_str(), url.authority()) else {
        return Err(ServerError::NotHttp);
    };
    let target = url.path_and_query().map_or("/", |target| target.as_str());
    let connected =
        tokio::time::timeout(DIAL, TcpStream::connect((authority.host().trim_matches(['[', ']']), authority.port_u16().unwrap_or(80)))).await;
    let stream = connected.map_err(|_| ServerError::Timeout)??;
    // Key strokes are small, and wait for nothing.
    let _ = stream.set_nodelay(true);
    let passed = upgrade::passed_on(request, target, authority.as_str())?;
    match upgrade::send(stream, passed).await? {
        Answer::Switched(answer, runtime) => {
            let (response, copying) = upgrade::join(request, &answer, runtime);
            tokio::spawn(copying);
            Ok(response.map(|()| Full::default().boxed_unsync()))
        }
        Answer::Refused(response) => {
            let (parts, body) = response.into_parts();
            // Only the reason is wanted.
            let bytes = Limited::new(body, REASON).collect().await.map(|collected| collected.to_bytes()).unwrap_or_default();
            let mut answer = text(parts.status, String::from_utf8_lossy(&bytes));
            for (name, value) in
                parts.headers.iter().filter(|(name, _)| name.as_str().starts_with("x-accepted-") || name.as_str().starts_with("sec-websocket"))
            {
                answer.headers_mut().append(name, value.clone());
            }
            Ok(answer)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_say_what_is_wanted() {
        let read = |query| Options::read(query, What::Exec("c"));
        let options = read("command=sh&command=-c&command=echo+a%26b&input=1&output=1&error=1&tty=1").unwrap();
        assert_eq!(options.command, ["sh", "-c", "echo a&b"]);
        assert!(options.stdin && options.stdout && options.tty && !options.stderr);
        assert_eq!(read("command=sh&output=0").unwrap_err().to_string(), "you must specify at least 1 of stdin, stdout, stderr");
        assert_eq!(Options::read("", What::PortForward).unwrap(), Options::default());
    }

    /// CVE-2018-1002105: after an upgrade that failed, the connection to the backend stayed open, and took further requests of the client with
    /// the rights of whoever had opened it.
    #[tokio::test]
    async fn an_upgrade_that_fails_ends_the_connection_to_the_runtime() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let backend = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/exec/token", backend.local_addr().unwrap());
        // A backend that keeps its connection open, and tells what else arrives on it.
        let heard = tokio::spawn(async move {
            let (mut stream, _) = backend.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nno").await.unwrap();
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).await.unwrap();
            rest
        });
        let front = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = front.local_addr().unwrap();
        let served = tokio::spawn(async move {
            let (stream, _) = front.accept().await.unwrap();
            let service = hyper::service::service_fn(|mut request: Request<Incoming>| {
                let url = url.clone();
                async move {
                    let answer =
                        if is_stream(request.uri().path()) { pass_through(&mut request, &url).await.unwrap() } else { text(StatusCode::OK, "own") };
                    Ok::<_, std::convert::Infallible>(answer)
                }
            });
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(hyper_util::rt::TokioIo::new(stream), service).with_upgrades().await;
        });
        let mut client = TcpStream::connect(address).await.unwrap();
        let request = "POST /exec/ns/pod/c HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
        client.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"no") {
            answer.push(client.read_u8().await.unwrap());
        }
        assert!(answer.starts_with(b"HTTP/1.1 400"), "{}", String::from_utf8_lossy(&answer));
        client.write_all(b"GET /secrets HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert!(answer.ends_with(b"own"), "the agent itself answers what follows: {}", String::from_utf8_lossy(&answer));
        let heard = tokio::time::timeout(Duration::from_secs(10), heard).await.expect("the connection to the backend ends").unwrap();
        assert_eq!(String::from_utf8_lossy(&heard), "", "and nothing more arrives there");
        served.abort();
    }

    #[test]
    fn paths_of_streams() {
        assert!(is_stream("/exec/ns/pod/c") && is_stream("/portForward/ns/pod") && is_stream("/attach/"));
        assert!(!is_stream("/pods") && !is_stream("/execute"));
    }
}
