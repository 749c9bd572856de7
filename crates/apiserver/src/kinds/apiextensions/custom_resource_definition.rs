//! CustomResourceDefinitions (apiextensions-apiserver, pkg/registry/customresourcedefinition), and the kinds that they define
//! (pkg/registry/customresource). What is decided about them is in crate `crd`.

use super::conversion::Conversion;
use crate::kind::{Attributes, Custom, CustomSchema, Definition, Kind, ScalePaths, SelectableField, Versions};
use crate::object;
use crate::status::ApiError;
use crate::table::text::since;
use crate::table::{self, AGE, Column, NAME};
use crate::validation::field::{Errors, Field};
use crd::resource::Version;
use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::sync::Arc;

pub const GROUP: &str = "apiextensions.k8s.io";
pub const PLURAL: &str = "customresourcedefinitions";
/// Holds a definition until all objects of its kinds are gone.
pub const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

pub fn kind() -> Kind {
    let schema = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition";
    let mut kind = Kind::new(GROUP, "v1", "CustomResourceDefinition", PLURAL, schema)
        .described_by::<CustomResourceDefinition>()
        .cluster()
        .short(&["crd", "crds"])
        .status()
        .counts_generations()
        .prepare_create(prepare_create)
        .prepare_update(prepare_update)
        .validate(|new, old, errors| {
            let old = old.map(|old| old.value);
            errors.extend(crd::definition::validate(new.value, old));
            crd::warnings::of_definition(new.value, old).into_iter().for_each(|warning| errors.warn(warning));
        })
        .validate_status(|_, _, _| {});
    kind.names.categories = vec!["api-extensions".to_string()];
    kind
}

fn prepare_create(definition: &mut Value) {
    crd::definition::set_defaults(definition);
    let finalizers = object::array_mut(object::metadata(definition), "finalizers");
    if !finalizers.iter().any(|name| name == CLEANUP) {
        finalizers.push(CLEANUP.into());
    }
}

/// Objects may be stored in the storage version from now on.
fn prepare_update(_: &Value, definition: &mut Value) {
    crd::definition::set_defaults(definition);
    let versions = object::list(definition, &["spec", "versions"]);
    let storage = versions.iter().find(|version| version["storage"] == true).map(|version| version["name"].clone());
    let Some(name) = storage else { return };
    let stored = object::array_mut(object::map_mut(definition, "status"), "storedVersions");
    if !stored.contains(&name) {
        stored.push(name);
    }
}

/// The state of a definition, for telling whether its kinds must be made anew.
pub fn state(definition: &Value) -> Definition {
    Definition {
        name: object::name(definition).to_string(),
        uid: object::uid(definition).to_string(),
        generation: object::integer(definition, &["metadata", "generation"]).unwrap_or_default(),
        terminating: object::is_deleting(definition),
    }
}

/// The kinds of an established definition: one for each version that is served.
pub fn defined(definition: &Value) -> Vec<Kind> {
    let versions = versions(definition);
    let Some(conversion) = Conversion::new(definition, &versions).map(Arc::new) else { return Vec::new() };
    versions.iter().filter(|schema| schema.version.served).map(|schema| kind_of(definition, &conversion, schema)).collect()
}

/// The kind in the storage version, served or not: the objects of a definition that goes are deleted as it says.
pub fn stored(definition: &Value) -> Option<Kind> {
    let versions = versions(definition);
    let conversion = Arc::new(Conversion::new(definition, &versions)?);
    versions.iter().find(|schema| schema.version.storage).map(|schema| kind_of(definition, &conversion, schema))
}

fn versions(definition: &Value) -> Vec<Arc<CustomSchema>> {
    Version::all(definition).into_iter().map(|version| Arc::new(CustomSchema::new(version))).collect()
}

fn kind_of(definition: &Value, conversion: &Arc<Conversion>, schema: &Arc<CustomSchema>) -> Kind {
    let version = &schema.version;
    let group = object::text(definition, &["spec", "group"]);
    let names = |member| object::text(definition, &["status", "acceptedNames", member]);
    let texts = |member| {
        let found = object::list(definition, &["status", "acceptedNames", member]).iter();
        found.filter_map(Value::as_str).map(str::to_string).collect::<Vec<_>>()
    };
    let mut kind = Kind::open(group, &version.name, names("kind"), names("plural")).singular(names("singular"));
    kind.names.list_kind = names("listKind").to_string();
    kind.names.short_names = texts("shortNames");
    kind.names.categories = texts("categories");
    kind.names.namespaced = object::text(definition, &["spec", "scope"]) == "Namespaced";
    kind = kind.custom(Custom {
        definition: state(definition),
        schema: Arc::clone(schema),
        preserves_unknown: definition["spec"]["preserveUnknownFields"] == true,
    });
    kind = kind.versioned(Arc::clone(conversion) as Arc<dyn Versions>);
    let (checks, has_status) = (Arc::clone(schema), version.status);
    kind = kind
        .validate(move |new, old, errors| validate(&checks, new, old, errors))
        .counts_generations_by(move |old, new| content(old, has_status) != content(new, has_status))
        .admit_create(refuse_while_terminating);
    if version.status {
        kind = kind.status();
    }
    if let Some(scale) = &version.scale {
        let members = |path: &str| path.split('.').filter(|part| !part.is_empty()).map(str::to_string).collect();
        kind = kind.scale_at(ScalePaths {
            spec_replicas: members(&scale.spec_replicas),
            status_replicas: members(&scale.status_replicas),
            selector: scale.label_selector.as_deref().map(members).unwrap_or_default(),
        });
    }
    for path in &version.selectable {
        kind = kind.selectable(SelectableField::new(path.trim_start_matches('.')));
    }
    if version.deprecated {
        let default = format!("{group}/{} {} is deprecated", version.name, kind.kind);
        let warning = version.deprecation_warning.clone().unwrap_or(default);
        kind = kind.deprecated(&warning);
    }
    table(kind, Arc::clone(schema))
}

