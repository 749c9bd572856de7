//! Custom resources: the status of their definitions, the kinds that follow from them, and the end of both (apiextensions-apiserver,
//! pkg/controller/{status,establish,finalizer}): done here, at once with the write that calls for it.

use super::Registry;
use super::create::Owner;
use super::delete::DeleteOptions;
use crate::authn::{MASTERS, UserInfo};
use crate::kind::{Definition, Kind, KnownDefinitions, WriteContext};
use crate::kinds::{self, custom_resource_definition as definitions};
use crate::object;
use crate::status::ApiError;
use crate::store::Entry;
use crd::names::{self, Condition, Taken};
use serde_json::{Value, json};
use std::sync::Arc;

/// Annotation with the whole definition in it.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

impl Registry {
    /// Whether a write of this kind may change which custom resources are served: of a definition, or of the last objects of one that goes.
    pub fn changes_custom_resources(&self, kind: &Kind) -> bool {
        match &kind.custom {
            Some(custom) => {
                let key = format!("{}/{}//{}", definitions::GROUP, definitions::PLURAL, custom.definition.name);
                self.store.get(&key).is_some_and(|entry| is_going(&entry))
            }
            None => kind.is(definitions::GROUP, definitions::PLURAL),
        }
    }

    /// Brings status, kinds and finalizers in line with the definitions.
    pub async fn serve_custom_resources(&self) -> Result<(), ApiError> {
        let kind = kinds::by_resource(definitions::GROUP, "v1", definitions::PLURAL).ok_or_else(ApiError::no_such_resource)?;
        let context = WriteContext::new(UserInfo::new("system:apiserver", &[MASTERS]), false);
        let mut known = self.kinds.custom.lock().await;
        for definition in self.outlines(kind, &mut known) {
            if object::is_deleting(&definition) {
                self.clean_up(&context, kind, object::name(&definition)).await?;
            }
        }
        // Read once: each depends on the names that those of its group have by then.
        let mut all = self.outlines(kind, &mut known);
        for at in 0..all.len() {
            if !object::is_deleting(&all[at])
                && let Some(accepted) = self.accept(&context, kind, &all[at], &all).await?
            {
                all[at] = Arc::new(outline(accepted));
            }
        }
        self.serve_kinds(kind, &all);
        Ok(())
    }

    /// All definitions as they are, without what is large in them. Those that have changed since the last time are read.
    fn outlines(&self, kind: &Kind, known: &mut KnownDefinitions) -> Vec<Arc<Value>> {
        let rows = self.store.list(&kind.prefix("")).1;
        let mut before = std::mem::take(known);
        for (key, entry) in rows {
            let same = before.remove(&key).filter(|(revision, _)| *revision == entry.revision);
            known.insert(key, same.unwrap_or_else(|| (entry.revision, Arc::new(outline(entry.value())))));
        }
        known.values().map(|(_, definition)| Arc::clone(definition)).collect()
    }

    /// Gives a definition its names and conditions, among all definitions. None when it has them, or is gone.
    async fn accept(&self, context: &WriteContext, kind: &Arc<Kind>, definition: &Value, all: &[Arc<Value>]) -> Result<Option<Value>, ApiError> {
        let mut taken = Taken::default();
        let same_group = |other: &Value| other["spec"]["group"] == definition["spec"]["group"] && object::uid(other) != object::uid(definition);
        all.iter().filter(|other| same_group(other)).for_each(|other| taken.add(other));
        let plan = names::plan(definition, &taken);
        let conditions: Vec<Condition> = plan.conditions.into_iter().chain(names::approval(definition)).collect();
        self.set_status(context, kind, definition, &conditions, Some(&plan.accepted_names)).await
    }

    /// Deletes the objects of a definition that goes, and lets go of it when there are none left.
    async fn clean_up(&self, context: &WriteContext, kind: &Arc<Kind>, name: &str) -> Result<(), ApiError> {
        let Some(entry) = self.store.get(&kind.key("", name)) else { return Ok(()) };
        let definition = &entry.value();
        if !object::finalizers(definition).contains(&definitions::CLEANUP) {
            return Ok(());
        }
        let terminating = Condition {
            ty: "Terminating",
            status: true,
            reason: "InstanceDeletionInProgress".into(),
            message: "CustomResource deletion is in progress".into(),
        };
        self.set_status(context, kind, definition, &[terminating], None).await?;
        if names::is_established(definition)
            && let Some(custom) = definitions::stored(definition).map(Arc::new)
        {
            for (_, entry) in self.store.list(&custom.prefix("")).1 {
                let object = entry.value();
                let deleted =
                    self.delete_admitted(context, &custom, object::namespace(&object), object::name(&object), &DeleteOptions::default()).await;
                deleted.map(drop).or_else(|error| if error.is_not_found() { Ok(()) } else { Err(error) })?;
            }
            if !self.store.list(&custom.prefix("")).1.is_empty() {
                return Ok(());
            }
        }
        let release = |definition: &mut Value| {
            object::array_mut(object::metadata(definition), "finalizers").retain(|name| name != definitions::CLEANUP);
            Ok(())
        };
        missing_is_fine(self.edit(context, kind, ("", name), Owner::Unchanged, release).await).map(drop)
    }

