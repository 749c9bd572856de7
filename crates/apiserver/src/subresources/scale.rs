//! The scale subresource: `autoscaling/v1` Scale of anything with replicas.

use crate::http::{Call, negotiate, resource, write};
use crate::kinds::KindInfo;
use crate::object;
use crate::patch;
use crate::registry::update::Target;
use crate::registry::{Part, WriteContext};
use crate::selectors::LabelSelector;
use crate::server::Api;
use crate::status::ApiError;
use serde_json::{Value, json};

pub(super) fn get(api: &Api, call: &Call, kind: &'static KindInfo) -> Result<Value, ApiError> {
    Ok(scale_of(&api.registry.get(kind, &call.info.namespace, &call.info.name)?.value()))
}

/// PUT or PATCH of the Scale: only spec.replicas goes back into the object.
pub(super) async fn change(api: &Api, call: &Call, kind: &'static KindInfo, context: &WriteContext) -> Result<Value, ApiError> {
    let target = Target { kind, namespace: &call.info.namespace, name: &call.info.name, part: Part::Main };
    let content_type = negotiate::content_type(&call.headers);
    let document = if call.info.verb == "patch" {
        serde_json::from_slice(&call.body).map_err(|error| ApiError::bad_request(format!("error decoding patch: {error}")))?
    } else {
        resource::body(call)?
    };
    let wanted = |scale: &Value| match (call.info.verb, content_type.as_str()) {
        ("patch", "application/json-patch+json") => patch::json(scale, &document).map_err(|error| write::patch_error(&error)),
        ("patch", _) => Ok(patch::merge(scale, &document)),
        _ => Ok(document.clone()),
    };
    let edit = |current: &Value| {
        let scale = wanted(&scale_of(current))?;
        let version = object::resource_version(&scale);
        if !version.is_empty() && version != object::resource_version(current) {
            return Err(ApiError::modified(kind, &call.info.name));
        }
        let replicas = object::integer(&scale, &["spec", "replicas"]).unwrap_or_default();
        if replicas < 0 {
            let message = format!(
                "Scale.autoscaling {:?} is invalid: spec.replicas: Invalid value: {replicas}: must be greater than or equal to 0",
                call.info.name
            );
            return Err(ApiError::new(422, "Invalid", message));
        }
        let mut changed = current.clone();
        object::map_mut(&mut changed, "spec").insert("replicas".into(), replicas.into());
        Ok(changed)
    };
    let retry = object::resource_version(&document).is_empty();
    Ok(scale_of(&api.registry.update(context, target, retry, edit).await?))
}

fn scale_of(object: &Value) -> Value {
    let metadata = |member: &str| object::lookup(object, &["metadata", member]).cloned().unwrap_or_default();
    json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": metadata("name"), "namespace": metadata("namespace"), "uid": metadata("uid"),
            "resourceVersion": metadata("resourceVersion"), "creationTimestamp": metadata("creationTimestamp"),
        },
        "spec": {"replicas": object::integer(object, &["spec", "replicas"]).unwrap_or_default()},
        "status": {"replicas": object::integer(object, &["status", "replicas"]).unwrap_or_default(), "selector": selector_text(object)},
    })
}

/// A LabelSelector as a query string would write it, sorted as `metav1.FormatLabelSelector`.
fn selector_text(object: &Value) -> String {
    object::lookup(object, &["spec", "selector"]).map(|selector| LabelSelector::from_value(selector).to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_shows_replicas_and_selector() {
        let deployment = json!({"metadata": {"name": "a", "namespace": "n"}, "spec": {"replicas": 3, "selector": {"matchLabels": {"b": "2", "a": "1"},
            "matchExpressions": [{"key": "c", "operator": "In", "values": ["x", "y"]}]}}, "status": {"replicas": 2}});
        let scale = scale_of(&deployment);
        assert_eq!(scale["spec"]["replicas"], 3);
        assert_eq!(scale["status"], json!({"replicas": 2, "selector": "a=1,b=2,c in (x,y)"}));
    }
}
