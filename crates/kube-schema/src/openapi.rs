//! Builds a schema from a structural OpenAPI v3 schema, as custom resource definitions have it (kube-openapi pkg/schemaconv).

use crate::DEEPEST;
use crate::schema::{Builder, Field, ListMerge, Node, Object, Scalar, Schema, SchemaError, Type, TypeRef};
use serde_json::Value;

/// The name of the type that [`schema`] makes.
pub const ROOT: &str = "root";

/// The schema of a kind whose objects `openapi` describes. `object_meta` is the type of `metadata`; `preserve_unknown` keeps members that
/// the schema does not name, as a definition with `preserveUnknownFields: true` does.
pub fn schema(openapi: &Value, object_meta: Type<'_>, preserve_unknown: bool) -> Result<Schema, SchemaError> {
    let mut builder = Builder::default();
    let meta = builder.import(object_meta);
    let mut walk = Walk { builder, meta, path: String::new() };
    let mut node = walk.node(openapi, preserve_unknown, 0)?;
    let object = node.object.take().unwrap_or_default();
    node.object = Some(walk.with_meta(object));
    walk.builder.define(ROOT, node);
    walk.builder.finish()
}

struct Walk {
    builder: Builder,
    meta: TypeRef,
    path: String,
}

impl Walk {
    fn invalid(&self, reason: impl Into<String>) -> SchemaError {
        let at = if self.path.is_empty() { "the root".to_string() } else { self.path.clone() };
        SchemaError::Invalid { at, reason: reason.into() }
    }

    /// What every object of the API has.
    fn with_meta(&self, object: Object) -> Object {
        let text = self.builder.scalar(Scalar::String);
        let own = ["apiVersion", "kind", "metadata"];
        let mut fields: Vec<Field> = object.fields().iter().filter(|field| !own.contains(&&*field.name)).cloned().collect();
        fields.extend([Field::new("apiVersion", text), Field::new("kind", text), Field::new("metadata", self.meta)]);
        Object { values: object.values, atomic: object.atomic, ..Object::of(fields) }
    }

    fn inside(&mut self, step: &str, schema: &Value, preserve: bool, depth: usize) -> Result<TypeRef, SchemaError> {
        let length = self.path.len();
        self.path.push_str(step);
        let node = self.node(schema, preserve, depth + 1)?;
        self.path.truncate(length);
        Ok(match node {
            Node { scalar: Some(scalar), list: None, object: None, .. } => self.builder.scalar(scalar),
            other => self.builder.add(other),
        })
    }

    fn node(&mut self, schema: &Value, preserve: bool, depth: usize) -> Result<Node, SchemaError> {
        if depth > DEEPEST {
            return Err(self.invalid("the schema has too many levels"));
        }
        let preserve = preserve || schema["x-kubernetes-preserve-unknown-fields"] == true;
        let mut node = match schema["type"].as_str().unwrap_or_default() {
            "" => {
                let (list, object) = (self.list(schema, preserve, depth)?, self.object(schema, preserve, depth)?);
                Node { scalar: Some(Scalar::Untyped), object: Some(object), ..list }
            }
            "object" => Node::object(self.object(schema, preserve, depth)?),
            "array" => self.list(schema, preserve, depth)?,
            "integer" | "number" => Node::scalar(Scalar::Numeric),
            "boolean" => Node::scalar(Scalar::Boolean),
            "string" => match schema["format"].as_str().unwrap_or_default() {
                "" | "byte" => Node::scalar(Scalar::String),
                _ => Node::scalar(Scalar::Untyped),
            },
            other => return Err(self.invalid(format!("unrecognized type: '{other}'"))),
        };
        if schema["x-kubernetes-embedded-resource"] == true
            && let Some(object) = node.object.take()
        {
            node.object = Some(self.with_meta(object));
        }
        Ok(node)
    }

    fn list(&mut self, schema: &Value, preserve: bool, depth: usize) -> Result<Node, SchemaError> {
        let items = match schema.get("items") {
            Some(items @ Value::Object(_)) => self.inside("[]", items, preserve, depth)?,
            Some(_) => return Err(self.invalid("structural schema arrays must have exactly one member subtype")),
            None if schema["type"] == "array" => return Err(self.invalid("`items` must be specified on arrays")),
            None => Schema::UNTYPED,
        };
        let merge = match schema.get("x-kubernetes-list-type").map(|found| found.as_str().unwrap_or_default()) {
            None | Some("atomic") => ListMerge::Atomic,
            Some("set") => ListMerge::Set,
            Some("map") => {
                let keys = schema["x-kubernetes-list-map-keys"].as_array().ok_or_else(|| self.invalid("missing map keys"))?;
                let keys: Box<[Box<str>]> = keys.iter().filter_map(Value::as_str).map(Box::from).collect();
                if keys.is_empty() { ListMerge::Set } else { ListMerge::Map(keys) }
            }
            Some(other) => return Err(self.invalid(format!("unknown list type {other}"))),
        };
        Ok(Node::list(items, merge))
    }

    fn object(&mut self, schema: &Value, preserve: bool, depth: usize) -> Result<Object, SchemaError> {
        let mut fields = Vec::new();
        for (name, member) in schema["properties"].as_object().into_iter().flatten() {
            let value = self.inside(&format!(".{name}"), member, preserve, depth)?;
            fields.push(Field { default: member.get("default").cloned(), ..Field::new(name, value) });
        }
        let values = match schema.get("additionalProperties") {
            Some(values @ Value::Object(_)) => Some(self.inside("{}", values, preserve, depth)?),
            Some(Value::Bool(true)) => Some(Schema::DEDUCED),
            Some(_) => None,
            None => (preserve || fields.is_empty()).then_some(Schema::DEDUCED),
        };
        let atomic = match schema.get("x-kubernetes-map-type").map(|found| found.as_str().unwrap_or_default()) {
            None | Some("granular") => false,
            Some("atomic") => true,
            Some(other) => return Err(self.invalid(format!("unknown map type {other}"))),
        };
        Ok(Object { values, atomic, ..Object::of(fields) })
    }
}
