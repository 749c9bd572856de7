//! Tiers as one list (pure): rules as boxes of addresses and ports, which can be intersected.
//!
//! A version of HNS without tiers has no action that skips the rest of a tier. In its place, a rule that passes becomes the rules of the
//! next tier, each cut down to what the passing rule matches.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;

use ipnet::IpNet;

use crate::net::{Range, meet, merged};
use crate::policy::{Action, Direction, Protocol};
use crate::profile::{GroupKey, Ports, Profile, ProfileRule};
use crate::world::Member;

/// Packets by the peer's address and the destination's port; none is any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Box {
    pub peers: Option<Vec<Range>>,
    pub ports: Option<Vec<Ports>>,
}

impl Box {
    /// What both match; none when that is nothing.
    fn intersection(&self, other: &Self) -> Option<Self> {
        let peers = match (&self.peers, &other.peers) {
            (Some(one), Some(other)) => Some(meet(one, other)),
            (one, other) => one.as_ref().or(other.as_ref()).cloned(),
        };
        let ports = both(self.ports.as_deref(), other.ports.as_deref(), |a, b| {
            let (first, last) = (a.first.max(b.first), a.last.min(b.last));
            (a.protocol == b.protocol && first <= last).then_some(Ports { protocol: a.protocol, first, last })
        });
        let nothing = peers.as_ref().is_some_and(Vec::is_empty) || ports.as_ref().is_some_and(Vec::is_empty);
        (!nothing).then_some(Self { peers, ports })
    }
}

fn both<T: Clone>(one: Option<&[T]>, other: Option<&[T]>, meet: impl Fn(&T, &T) -> Option<T>) -> Option<Vec<T>> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.iter().flat_map(|a| other.iter().filter_map(|b| meet(a, b)).collect::<Vec<_>>()).collect()),
        (Some(list), None) | (None, Some(list)) => Some(list.to_vec()),
        (None, None) => None,
    }
}

/// A rule spelt out: no names of groups.
pub fn boxes(rule: &ProfileRule, members: Members<'_>) -> Vec<Box> {
    let mut all = Vec::new();
    let peers = rule.peers.as_ref().map(|groups| merged(groups.iter().flat_map(|group| addresses(group, members)).collect()));
    let nothing = peers.as_ref().is_some_and(Vec::is_empty) || rule.ports.as_ref().is_some_and(Vec::is_empty);
    if !nothing {
        all.push(Box { peers, ports: rule.ports.clone() });
    }
    for group in &rule.named {
        for (port, peers) in &*members(group) {
            let ranges = peers.iter().map(|ip| Range::of(IpNet::from(*ip))).collect();
            all.push(Box { peers: Some(merged(ranges)), ports: port.map(|(protocol, port)| vec![Ports { protocol, first: port, last: port }]) });
        }
    }
    all
}

fn addresses(group: &GroupKey, members: Members<'_>) -> Vec<Range> {
    match group {
        GroupKey::Nets(ranges) => ranges.clone(),
        _ => members(group).values().flatten().map(|ip| Range::of(IpNet::from(*ip))).collect(),
    }
}

/// The addresses of a group by their port; without one where the group's rules name ports themselves.
pub type ByPort = BTreeMap<Option<(Protocol, u16)>, Vec<IpAddr>>;

/// Finds the members of a group.
pub type Members<'a> = &'a dyn Fn(&GroupKey) -> Rc<ByPort>;

/// Members by their port.
pub fn by_port(members: impl Iterator<Item = Member>) -> ByPort {
    let mut ports = ByPort::new();
    members.for_each(|(ip, port)| ports.entry(port).or_default().push(ip));
    ports
}

/// The profile as one list without [`Action::Pass`]; its last entry matches everything.
pub fn flatten(profile: &Profile, members: Members<'_>) -> Vec<(Action, Box)> {
    let mut rest: Vec<(Action, Box)> = Vec::new();
    for rule in &profile.rest {
        // Behind the last tier there is nothing left to pass on to but the end.
        let action = if rule.action == Action::Pass { profile.end.0 } else { rule.action };
        rest.extend(boxes(rule, members).into_iter().map(|one| (action, one)));
    }
    rest.push((profile.end.0, Box::default()));
    let mut all = Vec::new();
    for rule in &profile.admin {
        for one in boxes(rule, members) {
            match rule.action {
                Action::Pass => all.extend(rest.iter().filter_map(|(action, other)| Some((*action, one.intersection(other)?)))),
                action => all.push((action, one)),
            }
        }
    }
    all.extend(rest);
    all
}

/// Whether a profile needs tiers.
pub fn passes(profile: &Profile) -> bool {
    profile.admin.iter().any(|rule| rule.action == Action::Pass)
}

/// The side of a packet at which the peer stands.
pub fn is_inbound(direction: Direction) -> bool {
    direction == Direction::Ingress
}
