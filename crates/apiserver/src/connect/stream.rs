//! pods/exec, pods/attach and pods/portforward (pkg/registry/core/pod/rest/subresources.go).
//!
//! Kubelets are spoken to in SPDY. What a client brings decides how: WebSocket with `v5.channel.k8s.io` is translated, SPDY inside
//! WebSocket (`SPDY/3.1+portforward.k8s.io`) is taken out of it, and everything else is passed through as it is.

use super::{Connected, Target, container, encode, kubelet, pod_of};
use crate::authz::Attributes;
use crate::http::call::Call;
use crate::http::respond::{self, Body};
use crate::kind::Kind;
use crate::object;
use crate::server::Api;
use crate::status::ApiError;
use http::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::sync::Arc;
use streaming::remotecommand::{self, Outcome, Remote, Requested};
use streaming::upgrade::{self, Answer};
use streaming::{portforward, websocket};
use thiserror_ext::AsReport as _;

/// Answers such a request.
pub(super) async fn serve(api: &Api, call: &Call, kind: &Arc<Kind>, mut request: Request<Body>) -> Result<Response<Body>, ApiError> {
    // A WebSocket is asked for with GET, and `get` must not be enough to run programs
    // (feature AuthorizePodWebsocketUpgradeCreatePermission, on since 1.35).
    let attributes = Attributes { verb: "create".into(), ..Attributes::of(&call.user, &call.info, "") };
    api.registry.authorizer.check(&attributes)?;
    let pod = pod_of(api, call, kind)?;
    let forwards = call.info.subresource == "portforward";
    let requested = requested(call);
    let path = if forwards {
        let ports: Vec<&str> = call.query.all("ports").collect();
        let query = if ports.is_empty() { String::new() } else { format!("?port={}", encode(&ports.join(","))) };
        format!("/portForward/{}/{}{query}", call.info.namespace, call.info.name)
    } else {
        let container = container(&pod, &call.info.name, call.query.get("container").unwrap_or_default())?;
        format!("/{}/{}/{}/{container}?{}", call.info.subresource, call.info.namespace, call.info.name, parameters(call, requested))
    };
    let node = object::text(&pod, &["spec", "nodeName"]);
    if node.is_empty() {
        return Err(ApiError::bad_request(format!("pod {} does not have a host assigned", call.info.name)));
    }
    let target = Target::kubelet(api.kubelet_location(node)?, path);
    let headers = request.headers().clone();
    if upgrade::requested(&headers).is_none() {
        return Err(ApiError::bad_request("Upgrade request required"));
    }
    if !forwards && remotecommand::is_v5(&headers) {
        return Ok(translate(api, call, &mut request, target, requested));
    }
    if forwards && portforward::is_tunnel(&headers) {
        return take_out(api, call, &mut request, target).await;
    }
    super::pass_through(api, call, &mut request, &target).await
}

fn requested(call: &Call) -> Requested {
    let flag = |name: &str| call.query.flag(name);
    Requested { stdin: flag("stdin"), stdout: flag("stdout"), stderr: flag("stderr"), tty: flag("tty") }
}

/// The options as kubelets read them.
fn parameters(call: &Call, requested: Requested) -> String {
    let flags = [("input", requested.stdin), ("output", requested.stdout), ("error", requested.stderr), ("tty", requested.tty)];
    let mut all: Vec<String> = flags.iter().filter(|(_, set)| *set).map(|(name, _)| format!("{name}=1")).collect();
    if call.info.subresource == "exec" {
        all.extend(call.query.all("command").map(|word| format!("command={}", encode(word))));
    }
    all.join("&")
}

/// WebSocket to the client, SPDY to the kubelet. Errors of the kubelet go to the error channel, as upstream does.
fn translate(api: &Api, call: &Call, request: &mut Request<Body>, target: Target, requested: Requested) -> Response<Body> {
    let (response, accepted) = match remotecommand::accept_v5(&call.headers, requested) {
        Ok(accepted) => accepted,
        Err(refusal) => return refusal.map(respond::full),
    };
    let (upgraded, kubelet, shutdown) = (hyper::upgrade::on(request), api.kubelet.clone(), api.shutdown.clone());
    let work = async move {
        let client = match upgraded.await {
            Ok(upgraded) => TokioIo::new(upgraded),
            Err(error) => return tracing::debug!(error = %error.as_report(), "a client did not take up its connection"),
        };
        // Both at once: neither needs the other.
        let (client, remote) = tokio::join!(accepted.streams(client), begin(&kubelet, &target, requested));
        match (client, remote) {
            (Ok(client), Ok(remote)) => remote.bridge(client).await,
            (Ok(client), Err(outcome)) => client.finish(&outcome).await,
            (Err(error), _) => tracing::debug!(error = %error.as_report(), "a client did not begin its streams"),
        }
    };
    let completion = call.completion.clone();
    tokio::spawn(async move {
        let _last = completion;
        shutdown.run_until_cancelled(work).await
    });
    response.map(|()| respond::full(""))
}

/// The program's streams at the kubelet; else the outcome for the client.
async fn begin(kubelet: &kubelet::KubeletClient, target: &Target, requested: Requested) -> Result<Remote, Outcome> {
    let failed = |error: String| Outcome::Failed(error);
    let stream = super::dial(kubelet, target).await.map_err(|error| failed(format!("error dialing backend: {error}")))?;
    let asked = upgrade::spdy_request(&target.path, &target.authority(), &remotecommand::REMOTE_PROTOCOLS);
    let asked = asked.map_err(|error| failed(error.to_string()))?;
    match upgrade::send(stream, asked).await.map_err(|error| failed(format!("error sending request: {error}")))? {
        Answer::Switched(_, upgraded) => Remote::begin(upgraded, requested).await.map_err(|error| failed(error.to_string())),
        Answer::Refused(refusal) => {
            let text = super::text_of(refusal.into_body()).await;
            match serde_json::from_str::<Value>(&text) {
                Ok(status) if object::text(&status, &["kind"]) == "Status" => Err(Outcome::Status(status)),
                _ => Err(failed(format!("unable to upgrade connection: {}", text.trim()))),
            }
        }
    }
}

/// SPDY inside the client's WebSocket, as it is to the kubelet.
async fn take_out(api: &Api, call: &Call, request: &mut Request<Body>, target: Target) -> Result<Response<Body>, ApiError> {
    let asked = upgrade::spdy_request(&target.path, &target.authority(), &[portforward::PROTOCOL]).map_err(ApiError::internal)?;
    let upgraded = match super::send(&api.kubelet, &target, asked).await? {
        Connected::Switched(_, upgraded) => upgraded,
        Connected::Refused(response) => return Ok(response),
    };
    let response = match upgrade::accept_websocket(&call.headers, &[portforward::TUNNEL], None) {
        Ok((response, _)) => response,
        Err(refusal) => return Ok(refusal.map(respond::full)),
    };
    let (client, shutdown) = (hyper::upgrade::on(request), api.shutdown.clone());
    let work = async move {
        match client.await {
            Ok(client) => upgrade::copy(websocket::Tunnel::server(TokioIo::new(client)).await, upgraded).await,
            Err(error) => tracing::debug!(error = %error.as_report(), "a client did not take up its connection"),
        }
    };
    let completion = call.completion.clone();
    tokio::spawn(async move {
        let _last = completion;
        shutdown.run_until_cancelled(work).await
    });
    Ok(response.map(|()| respond::full("")))
}
