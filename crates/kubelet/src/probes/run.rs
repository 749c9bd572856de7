//! One try of a probe.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction, LifecycleHandler, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::net::TcpStream;

use super::counts::{Counts, Probed};
use super::{GetError, ProbeError, Verdict, grpc};

/// Where a container is probed.
#[derive(Clone)]
pub(crate) struct Target {
    pub pod_ip: String,
    pub container: Container,
    pub id: String,
    pub cri: cri::Client,
    pub of: Probed,
    pub counts: Arc<Counts>,
}

/// An exec hook may take as long as the grace period lets it.
const HOOK: Duration = Duration::from_secs(3600);
/// Body bytes that are read at most.
const BODY: usize = 10 << 10;

pub(super) async fn attempt(probe: &Probe, target: &Target) -> Verdict {
    let limit = Duration::from_secs(probe.timeout_seconds.unwrap_or(1).max(1) as u64);
    if let Some(exec) = &probe.exec {
        return run_exec(exec.command.clone().unwrap_or_default(), limit, target).await;
    }
    let attempt = async {
        if let Some(http) = &probe.http_get {
            get(http, target).await
        } else if let Some(tcp) = &probe.tcp_socket {
            let host = tcp.host.clone().filter(|h| !h.is_empty()).unwrap_or_else(|| target.pod_ip.clone());
            match port(&tcp.port, target) {
                Some(port) => match TcpStream::connect((host.as_str(), port)).await {
                    Ok(_) => Verdict::Success,
                    Err(source) => Verdict::Failure(ProbeError::Dial { host, port, source }),
                },
                None => Verdict::Unknown(ProbeError::NoPort),
            }
        } else if let Some(grpc) = &probe.grpc {
            match u16::try_from(grpc.port) {
                Ok(port) => grpc::check(&target.pod_ip, port, grpc.service.as_deref().unwrap_or_default()).await,
                Err(_) => Verdict::Unknown(ProbeError::BadPort(grpc.port)),
            }
        } else {
            Verdict::Unknown(ProbeError::UnsupportedProbe)
        }
    };
    match tokio::time::timeout(limit, attempt).await {
        Ok(verdict) => verdict,
        Err(_) => Verdict::Failure(ProbeError::NoAnswer(limit)),
    }
}

/// Runs a postStart or preStop handler to its end. The caller bounds the time.
pub(crate) async fn run_hook(handler: &LifecycleHandler, target: &Target) -> Result<(), ProbeError> {
    let verdict = if let Some(sleep) = &handler.sleep {
        tokio::time::sleep(Duration::from_secs(sleep.seconds.max(0) as u64)).await;
        Verdict::Success
    } else if let Some(exec) = &handler.exec {
        run_exec(exec.command.clone().unwrap_or_default(), HOOK, target).await
    } else if let Some(http) = &handler.http_get {
        get(http, target).await
    } else {
        Verdict::Unknown(ProbeError::UnsupportedHook)
    };
    match verdict {
        Verdict::Success => Ok(()),
        Verdict::Failure(error) | Verdict::Unknown(error) => Err(error),
    }
}

async fn run_exec(command: Vec<String>, limit: Duration, target: &Target) -> Verdict {
    match target.cri.exec_sync(&target.id, &command, limit).await {
        Ok(answer) if answer.exit_code == 0 => Verdict::Success,
        Ok(answer) => {
            let mut output = answer.stdout;
            output.extend(answer.stderr);
            output.truncate(BODY);
            Verdict::Failure(ProbeError::Command { output: String::from_utf8_lossy(&output).into_owned() })
        }
        Err(e) if e.kind() == cri::Kind::Deadline => Verdict::Failure(ProbeError::CommandTimeout { command: command.join(" "), limit }),
        Err(e) => Verdict::Unknown(ProbeError::Runtime(e.into())),
    }
}

fn port(port: &IntOrString, target: &Target) -> Option<u16> {
    match port {
        IntOrString::Int(n) => u16::try_from(*n).ok(),
        IntOrString::String(name) => name.parse().ok().or_else(|| {
            let ports = target.container.ports.iter().flatten();
            let named = ports.clone().find(|p| p.name.as_deref() == Some(name))?;
            u16::try_from(named.container_port).ok()
        }),
    }
}

async fn get(action: &HTTPGetAction, target: &Target) -> Verdict {
    let Some(port) = port(&action.port, target) else {
        return Verdict::Unknown(ProbeError::NoPort);
    };
    let host = action.host.clone().filter(|h| !h.is_empty()).unwrap_or_else(|| target.pod_ip.clone());
    let path = action.path.clone().filter(|p| !p.is_empty()).unwrap_or_else(|| "/".into());
    let path = if path.starts_with('/') { path } else { format!("/{path}") };
    let https = action.scheme.as_deref() == Some("HTTPS");
    let scheme = if https { "https" } else { "http" };
    let shown = format!("{scheme}://{host}:{port}{path}");
    let failed = |source: GetError| Verdict::Failure(ProbeError::Get { url: shown.clone(), source });
    let stream = match TcpStream::connect((host.as_str(), port)).await {
        Ok(stream) => stream,
        Err(e) => return failed(e.into()),
    };
    let mut request = http::Request::builder().uri(&path).header("Connection", "close");
    let headers = action.http_headers.iter().flatten();
    let named = |n: &str| headers.clone().any(|h| h.name.eq_ignore_ascii_case(n));
    if !named("host") {
        request = request.header("Host", format!("{host}:{port}"));
    }
    if !named("user-agent") {
        request = request.header("User-Agent", "kube-probe/1.36");
    }
    for h in headers.clone() {
        request = request.header(&h.name, &h.value);
    }
    let request = match request.body(Empty::<bytes::Bytes>::new()) {
        Ok(request) => request,
        Err(e) => return Verdict::Unknown(ProbeError::BadRequest(e)),
    };
    let sent = if https {
        match crate::tls::connect_unverified(stream, &host).await {
            Ok(tls) => send(TokioIo::new(tls), request).await,
            Err(e) => return failed(e.into()),
        }
    } else {
        send(TokioIo::new(stream), request).await
    };
    match sent {
        Ok((status, _)) if (200..400).contains(&status) => Verdict::Success,
        Ok((status, _)) => Verdict::Failure(ProbeError::HttpStatus(status)),
        Err(e) => failed(e.into()),
    }
}

async fn send<T>(io: T, request: http::Request<Empty<bytes::Bytes>>) -> Result<(u16, usize), hyper::Error>
where
    T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
    let driver = tokio::spawn(connection);
    let answer = sender.send_request(request).await;
    let out = match answer {
        Ok(answer) => {
            let status = answer.status().as_u16();
            // Read a bounded part, so that the server is not cut off in mid-answer.
            let body = Limited::new(answer.into_body(), BODY).collect().await;
            Ok((status, body.map_or(0, |b| b.to_bytes().len())))
        }
        Err(e) => Err(e),
    };
    driver.abort();
    out
}
