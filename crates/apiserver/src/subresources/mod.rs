//! Subresources other than status and connections: scale, binding, eviction, token; and the reviews, which are creations without an object.

mod binding;
mod eviction;
pub mod review;
mod scale;
mod token;

use crate::http::call::Call;
use crate::http::negotiate;
use crate::http::respond::{self, Body};
use crate::kind::{Kind, Route, WriteContext};
use crate::server::Api;
use crate::status::ApiError;
use http::Response;
use serde_json::{Value, json};
use std::sync::Arc;

/// Answers a request for a subresource.
pub async fn serve(api: &Arc<Api>, call: &Call, kind: &Arc<Kind>, context: &WriteContext) -> Result<Response<Body>, ApiError> {
    let encoding = negotiate::accept(&call.headers).map_or(negotiate::Encoding::Json, |accepted| accepted.encoding);
    let json = |code, value: Value| Ok(respond::document(encoding, code, &value));
    let verb = call.info.verb;
    let Some(subresource) = kind.subresource(&call.info.subresource) else { return Err(ApiError::no_such_resource()) };
    if !subresource.verbs.contains(&verb) {
        return Err(ApiError::method_not_allowed(kind, verb));
    }
    match (&subresource.route, kind.plural.as_str(), subresource.name, verb) {
        (Route::Scale(paths), _, _, "get") => json(200, scale::get(api, call, kind, paths)?),
        (Route::Scale(paths), ..) => json(200, scale::change(api, call, kind, paths, context).await?),
        (Route::Action, "pods", "binding", _) => json(201, binding::bind(api, call, kind, context).await?),
        (Route::Action, "pods", "eviction", _) => json(201, eviction::evict(api, call, kind, context).await?),
        (Route::Action, "serviceaccounts", "token", _) => json(201, token::create(api, call, kind)?),
        _ => Err(ApiError::no_such_resource()),
    }
}

/// What a subresource without an object of its own answers.
fn success() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
}
