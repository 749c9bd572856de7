//! What crate `admission` is told of a request, and what its refusals are for clients.

use crate::kind::{Attributes, Operation};
use crate::object;
use crate::status::ApiError;
use ::admission::{Notes, Refusal, UserInfo};
use serde_json::{Value, json};

/// Who asks.
pub fn user(attributes: &Attributes<'_>) -> UserInfo {
    let user = &attributes.context.user;
    let texts = |value: &Value| value.as_array().into_iter().flatten().filter_map(|text| Some(text.as_str()?.to_string())).collect();
    let extra = user.extra.iter().map(|(key, values)| (key.clone(), texts(values))).collect();
    UserInfo { name: user.name.clone(), uid: user.uid.clone(), groups: user.groups.clone(), extra }
}

/// The options of the request, of the kind that the operation has. Connections have none.
pub fn options(attributes: &Attributes<'_>) -> Value {
    let kind = match attributes.operation {
        Operation::Create => "CreateOptions",
        Operation::Update => "UpdateOptions",
        Operation::Delete => "DeleteOptions",
        Operation::Connect => return Value::Null,
    };
    let mut options = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"});
    if let Some(members) = options.as_object_mut() {
        members.extend(attributes.context.options.clone());
    }
    options
}

/// The request, without its options. Of deletions there is no object.
pub fn request<'b>(attributes: &'b Attributes<'_>, user: &'b UserInfo, object: &'b Value) -> ::admission::Attributes<'b> {
    let kind = attributes.kind;
    let (kind_group, kind_version, kind_name) = attributes.object_kind();
    ::admission::Attributes {
        operation: match attributes.operation {
            Operation::Create => ::admission::Operation::Create,
            Operation::Update => ::admission::Operation::Update,
            Operation::Delete => ::admission::Operation::Delete,
            Operation::Connect => ::admission::Operation::Connect,
        },
        group: &kind.group,
        version: &kind.version,
        resource: &kind.plural,
        subresource: attributes.subresource,
        kind: kind_name,
        kind_group,
        kind_version,
        namespace: if kind.is("", "namespaces") { attributes.name } else { attributes.namespace },
        name: attributes.name,
        object: if object.is_null() { None } else { Some(object) },
        old_object: attributes.old,
        options: &Value::Null,
        user,
        dry_run: attributes.context.dry_run,
    }
}

/// Keeps what a plug-in leaves beside its decision, for the response and the audit event.
pub fn keep(attributes: &Attributes<'_>, notes: Notes) {
    notes.warnings.into_iter().for_each(|warning| attributes.context.warn(warning));
    notes.audit.into_iter().for_each(|(key, value)| attributes.context.audit.add(key, value));
}

/// What the error calls the object: its name, or else what its name will begin with.
fn name_of<'b>(attributes: &'b Attributes<'_>, object: &'b Value) -> &'b str {
    let candidates = [attributes.name, object::name(object), object::text(object, &["metadata", "generateName"])];
    candidates.into_iter().find(|name| !name.is_empty()).unwrap_or("Unknown")
}

/// What a refusal is for the client.
pub fn error(attributes: &Attributes<'_>, object: &Value, refusal: Refusal) -> ApiError {
    let (kind, name) = (attributes.kind, name_of(attributes, object));
    match refusal {
        Refusal::Forbidden(why) => ApiError::forbidden(kind, name, &why),
        Refusal::Invalid(errors) => ApiError::invalid(kind, name, &errors),
        Refusal::BadRequest(why) => ApiError::bad_request(why),
        Refusal::Internal(why) => ApiError::internal(why),
        Refusal::Conflict { resource, name, why } => {
            let message = format!("Operation cannot be fulfilled on {resource} {name:?}: {why}");
            ApiError { details: Some(json!({"name": name, "kind": resource})), ..ApiError::new(409, "Conflict", message) }
        }
        Refusal::Denied { message, prefixed, code, reason, causes } => {
            let mut error = ApiError::forbidden(kind, name, &message);
            if let Some(details) = error.details.as_mut() {
                details["causes"] = causes.into_iter().map(|message| json!({"message": message})).collect();
            }
            let message = if prefixed { error.message } else { message };
            ApiError { code, reason: reason.into(), message, details: error.details }
        }
        Refusal::Status { code, reason, message, details } => ApiError { code, reason: reason.into(), message, details },
    }
}
