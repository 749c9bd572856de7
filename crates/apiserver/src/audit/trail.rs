//! The audit of one request, from its head to the end of its response.

use super::{Annotations, Auditor};
use crate::authn::UserInfo;
use crate::http::negotiate;
use crate::http::path::RequestInfo;
use crate::http::respond::{self, Body, BoxError};
use crate::kind::Kind;
use crate::server::Api;
use crate::status::ApiError;
use ::audit::event::{self, Event};
use ::audit::policy::{Attributes, Decision};
use ::audit::{Level, ObjectReference, Stage};
use bytes::Bytes;
use http::header::USER_AGENT;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::net::IpAddr;
use std::panic::PanicHookInfo;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

/// The header that names a request in the audit log, of requests and responses.
const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
/// Longest id that a client may choose.
const LONGEST_ID: usize = 64;

tokio::task_local! {
    /// The request that the task handles.
    static HANDLED: Arc<Trail>;
}

/// What is kept of a request for its events.
pub struct Trail {
    auditor: Arc<Auditor>,
    decision: Decision,
    /// Watches and connections: their response begins long before it ends.
    lasts: bool,
    is_resource: bool,
    verb: &'static str,
    /// `apiVersion` and `kind` of the request's object, when it does not say them.
    object_kind: Option<(String, String)>,
    /// Where objects of the request and the response have a token.
    token: Option<&'static [&'static str]>,
    pub annotations: Arc<Annotations>,
    event: Mutex<Event>,
    /// The request's content type and body, until they are looked at.
    body: Mutex<Option<(String, Bytes)>>,
    started: AtomicBool,
    ended: AtomicBool,
}

/// Writes the last event of a request when nobody holds it any more: the response is sent, the connection has ended, or the client has gone
/// before there was an answer.
pub struct Completion(Arc<Trail>);

impl Trail {
    /// The trail of a request; none when the policy does not ask for it. Without a user the request is not authenticated.
    pub fn begin(api: &Api, auditor: &Arc<Auditor>, parts: &Parts, info: &RequestInfo, user: Option<&UserInfo>) -> Option<Arc<Self>> {
        let decision = auditor.policy.decide(&Attributes {
            user: user.map(|user| (user.name.as_str(), user.groups.as_slice())),
            verb: info.verb,
            is_resource: info.is_resource,
            group: &info.group,
            resource: &info.resource,
            subresource: &info.subresource,
            namespace: &info.namespace,
            name: &info.name,
            path: &info.path,
        });
        if decision.level == Level::None {
            return None;
        }
        let lasts = info.is_resource
            && (matches!(info.verb, "watch") || matches!(info.subresource.as_str(), "attach" | "exec" | "proxy" | "log" | "portforward"));
        let event = Event {
            level: decision.level,
            audit_id: id_of(&parts.headers),
            request_uri: parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
            verb: info.verb.to_owned(),
            user: user.map_or_else(|| json!({}), UserInfo::to_value),
            impersonated_user: None,
            source_ips: source_ips(parts),
            user_agent: event::user_agent(&parts.headers.get(USER_AGENT).map(|value| String::from_utf8_lossy(value.as_bytes())).unwrap_or_default()),
            object: info.is_resource.then(|| ObjectReference {
                resource: info.resource.clone(),
                namespace: info.namespace.clone(),
                name: info.name.clone(),
                api_group: info.group.clone(),
                api_version: info.version.clone(),
                subresource: info.subresource.clone(),
                ..ObjectReference::default()
            }),
            status: None,
            request_object: None,
            response_object: None,
            received: jiff::Timestamp::now(),
        };
        Some(Arc::new(Self {
            auditor: Arc::clone(auditor),
            lasts,
            is_resource: info.is_resource,
            verb: info.verb,
            object_kind: api.registry.kinds.find(&info.group, &info.version, &info.resource).map(|kind| object_kind(&kind, &info.subresource)),
            token: event::token_path(&info.group, &info.resource, &info.subresource),
            annotations: Arc::default(),
            event: Mutex::new(event),
            body: Mutex::default(),
            started: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            decision,
        }))
    }

    fn event(&self) -> MutexGuard<'_, Event> {
        self.event.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whom the request acts as, when not as its user.
    pub fn impersonates(&self, user: &UserInfo) {
        self.event().impersonated_user = Some(user.to_value());
    }

    /// What the authorizers said.
    pub fn authorized(&self, decision: &'static str, reason: &str) {
        self.annotations.add("authorization.k8s.io/decision", decision);
        self.annotations.add("authorization.k8s.io/reason", reason);
    }

    /// The body of the request.
    pub fn sent(&self, headers: &HeaderMap, body: &Bytes) {
        if self.is_resource && !body.is_empty() {
            *self.body.lock().unwrap_or_else(PoisonError::into_inner) = Some((negotiate::content_type(headers), body.clone()));
        }
    }

