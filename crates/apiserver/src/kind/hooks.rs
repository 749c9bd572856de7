//! The hooks of a kind, run in upstream's order around what holds for every kind: defaults, validation, strategy.

use super::{Kind, Part, Route};
use crate::object;
use crate::validation::FieldError;
use crate::validation::field::{Errors, Field};
use crate::validation::meta;
use serde_json::Value;

impl Kind {
    /// Fills in the defaults of an object of this kind. Doing it twice changes nothing.
    pub fn apply_defaults(&self, object: &mut Value) {
        if let (Some(hook), Some(object)) = (&self.defaults, object.as_object_mut()) {
            hook(object);
        }
    }

    /// What is wrong with a new object, in upstream's order; empty for a valid one.
    pub fn errors_of_new(&self, object: &Value) -> Vec<FieldError> {
        self.judge_new(object).into_list()
    }

    /// The same with warnings.
    pub fn judge_new(&self, object: &Value) -> Errors {
        let mut errors = Errors::default();
        let root = Field::root(object);
        meta::check(self, &*self.validation.name, &root, &mut errors);
        self.check_content(&root, None, &mut errors);
        errors
    }

    /// What is wrong with replacing `old` by `new` through `part`. What did not change is not validated again.
    pub fn errors_of_update(&self, part: Part, new: &Value, old: &Value) -> Vec<FieldError> {
        self.judge_update(part, new, old).into_list()
    }

    /// The same with warnings.
    pub fn judge_update(&self, part: Part, new: &Value, old: &Value) -> Errors {
        let mut errors = Errors::default();
        let (root, before) = (Field::root(new), Field::root(old));
        let own = match part {
            Part::Status => self.validation.status.as_ref(),
            Part::Other(name) => match self.subresource(name).map(|subresource| &subresource.route) {
                Some(Route::Part(hooks)) => hooks.validate.as_ref(),
                _ => None,
            },
            Part::Main | Part::Scale | Part::Internal => None,
        };
        // A part with checks of its own says nothing of metadata, which it cannot write, but for the status.
        if own.is_none() || part == Part::Status {
            meta::check_update(&root, &before, &mut errors);
        }
        match own {
            Some(hook) => hook(&root, &before, &mut errors),
            None => self.check_content(&root, Some(&before), &mut errors),
        }
        errors
    }

    fn check_content(&self, new: &Field<'_>, old: Option<&Field<'_>>, errors: &mut Errors) {
        if let Some(hook) = &self.validation.content {
            hook(new, old, errors);
        }
    }

    /// The warnings for an object that has been found valid.
    pub fn warnings_of(&self, object: &Value) -> Vec<String> {
        let mut found = Vec::new();
        if let Some(hook) = &self.validation.warnings {
            hook(&Field::root(object), &mut found);
        }
        found
    }

    /// Sets what a creation does not leave to the client.
    pub fn prepare_new(&self, object: &mut Value) {
        if self.has_status()
            && !self.strategy.status_on_create
            && let Some(map) = object.as_object_mut()
        {
            map.shift_remove("status");
        }
        if self.strategy.generation.is_some() {
            object::metadata(object).insert("generation".into(), 1.into());
        }
        if let Some(hook) = &self.strategy.prepare_create {
            hook(object);
        }
    }

    /// Puts back what an update of `part` may not change, and counts the generation.
    pub fn prepare_replacement(&self, part: Part, old: &Value, new: &mut Value) {
        match part {
            Part::Main | Part::Scale => {
                if self.has_status() {
                    object::copy_member(old, new, "status");
                }
                if let Some(hook) = &self.strategy.prepare_update {
                    hook(old, new);
                }
            }
            Part::Status => {
                restore_all_but_status(self.strategy.metadata_with_status, old, new);
                if let Some(hook) = &self.strategy.prepare_status {
                    hook(old, new);
                }
            }
            Part::Other(name) => {
                if let Some(Route::Part(hooks)) = self.subresource(name).map(|subresource| &subresource.route) {
                    (hooks.prepare)(old, new);
                }
            }
            Part::Internal => {}
        }
        if self.strategy.generation.as_ref().is_some_and(|changed| changed(old, new)) {
            let generation = object::integer(old, &["metadata", "generation"]).unwrap_or_default();
            object::metadata(new).insert("generation".into(), (generation + 1).into());
        }
    }
}

/// A copy of an object whose status is to be written.
fn without_status(object: &Value) -> Value {
    let Some(members) = object.as_object() else { return object.clone() };
    let copy = |(name, value): (&String, &Value)| (name.clone(), if name == "status" { Value::Null } else { value.clone() });
    members.iter().map(copy).collect()
}

/// A status update keeps the old spec and most of the old metadata.
fn restore_all_but_status(takes_metadata: bool, old: &Value, new: &mut Value) {
    let mut take = |member: &str| new.get_mut(member).map(Value::take);
    let (status, metadata) = (take("status"), take("metadata"));
    let mut kept = without_status(old);
    if let Some(map) = kept.as_object_mut() {
        match status {
            Some(status) => drop(map.insert("status".into(), status)),
            None => drop(map.shift_remove("status")),
        }
    }
    if takes_metadata {
        let target = object::metadata(&mut kept);
        for member in ["labels", "annotations", "finalizers"] {
            match metadata.as_ref().and_then(|metadata| metadata.get(member)) {
                Some(value) => drop(target.insert(member.into(), value.clone())),
                None => drop(target.shift_remove(member)),
            }
        }
    }
    *new = kept;
}
