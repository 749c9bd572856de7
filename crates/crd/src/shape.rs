//! The shapes that rules see: schemas as CEL types, with upstream's estimates of sizes.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube_cel::Shape;
use kube_cel::shape::{Form, ListKind, MAX_REQUEST, Object, Property, escape};

use crate::schema::Schema;

/// The longest string in a request, without its quotes.
const LONGEST: u64 = MAX_REQUEST - 2;
/// The longest duration or date in JSON.
const DATE_TIME: u64 = 32;
const DATE: u64 = 12;

/// The shape of a schema; none when rules cannot see values of the schema. `name` tells object types apart.
pub fn shape(schema: &Schema, resource: bool, name: &str) -> Option<Shape> {
    if schema.int_or_string {
        let max = schema.max_length.map_or(LONGEST, runes);
        return Some(Shape::new(Form::Dyn, max, 1));
    }
    let with_meta;
    let schema = if resource {
        with_meta = schema.with_object_meta();
        &with_meta
    } else {
        schema
    };
    let found = match schema.ty.as_str() {
        "array" => list(schema, name)?,
        "object" => object(schema, name)?,
        "string" => string(schema),
        "boolean" => Shape::new(Form::Bool, 0, 4),
        "number" => Shape::new(Form::Double, 0, 1),
        "integer" => Shape::new(Form::Int, 0, 1),
        _ => return None,
    };
    Some(found.nullable(schema.nullable))
}

fn positive(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// A length is of characters; each may take four bytes.
fn runes(length: i64) -> u64 {
    positive(length).saturating_mul(4)
}

fn list(schema: &Schema, name: &str) -> Option<Shape> {
    let inner = schema.items.as_deref()?;
    let items = shape(inner, inner.embedded, &format!("{name}.@items"))?;
    let max = schema.max_items.map_or((MAX_REQUEST - 2) / (items.min_bytes + 1), positive);
    let kind = match schema.list_type.as_deref() {
        Some("set") => ListKind::Set,
        Some("map") => ListKind::Map(schema.list_map_keys.iter().map(|key| escape(key).unwrap_or(key.clone())).collect()),
        _ => ListKind::Atomic,
    };
    Some(Shape::new(Form::List(Arc::new(items), kind), max, 2))
}

fn object(schema: &Schema, name: &str) -> Option<Shape> {
    if let Some(inner) = schema.additional_schema() {
        let values = shape(inner, inner.embedded, &format!("{name}.@elem"))?;
        let max = schema.max_properties.map_or((MAX_REQUEST - 2) / (values.min_bytes + 6), positive);
        return Some(Shape::new(Form::Map(Arc::new(values)), max, 2));
    }
    let mut fields = BTreeMap::new();
    let mut min_bytes = 2;
    for (property, inner) in &schema.properties {
        let Some(found) = shape(inner, inner.embedded, &format!("{name}.{property}")) else { continue };
        if schema.required.contains(property) && inner.default.is_none() {
            min_bytes += property.len() as u64 + found.min_bytes + 4;
        }
        if let Some(escaped) = escape(property) {
            fields.insert(escaped, Property { name: property.clone(), shape: Arc::new(found) });
        }
    }
    let object = Object { name: name.to_owned(), fields };
    Some(Shape::new(Form::Object(Arc::new(object)), 0, min_bytes))
}

fn string(schema: &Schema) -> Shape {
    match schema.format.as_str() {
        "byte" => Shape::new(Form::Bytes, schema.max_length.map_or(LONGEST, positive), 2),
        "duration" => Shape::new(Form::Duration, DATE_TIME, 3),
        "date" => Shape::new(Form::Date, DATE, DATE),
        "date-time" => Shape::new(Form::Timestamp, DATE_TIME, 21),
        _ => {
            let longest_enum = schema.enums.iter().filter_map(|value| Some(value.as_str()?.len() as u64)).max();
            let max = match (schema.max_length, schema.enums.is_empty()) {
                (Some(length), _) => runes(length),
                (None, false) => longest_enum.unwrap_or(0),
                (None, true) => LONGEST,
            };
            Shape::new(Form::String, max, 2)
        }
    }
}
