//! Plan for the EndpointSlices of one Service: create, change, delete. Pure.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
};

use cluster::Key;
use sha2::{Digest as _, Sha256};

use super::rows::{Group, Member, Port, Slice, SliceRow, Source};

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    Create { name: String, slice: Slice },
    Update { name: String, version: String, slice: Slice },
    Delete { name: String, version: String },
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members = |slice: &Slice| slice.members.iter().map(|member| format!(" {}", describe(member))).collect::<String>();
        match self {
            Self::Create { name, slice } => write!(f, "create {name}:{}", members(slice)),
            Self::Update { name, slice, .. } => write!(f, "update {name}:{}", members(slice)),
            Self::Delete { name, .. } => write!(f, "delete {name}"),
        }
    }
}

fn describe(member: &Member) -> String {
    let state = match (member.ready, member.serving, member.terminating) {
        (true, _, false) => "",
        (_, true, true) => "(draining)",
        (_, _, true) => "(terminating)",
        (false, ..) => "(not ready)",
    };
    format!("{}{state}", member.address)
}

/// Changes the existing slices to the desired endpoints, moving as few endpoints and writing as few slices as possible. Slices that are being
/// deleted count as gone, but for their names.
pub(super) fn plan(key: &Key, source: &Source, desired: &[Group], slices: &[(Key, Arc<SliceRow>)]) -> Vec<Action> {
    let mut actions = Vec::new();
    let mut kept: HashSet<&str> = HashSet::new();
    for group in with_placeholders(source, desired) {
        let mut present: Vec<&(Key, Arc<SliceRow>)> =
            slices.iter().filter(|(_, row)| row.slice.family == group.family && row.slice.ports == group.ports).collect();
        present.sort_by_key(|(name, _)| number(&name.name).unwrap_or(usize::MAX));
        let taken: HashSet<usize> = present.iter().filter_map(|(name, _)| number(&name.name)).collect();
        present.retain(|(_, row)| !row.leaving);
        let filled = fill(source, &group, &present);
        for (slice_key, row, members) in filled.present {
            kept.insert(&slice_key.name);
            let slice = Slice { members, ..group.clone_empty() };
            if slice != row.slice || !source.describes(row) {
                actions.push(Action::Update { name: slice_key.name.clone(), version: row.version.clone(), slice });
            }
        }
        let free = (0..).filter(|number| !taken.contains(number));
        for (members, number) in filled.more.into_iter().zip(free) {
            let slice = Slice { members, ..group.clone_empty() };
            actions.push(Action::Create { name: name(key, source, &group, number), slice });
        }
    }
    let gone = slices.iter().filter(|(name, row)| !row.leaving && !kept.contains(name.name.as_str()));
    actions.extend(gone.map(|(name, row)| Action::Delete { name: name.name.clone(), version: row.version.clone() }));
    actions
}

impl Slice {
    fn clone_empty(&self) -> Self {
        Self { family: self.family.clone(), ports: self.ports.clone(), members: Vec::new() }
    }
}

/// A Service without any endpoint has one empty slice a family, so that clients can tell "none" from "not known yet".
fn with_placeholders(source: &Source, desired: &[Group]) -> Vec<Group> {
    let mut groups = desired.to_vec();
    for family in &source.families {
        if !groups.iter().any(|group| group.family == *family) {
            groups.push(Group { family: family.clone(), ports: Vec::new(), members: Vec::new() });
        }
    }
    groups
}

struct Filled<'a> {
    /// Slices there are, with their new members.
    present: Vec<(&'a Key, &'a SliceRow, Vec<Member>)>,
    /// Members of slices to be made.
    more: Vec<Vec<Member>>,
}

/// A slice that is there, and what it will hold.
struct Filling<'a> {
    key: &'a Key,
    row: &'a SliceRow,
    members: Vec<Member>,
    /// It is written in any case.
    is_touched: bool,
}

/// Members stay in their slice. New ones go to slices that are written anyway, then all to one other slice where there is room, then to new
/// slices (upstream: `reconcileByPortMapping`). Slices that end up empty are left out, but for one of an empty group.
fn fill<'a>(source: &Source, group: &Group, present: &[&'a (Key, Arc<SliceRow>)]) -> Filled<'a> {
    let mut places: HashMap<(&str, &str), &Member> =
        group.members.iter().map(|member| ((member.uid.as_str(), member.address.as_str()), member)).collect();
    let mut slices: Vec<Filling<'a>> = Vec::new();
    for (key, row) in present {
        let mut members = Vec::new();
        for old in &row.slice.members {
            members.extend(places.remove(&(old.uid.as_str(), old.address.as_str())).cloned());
        }
        let is_touched = members != row.slice.members || !source.describes(row);
        slices.push(Filling { key, row, members, is_touched });
    }
    let is_left = |member: &&Member| places.contains_key(&(member.uid.as_str(), member.address.as_str()));
    let mut left: Vec<Member> = group.members.iter().filter(is_left).cloned().collect();
    let take = |members: &mut Vec<Member>, left: &mut Vec<Member>| {
        let room = source.most.saturating_sub(members.len()).min(left.len());
        members.extend(left.drain(..room));
    };
    let mut touched: Vec<&mut Filling<'_>> = slices.iter_mut().filter(|slice| slice.is_touched && !slice.members.is_empty()).collect();
    touched.sort_by_key(|slice| Reverse(slice.members.len()));
    touched.into_iter().for_each(|slice| take(&mut slice.members, &mut left));
    let mut more: Vec<Vec<Member>> = Vec::new();
    while !left.is_empty() {
        let fits = |slice: &&mut Filling<'_>| !slice.is_touched && !slice.members.is_empty() && slice.members.len() + left.len() <= source.most;
        // The first of the fullest ones.
        let fitting = slices.iter_mut().filter(fits).min_by_key(|slice| Reverse(slice.members.len()));
        if let Some(slice) = fitting {
            take(&mut slice.members, &mut left);
        } else if let Some(slice) = slices.iter_mut().find(|slice| slice.members.is_empty()) {
            take(&mut slice.members, &mut left);
        } else {
            let mut members = Vec::new();
            take(&mut members, &mut left);
            more.push(members);
        }
    }
    if group.members.is_empty() {
        slices.truncate(1);
        if slices.is_empty() {
            more.push(Vec::new());
        }
    } else {
        slices.retain(|slice| !slice.members.is_empty());
    }
    Filled { present: slices.into_iter().map(|slice| (slice.key, slice.row, slice.members)).collect(), more }
}

/// The name of a Service's slice for these ports: five hex digits of what they are, and a number.
fn name(key: &Key, source: &Source, group: &Group, number: usize) -> String {
    let mut digest = Sha256::new().chain_update(&source.uid).chain_update(&group.family);
    for Port { name, protocol, app_protocol, port } in &group.ports {
        digest.update(format!("|{name}|{protocol}|{app_protocol:?}|{port}"));
    }
    let digest: String = digest.finalize().iter().take(3).map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{number}", key.name, &digest[..5])
}

fn number(name: &str) -> Option<usize> {
    name.rsplit_once('-')?.1.parse().ok()
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
