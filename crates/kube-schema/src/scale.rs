//! Owners of `spec.replicas` seen through the scale subresource (apimachinery managedfields `ScaleHandler`).

use crate::managed::{Managed, ManagedError, Owned};
use crate::path::PathElement;
use crate::set::FieldSet;
use serde_json::Value;

/// The version of Scale objects.
const SCALE_VERSION: &str = "autoscaling/v1";

/// The path of the replicas in the objects of each version; none for versions without the subresource.
pub type Mappings<'a> = &'a [(&'a str, Option<&'a [&'a str]>)];

fn set_of(path: &[&str]) -> FieldSet {
    FieldSet::of_names(&[path])
}

fn has(set: &FieldSet, path: &[&str]) -> bool {
    set.has(&path.iter().map(|name| PathElement::field(name)).collect::<Vec<_>>())
}

fn mapped<'a>(mappings: Mappings<'a>, version: &str) -> Option<Option<&'a [&'a str]>> {
    mappings.iter().find(|(of, _)| *of == version).map(|(_, path)| *path)
}

/// The entries of a Scale: those of the object that own its replicas.
pub fn to_scale(parent: &Value, mappings: Mappings<'_>) -> Result<Option<Value>, ManagedError> {
    let parent = Managed::decode(parent)?;
    let mut scale = Managed { times: parent.times, ..Managed::default() };
    for (id, owned) in parent.fields {
        if mapped(mappings, &owned.api_version).flatten().is_some_and(|path| has(&owned.set, path)) {
            scale.fields.insert(id, Owned { set: set_of(&["spec", "replicas"]), api_version: SCALE_VERSION.into(), applied: owned.applied });
        }
    }
    Ok(scale.encode())
}

/// The entries of the object after a write of its Scale left `scale` there. `version` is that of the object.
pub fn to_parent(parent: &Value, scale: &Value, version: &str, mappings: Mappings<'_>) -> Result<Option<Value>, ManagedError> {
    let parent = Managed::decode(parent)?;
    let mut scale = Managed::decode(scale)?;
    let mut result = Managed { times: parent.times, ..Managed::default() };
    for (id, mut owned) in parent.fields {
        let Some(path) = mapped(mappings, &owned.api_version) else { continue };
        if let Some(path) = path.filter(|path| has(&owned.set, path))
            && scale.fields.remove(&id).is_none()
        {
            owned.set = owned.set.difference(&set_of(path));
        }
        if !owned.set.is_empty() {
            result.fields.insert(id, owned);
        }
    }
    let Some(path) = mapped(mappings, version).flatten() else { return Ok(result.encode()) };
    for (id, owned) in scale.fields {
        if has(&owned.set, &["spec", "replicas"]) {
            if let Some(time) = scale.times.get(&id) {
                result.times.insert(id.clone(), *time);
            }
            result.fields.insert(id, Owned { set: set_of(path), api_version: version.into(), applied: owned.applied });
        }
    }
    Ok(result.encode())
}
