//! Compares two values of one type: which fields one has and the other not, and which differ.

use super::{item_element, list_of, object_of};
use crate::path::{PathElement, Step};
use crate::schema::{Atom, List, ListMerge, Object, Schema, Shape, Type, TypeRef};
use crate::set::FieldSet;
use crate::update::ResetFields;
use crate::value::equal;
use serde_json::Value;
use std::collections::BTreeMap;

/// What differs between an old and a new value. No field is in two of the sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// What only the old one has.
    pub removed: FieldSet,
    /// What both have with different values.
    pub modified: FieldSet,
    /// What only the new one has.
    pub added: FieldSet,
}

impl Comparison {
    /// Drops the fields that a write cannot change.
    #[must_use]
    pub(crate) fn kept_by(self, reset: &ResetFields) -> Comparison {
        Comparison { removed: reset.keep(self.removed), modified: reset.keep(self.modified), added: reset.keep(self.added) }
    }
}

impl Type<'_> {
    /// Compares two valid values.
    pub fn compare(self, old: &Value, new: &Value) -> Comparison {
        let mut walk = Walk { schema: self.schema, path: Vec::new(), found: Comparison::default() };
        walk.value(Some(self.at), Some(old), Some(new));
        walk.found
    }
}

struct Walk<'a> {
    schema: &'a Schema,
    path: Vec<Step<'a>>,
    found: Comparison,
}

impl<'a> Walk<'a> {
    fn removed(&mut self) {
        self.found.removed.insert(&Step::path(&self.path));
    }

    fn modified(&mut self) {
        self.found.modified.insert(&Step::path(&self.path));
    }

    fn added(&mut self) {
        self.found.added.insert(&Step::path(&self.path));
    }

    fn value(&mut self, at: Option<TypeRef>, old: Option<&'a Value>, new: Option<&'a Value>) {
        // Most of an object stays as it is, and nothing differs in what is the same.
        if old.is_some() && old == new {
            return;
        }
        let atom = self.schema.atom(at);
        let (old_atom, new_atom) = (atom.deduce(old), atom.deduce(new));
        let leaf = if new.is_none() {
            self.shape(old_atom, old, new)
        } else {
            if old.is_some() && !old_atom.same(new_atom) {
                self.shape(old_atom, old, new);
            }
            self.shape(new_atom, old, new)
        };
        match (old, new) {
            (None, Some(_)) if !leaf => self.added(),
            (Some(_), None) if !leaf => self.removed(),
            _ => {}
        }
    }

    /// Compares by what is left of the type; says whether it was one leaf.
    fn shape(&mut self, atom: Atom<'a>, old: Option<&'a Value>, new: Option<&'a Value>) -> bool {
        match atom.shape() {
            Shape::Scalar(_) | Shape::Nothing => self.leaf(old, new),
            Shape::List(list) => {
                let (old_items, new_items) = (list_of(old), list_of(new));
                let empty = old_items.is_none_or(Vec::is_empty) && new_items.is_none_or(Vec::is_empty);
                if empty || list.merge == ListMerge::Atomic {
                    return self.leaf(old, new);
                }
                self.list(list, old_items.map_or(&[], |items| items), new_items.map_or(&[], |items| items));
                false
            }
            Shape::Object(object, atomic) => {
                let (old_members, new_members) = (object_of(old), object_of(new));
                let empty = old_members.is_none_or(serde_json::Map::is_empty) && new_members.is_none_or(serde_json::Map::is_empty);
                if empty || atomic {
                    return self.leaf(old, new);
                }
                self.object(object, (old, old_members), (new, new_members));
                false
            }
        }
    }

    fn leaf(&mut self, old: Option<&Value>, new: Option<&Value>) -> bool {
        match (old, new) {
            (None, _) => self.added(),
            (_, None) => self.removed(),
            (Some(old), Some(new)) if !equal(old, new) => self.modified(),
            _ => {}
        }
        true
    }

    fn object(&mut self, object: &'a Object, old: Side<'a>, new: Side<'a>) {
        for name in old.1.into_iter().flatten().map(|(name, _)| name) {
            self.member(object, name, old, new);
        }
        for name in new.1.into_iter().flatten().map(|(name, _)| name) {
            if old.1.is_none_or(|members| !members.contains_key(name)) {
                self.member(object, name, old, new);
            }
        }
    }

    fn member(&mut self, object: &'a Object, name: &'a str, old: Side<'a>, new: Side<'a>) {
        // What Go holds by value is there as soon as its struct is there.
        let zero = object.field(name).and_then(|field| field.zero.as_ref());
        let (old_whole, new_whole) = (old.0.is_some(), new.0.is_some());
        let old = old.1.and_then(|members| members.get(name)).or(zero.filter(|_| old_whole));
        let new = new.1.and_then(|members| members.get(name)).or(zero.filter(|_| new_whole));
        self.path.push(Step::Field(name));
        self.value(object.member(name), old, new);
        self.path.pop();
    }

    fn list(&mut self, list: &List, old: &'a [Value], new: &'a [Value]) {
        let mut items: BTreeMap<PathElement, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
        for item in old {
            if let Ok(element) = item_element(self.schema, list, item) {
                items.entry(element).or_default().0.push(item);
            }
        }
        for item in new {
            if let Ok(element) = item_element(self.schema, list, item) {
                items.entry(element).or_default().1.push(item);
            }
        }
        for (element, (old, new)) in items {
            self.path.push(Step::Item(element));
            self.items(list, &old, &new);
            self.path.pop();
        }
    }

    /// Compares the items that share a key. Repeated ones are one leaf.
    fn items(&mut self, list: &List, old: &[&'a Value], new: &[&'a Value]) {
        match (old.len(), new.len()) {
            (0 | 1, 0 | 1) => self.value(Some(list.items), old.first().copied(), new.first().copied()),
            (2.., 2..) => {
                if old.len() != new.len() || old.iter().zip(new).any(|(old, new)| !equal(old, new)) {
                    self.modified();
                }
            }
            (2.., _) => {
                if let Some(one) = new.first() {
                    self.value(Some(list.items), None, Some(one));
                }
                self.removed();
            }
            (_, _) => {
                if let Some(one) = old.first() {
                    self.value(Some(list.items), Some(one), None);
                }
                self.added();
            }
        }
    }
}

/// A value, and its members when it is an object.
type Side<'a> = (Option<&'a Value>, Option<&'a serde_json::Map<String, Value>>);
