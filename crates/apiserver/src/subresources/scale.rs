//! The scale subresource: `autoscaling/v1` Scale of anything with replicas.

use crate::fields;
use crate::http::apply::{APPLY_PATCH, configuration, is_apply};
use crate::http::call::Call;
use crate::http::{negotiate, write};
use crate::kind::{Kind, Part, ScalePaths, WriteContext};
use crate::object;
use crate::patch;
use crate::registry::update::Target;
use crate::selectors::LabelSelector;
use crate::server::Api;
use crate::status::ApiError;
use kube_schema::scale::{Mappings, to_parent, to_scale};
use serde_json::{Value, json};
use std::sync::Arc;

pub(super) fn get(api: &Api, call: &Call, kind: &Arc<Kind>, paths: &ScalePaths) -> Result<Value, ApiError> {
    Ok(scale_of(kind, paths, &api.registry.get(kind, &call.info.namespace, &call.info.name)?.value()))
}

/// PUT or PATCH of the Scale: only spec.replicas goes back into the object.
pub(super) async fn change(api: &Api, call: &Call, kind: &Arc<Kind>, paths: &ScalePaths, context: &WriteContext) -> Result<Value, ApiError> {
    let target = Target { kind, namespace: &call.info.namespace, name: &call.info.name, part: Part::Main };
    let content_type = negotiate::content_type(&call.headers);
    let document = if is_apply(call) {
        configuration(&call.body)?.0
    } else if call.info.verb == "patch" {
        serde_json::from_slice(&call.body).map_err(|error| ApiError::bad_request(format!("error decoding patch: {error}")))?
    } else {
        call.document()?
    };
    let wanted = |scale: &Value| match (call.info.verb, content_type.as_str()) {
        ("patch", APPLY_PATCH) => match &context.fields {
            Some(writer) => fields::apply_scale(writer, scale, &document, call.query.flag("force")),
            None => Err(ApiError::internal("an apply without a writer")),
        },
        ("patch", "application/json-patch+json") => patch::json(scale, &document).map_err(|error| write::patch_error(&error)),
        ("patch", _) => Ok(patch::merge(scale, &document)),
        _ => Ok(document.clone()),
    };
    let edit = |current: &Value| {
        let scale = wanted(&scale_of(kind, paths, current))?;
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
        set_replicas(&mut changed, &paths.spec_replicas, replicas);
        if is_apply(call) {
            let owners = owners_after(kind, paths, current, &scale);
            fields::put_owners(&mut changed, owners);
        }
        Ok(changed)
    };
    let retry = object::resource_version(&document).is_empty();
    Ok(scale_of(kind, paths, &api.registry.update(context, target, retry, edit).await?))
}

fn set_replicas(object: &mut Value, path: &[String], replicas: i64) {
    let Some((member, above)) = path.split_last() else { return };
    let holder = above.iter().fold(object, |holder, member| {
        object::map_mut(holder, member);
        &mut holder[member.as_str()]
    });
    object::set(holder, member, replicas.into());
}

/// Where the objects of the kind have what a Scale's owners own.
fn with_mappings<T>(kind: &Kind, paths: &ScalePaths, work: impl FnOnce(Mappings<'_>) -> T) -> T {
    let (version, path) = (kind.stored_api_version(), paths.spec_replicas.iter().map(String::as_str).collect::<Vec<_>>());
    work(&[(version.as_str(), Some(path.as_slice()))])
}

/// The owners of the object after an apply to its Scale.
fn owners_after(kind: &Kind, paths: &ScalePaths, object: &Value, scale: &Value) -> Option<Value> {
    let (before, applied) = (fields::owners(object).unwrap_or_default(), fields::owners(scale).unwrap_or_default());
    let after = with_mappings(kind, paths, |mappings| to_parent(&before, &applied, &kind.stored_api_version(), mappings));
    after.unwrap_or(Some(before))
}

fn scale_of(kind: &Kind, paths: &ScalePaths, object: &Value) -> Value {
    let metadata = |member: &str| object::lookup(object, &["metadata", member]).cloned().unwrap_or_default();
    let at = |path: &[String]| object::lookup(object, &path.iter().map(String::as_str).collect::<Vec<_>>());
    let number = |path: &[String]| at(path).and_then(Value::as_i64).unwrap_or_default();
    let selector = if paths.selector.is_empty() { None } else { at(&paths.selector) };
    let mut scale = json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": metadata("name"), "namespace": metadata("namespace"), "uid": metadata("uid"),
            "resourceVersion": metadata("resourceVersion"), "creationTimestamp": metadata("creationTimestamp"),
        },
        "spec": {"replicas": number(&paths.spec_replicas)},
        "status": {"replicas": number(&paths.status_replicas), "selector": selector.map(selector_text).unwrap_or_default()},
    });
    let owners = fields::owners(object).unwrap_or_default();
    if let Ok(Some(owners)) = with_mappings(kind, paths, |mappings| to_scale(&owners, mappings)) {
        fields::put_owners(&mut scale, Some(owners));
    }
    scale
}

/// A selector as a query string would write it, sorted as `metav1.FormatLabelSelector`: of a LabelSelector, of a map of labels, of a text.
fn selector_text(selector: &Value) -> String {
    match selector {
        Value::String(text) => text.clone(),
        Value::Object(members) if members.keys().all(|member| matches!(member.as_str(), "matchLabels" | "matchExpressions")) => {
            LabelSelector::from_value(selector).to_string()
        }
        labels => LabelSelector::from_value(&json!({"matchLabels": labels})).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_shows_replicas_and_selector() {
        let deployment = json!({"metadata": {"name": "a", "namespace": "n"}, "spec": {"replicas": 3, "selector": {"matchLabels": {"b": "2", "a": "1"},
            "matchExpressions": [{"key": "c", "operator": "In", "values": ["x", "y"]}]}}, "status": {"replicas": 2}});
        let kind = crate::kinds::by_resource("apps", "v1", "deployments").unwrap();
        let scale = scale_of(kind, &ScalePaths::default(), &deployment);
        assert_eq!(scale["spec"]["replicas"], 3);
        assert_eq!(scale["status"], json!({"replicas": 2, "selector": "a=1,b=2,c in (x,y)"}));
    }
}
