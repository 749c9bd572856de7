//! Checks of a definition's schema (upstream: ValidateCustomResourceDefinitionOpenAPISchema), with its rules and their
//! estimated costs.

use crate::default;
use crate::field::{Errors, child, forbidden, invalid, key, required, unsupported};
use crate::path;
use crate::prune;
use crate::rules::{self, Rules};
use crate::schema::{Additional, Refused, Rule, Schema};
use crate::structural;
use crate::values;

/// The greatest estimated cost of one rule.
const RULE_LIMIT: u64 = 10_000_000;
/// The greatest estimated cost of all rules of a schema.
const SCHEMA_LIMIT: u64 = 100_000_000;

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
const REASONS: [&str; 4] = ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

struct Check {
    schema_errors: Errors,
    rule_errors: Errors,
    /// Costs of rules with their paths; none where rules cannot be judged.
    costs: Option<Vec<(String, u64)>>,
    /// The schema did not change, so its rules may cost what they cost.
    unchanged: bool,
}

/// What holds for a node because of what is above it.
#[derive(Clone, Copy)]
struct Above<'a> {
    root: bool,
    /// Why defaults are forbidden.
    no_defaults: Option<&'a str>,
    inside_meta: bool,
    /// Where old and new values stop belonging together.
    uncorrelated: Option<&'a str>,
    /// How often the value can occur; none when that has no bound.
    cardinality: Option<u64>,
    /// Rules are compiled only outside of junctors.
    rules: bool,
}

/// The errors of `openAPIV3Schema`.
pub fn validate(at: &str, schema: &Schema, unchanged: bool) -> Errors {
    let mut errors = Errors::new();
    let structural = structural::check(at, schema);
    let mut rules = false;
    if structural.is_empty() {
        let defaults = defaults(at, schema);
        rules = defaults.is_empty();
        errors.extend(defaults);
    } else {
        errors.extend(structural);
    }
    let costs = rules.then(Vec::new);
    let mut check = Check { schema_errors: Errors::new(), rule_errors: Errors::new(), costs, unchanged };
    let above = Above { root: true, no_defaults: None, inside_meta: false, uncorrelated: None, cardinality: Some(1), rules };
    check.node(at, schema, above);
    errors.extend(check.schema_errors);
    errors.extend(check.rule_errors);
    let costs = check.costs.unwrap_or_default();
    let total = costs.iter().fold(0_u64, |sum, (_, cost)| sum.saturating_add(*cost));
    if total > SCHEMA_LIMIT {
        let mut expensive = costs;
        expensive.sort_by_key(|(_, cost)| std::cmp::Reverse(*cost));
        for (path, _) in expensive.into_iter().take(4) {
            let detail = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
            errors.push(forbidden(path, detail));
        }
        let name = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        errors.push(forbidden(at, exceeds(name, total, SCHEMA_LIMIT)));
    }
    errors
}

fn exceeds(name: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{name} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and \
         maxLength where arrays, maps, and strings are declared)"
    )
}

/// Defaults must be valid and pruned.
fn defaults(at: &str, schema: &Schema) -> Errors {
    let mut errors = Errors::new();
    defaults_within(at, schema, false, true, &mut errors);
    errors
}

fn defaults_within(at: &str, schema: &Schema, inside_meta: bool, root: bool, errors: &mut Errors) {
    let inside_meta = inside_meta && !schema.embedded;
    if let Some(value) = &schema.default {
        let place = child(at, "default");
        let mut pruned = value.clone();
        if !inside_meta && !prune::prune(&mut pruned, schema, schema.embedded).is_empty() {
            errors.push(invalid(&place, value.clone(), "must not have unknown fields"));
        }
        let mut found = values::validate(&place, value, schema);
        if found.is_empty()
            && let Some(rules) = Rules::new(schema, root)
        {
            found = rules.validate(&place, value, Some(value)).errors;
            if found.is_empty() {
                found = rules.validate(&place, value, None).errors;
            }
        }
        errors.extend(found);
    }
    if let Some(items) = &schema.items {
        defaults_within(&child(at, "items"), items, inside_meta, false, errors);
    }
    for (name, property) in &schema.properties {
        let meta = (schema.embedded || root) && matches!(name.as_str(), "metadata" | "apiVersion" | "kind");
        defaults_within(&key(&child(at, "properties"), name), property, inside_meta || meta, false, errors);
    }
}

