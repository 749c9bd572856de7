//! The scale subresource of anything with replicas.

use super::typed;
use crate::fields;
use crate::http::apply::{APPLY_PATCH, configuration, is_apply};
use crate::http::call::Call;
use crate::http::{negotiate, write};
use crate::kind::{Attributes, BodyKind, Kind, Part, ScalePaths, WriteContext};
use crate::object;
use crate::patch;
use crate::registry::update::Target;
use crate::scale;
use crate::server::Api;
use crate::status::ApiError;
use serde_json::Value;
use std::sync::Arc;

/// Tries when others write the object at the same time.
const TRIES: usize = 6;

const JSON_PATCH: &str = "application/json-patch+json";
const MERGE_PATCH: &str = "application/merge-patch+json";
const STRATEGIC_PATCH: &str = "application/strategic-merge-patch+json";
const PATCHES: [&str; 4] = [JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH];

pub(super) async fn get(api: &Api, call: &Call, kind: &Arc<Kind>, paths: &ScalePaths) -> Result<Value, ApiError> {
    Ok(scale::of(kind, paths, &api.registry.object(kind, &call.info.namespace, &call.info.name).await?))
}

/// The body: a Scale, a patch of one, or a configuration.
fn document(call: &Call, kind: &Kind, context: &WriteContext) -> Result<Value, ApiError> {
    if is_apply(call) {
        return Ok(configuration(&call.body)?.0);
    }
    if call.info.verb == "patch" {
        let formats: &[&str] = if kind.custom.is_some() { &[JSON_PATCH, MERGE_PATCH, APPLY_PATCH] } else { &PATCHES };
        if !formats.contains(&negotiate::content_type(&call.headers).as_str()) {
            return Err(ApiError::unsupported_media_type(formats));
        }
        return Ok(write::patch_document(&call.body)?.0);
    }
    let (document, name) = (typed(call, kind, context)?, &call.info.name);
    match object::name(&document) {
        "" => Ok(document),
        claimed if claimed == name => Ok(document),
        claimed => Err(ApiError::bad_request(format!("the name of the object ({claimed}) does not match the name on the URL ({name})"))),
    }
}

/// What the request makes of the present Scale.
fn wanted(call: &Call, context: &WriteContext, body: &BodyKind, present: &Value, document: &Value) -> Result<Value, ApiError> {
    match (call.info.verb, negotiate::content_type(&call.headers).as_str()) {
        ("patch", APPLY_PATCH) => match &context.fields {
            Some(writer) => fields::apply_scale(writer, present, document, call.query.flag("force")),
            None => Err(ApiError::internal("an apply without a writer")),
        },
        ("patch", JSON_PATCH) => patch::json(present, document).map_err(|error| write::patch_error(&error)),
        ("patch", STRATEGIC_PATCH) => patch::strategic_as(&body.schema_type(), present, document).map_err(|error| write::patch_error(&error)),
        ("patch", _) => Ok(patch::merge(present, document)),
        _ => Ok(document.clone()),
    }
}

/// The replicas that a Scale asks for.
fn replicas(call: &Call, scale: &Value) -> Result<i64, ApiError> {
    let replicas = object::integer(scale, &["spec", "replicas"]).unwrap_or_default();
    if replicas >= 0 {
        return Ok(replicas);
    }
    let name = &call.info.name;
    let why = format!("spec.replicas: Invalid value: {replicas}: must be greater than or equal to 0");
    Err(ApiError::new(422, "Invalid", format!("Scale.autoscaling {name:?} is invalid: {why}")))
}

/// PUT or PATCH of the Scale: only spec.replicas goes back into the object. Admission sees the Scale.
pub(super) async fn change(api: &Arc<Api>, call: &Call, kind: &Arc<Kind>, paths: &ScalePaths, context: &WriteContext) -> Result<Value, ApiError> {
    let (namespace, name) = (call.info.namespace.as_str(), call.info.name.as_str());
    let document = document(call, kind, context)?;
    let body = kind.subresource("scale").map(|scale| &scale.body).ok_or_else(ApiError::no_such_resource)?;
    for _ in 0..TRIES {
        let entry = api.registry.get(kind, namespace, name)?;
        let current = api.registry.read_one(kind, entry.value()).await?;
        let old = scale::of(kind, paths, &current);
        let mut new = wanted(call, context, body, &old, &document)?;
        if call.info.verb == "patch" {
            new = write::check_patched(body, new, call, context)?;
        }
        let attributes = Attributes::create(&api.registry, context, kind, namespace, name).update(Part::Scale, &old);
        api.registry.admission.mutate(&attributes, &mut new).await?;
        let (version, uid) = (object::resource_version(&new), object::uid(&new));
        if !version.is_empty() && version != object::resource_version(&current) {
            return Err(ApiError::modified(kind, name));
        }
        if !uid.is_empty() && uid != object::uid(&current) {
            let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {}", object::uid(&current));
            return Err(ApiError::conflict(kind, name, &why));
        }
        let replicas = replicas(call, &new)?;
        let edit = |latest: &Value| {
            if object::resource_version(latest) != object::resource_version(&current) {
                return Err(ApiError::modified(kind, name));
            }
            let mut changed = latest.clone();
            scale::set_replicas(&mut changed, &paths.spec_replicas, replicas);
            if is_apply(call) {
                let owners = scale::owners_after(kind, paths, latest, &new);
                fields::put_owners(&mut changed, owners);
            }
            Ok(changed)
        };
        let target = Target { kind, namespace, name, part: Part::Scale };
        match api.registry.update(context, target, false, edit).await {
            Err(error)
                if error.is_conflict()
                    && object::resource_version(&document).is_empty()
                    && api.registry.moved_on(&kind.key(namespace, name), &entry) => {}
            other => return Ok(scale::of(kind, paths, &other?)),
        }
    }
    Err(ApiError::modified(kind, name))
}
