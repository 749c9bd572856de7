//! Subresources that are connections to a node: the request's own body and upgrade go through instead of being read first.
//! Who asks has been authenticated and authorized before.

pub mod kubelet;

use crate::http::Call;
use crate::http::respond::Body;
use crate::kinds::{self, KindInfo};
use crate::server::Api;
use crate::status::ApiError;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;

/// The kind whose subresource is a connection, if the request asks for one.
pub fn kind_of(call: &Call) -> Option<&'static KindInfo> {
    let info = &call.info;
    let kind = kinds::by_resource(&info.group, &info.version, &info.resource)?;
    let connects = match (kind.group, kind.plural) {
        ("", "pods") => matches!(info.subresource.as_str(), "attach" | "exec" | "log" | "portforward" | "proxy"),
        ("", "services" | "nodes") => info.subresource == "proxy",
        _ => false,
    };
    (connects && kind.subresources.contains(&info.subresource.as_str())).then_some(kind)
}

/// Answers such a request: `call` says what is asked for (its body is empty), `request` brings the body and the upgrade.
pub async fn serve(api: &Api, call: &Call, kind: &'static KindInfo, request: Request<Body>) -> Result<Response<Body>, ApiError> {
    match (kind.plural, call.info.subresource.as_str(), call.info.verb) {
        ("pods", "log", "get") => kubelet::log(api, call, kind).await,
        ("nodes", "proxy", _) => {
            let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_else(|_| Bytes::new());
            kubelet::proxy(api, call, body).await
        }
        (_, _, verb) => Err(ApiError::method_not_allowed(kind, verb)),
    }
}
