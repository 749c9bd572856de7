//! The agent's HTTPS server on :10250 (facts: upstream pkg/kubelet/server) and the plain health port.
//!
//! Guarantees: without authentication nothing but `/healthz` on the health port is served, unless the configuration allows anonymous
//! requests; every other request is authorised as the subresource it touches; no request body is read. Running programs in containers and
//! reaching pods' ports takes the right to `create`, whatever the method: upstream goes by the method, so that over WebSocket `get` is
//! enough for them.

mod auth;
mod cadvisor;
mod explanation;
mod handlers;
mod hcn_calls;
mod health;
mod metrics;
mod running;
mod streams;
mod volume_metrics;

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::Arc;

use bytes::Bytes;
use exposition::Format;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use listen::{CancellationToken, Limits, TaskTracker};
use prometheus_client::registry::Registry;

use crate::agent::Agent;
use crate::certificates::Counts;
use crate::certificates::metrics::Shown;
use crate::certificates::serving::Configuration;
use crate::node_logs::SystemLogs;
pub(crate) use auth::{Auth, User};

/// Answer bodies: whole or streamed.
pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Connections served at once. The API server has one for each log that is followed; programs that run in containers count until they
/// are connected.
const LIMITS: Limits = Limits::new(512, 256);
/// Connections to the health port, which is on the loopback unless configured otherwise.
const HEALTHZ_LIMITS: Limits = Limits::new(64, 64);

/// What the handlers need.
pub(crate) struct Server {
    pub agent: Arc<Agent>,
    pub auth: Auth,
    pub configz: serde_json::Value,
    /// Whether it runs programs in containers, connects to pods and shows logs.
    pub debugging: bool,
    pub system_logs: SystemLogs,
    metrics: Registry,
}

/// What the server offers beside health, pods and figures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shows {
    pub debugging: bool,
    pub system_logs: SystemLogs,
}

impl Server {
    pub(crate) fn new(
        agent: Arc<Agent>,
        auth: Auth,
        configz: serde_json::Value,
        shows: Shows,
        certificates: impl IntoIterator<Item = Arc<Counts>>,
    ) -> Self {
        let Shows { debugging, system_logs } = shows;
        let mut metrics = crate::stats::registry(&agent);
        certificates.into_iter().for_each(|counts| metrics.register_collector(Box::new(Shown(counts))));
        if let Some(client) = &agent.hcn {
            metrics.register_collector(Box::new(hcn_calls::Metrics(client.clone())));
        }
        Self { agent, auth, configz, debugging, system_logs, metrics }
    }
}

pub(crate) fn text(status: StatusCode, text: impl Into<String>) -> Response<Body> {
    let body = Full::new(Bytes::from(text.into())).boxed_unsync();
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    let kind = http::HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    answer
}

pub(crate) fn json(value: &serde_json::Value) -> Response<Body> {
    let mut answer = text(StatusCode::OK, value.to_string());
    let kind = http::HeaderValue::from_static("application/json");
    answer.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    answer
}

/// Serves TLS for ever.
pub(crate) async fn serve(server: Arc<Server>, listener: TcpListener, config: Configuration) -> std::io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let serve = move |stream, _, place| {
        let (acceptor, server) = (tokio_rustls::TlsAcceptor::from(config.borrow().clone()), server.clone());
        async move {
            let served = listen::serve(stream, acceptor, &LIMITS, place, CancellationToken::new(), |certificate| {
                let user = auth::user_of_certificate(certificate.map(std::slice::from_ref));
                move |request: Request<Incoming>| {
                    let (server, user) = (server.clone(), user.clone());
                    async move {
                        let _counted = server.agent.timings.requests.begin(request.method().as_str(), request.uri().path());
                        answer(&server, user, request).await
                    }
                }
            });
            if let Err(error) = served.await {
                tracing::debug!(error, "a connection ended with an error");
            }
        }
    };
    match listen::accept(listener, &LIMITS, &TaskTracker::new(), serve).await {}
}

