//! Requests for resources: the verbs of objects, and who answers each subresource.

use super::negotiate::{self, Accepted};
use super::respond::{self, Body};
use super::{Call, write};
use crate::kinds::{self, KindInfo};
use crate::object;
use crate::registry::delete::{DeleteOptions, Deleted};
use crate::registry::events;
use crate::registry::read::{Selection, parse_revision};
use crate::registry::update::Target;
use crate::registry::{Part, WriteContext};
use crate::server::Api;
use crate::status::ApiError;
use crate::watch::{self, Watch};
use crate::{admission, metrics, subresources};
use futures::TryStreamExt;
use http::Response;
use http_body_util::{BodyExt, StreamBody};
use rand::Rng;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// A watch without `timeoutSeconds` lasts between once and twice this long (`--min-request-timeout`).
const WATCH_SECONDS: u64 = 1800;

/// kubectl lists custom resources before it calls a kind unknown, and takes a 404 there for the answer to another question. There are none.
const CUSTOM_RESOURCES: (&str, &str, &str, &str) = ("apiextensions.k8s.io", "v1", "customresourcedefinitions", "list");

/// Answers a request for a resource.
pub async fn serve(api: &Arc<Api>, call: &Call) -> Result<Response<Body>, ApiError> {
    let info = &call.info;
    if let Some(answer) = subresources::review::serve(api, call)? {
        return Ok(answer);
    }
    if (info.group.as_str(), info.version.as_str(), info.resource.as_str(), info.verb) == CUSTOM_RESOURCES {
        let list = json!({"kind": "CustomResourceDefinitionList", "apiVersion": "apiextensions.k8s.io/v1", "metadata": {"resourceVersion": api.registry.store.revision().to_string()}, "items": []});
        return Ok(respond::document(negotiate::accept(&call.headers)?.encoding, 200, &list));
    }
    if let Some(answer) = metrics::serve(api, call).await? {
        return Ok(answer);
    }
    let kind = kinds::by_resource(&info.group, &info.version, &info.resource).ok_or_else(ApiError::no_such_resource)?;
    check_route(kind, call)?;
    let context = WriteContext::new(call.user.clone(), dry_run(call)? || deletes_dry(call)?);
    if kind.group.is_empty() && kind.plural == "endpoints" {
        context.warn("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice");
    }
    let response = match info.subresource.as_str() {
        "" => main(api, call, kind, &context).await,
        "status" if kind.subresources.contains(&"status") => part(api, call, kind, &context, Part::Status).await,
        "finalize" if kind.plural == "namespaces" => part(api, call, kind, &context, Part::Finalize).await,
        "ephemeralcontainers" if kind.plural == "pods" => part(api, call, kind, &context, Part::EphemeralContainers).await,
        _ => subresources::serve(api, call, kind, &context).await,
    };
    let writes = !matches!(info.verb, "get" | "list" | "watch");
    if response.is_ok() && writes && kind.plural == "clusterroles" {
        api.registry.aggregate_roles().await?;
    }
    let warnings = context.take_warnings();
    if warnings.is_empty() {
        return response;
    }
    let encoding = negotiate::accept(&call.headers).map_or(negotiate::Encoding::Json, |accepted| accepted.encoding);
    let mut response = response.unwrap_or_else(|error| respond::error(encoding, &error));
    respond::add_warnings(&mut response, &warnings);
    Ok(response)
}

/// Collections are created in, objects are written: anything else has no route, as upstream (`RequestInfo` has settled where a kind lies).
pub fn check_route(kind: &KindInfo, call: &Call) -> Result<(), ApiError> {
    let info = &call.info;
    let named = !info.name.is_empty();
    let no_route = match info.verb {
        "create" => named && info.subresource.is_empty(),
        "update" | "patch" => !named,
        "" => true,
        _ => false,
    };
    if no_route {
        return Err(ApiError::no_such_method());
    }
    if kind.namespaced && info.namespace.is_empty() && matches!(info.verb, "create" | "deletecollection") {
        return Err(ApiError::method_not_allowed(kind, info.verb));
    }
    Ok(())
}

