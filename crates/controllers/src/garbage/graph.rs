//! Graph of owners and dependents: pure.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
};

use cluster::Key;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::plan::{FOREGROUND, ORPHAN};
use crate::discovery::Kind;

/// An owner reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
    /// Whether the owner's foreground deletion waits for us.
    pub blocks: bool,
}

/// Row of an object of any kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub uid: String,
    pub owners: Vec<Owner>,
    pub deleting: bool,
    /// It has the finalizer of foreground deletion.
    pub foreground: bool,
    /// It has the finalizer that orphans dependents.
    pub orphan: bool,
}

impl Row {
    pub fn new(meta: &ObjectMeta) -> Option<Self> {
        let has = |finalizer: &str| meta.finalizers.iter().flatten().any(|one| one == finalizer);
        let owners = meta.owner_references.iter().flatten().map(|owner| Owner {
            api_version: owner.api_version.clone(),
            kind: owner.kind.clone(),
            name: owner.name.clone(),
            uid: owner.uid.clone(),
            blocks: owner.block_owner_deletion.unwrap_or_default(),
        });
        Some(Self {
            uid: meta.uid.clone()?,
            owners: owners.collect(),
            deleting: meta.deletion_timestamp.is_some(),
            foreground: has(FOREGROUND),
            orphan: has(ORPHAN),
        })
    }
}

impl Owner {
    /// The group of its kind.
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }
}

/// An owner as upstream's messages show it, seen from the namespace of its dependent.
pub(super) struct Shown<'a>(pub &'a Owner, pub &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(Owner { api_version, kind, name, uid, .. }, ns) = self;
        write!(f, "[{api_version}/{kind}, namespace: {ns}, name: {name}, uid: {uid}]")
    }
}

/// What the graph knows of an owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Known {
    /// Nothing, or an object that the reference does not describe: only the API can tell whether there is one.
    Nothing,
    /// An object of another namespace has this uid.
    Elsewhere,
    Here(Arc<Row>),
}

/// Where an object is found.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub kind: Arc<Kind>,
    pub key: Key,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.resource.kind, self.key)
    }
}

/// A dependent of some owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Dependent {
    pub uid: String,
    pub blocks: bool,
    pub deleting: bool,
    /// It is being deleted and waits for its own dependents.
    pub waits: bool,
}

/// All objects by uid, and the dependents of each uid that is named as an owner.
#[derive(Debug, Default)]
pub(super) struct Graph {
    objects: HashMap<String, (Place, Arc<Row>)>,
    dependents: HashMap<String, HashSet<String>>,
    /// Whether every kind has been listed; before, a missing owner means nothing.
    complete: bool,
}

impl Graph {
    /// Applies a changed object; returns the uids to process.
    pub fn change(&mut self, place: &Place, old: Option<&Arc<Row>>, new: Option<&Arc<Row>>) -> Vec<String> {
        let mut affected = Vec::new();
        if let Some(old) = old {
            let gone = new.is_none_or(|new| new.uid != old.uid);
            self.forget(old);
            if gone {
                affected.extend(self.dependents.get(&old.uid).into_iter().flatten().cloned());
            }
            // An owner that waits for its dependents may be done waiting.
            affected.extend(old.owners.iter().filter(|owner| self.is_waiting(&owner.uid)).map(|owner| owner.uid.clone()));
        }
        if let Some(new) = new {
            self.remember(place, new);
            if self.needs_a_look(place, new) {
                affected.push(new.uid.clone());
            }
        }
        if self.complete { affected } else { Vec::new() }
    }

    /// Every kind has been listed; returns the uids to process.
    pub fn complete(&mut self) -> Vec<String> {
        self.complete = true;
        self.objects.values().filter(|(place, row)| self.needs_a_look(place, row)).map(|(_, row)| row.uid.clone()).collect()
    }

    fn needs_a_look(&self, place: &Place, row: &Row) -> bool {
        if row.deleting {
            return row.foreground || row.orphan;
        }
        let settled = |owner: &Owner| matches!(self.known(place, owner), Known::Here(row) if !(row.deleting && row.foreground));
        !row.owners.iter().all(settled)
    }

    /// What is known of an owner that an object names. Namespace, kind and name of the reference have to be the owner's too, or else the
    /// reference is a mistake (upstream: `ownerReferenceMatchesCoordinates`); the version of the kind may be another.
    pub fn known(&self, dependent: &Place, owner: &Owner) -> Known {
        let Some((place, row)) = self.objects.get(&owner.uid) else { return Known::Nothing };
        if place.kind.namespaced && place.key.ns != dependent.key.ns {
            return Known::Elsewhere;
        }
        let resource = &place.kind.resource;
        let described = place.key.name == owner.name && resource.kind == owner.kind && resource.group == owner.group();
        if described { Known::Here(row.clone()) } else { Known::Nothing }
    }

    fn is_waiting(&self, uid: &str) -> bool {
        self.objects.get(uid).is_some_and(|(_, row)| row.deleting && row.foreground)
    }

    fn remember(&mut self, place: &Place, row: &Arc<Row>) {
        for owner in &row.owners {
            self.dependents.entry(owner.uid.clone()).or_default().insert(row.uid.clone());
        }
        self.objects.insert(row.uid.clone(), (place.clone(), row.clone()));
    }

    fn forget(&mut self, row: &Row) {
        self.objects.remove(&row.uid);
        for owner in &row.owners {
            if let Some(dependents) = self.dependents.get_mut(&owner.uid) {
                dependents.remove(&row.uid);
                if dependents.is_empty() {
                    self.dependents.remove(&owner.uid);
                }
            }
        }
    }

