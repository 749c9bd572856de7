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

use crate::audit::{Completion, Trail};
use crate::authn::{AUTHENTICATED, UserInfo};
use crate::authz::{Attributes, Decision};
use crate::connect;
use crate::server::Api;
use crate::status::ApiError;
use bytes::{Buf, Bytes};
use call::Call;
use futures::FutureExt as _;
use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use negotiate::Encoding;
use path::RequestInfo;
use query::Query;
use respond::{Body, BoxError};
use std::any::Any;
use std::borrow::Cow;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

/// Largest body, as upstream's `MaxRequestBodyBytes`.
const LARGEST_BODY: usize = 3 << 20;

/// How long a client may take to send its body.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// A request of a known user on its way to authorization.
struct Asked {
    parts: Parts,
    query: Query,
    info: Result<RequestInfo, path::UnknownShape>,
    user: UserInfo,
    encoding: Encoding,
    trail: Option<(Arc<Trail>, Arc<Completion>)>,
}

/// Answers one request. `identity` is what the transport knows: a verified client certificate, or an in-process identity.
pub async fn handle<B>(api: Arc<Api>, request: Request<B>, identity: Option<UserInfo>) -> Response<Body>
where
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let accepted = negotiate::accept(request.headers());
    let encoding = accepted.as_ref().map_or(Encoding::Json, |accepted| accepted.encoding);
    let (parts, body) = request.into_parts();
    let query = Query::parse(parts.uri.query().unwrap_or_default());
    let info = RequestInfo::parse(&parts.method, parts.uri.path(), &query, &api.registry.kinds.now());
    tracing::trace!(path = parts.uri.path(), "request");
    let user = match authenticate(&api, &parts.headers, identity) {
        Ok(user) => user,
        Err(error) => {
            if let Some(trail) = api.audit.as_ref().and_then(|auditor| Trail::begin(&api, auditor, &parts, &asked_for(&parts, &info), None)) {
                trail.unauthenticated("bearer").await;
            }
            return respond::error(encoding, &error);
        }
    };
    if let Some(place) = parts.extensions.get::<listen::Place>().filter(|_| user.is_in(AUTHENTICATED)) {
        place.keep();
    }
    let trail = api.audit.as_ref().and_then(|auditor| Trail::begin(&api, auditor, &parts, &asked_for(&parts, &info), Some(&user)));
    let asked = Asked { parts, query, info, user, encoding, trail: trail.map(|trail| (Arc::clone(&trail), Completion::new(&trail))) };
    match asked.trail.clone() {
        None => guarded(answer(&api, asked, body)).await.unwrap_or_else(|_| panicked()),
        Some((trail, completion)) => audited(&api, asked, trail, completion, body).await,
    }
}

/// The answer, or why handling the request panicked. Objects are written as a whole or not at all, so that nothing is left half done.
async fn guarded(answer: impl Future<Output = Response<Body>>) -> Result<Response<Body>, String> {
    AssertUnwindSafe(answer).catch_unwind().await.map_err(|panic| panic_text(&*panic).to_owned())
}

/// What upstream answers (pkg/server/filters/wrap.go).
fn panicked() -> Response<Body> {
    respond::text(500, "This request caused apiserver to panic. Look in the logs for details.\n")
}

/// What is asked for; of a path that cannot be read the path alone.
fn asked_for<'i>(parts: &Parts, info: &'i Result<RequestInfo, path::UnknownShape>) -> Cow<'i, RequestInfo> {
    match info {
        Ok(info) => Cow::Borrowed(info),
        Err(path::UnknownShape) => Cow::Owned(RequestInfo::of_path(&parts.method, parts.uri.path())),
    }
}

