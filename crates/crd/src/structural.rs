//! What makes a schema structural (upstream: pkg/apiserver/schema/validation.go and complete.go).

use kube_cel::regexes;
use serde_json::json;

use crate::field::{Errors, child, forbidden, invalid, key, required};
use crate::schema::{Additional, Schema};

#[derive(Clone, Copy, PartialEq)]
enum Level {
    Root,
    Item,
    Field,
}

/// The errors that keep a schema from being structural, sorted as upstream sorts them.
pub fn check(path: &str, schema: &Schema) -> Errors {
    let mut errors = Errors::new();
    invariants(schema, Level::Root, path, &mut errors);
    junctors_complete(schema, schema, path, path, &mut errors);
    errors.sort_by_key(ToString::to_string);
    errors
}

fn invariants(schema: &Schema, level: Level, path: &str, errors: &mut Errors) {
    if schema.ty == "array" && schema.items.is_none() {
        errors.push(required(child(path, "items"), "must be specified"));
    }
    if let Some(items) = &schema.items {
        invariants(items, Level::Item, &child(path, "items"), errors);
    }
    let property = |name: &str| key(&child(path, "properties"), name);
    for (name, schema) in &schema.properties {
        invariants(schema, Level::Field, &property(name), errors);
    }
    let additional = child(path, "additionalProperties");
    if schema.additional.is_some() && level == Level::Root {
        errors.push(forbidden(&additional, "must not be used at the root"));
    }
    if let Some(Additional::Schema(schema)) = &schema.additional {
        invariants(schema, Level::Field, &additional, errors);
    }
    extensions(schema, path, errors);
    let skip_any = is_int_or_string(&schema.any_of);
    let skip_all = schema.all_of.first().is_some_and(|first| is_int_or_string(&first.any_of));
    values(schema, skip_any, skip_all, path, errors);
    types(schema, level, path, errors);
    let at_root = level == Level::Root || schema.embedded;
    for name in ["kind", "apiVersion"] {
        if let Some(found) = schema.properties.get(name).filter(|found| at_root && found.ty != "string") {
            errors.push(invalid(child(&property(name), "type"), found.ty.as_str(), "must be string"));
        }
    }
    if let Some(metadata) = schema.properties.get("metadata") {
        if at_root && metadata.ty != "object" {
            errors.push(invalid(child(&property("metadata"), "type"), metadata.ty.as_str(), "must be object"));
        }
        if level == Level::Root && !names_only(metadata) {
            let detail = "must not specify anything other than name and generateName, but metadata is implicitly specified";
            errors.push(forbidden(property("metadata"), detail));
        }
    }
    if schema.embedded && !schema.preserves() && schema.properties.is_empty() {
        let detail = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        errors.push(required(child(path, "properties"), detail));
    }
}

fn types(schema: &Schema, level: Level, path: &str, errors: &mut Errors) {
    let ty = child(path, "type");
    let embedded = "must be object if x-kubernetes-embedded-resource is true";
    if schema.embedded && schema.ty != "object" {
        errors.push(if schema.ty.is_empty() { required(&ty, embedded) } else { invalid(&ty, schema.ty.as_str(), embedded) });
    } else if schema.ty.is_empty() && !schema.int_or_string && !schema.preserves() {
        errors.push(required(
            &ty,
            match level {
                Level::Root => "must not be empty at the root",
                Level::Item => "must not be empty for specified array items",
                Level::Field => "must not be empty for specified object fields",
            },
        ));
    }
    if schema.embedded && schema.additional.is_some() {
        let detail = "must not be used if x-kubernetes-embedded-resource is set";
        errors.push(forbidden(child(path, "additionalProperties"), detail));
    }
    if level == Level::Root && !schema.ty.is_empty() && schema.ty != "object" {
        errors.push(invalid(ty, schema.ty.as_str(), "must be object at the root"));
    }
}

fn extensions(schema: &Schema, path: &str, errors: &mut Errors) {
    let detail = "must be false if x-kubernetes-int-or-string is true";
    if schema.int_or_string && schema.preserves() {
        errors.push(invalid(child(path, "x-kubernetes-preserve-unknown-fields"), true, detail));
    }
    if schema.int_or_string && schema.embedded {
        errors.push(invalid(child(path, "x-kubernetes-embedded-resource"), true, detail));
    }
}

/// Only the names may be restricted, and a default is judged elsewhere.
fn names_only(metadata: &Schema) -> bool {
    let mut rest = metadata.clone();
    if rest.properties.keys().all(|name| name == "name" || name == "generateName") {
        rest.properties.clear();
    }
    rest.ty.clear();
    rest.default = None;
    rest.is_empty()
}

