//! Subresources other than status and connections: scale, binding, eviction, token; and the reviews, which are creations without an object.

mod binding;
mod eviction;
pub mod review;
mod scale;
mod token;

use crate::http::Call;
use crate::http::negotiate;
use crate::http::respond::{self, Body};
use crate::kinds::KindInfo;
use crate::registry::WriteContext;
use crate::server::Api;
use crate::status::ApiError;
use http::Response;
use serde_json::{Value, json};
use std::sync::Arc;

/// Answers a request for a subresource.
pub async fn serve(api: &Arc<Api>, call: &Call, kind: &'static KindInfo, context: &WriteContext) -> Result<Response<Body>, ApiError> {
    let encoding = negotiate::accept(&call.headers).map_or(negotiate::Encoding::Json, |accepted| accepted.encoding);
    let json = |code, value: Value| Ok(respond::document(encoding, code, &value));
    match (kind.plural, call.info.subresource.as_str(), call.info.verb) {
        (_, "scale", verb) if kind.subresources.contains(&"scale") => match verb {
            "get" => json(200, scale::get(api, call, kind)?),
            "update" | "patch" => json(200, scale::change(api, call, kind, context).await?),
            verb => Err(ApiError::method_not_allowed(kind, verb)),
        },
        ("pods", "binding", "create") => json(201, binding::bind(api, call, kind, context).await?),
        ("pods", "eviction", "create") => json(201, eviction::evict(api, call, kind, context).await?),
        ("serviceaccounts", "token", "create") => json(201, token::create(api, call, kind)?),
        (_, subresource, verb) if kind.subresources.contains(&subresource) => Err(ApiError::method_not_allowed(kind, verb)),
        _ => Err(ApiError::no_such_resource()),
    }
}

/// What a subresource without an object of its own answers.
fn success() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
}