    /// Writes an event. Once begun, that is done even when the request ends meanwhile. Whether the request may go on.
    async fn write(self: &Arc<Self>, stage: Stage) -> bool {
        if self.decision.omit_stages.contains(&stage) {
            return true;
        }
        let lines = self.auditor.lines(&self.event(), stage, &self.annotations.all());
        let trail = Arc::clone(self);
        tokio::spawn(async move { trail.auditor.write(lines).await }).await.unwrap_or(false)
    }

    /// The first event. Where the log demands it, a request without one is refused.
    pub async fn received(self: &Arc<Self>) -> Result<(), ApiError> {
        if self.write(Stage::RequestReceived).await { Ok(()) } else { Err(ApiError::internal("failed to store audit event")) }
    }

    /// A request that nobody knows: its only event.
    pub async fn unauthenticated(self: &Arc<Self>, methods: &str) {
        self.ended.store(true, Ordering::Relaxed);
        self.event().status = Some(json!({"metadata": {}, "message": format!("Authentication failed, attempted: {methods}"), "code": 401}));
        self.write(Stage::ResponseStarted).await;
    }

    /// Handles a request so that [`write_panic`] knows whose panic it is.
    pub async fn of_panics<T>(trail: &Arc<Self>, handling: impl Future<Output = T>) -> T {
        HANDLED.scope(Arc::clone(trail), handling).await
    }

    /// Writes the event of a request whose handling panicked, unless that is done.
    pub async fn panicked(self: &Arc<Self>, why: String) {
        let trail = Arc::clone(self);
        if tokio::task::spawn_blocking(move || trail.write_panic(&why)).await.is_err() {
            tracing::error!("the event of a request that panicked could not be written");
        }
    }

    fn write_panic(&self, why: &str) {
        if self.ended.swap(true, Ordering::Relaxed) || self.decision.omit_stages.contains(&Stage::Panic) {
            return;
        }
        let message = format!("APIServer panic'd: {why}");
        self.event().status = Some(json!({"metadata": {}, "status": "Failure", "message": message, "reason": "InternalError", "code": 500}));
        self.read_request();
        let lines = self.auditor.lines(&self.event(), Stage::Panic, &self.annotations.all());
        self.auditor.write_blocking(lines);
    }

    /// Tells the client which events are of its request.
    pub fn identify(&self, mut response: Response<Body>) -> Response<Body> {
        if let Ok(id) = HeaderValue::from_str(&self.event().audit_id) {
            response.headers_mut().insert(AUDIT_ID, id);
        }
        response
    }

    /// The response is there, of a request that lasts its head: writes the event, and for the latter sees to the event at the end.
    pub async fn answered(self: &Arc<Self>, response: Response<Body>, completion: Arc<Completion>) -> Response<Body> {
        let (parts, body) = self.identify(response).into_parts();
        let code = parts.status.as_u16();
        if self.lasts && code < 400 {
            self.event().status = Some(event::status_of(code, None));
            self.start().await;
            return Response::from_parts(parts, Watched { body, _completion: completion }.boxed_unsync());
        }
        let wanted = self.decision.level == Level::RequestResponse || code >= 400 || matches!(self.verb, "delete");
        let body = if wanted {
            let Ok(collected) = body.collect().await else { return respond::text(500, "the answer could not be put together") };
            let bytes = collected.to_bytes();
            self.read_response(code, &negotiate::content_type(&parts.headers), &bytes);
            respond::full(bytes)
        } else {
            self.event().status = Some(event::status_of(code, None));
            body
        };
        self.read_request();
        if self.lasts {
            self.start().await;
        }
        self.ended.store(true, Ordering::Relaxed);
        self.write(Stage::ResponseComplete).await;
        Response::from_parts(parts, body)
    }

    async fn start(self: &Arc<Self>) {
        self.started.store(true, Ordering::Relaxed);
        self.write(Stage::ResponseStarted).await;
    }

    /// Takes what the event needs from the request's body.
    fn read_request(&self) {
        let Some((content_type, body)) = self.body.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let is_patch = self.verb == "patch";
        let content_type =
            if is_patch { if content_type.ends_with("+yaml") { "application/yaml" } else { "application/json" } } else { &content_type };
        let keeps_object = self.decision.level >= Level::Request;
        let names_object = matches!(self.verb, "create" | "update");
        if !keeps_object && !names_object {
            return;
        }
        // What cannot be read was refused, and is not logged.
        let Ok(mut object) = negotiate::decode(content_type, &body) else { return };
        let mut event = self.event();
        if names_object && let Some(reference) = &mut event.object {
            reference.complete(&object);
        }
        if keeps_object {
            self.tidy(&mut object);
            if let (true, Some((api_version, kind)), Some(members)) = (names_object, &self.object_kind, object.as_object_mut()) {
                members.entry("apiVersion").or_insert_with(|| api_version.as_str().into());
                members.entry("kind").or_insert_with(|| kind.as_str().into());
            }
            event.request_object = Some(object);
        }
    }

