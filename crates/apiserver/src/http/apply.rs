//! Server-side apply (apiserver/pkg/endpoints/handlers/patch.go `applyPatcher`), and the options that name who writes.

use super::call::Call;
use super::field_validation::{FieldValidation, field_validation};
use super::json;
use super::negotiate;
use super::path::RequestInfo;
use crate::authz::Attributes;
use crate::fields::{self, Conversions};
use crate::kind::{FieldWriter, Part, WriteContext};
use crate::object;
use crate::registry::update::Target;
use crate::schema;
use crate::server::Api;
use crate::status::ApiError;
use crate::validation::{ErrorKind, FieldError};
use http::header::USER_AGENT;
use kube_schema::manager::manager_name;
use serde_json::{Value, json};
use std::sync::Arc;

pub const APPLY_PATCH: &str = "application/apply-patch+yaml";

/// Tries when objects come and go at the same time.
const TRIES: usize = 4;

/// Longest name of a manager, in bytes (metav1 validation `FieldManagerMaxLength`).
const LONGEST_MANAGER: usize = 128;

/// Whether the request is an apply.
pub fn is_apply(call: &Call) -> bool {
    call.info.verb == "patch" && negotiate::content_type(&call.headers) == APPLY_PATCH
}

/// Who writes, by the request's options; absent for requests that write no object.
pub fn writer(call: &Call) -> Result<Option<FieldWriter>, ApiError> {
    let options = match call.info.verb {
        "create" => "CreateOptions",
        "update" => "UpdateOptions",
        "patch" => "PatchOptions",
        _ => return Ok(None),
    };
    let errors = option_errors(call);
    if !errors.is_empty() {
        let texts: Vec<String> = errors.iter().map(FieldError::to_string).collect();
        let text = if texts.len() == 1 { texts.concat() } else { format!("[{}]", texts.join(", ")) };
        let causes: Vec<Value> =
            errors.iter().map(|error| json!({"reason": error.kind.reason(), "message": error.body(), "field": error.path()})).collect();
        let details = json!({"group": "meta.k8s.io", "kind": options, "causes": causes});
        let error = ApiError::new(422, "Invalid", format!("{options}.meta.k8s.io \"\" is invalid: {text}"));
        return Err(ApiError { details: Some(details), ..error });
    }
    let agent = call.headers.get(USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    Ok(Some(FieldWriter {
        manager: manager_name(call.query.get("fieldManager").unwrap_or_default(), agent),
        subresource: call.info.subresource.clone(),
        applies: is_apply(call),
        now: jiff::Timestamp::now(),
    }))
}

fn option_errors(call: &Call) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let manager = call.query.get("fieldManager").unwrap_or_default();
    if is_apply(call) && manager.is_empty() {
        errors.push(FieldError::new(ErrorKind::Required, "fieldManager", Value::Null, "is required for apply patch"));
    }
    if call.info.verb == "patch" && !is_apply(call) && call.query.get("force").is_some() {
        errors.push(FieldError::new(ErrorKind::Forbidden, "force", Value::Null, "may not be specified for non-apply patch"));
    }
    if manager.len() > LONGEST_MANAGER {
        let detail = format!("may not be more than {LONGEST_MANAGER} bytes");
        errors.push(FieldError::new(ErrorKind::TooLong, "fieldManager", None, detail));
    }
    for (position, letter) in manager.char_indices().filter(|(_, letter)| letter.is_control()) {
        let detail = format!("invalid character U+{:04X} (at position {position})", letter as u32);
        errors.push(FieldError::invalid("fieldManager", manager.into(), &detail));
    }
    errors
}

/// The configuration in the body, and its members that stand twice.
pub fn configuration(body: &[u8]) -> Result<(Value, Vec<String>), ApiError> {
    let bad = |why: String| ApiError::bad_request(format!("error decoding YAML: {why}"));
    let (value, repeated) = json::read_yaml(body).map_err(|error| bad(error.to_string()))?;
    match value {
        Value::Null => Ok((json!({}), repeated)),
        Value::Object(_) => Ok((value, repeated)),
        _ => Err(bad(
            "error unmarshaling JSON: while decoding JSON: json: cannot unmarshal value into Go value of type map[string]interface {}".into()
        )),
    }
}

/// Members that stand twice are refused or reported; unknown ones have been refused by then.
fn check_repeated(call: &Call, repeated: &[String], context: &WriteContext) -> Result<(), ApiError> {
    if repeated.is_empty() {
        return Ok(());
    }
    let found = format!("error converting YAML to JSON: {}", repeated.join(", "));
    match field_validation(call)? {
        FieldValidation::Strict => return Err(ApiError::bad_request(format!("error strict decoding YAML: {found}"))),
        FieldValidation::Warn => context.warn(found),
        FieldValidation::Ignore => {}
    }
    Ok(())
}

/// Applies the body to a part of an object, which it creates when it is not there; the flag says whether it did.
pub async fn apply(api: &Arc<Api>, call: &Call, context: &WriteContext, target: Target<'_>) -> Result<(Value, bool), ApiError> {
    let (config, repeated) = configuration(&call.body)?;
    let force = call.query.flag("force");
    let Some(writer) = &context.fields else { return Err(ApiError::internal("an apply without a writer")) };
    let kind = target.kind;
    let conversions = Conversions::new(&api.registry.cluster, kind);
    let applied = |live: Option<&Value>| {
        let view = live.map(|live| kind.outgoing(live.clone()));
        let object = fields::apply(kind, target.part, writer, view.as_ref(), &config, force, &conversions)?;
        check_repeated(call, &repeated, context)?;
        let mut checked = schema::decode_check(kind, object).map_err(|error| ApiError::new(500, "", error.to_string()))?.value;
        kind.apply_defaults(&mut checked);
        Ok(kind.incoming(checked))
    };
    let mut tries = TRIES;
    loop {
        match api.registry.update(context, target, true, |live| applied(Some(live))).await {
            Err(_) if conversions.resolve(kind).await? => continue,
            Err(error) if error.is_not_found() && target.part == Part::Main => {}
            other => return other.map(|object| (object, false)),
        }
        tries -= 1;
        match create(api, call, context, target, applied(None)?).await {
            Err(error) if error.reason == "AlreadyExists" && tries > 0 => {}
            other => return other.map(|object| (object, true)),
        }
    }
}

async fn create(api: &Arc<Api>, call: &Call, context: &WriteContext, target: Target<'_>, mut object: Value) -> Result<Value, ApiError> {
    let Target { kind, namespace, name, .. } = target;
    let uid = object::uid(&object);
    if !uid.is_empty() {
        let why = format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
        return Err(ApiError::conflict(kind, name, &why));
    }
    let claimed = object::name(&object);
    if !claimed.is_empty() && claimed != name {
        return Err(ApiError::bad_request(format!("the name of the object ({claimed}) does not match the name on the URL ({name})")));
    }
    object::metadata(&mut object).insert("name".into(), name.into());
    let info: &RequestInfo = &call.info;
    let attributes = Attributes { verb: "create".into(), ..Attributes::of(&call.user, info, "") };
    api.registry.authorizer.check(&attributes)?;
    api.registry.create(context, kind, namespace, object).await
}
