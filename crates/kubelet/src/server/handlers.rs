//! What the server answers.

use std::fs::File;
use std::io::Seek as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cri::v1;
use exposition::Format;
use futures::StreamExt;
use host::{HostError, HostRoot, PodPath};
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use thiserror_ext::AsReport as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::{Body, Server, cadvisor, explanation, hcn_calls, health, json as answer_json, metrics, running, text, volume_metrics};
use crate::error::RuntimeError;
use crate::logs::{self, Filter, Options};
use crate::node_logs;
use crate::pod::State;
use crate::stats;

/// How often a followed log is looked at.
const FOLLOW: Duration = Duration::from_millis(100);
/// After how many looks at a log without news its container and its file are looked at too.
const LOOKS: u32 = 5;

/// Why a container's log is not sent.
#[derive(Debug, thiserror::Error)]
enum LogError {
    #[error("{parameter} must be a number that is not negative")]
    NoNumber { parameter: &'static str },
    #[error("sinceTime must be an RFC 3339 time")]
    NoTime,
    #[error(transparent)]
    Runtime(RuntimeError),
    #[error("previous terminated container {container:?} in pod {pod:?} not found")]
    NoPrevious { container: String, pod: String },
    #[error("container {container:?} in pod {pod:?} is waiting to start: {reason}")]
    Waiting { container: String, pod: String, reason: String },
    #[error(transparent)]
    Host(#[from] HostError),
}

pub(super) async fn route(server: &Arc<Server>, path: &str, query: &str, format: Format) -> Response<Body> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match parts.as_slice() {
        ["healthz", ..] => health::answer(path, query, &health::checks(&server.agent)),
        ["runningpods"] => running::pods(server).await,
        ["pods"] => pods(server),
        ["configz"] => answer_json(&server.configz),
        ["debug", "hcn"] => match &server.agent.hcn {
            Some(client) => answer_json(&hcn_calls::document(&client.snapshot())),
            None => text(StatusCode::NOT_FOUND, "this node has no Host Networking Service"),
        },
        ["stats", "summary"] => answer_json(&stats::summary(&server.agent, detail(query)).await),
        ["metrics"] => {
            let own = exposition::encode(&server.metrics, format);
            answer_metrics(volume_metrics::add(&server.agent, own, format).await, format)
        }
        ["metrics", "cadvisor"] => cadvisor::serve(&server.agent, format).await,
        ["metrics", "probes"] => answer_metrics(exposition::encode(&server.agent.probes.registry, format), format),
        ["metrics", "resource"] => answer_metrics(metrics::resource(server, format).await, format),
        ["explain", ns, pod] => match explanation::document(&server.agent, &cluster::Key::new(*ns, *pod)).await {
            Some(document) => answer_json(&document),
            None => text(StatusCode::NOT_FOUND, format!("pod {pod:?} of namespace {ns:?} is not on this node\n")),
        },
        ["logs", ..] => {
            let below = path.trim_start_matches('/').strip_prefix("logs").unwrap_or_default();
            node_logs::serve(&server.agent.root, server.system_logs, below.trim_start_matches('/'), query).await
        }
        ["containerLogs", ns, pod, container] => container_logs(server, ns, pod, container, query).await,
        _ => text(StatusCode::NOT_FOUND, "404 page not found"),
    }
}

/// Checkpoints of containers are refused: they need CRIU on the node, hold the memory of programs, and fill the disk (CVE-2025-0426).
pub(super) fn checkpoint(server: &Server, container: &str) -> Response<Body> {
    let [namespace, name, container] = container.split('/').collect::<Vec<_>>()[..] else {
        return text(StatusCode::NOT_FOUND, "404 page not found");
    };
    let Some(pod) = server.agent.pod(&cluster::Key::new(namespace, name)) else {
        return text(StatusCode::NOT_FOUND, "pod does not exist");
    };
    if !has_container(&pod, container) {
        return text(StatusCode::NOT_FOUND, format!("container {container} does not exist"));
    }
    let why = "this node agent makes no checkpoints, as upstream's without the feature gate ContainerCheckpoint";
    text(StatusCode::NOT_FOUND, format!("checkpointing of {namespace}/{name}/{container} failed ({why})"))
}

fn has_container(pod: &Pod, container: &str) -> bool {
    pod.spec.as_ref().is_some_and(|s| crate::pod::containers(s).any(|(_, c)| c.name == container))
        || crate::pod::ephemeral(pod).iter().any(|c| c.name == container)
}

/// What a request for statistics asks for.
fn detail(query: &str) -> stats::Detail {
    if parameter(query, "only_cpu_and_memory").is_some_and(|value| value == "true") { stats::Detail::Usage } else { stats::Detail::All }
}

fn answer_metrics(metrics: String, format: Format) -> Response<Body> {
    let mut answer = text(StatusCode::OK, metrics);
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
    answer
}

fn pods(server: &Server) -> Response<Body> {
    let items: Vec<_> = server.agent.all_pods().into_iter().map(|p| json!(*p)).collect();
    answer_json(&json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}))
}