/// Answers a request with its events.
async fn audited<B>(api: &Arc<Api>, asked: Asked, trail: Arc<Trail>, completion: Arc<Completion>, body: B) -> Response<Body>
where
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let encoding = asked.encoding;
    let headers = asked.parts.headers.clone();
    let compressible = is_compressible(&asked);
    let response = match trail.received().await {
        Ok(()) => match guarded(Trail::of_panics(&trail, answer(api, asked, body))).await {
            Ok(response) => response,
            Err(why) => {
                trail.panicked(why).await;
                return trail.identify(panicked());
            }
        },
        Err(error) => respond::error(encoding, &error),
    };
    let response = trail.answered(response, completion).await;
    if compressible { compress::compress(&headers, response).await } else { response }
}

pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("unknown")
}

fn is_compressible(asked: &Asked) -> bool {
    asked.info.as_ref().is_ok_and(|info| matches!(info.verb, "get" | "list"))
}

/// Impersonation, authorization, and the answer of who serves the request.
async fn answer<B>(api: &Arc<Api>, asked: Asked, body: B) -> Response<Body>
where
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let compressible = asked.trail.is_none() && is_compressible(&asked);
    let Asked { mut parts, query, info, user, encoding, trail } = asked;
    let (trail, completion) = trail.unzip();
    let acting = match impersonate::apply(&api.registry.authorizer, &parts.headers, &user) {
        Ok(acting) => acting,
        Err(error) => return respond::error(encoding, &error),
    };
    if let (Some(trail), Some(acting)) = (&trail, &acting) {
        trail.impersonates(acting);
    }
    let user = acting.unwrap_or(user);
    let info = match info {
        Ok(info) => info,
        Err(path::UnknownShape) => return unknown_shape(encoding, &user, parts.uri.path()),
    };
    if let Err(error) = authorize(api, &user, &info, &query, trail.as_deref()) {
        return respond::error(encoding, &error);
    }
    let audit = trail.as_ref().map_or_else(Arc::default, |trail| Arc::clone(&trail.annotations));
    let headers = std::mem::take(&mut parts.headers);
    let mut call = Call { info, user, query, headers, body: Bytes::new(), audit, completion };
    let answer = match connect::kind_of(api, &call) {
        Some(kind) => {
            parts.headers.clone_from(&call.headers);
            connect::serve(api, &call, &kind, Request::from_parts(parts, boxed(body))).await
        }
        None => match serve(api, &mut call, body, trail.as_deref()).await {
            Ok(answer) if compressible => Ok(compress::compress(&call.headers, answer).await),
            answer => answer,
        },
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

fn authorize(api: &Api, user: &UserInfo, info: &RequestInfo, query: &Query, trail: Option<&Trail>) -> Result<(), ApiError> {
    let selector = query.text("fieldSelector");
    let attributes = Attributes::of(user, info, &selector);
    let decision = api.registry.authorizer.decide(&attributes);
    if let Some(trail) = trail {
        match &decision {
            Decision::Allow(reason) => trail.authorized("allow", reason),
            Decision::NoOpinion(reason) => trail.authorized("forbid", reason),
        }
    }
    match decision {
        Decision::Allow(_) => Ok(()),
        Decision::NoOpinion(reason) => Err(attributes.forbidden(&reason)),
    }
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
async fn serve<B>(api: &Arc<Api>, call: &mut Call, body: B, trail: Option<&Trail>) -> Result<Response<Body>, ApiError>
where
    B: http_body::Body + Send,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    // Bodies of reading requests are not used, and not read: clients without rights could fill memory with them.
    if !matches!(call.info.verb, "get" | "head" | "list" | "watch") {
        call.body = read_body(body).await?;
        if let Some(trail) = trail {
            trail.sent(&call.headers, &call.body);
        }
    }
    if call.info.is_resource { resource::serve(api, call).await } else { nonresource::serve(api, call) }
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
    match identity {
        Some(identity) => Ok(identity),
        None => match bearer(headers) {
            Some(token) => api.token_user(token).ok_or_else(ApiError::unauthorized),
            None => Ok(UserInfo::anonymous()),
        },
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim()).filter(|token| !token.is_empty())
}
