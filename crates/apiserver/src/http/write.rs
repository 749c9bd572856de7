//! The bodies of writes: decoding, field validation, the four kinds of patches
//! (apiserver/pkg/endpoints/handlers/{create,update,patch}.go).

use super::apply::{self, APPLY_PATCH};
use super::call::Call;
use super::field_validation::{FieldValidation, field_validation, in_document_order};
use super::json;
use super::negotiate::{self, decode_strictly};
use crate::authz::Attributes;
use crate::fields;
use crate::kind::{BodyKind, Kind, Part, WriteContext};
use crate::object;
use crate::patch::PatchError;
use crate::registry::update::Target;
use crate::server::Api;
use crate::status::ApiError;
use crate::{patch, schema};
use serde_json::Value;
use std::sync::Arc;

const JSON_PATCH: &str = "application/json-patch+json";
const MERGE_PATCH: &str = "application/merge-patch+json";
const STRATEGIC_PATCH: &str = "application/strategic-merge-patch+json";

/// Decodes and checks the body of a creation or replacement.
pub fn decode_object(kind: &Kind, call: &Call, context: &WriteContext) -> Result<Value, ApiError> {
    let (value, repeated) = decode_strictly(&negotiate::content_type(&call.headers), &call.body)?;
    check_type(kind, &value)?;
    let prefix = format!("{} in version {:?} cannot be handled as a {}: ", kind.kind, kind.version, kind.kind);
    let checked =
        check_fields(kind, value, repeated, field_validation(call)?, context).map_err(|text| ApiError::bad_request(format!("{prefix}{text}")))?;
    Ok(kind.incoming(checked))
}

fn check_type(kind: &Kind, value: &Value) -> Result<(), ApiError> {
    for member in ["apiVersion", "kind"] {
        let sort = match value.get(member) {
            None | Some(Value::Null | Value::String(_)) => continue,
            Some(Value::Bool(_)) => "bool",
            Some(Value::Number(_)) => "number",
            Some(Value::Array(_)) => "array",
            Some(Value::Object(_)) => "object",
        };
        let why = format!("json: cannot unmarshal {sort} into Go struct field .{member} of type string");
        return Err(ApiError::bad_request(format!("couldn't get version/kind; json parse error: {why}")));
    }
    let (version, name) = (object::text(value, &["apiVersion"]), object::text(value, &["kind"]));
    if name.is_empty() && version.is_empty() {
        return Ok(());
    }
    if version != kind.api_version() || name != kind.kind {
        let (group, short) = version.split_once('/').unwrap_or(("", version));
        let message = format!(
            "{name} in version {short:?} cannot be handled as a {}: no kind {name:?} is registered for version {:?} in scheme \"pkg/api/legacyscheme/scheme.go:30\"",
            kind.kind,
            if group.is_empty() { short.to_string() } else { format!("{group}/{short}") },
        );
        let mismatch = format!("the API version in the data ({version}) does not match the expected API version ({})", kind.api_version());
        return Err(ApiError::bad_request(if name == kind.kind { mismatch } else { message }));
    }
    Ok(())
}

/// Types are always checked; unknown and `repeated` fields are refused, reported or ignored.
fn check_fields(kind: &Kind, value: Value, repeated: Vec<String>, validation: FieldValidation, context: &WriteContext) -> Result<Value, String> {
    let document = (!repeated.is_empty()).then(|| value.clone());
    let checked = schema::decode_check(kind, fields::keep_reset(value)).map_err(|error| error.to_string())?;
    let mut found = repeated;
    found.extend(checked.unknown);
    if let Some(document) = document.filter(|_| kind.custom.is_none()) {
        in_document_order(&document, &mut found);
    }
    report(found, validation, context)?;
    Ok(checked.value)
}

/// Decodes and checks the body of a subresource: a Scale, an Eviction, …
pub fn decode_body(body: &BodyKind, call: &Call, context: &WriteContext) -> Result<Value, ApiError> {
    let (value, repeated) = decode_strictly(&negotiate::content_type(&call.headers), &call.body)?;
    let prefix = format!("{} in version {:?} cannot be handled as a {}: ", body.kind, body.version, body.kind);
    let validation = field_validation(call)?;
    check_body(body, value, repeated, validation, context).map_err(|text| ApiError::bad_request(format!("{prefix}{text}")))
}

/// The Scale that a patch leaves.
pub fn check_patched(body: &BodyKind, patched: Value, call: &Call, context: &WriteContext) -> Result<Value, ApiError> {
    let (text, validation) = (patched.to_string(), field_validation(call)?);
    check_body(body, patched, Vec::new(), validation, context).map_err(|error| does_not_fit(&text, &error))
}

fn check_body(body: &BodyKind, value: Value, repeated: Vec<String>, validation: FieldValidation, context: &WriteContext) -> Result<Value, String> {
    let checked = schema::decode_as(&body.schema_type(), &format!("{}.{}", body.version, body.kind), value).map_err(|error| error.to_string())?;
    let mut found = repeated;
    found.extend(checked.unknown);
    report(found, validation, context)?;
    Ok(checked.value)
}