/// One value of a query string, decoded.
pub(super) fn parameter(query: &str, name: &str) -> Option<String> {
    let pair = query.split('&').filter_map(|p| p.split_once('=')).find(|(k, _)| *k == name)?;
    let plus = pair.1.replace('+', " ");
    percent_encoding::percent_decode_str(&plus).decode_utf8().ok().map(|v| v.into_owned())
}

fn options(query: &str, now: Timestamp) -> Result<(Options, bool), LogError> {
    let flag = |name: &str| parameter(query, name).is_some_and(|v| v == "true" || v == "1");
    let number = |name: &'static str| match parameter(query, name).filter(|v| !v.is_empty()) {
        Some(v) => v.parse::<u64>().map(Some).map_err(|_| LogError::NoNumber { parameter: name }),
        None => Ok(None),
    };
    let since = match (number("sinceSeconds")?, parameter(query, "sinceTime").filter(|v| !v.is_empty())) {
        (Some(s), _) => Some(now - SignedDuration::from_secs(s.min(1 << 40) as i64)),
        (None, Some(t)) => Some(t.parse().map_err(|_| LogError::NoTime)?),
        (None, None) => None,
    };
    let options = Options { follow: flag("follow"), timestamps: flag("timestamps"), tail: number("tailLines")?, since, limit: number("limitBytes")? };
    Ok((options, flag("previous")))
}

async fn container_logs(server: &Arc<Server>, ns: &str, name: &str, container: &str, query: &str) -> Response<Body> {
    let agent = &server.agent;
    let Some(pod) = agent.pod(&cluster::Key::new(ns, name)) else {
        return text(StatusCode::NOT_FOUND, format!("pod {name:?} does not exist\n"));
    };
    if !has_container(&pod, container) {
        return text(StatusCode::NOT_FOUND, format!("container {container:?} not found in pod {name:?}\n"));
    }
    let (options, previous) = match options(query, Timestamp::now()) {
        Ok(parsed) => parsed,
        Err(error) => return text(StatusCode::BAD_REQUEST, error.to_report_string()),
    };
    let (id, names, file) = match find(server, &pod, container, previous).await {
        Ok(found) => found,
        Err(error) => return text(StatusCode::BAD_REQUEST, error.to_report_string()),
    };
    let (sender, receiver) = mpsc::channel::<Bytes>(8);
    let source = Source { cri: agent.cri.clone(), root: Arc::clone(&agent.root), logs: agent.logs.clone(), id, names };
    tokio::spawn(async move {
        if let Err(error) = send(source, file, options, sender).await {
            tracing::debug!(error = %error.as_report(), "reading a container log ended early");
        }
    });
    let frames = ReceiverStream::new(receiver).map(|b| Ok(Frame::data(b)));
    let mut answer = Response::new(BodyExt::boxed_unsync(StreamBody::new(frames)));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    answer
}

/// The container's id, and its log.
async fn find(server: &Server, pod: &Pod, container: &str, previous: bool) -> Result<(String, Vec<String>, File), LogError> {
    let agent = &server.agent;
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    let name = pod.metadata.name.clone().unwrap_or_default();
    let observed = crate::runtime::observe(&agent.cri, &uid).await.map_err(|error| LogError::Runtime(error.into()))?;
    let mut attempts = observed.containers.iter().filter(|c| c.name == container);
    let chosen = if previous {
        attempts.find(|c| c.state == State::Exited && observed.newest(container).is_some_and(|n| n.id != c.id))
    } else {
        attempts.find(|c| c.state != State::Created)
    };
    let Some(chosen) = chosen else {
        let container = container.to_owned();
        if previous {
            return Err(LogError::NoPrevious { container, pod: name });
        }
        let reason = if observed.newest(&container).is_some() { "ContainerCreating".to_owned() } else { waiting(pod, &container) };
        return Err(LogError::Waiting { container, pod: name, reason });
    };
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let names = vec![format!("{namespace}_{name}_{uid}"), container.to_owned(), format!("{}.log", chosen.restarts)];
    let file = logs::open(&agent.root, &agent.logs, &names)?;
    Ok((chosen.id.clone(), names, file))
}