    /// A kind is served no longer: its objects are neither there nor gone.
    pub fn forget_kind(&mut self, kind: &Kind) {
        let known = self.objects.values().filter(|(place, _)| *place.kind == *kind);
        for row in known.map(|(_, row)| row.clone()).collect::<Vec<_>>() {
            self.forget(&row);
        }
    }

    /// Where an object is.
    pub fn place(&self, uid: &str) -> Option<Place> {
        self.objects.get(uid).map(|(place, _)| place.clone())
    }

    /// The objects that name this one as an owner, by uid.
    pub fn dependents(&self, uid: &str) -> Vec<Dependent> {
        let rows = self.dependents.get(uid).into_iter().flatten().filter_map(|dependent| self.objects.get(dependent));
        let mut all: Vec<Dependent> = rows
            .map(|(_, row)| Dependent {
                uid: row.uid.clone(),
                blocks: row.owners.iter().any(|owner| owner.uid == uid && owner.blocks),
                deleting: row.deleting,
                waits: row.deleting && row.foreground,
            })
            .collect();
        all.sort_by(|a, b| a.uid.cmp(&b.uid));
        all
    }
}

#[cfg(test)]
mod tests {
    use kube::api::ApiResource;

    use super::*;

    fn place(name: &str) -> Place {
        let resource =
            ApiResource { group: String::new(), version: "v1".into(), api_version: "v1".into(), kind: "Pod".into(), plural: "pods".into() };
        Place { kind: Arc::new(Kind { resource, namespaced: true, delete_collection: true }), key: Key::new("a", name) }
    }

    fn row(uid: &str, owners: &[&str]) -> Arc<Row> {
        let owner = |uid: &&str| Owner { api_version: "v1".into(), kind: "Pod".into(), name: (*uid).into(), uid: (*uid).into(), blocks: true };
        Arc::new(Row { uid: uid.into(), owners: owners.iter().map(owner).collect(), deleting: false, foreground: false, orphan: false })
    }

    #[test]
    fn changes_enqueue_affected_objects() {
        let mut graph = Graph::default();
        let (parent, child, stray) = (row("parent", &[]), row("child", &["parent"]), row("stray", &["nobody"]));
        for object in [&child, &stray, &parent] {
            assert_eq!(graph.change(&place(&object.uid), None, Some(object)), Vec::<String>::new(), "nothing before all is known");
        }
        assert_eq!(graph.complete(), ["stray"]);
        assert_eq!(graph.change(&place("late"), None, Some(&row("late", &["parent"]))), Vec::<String>::new());
        let mut waiting = (*parent).clone();
        (waiting.deleting, waiting.foreground) = (true, true);
        let waiting = Arc::new(waiting);
        assert_eq!(graph.change(&place("parent"), Some(&parent), Some(&waiting)), ["parent"]);
        assert_eq!(graph.change(&place("child"), Some(&child), None), ["parent"], "a waiting owner hears of its dependents");
        assert_eq!(graph.dependents("parent").len(), 1);
        assert_eq!(graph.change(&place("parent"), Some(&waiting), None), ["late"]);
        assert!(graph.place("parent").is_none());
        graph.forget_kind(&place("any").kind);
        assert!(graph.objects.is_empty() && graph.dependents.is_empty(), "a kind that is served no longer leaves nothing behind");
    }

    #[test]
    fn a_reference_has_to_describe_its_owner() {
        let mut graph = Graph::default();
        let parent = row("parent", &[]);
        graph.change(&place("parent"), None, Some(&parent));
        graph.complete();
        let elsewhere = Place { key: Key::new("b", "child"), ..place("child") };
        let reference = |change: fn(&mut Owner)| {
            let mut owner = row("child", &["parent"]).owners[0].clone();
            change(&mut owner);
            owner
        };
        for (what, dependent, owner, expected) in [
            ("right", place("child"), reference(|_| {}), Known::Here(parent.clone())),
            ("another version", place("child"), reference(|owner| owner.api_version = "v2".into()), Known::Here(parent.clone())),
            ("another name", place("child"), reference(|owner| owner.name = "other".into()), Known::Nothing),
            ("another kind", place("child"), reference(|owner| owner.kind = "Secret".into()), Known::Nothing),
            ("another group", place("child"), reference(|owner| owner.api_version = "apps/v1".into()), Known::Nothing),
            ("another namespace", elsewhere.clone(), reference(|_| {}), Known::Elsewhere),
            ("nobody", place("child"), reference(|owner| owner.uid = "nobody".into()), Known::Nothing),
        ] {
            assert_eq!(graph.known(&dependent, &owner), expected, "{what}");
        }
        let child = row("child", &["parent"]);
        assert_eq!(graph.change(&elsewhere, None, Some(&child)), ["child"], "such an object is looked at");
        let shown = Shown(&child.owners[0], "b").to_string();
        assert_eq!(shown, "[v1/Pod, namespace: b, name: parent, uid: parent]");
    }

    #[test]
    fn a_name_that_is_used_again_is_another_object() {
        let mut graph = Graph::default();
        let (old, child) = (row("old", &[]), row("child", &["old"]));
        graph.change(&place("web"), None, Some(&old));
        graph.change(&place("child"), None, Some(&child));
        graph.complete();
        assert_eq!(graph.change(&place("web"), Some(&old), Some(&row("new", &[]))), ["child"]);
    }
}