impl Check {
    fn node(&mut self, at: &str, schema: &Schema, above: Above) {
        let before = self.schema_errors.len();
        self.standard(at, schema, above);
        if schema.unique_items {
            let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
            self.schema_errors.push(forbidden(child(at, "uniqueItems"), detail));
        }
        self.additional(at, schema, above);
        self.properties(at, schema, above);
        self.junctors(at, schema, above);
        if let Some(items) = &schema.items {
            let correlated = schema.list_type.as_deref() == Some("map");
            let cardinality = multiplied(above.cardinality, schema.max_items);
            let uncorrelated = above.uncorrelated.or((!correlated).then_some(at));
            let below = Above { root: false, uncorrelated, cardinality, ..above };
            self.node(&child(at, "items"), items, below);
        }
        self.extensions(at, schema);
        self.lists(at, schema);
        self.rule_texts(at, schema);
        if self.schema_errors.len() == before && above.rules && !schema.rules.is_empty() {
            self.rules(at, schema, above);
        }
    }

    fn standard(&mut self, at: &str, schema: &Schema, above: Above) {
        let errors = &mut self.schema_errors;
        if !schema.ty.is_empty() && !TYPES.contains(&schema.ty.as_str()) {
            errors.push(unsupported(child(at, "type"), schema.ty.as_str(), &TYPES));
        }
        if let (Some(_), Some(reason)) = (&schema.default, above.no_defaults) {
            errors.push(forbidden(child(at, "default"), format!("must not be set {reason}")));
        }
        for refused in &schema.refused {
            let name = match refused {
                Refused::Id => "id",
                Refused::AdditionalItems => "additionalItems",
                Refused::PatternProperties => "patternProperties",
                Refused::Definitions => "definitions",
                Refused::Dependencies => "dependencies",
                Refused::Reference => "$ref",
                Refused::ItemsArray => {
                    errors.push(forbidden(child(at, "items"), "items must be a schema object and not an array"));
                    continue;
                }
            };
            errors.push(forbidden(child(at, name), format!("{name} is not supported")));
        }
        if schema.ty == "null" {
            let detail = "type cannot be set to null, use nullable as an alternative";
            errors.push(forbidden(child(at, "type"), detail));
        }
        if above.inside_meta && schema.embedded {
            let path = child(at, "x-kubernetes-embedded-resource");
            errors.push(forbidden(path, "must not be used inside of resource meta"));
        }
    }

    fn additional(&mut self, at: &str, schema: &Schema, above: Above) {
        let Some(additional) = &schema.additional else { return };
        let place = child(at, "additionalProperties");
        if !schema.properties.is_empty() && *additional != Additional::Allowed(true) {
            let detail = "additionalProperties and properties are mutual exclusive";
            self.schema_errors.push(forbidden(&place, detail));
        }
        if let Additional::Schema(inner) = additional {
            let reason = "inside additionalProperties applying to object metadata";
            let no_defaults = if above.inside_meta { Some(reason) } else { above.no_defaults };
            let cardinality = multiplied(above.cardinality, schema.max_properties);
            self.node(&place, inner, Above { root: false, no_defaults, cardinality, ..above });
        }
    }

    fn properties(&mut self, at: &str, schema: &Schema, above: Above) {
        for (name, property) in &schema.properties {
            let meta = (above.root || schema.embedded) && matches!(name.as_str(), "metadata" | "kind" | "apiVersion");
            let reason = format!("in top-level {name}");
            let no_defaults = if above.root && meta { Some(reason.as_str()) } else { above.no_defaults };
            let inside_meta = above.inside_meta || meta;
            let below = Above { root: false, no_defaults, inside_meta, ..above };
            self.node(&key(&child(at, "properties"), name), property, below);
        }
    }

    fn junctors(&mut self, at: &str, schema: &Schema, above: Above) {
        let below = Above { root: false, rules: false, ..above };
        if let Some(not) = &schema.not {
            self.node(&child(at, "not"), not, below);
        }
        let junctors = [("allOf", &schema.all_of), ("oneOf", &schema.one_of), ("anyOf", &schema.any_of)];
        for (name, schemas) in junctors {
            for (index, inner) in schemas.iter().enumerate() {
                self.node(&key(&child(at, name), index), inner, below);
            }
        }
    }