fn dry_run(call: &Call) -> Result<bool, ApiError> {
    match call.query.get("dryRun") {
        None | Some("") => Ok(false),
        Some("All") => Ok(true),
        Some(other) => {
            let message = format!("{} is invalid: dryRun: Unsupported value: {other:?}: supported values: \"All\"", "Options.meta.k8s.io \"\"");
            Err(ApiError::new(422, "Invalid", message))
        }
    }
}

/// Deletions say in their body that they are only a rehearsal.
fn deletes_dry(call: &Call) -> Result<bool, ApiError> {
    if !matches!(call.info.verb, "delete" | "deletecollection") || call.body.is_empty() || !call.info.subresource.is_empty() {
        return Ok(false);
    }
    Ok(object::list(&body(call)?, &["dryRun"]).iter().any(|value| value == "All"))
}

/// The namespace an object lies in ("" for cluster scope).
fn scope<'a>(kind: &KindInfo, call: &'a Call) -> &'a str {
    if kind.namespaced { &call.info.namespace } else { "" }
}

fn include(call: &Call) -> &str {
    call.query.get("includeObject").unwrap_or_default()
}

async fn main(api: &Arc<Api>, call: &Call, kind: &'static KindInfo, context: &WriteContext) -> Result<Response<Body>, ApiError> {
    let accepted = negotiate::accept(&call.headers)?;
    if !kind.verbs.contains(&call.info.verb) {
        return Err(ApiError::method_not_allowed(kind, call.info.verb));
    }
    let (namespace, name) = (scope(kind, call), call.info.name.as_str());
    match call.info.verb {
        "get" => Ok(respond::entry(accepted, kind, include(call), &api.registry.get(kind, namespace, name)?)),
        "list" => {
            let selection = Selection::parse(kind, &call.query)?;
            let page = api.registry.list(kind, namespace, &selection, &call.query)?;
            Ok(respond::list(accepted, kind, include(call), &page))
        }
        "watch" => watch(api, call, kind, namespace, accepted),
        "create" => {
            let object = write::decode_object(kind, call, context)?;
            let created = api.registry.create(context, kind, namespace, object).await?;
            Ok(respond::object(accepted, kind, 201, include(call), created))
        }
        "update" | "patch" => {
            let target = Target { kind, namespace, name, part: Part::Main };
            let (updated, created) = write::update(api, call, context, target).await?;
            Ok(respond::object(accepted, kind, if created { 201 } else { 200 }, include(call), updated))
        }
        "delete" => delete(api, call, kind, context, accepted).await,
        "deletecollection" => {
            let (selection, options) = (Selection::parse(kind, &call.query)?, delete_options(call)?);
            let deleted = api.registry.delete_collection(context, kind, namespace, &selection, &options).await?;
            let metadata = json!({"resourceVersion": api.registry.store.revision().to_string()});
            Ok(respond::document(
                accepted.encoding,
                200,
                &respond::list_value(kind, &metadata, deleted.into_iter().map(|object| events::outgoing(kind, object)).collect()),
            ))
        }
        verb => Err(ApiError::method_not_allowed(kind, verb)),
    }
}

async fn part(api: &Arc<Api>, call: &Call, kind: &'static KindInfo, context: &WriteContext, part: Part) -> Result<Response<Body>, ApiError> {
    let accepted = negotiate::accept(&call.headers)?;
    let (namespace, name) = (scope(kind, call), call.info.name.as_str());
    match call.info.verb {
        "get" => Ok(respond::entry(accepted, kind, include(call), &api.registry.get(kind, namespace, name)?)),
        "update" | "patch" => {
            let (updated, _) = write::update(api, call, context, Target { kind, namespace, name, part }).await?;
            Ok(respond::object(accepted, kind, 200, include(call), updated))
        }
        verb => Err(ApiError::method_not_allowed(kind, verb)),
    }
}

