//! Shapes: the declared form of JSON values, with the sizes that costs are estimated from.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use crate::reserved::is_reserved;
use crate::types::Type;

/// Upstream's largest request, in bytes.
pub const MAX_REQUEST: u64 = 3 * 1024 * 1024;

/// How the elements of a list are told apart: `x-kubernetes-list-type`.
#[derive(Clone, Debug, PartialEq)]
pub enum ListKind {
    Atomic,
    Set,
    /// By the values of these properties.
    Map(Vec<String>),
}

#[derive(Clone, Debug)]
pub enum Form {
    Dyn,
    Bool,
    Int,
    Double,
    String,
    /// Base64 in JSON.
    Bytes,
    Duration,
    /// `date-time`.
    Timestamp,
    /// `date`.
    Date,
    List(Arc<Shape>, ListKind),
    Map(Arc<Shape>),
    Object(Arc<Object>),
}

/// The form of a value. `max` is its greatest size: elements, entries or bytes.
#[derive(Clone, Debug)]
pub struct Shape {
    pub form: Form,
    pub max: u64,
    /// The least bytes that a value takes in JSON.
    pub min_bytes: u64,
    pub nullable: bool,
}

#[derive(Clone, Debug)]
pub struct Object {
    /// Names the type in messages, and tells types apart.
    pub name: String,
    /// By the name that expressions use: [`escape`]d.
    pub fields: BTreeMap<String, Property>,
}

#[derive(Clone, Debug)]
pub struct Property {
    /// The name in JSON.
    pub name: String,
    pub shape: Arc<Shape>,
}

pub(crate) static DYN: LazyLock<Shape> = LazyLock::new(|| Shape::new(Form::Dyn, u64::MAX, 1));

impl Shape {
    pub fn new(form: Form, max: u64, min_bytes: u64) -> Self {
        Shape { form, max, min_bytes, nullable: false }
    }

    pub fn nullable(mut self, nullable: bool) -> Self {
        self.nullable = nullable;
        self
    }

    pub fn ty(&self) -> Type {
        match &self.form {
            Form::Dyn => Type::Dyn,
            Form::Bool => Type::Bool,
            Form::Int => Type::Int,
            Form::Double => Type::Double,
            Form::String => Type::String,
            Form::Bytes => Type::Bytes,
            Form::Duration => Type::Duration,
            Form::Timestamp | Form::Date => Type::Timestamp,
            Form::List(items, _) => Type::list(items.ty()),
            Form::Map(values) => Type::map(Type::String, values.ty()),
            Form::Object(object) => Type::Object(object.clone()),
        }
    }

    /// The greatest size of what a path of fields leads to; `@items`, `@values` and `@keys` go into containers.
    pub(crate) fn size_at(&self, path: &[String]) -> Option<u64> {
        let Some((first, rest)) = path.split_first() else { return Some(self.max) };
        match (&self.form, first.as_str()) {
            (Form::List(items, _), "@items" | "@values") => items.size_at(rest),
            (Form::Map(values), "@values") => values.size_at(rest),
            // Upstream knows no size of keys.
            (Form::Map(_), "@keys") => rest.is_empty().then_some(0),
            (Form::Object(object), name) => object.fields.get(name)?.shape.size_at(rest),
            _ => None,
        }
    }
}

/// The name by which expressions address a property; none when it cannot be addressed.
pub fn escape(name: &str) -> Option<String> {
    let mut chars = name.chars();
    let first = chars.next()?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '/');
    if first.is_ascii_digit() || !allowed(first) || !chars.all(allowed) {
        return None;
    }
    if is_reserved(name) {
        return Some(format!("__{name}__"));
    }
    if !name.contains(['.', '-', '/']) && !name.contains("__") {
        return Some(name.to_owned());
    }
    let escaped = name.replace("__", "__underscores__");
    Some(escaped.replace('.', "__dot__").replace('-', "__dash__").replace('/', "__slash__"))
}