    fn tidy(&self, object: &mut Value) {
        if self.decision.omit_managed_fields {
            event::omit_managed_fields(object);
        }
        if let Some(path) = self.token {
            event::redact(object, path);
        }
    }

    /// Takes what the event needs from the response's body.
    fn read_response(&self, code: u16, content_type: &str, body: &[u8]) {
        let keeps_object = self.decision.level == Level::RequestResponse && self.is_resource;
        let is_line = content_type == "application/json" && body.starts_with(b"{") && !body.contains(&b'\n');
        let is_whole = keeps_object && is_line && code < 400 && self.verb != "delete" && !self.decision.omit_managed_fields && self.token.is_none();
        let mut event = self.event();
        if is_whole {
            event.status = Some(event::status_of(code, None));
            event.response_object = Some(body.to_vec());
            return;
        }
        let mut object = match content_type {
            "application/json" | "application/yaml" => negotiate::decode(content_type, body).ok(),
            _ => None,
        };
        event.status = Some(event::status_of(code, object.as_ref()));
        if let Some(object) = object.as_mut().filter(|_| keeps_object) {
            self.tidy(object);
            event.response_object = serde_json::to_vec(object).ok();
        }
    }
}

/// For the process's panic hook: writes the event of the request whose handling panics, before the panic ends the request, or the process
/// where panics abort. Returns when the event is written.
pub fn write_panic(panic: &PanicHookInfo<'_>) {
    let Ok(trail) = HANDLED.try_with(Arc::clone) else { return };
    let why = crate::http::panic_text(panic.payload()).to_owned();
    // Another thread: what reads the body must not panic within a panic, and waiting here would be waiting in a task.
    let writing = std::thread::Builder::new().name("audit-panic".into()).spawn(move || trail.write_panic(&why));
    let _ = writing.map(std::thread::JoinHandle::join);
}

impl Completion {
    pub fn new(trail: &Arc<Trail>) -> Arc<Self> {
        Arc::new(Self(Arc::clone(trail)))
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        let trail = Arc::clone(&self.0);
        if trail.ended.swap(true, Ordering::Relaxed) {
            return;
        }
        let early = {
            let mut event = trail.event();
            let is_early = event.status.is_none();
            event.status.get_or_insert_with(|| json!({"metadata": {}, "status": "Success", "message": "Connection closed early", "code": 200}));
            is_early
        };
        let last = async move {
            if early {
                trail.read_request();
            }
            if trail.lasts && !trail.started.swap(true, Ordering::Relaxed) {
                trail.write(Stage::ResponseStarted).await;
            }
            trail.write(Stage::ResponseComplete).await;
        };
        // At the end of the process there may be nobody left to wait.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(last);
        }
    }
}

/// A body at whose end the request is complete.
struct Watched {
    body: Body,
    _completion: Arc<Completion>,
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

/// The id that the client gave, else a new one.
fn id_of(headers: &HeaderMap) -> String {
    let own = headers.get(AUDIT_ID).and_then(|value| value.to_str().ok()).filter(|id| !id.is_empty());
    own.map_or_else(|| uuid::Uuid::new_v4().to_string(), |id| id.chars().take(LONGEST_ID).collect())
}

/// Where the request comes from: what proxies say, then the peer (apimachinery/pkg/util/net `SourceIPs`).
fn source_ips(parts: &Parts) -> Vec<String> {
    let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let address = |text: &str| text.trim().parse::<IpAddr>().ok();
    let mut found: Vec<IpAddr> = text("x-forwarded-for").split(',').filter_map(address).collect();
    if let Some(real) = address(text("x-real-ip")).filter(|real| !found.contains(real)) {
        found.push(real);
    }
    if let Some(peer) = parts.extensions.get::<listen::Place>().and_then(listen::Place::peer).filter(|peer| found.last() != Some(peer)) {
        found.push(peer);
    }
    found.iter().map(ToString::to_string).collect()
}

/// `apiVersion` and `kind` of what is sent to a kind or to a subresource of it.
fn object_kind(kind: &Kind, subresource: &str) -> (String, String) {
    let (group, version, name) = match kind.subresource(subresource) {
        Some(found) => (&found.body.group, &found.body.version, &found.body.kind),
        None => (&kind.group, &kind.version, &kind.kind),
    };
    (if group.is_empty() { version.clone() } else { format!("{group}/{version}") }, name.clone())
}
