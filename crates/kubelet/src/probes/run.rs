//! One try of a probe.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::net::TcpStream;

use super::counts::{Counts, Probed};
use super::get::{Purpose, get, hook};
use super::{ProbeError, Verdict, grpc};

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

/// Bytes of a command's output that are kept.
const OUTPUT: usize = 10 << 10;

pub(super) async fn attempt(probe: &Probe, target: &Target) -> Verdict {
    let limit = Duration::from_secs(probe.timeout_seconds.unwrap_or(1).max(1) as u64);
    if let Some(exec) = &probe.exec {
        return run_exec(exec.command.clone().unwrap_or_default(), limit, target).await;
    }
    let attempt = async {
        if let Some(http) = &probe.http_get {
            get(http, target, Purpose::Probe).await
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

/// Runs a postStart or preStop handler to its end. Exec has no limit of its own, as upstream: the caller bounds the time. Returns the server,
/// as `host:port`, that was asked by HTTPS but speaks HTTP.
pub(crate) async fn run_hook(handler: &LifecycleHandler, target: &Target) -> Result<Option<String>, ProbeError> {
    let verdict = if let Some(sleep) = &handler.sleep {
        tokio::time::sleep(Duration::from_secs(sleep.seconds.max(0) as u64)).await;
        Verdict::Success
    } else if let Some(exec) = &handler.exec {
        run_exec(exec.command.clone().unwrap_or_default(), Duration::ZERO, target).await
    } else if let Some(http) = &handler.http_get {
        return hook(http, target).await;
    } else {
        Verdict::Unknown(ProbeError::UnsupportedHook)
    };
    match verdict {
        Verdict::Success | Verdict::Warning(_) => Ok(None),
        Verdict::Failure(error) | Verdict::Unknown(error) => Err(error),
    }
}

async fn run_exec(command: Vec<String>, limit: Duration, target: &Target) -> Verdict {
    match target.cri.exec_sync(&target.id, &command, limit).await {
        Ok(answer) if answer.exit_code == 0 => Verdict::Success,
        Ok(answer) => {
            let mut output = answer.stdout;
            output.extend(answer.stderr);
            output.truncate(OUTPUT);
            Verdict::Failure(ProbeError::Command { output: String::from_utf8_lossy(&output).into_owned() })
        }
        Err(e) if e.kind() == cri::Kind::Deadline => Verdict::Failure(ProbeError::CommandTimeout { command: command.join(" "), limit }),
        Err(e) => Verdict::Unknown(ProbeError::Runtime(e.into())),
    }
}

pub(super) fn port(port: &IntOrString, target: &Target) -> Option<u16> {
    match port {
        IntOrString::Int(n) => u16::try_from(*n).ok(),
        IntOrString::String(name) => name.parse().ok().or_else(|| {
            let ports = target.container.ports.iter().flatten();
            let named = ports.clone().find(|p| p.name.as_deref() == Some(name))?;
            u16::try_from(named.container_port).ok()
        }),
    }
}
