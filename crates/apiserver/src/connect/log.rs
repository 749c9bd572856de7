//! pods/log: read from the kubelet (pkg/registry/core/pod/rest/log.go).

use super::{container, encode, kubelet, pod_of};
use crate::http::Call;
use crate::http::respond::{self, Body};
use crate::kinds::KindInfo;
use crate::object;
use crate::server::Api;
use crate::status::ApiError;
use http::Response;
use http_body_util::BodyExt;

const OPTIONS: [&str; 7] = ["follow", "previous", "sinceSeconds", "sinceTime", "timestamps", "tailLines", "limitBytes"];

/// `kubectl logs`.
pub(super) async fn serve(api: &Api, call: &Call, kind: &'static KindInfo) -> Result<Response<Body>, ApiError> {
    let pod = pod_of(api, call, kind)?;
    let container = container(&pod, &call.info.name, call.query.get("container").unwrap_or_default())?;
    let node = object::text(&pod, &["spec", "nodeName"]);
    if node.is_empty() {
        return Ok(respond::text(200, ""));
    }
    let options: Vec<String> =
        OPTIONS.iter().filter_map(|option| call.query.get(option).map(|value| format!("{option}={}", encode(value)))).collect();
    let target = format!("/containerLogs/{}/{}/{container}?{}", call.info.namespace, call.info.name, options.join("&"));
    let (address, port) = kubelet::location(api, node)?;
    let answer = api.kubelet.get(address, port, &target).await;
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
