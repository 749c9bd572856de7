//! Custom resources: the status of their definitions, the kinds that follow from them, and the end of both (apiextensions-apiserver,
//! pkg/controller/{status,establish,finalizer}): done here, at once with the write that calls for it.

use super::Registry;
use super::delete::DeleteOptions;
use crate::authn::{MASTERS, UserInfo};
use crate::kind::{Definition, Kind, WriteContext};
use crate::kinds::{self, custom_resource_definition as definitions};
use crate::object;
use crate::status::ApiError;
use crd::names::{self, Condition, Taken};
use serde_json::{Value, json};
use std::sync::Arc;

impl Registry {
    /// Whether a write of this kind may change which custom resources are served: of a definition, or of the last objects of one that goes.
    pub fn changes_custom_resources(&self, kind: &Kind) -> bool {
        match &kind.custom {
            Some(custom) => {
                let key = format!("{}/{}//{}", definitions::GROUP, definitions::PLURAL, custom.definition.name);
                self.store.get(&key).is_some_and(|entry| object::is_deleting(&entry.value()))
            }
            None => kind.is(definitions::GROUP, definitions::PLURAL),
        }
    }

    /// Brings status, kinds and finalizers in line with the definitions.
    pub async fn serve_custom_resources(&self) -> Result<(), ApiError> {
        let kind = kinds::by_resource(definitions::GROUP, "v1", definitions::PLURAL).ok_or_else(ApiError::no_such_resource)?;
        let context = WriteContext::new(UserInfo::new("system:apiserver", &[MASTERS]), false);
        let _alone = self.kinds.custom.lock().await;
        for definition in self.definitions(kind) {
            if object::is_deleting(&definition) {
                self.clean_up(&context, kind, &definition).await?;
            }
        }
        // Read once: each depends on the names that those of its group have by then.
        let mut all = self.definitions(kind);
        for at in 0..all.len() {
            if !object::is_deleting(&all[at])
                && let Some(accepted) = self.accept(&context, kind, &all[at], &all).await?
            {
                all[at] = accepted;
            }
        }
        self.serve_kinds(&all);
        Ok(())
    }

    fn definitions(&self, kind: &Kind) -> Vec<Value> {
        self.store.list(&kind.prefix("")).1.into_iter().map(|(_, entry)| entry.value()).collect()
    }

    /// Gives a definition its names and conditions, among all definitions. None when it is gone.
    async fn accept(&self, context: &WriteContext, kind: &Arc<Kind>, definition: &Value, all: &[Value]) -> Result<Option<Value>, ApiError> {
        let mut taken = Taken::default();
        let same_group = |other: &Value| other["spec"]["group"] == definition["spec"]["group"] && object::uid(other) != object::uid(definition);
        all.iter().filter(|other| same_group(other)).for_each(|other| taken.add(other));
        let plan = names::plan(definition, &taken);
        let conditions: Vec<Condition> = plan.conditions.into_iter().chain(names::approval(definition)).collect();
        self.set_status(context, kind, definition, &conditions, Some(&plan.accepted_names)).await
    }

    /// Deletes the objects of a definition that goes, and lets go of it when there are none left.
    async fn clean_up(&self, context: &WriteContext, kind: &Arc<Kind>, definition: &Value) -> Result<(), ApiError> {
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
        missing_is_fine(self.edit(context, kind, "", object::name(definition), release).await).map(drop)
    }

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
        missing_is_fine(self.edit(context, kind, "", object::name(definition), set).await)
    }

    /// Serves the kinds of all established definitions; those whose definition did not change stay as they are.
    fn serve_kinds(&self, definitions: &[Value]) {
        let wanted: Vec<(Definition, &Value)> = definitions
            .iter()
            .filter(|definition| names::is_established(definition))
            .map(|definition| (definitions::state(definition), definition))
            .collect();
        let now = self.kinds.now();
        let served: Vec<&Definition> = now.all().filter_map(|kind| Some(&kind.custom.as_ref()?.definition)).collect();
        let known = |state: &Definition| served.contains(&state);
        if wanted.iter().all(|(state, _)| known(state)) && served.iter().all(|state| wanted.iter().any(|(wanted, _)| wanted == *state)) {
            return;
        }
        let fresh: Vec<Arc<Kind>> = wanted
            .iter()
            .filter(|(state, _)| !known(state))
            .flat_map(|(_, definition)| definitions::defined(definition))
            // A definition cannot take the place of a built-in kind.
            .filter(|kind| kinds::builtin().find(&kind.group, &kind.version, &kind.plural).is_none())
            .map(Arc::new)
            .collect();
        self.kinds.replace(|set| {
            let stays = |kind: &Kind| kind.custom.as_ref().is_none_or(|custom| wanted.iter().any(|(state, _)| *state == custom.definition));
            set.all().filter(|kind| stays(kind)).cloned().chain(fresh.iter().cloned()).collect()
        });
    }
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
