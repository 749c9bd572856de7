//! PodResizeValidator: a resize fits the pod's node (plugin/pkg/admission/podresize).

use super::{Plugin, adapt};
use crate::kind::{Attributes, Operation};
use crate::status::ApiError;
use ::admission::pod_resize;
use futures::future::BoxFuture;
use serde_json::{Value, json};

pub struct PodResize;

fn check(attributes: &Attributes<'_>, object: &Value) -> Result<(), ApiError> {
    let user = adapt::user(attributes);
    let request = adapt::request(attributes, &user, object);
    let Some(name) = pod_resize::node_of(&request) else { return Ok(()) };
    let node = attributes.cluster.store.get(&format!("core/nodes//{name}")).map(|entry| entry.value());
    pod_resize::validate(object, name, node.as_ref()).map_err(|refusal| {
        let mut error = ApiError::forbidden(attributes.kind, attributes.name, &refusal.why);
        if let (Some(cause), Some(details)) = (refusal.cause, &mut error.details) {
            details["causes"] = json!([{"reason": cause}]);
        }
        error
    })
}

impl Plugin for PodResize {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Update && attributes.subresource == "resize" && attributes.kind.is("", "pods")
    }

    fn validate<'a>(&'a self, attributes: &'a Attributes<'a>, object: &'a Value) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(std::future::ready(check(attributes, object)))
    }
}