fn waiting(pod: &Pod, container: &str) -> String {
    let status = pod.status.as_ref();
    let all = status.into_iter().flat_map(|s| s.container_statuses.iter().flatten().chain(s.init_container_statuses.iter().flatten()));
    let state = all.into_iter().find(|s| s.name == container).and_then(|s| s.state.as_ref());
    state.and_then(|s| s.waiting.as_ref()).and_then(|w| w.reason.clone()).unwrap_or_else(|| "ContainerCreating".into())
}

/// Where a log comes from.
struct Source {
    cri: cri::Client,
    root: Arc<HostRoot>,
    /// The directory of all pods' logs.
    logs: PodPath,
    id: String,
    names: Vec<String>,
}

impl Source {
    async fn is_running(&self) -> bool {
        let request = v1::ContainerStatusRequest { container_id: self.id.clone(), ..Default::default() };
        let status = self.cri.container_status(request).await.ok().and_then(|a| a.status);
        status.is_some_and(|s| s.state == v1::ContainerState::ContainerRunning as i32)
    }

    /// The file that has taken the log's place since it was read up to `position`: after a rotation it is shorter.
    fn successor(&self, position: u64) -> Option<File> {
        let file = logs::open(&self.root, &self.logs, &self.names).ok()?;
        (file.metadata().ok()?.len() < position).then_some(file)
    }
}

/// Reads the log to its end, or for as long as the container runs and the reader stays.
async fn send(source: Source, mut file: File, options: Options, out: mpsc::Sender<Bytes>) -> std::io::Result<()> {
    if let Some(lines) = options.tail {
        logs::seek_tail(&mut file, lines)?;
    }
    let follow = options.follow;
    let mut filter = Filter::new(options);
    let (mut running, mut looks, mut next) = (follow, 0, None);
    loop {
        let chunk = logs::read_chunk(&mut file)?;
        if chunk.is_empty() {
            if let Some(next) = next.take() {
                file = next;
                continue;
            }
            if !running {
                return Ok(());
            }
            tokio::select! {
                () = out.closed() => return Ok(()),
                () = tokio::time::sleep(FOLLOW) => {}
            }
            looks += 1;
            if looks % LOOKS == 0 {
                // Once more after the end, for what was written meanwhile.
                running = source.is_running().await;
                next = source.successor(file.stream_position()?);
            }
            continue;
        }
        looks = 0;
        let text = filter.push(&chunk);
        if !text.is_empty() && out.send(text).await.is_err() {
            return Ok(());
        }
        if filter.full() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_log_that_was_rotated_has_a_successor() {
        let dir = tempfile::tempdir().unwrap();
        let root = Arc::new(HostRoot::linux(dir.path()).unwrap());
        let (dir, names) = (dir.path().join("var/log/pods"), vec!["0.log".to_owned()]);
        std::fs::create_dir_all(&dir).unwrap();
        let logs = root.parse("/var/log/pods").unwrap();
        let source = Source { cri: cri::Client::connect("unix:///nowhere").unwrap(), root, logs, id: String::new(), names };
        assert!(source.successor(5).is_none(), "between the renaming and the new file");
        std::fs::write(dir.join("0.log"), "12345").unwrap();
        assert!(source.successor(5).is_none() && source.successor(3).is_none());
        std::fs::rename(dir.join("0.log"), dir.join("0.log.old")).unwrap();
        std::fs::write(dir.join("0.log"), "1").unwrap();
        assert!(source.successor(5).is_some());
    }

    #[test]
    fn queries() {
        let now = Timestamp::from_second(1000).unwrap();
        let (o, previous) = options("follow=true&tailLines=5&timestamps=true&sinceSeconds=10&limitBytes=7&previous=true", now).unwrap();
        assert!(o.follow && o.timestamps && previous);
        assert_eq!((o.tail, o.limit, o.since), (Some(5), Some(7), Some(Timestamp::from_second(990).unwrap())));
        let (o, _) = options("sinceTime=2026-01-01T00%3A00%3A00Z", now).unwrap();
        assert_eq!(o.since, Some("2026-01-01T00:00:00Z".parse().unwrap()));
        assert_eq!(options("", now).unwrap(), (Options::default(), false));
        assert!(options("tailLines=-1", now).is_err() && options("sinceTime=x", now).is_err());
    }
}
