//! Deletion: grace periods, finalizers, propagation, preconditions
//! (apiserver/pkg/registry/rest/delete.go, registry/generic/registry/store.go `Delete`).

use super::read::Selection;
use super::{Registry, write_error};
use crate::alloc::Claim;
use crate::kind::{Attributes, Kind, WriteContext};
use crate::object;
use crate::status::{self, ApiError};
use crate::store::{Entry, Expect, Write};
use serde_json::Value;
use std::sync::Arc;

const TRIES: usize = 8;
const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// `metav1.DeleteOptions`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// Seconds until the object goes by force.
    pub grace: Option<i64>,
    /// `Background`, `Foreground` or `Orphan`.
    pub propagation: Option<String>,
    /// Only the object of this uid.
    pub uid: Option<String>,
    /// Only the object at this resourceVersion.
    pub resource_version: Option<String>,
}

impl DeleteOptions {
    /// Reads the body of a deletion; members of the query have been put in by the caller.
    pub fn from_value(value: &Value) -> Result<Self, ApiError> {
        let text = |path: &[&str]| object::lookup(value, path).and_then(Value::as_str).map(str::to_string);
        let mut options = Self {
            grace: object::integer(value, &["gracePeriodSeconds"]),
            propagation: text(&["propagationPolicy"]),
            uid: text(&["preconditions", "uid"]),
            resource_version: text(&["preconditions", "resourceVersion"]),
        };
        if let Some(orphan) = object::lookup(value, &["orphanDependents"]).and_then(Value::as_bool) {
            let policy = if orphan { "Orphan" } else { "Background" };
            options.propagation.get_or_insert_with(|| policy.to_string());
        }
        if let Some(policy) = options.propagation.as_deref()
            && !matches!(policy, "Background" | "Foreground" | "Orphan")
        {
            let message = format!(
                "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Unsupported value: {policy:?}: supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\""
            );
            return Err(ApiError::new(422, "Invalid", message));
        }
        Ok(options)
    }
}

/// What became of a deletion.
pub enum Deleted {
    /// The object is gone; the client gets this Status.
    Gone(Value),
    /// The object stays until its grace period ends or its finalizers are removed; the client gets the object.
    Pending(Value),
}

