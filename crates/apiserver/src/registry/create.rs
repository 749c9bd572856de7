//! Creation (apiserver/pkg/registry/generic/registry/store.go `Create`, registry/rest/create.go).

use super::{Registry, write_error};
use crate::fields;
use crate::kind::{Attributes, FieldWriter, Kind, Part, WriteContext};
use crate::object;
use crate::status::ApiError;
use crate::store::{Expect, Write, WriteError};
use serde_json::Value;
use std::sync::Arc;

/// Longest generateName that is kept before the random suffix (names.SimpleNameGenerator).
const LONGEST_BASE: usize = 58;
const SUFFIX: usize = 5;
/// Who owns what the server writes by itself.
const API_SERVER: &str = "kube-apiserver";
/// Tries of generateName before the client gets "already exists".
const NAME_TRIES: usize = 8;

impl Registry {
    /// Creates an object in `namespace` ("" for cluster scope) and returns it as stored.
    pub async fn create(&self, context: &WriteContext, kind: &Arc<Kind>, namespace: &str, mut object: Value) -> Result<Value, ApiError> {
        check_namespace(kind, namespace, &mut object)?;
        let generated = object::name(&object).is_empty() && !object::text(&object, &["metadata", "generateName"]).is_empty();
        if !object::resource_version(&object).is_empty() {
            return Err(ApiError::bad_request("resourceVersion should not be set on objects to be created"));
        }
        fill_system_fields(kind, &mut object);
        kind.apply_defaults(&mut object);
        fields::track_creation(self, kind, context, &mut object);
        let owners = fields::owners(&object);
        let name = object::name(&object).to_string();
        self.admission.mutate(&Attributes::create(self, context, kind, namespace, &name), &mut object).await?;
        fields::repair_owners(context, &mut object, owners);
        if !generated {
            // The strategy may write the name elsewhere.
            kind.prepare_new(&mut object);
            return self.create_once(context, kind, namespace, object).await;
        }
        let mut tries = NAME_TRIES;
        loop {
            let mut named = object.clone();
            generate_name(&mut named);
            kind.prepare_new(&mut named);
            tries -= 1;
            match self.create_once(context, kind, namespace, named).await {
                Err(error) if error.reason == "AlreadyExists" && tries > 0 => {}
                other => return other,
            }
        }
    }

    async fn create_once(&self, context: &WriteContext, kind: &Arc<Kind>, namespace: &str, mut object: Value) -> Result<Value, ApiError> {
        let name = object::name(&object).to_string();
        let key = kind.key(namespace, &name);
        let claim = self.allocate_service(kind, None, &mut object)?;
        let (errors, warnings) = kind.judge_new(&object).into_parts();
        if !errors.is_empty() {
            return Err(ApiError::invalid(kind, &name, &errors));
        }
        warnings.into_iter().chain(kind.warnings_of(&object)).for_each(|warning| context.warn(warning));
        let attributes = Attributes::create(self, context, kind, namespace, &name);
        if self.store.get(&key).is_some() {
            // As upstream, who may not create the object does not hear that there is one.
            self.admission.check(&attributes, &object).await?;
            return Err(ApiError::already_exists(kind, &name));
        }
        self.admission.validate(&attributes, &object).await?;
        if context.dry_run {
            return Ok(object);
        }
        let object = self.to_store(kind, object).await?;
        let write = Write { key, expect: Expect::Absent, object, removes: false };
        let stored = self.put_with_addresses(kind, None, write, claim).await?;
        self.read_one(kind, stored).await
    }

    /// Writes an object of the server itself unless one of that name exists.
    pub async fn ensure(&self, kind: &Arc<Kind>, namespace: &str, mut object: Value) -> Result<(), ApiError> {
        let name = object::name(&object).to_string();
        let key = kind.key(namespace, &name);
        if self.store.get(&key).is_some() {
            return Ok(());
        }
        if kind.namespaced {
            object::metadata(&mut object).insert("namespace".into(), namespace.into());
        }
        fill_system_fields(kind, &mut object);
        kind.apply_defaults(&mut object);
        fields::track_own(&self.cluster, kind, &FieldWriter::own(API_SERVER), None, &mut object);
        kind.prepare_new(&mut object);
        match self.store.put(&key, Expect::Absent, object).await {
            Ok(_) | Err(WriteError::Exists) => Ok(()),
            Err(error) => Err(write_error(kind, &name, &error)),
        }
    }
}

/// registry/rest/meta.go `EnsureObjectNamespaceMatchesRequestNamespace`.
pub(super) fn check_namespace(kind: &Kind, namespace: &str, object: &mut Value) -> Result<(), ApiError> {
    let found = object::namespace(object).to_string();
    if !kind.namespaced {
        return if found.is_empty() {
            Ok(())
        } else {
            // Upstream's cluster-scoped strategies accept and then refuse it in validation; kubectl shows this text.
            Err(ApiError::bad_request("the namespace of the provided object does not match the namespace sent on the request"))
        };
    }
    if found.is_empty() {
        object::metadata(object).insert("namespace".into(), namespace.into());
    } else if found != namespace {
        return Err(ApiError::bad_request("the namespace of the provided object does not match the namespace sent on the request"));
    }
    Ok(())
}

/// registry/rest/meta.go `FillObjectMetaSystemFields`, and the type's name, in the order people expect to read.
pub(super) fn fill_system_fields(kind: &Kind, object: &mut Value) {
    let metadata = object::metadata(object);
    for member in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "resourceVersion"] {
        metadata.shift_remove(member);
    }
    metadata.insert("uid".into(), uuid::Uuid::new_v4().to_string().into());
    metadata.insert("creationTimestamp".into(), object::now().into());
    object::drop_nulls(metadata);
    set_type(kind, object);
}

/// Sets apiVersion and kind, in front.
pub(super) fn set_type(kind: &Kind, object: &mut Value) {
    let Some(map) = object.as_object_mut() else { return };
    map.shift_remove("apiVersion");
    map.shift_remove("kind");
    map.shift_insert(0, "apiVersion".into(), kind.stored_api_version().into());
    map.shift_insert(0, "kind".into(), kind.kind.as_str().into());
}

fn generate_name(object: &mut Value) {
    let base: String = object::text(object, &["metadata", "generateName"]).chars().take(LONGEST_BASE).collect();
    let name = format!("{base}{}", object::random_suffix(SUFFIX));
    object::metadata(object).insert("name".into(), name.into());
}

/// Who owns what the server changes in an object by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Owners stay as they are: where upstream writes past field management, as for `pods/binding`.
    Unchanged,
    /// The server, under its own name.
    Server,
}

impl Registry {
    /// A write of the server itself to an existing object: `change` edits the latest state, lost races are retried.
    pub async fn edit(
        &self,
        context: &WriteContext,
        kind: &Arc<Kind>,
        (namespace, name): (&str, &str),
        owner: Owner,
        change: impl Fn(&mut Value) -> Result<(), ApiError>,
    ) -> Result<Value, ApiError> {
        let target = super::update::Target { kind, namespace, name, part: Part::Internal };
        let writer = FieldWriter::own(API_SERVER);
        let edit = |current: &Value| {
            let mut object = current.clone();
            change(&mut object)?;
            if owner == Owner::Server {
                fields::track_own(&self.cluster, kind, &writer, Some(current), &mut object);
                fields::keep_times(current, &mut object);
            }
            Ok(object)
        };
        self.update(context, target, true, edit).await
    }
}
