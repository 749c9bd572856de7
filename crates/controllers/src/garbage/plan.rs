//! Plan for one object: pure.

use std::fmt;

use super::graph::{Dependent, Owner, Row};

/// The finalizer of an object that goes after its dependents.
pub(super) const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of an object that leaves its dependents behind.
pub(super) const ORPHAN: &str = "orphan";

/// How an owner is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    Present,
    /// It is being deleted and waits for its dependents.
    Waiting,
    Absent,
    /// Nobody can say: its kind is not served, or it lives in a namespace while its dependent does not.
    Unknown,
}

/// Deletion policy for dependents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Policy {
    Background,
    Foreground,
    Orphan,
}

/// The one thing to do now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    Keep,
    /// Look at these dependents; it goes after them.
    Wait(Vec<String>),
    /// All dependents that it had to wait for are gone.
    Release,
    /// These dependents lose their reference to it, then it goes.
    Orphan(Vec<String>),
    Delete(Policy),
    /// Some of its owners are gone, by uid.
    Disown(Vec<String>),
    /// No owner waits for it any longer: it waits for an owner itself.
    Unblock,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keep => f.write_str("keep"),
            Self::Wait(dependents) => write!(f, "wait for {}", dependents.join(", ")),
            Self::Release => f.write_str("release"),
            Self::Orphan(dependents) => write!(f, "orphan {}", dependents.join(", ")),
            Self::Delete(policy) => write!(f, "delete ({policy:?})"),
            Self::Disown(owners) => write!(f, "disown {}", owners.join(", ")),
            Self::Unblock => f.write_str("unblock"),
        }
    }
}

/// Decides about an object as it is now, from its owners (looked at now) and its dependents (as far as they were seen).
pub(super) fn plan(row: &Row, owners: &[(Owner, Seen)], dependents: &[Dependent]) -> Action {
    if row.deleting {
        return if row.orphan {
            Action::Orphan(dependents.iter().map(|one| one.uid.clone()).collect())
        } else if !row.foreground {
            Action::Keep
        } else if dependents.iter().any(|one| one.blocks) {
            Action::Wait(dependents.iter().filter(|one| !one.deleting).map(|one| one.uid.clone()).collect())
        } else {
            Action::Release
        };
    }
    let with = |seen: Seen| owners.iter().filter(move |(_, other)| *other == seen).map(|(owner, _)| owner);
    if owners.is_empty() || with(Seen::Unknown).next().is_some() {
        return Action::Keep;
    }
    if with(Seen::Present).next().is_some() {
        let lost: Vec<String> = with(Seen::Absent).chain(with(Seen::Waiting)).map(|owner| owner.uid.clone()).collect();
        return if lost.is_empty() { Action::Keep } else { Action::Disown(lost) };
    }
    if with(Seen::Waiting).next().is_some() && !dependents.is_empty() {
        // A dependent that waits may wait for us, in a circle of owners: upstream breaks it at the first such object too.
        let circle = dependents.iter().any(|one| one.waits) && owners.iter().any(|(owner, _)| owner.blocks);
        return if circle { Action::Unblock } else { Action::Delete(Policy::Foreground) };
    }
    Action::Delete(match (row.orphan, row.foreground) {
        (true, _) => Policy::Orphan,
        (_, true) => Policy::Foreground,
        _ => Policy::Background,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(uid: &str) -> Owner {
        Owner { api_version: "apps/v1".into(), kind: "ReplicaSet".into(), name: uid.into(), uid: uid.into(), blocks: true }
    }

    fn dependent(uid: &str, blocks: bool, deleting: bool) -> Dependent {
        Dependent { uid: uid.into(), blocks, deleting, waits: false }
    }

    #[test]
    fn a_circle_of_owners_is_broken_once() {
        let row = Row { uid: "x".into(), owners: vec![], deleting: false, foreground: false, orphan: false };
        let waiting = Dependent { waits: true, ..dependent("p", true, true) };
        let mut owners = vec![(owner("a"), Seen::Waiting)];
        assert_eq!(plan(&row, &owners, std::slice::from_ref(&waiting)), Action::Unblock);
        owners[0].0.blocks = false;
        assert_eq!(plan(&row, &owners, &[waiting]), Action::Delete(Policy::Foreground), "after that it goes like any other");
    }

    #[test]
    fn objects_are_deleted_released_or_kept() {
        let row = |deleting, foreground, orphan| Row { uid: "x".into(), owners: vec![], deleting, foreground, orphan };
        let plain = row(false, false, false);
        use Seen::{Absent, Present, Unknown, Waiting};
        let owners = |all: &[(&str, Seen)]| all.iter().map(|(uid, seen)| (owner(uid), *seen)).collect::<Vec<_>>();
        for (what, row, owners, dependents, expected) in [
            ("no owner", plain.clone(), owners(&[]), vec![], "keep"),
            ("an owner", plain.clone(), owners(&[("a", Present)]), vec![], "keep"),
            ("no owner left", plain.clone(), owners(&[("a", Absent), ("b", Absent)]), vec![], "delete (Background)"),
            ("one of two left", plain.clone(), owners(&[("a", Absent), ("b", Present), ("c", Waiting)]), vec![], "disown a, c"),
            ("one of which nothing is known", plain.clone(), owners(&[("a", Absent), ("b", Present), ("c", Unknown)]), vec![], "keep"),
            ("its owner waits", plain.clone(), owners(&[("a", Waiting)]), vec![], "delete (Background)"),
            ("its owner waits, and it has dependents", plain, owners(&[("a", Waiting)]), vec![dependent("p", true, false)], "delete (Foreground)"),
            ("its finalizer decides", row(false, false, true), owners(&[("a", Absent)]), vec![], "delete (Orphan)"),
            ("going already", row(true, false, false), owners(&[]), vec![dependent("p", true, false)], "keep"),
            (
                "foreground, with dependents",
                row(true, true, false),
                vec![],
                vec![dependent("p", true, false), dependent("q", true, true)],
                "wait for p",
            ),
            ("foreground, with dependents that do not block", row(true, true, false), vec![], vec![dependent("p", false, false)], "release"),
            ("foreground, alone", row(true, true, false), vec![], vec![], "release"),
            ("orphaning", row(true, false, true), vec![], vec![dependent("p", true, false)], "orphan p"),
        ] {
            assert_eq!(plan(&row, &owners, &dependents).to_string(), expected, "{what}");
        }
    }
}