    fn extensions(&mut self, at: &str, schema: &Schema) {
        let errors = &mut self.schema_errors;
        if schema.preserve_unknown == Some(false) {
            let path = child(at, "x-kubernetes-preserve-unknown-fields");
            errors.push(invalid(path, false, "must be true or undefined"));
        }
        let mut wrong_type = |wanted: &str, member: &str| {
            let detail = format!("must be {wanted} if {member} is specified");
            errors.push(if schema.ty.is_empty() {
                required(child(at, "type"), detail)
            } else {
                invalid(child(at, "type"), schema.ty.as_str(), detail)
            });
        };
        if let Some(map_type) = &schema.map_type {
            if schema.ty != "object" {
                wrong_type("object", "x-kubernetes-map-type");
            }
            if !matches!(map_type.as_str(), "atomic" | "granular") {
                let path = child(at, "x-kubernetes-map-type");
                self.schema_errors.push(unsupported(path, map_type.as_str(), &["atomic", "granular"]));
            }
        }
    }

    fn lists(&mut self, at: &str, schema: &Schema) {
        let list_type = child(at, "x-kubernetes-list-type");
        let errors = &mut self.schema_errors;
        if let Some(kind) = schema.list_type.as_deref() {
            if schema.ty != "array" {
                let detail = "must be array if x-kubernetes-list-type is specified";
                errors.push(if schema.ty.is_empty() {
                    required(child(at, "type"), detail)
                } else {
                    invalid(child(at, "type"), schema.ty.as_str(), detail)
                });
            } else if let (true, Some(items)) = (kind == "set", &schema.items) {
                let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
                let place = child(at, "items");
                let inner = items.list_type.clone().map_or(serde_json::Value::Null, Into::into);
                let list = items.list_type.as_deref().is_some_and(|kind| kind != "atomic");
                if items.ty == "array" && list {
                    errors.push(invalid(child(&place, "x-kubernetes-list-type"), inner, detail));
                } else if items.ty == "object" && items.map_type.as_deref() != Some("atomic") {
                    errors.push(invalid(child(&place, "x-kubernetes-map-type"), inner, detail));
                }
            }
            if !matches!(kind, "atomic" | "set" | "map") {
                errors.push(unsupported(&list_type, kind, &["atomic", "set", "map"]));
            }
        }
        if !schema.list_map_keys.is_empty() {
            let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
            match schema.list_type.as_deref() {
                None => errors.push(required(&list_type, detail)),
                Some("map") => {}
                Some(other) => errors.push(invalid(&list_type, other, detail)),
            }
        }
        if schema.list_type.as_deref() == Some("map") {
            keys(at, schema, errors);
        }
        nullable_items(at, schema, errors);
    }

    fn rule_texts(&mut self, at: &str, schema: &Schema) {
        for (index, rule) in schema.rules.iter().enumerate() {
            let place = key(&child(at, "x-kubernetes-validations"), index);
            rule_text(&place, rule, schema, &mut self.schema_errors);
        }
    }

    fn rules(&mut self, at: &str, schema: &Schema, above: Above) {
        let Some((_, compiled)) = rules::compile(schema, above.root || schema.embedded) else {
            let detail = "internal error: failed to retrieve type information for x-kubernetes-validations";
            self.rule_errors.push(invalid(child(at, "x-kubernetes-validations"), "", detail));
            return;
        };
        let errors = &mut self.rule_errors;
        for (index, (compiled, rule)) in compiled.iter().zip(&schema.rules).enumerate() {
            let place = key(&child(at, "x-kubernetes-validations"), index);
            let rule_at = child(&place, "rule");
            let cost = compiled.cost.saturating_mul(above.cardinality.unwrap_or(compiled.cardinality));
            if !self.unchanged && cost > RULE_LIMIT {
                errors.push(forbidden(&rule_at, exceeds("estimated rule cost", cost, RULE_LIMIT)));
            }
            let mut observe = |path: String, cost: u64| {
                if let Some(costs) = &mut self.costs {
                    costs.push((path, cost));
                }
            };
            observe(rule_at.clone(), cost);
            if let Err(reason) = &compiled.program {
                errors.push(invalid(&rule_at, rule.printed(), reason.clone()));
            }
            let message_at = child(&place, "messageExpression");
            match &compiled.message {
                Some(Err(reason)) => errors.push(invalid(message_at, rule.printed(), reason.clone())),
                Some(Ok(_)) => {
                    let cost = compiled.message_cost;
                    if !self.unchanged && cost > RULE_LIMIT {
                        let detail = exceeds("estimated messageExpression cost", cost, RULE_LIMIT);
                        errors.push(forbidden(&message_at, detail));
                    }
                    observe(message_at, cost);
                }
                None => {}
            }
            if compiled.uses_old_self {
                if let Some(path) = above.uncorrelated {
                    let detail = format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {path}");
                    errors.push(invalid(&rule_at, rule.rule.as_str(), detail));
                }
            } else if let Some(optional) = rule.optional_old_self {
                let detail = "may not be set if oldSelf is not used in rule";
                errors.push(invalid(child(&place, "optionalOldSelf"), optional, detail));
            }
        }
    }
}

