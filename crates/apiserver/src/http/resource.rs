//! Requests for resources: the verbs of objects, and who answers each subresource.

use super::call::Call;
use super::negotiate::{self, Accepted};
use super::respond::{self, Body};
use super::{apply, write};
use crate::kind::{Kind, Part, Route, WriteContext};
use crate::object;
use crate::registry::delete::{DeleteOptions, Deleted};
use crate::registry::read::{Selection, parse_revision};
use crate::registry::update::Target;
use crate::server::Api;
use crate::status::ApiError;
use crate::watch::{self, Watch};
use crate::{metrics, subresources};
use futures::TryStreamExt;
use http::Response;
use http_body_util::{BodyExt, StreamBody};
use rand::Rng;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// A watch without `timeoutSeconds` lasts between once and twice this long (`--min-request-timeout`).
const WATCH_SECONDS: u64 = 1800;

/// Answers a request for a resource.
pub async fn serve(api: &Arc<Api>, call: &Call) -> Result<Response<Body>, ApiError> {
    let info = &call.info;
    if let Some(answer) = subresources::review::serve(api, call)? {
        return Ok(answer);
    }
    if let Some(answer) = metrics::serve(api, call).await? {
        return Ok(answer);
    }
    let kind = &api.registry.kinds.find(&info.group, &info.version, &info.resource).ok_or_else(ApiError::no_such_resource)?;
    call.check_route(kind)?;
    let deletion = if matches!(info.verb, "delete" | "deletecollection") && info.subresource.is_empty() { Some(delete_value(call)?) } else { None };
    let is_rehearsal =
        dry_run(call)? || deletion.as_ref().is_some_and(|options| object::list(options, &["dryRun"]).iter().any(|value| value == "All"));
    let context = WriteContext::new(call.user.clone(), is_rehearsal).with_options(call.options(deletion.as_ref()), Arc::clone(&call.audit));
    let context = match apply::writer(call)? {
        Some(writer) => context.with_fields(writer),
        None => context,
    };
    if let Some(warning) = &kind.deprecation {
        context.audit.add("k8s.io/deprecated", "true");
        context.warn(warning);
    }
    let response = match info.subresource.as_str() {
        "" => main(api, call, kind, &context).await,
        name => match kind.subresource(name).map(|subresource| (subresource.name, &subresource.route)) {
            Some((_, Route::Status)) => part(api, call, kind, &context, Part::Status).await,
            Some((name, Route::Part(_))) => part(api, call, kind, &context, Part::Other(name)).await,
            _ => subresources::serve(api, call, kind, &context).await,
        },
    };
    let writes = !matches!(info.verb, "get" | "list" | "watch");
    if response.is_ok() && writes && kind.is("rbac.authorization.k8s.io", "clusterroles") {
        api.registry.aggregate_roles().await?;
    }
    if response.is_ok() && writes && api.registry.changes_custom_resources(kind) {
        api.registry.serve_custom_resources().await?;
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

/// The namespace an object lies in ("" for cluster scope).
fn scope<'a>(kind: &Kind, call: &'a Call) -> &'a str {
    if kind.namespaced { &call.info.namespace } else { "" }
}

fn include(call: &Call) -> &str {
    call.query.get("includeObject").unwrap_or_default()
}

async fn main(api: &Arc<Api>, call: &Call, kind: &Arc<Kind>, context: &WriteContext) -> Result<Response<Body>, ApiError> {
    let accepted = negotiate::accept(&call.headers)?;
    if !kind.verbs.contains(&call.info.verb) {
        return Err(ApiError::method_not_allowed(kind, call.info.verb));
    }
    let (namespace, name) = (scope(kind, call), call.info.name.as_str());
    match call.info.verb {
        "get" => Ok(respond::entry(accepted, kind, include(call), &api.registry.entry(kind, namespace, name).await?)),
        "list" => {
            let selection = Selection::parse(kind, &call.query)?;
            let page = api.registry.list(kind, namespace, &selection, &call.query).await?;
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
            let (selection, options) = (Selection::parse(kind, &call.query)?, warned_options(kind, call, context)?);
            let deleted = api.registry.delete_collection(context, kind, namespace, &selection, &options).await?;
            let metadata = json!({"resourceVersion": api.registry.store.revision().to_string()});
            Ok(respond::document(
                accepted.encoding,
                200,
                &respond::list_value(kind, &metadata, deleted.into_iter().map(|object| kind.outgoing(object)).collect()),
            ))
        }
        verb => Err(ApiError::method_not_allowed(kind, verb)),
    }
}

