//! pods/binding (pkg/registry/core/pod/storage/storage.go).

use super::{success, typed_new};
use crate::http::call::Call;
use crate::kind::{Attributes, Kind, Operation, WriteContext};
use crate::object;
use crate::registry::create::Owner;
use crate::server::Api;
use crate::status::ApiError;
use serde_json::{Value, json};
use std::sync::Arc;

/// Puts a pod on a node.
pub(super) async fn bind(api: &Api, call: &Call, kind: &Arc<Kind>, context: &WriteContext) -> Result<Value, ApiError> {
    let mut body = typed_new(call, kind, context)?;
    let attributes = Attributes::create(&api.registry, context, kind, &call.info.namespace, &call.info.name).below(Operation::Create, "binding");
    api.registry.admission.admit(&attributes, &mut body).await?;
    let node = object::text(&body, &["target", "name"]).to_string();
    let (namespace, name) = (call.info.namespace.as_str(), call.info.name.as_str());
    if node.is_empty() {
        return Err(ApiError::new(422, "Invalid", format!("Binding {name:?} is invalid: target.name: Required value")));
    }
    let members = |member: &str| object::lookup(&body, &["metadata", member]).and_then(Value::as_object).cloned().unwrap_or_default();
    let added = ["annotations", "labels"].map(|member| (member, members(member)));
    let uid = object::uid(&body).to_string();
    let assign = |pod: &mut Value| {
        if !uid.is_empty() && uid != object::uid(pod) {
            let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {}", object::uid(pod));
            return Err(ApiError::conflict(kind, name, &why));
        }
        if object::is_deleting(pod) {
            return Err(ApiError::conflict(kind, name, &format!("pod {name} is being deleted, cannot be assigned to a host")));
        }
        let assigned = object::text(pod, &["spec", "nodeName"]).to_string();
        if !assigned.is_empty() {
            return Err(ApiError::conflict(kind, name, &format!("pod {name} is already assigned to node {assigned:?}")));
        }
        if !object::list(pod, &["spec", "schedulingGates"]).is_empty() {
            return Err(ApiError::conflict(kind, name, &format!("pod {name} has non-empty .spec.schedulingGates")));
        }
        object::map_mut(pod, "spec").insert("nodeName".into(), node.as_str().into());
        // The hint is stale from now on.
        object::map_mut(pod, "status").shift_remove("nominatedNodeName");
        for (member, added) in added.iter().filter(|(_, added)| !added.is_empty()) {
            let own = object::metadata(pod).entry(*member).or_insert_with(|| json!({}));
            own.as_object_mut().into_iter().for_each(|own| own.extend(added.clone()));
        }
        mark_scheduled(pod);
        Ok(())
    };
    api.registry.edit(context, kind, (namespace, name), Owner::Unchanged, assign).await?;
    Ok(success())
}

fn mark_scheduled(pod: &mut Value) {
    let conditions = object::array_mut(object::map_mut(pod, "status"), "conditions");
    conditions.retain(|condition| object::text(condition, &["type"]) != "PodScheduled");
    conditions.push(json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": object::now()}));
}