fn validate(schema: &CustomSchema, new: &Field<'_>, old: Option<&Field<'_>>, errors: &mut Errors) {
    let schema = schema.compiled();
    let found = match old {
        None => schema.validate(new.value),
        Some(old) => {
            let judged = schema.validate_update(new.value, old.value);
            judged.warnings.iter().for_each(|warning| errors.warn(warning.to_string()));
            judged.errors
        }
    };
    errors.extend(found);
    crd::warnings::of_object(new.value, old.map(|old| old.value)).into_iter().for_each(|warning| errors.warn(warning));
}

/// What the generation counts: all but metadata, and the status where it is a subresource.
fn content(object: &Value, has_status: bool) -> Vec<(&String, &Value)> {
    let members = object.as_object().into_iter().flatten();
    members.filter(|(name, _)| *name != "metadata" && !(has_status && *name == "status")).collect()
}

fn refuse_while_terminating(attributes: &Attributes<'_>, _: &mut Value) -> Result<(), ApiError> {
    if attributes.kind.custom.as_ref().is_some_and(|custom| custom.definition.terminating) {
        let message = "create not allowed while custom resource definition is terminating";
        return Err(ApiError::new(405, "MethodNotAllowed", message));
    }
    Ok(())
}

/// Name and age, or name and the columns of the definition.
fn table(kind: Kind, schema: Arc<CustomSchema>) -> Kind {
    let version = &schema.version;
    if version.columns.is_empty() {
        return kind.table([NAME, AGE], |object, now| vec![table::name(object), table::age(object, now)]);
    }
    let columns = version.columns.iter().map(|column| Column {
        name: Cow::Owned(column.name.clone()),
        kind: Cow::Owned(column.ty.clone()),
        format: Cow::Owned(column.format.clone()),
        description: Some(column.description.clone()),
        priority: i32::try_from(column.priority).unwrap_or_default(),
    });
    let columns: Vec<Column> = std::iter::once(NAME).chain(columns).collect();
    kind.table(columns, move |object, now| {
        let age = |written: &str| age_of(written, now);
        std::iter::once(table::name(object)).chain(schema.version.columns.iter().map(|column| column.cell(object, &age))).collect()
    })
}

fn age_of(written: &str, now: Timestamp) -> String {
    since(&json!({"at": written}), "/at", now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition() -> Value {
        json!({
            "metadata": {"name": "crontabs.example.com", "uid": "u", "generation": 1},
            "spec": {"group": "example.com", "scope": "Namespaced", "versions": [
                {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}, "subresources": {"status": {}}},
                {"name": "v2", "served": true, "storage": false, "deprecated": true, "schema": {"openAPIV3Schema": {"type": "object"}}},
                {"name": "v3", "served": false, "storage": false, "schema": {"openAPIV3Schema": {"type": "object"}}},
            ]},
            "status": {"acceptedNames": {"plural": "crontabs", "singular": "crontab", "kind": "CronTab", "listKind": "CronTabList"}},
        })
    }

    #[test]
    fn each_served_version_becomes_a_kind() {
        let kinds = defined(&definition());
        let versions: Vec<&str> = kinds.iter().map(|kind| kind.version.as_str()).collect();
        assert_eq!(versions, ["v1", "v2"]);
        assert!(kinds[0].has_status() && !kinds[1].has_status());
        assert_eq!(kinds[1].versions().unwrap().stored(), "example.com/v1");
        assert_eq!(kinds[1].deprecation.as_deref(), Some("example.com/v2 CronTab is deprecated"));
        let mut moved = definition();
        moved["spec"]["versions"][0]["served"] = json!(false);
        assert_eq!((defined(&moved).len(), stored(&moved).unwrap().version.as_str()), (1, "v1"));
    }

    #[test]
    fn the_storage_version_is_remembered() {
        let mut changed = definition();
        changed["status"]["storedVersions"] = json!(["v0"]);
        prepare_update(&Value::Null, &mut changed);
        assert_eq!(changed["status"]["storedVersions"], json!(["v0", "v1"]));
    }
}
