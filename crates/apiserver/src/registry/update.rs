//! Updates: PUT, PATCH and the server's own edits (apiserver/pkg/registry/generic/registry/store.go `Update`,
//! registry/rest/update.go).

use super::create::{check_namespace, set_type};
use super::{Registry, is_unchanged};
use crate::alloc::Claim;
use crate::fields;
use crate::kind::{Attributes, Kind, Part, WriteContext};
use crate::object;
use crate::scale;
use crate::status::{ApiError, qualified};
use crate::store::{Entry, Expect, Write};
use serde_json::Value;
use std::sync::Arc;

/// Tries when others write at the same time (handlers/patch.go `MaxRetryWhenPatchConflicts` is 5).
const TRIES: usize = 6;

/// What is written.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    pub kind: &'a Arc<Kind>,
    pub namespace: &'a str,
    pub name: &'a str,
    /// The part that may change.
    pub part: Part,
}

impl Registry {
    /// Replaces an object by what `change` makes of the current one. With `retry`, a lost race is tried again on the newer state
    /// (patches without a resourceVersion, the server's own edits).
    pub async fn update(
        &self,
        context: &WriteContext,
        target: Target<'_>,
        retry: bool,
        change: impl Fn(&Value) -> Result<Value, ApiError>,
    ) -> Result<Value, ApiError> {
        let Target { kind, namespace, name, .. } = target;
        let key = kind.key(namespace, name);
        for _ in 0..TRIES {
            let entry = self.store.get(&key).ok_or_else(|| ApiError::not_found(kind, name))?;
            let old = self.read_one(kind, entry.value()).await?;
            let new = change(&old)?;
            match self.replace(context, target, &key, &entry, old, new).await {
                Err(error) if error.is_conflict() && retry && self.moved_on(&key, &entry) => {}
                other => return other,
            }
        }
        Err(ApiError::modified(kind, name))
    }

    pub fn moved_on(&self, key: &str, entry: &Entry) -> bool {
        self.store.get(key).is_some_and(|now| now.revision != entry.revision)
    }

    async fn replace(
        &self,
        context: &WriteContext,
        target: Target<'_>,
        key: &str,
        entry: &Entry,
        old: Value,
        mut new: Value,
    ) -> Result<Value, ApiError> {
        let Target { kind, namespace, name, part } = target;
        check_identity(target, &old, &mut new)?;
        let paths = if part == Part::Scale { kind.scale_paths() } else { None };
        let shown = paths.map(|paths| scale::of(kind, paths, &old));
        let attributes = Attributes::create(self, context, kind, namespace, name).update(part, shown.as_ref().unwrap_or(&old));
        keep_system_fields(kind, &old, &mut new);
        if part != Part::Internal {
            kind.apply_defaults(&mut new);
            fields::track_update(self, kind, part, context, &old, &mut new).await?;
            let owners = fields::owners(&new);
            // A Scale has been through the mutating plug-ins already.
            if part != Part::Scale {
                self.admission.mutate(&attributes, &mut new).await?;
            }
            fields::repair_owners(context, &mut new, owners);
            fields::keep_times(&old, &mut new);
        }
        let claim = match part {
            Part::Main => self.allocate_service(kind, Some(&old), &mut new)?,
            _ => Claim::new(&self.allocators, &self.store),
        };
        let owners = fields::take_owners(&mut new);
        kind.prepare_replacement(part, &old, &mut new);
        fields::put_owners(&mut new, owners);
        let (errors, warnings) = kind.judge_update(part, &new, &old).into_parts();
        if part != Part::Internal {
            if !errors.is_empty() {
                return Err(ApiError::invalid(kind, name, &errors));
            }
            warnings.into_iter().for_each(|warning| context.warn(warning));
        }
        if matches!(part, Part::Main | Part::Scale) && old.get("spec") != new.get("spec") {
            kind.warnings_of(&new).into_iter().for_each(|warning| context.warn(warning));
        }
        if part != Part::Internal {
            match paths {
                Some(paths) => self.admission.validate(&attributes, &scale::of(kind, paths, &new)).await?,
                None => self.admission.validate(&attributes, &new).await?,
            }
        }
        if finished(kind, &new) {
            return self.remove(context, kind, key, entry, new).await;
        }
        if is_unchanged(&old, &new) {
            return Ok(old);
        }
        if context.dry_run {
            return Ok(new);
        }
        let object = self.to_store(kind, new).await?;
        let write = Write { key: key.to_string(), expect: Expect::Revision(entry.revision), object, removes: false };
        let stored = self.put_with_addresses(kind, Some(&old), write, claim).await?;
        self.release_ports(kind, &old, Some(&stored));
        self.read_one(kind, stored).await
    }

