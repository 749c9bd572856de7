//! The forms of kinds as expressions see them: of built-in ones from the table of Go's types, of custom ones from their definition.

use crate::kind::Set;
use crate::schema::types::{self, Level};
use ::admission::names::Kind as KindName;
use crd::schema::Schema;
use kube_cel::Shape;
use kube_cel::shape::{Form, ListKind, Object, Property, escape};
use std::collections::HashMap;
use std::sync::Arc;

const METADATA: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// Deeper members may be anything: only types that contain themselves are that deep.
const DEEPEST: usize = 16;

/// Forms that are made once.
#[derive(Default)]
pub struct Shapes {
    types: HashMap<&'static str, Arc<Shape>>,
    /// Types whose form is being made.
    open: Vec<&'static str>,
}

fn shape(form: Form) -> Shape {
    // Nothing is estimated from these: expressions are checked, not run.
    Shape::new(form, u64::MAX, 0)
}

impl Shapes {
    /// The form of a kind; none when nothing is known of it.
    pub fn of(&mut self, kinds: &Set, name: &KindName) -> Option<Arc<Shape>> {
        let kind = kinds.all().find(|kind| kind.group == name.group && kind.version == name.version && kind.kind == name.kind)?;
        match (&kind.custom, kind.schema_type()) {
            (Some(custom), _) => self.of_custom(&kind.kind, &Schema::parse(&custom.schema.version.openapi()).ok()?),
            (None, Some(type_name)) => Some(self.of_type(type_name)),
            (None, None) => None,
        }
    }

    /// With the whole of the metadata, as published definitions have it.
    fn of_custom(&mut self, name: &str, schema: &Schema) -> Option<Arc<Shape>> {
        let mut made = crd::shape::shape(schema, true, name)?;
        if let Form::Object(object) = &mut made.form {
            let metadata = Property { name: "metadata".to_owned(), shape: self.of_type(METADATA) };
            Arc::make_mut(object).fields.insert("metadata".to_owned(), metadata);
        }
        Some(Arc::new(made))
    }

    fn of_type(&mut self, name: &'static str) -> Arc<Shape> {
        if let Some(known) = self.types.get(name) {
            return Arc::clone(known);
        }
        let Some(found) = types::find(name).filter(|_| !self.open.contains(&name) && self.open.len() < DEEPEST) else {
            return Arc::new(shape(Form::Dyn));
        };
        self.open.push(name);
        let fields = found.fields.iter().filter_map(|field| {
            let property = Property { name: field.name.to_owned(), shape: Arc::new(self.at(field.shape)) };
            Some((escape(field.name)?, property))
        });
        let fields = fields.collect();
        self.open.pop();
        let made = Arc::new(shape(Form::Object(Arc::new(Object { name: name.to_owned(), fields }))));
        self.types.insert(name, Arc::clone(&made));
        made
    }

    fn at(&mut self, of: types::Shape) -> Shape {
        shape(match of.level() {
            Level::List(inner) => Form::List(Arc::new(self.at(inner)), ListKind::Atomic),
            Level::Map(inner) => Form::Map(Arc::new(self.at(inner))),
            Level::Object(name) => return (*self.of_type(name)).clone(),
            Level::Leaf("string") => Form::String,
            Level::Leaf("bool") => Form::Bool,
            Level::Leaf("int" | "int32" | "int64") => Form::Int,
            Level::Leaf("float64") => Form::Double,
            Level::Leaf("bytes") => Form::Bytes,
            Level::Leaf("time" | "microtime") => Form::Timestamp,
            // Numbers or texts, and whatever else JSON has.
            Level::Leaf(_) => Form::Dyn,
        })
    }
}
