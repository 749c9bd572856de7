//! Brings a stored set of fields into line with a schema that has changed since: what became one leaf is owned as one.

use crate::path::PathElement;
use crate::schema::{ListMerge, Scalar, Schema, Shape, Type, TypeRef};
use crate::set::FieldSet;

impl Type<'_> {
    /// The set as the schema of today has it; none when it needs no change.
    pub(crate) fn reconcile(self, set: &FieldSet) -> Option<FieldSet> {
        let mut walk = Walk { schema: self.schema, path: Vec::new(), leaves: FieldSet::default() };
        walk.set(Some(self.at), set, false);
        (!walk.leaves.is_empty()).then(|| set.recursive_difference(&walk.leaves).union(&walk.leaves))
    }
}

struct Walk<'a> {
    schema: &'a Schema,
    path: Vec<&'a PathElement>,
    /// What is one leaf today and has owners of its parts.
    leaves: FieldSet,
}

impl<'a> Walk<'a> {
    fn leaf(&mut self) {
        let path: Vec<PathElement> = self.path.iter().map(|&element| element.clone()).collect();
        self.leaves.insert(&path);
    }

    /// `leaf` says that the set has the path itself and nothing below it.
    fn set(&mut self, at: Option<TypeRef>, set: &'a FieldSet, leaf: bool) {
        match self.schema.atom(at).shape() {
            Shape::List(list) => {
                if list.merge == ListMerge::Atomic {
                    if !leaf {
                        self.leaf();
                    }
                    return;
                }
                for (element, member, below) in set.elements() {
                    self.descend(Some(list.items), element, member, below);
                }
            }
            // Deduced types know neither.
            Shape::Object(object, _) if object.fields().is_empty() && object.values.is_some_and(|at| self.is_untyped(at)) => {}
            Shape::Object(_, true) => {
                if !leaf && !set.is_empty() {
                    self.leaf();
                }
            }
            Shape::Object(object, false) => {
                for (element, member, below) in set.elements() {
                    let at = match element {
                        PathElement::Field(name) => object.member(name),
                        _ => object.values,
                    };
                    if at.is_some() {
                        self.descend(at, element, member, below);
                    }
                }
            }
            Shape::Scalar(_) | Shape::Nothing => {}
        }
    }

    fn is_untyped(&self, at: TypeRef) -> bool {
        let node = self.schema.node(at);
        at == Schema::DEDUCED || (node.scalar == Some(Scalar::Untyped) && node.object.is_none())
    }

    fn descend(&mut self, at: Option<TypeRef>, element: &'a PathElement, member: bool, below: &'a FieldSet) {
        self.path.push(element);
        self.set(at, below, member && below.is_empty());
        self.path.pop();
    }
}