impl Registry {
    /// Deletes one object, or begins to, if admission lets it.
    pub async fn delete(
        &self,
        context: &WriteContext,
        kind: &Arc<Kind>,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Deleted, ApiError> {
        let old = self.store.get(&kind.key(namespace, name)).ok_or_else(|| ApiError::not_found(kind, name))?.value();
        let old = self.read_one(kind, old).await?;
        let attributes = Attributes::create(self, context, kind, namespace, name).delete(Some(&old));
        self.admission.admit(&attributes, &mut Value::Null).await?;
        match self.delete_admitted(context, kind, namespace, name, options).await? {
            Deleted::Pending(object) => self.read_one(kind, object).await.map(Deleted::Pending),
            gone => Ok(gone),
        }
    }

    /// The same, of what has been admitted in another way: in the form of the store.
    pub async fn delete_admitted(
        &self,
        context: &WriteContext,
        kind: &Arc<Kind>,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Deleted, ApiError> {
        let key = kind.key(namespace, name);
        for _ in 0..TRIES {
            let entry = self.store.get(&key).ok_or_else(|| ApiError::not_found(kind, name))?;
            let object = entry.value();
            check_preconditions(kind, name, options, &object)?;
            let (changed, pending) = plan(kind, object, options);
            match self.carry_out(context, kind, &key, &entry, changed, pending).await {
                Err(error) if error.is_conflict() && options.resource_version.is_none() => {}
                other => return other,
            }
        }
        Err(ApiError::modified(kind, name))
    }

    async fn carry_out(
        &self,
        context: &WriteContext,
        kind: &Arc<Kind>,
        key: &str,
        entry: &Entry,
        object: Value,
        pending: bool,
    ) -> Result<Deleted, ApiError> {
        let name = object::name(&object).to_string();
        let failed = |error| write_error(kind, &name, &error);
        if pending {
            if context.dry_run || object == entry.value() {
                return Ok(Deleted::Pending(object));
            }
            return self.store.put(key, Expect::Revision(entry.revision), object).await.map(Deleted::Pending).map_err(failed);
        }
        let gone = Deleted::Gone(status::deleted(kind, &name, object::uid(&object)));
        if !context.dry_run {
            self.delete_stored(kind, key, entry, object).await?;
        }
        Ok(gone)
    }

    /// Removes an object and gives back what it held.
    pub(super) async fn delete_stored(&self, kind: &Kind, key: &str, entry: &Entry, last: Value) -> Result<Value, ApiError> {
        let held = last.clone();
        let write = Write { key: key.to_string(), expect: Expect::Revision(entry.revision), object: last, removes: true };
        let last = self.put_with_addresses(kind, Some(&held), write, Claim::new(&self.allocators, &self.store)).await?;
        self.release_ports(kind, &last, None);
        Ok(last)
    }

    /// Deletes everything that is selected and returns what was found.
    pub async fn delete_collection(
        &self,
        context: &WriteContext,
        kind: &Arc<Kind>,
        namespace: &str,
        selection: &Selection,
        options: &DeleteOptions,
    ) -> Result<Vec<Value>, ApiError> {
        let (_, rows) = self.store.list(&kind.prefix(namespace));
        let mut deleted = Vec::new();
        for object in self.read(kind, rows.into_iter().map(|(_, entry)| entry.value()).collect()).await? {
            if !selection.matches(&object) {
                continue;
            }
            match self.delete(context, kind, object::namespace(&object), object::name(&object), options).await {
                Ok(_) => deleted.push(object),
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(deleted)
    }
}

fn check_preconditions(kind: &Kind, name: &str, options: &DeleteOptions, object: &Value) -> Result<(), ApiError> {
    let uid = object::uid(object);
    if let Some(wanted) = options.uid.as_deref().filter(|wanted| *wanted != uid) {
        let why = format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {uid}");
        return Err(ApiError::conflict(kind, name, &why));
    }
    let version = object::resource_version(object);
    if let Some(wanted) = options.resource_version.as_deref().filter(|wanted| *wanted != version) {
        let why = format!("Precondition failed: ResourceVersion in precondition: {wanted}, ResourceVersion in object meta: {version}");
        return Err(ApiError::conflict(kind, name, &why));
    }
    Ok(())
}

/// What a deletion makes of an object, and whether the object stays for now. Pure.
fn plan(kind: &Kind, mut object: Value, options: &DeleteOptions) -> (Value, bool) {
    set_propagation(&mut object, options, kind.deletion.orphans);
    if let Some(plan) = &kind.deletion.plan {
        return plan(object);
    }
    let held = !object::finalizers(&object).is_empty();
    let mut grace = kind.deletion.grace.as_ref().map_or(0, |grace| grace(&object, options.grace));
    if object::is_deleting(&object) {
        let running = object::integer(&object, &["metadata", "deletionGracePeriodSeconds"]).unwrap_or_default();
        if options.grace.is_none() || grace >= running && running > 0 {
            // A deletion runs already and this one does not hasten it; it is done when nothing holds the object.
            return (object, held || running > 0);
        }
        grace = grace.min(running);
    }
    if grace > 0 || held {
        object::begin_deletion(&mut object, grace);
        return (object, true);
    }
    (object, false)
}

/// `deletionFinalizersForGarbageCollection`: what the garbage collector is asked to do first.
fn set_propagation(object: &mut Value, options: &DeleteOptions, orphans: bool) {
    let own = object::finalizers(object).iter().any(|name| *name == ORPHAN || *name == FOREGROUND);
    let default = (orphans && !own).then_some("Orphan");
    let Some(policy) = options.propagation.as_deref().or(default) else { return };
    let wanted = match policy {
        "Orphan" => Some(ORPHAN),
        "Foreground" => Some(FOREGROUND),
        _ => None,
    };
    let mut finalizers: Vec<String> =
        object::finalizers(object).into_iter().filter(|name| *name != ORPHAN && *name != FOREGROUND).map(str::to_string).collect();
    finalizers.extend(wanted.map(str::to_string));
    let metadata = object::metadata(object);
    if finalizers.is_empty() {
        metadata.shift_remove("finalizers");
    } else {
        metadata.insert("finalizers".into(), finalizers.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn kind(plural: &str) -> &'static Arc<Kind> {
        crate::kinds::by_resource("", "v1", plural).unwrap()
    }

    fn grace(seconds: i64) -> DeleteOptions {
        DeleteOptions { grace: Some(seconds), ..DeleteOptions::default() }
    }

    fn running_pod() -> Value {
        json!({"metadata": {"name": "a", "generation": 1}, "spec": {"nodeName": "n", "terminationGracePeriodSeconds": 30}, "status": {"phase": "Running"}})
    }

    #[test]
    fn pods_go_gracefully_once_scheduled() {
        let unscheduled = json!({"metadata": {"name": "a"}, "spec": {"terminationGracePeriodSeconds": 30}});
        assert!(!plan(kind("pods"), unscheduled, &DeleteOptions::default()).1);
        let (pod, pending) = plan(kind("pods"), running_pod(), &DeleteOptions::default());
        assert!(pending);
        assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 30);
        assert_eq!(pod["metadata"]["generation"], 2);
        // Once more: nothing changes. With grace 0: it goes.
        let (again, pending) = plan(kind("pods"), pod.clone(), &DeleteOptions::default());
        assert!(pending);
        assert_eq!(again, pod);
        let (hastened, pending) = plan(kind("pods"), pod.clone(), &grace(5));
        assert!(pending);
        assert_eq!(hastened["metadata"]["deletionGracePeriodSeconds"], 5);
        assert!(!plan(kind("pods"), pod, &grace(0)).1);
    }

    #[test]
    fn finalizers_hold_an_object() {
        let (held, pending) = plan(kind("configmaps"), json!({"metadata": {"name": "a", "finalizers": ["x/y"]}}), &DeleteOptions::default());
        assert!(pending && object::is_deleting(&held));
        let options = DeleteOptions { propagation: Some("Foreground".into()), ..DeleteOptions::default() };
        let (foreground, pending) = plan(kind("configmaps"), json!({"metadata": {"name": "a"}}), &options);
        assert!(pending);
        assert_eq!(foreground["metadata"]["finalizers"], json!(["foregroundDeletion"]));
        let options = DeleteOptions { propagation: Some("Background".into()), ..DeleteOptions::default() };
        assert!(!plan(kind("configmaps"), json!({"metadata": {"name": "a"}}), &options).1);
    }

    #[test]
    fn preconditions_are_checked() {
        let options = DeleteOptions { uid: Some("other".into()), ..DeleteOptions::default() };
        let error = check_preconditions(kind("pods"), "a", &options, &json!({"metadata": {"uid": "mine"}})).unwrap_err();
        assert_eq!(
            error.message,
            "Operation cannot be fulfilled on pods \"a\": Precondition failed: UID in precondition: other, UID in object meta: mine"
        );
    }

    #[test]
    fn unknown_policies_are_refused() {
        assert_eq!(DeleteOptions::from_value(&json!({"propagationPolicy": "Whatever"})).unwrap_err().code, 422);
        let options = DeleteOptions::from_value(&json!({"orphanDependents": true, "gracePeriodSeconds": 3})).unwrap();
        assert_eq!((options.propagation.as_deref(), options.grace), (Some("Orphan"), Some(3)));
    }
}