fn multiplied(cardinality: Option<u64>, most: Option<i64>) -> Option<u64> {
    let most = u64::try_from(most?).unwrap_or(0);
    Some(cardinality?.saturating_mul(most))
}

/// The keys of a list with `x-kubernetes-list-type: map`.
fn keys(at: &str, schema: &Schema, errors: &mut Errors) {
    let place = child(at, "x-kubernetes-list-map-keys");
    if schema.list_map_keys.is_empty() {
        errors.push(required(&place, "must not be empty if x-kubernetes-list-type is map"));
    }
    let Some(items) = &schema.items else {
        errors.push(required(child(at, "items"), "must have a schema if x-kubernetes-list-type is map"));
        return;
    };
    let items_at = child(at, "items");
    if items.ty != "object" {
        let detail = "must be object if parent array's x-kubernetes-list-type is map";
        errors.push(invalid(child(&items_at, "type"), items.ty.as_str(), detail));
        return;
    }
    for (index, name) in schema.list_map_keys.iter().enumerate() {
        match items.properties.get(name) {
            Some(property) if matches!(property.ty.as_str(), "array" | "object") => {
                let path = child(&key(&child(&items_at, "properties"), name), "type");
                let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                errors.push(invalid(path, items.ty.as_str(), detail));
            }
            Some(_) => {}
            None => {
                let detail = "entries must all be names of item properties";
                errors.push(invalid(&place, structural::printed_keys(schema), detail));
            }
        }
        if schema.list_map_keys[..index].contains(name) {
            errors.push(invalid(&place, structural::printed_keys(schema), "must not contain duplicate entries"));
        }
    }
}

fn nullable_items(at: &str, schema: &Schema, errors: &mut Errors) {
    let Some(kind) = schema.list_type.as_deref().filter(|kind| matches!(*kind, "set" | "map")) else { return };
    let Some(items) = &schema.items else { return };
    let items_at = child(at, "items");
    if items.nullable {
        let detail = format!("cannot be nullable when x-kubernetes-list-type is {kind}");
        errors.push(forbidden(child(&items_at, "nullable"), detail));
    }
    if kind != "map" {
        return;
    }
    for name in &schema.list_map_keys {
        let Some(property) = items.properties.get(name) else { continue };
        let place = key(&child(&items_at, "properties"), name);
        if !items.required.contains(name) && property.default.is_none() {
            let detail = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            errors.push(required(child(&place, "default"), detail));
        }
        if property.nullable {
            let detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            errors.push(forbidden(child(&place, "nullable"), detail));
        }
    }
}

fn rule_text(place: &str, rule: &Rule, schema: &Schema, errors: &mut Errors) {
    let breaks = |text: &str| text.contains(['\n', '\r']);
    let message = rule.message.trim();
    if rule.rule.trim().is_empty() {
        errors.push(required(child(place, "rule"), "rule is not specified"));
    } else if !rule.message.is_empty() && message.is_empty() {
        errors.push(invalid(child(place, "message"), rule.message.as_str(), "must be non-empty if specified"));
    } else if breaks(message) {
        errors.push(invalid(child(place, "message"), rule.message.as_str(), "must not contain line breaks"));
    } else if breaks(rule.rule.trim()) && message.is_empty() {
        errors.push(required(child(place, "message"), "message must be specified if rule contains line breaks"));
    }
    if !rule.message_expression.is_empty() && rule.message_expression.trim().is_empty() {
        let detail = "messageExpression must be non-empty if specified";
        errors.push(required(child(place, "messageExpression"), detail));
    }
    if let Some(reason) = rule.reason.as_deref().filter(|reason| !REASONS.contains(reason)) {
        errors.push(unsupported(child(place, "reason"), reason, &REASONS));
    }
    if rule.field_path.is_empty() {
        return;
    }
    let mut report = |detail: &str| errors.push(invalid(child(place, "fieldPath"), rule.field_path.as_str(), detail));
    if rule.field_path.trim().is_empty() {
        report("must be non-empty if specified");
    }
    if breaks(&rule.field_path) {
        report("must not contain line breaks");
    }
    if path::in_schema(&rule.field_path, schema, true).is_err() {
        report("must be a valid path");
    }
}

/// Sets defaults and removes nulls that have no place: what happens to each object that is read or written.
pub fn apply_defaults(object: &mut serde_json::Value, schema: &Schema) {
    default::prune_nulls(object, schema);
    default::set(object, schema);
}
