//! Sets of fields, and fieldsV1, the JSON that managedFields hold them in.

use crate::DEEPEST;
use crate::path::{ElementError, PathElement};
use crate::schema::{Schema, TypeRef};
use serde_json::{Map, Value};
use std::borrow::Cow;

/// A set of paths. A path can be in it while its parents are not, and the other way round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet {
    /// Sorted; each is a member or has members below it.
    entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    element: PathElement,
    member: bool,
    below: FieldSet,
}

/// Why a value is no fieldsV1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldsError {
    /// Something else than an object.
    #[error("cannot read fieldsV1: expected an object, found {0}")]
    NoObject(&'static str),
    /// A key that names no field or item.
    #[error("parsing key as path element: {0}")]
    Key(String),
    /// More levels than any object has.
    #[error("cannot read fieldsV1: exceeded max depth")]
    Depth,
}

impl FieldSet {
    /// The set of one path.
    pub fn of(path: &[PathElement]) -> FieldSet {
        let mut set = FieldSet::default();
        set.insert(path);
        set
    }

    /// The set of these paths of field names.
    pub fn of_names(paths: &[&[&str]]) -> FieldSet {
        let mut set = FieldSet::default();
        for path in paths {
            set.insert(&path.iter().map(|name| PathElement::field(name)).collect::<Vec<_>>());
        }
        set
    }

