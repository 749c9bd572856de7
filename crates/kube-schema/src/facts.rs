//! Builds a schema from the table of facts about upstream's Go types.
//!
//! A line without indent names a type, with the flag `map:atomic` when it is replaced as a whole. An indented line is one of its fields:
//! `FIELD GOTYPE SHAPE FLAG…`. A shape is `[]SHAPE`, `{}SHAPE` (a map), `@TYPE` or a leaf. Flags: `ptr`, `omitempty`, `omitzero`,
//! `list:TYPE[,KEY…]`, `map:atomic`, `patch:STRATEGY[,STRATEGY]`, `key:MERGEKEY`. Lines that start with `#` are comments.

use crate::schema::{Builder, Field, ListMerge, Node, Object, Patch, Scalar, Schema, SchemaError, TypeRef};
use serde_json::{Value, json};

/// Shapes have a few levels at most.
const DEEPEST_SHAPE: usize = 8;

/// A default of a field, which the table does not have: the type, the field, and the value.
pub type Default<'a> = (&'a str, &'a str, Value);

/// The schema of all types of the table. `defaults` are values of key members that items may leave out.
pub fn schema(text: &str, defaults: &[Default<'_>]) -> Result<Schema, SchemaError> {
    let mut builder = Builder::default();
    let mut current: Option<(&str, bool, Vec<Field>)> = None;
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        match line.strip_prefix(' ') {
            Some(rest) => match &mut current {
                Some((name, _, fields)) => fields.push(field(&mut builder, name, rest, defaults)?),
                None => return Err(invalid(line, "a field before the first type")),
            },
            None => {
                let (name, flags) = line.split_once(' ').unwrap_or((line, ""));
                define(&mut builder, current.replace((name, flags == "map:atomic", Vec::new())));
            }
        }
    }
    define(&mut builder, current);
    builder.finish()
}

fn invalid(at: &str, reason: &str) -> SchemaError {
    SchemaError::Invalid { at: at.to_string(), reason: reason.to_string() }
}

fn define(builder: &mut Builder, done: Option<(&str, bool, Vec<Field>)>) {
    if let Some((name, atomic, fields)) = done {
        builder.define(name, Node::object(Object { atomic, ..Object::of(fields) }));
    }
}

fn field(builder: &mut Builder, holder: &str, line: &str, defaults: &[Default<'_>]) -> Result<Field, SchemaError> {
    let mut parts = line.splitn(4, ' ');
    let (Some(name), Some(_), Some(shape)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(invalid(line, "a field has a name, a Go type and a shape"));
    };
    let flags = Flags(parts.next().unwrap_or_default());
    let value = shape_type(builder, line, shape, flags, 0)?;
    let zero = zero(shape, flags);
    let own = defaults.iter().find(|(of, field, _)| *of == holder && *field == name).map(|(.., value)| value.clone());
    let default = own.or_else(|| zero.clone().filter(|value| value.is_string() || value.is_number() || value.is_boolean()));
    let strategy = flags.get("patch:").and_then(|all| all.split(',').find(|strategy| *strategy != "retainKeys"));
    let patch = Patch { strategy: strategy.map(Box::from), key: flags.get("key:").map(Box::from) };
    Ok(Field { default, zero, patch, ..Field::new(name, value) })
}

#[derive(Clone, Copy)]
struct Flags<'a>(&'a str);

impl<'a> Flags<'a> {
    fn get(self, prefix: &str) -> Option<&'a str> {
        self.0.split(' ').find_map(|flag| flag.strip_prefix(prefix))
    }

    fn has(self, flag: &str) -> bool {
        self.0.split(' ').any(|found| found == flag)
    }

    /// How the list merges: by its type, or as its patch strategy says.
    fn list_merge(self, line: &str) -> Result<ListMerge, SchemaError> {
        if let Some(list) = self.get("list:") {
            let mut parts = list.split(',');
            return match (parts.next().unwrap_or_default(), parts.map(Box::from).collect::<Box<[Box<str>]>>()) {
                ("atomic", _) => Ok(ListMerge::Atomic),
                ("set", _) => Ok(ListMerge::Set),
                ("map", keys) if !keys.is_empty() => Ok(ListMerge::Map(keys)),
                _ => Err(invalid(line, "a list is atomic, set, or map with keys")),
            };
        }
        Ok(match (self.get("patch:"), self.get("key:")) {
            (Some("merge" | "merge,retainKeys"), Some(key)) => ListMerge::Map([key.into()].into()),
            (Some("merge" | "merge,retainKeys"), None) => ListMerge::Set,
            _ => ListMerge::Atomic,
        })
    }
}

fn shape_type(builder: &mut Builder, line: &str, shape: &str, flags: Flags<'_>, depth: usize) -> Result<TypeRef, SchemaError> {
    if depth > DEEPEST_SHAPE {
        return Err(invalid(line, "the shape has too many levels"));
    }
    // Flags are those of the field: what is inside its list or map has none.
    let inside = Flags("");
    let atomic = flags.has("map:atomic");
    if let Some(inner) = shape.strip_prefix("[]") {
        let items = shape_type(builder, line, inner, inside, depth + 1)?;
        let merge = flags.list_merge(line)?;
        return Ok(builder.add(Node::list(items, merge)));
    }
    if let Some(inner) = shape.strip_prefix("{}") {
        let values = shape_type(builder, line, inner, inside, depth + 1)?;
        return Ok(builder.add(Node::object(Object { atomic, ..Object::map(values) })));
    }
    if let Some(name) = shape.strip_prefix('@') {
        let found = builder.declare(name);
        return Ok(if atomic { found.with_atomic(true) } else { found });
    }
    Ok(match shape {
        "string" | "bytes" => builder.scalar(Scalar::String),
        "bool" => builder.scalar(Scalar::Boolean),
        "int" | "int32" | "int64" | "float64" => builder.scalar(Scalar::Numeric),
        "time" | "microtime" | "quantity" | "intorstring" => builder.scalar(Scalar::Untyped),
        "extension" => Schema::UNTYPED,
        "raw" | "json" | "schemaorbool" | "schemaorarray" | "schemaorstrings" => Schema::DEDUCED,
        _ => return Err(invalid(line, "unknown leaf")),
    })
}

/// What Go holds when JSON has nothing, for fields that are always there.
fn zero(shape: &str, flags: Flags<'_>) -> Option<Value> {
    if flags.has("ptr") || flags.has("omitzero") {
        return None;
    }
    let by_value = match shape {
        "time" | "microtime" => Some(Value::Null),
        "quantity" => Some("0".into()),
        "intorstring" => Some(0.into()),
        _ => shape.starts_with('@').then(|| json!({})),
    };
    if by_value.is_some() || flags.has("omitempty") {
        return by_value;
    }
    match shape {
        "string" => Some("".into()),
        "bool" => Some(false.into()),
        "int" | "int32" | "int64" | "float64" => Some(0.into()),
        "extension" | "raw" | "json" | "schemaorbool" | "schemaorarray" | "schemaorstrings" => None,
        _ => Some(Value::Null),
    }
}