/// `anyOf: [{type: integer}, {type: string}]`.
fn is_int_or_string(any_of: &[Schema]) -> bool {
    let only = |ty: &str| Schema { ty: ty.into(), ..Schema::default() };
    any_of.len() == 2 && any_of[0] == only("integer") && any_of[1] == only("string")
}

fn values(schema: &Schema, skip_any: bool, skip_first_all: bool, path: &str, errors: &mut Errors) {
    let junctors: [(&str, &[Schema]); 3] = [("anyOf", &schema.any_of), ("allOf", &schema.all_of), ("oneOf", &schema.one_of)];
    for (name, schemas) in junctors {
        if name == "anyOf" && skip_any {
            continue;
        }
        for (index, inner) in schemas.iter().enumerate() {
            let skip = name == "allOf" && skip_first_all && index == 0;
            nested(inner, skip, &key(&child(path, name), index), errors);
        }
    }
    if let Some(not) = &schema.not {
        nested(not, false, &child(path, "not"), errors);
    }
    if !schema.pattern.is_empty()
        && let Err(reason) = regexes::compile(&schema.pattern)
    {
        let detail = format!("must be a valid regular expression, but isn't: {reason}");
        errors.push(invalid(child(path, "pattern"), schema.pattern.as_str(), detail));
    }
}

/// A schema below a junctor may validate, but not declare.
fn nested(schema: &Schema, skip_any: bool, path: &str, errors: &mut Errors) {
    values(schema, skip_any, false, path, errors);
    if let Some(items) = &schema.items {
        nested(items, false, &child(path, "items"), errors);
    }
    for (name, property) in &schema.properties {
        nested(property, false, &key(&child(path, "properties"), name), errors);
    }
    let (empty, undefined, falsehood) = ("must be empty to be structural", "must be undefined to be structural", "must be false to be structural");
    let refusals = [
        (!schema.ty.is_empty(), "type", empty),
        (schema.additional.is_some(), "additionalProperties", undefined),
        (schema.default.is_some(), "default", undefined),
        (!schema.title.is_empty(), "title", empty),
        (!schema.description.is_empty(), "description", empty),
        (schema.nullable, "nullable", falsehood),
        (schema.preserves(), "x-kubernetes-preserve-unknown-fields", falsehood),
        (schema.embedded, "x-kubernetes-embedded-resource", falsehood),
        (schema.int_or_string, "x-kubernetes-int-or-string", falsehood),
        (!schema.list_map_keys.is_empty(), "x-kubernetes-list-map-keys", empty),
        (schema.list_type.is_some(), "x-kubernetes-list-type", undefined),
        (schema.map_type.is_some(), "x-kubernetes-map-type", undefined),
        (!schema.rules.is_empty(), "x-kubernetes-validations", empty),
    ];
    for (_, name, detail) in refusals.into_iter().filter(|(found, ..)| *found) {
        errors.push(forbidden(child(path, name), detail));
    }
    if schema.properties.contains_key("metadata") {
        let path = key(&child(path, "properties"), "metadata");
        errors.push(forbidden(path, "must not be specified in a nested context"));
    }
}

/// Everything that junctors validate must be declared outside of them.
fn junctors_complete(validation: &Schema, schema: &Schema, at: &str, from: &str, errors: &mut Errors) {
    if let Some(not) = &validation.not {
        complete(not, Some(schema), at, &child(from, "not"), errors);
    }
    let junctors = [("allOf", &validation.all_of), ("anyOf", &validation.any_of), ("oneOf", &validation.one_of)];
    for (name, schemas) in junctors {
        for (index, inner) in schemas.iter().enumerate() {
            complete(inner, Some(schema), at, &key(&child(from, name), index), errors);
        }
    }
}

fn complete(validation: &Schema, schema: Option<&Schema>, at: &str, from: &str, errors: &mut Errors) {
    let Some(schema) = schema else {
        errors.push(required(at, format!("because it is defined in {from}")));
        return;
    };
    junctors_complete(validation, schema, at, from, errors);
    if let Some(items) = &validation.items {
        complete(items, schema.items.as_deref(), &child(at, "items"), &child(from, "items"), errors);
    }
    for (name, property) in &validation.properties {
        let path = |path: &str| key(&child(path, "properties"), name);
        complete(property, schema.properties.get(name), &path(at), &path(from), errors);
    }
}

/// The value of `x-kubernetes-list-map-keys` in messages.
pub(crate) fn printed_keys(schema: &Schema) -> serde_json::Value {
    json!(schema.list_map_keys)
}
