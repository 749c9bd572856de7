//! Subresources other than status and connections: scale, binding, eviction, token; and the reviews, which are creations without an object.

mod binding;
mod eviction;
pub mod review;
mod scale;
mod token;

use crate::http::call::Call;
use crate::http::negotiate;
use crate::http::respond::{self, Body};
use crate::http::write;
use crate::kind::{Kind, Route, WriteContext};
use crate::object;
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
        (Route::Scale(paths), _, _, "get") => json(200, scale::get(api, call, kind, paths).await?),
        (Route::Scale(paths), ..) => json(200, scale::change(api, call, kind, paths, context).await?),
        (Route::Action, "pods", "binding", _) => json(201, binding::bind(api, call, kind, context).await?),
        (Route::Action, "pods", "eviction", _) => json(201, eviction::evict(api, call, kind, context).await?),
        (Route::Action, "serviceaccounts", "token", _) => json(201, token::create(api, call, kind, context).await?),
        _ => Err(ApiError::no_such_resource()),
    }
}

/// The body of a write of a subresource, with its type: of the kind that the subresource has.
fn typed(call: &Call, kind: &Kind, context: &WriteContext) -> Result<Value, ApiError> {
    let Some(subresource) = kind.subresource(&call.info.subresource) else { return Err(ApiError::no_such_resource()) };
    let body = &subresource.body;
    let mut document = write::decode_body(body, call, context)?;
    let version = if body.group.is_empty() { body.version.clone() } else { format!("{}/{}", body.group, body.version) };
    let (given, name) = (object::text(&document, &["apiVersion"]).to_owned(), object::text(&document, &["kind"]).to_owned());
    let members = document.as_object_mut().ok_or_else(|| ApiError::bad_request(format!("the object provided is not a {}", body.kind)))?;
    let accepted = given == version || given == "policy/v1beta1" && body.kind == "Eviction";
    if !(given.is_empty() && name.is_empty()) && (name != body.kind || !accepted) {
        let why = format!("no kind {name:?} is registered for version {given:?} in scheme \"pkg/api/legacyscheme/scheme.go:30\"");
        return Err(ApiError::bad_request(format!("{name} in version {given:?} cannot be handled as a {}: {why}", body.kind)));
    }
    members.insert("kind".into(), body.kind.as_str().into());
    members.insert("apiVersion".into(), version.into());
    Ok(document)
}

/// The same of a creation below an object: its namespace is the request's, and nothing else of its system's metadata counts.
fn typed_new(call: &Call, kind: &Kind, context: &WriteContext) -> Result<Value, ApiError> {
    let mut document = typed(call, kind, context)?;
    let namespace = call.info.namespace.as_str();
    let metadata = object::metadata(&mut document);
    match metadata.get("namespace").and_then(Value::as_str).unwrap_or_default() {
        "" => drop(metadata.insert("namespace".into(), namespace.into())),
        own if own == namespace => {}
        _ => return Err(ApiError::bad_request("the namespace of the provided object does not match the namespace sent on the request")),
    }
    Ok(document)
}

/// What a subresource without an object of its own answers.
fn success() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
}
