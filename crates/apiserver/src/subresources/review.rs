//! TokenReview, the SubjectAccessReviews and SelfSubjectReview: asked by POST, stored nowhere
//! (pkg/registry/{authentication,authorization}).

use crate::authn::UserInfo;
use crate::authn::token::ISSUER;
use crate::authz::{Attributes, Decision};
use crate::http::call::Call;
use crate::http::negotiate::{self, MEDIA_TYPES, Transform};
use crate::http::respond::{self, Body};
use crate::http::write;
use crate::kind::WriteContext;
use crate::object;
use crate::server::Api;
use crate::status::ApiError;
use http::Response;
use serde_json::{Map, Value, json};

/// Answers a review; `None` for anything else.
pub fn serve(api: &Api, call: &Call) -> Result<Option<Response<Body>>, ApiError> {
    let info = &call.info;
    let (group, resource) = (info.group.as_str(), info.resource.as_str());
    let known = match group {
        "authentication.k8s.io" => matches!(resource, "tokenreviews" | "selfsubjectreviews"),
        "authorization.k8s.io" => {
            matches!(resource, "subjectaccessreviews" | "selfsubjectaccessreviews" | "localsubjectaccessreviews" | "selfsubjectrulesreviews")
        }
        _ => false,
    };
    if !known || info.version != "v1" {
        return Ok(None);
    }
    let local = resource == "localsubjectaccessreviews";
    if local == info.namespace.is_empty() || !info.name.is_empty() {
        return Err(ApiError::no_such_resource());
    }
    if info.verb != "create" {
        let message = format!("{} is not supported on resources of kind {:?}", info.verb, format!("{resource}.{group}"));
        return Err(ApiError::new(405, "MethodNotAllowed", message));
    }
    // Before anything is asked: upstream finds that there is nothing to make a table of.
    let accepted = negotiate::accept(&call.headers)?;
    if accepted.transform != Transform::None {
        return Err(ApiError::not_acceptable(&MEDIA_TYPES));
    }
    let kind = api.registry.kinds.find(group, &info.version, resource).ok_or_else(ApiError::no_such_resource)?;
    let context = WriteContext::new(call.user.clone(), false);
    let mut review = write::decode_object(&kind, call, &context)?;
    let asked = object::lookup(&review, &["spec", "resourceAttributes", "namespace"]);
    if local && asked.is_none_or(|asked| *asked != info.namespace) {
        let message = format!(
            "LocalSubjectAccessReview.authorization.k8s.io \"\" is invalid: spec.resourceAttributes.namespace: Invalid value: {}: must match \
             metadata.namespace",
            asked.unwrap_or(&Value::Null)
        );
        return Err(ApiError::new(422, "Invalid", message));
    }
    let status = match resource {
        "tokenreviews" => review_token(api, &review)?,
        "selfsubjectreviews" => json!({"userInfo": call.user.to_value()}),
        "selfsubjectrulesreviews" => rules(api, call, &review),
        "selfsubjectaccessreviews" => access(api, call.user.clone(), &review)?,
        _ => access(api, subject(&review), &review)?,
    };
    review["kind"] = kind.kind.as_str().into();
    review["apiVersion"] = kind.api_version().into();
    review["metadata"] = json!({"creationTimestamp": null});
    review["status"] = status;
    let mut answer = respond::document(accepted.encoding, 201, &review);
    respond::add_warnings(&mut answer, &context.take_warnings());
    Ok(Some(answer))
}

/// A token is good for the audiences asked for (the API server's own when none are) that it was issued for, and those are answered
/// (pkg/registry/authentication/tokenreview/storage.go).
fn review_token(api: &Api, review: &Value) -> Result<Value, ApiError> {
    let token = object::text(review, &["spec", "token"]);
    if token.is_empty() {
        return Err(ApiError::bad_request("token is required for TokenReview in authentication"));
    }
    let given: Vec<&str> = object::list(review, &["spec", "audiences"]).iter().filter_map(Value::as_str).collect();
    let audiences = if given.is_empty() { vec![ISSUER] } else { given };
    Ok(match api.review_token(token, &audiences) {
        Some((user, fitting)) => json!({"authenticated": true, "user": user.to_value(), "audiences": fitting}),
        None => json!({"user": {}, "error": "invalid bearer token"}),
    })
}

fn subject(review: &Value) -> UserInfo {
    let texts = |value: &[Value]| value.iter().filter_map(Value::as_str).map(str::to_string).collect();
    UserInfo {
        name: object::text(review, &["spec", "user"]).to_string(),
        uid: object::text(review, &["spec", "uid"]).to_string(),
        groups: texts(object::list(review, &["spec", "groups"])),
        extra: object::lookup(review, &["spec", "extra"]).and_then(Value::as_object).cloned().unwrap_or_else(Map::new),
    }
}

fn access(api: &Api, user: UserInfo, review: &Value) -> Result<Value, ApiError> {
    let resource = object::lookup(review, &["spec", "resourceAttributes"]);
    let path = object::lookup(review, &["spec", "nonResourceAttributes"]);
    let attributes = match (resource, path) {
        (Some(asked), None) => {
            let text = |member: &str| object::text(asked, &[member]).to_string();
            Attributes {
                user,
                verb: text("verb"),
                is_resource: true,
                group: text("group"),
                resource: text("resource"),
                subresource: text("subresource"),
                namespace: text("namespace"),
                name: text("name"),
                ..Attributes::default()
            }
        }
        (None, Some(asked)) => {
            let text = |member: &str| object::text(asked, &[member]).to_string();
            Attributes { user, verb: text("verb"), path: text("path"), ..Attributes::default() }
        }
        _ => {
            let message = "SubjectAccessReview.authorization.k8s.io \"\" is invalid: spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified";
            return Err(ApiError::new(422, "Invalid", message));
        }
    };
    Ok(match api.registry.authorizer.decide(&attributes) {
        Decision::Allow(reason) if reason.is_empty() => json!({"allowed": true}),
        Decision::Allow(reason) => json!({"allowed": true, "reason": reason}),
        Decision::NoOpinion(reason) if reason.is_empty() => json!({"allowed": false}),
        Decision::NoOpinion(reason) => json!({"allowed": false, "reason": reason}),
    })
}

fn rules(api: &Api, call: &Call, review: &Value) -> Value {
    let (resources, paths) = api.registry.authorizer.rules(&call.user, object::text(review, &["spec", "namespace"]));
    json!({"resourceRules": resources, "nonResourceRules": paths, "incomplete": false})
}
