//! The annotation of client-side apply: what it allows an apply by kubectl to take over, and how such an apply keeps it up to date.

use crate::schema::Type;
use crate::set::FieldSet;
use crate::typed::Duplicates;
use crate::value::go_json;
use serde_json::Value;

pub(crate) const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Most bytes of all annotations of an object.
const MOST_ANNOTATIONS: usize = 256 << 10;

fn annotation(object: &Value) -> Option<&str> {
    object["metadata"]["annotations"][ANNOTATION].as_str().filter(|text| !text.is_empty())
}

/// The fields that the annotation has with the values of the live object: client-side apply owned them.
pub(crate) fn owned(of: Type<'_>, api_version: &str, live: &Value) -> Option<FieldSet> {
    let last: Value = serde_json::from_str(annotation(live)?).ok()?;
    if last["apiVersion"] != api_version {
        return None;
    }
    of.validate(live, Duplicates::Refused).ok()?;
    of.validate(&last, Duplicates::Refused).ok()?;
    let changed = of.compare(&last, live);
    Some(of.field_set(&last).difference(&changed.modified).difference(&changed.added).difference(&changed.removed))
}

/// Writes the configuration into the annotation of an object that has one, unless the annotations become too large.
pub(crate) fn refresh(object: &mut Value, config: &Value) {
    if annotation(object).is_none() {
        return;
    }
    let mut config = config.clone();
    if let Some(annotations) = config.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.shift_remove(ANNOTATION);
    }
    let mut text = String::new();
    go_json(&config, &mut text);
    text.push('\n');
    let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) else { return };
    annotations.insert(ANNOTATION.into(), text.into());
    let size: usize = annotations.iter().map(|(name, value)| name.len() + value.as_str().map_or(0, str::len)).sum();
    if size > MOST_ANNOTATIONS {
        annotations.shift_remove(ANNOTATION);
    }
}
