//! NamespaceLifecycle: a new object, and what is made below one (an eviction, a token), needs a Namespace that is there and stays (apiserver/pkg/admission/plugin/namespace/lifecycle). That
//! some Namespaces cannot be deleted is said by their kind.

use super::Plugin;
use crate::kind::{Attributes, Operation};
use crate::kinds;
use crate::object;
use crate::status::ApiError;
use futures::future::BoxFuture;
use serde_json::{Value, json};

pub struct NamespaceLifecycle;

impl Plugin for NamespaceLifecycle {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Create && attributes.kind.namespaced
    }

    fn mutate<'a>(&'a self, attributes: &'a Attributes<'a>, object: &'a mut Value) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(std::future::ready(check(attributes, object)))
    }
}

fn check(attributes: &Attributes<'_>, object: &Value) -> Result<(), ApiError> {
    let namespaces = kinds::by_resource("", "v1", "namespaces").ok_or_else(|| ApiError::internal("namespaces are not served"))?;
    let name = attributes.namespace;
    let stored = attributes.cluster.store.get(&namespaces.key("", name)).ok_or_else(|| ApiError::not_found(namespaces, name))?;
    if !object::is_deleting(&stored.value()) {
        return Ok(());
    }
    let why = format!("unable to create new content in namespace {name} because it is being terminated");
    let mut error = ApiError::forbidden(attributes.kind, object::name(object), &why);
    if let Some(details) = error.details.as_mut() {
        let message = format!("namespace {name} is being terminated");
        details["causes"] = json!([{"reason": "NamespaceTerminating", "message": message, "field": "metadata.namespace"}]);
    }
    Err(error)
}
