//! Plan for the EndpointSlices of one Service: create, change, delete. Pure.

use std::{collections::HashSet, fmt, sync::Arc};

use cluster::Key;
use sha2::{Digest as _, Sha256};

use super::rows::{Group, Member, Port, Slice, SliceRow, Source};

/// The most endpoints in one slice (upstream: `--max-endpoints-per-slice`).
const MOST: usize = 100;

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

/// Changes the existing slices to the desired endpoints, moving as few endpoints as possible.
pub(super) fn plan(key: &Key, source: &Source, desired: &[Group], slices: &[(Key, Arc<SliceRow>)]) -> Vec<Action> {
    let mut actions = Vec::new();
    let mut kept: HashSet<&str> = HashSet::new();
    for group in with_placeholders(source, desired) {
        let mut present: Vec<&(Key, Arc<SliceRow>)> =
            slices.iter().filter(|(_, row)| row.slice.family == group.family && row.slice.ports == group.ports).collect();
        present.sort_by_key(|(name, _)| number(&name.name).unwrap_or(usize::MAX));
        let filled = fill(&group, &present);
        for (slice_key, row, members) in filled.present {
            kept.insert(&slice_key.name);
            let slice = Slice { members, ..group.clone_empty() };
            if slice != row.slice || !source.describes(row) {
                actions.push(Action::Update { name: slice_key.name.clone(), version: row.version.clone(), slice });
            }
        }
        let taken: HashSet<usize> = present.iter().filter_map(|(name, _)| number(&name.name)).collect();
        let free = (0..).filter(|number| !taken.contains(number));
        for (members, number) in filled.more.into_iter().zip(free) {
            let slice = Slice { members, ..group.clone_empty() };
            actions.push(Action::Create { name: name(key, source, &group, number), slice });
        }
    }
    let gone = slices.iter().filter(|(name, _)| !kept.contains(name.name.as_str()));
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

/// Members stay in their slice; new ones fill free places, then new slices. Slices that end up empty are left out, but for one of an
/// empty group.
fn fill<'a>(group: &Group, present: &[&'a (Key, Arc<SliceRow>)]) -> Filled<'a> {
    let mut left: Vec<&Member> = group.members.iter().collect();
    let mut slices: Vec<(&Key, &SliceRow, Vec<Member>)> = Vec::new();
    for (key, row) in present {
        let stays = |member: &&Member| row.slice.members.iter().any(|one| one.uid == member.uid && one.address == member.address);
        let (mut stay, others): (Vec<&Member>, Vec<&Member>) = left.into_iter().partition(stays);
        let surplus = stay.split_off(stay.len().min(MOST));
        // The order within a slice stays, so that an unchanged slice is an equal one.
        stay.sort_by_key(|member| row.slice.members.iter().position(|one| one.uid == member.uid && one.address == member.address));
        slices.push((key, row, stay.into_iter().cloned().collect()));
        left = others;
        left.extend(surplus);
    }
    let mut left = left.into_iter().cloned();
    for (_, _, members) in slices.iter_mut().filter(|(_, _, members)| !members.is_empty()) {
        members.extend(left.by_ref().take(MOST - members.len()));
    }
    for (_, _, members) in slices.iter_mut().filter(|(_, _, members)| members.is_empty()) {
        members.extend(left.by_ref().take(MOST));
    }
    let mut more: Vec<Vec<Member>> = Vec::new();
    let rest: Vec<Member> = left.collect();
    more.extend(rest.chunks(MOST).map(<[Member]>::to_vec));
    if group.members.is_empty() {
        slices.truncate(1);
        if slices.is_empty() {
            more.push(Vec::new());
        }
    } else {
        slices.retain(|(_, _, members)| !members.is_empty());
    }
    Filled { present: slices, more }
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