fn does_not_fit(patched: &str, error: &str) -> ApiError {
    ApiError::new(422, "Invalid", format!(" \"\" is invalid: patch: Invalid value: {patched:?}: {error}"))
}

/// Refuses, reports or ignores fields that nobody knows and those that stand twice.
fn report(found: Vec<String>, validation: FieldValidation, context: &WriteContext) -> Result<(), String> {
    match validation {
        FieldValidation::Strict if !found.is_empty() => return Err(format!("strict decoding error: {}", found.join(", "))),
        FieldValidation::Warn => found.into_iter().for_each(|warning| context.warn(warning)),
        _ => {}
    }
    Ok(())
}

/// PUT or PATCH of a part; the flag says whether the object was created by it.
pub async fn update(api: &Arc<Api>, call: &Call, context: &WriteContext, target: Target<'_>) -> Result<(Value, bool), ApiError> {
    if apply::is_apply(call) {
        return apply::apply(api, call, context, target).await;
    }
    if call.info.verb == "patch" {
        return patch(api, call, context, target).await.map(|object| (object, false));
    }
    let object = decode_object(target.kind, call, context)?;
    let may_create = target.part == Part::Main && target.kind.strategy.create_on_update && object::resource_version(&object).is_empty();
    // Without a resourceVersion a replacement is unconditional: it is tried again on whatever is there.
    let unconditional = object::resource_version(&object).is_empty();
    match api.registry.update(context, target, unconditional, |_| Ok(object.clone())).await {
        Err(error) if error.is_not_found() && may_create => {
            let attributes = Attributes { verb: "create".into(), ..Attributes::of(&call.user, &call.info, "") };
            api.registry.authorizer.check(&attributes)?;
            api.registry.create(context, target.kind, target.namespace, object).await.map(|object| (object, true))
        }
        other => other.map(|object| (object, false)),
    }
}

async fn patch(api: &Arc<Api>, call: &Call, context: &WriteContext, target: Target<'_>) -> Result<Value, ApiError> {
    let content_type = negotiate::content_type(&call.headers);
    let validation = field_validation(call)?;
    let kind = target.kind;
    // Strategic merge patches follow what Go's types say of lists: custom kinds have no such types.
    let formats: &[&str] =
        if kind.custom.is_some() { &[JSON_PATCH, MERGE_PATCH, APPLY_PATCH] } else { &[JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH] };
    if !formats.contains(&content_type.as_str()) {
        return Err(ApiError::unsupported_media_type(formats));
    }
    let (document, repeated) = patch_document(&call.body)?;
    let patched = |current: &Value| match content_type.as_str() {
        JSON_PATCH => patch::json(current, &document),
        MERGE_PATCH => Ok(patch::merge(current, &document)),
        _ => patch::strategic(kind, current, &document),
    };
    let change = |current: &Value| {
        let view = kind.is_view().then(|| kind.outgoing(current.clone()));
        let current = view.as_ref().unwrap_or(current);
        let object = patched(current).map_err(|error| patch_error(&error))?;
        check_fields(kind, object, repeated.clone(), validation, context).map(|object| kind.incoming(object)).map_err(|error| {
            // The text is made only for the message: patching once more gives the same.
            let text = patched(current).map(|object| object.to_string()).unwrap_or_default();
            does_not_fit(&text, &error)
        })
    };
    api.registry.update(context, target, true, change).await
}

pub fn patch_document(body: &[u8]) -> Result<(Value, Vec<String>), ApiError> {
    // kubectl may send a patch as YAML; upstream converts it first.
    json::read(body).or_else(|_| json::read_yaml(body)).map_err(|error| ApiError::bad_request(format!("error decoding patch: {error}")))
}

/// A document that is no patch is a bad request; one that does not fit is "unprocessable"; upstream drops the reason, we add it.
pub fn patch_error(error: &PatchError) -> ApiError {
    match error {
        PatchError::Malformed(why) => ApiError::bad_request(why.as_str()),
        PatchError::TooLarge(why) => ApiError::entity_too_large(why),
        PatchError::NotApplicable(why) => {
            ApiError::new(422, "Invalid", format!("the server rejected our request due to an error in our request: {why}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_body_of_another_version_is_refused() {
        let kind = crate::kinds::by_resource("apps", "v1", "deployments").unwrap();
        assert!(check_type(kind, &json!({"apiVersion": "apps/v1", "kind": "Deployment"})).is_ok());
        assert!(check_type(kind, &json!({})).is_ok());
        let error = check_type(kind, &json!({"apiVersion": "v1", "kind": "Deployment"})).unwrap_err();
        assert_eq!(error.message, "the API version in the data (v1) does not match the expected API version (apps/v1)");
        assert_eq!(check_type(kind, &json!({"apiVersion": "v1", "kind": "Pod"})).unwrap_err().code, 400);
        let error = check_type(kind, &json!({"apiVersion": 1, "kind": []})).unwrap_err();
        let why = "json: cannot unmarshal number into Go struct field .apiVersion of type string";
        assert_eq!(error.message, format!("couldn't get version/kind; json parse error: {why}"));
    }
}
