//! The HTTP pipeline: authentication, request info, authorization, answer. The same pipeline serves TLS connections and in-process clients.

pub mod apply;
pub mod call;
mod compress;
mod field_validation;
mod impersonate;
pub mod json;
pub mod negotiate;
mod nonresource;
pub mod path;
pub mod query;
pub mod resource;
pub mod respond;
pub mod write;

use crate::authn::{AUTHENTICATED, UserInfo};
use crate::authz::Attributes;
use crate::connect;
use crate::server::Api;
use crate::status::ApiError;
use bytes::{Buf, Bytes};
use call::Call;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use negotiate::Encoding;
use path::RequestInfo;
use query::Query;
use respond::{Body, BoxError};
use std::sync::Arc;
use std::time::Duration;

/// Largest body, as upstream's `MaxRequestBodyBytes`.
const LARGEST_BODY: usize = 3 << 20;

/// How long a client may take to send its body.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// Answers one request. `identity` is what the transport knows: a verified client certificate, or an in-process identity.
pub async fn handle<B>(api: Arc<Api>, request: Request<B>, identity: Option<UserInfo>) -> Response<Body>
where
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let accepted = negotiate::accept(request.headers());
    let encoding = accepted.as_ref().map_or(Encoding::Json, |accepted| accepted.encoding);
    let (mut parts, body) = request.into_parts();
    let query = Query::parse(parts.uri.query().unwrap_or_default());
    let info = RequestInfo::parse(&parts.method, parts.uri.path(), &query, &api.registry.kinds.now());
    tracing::trace!(path = parts.uri.path(), "request");
    let user = match authenticate(&api, &parts.headers, identity) {
        Ok(user) => user,
        Err(error) => return respond::error(encoding, &error),
    };
    if let Some(place) = parts.extensions.get::<listen::Place>().filter(|_| user.is_in(AUTHENTICATED)) {
        place.keep();
    }
    let info = match info {
        Ok(info) => info,
        Err(path::UnknownShape) => return unknown_shape(encoding, &user, parts.uri.path()),
    };
    let selector = query.text("fieldSelector");
    if let Err(error) = api.registry.authorizer.check(&Attributes::of(&user, &info, &selector)) {
        return respond::error(encoding, &error);
    }
    let mut call = Call { info, user, query, headers: std::mem::take(&mut parts.headers), body: Bytes::new(), audit: Arc::default() };
    let answer = match connect::kind_of(&api, &call) {
        Some(kind) => {
            parts.headers.clone_from(&call.headers);
            connect::serve(&api, &call, &kind, Request::from_parts(parts, boxed(body))).await
        }
        None => serve(&api, &mut call, body).await,
    };
    answer.unwrap_or_else(|error| {
        if error.reason == "NotFound" && error.details.as_ref().is_some_and(|details| details.get("code").is_some()) {
            return respond::not_found();
        }
        // Errors may quote what was sent: never a Secret in the log.
        let message = if call.info.resource == "secrets" { "not shown" } else { &error.message };
        tracing::debug!(path = call.info.path, verb = call.info.verb, code = error.code, message, "refused");
        respond::error(encoding, &error)
    })
}

/// Unauthenticated clients get 403, not 404: they learn nothing of which paths exist.
fn unknown_shape(encoding: Encoding, user: &UserInfo, path: &str) -> Response<Body> {
    if user.is_in(AUTHENTICATED) {
        return respond::not_found();
    }
    let asked = Attributes { user: user.clone(), verb: "get".into(), path: path.to_string(), ..Attributes::default() };
    respond::error(encoding, &asked.forbidden(""))
}

/// Answers what this server answers itself.
async fn serve<B>(api: &Arc<Api>, call: &mut Call, body: B) -> Result<Response<Body>, ApiError>
where
    B: http_body::Body + Send,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    // Bodies of reading requests are not used, and not read: clients without rights could fill memory with them.
    if !matches!(call.info.verb, "get" | "head" | "list" | "watch") {
        call.body = read_body(body).await?;
    }
    let answer = if call.info.is_resource { resource::serve(api, call).await? } else { nonresource::serve(api, call)? };
    Ok(if matches!(call.info.verb, "get" | "list") { compress::compress(&call.headers, answer).await } else { answer })
}

/// The body as it is, for those who pass it on.
fn boxed<B>(body: B) -> Body
where
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    body.map_frame(|frame| frame.map_data(|mut data| data.copy_to_bytes(data.remaining()))).map_err(Into::into).boxed_unsync()
}

async fn read_body<B>(body: B) -> Result<Bytes, ApiError>
where
    B: http_body::Body + Send,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let read = tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, LARGEST_BODY).collect());
    match read.await.map_err(|_| ApiError::new(408, "Timeout", "reading the request's body took too long"))? {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.downcast_ref::<LengthLimitError>().is_some() => Err(ApiError::entity_too_large(format!("limit is {LARGEST_BODY}"))),
        Err(error) => Err(ApiError::bad_request(format!("unable to read the request's body: {error}"))),
    }
}

/// A bearer token counts before a certificate only when there is no certificate, as upstream's union of authenticators.
fn authenticate(api: &Api, headers: &HeaderMap, identity: Option<UserInfo>) -> Result<UserInfo, ApiError> {
    let user = match identity {
        Some(identity) => identity,
        None => match bearer(headers) {
            Some(token) => api.token_user(token).ok_or_else(ApiError::unauthorized)?,
            None => UserInfo::anonymous(),
        },
    };
    impersonate::apply(&api.registry.authorizer, headers, user)
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim()).filter(|token| !token.is_empty())
}
