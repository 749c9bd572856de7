//! Validation of values against a schema, with the messages of upstream's kube-openapi, and its ratcheting: an
//! update tolerates what was invalid before and did not change.

use std::borrow::Cow;

use kube_cel::regexes;
use serde_json::{Map, Value};

use crate::correlate;
use crate::field::{Errors, FieldError, child, invalid, key, required, too_long, too_many, type_invalid, unsupported};
use crate::formats;
use crate::schema::{Additional, Schema};

/// The errors of a value. `prefix` is the path of the value; errors within it begin with it.
pub fn validate(prefix: &str, value: &Value, schema: &Schema) -> Errors {
    with_prefix(prefix, check(value, None, schema, "", false))
}

/// The errors of a changed value. What did not change is not judged again.
pub fn validate_update(value: &Value, old: &Value, schema: &Schema) -> Errors {
    check(value, Some(old), schema, "", false)
}

fn with_prefix(prefix: &str, mut errors: Errors) -> Errors {
    if !prefix.is_empty() {
        for error in &mut errors {
            error.field = if error.field.is_empty() { prefix.to_owned() } else { child(prefix, &error.field) };
        }
    }
    errors
}

/// `path in body`, as the messages begin.
fn place(path: &str) -> String {
    format!("{path} in body")
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn wrong_type(path: &str, wanted: &str, found: &str) -> FieldError {
    type_invalid(path, found, format!("{} must be of type {wanted}: {found:?}", place(path)))
}

/// `keep` says that an unchanged value is judged all the same: below junctors, whose whole decides.
fn check(value: &Value, old: Option<&Value>, schema: &Schema, path: &str, keep: bool) -> Errors {
    let mut errors = Errors::new();
    if !schema.int_or_string || !matches!(value, Value::Number(_) | Value::String(_)) {
        type_errors(value, schema, path, &mut errors);
    }
    if value.is_null() {
        enums(value, schema, path, &mut errors);
    } else {
        junctors(value, old, schema, path, &mut errors);
        match value {
            Value::String(text) => strings(text, schema, path, &mut errors),
            Value::Number(_) => numbers(value, schema, path, &mut errors),
            Value::Array(items) => lists(items, old, schema, path, &mut errors),
            _ => {}
        }
        enums(value, schema, path, &mut errors);
        if let Value::Object(map) = value {
            objects(map, old, schema, path, &mut errors);
        }
    }
    if !keep && old == Some(value) {
        errors.clear();
    }
    errors
}

fn type_errors(value: &Value, schema: &Schema, path: &str, errors: &mut Errors) {
    let wanted: Cow<str> = if schema.int_or_string { "integer,string".into() } else { schema.ty.as_str().into() };
    if value.is_null() {
        if !wanted.is_empty() && !schema.nullable {
            errors.push(wrong_type(path, &wanted, "null"));
        }
        return;
    }
    let found = type_of(value);
    let whole = value.as_f64().is_some_and(|number| number.fract() == 0.0);
    let fits = match &*wanted {
        "" => true,
        "integer" => found == "integer" || (found == "number" && whole),
        "number" => matches!(found, "integer" | "number"),
        wanted => wanted == found,
    };
    if !fits {
        errors.push(wrong_type(path, &wanted, found));
    }
}

fn enums(value: &Value, schema: &Schema, path: &str, errors: &mut Errors) {
    if schema.enums.is_empty() || schema.enums.iter().any(|allowed| same(allowed, value)) {
        return;
    }
    if value.is_null() && schema.nullable {
        return;
    }
    let shown = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let allowed: Vec<String> = schema.enums.iter().map(shown).collect();
    let allowed: Vec<&str> = allowed.iter().map(String::as_str).collect();
    errors.push(unsupported(path, value.clone(), &allowed));
}

fn same(a: &Value, b: &Value) -> bool {
    a == b || matches!((a.as_f64(), b.as_f64()), (Some(a), Some(b)) if a == b)
}

fn strings(text: &str, schema: &Schema, path: &str, errors: &mut Errors) {
    let length = text.chars().count() as i64;
    if let Some(most) = schema.max_length.filter(|most| length > *most) {
        errors.push(too_long(path, most.unsigned_abs()));
    }
    if let Some(least) = schema.min_length.filter(|least| length < *least) {
        let detail = format!("{} should be at least {least} chars long", place(path));
        errors.push(invalid(path, text, detail));
    }
    if !schema.pattern.is_empty() && !regexes::compile(&schema.pattern).is_ok_and(|regex| regex.is_match(text)) {
        errors.push(invalid(path, text, format!("{} should match '{}'", place(path), schema.pattern)));
    }
    if !schema.format.is_empty() && matches!(schema.ty.as_str(), "" | "string") && !formats::matches(&schema.format, text) {
        let detail = format!("{} must be of type {}: {text:?}", place(path), schema.format);
        errors.push(type_invalid(path, text, detail));
    }
}

fn numbers(value: &Value, schema: &Schema, path: &str, errors: &mut Errors) {
    let Some(number) = value.as_f64() else { return };
    let mut report = |detail: String| errors.push(invalid(path, value.clone(), format!("{} {detail}", place(path))));
    if let Some(factor) = schema.multiple_of {
        let quotient = number / factor;
        if factor <= 0.0 || (quotient - quotient.round()).abs() > 1e-9 {
            report(format!("should be a multiple of {factor}"));
        }
    }
    if let Some(most) = schema.maximum {
        if schema.exclusive_maximum && number >= most {
            report(format!("should be less than {most}"));
        } else if number > most {
            report(format!("should be less than or equal to {most}"));
        }
    }
    if let Some(least) = schema.minimum {
        if schema.exclusive_minimum && number <= least {
            report(format!("should be greater than {least}"));
        } else if number < least {
            report(format!("should be greater than or equal to {least}"));
        }
    }
}

fn lists(items: &[Value], old: Option<&Value>, schema: &Schema, path: &str, errors: &mut Errors) {
    if let Some(inner) = &schema.items {
        let pairs = correlate::items(items, old, schema);
        for (index, (item, old)) in items.iter().zip(pairs).enumerate() {
            errors.extend(check(item, old, inner, &key(path, index), false));
        }
    }
    let found = items.len() as i64;
    if let Some(least) = schema.min_items.filter(|least| found < *least) {
        errors.push(invalid(path, found, format!("{} should have at least {least} items", place(path))));
    }
    if let Some(most) = schema.max_items.filter(|most| found > *most) {
        errors.push(too_many(path, found.unsigned_abs(), most.unsigned_abs()));
    }
}

fn objects(map: &Map<String, Value>, old: Option<&Value>, schema: &Schema, path: &str, errors: &mut Errors) {
    let found = map.len() as i64;
    if let Some(least) = schema.min_properties.filter(|least| found < *least) {
        errors.push(invalid(path, found, format!("{} should have at least {least} properties", place(path))));
    }
    if let Some(most) = schema.max_properties.filter(|most| found > *most) {
        errors.push(too_many(path, found.unsigned_abs(), most.unsigned_abs()));
    }
    for (name, value) in map {
        let inner = schema.properties.get(name);
        let root_type = path.is_empty() && matches!(name.as_str(), "apiVersion" | "kind");
        let old = old.filter(|_| !root_type).and_then(|old| old.get(name));
        match (inner, &schema.additional) {
            (Some(inner), _) => errors.extend(check(value, old, inner, &child(path, name), false)),
            (None, Some(Additional::Schema(inner))) => {
                errors.extend(check(value, old, inner, &child(path, name), false));
            }
            (None, Some(Additional::Allowed(false))) => {
                let detail = format!("{path}.{name} in body is a forbidden property");
                errors.push(invalid(path, "", detail));
            }
            _ => {}
        }
    }
    for name in schema.required.iter().filter(|name| !map.contains_key(*name)) {
        errors.push(required(child(path, name), ""));
    }
}

/// Upstream gives errors of junctors no field.
fn composite(path: &str, detail: &str) -> FieldError {
    invalid("", "", format!("{path:?} {detail}"))
}

fn junctors(value: &Value, old: Option<&Value>, schema: &Schema, path: &str, errors: &mut Errors) {
    let judge = |schema: &Schema| check(value, old, schema, path, true);
    let best = |failures: Vec<Errors>| failures.into_iter().min_by_key(Vec::len).unwrap_or_default();
    if !schema.any_of.is_empty() {
        let mut failures = Vec::new();
        let fits = schema.any_of.iter().any(|inner| {
            let found = judge(inner);
            let fits = found.is_empty();
            failures.push(found);
            fits
        });
        if !fits {
            errors.push(composite(path, "must validate at least one schema (anyOf)"));
            errors.extend(best(failures));
        }
    }
    if !schema.one_of.is_empty() {
        let (fitting, failures): (Vec<Errors>, Vec<Errors>) = schema.one_of.iter().map(judge).partition(|found| found.is_empty());
        match fitting.len() {
            1 => {}
            0 => {
                errors.push(composite(path, "must validate one and only one schema (oneOf). Found none valid"));
                errors.extend(best(failures));
            }
            count => {
                let detail = "must validate one and only one schema (oneOf). Found";
                errors.push(composite(path, &format!("{detail} {count} valid alternatives")));
            }
        }
    }
    if !schema.all_of.is_empty() {
        let mut valid = 0;
        for inner in &schema.all_of {
            let found = judge(inner);
            valid += usize::from(found.is_empty());
            errors.extend(found);
        }
        if valid != schema.all_of.len() {
            let none = if valid == 0 { ". None validated" } else { "" };
            errors.push(composite(path, &format!("must validate all the schemas (allOf){none}")));
        }
    }
    if let Some(not) = &schema.not
        && judge(not).is_empty()
    {
        errors.push(composite(path, "must not validate the schema (not)"));
    }
}
