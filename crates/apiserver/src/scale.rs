//! A Scale (`autoscaling/v1`) of anything with replicas: what it shows of an object, and what of it goes back.

use crate::fields;
use crate::kind::{Kind, ScalePaths};
use crate::object;
use crate::selectors::LabelSelector;
use kube_schema::scale::{Mappings, to_parent, to_scale};
use serde_json::{Value, json};

/// Writes the replicas of a Scale into its object.
pub fn set_replicas(object: &mut Value, path: &[String], replicas: i64) {
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
pub fn owners_after(kind: &Kind, paths: &ScalePaths, object: &Value, scale: &Value) -> Option<Value> {
    let (before, applied) = (fields::owners(object).unwrap_or_default(), fields::owners(scale).unwrap_or_default());
    let after = with_mappings(kind, paths, |mappings| to_parent(&before, &applied, &kind.stored_api_version(), mappings));
    after.unwrap_or(Some(before))
}

/// The Scale of an object, with those of its owners who own the replicas.
pub fn of(kind: &Kind, paths: &ScalePaths, object: &Value) -> Value {
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
        let scale = of(kind, &ScalePaths::default(), &deployment);
        assert_eq!(scale["spec"]["replicas"], 3);
        assert_eq!(scale["status"], json!({"replicas": 2, "selector": "a=1,b=2,c in (x,y)"}));
    }
}