    /// Writes conditions and names of a definition. None when it says so already, or is gone.
    async fn set_status(
        &self,
        context: &WriteContext,
        kind: &Arc<Kind>,
        definition: &Value,
        conditions: &[Condition],
        accepted: Option<&Value>,
    ) -> Result<Option<Value>, ApiError> {
        let now = object::now();
        let set = |definition: &mut Value| {
            let status = object::map_mut(definition, "status");
            if let Some(accepted) = accepted {
                status.insert("acceptedNames".into(), accepted.clone());
            }
            let list = object::array_mut(status, "conditions");
            conditions.iter().for_each(|condition| set_condition(list, condition, &now));
            Ok(())
        };
        let mut told = definition.clone();
        set(&mut told)?;
        if told == *definition {
            return Ok(None);
        }
        missing_is_fine(self.edit(context, kind, ("", object::name(definition)), Owner::Unchanged, set).await)
    }

    /// Serves the kinds of all established definitions; those whose definition did not change stay as they are.
    fn serve_kinds(&self, kind: &Kind, definitions: &[Arc<Value>]) {
        let wanted: Vec<Definition> =
            definitions.iter().filter(|definition| names::is_established(definition)).map(|definition| definitions::state(definition)).collect();
        let now = self.kinds.now();
        let served: Vec<&Definition> = now.all().filter_map(|kind| Some(&kind.custom.as_ref()?.definition)).collect();
        let known = |state: &Definition| served.contains(&state);
        if wanted.iter().all(known) && served.iter().all(|state| wanted.contains(state)) {
            return;
        }
        let fresh: Vec<Arc<Kind>> = wanted
            .iter()
            .filter(|state| !known(state))
            // One that has changed again, or is gone, is served as it is then by the pass that follows the change.
            .filter_map(|state| Some(self.store.get(&kind.key("", &state.name))?.value()).filter(|found| definitions::state(found) == *state))
            .flat_map(|definition| definitions::defined(&definition))
            // A definition cannot take the place of a built-in kind.
            .filter(|kind| kinds::builtin().find(&kind.group, &kind.version, &kind.plural).is_none())
            .map(Arc::new)
            .collect();
        self.kinds.replace(|set| {
            let stays = |kind: &Kind| kind.custom.as_ref().is_none_or(|custom| wanted.contains(&custom.definition));
            set.all().filter(|kind| stays(kind)).cloned().chain(fresh.iter().cloned()).collect()
        });
    }
}

/// A definition without its versions, its owners and its copy in an annotation.
fn outline(mut definition: Value) -> Value {
    object::map_mut(&mut definition, "spec").shift_remove("versions");
    object::metadata(&mut definition).shift_remove("managedFields");
    if let Some(annotations) = definition.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.shift_remove(LAST_APPLIED);
    }
    definition
}

/// Whether the deletion of a stored object has begun. Most objects, however large, are not decoded for that.
fn is_going(entry: &Entry) -> bool {
    let mentions = |bytes: &[u8]| std::str::from_utf8(bytes).is_ok_and(|text| text.contains("\"deletionTimestamp\":\""));
    mentions(&entry.bytes) && object::is_deleting(&entry.value())
}

fn missing_is_fine(result: Result<Value, ApiError>) -> Result<Option<Value>, ApiError> {
    match result {
        Err(error) if error.is_not_found() => Ok(None),
        other => other.map(Some),
    }
}

/// Sets a condition; its time changes with its status alone.
fn set_condition(list: &mut Vec<Value>, condition: &Condition, now: &str) {
    let status = if condition.status { "True" } else { "False" };
    let place = list.iter().position(|found| found["type"] == condition.ty);
    let since = place.map(|place| &list[place]).filter(|found| found["status"] == status).map(|found| found["lastTransitionTime"].clone());
    let set = json!({
        "type": condition.ty,
        "status": status,
        "lastTransitionTime": since.unwrap_or_else(|| now.into()),
        "reason": condition.reason,
        "message": condition.message,
    });
    match place {
        Some(place) => list[place] = set,
        None => list.push(set),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_that_go_are_found() {
        let entry = |value: Value| Entry { revision: 1, bytes: value.to_string().into_bytes().into() };
        assert!(is_going(&entry(json!({"metadata": {"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"}}))));
        assert!(!is_going(&entry(json!({"metadata": {"name": "a"}}))));
        assert!(!is_going(&entry(json!({"metadata": {"name": "a"}, "spec": {"deletionTimestamp": "at once"}}))));
    }

    #[test]
    fn an_outline_lacks_what_is_large() {
        let definition = json!({
            "metadata": {"name": "a", "managedFields": [{}], "annotations": {LAST_APPLIED: "{}", "api-approved.kubernetes.io": "unapproved"}},
            "spec": {"group": "b", "versions": [{}]}, "status": {"conditions": []},
        });
        let outlined = json!({
            "metadata": {"name": "a", "annotations": {"api-approved.kubernetes.io": "unapproved"}}, "spec": {"group": "b"}, "status": {"conditions": []},
        });
        assert_eq!(outline(definition), outlined);
        assert_eq!(outline(json!({"metadata": {"name": "a"}, "spec": {}})), json!({"metadata": {"name": "a"}, "spec": {}}));
    }

    #[test]
    fn a_condition_keeps_its_time_while_its_status_stays() {
        let condition = |status, reason: &str| Condition { ty: "Established", status, reason: reason.into(), message: String::new() };
        let mut list = Vec::new();
        set_condition(&mut list, &condition(false, "A"), "1");
        set_condition(&mut list, &condition(false, "B"), "2");
        assert_eq!((&list[0]["lastTransitionTime"], &list[0]["reason"]), (&json!("1"), &json!("B")));
        set_condition(&mut list, &condition(true, "C"), "3");
        assert_eq!((list.len(), &list[0]["lastTransitionTime"], &list[0]["status"]), (1, &json!("3"), &json!("True")));
    }
}