    /// Removes an object whose last finalizer has gone.
    async fn remove(&self, context: &WriteContext, kind: &Arc<Kind>, key: &str, entry: &Entry, last: Value) -> Result<Value, ApiError> {
        if context.dry_run {
            return Ok(last);
        }
        let last = self.to_store(kind, last).await?;
        let last = self.delete_stored(kind, key, entry, last).await?;
        self.read_one(kind, last).await
    }
}

/// The name, uid and resourceVersion that a new state claims must be those of the old one.
fn check_identity(target: Target<'_>, old: &Value, new: &mut Value) -> Result<(), ApiError> {
    let Target { kind, namespace, name, .. } = target;
    if !new.is_object() {
        return Err(ApiError::bad_request("the object provided is not a JSON object"));
    }
    check_namespace(kind, namespace, new)?;
    let claimed = object::name(new).to_string();
    if claimed.is_empty() {
        object::metadata(new).insert("name".into(), name.into());
    } else if claimed != name {
        let message = format!("the name of the object ({claimed}) does not match the name on the URL ({name})");
        return Err(ApiError::bad_request(message));
    }
    let (claimed, uid) = (object::uid(new), object::uid(old));
    if !claimed.is_empty() && claimed != uid {
        let why = format!("Precondition failed: UID in precondition: {claimed}, UID in object meta: {uid}");
        return Err(ApiError::conflict(kind, name, &why));
    }
    check_finalizers(kind, name, old, new)?;
    let claimed = object::resource_version(new);
    if !claimed.is_empty() && claimed != "0" && claimed != object::resource_version(old) {
        return Err(ApiError::modified(kind, name));
    }
    Ok(())
}

/// Nothing more can hold back an object whose deletion has begun (apimachinery/pkg/api/validation `ValidateObjectMetaAccessorUpdate`).
fn check_finalizers(kind: &Kind, name: &str, old: &Value, new: &Value) -> Result<(), ApiError> {
    let before = object::finalizers(old);
    let added: Vec<String> = object::finalizers(new).into_iter().filter(|name| !before.contains(name)).map(|name| format!("{name:?}")).collect();
    if !object::is_deleting(old) || added.is_empty() {
        return Ok(());
    }
    let detail = format!("no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}", added.join(", "));
    let message = format!("{} {name:?} is invalid: metadata.finalizers: Forbidden: {detail}", qualified(&kind.group, &kind.kind));
    Err(ApiError::new(422, "Invalid", message))
}

/// registry/rest/update.go `BeforeUpdate`: what a client cannot change.
fn keep_system_fields(kind: &Kind, old: &Value, new: &mut Value) {
    set_type(kind, new);
    let (before, metadata) = (old.get("metadata"), object::metadata(new));
    let kept =
        ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "resourceVersion", "generateName", "selfLink"];
    for member in kept {
        match before.and_then(|before| before.get(member)) {
            Some(value) => metadata.insert(member.into(), value.clone()),
            None => metadata.shift_remove(member),
        };
    }
    object::drop_nulls(metadata);
}

/// Whether nothing holds a deleted object back any more.
fn finished(kind: &Kind, object: &Value) -> bool {
    object::is_deleting(object)
        && object::finalizers(object).is_empty()
        && object::integer(object, &["metadata", "deletionGracePeriodSeconds"]).unwrap_or_default() == 0
        && kind.deletion.held.as_ref().is_none_or(|held| !held(object))
}