    /// Whether no path is in it.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn find(&self, element: &PathElement) -> Option<&Entry> {
        self.entries.binary_search_by(|entry| entry.element.cmp(element)).ok().map(|at| &self.entries[at])
    }

    fn entry(&mut self, element: Cow<'_, PathElement>) -> &mut Entry {
        let at = match self.entries.binary_search_by(|entry| entry.element.cmp(&element)) {
            Ok(at) => at,
            Err(at) => {
                self.entries.insert(at, Entry { element: element.into_owned(), member: false, below: FieldSet::default() });
                at
            }
        };
        &mut self.entries[at]
    }

    /// Adds the path, not its parents. The whole object (the empty path) is never a member.
    pub fn insert(&mut self, path: &[PathElement]) {
        match path {
            [] => {}
            [last] => self.entry(Cow::Borrowed(last)).member = true,
            [first, rest @ ..] => self.entry(Cow::Borrowed(first)).below.insert(rest),
        }
    }

    /// Whether the path itself is in the set.
    pub fn has(&self, path: &[PathElement]) -> bool {
        match path {
            [] => false,
            [last] => self.has_member(last),
            [first, rest @ ..] => self.find(first).is_some_and(|entry| entry.below.has(rest)),
        }
    }

    pub(crate) fn has_member(&self, element: &PathElement) -> bool {
        self.find(element).is_some_and(|entry| entry.member)
    }

    /// What is in the set below this element.
    pub(crate) fn below(&self, element: &PathElement) -> Option<&FieldSet> {
        self.find(element).map(|entry| &entry.below).filter(|below| !below.is_empty())
    }

    /// The elements of this level: whether each is a member, and what is below it.
    pub(crate) fn elements(&self) -> impl Iterator<Item = (&PathElement, bool, &FieldSet)> {
        self.entries.iter().map(|entry| (&entry.element, entry.member, &entry.below))
    }

    /// Walks both sets side by side; `keep` makes what the result has for an element that both have, `left` and `right` what it has for
    /// an element of one.
    fn combine(&self, other: &FieldSet, left: bool, right: bool, keep: impl Fn(&Entry, &Entry) -> Option<Entry>) -> FieldSet {
        let mut entries = Vec::with_capacity(if right { self.entries.len() + other.entries.len() } else { self.entries.len() });
        let mut others = other.entries.iter().peekable();
        for entry in &self.entries {
            while let Some(before) = others.next_if(|found| found.element < entry.element) {
                entries.extend(right.then(|| before.clone()));
            }
            match others.next_if(|found| found.element == entry.element) {
                Some(same) => entries.extend(keep(entry, same)),
                None => entries.extend(left.then(|| entry.clone())),
            }
        }
        entries.extend(others.filter(|_| right).cloned());
        FieldSet { entries }
    }

    /// What is in either set.
    #[must_use]
    pub fn union(&self, other: &FieldSet) -> FieldSet {
        self.combine(other, true, true, |left, right| Entry::of(left, left.member || right.member, left.below.union(&right.below)))
    }

    /// What is in both sets.
    #[must_use]
    pub fn intersection(&self, other: &FieldSet) -> FieldSet {
        self.combine(other, false, false, |left, right| Entry::of(left, left.member && right.member, left.below.intersection(&right.below)))
    }

    /// What is in this set and not in the other; fields below a removed one stay.
    #[must_use]
    pub fn difference(&self, other: &FieldSet) -> FieldSet {
        self.combine(other, true, false, |left, right| Entry::of(left, left.member && !right.member, left.below.difference(&right.below)))
    }

    /// What is in this set, without the members of the other and all fields below them.
    #[must_use]
    pub fn recursive_difference(&self, other: &FieldSet) -> FieldSet {
        self.combine(other, true, false, |left, right| match right.member {
            true => None,
            false => Entry::of(left, left.member, left.below.recursive_difference(&right.below)),
        })
    }

    /// The members on these paths of field names, of which `*` is any step, and all that is below the paths' ends.
    pub(crate) fn on_paths(&self, paths: &[&[&str]]) -> FieldSet {
        let entries = self.entries.iter().filter_map(|entry| {
            let fits = |step: &str| step == "*" || matches!(&entry.element, PathElement::Field(name) if **name == *step);
            let rest: Vec<&[&str]> =
                paths.iter().filter_map(|path| path.split_first()).filter(|(step, _)| fits(step)).map(|(_, rest)| rest).collect();
            if rest.is_empty() {
                return None;
            }
            let below = if rest.iter().any(|rest| rest.is_empty()) { entry.below.clone() } else { entry.below.on_paths(&rest) };
            Entry::of(entry, entry.member, below)
        });
        FieldSet { entries: entries.collect() }
    }

    /// The set with the parents that are fields of structs: with `a.b.c`, also `a`, but not `a.b` when `a` is a map.
    pub(crate) fn with_named_fields(&self, schema: &Schema, at: Option<TypeRef>) -> FieldSet {
        let node = at.map(|at| schema.node(at));
        let entries = self.entries.iter().map(|entry| {
            let object = node.and_then(|node| node.object.as_ref());
            let (named, at) = match &entry.element {
                PathElement::Field(name) => match object.and_then(|object| object.field(name)) {
                    Some(field) => (true, Some(field.value)),
                    None => (false, object.and_then(|object| object.values)),
                },
                PathElement::Key(_) => (false, node.and_then(|node| node.list.as_ref()).map(|list| list.items)),
                _ => (false, None),
            };
            let member = entry.member || (named && !entry.below.is_empty());
            Entry { element: entry.element.clone(), member, below: entry.below.with_named_fields(schema, at) }
        });
        FieldSet { entries: entries.collect() }
    }

    /// Every path: the members of a level first, then what is below.
    pub fn paths(&self) -> Vec<Vec<PathElement>> {
        let (mut paths, mut prefix) = (Vec::new(), Vec::new());
        self.collect_paths(&mut prefix, &mut paths);
        paths
    }

    fn collect_paths(&self, prefix: &mut Vec<PathElement>, paths: &mut Vec<Vec<PathElement>>) {
        for entry in self.entries.iter().filter(|entry| entry.member) {
            let mut path = prefix.clone();
            path.push(entry.element.clone());
            paths.push(path);
        }
        for entry in &self.entries {
            prefix.push(entry.element.clone());
            entry.below.collect_paths(prefix, paths);
            prefix.pop();
        }
    }

    /// The set as fieldsV1.
    pub fn to_json(&self) -> Value {
        Value::Object(self.members_json(false))
    }

    fn members_json(&self, own: bool) -> Map<String, Value> {
        let mut members = Map::with_capacity(self.entries.len() + usize::from(own));
        if own && !self.is_empty() {
            members.insert(".".into(), Value::Object(Map::new()));
        }
        for entry in &self.entries {
            members.insert(entry.element.to_key(), Value::Object(entry.below.members_json(entry.member)));
        }
        members
    }

    /// Reads fieldsV1. Steps of a kind that is not known are left out with everything below them.
    pub fn from_json(fields: &Value) -> Result<FieldSet, FieldsError> {
        read(fields, 0).map(|(set, _)| set)
    }
}

impl Entry {
    fn of(like: &Entry, member: bool, below: FieldSet) -> Option<Entry> {
        (member || !below.is_empty()).then(|| Entry { element: like.element.clone(), member, below })
    }
}

/// The set below, and whether the level itself is a member of its parent.
fn read(fields: &Value, depth: usize) -> Result<(FieldSet, bool), FieldsError> {
    if depth > DEEPEST {
        return Err(FieldsError::Depth);
    }
    let members = match fields {
        Value::Null => return Ok((FieldSet::default(), true)),
        Value::Object(members) => members,
        other => return Err(FieldsError::NoObject(crate::value::go_type(other))),
    };
    let (mut set, mut own) = (FieldSet::default(), false);
    for (key, value) in members {
        if key == "." {
            own = true;
            continue;
        }
        let element = match PathElement::parse(key) {
            Ok(element) => element,
            Err(ElementError::Unknown) => continue,
            Err(error) => return Err(FieldsError::Key(error.to_string())),
        };
        let (below, member) = read(value, depth + 1)?;
        let entry = set.entry(Cow::Owned(element));
        entry.member |= member;
        if !below.is_empty() {
            entry.below = below;
        }
    }
    let own = own || set.is_empty();
    Ok((set, own))
}
