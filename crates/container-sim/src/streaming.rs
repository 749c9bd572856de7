//! HTTP server for the URLs that Exec, Attach and PortForward return: on the node's loopback, reached through the
//! kubelet only. Each URL is good for one connection within a minute (k8s.io/cri-streaming/pkg/streaming).

mod session;
mod tokens;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use k8s_cri::v1;
use listen::Limits;
use streaming::portforward;
use streaming::remotecommand::{self, Requested};
use thiserror_ext::AsReport as _;
use tokio::net::TcpListener;
use tonic::Status;

use crate::runtime::Runtime;
use crate::session::Want;
use tokens::Tokens;

/// Connections until they carry streams: all come from the node agent.
const LIMITS: Limits = Limits::new(1024, 1024);

/// The request behind a URL.
#[derive(Clone, Debug)]
pub(crate) enum Pending {
    Exec(v1::ExecRequest),
    Attach(v1::AttachRequest),
    PortForward(v1::PortForwardRequest),
}

/// A running server.
pub(crate) struct Server {
    address: SocketAddr,
    tokens: Arc<Tokens<Pending>>,
}

impl Server {
    /// Serves until the tokio runtime ends.
    pub(crate) async fn start(runtime: Arc<Runtime>) -> Result<Self> {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("cannot listen on the loopback for exec, attach and port-forward")?;
        let address = listener.local_addr().context("cannot read the streaming server's address")?;
        let tokens = Arc::new(Tokens::default());
        tokio::spawn(serve(runtime, listener, Arc::clone(&tokens)));
        Ok(Self { address, tokens })
    }

    pub(crate) fn exec(&self, request: v1::ExecRequest) -> Result<v1::ExecResponse, Status> {
        check(request.tty, request.stdin, request.stdout, request.stderr)?;
        Ok(v1::ExecResponse { url: self.url("exec", Pending::Exec(request))? })
    }

    pub(crate) fn attach(&self, request: v1::AttachRequest) -> Result<v1::AttachResponse, Status> {
        check(request.tty, request.stdin, request.stdout, request.stderr)?;
        Ok(v1::AttachResponse { url: self.url("attach", Pending::Attach(request))? })
    }

    pub(crate) fn port_forward(&self, request: v1::PortForwardRequest) -> Result<v1::PortForwardResponse, Status> {
        Ok(v1::PortForwardResponse { url: self.url("portforward", Pending::PortForward(request))? })
    }

    fn url(&self, what: &str, pending: Pending) -> Result<String, Status> {
        let token = self.tokens.insert(pending).ok_or_else(|| Status::resource_exhausted("maximum number of in-flight requests exceeded"))?;
        Ok(format!("http://{}/{what}/{token}", self.address))
    }
}

/// As `validateExecRequest` upstream.
fn check(tty: bool, stdin: bool, stdout: bool, stderr: bool) -> Result<(), Status> {
    if tty && stderr {
        return Err(Status::invalid_argument("tty and stderr cannot both be true"));
    }
    if stdin || stdout || stderr { Ok(()) } else { Err(Status::invalid_argument("one of stdin, stdout, or stderr must be set")) }
}

async fn serve(runtime: Arc<Runtime>, listener: TcpListener, tokens: Arc<Tokens<Pending>>) {
    let service = move |request: Request<Incoming>| {
        let answer = answer(&runtime, &tokens, request);
        async move { answer }
    };
    match listen::serve_http(listener, LIMITS, service).await {}
}

fn answer(runtime: &Arc<Runtime>, tokens: &Tokens<Pending>, mut request: Request<Incoming>) -> Response<Full<Bytes>> {
    let mut parts = request.uri().path().trim_start_matches('/').splitn(2, '/');
    let (what, token) = (parts.next().unwrap_or_default().to_owned(), parts.next().unwrap_or_default().to_owned());
    let answered = match (what.as_str(), tokens.take(&token)) {
        ("exec", Some(Pending::Exec(exec))) => {
            let requested = Requested { stdin: exec.stdin, stdout: exec.stdout, stderr: exec.stderr, tty: exec.tty };
            run(runtime, &mut request, requested, session::Program::Exec { container: exec.container_id, argv: exec.cmd })
        }
        ("attach", Some(Pending::Attach(attach))) => {
            let requested = Requested { stdin: attach.stdin, stdout: attach.stdout, stderr: attach.stderr, tty: attach.tty };
            run(runtime, &mut request, requested, session::Program::Attach { container: attach.container_id })
        }
        ("portforward", Some(Pending::PortForward(forward))) => port_forward(runtime, &mut request, forward.pod_sandbox_id),
        _ => {
            let mut response = Response::new("404 page not found\n".to_owned());
            *response.status_mut() = StatusCode::NOT_FOUND;
            Err(Box::new(response))
        }
    };
    match answered {
        Ok(switching) => switching.map(|()| Full::default()),
        Err(refusal) => refusal.map(|text| Full::new(text.into())),
    }
}

type Answered = Result<Response<()>, Box<Response<String>>>;

fn run(runtime: &Arc<Runtime>, request: &mut Request<Incoming>, requested: Requested, program: session::Program) -> Answered {
    let (response, accepted) = remotecommand::accept(request.headers(), requested)?;
    let (runtime, upgraded) = (Arc::clone(runtime), hyper::upgrade::on(request));
    tokio::spawn(async move {
        let upgraded = match upgraded.await {
            Ok(upgraded) => TokioIo::new(upgraded),
            Err(error) => return tracing::debug!(error = %error.as_report(), "a client did not take up its connection"),
        };
        match accepted.streams(upgraded).await {
            Ok(streams) => {
                session::run(
                    &runtime,
                    program,
                    Want { stdin: requested.stdin, stdout: requested.stdout, stderr: requested.stderr },
                    requested.tty,
                    streams,
                )
                .await
            }
            Err(error) => tracing::debug!(error = %error.as_report(), "a client did not begin its streams"),
        }
    });
    Ok(response)
}

fn port_forward(runtime: &Arc<Runtime>, request: &mut Request<Incoming>, sandbox: String) -> Answered {
    let response = portforward::accept(request.headers())?;
    let (runtime, upgraded) = (Arc::clone(runtime), hyper::upgrade::on(request));
    tokio::spawn(async move {
        let upgraded = match upgraded.await {
            Ok(upgraded) => TokioIo::new(upgraded),
            Err(error) => return tracing::debug!(error = %error.as_report(), "a client did not take up its connection"),
        };
        let pod = sandbox.clone();
        let dial = move |port: u16| {
            let (runtime, sandbox) = (Arc::clone(&runtime), sandbox.clone());
            async move { runtime.dial_pod(&sandbox, port).await.map_err(|status| status.message().to_owned()) }
        };
        portforward::serve(upgraded, &pod, dial).await;
    });
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_checked_as_upstream() {
        assert!(check(true, true, true, false).is_ok());
        assert_eq!(check(true, true, true, true).unwrap_err().message(), "tty and stderr cannot both be true");
        assert_eq!(check(false, false, false, false).unwrap_err().message(), "one of stdin, stdout, or stderr must be set");
    }
}