async fn answer(server: &Arc<Server>, user: Option<User>, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let user = match user {
        Some(user) => user,
        None => match server.auth.user_of_headers(request.headers()).await {
            Ok(Some(user)) => user,
            Ok(None) => return text(StatusCode::UNAUTHORIZED, "Unauthorized"),
            Err(error) => {
                return text(StatusCode::INTERNAL_SERVER_ERROR, format!("checking the token failed: {error}"));
            }
        },
    };
    if let Some(place) = request.extensions().get::<listen::Place>() {
        place.keep();
    }
    let node = server.agent.side.node_name.clone();
    match server.auth.allowed(&user, request.method(), &path, &node).await {
        Ok(true) => {}
        Ok(false) => {
            let (verb, resources) = auth::attributes(request.method(), &path);
            return text(
                StatusCode::FORBIDDEN,
                format!("Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)={resources:?})\n", user.name),
            );
        }
        Err(error) => {
            return text(StatusCode::INTERNAL_SERVER_ERROR, format!("checking authorization failed: {error}"));
        }
    }
    if !server.debugging && is_debugging(&path) {
        return text(StatusCode::METHOD_NOT_ALLOWED, "Debug endpoints are disabled.\n");
    }
    if streams::is_stream(&path) {
        return match *request.method() {
            Method::GET | Method::POST => streams::serve(server, request).await,
            _ => text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed"),
        };
    }
    if let Some(container) = path.strip_prefix("/run/").filter(|_| request.method() == Method::POST) {
        return running::run(server, container, request.uri().query().unwrap_or_default()).await;
    }
    if let Some(container) = path.strip_prefix("/checkpoint/").filter(|_| request.method() == Method::POST) {
        return handlers::checkpoint(server, container);
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    }
    let format = Format::accepted(request.headers());
    handlers::route(server, &path, request.uri().query().unwrap_or_default(), format).await
}

/// Whether a path is served only where `enableDebuggingHandlers` is on (upstream `InstallDebuggingDisabledHandlers`), or is of ours alone and
/// tells as much.
fn is_debugging(path: &str) -> bool {
    let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    let upstream = ["attach", "configz", "containerLogs", "debug", "exec", "logs", "portForward", "run", "runningpods"];
    upstream.contains(&first) || matches!(first, "checkpoint" | "explain")
}

/// Serves `/healthz` in plain HTTP for ever: what kubeadm waits for.
pub(crate) async fn serve_healthz(listener: TcpListener) -> std::io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let service = |request: Request<Incoming>| async move {
        // As upstream's, it says that the process answers and no more.
        let uri = request.uri();
        health::answer(uri.path(), uri.query().unwrap_or_default(), &[health::PING])
    };
    match listen::serve_http(listener, HEALTHZ_LIMITS, service).await {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CVE-2019-11248: the port of health checks served profiles.
    #[tokio::test]
    async fn the_port_of_health_checks_serves_health_and_nothing_else() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(serve_healthz(listener));
        let ask = async |method: &str, path: &str| {
            let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
            stream.write_all(format!("{method} {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n").as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            let status: u16 = answer.split(' ').nth(1).unwrap().parse().unwrap();
            (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
        };
        assert_eq!(ask("GET", "/healthz").await, (200, "ok".to_owned()));
        assert_eq!(ask("GET", "/healthz/ping").await, (200, "ok".to_owned()));
        for path in [
            "/",
            "/debug/pprof/",
            "/debug/pprof/profile?seconds=1",
            "/debug/pprof/cmdline",
            "/debug/flags/v",
            "/debug/hcn",
            "/metrics",
            "/configz",
            "/pods",
            "/runningpods/",
            "/stats/summary",
            "/logs/",
            "/exec/ns/p/c?command=ls",
            "/run/ns/p/c?cmd=ls",
            "/healthz/../debug/pprof/",
            "/healthz/syncloop",
        ] {
            for method in ["GET", "POST", "PUT"] {
                assert_eq!(ask(method, path).await.0, 404, "{method} {path}");
            }
        }
        serving.abort();
    }

    #[test]
    fn what_debugging_needs_can_be_switched_off_and_the_rest_stays() {
        for path in
            ["/exec/ns/p/c", "/run/ns/p/c", "/attach/ns/p/c", "/portForward/ns/p", "/containerLogs/ns/p/c", "/runningpods/", "/logs/", "/logs"]
        {
            assert!(is_debugging(path), "{path}");
        }
        for path in ["/debug/pprof/", "/debug/hcn", "/configz", "/explain/ns/p", "/checkpoint/ns/p/c", "//exec/ns/p/c"] {
            assert!(is_debugging(path), "{path}");
        }
        for path in ["/healthz", "/pods", "/stats/summary", "/metrics", "/metrics/resource", "/metrics/probes", "/", ""] {
            assert!(!is_debugging(path), "{path}");
        }
    }
}
