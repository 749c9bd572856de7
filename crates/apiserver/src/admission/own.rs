//! The admission that kinds bring along themselves.

use super::Plugin;
use crate::kind::{Admit, Attributes, Operation};
use crate::status::ApiError;
use futures::future::BoxFuture;
use serde_json::Value;

pub struct KindsOwn;

fn hook<'a>(attributes: &'a Attributes<'_>) -> Option<&'a Admit> {
    let own = &attributes.kind.admission;
    match attributes.operation {
        Operation::Create if attributes.subresource.is_empty() => own.create.as_ref(),
        Operation::Update => own.update.as_ref(),
        Operation::Delete => own.delete.as_ref(),
        Operation::Create | Operation::Connect => None,
    }
}

impl Plugin for KindsOwn {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        hook(attributes).is_some()
    }

    fn mutate<'a>(&'a self, attributes: &'a Attributes<'a>, object: &'a mut Value) -> BoxFuture<'a, Result<(), ApiError>> {
        match hook(attributes) {
            Some(hook) => hook(attributes, object),
            None => Box::pin(std::future::ready(Ok(()))),
        }
    }
}