async fn part(api: &Arc<Api>, call: &Call, kind: &Arc<Kind>, context: &WriteContext, part: Part) -> Result<Response<Body>, ApiError> {
    let accepted = negotiate::accept(&call.headers)?;
    let (namespace, name) = (scope(kind, call), call.info.name.as_str());
    match call.info.verb {
        verb if kind.subresource(&call.info.subresource).is_none_or(|subresource| !subresource.verbs.contains(&verb)) => {
            Err(ApiError::method_not_allowed(kind, verb))
        }
        "get" => Ok(respond::entry(accepted, kind, include(call), &api.registry.entry(kind, namespace, name).await?)),
        "update" | "patch" => {
            let (updated, _) = write::update(api, call, context, Target { kind, namespace, name, part }).await?;
            Ok(respond::object(accepted, kind, 200, include(call), updated))
        }
        verb => Err(ApiError::method_not_allowed(kind, verb)),
    }
}

async fn delete(api: &Arc<Api>, call: &Call, kind: &Arc<Kind>, context: &WriteContext, accepted: Accepted) -> Result<Response<Body>, ApiError> {
    let (namespace, name) = (scope(kind, call), call.info.name.as_str());
    let options = warned_options(kind, call, context)?;
    match api.registry.delete(context, kind, namespace, name, &options).await? {
        Deleted::Gone(status) => Ok(respond::document(accepted.encoding, 200, &status)),
        Deleted::Pending(object) => Ok(respond::object(accepted, kind, 200, include(call), object)),
    }
}

/// The options of a deletion; a client that says nothing of dependents may hear what becomes of them.
fn warned_options(kind: &Kind, call: &Call, context: &WriteContext) -> Result<DeleteOptions, ApiError> {
    let options = DeleteOptions::from_value(&delete_value(call)?)?;
    kind.deletion.warning.filter(|_| options.propagation.is_none()).into_iter().for_each(|warning| context.warn(warning));
    Ok(options)
}

/// The options of a deletion: from the body, else from the query.
fn delete_value(call: &Call) -> Result<Value, ApiError> {
    let mut value = if call.body.is_empty() { json!({}) } else { negotiate::decode(&negotiate::content_type(&call.headers), &call.body)? };
    if let Some(map) = value.as_object_mut() {
        if let Some(grace) = call.query.integer("gracePeriodSeconds")? {
            map.entry("gracePeriodSeconds").or_insert_with(|| grace.into());
        }
        if let Some(policy) = call.query.get("propagationPolicy") {
            map.entry("propagationPolicy").or_insert_with(|| policy.into());
        }
        if call.query.get("orphanDependents").is_some() {
            map.entry("orphanDependents").or_insert_with(|| call.query.flag("orphanDependents").into());
        }
    }
    Ok(value)
}

fn watch(api: &Arc<Api>, call: &Call, kind: &Arc<Kind>, namespace: &str, accepted: Accepted) -> Result<Response<Body>, ApiError> {
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
    let seconds = query.integer("timeoutSeconds")?.and_then(|seconds| u64::try_from(seconds).ok()).filter(|seconds| *seconds > 0);
    let seconds = seconds.unwrap_or_else(|| rand::rng().random_range(WATCH_SECONDS..2 * WATCH_SECONDS));
    let request = watch::Request {
        kind: Arc::clone(kind),
        namespace: namespace.to_string(),
        // A single object is authorized by its name: nothing else may come out of the stream.
        selection: if call.info.name.is_empty() { Selection::parse(kind, query)? } else { Selection::parse(kind, query)?.named(&call.info.name)? },
        start,
        bookmarks: query.flag("allowWatchBookmarks"),
        timeout: Duration::from_secs(seconds),
        transform: accepted.transform,
        include_object: include(call).to_string(),
        registry: kind.versions().map(|_| Arc::clone(&api.registry)),
    };
    let watch = Watch::start(Arc::clone(&api.registry.store), request, api.shutdown.clone())?;
    let stream = watch.into_stream().map_ok(http_body::Frame::data).map_err(|never| match never {});
    let mut response = respond::bytes(200, "application/json", "");
    *response.body_mut() = StreamBody::new(stream).boxed_unsync();
    Ok(response)
}
