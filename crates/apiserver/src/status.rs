//! Errors as upstream words them: `metav1.Status` with the reason, code, message and details that kubectl and client-go know
//! (staging/src/k8s.io/apimachinery/pkg/api/errors/errors.go).

use crate::names::Names;
use crate::validation::FieldError;
use serde_json::{Map, Value, json};
use std::ops::Deref;

/// An API error: what the client gets instead of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    /// HTTP status code.
    pub code: u16,
    /// `metav1.StatusReason`.
    pub reason: Reason,
    /// The sentence kubectl prints.
    pub message: String,
    /// `metav1.StatusDetails`.
    pub details: Option<Value>,
}

/// A reason: one of upstream's, or one that a webhook gave. As large as a reference, because every result carries the space.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    Known(&'static str),
    Foreign(Box<Foreign>),
}

/// A reason from outside.
#[derive(Clone, Debug, PartialEq)]
pub struct Foreign(String);

impl From<&'static str> for Reason {
    fn from(reason: &'static str) -> Self {
        Reason::Known(reason)
    }
}

impl From<String> for Reason {
    fn from(reason: String) -> Self {
        Reason::Foreign(Box::new(Foreign(reason)))
    }
}

impl Deref for Reason {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Reason::Known(reason) => reason,
            Reason::Foreign(reason) => &reason.0,
        }
    }
}

impl PartialEq<&str> for Reason {
    fn eq(&self, other: &&str) -> bool {
        **self == **other
    }
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

/// `pods`, or `deployments.apps`.
pub fn qualified(group: &str, name: &str) -> String {
    if group.is_empty() { name.to_string() } else { format!("{name}.{group}") }
}

/// Where an error keeps the token that its metadata shows; such errors have no other details.
const CONTINUE: &str = "continue";

fn details(kind: &Names, name: &str) -> Value {
    let mut details = Map::new();
    if !name.is_empty() {
        details.insert("name".into(), name.into());
    }
    if !kind.group.is_empty() {
        details.insert("group".into(), kind.group.as_str().into());
    }
    details.insert("kind".into(), kind.plural.as_str().into());
    Value::Object(details)
}

impl ApiError {
    /// An error without details.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason: reason.into(), message: message.into(), details: None }
    }

    /// 404 for a named object.
    pub fn not_found(kind: &Names, name: &str) -> Self {
        let message = format!("{} {name:?} not found", qualified(&kind.group, &kind.plural));
        Self { details: Some(details(kind, name)), ..Self::new(404, "NotFound", message) }
    }

    /// 404 for something that the server does not serve.
    pub fn no_such_resource() -> Self {
        let details = json!({"causes": [{"reason": "UnexpectedServerResponse", "message": "404 page not found"}], "code": 404});
        Self { details: Some(details), ..Self::new(404, "NotFound", "the server could not find the requested resource") }
    }

    /// 409: the name is taken.
    pub fn already_exists(kind: &Names, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", qualified(&kind.group, &kind.plural));
        Self { details: Some(details(kind, name)), ..Self::new(409, "AlreadyExists", message) }
    }

    /// 409: optimistic concurrency or a precondition.
    pub fn conflict(kind: &Names, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", qualified(&kind.group, &kind.plural));
        Self { details: Some(details(kind, name)), ..Self::new(409, "Conflict", message) }
    }

    /// 409: somebody else wrote first.
    pub fn modified(kind: &Names, name: &str) -> Self {
        Self::conflict(kind, name, "the object has been modified; please apply your changes to the latest version and try again")
    }

    /// 403 with upstream's wording for a named object (admission) .
    pub fn forbidden(kind: &Names, name: &str, why: &str) -> Self {
        let resource = qualified(&kind.group, &kind.plural);
        let message = if name.is_empty() { format!("{resource} is forbidden: {why}") } else { format!("{resource} {name:?} is forbidden: {why}") };
        Self { details: Some(details(kind, name)), ..Self::new(403, "Forbidden", message) }
    }

