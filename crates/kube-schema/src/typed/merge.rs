//! Merges an applied value into a live one: nothing is removed, what both have comes from the applied one.

use super::{item_element, list_of, object_of};
use crate::path::PathElement;
use crate::schema::{Atom, List, ListMerge, Object, Schema, Shape, Type, TypeRef};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, VecDeque};

impl Type<'_> {
    /// Merges two valid values. Lists are in the order of the applied one where it has changes.
    pub fn merge(self, live: &Value, applied: &Value) -> Value {
        merge(self.schema, Some(self.at), Some(live), Some(applied)).unwrap_or_default()
    }
}

fn merge(schema: &Schema, at: Option<TypeRef>, live: Option<&Value>, applied: Option<&Value>) -> Option<Value> {
    let atom = schema.atom(at);
    let of = if applied.is_some() { atom.deduce(applied) } else { atom.deduce(live) };
    shape(schema, of, live, applied)
}

fn shape(schema: &Schema, atom: Atom<'_>, live: Option<&Value>, applied: Option<&Value>) -> Option<Value> {
    let leaf = || applied.or(live).cloned();
    match atom.shape() {
        Shape::Scalar(_) | Shape::Nothing => leaf(),
        Shape::List(list) => {
            let (live_items, applied_items) = (list_of(live), list_of(applied));
            let empty = live_items.is_none_or(Vec::is_empty) && applied_items.is_none_or(Vec::is_empty);
            if empty || list.merge == ListMerge::Atomic {
                return leaf();
            }
            let merged = lists(schema, list, live_items.map_or(&[], |items| items), applied_items.map_or(&[], |items| items));
            (!merged.is_empty()).then_some(Value::Array(merged))
        }
        Shape::Object(object, atomic) => {
            let (live_members, applied_members) = (object_of(live), object_of(applied));
            let empty = live_members.is_none_or(Map::is_empty) && applied_members.is_none_or(Map::is_empty);
            if empty || atomic {
                return leaf();
            }
            let merged = objects(schema, object, live_members, applied_members);
            (!merged.is_empty()).then_some(Value::Object(merged))
        }
    }
}

fn objects(schema: &Schema, object: &Object, live: Option<&Map<String, Value>>, applied: Option<&Map<String, Value>>) -> Map<String, Value> {
    let mut merged = Map::new();
    for (name, value) in live.into_iter().flatten() {
        let other = applied.and_then(|members| members.get(name));
        merged.extend(merge(schema, object.member(name), Some(value), other).map(|value| (name.clone(), value)));
    }
    for (name, value) in applied.into_iter().flatten() {
        if live.is_none_or(|members| !members.contains_key(name)) {
            merged.extend(merge(schema, object.member(name), None, Some(value)).map(|value| (name.clone(), value)));
        }
    }
    merged
}

/// A list's items with the steps to them; items without one (which are not valid) are left out.
struct Indexed<'a> {
    items: Vec<(PathElement, &'a Value)>,
    /// The item of each step; none where several share it.
    by_element: BTreeMap<PathElement, Option<&'a Value>>,
}

impl<'a> Indexed<'a> {
    fn of(schema: &Schema, list: &List, items: &'a [Value]) -> Indexed<'a> {
        let items: Vec<_> = items.iter().filter_map(|item| Some((item_element(schema, list, item).ok()?, item))).collect();
        let mut by_element = BTreeMap::new();
        for (element, item) in &items {
            by_element.entry(element.clone()).and_modify(|found| *found = None).or_insert(Some(*item));
        }
        Indexed { items, by_element }
    }

    fn has(&self, element: &PathElement) -> bool {
        self.by_element.contains_key(element)
    }

    fn get(&self, element: &PathElement) -> Option<&'a Value> {
        static REPEATED: Value = Value::Null;
        self.by_element.get(element).map(|found| found.unwrap_or(&REPEATED))
    }
}

/// Walks both lists: items of the live one alone keep their place before the next item that both have.
fn lists(schema: &Schema, list: &List, live: &[Value], applied: &[Value]) -> Vec<Value> {
    let (live, applied) = (Indexed::of(schema, list, live), Indexed::of(schema, list, applied));
    let mut shared: VecDeque<&PathElement> = applied.items.iter().map(|(element, _)| element).filter(|element| live.has(element)).collect();
    let mut next_shared = shared.pop_front();
    let mut taken: BTreeMap<&PathElement, ()> = BTreeMap::new();
    let mut merged = Vec::with_capacity(live.items.len().max(applied.items.len()));
    let both = |element: &PathElement| merge(schema, Some(list.items), live.get(element), applied.get(element));
    let (mut at_live, mut at_applied) = (0, 0);
    while at_live < live.items.len() || at_applied < applied.items.len() {
        if let (Some((element, _)), Some((other, _))) = (live.items.get(at_live), applied.items.get(at_applied)) {
            if element == other {
                taken.insert(element, ());
                merged.extend(both(element));
                (at_live, at_applied) = (at_live + 1, at_applied + 1);
                next_shared = shared.pop_front();
                continue;
            }
            if applied.has(element) && next_shared.is_some_and(|next| next != element) {
                at_live += 1;
                continue;
            }
        }
        if let Some((element, item)) = live.items.get(at_live) {
            if !applied.has(element) {
                merged.extend(merge(schema, Some(list.items), Some(item), None));
                at_live += 1;
                continue;
            }
            if taken.contains_key(element) {
                at_live += 1;
            }
        }
        if let Some((element, _)) = applied.items.get(at_applied) {
            taken.insert(element, ());
            merged.extend(both(element));
            at_applied += 1;
            if next_shared == Some(element) {
                next_shared = shared.pop_front();
            }
        }
    }
    merged
}
