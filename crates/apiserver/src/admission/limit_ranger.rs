//! LimitRanger: what containers may use, and what they get when they do not say (plugin/pkg/admission/limitranger).

use super::{Plugin, adapt};
use crate::kind::{Attributes, Cluster, Operation};
use crate::status::ApiError;
use ::admission::limit_ranger;
use futures::future::BoxFuture;
use serde_json::Value;

pub struct LimitRanger;

fn ranges(cluster: &Cluster, namespace: &str) -> Vec<Value> {
    let (_, rows) = cluster.store.list(&format!("core/limitranges/{namespace}/"));
    rows.into_iter().map(|(_, entry)| entry.value()).collect()
}

fn set_defaults(attributes: &Attributes<'_>, object: &mut Value) {
    let user = adapt::user(attributes);
    if attributes.kind.is("", "pods") && limit_ranger::concerns(&adapt::request(attributes, &user, object)) {
        limit_ranger::set_defaults(&ranges(attributes.cluster, attributes.namespace), object);
    }
}

fn check(attributes: &Attributes<'_>, object: &Value) -> Result<(), ApiError> {
    let user = adapt::user(attributes);
    let request = adapt::request(attributes, &user, object);
    if !limit_ranger::concerns(&request) {
        return Ok(());
    }
    let result = limit_ranger::validate(&ranges(attributes.cluster, attributes.namespace), &request);
    result.map_err(|refusal| adapt::error(attributes, object, refusal))
}

impl Plugin for LimitRanger {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        let is_limited = attributes.kind.is("", "pods") || attributes.kind.is("", "persistentvolumeclaims");
        is_limited && matches!(attributes.operation, Operation::Create | Operation::Update)
    }

    fn mutate<'a>(&'a self, attributes: &'a Attributes<'a>, object: &'a mut Value) -> BoxFuture<'a, Result<(), ApiError>> {
        set_defaults(attributes, object);
        Box::pin(std::future::ready(Ok(())))
    }

    fn validate<'a>(&'a self, attributes: &'a Attributes<'a>, object: &'a Value) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(std::future::ready(check(attributes, object)))
    }
}
