//! pods/log: read from the kubelet (pkg/registry/core/pod/rest/log.go).

use super::{container, encode, pod_of};
use crate::http::call::Call;
use crate::http::respond::{self, Body};
use crate::kind::Kind;
use crate::object;
use crate::server::Api;
use crate::status::ApiError;
use futures::TryStreamExt as _;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use std::sync::Arc;
use std::time::Duration;
use streaming::upgrade::{self, Wire};
use streaming::websocket::Tunnel;
use thiserror_ext::AsReport as _;
use tokio::io::AsyncWriteExt as _;
use tokio_util::io::StreamReader;

const OPTIONS: [&str; 7] = ["follow", "previous", "sinceSeconds", "sinceTime", "timestamps", "tailLines", "limitBytes"];

/// The WebSocket subprotocol for a log: its bytes in messages.
const BINARY: &str = "binary.k8s.io";
/// How long a client may take to read the end of a log.
const LINGER: Duration = Duration::from_secs(60);

/// `kubectl logs`; over WebSocket for those who ask so.
pub(super) async fn serve(api: &Api, call: &Call, kind: &Arc<Kind>, mut request: Request<Body>) -> Result<Response<Body>, ApiError> {
    let response = read(api, call, kind).await?;
    if upgrade::requested(request.headers()) != Some(Wire::WebSocket) || !response.status().is_success() {
        return Ok(response);
    }
    let switching = match upgrade::accept_websocket(request.headers(), &[BINARY], Some("")) {
        Ok((switching, _)) => switching,
        Err(refusal) => return Ok(refusal.map(respond::full)),
    };
    let (client, shutdown, completion) = (hyper::upgrade::on(&mut request), api.shutdown.clone(), call.completion.clone());
    tokio::spawn(async move {
        let _last = completion;
        match client.await {
            Ok(client) => drop(shutdown.run_until_cancelled(send(response.into_body(), TokioIo::new(client))).await),
            Err(error) => tracing::debug!(error = %error.as_report(), "a client did not take up its connection"),
        }
    });
    Ok(switching.map(|()| respond::full("")))
}

/// The log as messages, until its end or the client's.
async fn send(log: Body, client: TokioIo<Upgraded>) {
    let log = log.into_data_stream().map_err(std::io::Error::other);
    let mut log = StreamReader::new(log);
    let (mut from, mut to) = tokio::io::split(Tunnel::server(client).await);
    let sending = async {
        let _ = tokio::io::copy_buf(&mut log, &mut to).await;
        let _ = to.shutdown().await;
        tokio::time::sleep(LINGER).await;
    };
    let mut nowhere = tokio::io::sink();
    tokio::select! {
        () = sending => {}
        _ = tokio::io::copy(&mut from, &mut nowhere) => {}
    }
}

async fn read(api: &Api, call: &Call, kind: &Arc<Kind>) -> Result<Response<Body>, ApiError> {
    let pod = pod_of(api, call, kind)?;
    let container = container(&pod, &call.info.name, call.query.get("container").unwrap_or_default())?;
    let node = object::text(&pod, &["spec", "nodeName"]);
    if node.is_empty() {
        return Ok(respond::text(200, ""));
    }
    let options: Vec<String> =
        OPTIONS.iter().filter_map(|option| call.query.get(option).map(|value| format!("{option}={}", encode(value)))).collect();
    let target = format!("/containerLogs/{}/{}/{container}?{}", call.info.namespace, call.info.name, options.join("&"));
    let location = api.kubelet_location(node)?;
    let answer = api.kubelet.get(&location, &target).await;
    let (address, port) = (location.address, location.port);
    let answer = answer.map_err(|error| ApiError::internal(format!("Get \"https://{}{target}\": {error}", super::authority(address, port))))?;
    let (parts, body) = answer.into_parts();
    if parts.status.is_success() {
        let mut response = respond::text(parts.status.as_u16(), "");
        if let Some(content_type) = parts.headers.get(http::header::CONTENT_TYPE) {
            response.headers_mut().insert(http::header::CONTENT_TYPE, content_type.clone());
        }
        *response.body_mut() = body.map_err(Into::into).boxed_unsync();
        return Ok(response);
    }
    let text = super::text_of(body).await.trim().to_string();
    Err(match parts.status.as_u16() {
        400 => ApiError::bad_request(text),
        404 => ApiError::new(404, "NotFound", format!("the server could not find the requested resource ({text})")),
        500 => ApiError::internal(text),
        code => ApiError::new(code, "", text),
    })
}