    /// 422 with the field errors, as `NewInvalid` renders them.
    pub fn invalid(kind: &Names, name: &str, errors: &[FieldError]) -> Self {
        let mut seen = Vec::<String>::new();
        for error in errors {
            let text = error.to_string();
            if !seen.contains(&text) {
                seen.push(text);
            }
        }
        let list = if seen.len() == 1 { seen.remove(0) } else { format!("[{}]", seen.join(", ")) };
        let message = format!("{} {name:?} is invalid: {list}", qualified(&kind.group, &kind.kind));
        let causes: Vec<Value> =
            errors.iter().map(|error| json!({"reason": error.kind.reason(), "message": error.body(), "field": error.path()})).collect();
        let mut details = Map::new();
        details.insert("name".into(), name.into());
        if !kind.group.is_empty() {
            details.insert("group".into(), kind.group.as_str().into());
        }
        details.insert("kind".into(), kind.kind.as_str().into());
        details.insert("causes".into(), Value::Array(causes));
        Self { details: Some(Value::Object(details)), ..Self::new(422, "Invalid", message) }
    }

    /// 400.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 405.
    pub fn method_not_allowed(kind: &Names, action: &str) -> Self {
        let message = format!("{action} is not supported on resources of kind {:?}", qualified(&kind.group, &kind.plural));
        Self { details: Some(details(kind, "")), ..Self::new(405, "MethodNotAllowed", message) }
    }

    /// 405 for a path and method that have no route (`NewGenericServerResponse`).
    pub fn no_such_method() -> Self {
        Self { details: Some(json!({})), ..Self::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource") }
    }

    /// 413.
    pub fn entity_too_large(why: impl std::fmt::Display) -> Self {
        Self::new(413, "RequestEntityTooLarge", format!("Request entity too large: {why}"))
    }

    /// 410: a resourceVersion or continue token that is too old.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// 410: a page of a list that is no longer what it was; the list goes on with this token.
    pub fn expired_page(token: &str) -> Self {
        let message = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue \
             parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token \
             results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and \
             now may show up in the list.";
        Self { details: Some(json!({CONTINUE: token})), ..Self::expired(message) }
    }

    /// 504: a resourceVersion that has not come yet.
    pub fn too_large(asked: u64, current: u64) -> Self {
        let details = json!({"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}], "retryAfterSeconds": 1});
        let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
        Self { details: Some(details), ..Self::new(504, "Timeout", message) }
    }

    /// 429: a disruption budget stands against an eviction; clients try again.
    pub fn disruption_budget(why: &str, retry_after_seconds: Option<i64>) -> Self {
        let mut details = json!({"causes": [{"reason": "DisruptionBudget", "message": why}]});
        if let Some(seconds) = retry_after_seconds {
            details["retryAfterSeconds"] = seconds.into();
        }
        let message = "Cannot evict pod as it would violate the pod's disruption budget.";
        Self { details: Some(details), ..Self::new(429, "TooManyRequests", message) }
    }

    /// 401.
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// 406 with the media types that would do.
    pub fn not_acceptable(accepted: &[&str]) -> Self {
        let message = format!("only the following media types are accepted: {}", accepted.join(", "));
        Self::new(406, "NotAcceptable", message)
    }

    /// 415 with the media types that would do.
    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        let message = format!("the body of the request was in an unknown format - accepted media types include: {}", accepted.join(", "));
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// 500.
    pub fn internal(message: impl std::fmt::Display) -> Self {
        let text = message.to_string();
        let details = json!({"causes": [{"message": text}]});
        Self { details: Some(details), ..Self::new(500, "InternalError", format!("Internal error occurred: {text}")) }
    }

    /// Whether this is the 409 of a lost race (not "already exists").
    pub fn is_conflict(&self) -> bool {
        self.reason == "Conflict"
    }

    /// Whether this is a 404 for an object.
    pub fn is_not_found(&self) -> bool {
        self.reason == "NotFound"
    }

    /// The `metav1.Status` document.
    pub fn to_value(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": &*self.reason,
        });
        match &self.details {
            Some(details) if details.get(CONTINUE).is_some() => status["metadata"]["continue"] = details[CONTINUE].clone(),
            Some(details) => status["details"] = details.clone(),
            None => {}
        }
        status["code"] = self.code.into();
        status
    }
}

/// The `metav1.Status` that a finished deletion answers.
pub fn deleted(kind: &Names, name: &str, uid: &str) -> Value {
    let mut details = details(kind, name);
    details["uid"] = uid.into();
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}