async fn delete(
    api: &Arc<Api>,
    call: &Call,
    kind: &'static KindInfo,
    context: &WriteContext,
    accepted: Accepted,
) -> Result<Response<Body>, ApiError> {
    let (namespace, name) = (scope(kind, call), call.info.name.as_str());
    let options = delete_options(call)?;
    admission::delete(&api.registry, context, kind, namespace, name)?;
    match api.registry.delete(context, kind, namespace, name, &options).await? {
        Deleted::Gone(status) => Ok(respond::document(accepted.encoding, 200, &status)),
        Deleted::Pending(object) => Ok(respond::object(accepted, kind, 200, include(call), object)),
    }
}

/// The options of a deletion: from the body, else from the query.
pub fn delete_options(call: &Call) -> Result<DeleteOptions, ApiError> {
    let mut value = if call.body.is_empty() { json!({}) } else { negotiate::decode(&negotiate::content_type(&call.headers), &call.body)? };
    if let Some(map) = value.as_object_mut() {
        if let Some(grace) = call.query.integer("gracePeriodSeconds") {
            map.entry("gracePeriodSeconds").or_insert_with(|| grace.into());
        }
        if let Some(policy) = call.query.get("propagationPolicy") {
            map.entry("propagationPolicy").or_insert_with(|| policy.into());
        }
        if call.query.get("orphanDependents").is_some() {
            map.entry("orphanDependents").or_insert_with(|| call.query.flag("orphanDependents").into());
        }
    }
    DeleteOptions::from_value(&value)
}

fn watch(api: &Arc<Api>, call: &Call, kind: &'static KindInfo, namespace: &str, accepted: Accepted) -> Result<Response<Body>, ApiError> {
    let query = &call.query;
    let initial = query.get("sendInitialEvents").map(|_| query.flag("sendInitialEvents"));
    let how = query.get("resourceVersionMatch").unwrap_or_default();
    if initial.is_some() && how != "NotOlderThan" {
        let message = "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        return Err(ApiError::new(422, "Invalid", message));
    }
    let start = match (parse_revision(query.get("resourceVersion").unwrap_or_default())?, initial) {
        (_, Some(true)) => watch::Start::StateThenBookmark,
        (Some(0) | None, None) => watch::Start::State,
        (Some(0) | None, Some(false)) => watch::Start::After(api.registry.store.revision()),
        (Some(revision), _) => watch::Start::After(revision),
    };
    let seconds = query.integer("timeoutSeconds").and_then(|seconds| u64::try_from(seconds).ok()).filter(|seconds| *seconds > 0);
    let seconds = seconds.unwrap_or_else(|| rand::rng().random_range(WATCH_SECONDS..2 * WATCH_SECONDS));
    let request = watch::Request {
        kind,
        namespace: namespace.to_string(),
        // A single object is authorized by its name: nothing else may come out of the stream.
        selection: if call.info.name.is_empty() { Selection::parse(kind, query)? } else { Selection::parse(kind, query)?.named(&call.info.name)? },
        start,
        bookmarks: query.flag("allowWatchBookmarks"),
        timeout: Duration::from_secs(seconds),
        transform: accepted.transform,
        include_object: include(call).to_string(),
    };
    let watch = Watch::start(Arc::clone(&api.registry.store), request, api.shutdown.clone())?;
    let stream = watch.into_stream().map_ok(http_body::Frame::data).map_err(|never| match never {});
    let mut response = respond::bytes(200, "application/json", "");
    *response.body_mut() = StreamBody::new(stream).boxed_unsync();
    Ok(response)
}

/// A document of the request's body, for subresources.
pub fn body(call: &Call) -> Result<Value, ApiError> {
    negotiate::decode(&negotiate::content_type(&call.headers), &call.body)
}
