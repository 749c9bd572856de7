//! What the kernel's table holds, and what a change adds to it and takes from it (pure).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use cluster::Key;
use nft::Desired;

use super::layout;
use crate::policy::{Both, Direction};
use crate::profile::{GroupKey, Ports, Profile};
use crate::world::{Changes, World};

/// What is programmed.
#[derive(Debug, Default)]
pub struct Programmed {
    /// The pods of each address; the first one's profiles count while several claim it.
    owners: BTreeMap<IpAddr, BTreeSet<Key>>,
    /// The addresses of each local pod.
    endpoints: BTreeMap<Key, Box<[IpAddr]>>,
    /// The profiles of each address.
    slots: BTreeMap<IpAddr, Both<Option<u32>>>,
    profiles: Profiles,
    /// How many profiles name each group.
    groups: BTreeMap<Arc<GroupKey>, usize>,
    /// How many rules name each list of ports.
    ports: BTreeMap<Vec<Ports>, usize>,
}

/// The numbers of profiles.
#[derive(Debug, Default)]
struct Profiles {
    numbers: BTreeMap<Arc<Profile>, (u32, usize)>,
    taken: BTreeSet<u32>,
}

impl Profiles {
    /// A number that follows from the profile, so that a restart finds its chain again; the next free one where two profiles agree.
    fn number(&mut self, profile: &Arc<Profile>) -> u32 {
        if let Some((number, _)) = self.numbers.get(profile) {
            return *number;
        }
        let hash = u64::from_str_radix(&profile.name(), 16).unwrap_or_default();
        let mut number = (hash >> 32) as u32;
        // Priority 0 is everybody's.
        while number == 0 || self.taken.contains(&number) {
            number = number.wrapping_add(1);
        }
        self.taken.insert(number);
        self.numbers.insert(profile.clone(), (number, 0));
        number
    }
}

impl Programmed {
    /// The whole table, after which that is programmed.
    pub fn whole(&mut self, world: &World) -> Desired {
        *self = Self::default();
        let mut desired = layout::fixed();
        let changes = Changes { endpoints: world.endpoints().map(|(key, _)| key.clone()).collect(), ..Changes::default() };
        let mut nothing = Desired::new(layout::table());
        self.change_into(world, &changes, &mut nothing, &mut desired);
        desired
    }

    /// The parts of the table that a change concerns, as they were and as they will be, after which that is programmed.
    pub fn change(&mut self, world: &World, changes: &Changes) -> (Desired, Desired) {
        let (mut before, mut after) = (Desired::new(layout::table()), Desired::new(layout::table()));
        self.change_into(world, changes, &mut before, &mut after);
        (before, after)
    }

    fn change_into(&mut self, world: &World, changes: &Changes, before: &mut Desired, after: &mut Desired) {
        let old_groups: BTreeSet<Arc<GroupKey>> = changes.groups.keys().filter(|group| self.groups.contains_key(*group)).cloned().collect();
        let touched = self.take_endpoints(world, &changes.endpoints);
        let mut uses: BTreeMap<Arc<Profile>, isize> = BTreeMap::new();
        for ip in touched {
            self.change_slot(world, ip, before, after, &mut uses);
        }
        let (mut new, mut gone) = (Vec::new(), Vec::new());
        for (profile, change) in uses {
            let Some((number, count)) = self.profiles.numbers.get_mut(&profile) else { continue };
            let was = *count;
            *count = count.saturating_add_signed(change);
            match (was, *count) {
                (0, 0) => {
                    self.profiles.taken.remove(number);
                    self.profiles.numbers.remove(&profile);
                }
                (0, _) => {
                    layout::add_profile(after, *number, &profile);
                    new.push(profile);
                }
                (_, 0) => {
                    layout::add_profile(before, *number, &profile);
                    self.profiles.taken.remove(number);
                    self.profiles.numbers.remove(&profile);
                    gone.push(profile);
                }
                _ => {}
            }
        }
        // Sets that both name stay as they are.
        new.iter().for_each(|profile| self.acquire(world, profile, after));
        gone.iter().for_each(|profile| self.release(profile));
        self.settle(before);
        for group in old_groups.iter().filter(|group| self.groups.contains_key(*group)) {
            for (member, was_in) in &changes.groups[group] {
                match (was_in, world.has_member(group, *member)) {
                    (true, false) => layout::add_member(before, group, *member),
                    (false, true) => layout::add_member(after, group, *member),
                    _ => {}
                }
            }
        }
    }

    /// Takes in the addresses of changed pods; returns the addresses whose profiles may differ.
    fn take_endpoints(&mut self, world: &World, changed: &BTreeSet<Key>) -> BTreeSet<IpAddr> {
        let mut touched = BTreeSet::new();
        for key in changed {
            let new = world.endpoint(key).map(|endpoint| endpoint.ips.clone());
            let old = match new.clone() {
                Some(ips) => self.endpoints.insert(key.clone(), ips),
                None => self.endpoints.remove(key),
            };
            for ip in old.iter().flatten() {
                if let Some(owners) = self.owners.get_mut(ip) {
                    owners.remove(key);
                }
                touched.insert(*ip);
            }
            for ip in new.iter().flatten() {
                self.owners.entry(*ip).or_default().insert(key.clone());
                touched.insert(*ip);
            }
        }
        touched
    }

    fn change_slot(&mut self, world: &World, ip: IpAddr, before: &mut Desired, after: &mut Desired, uses: &mut BTreeMap<Arc<Profile>, isize>) {
        let owner = self.owners.get(&ip).and_then(BTreeSet::first).and_then(|key| world.endpoint(key));
        if self.owners.get(&ip).is_some_and(BTreeSet::is_empty) {
            self.owners.remove(&ip);
        }
        let old = self.slots.remove(&ip).unwrap_or_default();
        let mut new = Both::default();
        for direction in Direction::BOTH {
            let profile = owner.and_then(|endpoint| endpoint.profiles.of(direction).as_ref());
            let number = profile.map(|profile| self.profiles.number(profile));
            *new.of_mut(direction) = number;
            let was = *old.of(direction);
            if number == was {
                continue;
            }
            if let Some(profile) = profile {
                *uses.entry(profile.clone()).or_default() += 1;
            }
            if let Some(profile) = was.and_then(|was| self.profile(was)) {
                *uses.entry(profile).or_default() -= 1;
            }
            was.iter().for_each(|number| layout::add_pod(before, ip, direction, *number));
            number.iter().for_each(|number| layout::add_pod(after, ip, direction, *number));
        }
        let (was, is) = (old != Both::default(), new != Both::default());
        match (was, is) {
            (false, true) => layout::add_own(after, ip),
            (true, false) => layout::add_own(before, ip),
            _ => {}
        }
        if is {
            self.slots.insert(ip, new);
        }
    }

    fn profile(&self, number: u32) -> Option<Arc<Profile>> {
        self.profiles.numbers.iter().find(|(_, (held, _))| *held == number).map(|(profile, _)| profile.clone())
    }

    /// Sets that a new profile names and that are not there yet.
    fn acquire(&mut self, world: &World, profile: &Profile, after: &mut Desired) {
        for group in profile.groups() {
            let count = self.groups.entry(group.clone()).or_default();
            *count += 1;
            if *count == 1 {
                layout::declare_group(after, group);
                world.members(group).for_each(|member| layout::add_member(after, group, member));
            }
        }
        for ports in profile.rules().filter_map(|rule| rule.ports.as_ref()).filter(|ports| !ports.is_empty()) {
            let count = self.ports.entry(ports.clone()).or_default();
            *count += 1;
            if *count == 1 {
                layout::declare_ports(after, ports);
            }
        }
    }

    fn release(&mut self, profile: &Profile) {
        for group in profile.groups() {
            self.groups.entry(group.clone()).and_modify(|count| *count -= 1);
        }
        for ports in profile.rules().filter_map(|rule| rule.ports.as_ref()).filter(|ports| !ports.is_empty()) {
            self.ports.entry(ports.clone()).and_modify(|count| *count -= 1);
        }
    }

    /// Sets that no profile names any more go.
    fn settle(&mut self, before: &mut Desired) {
        self.groups.retain(|group, count| {
            if *count == 0 {
                layout::declare_group(before, group);
            }
            *count > 0
        });
        self.ports.retain(|ports, count| {
            if *count == 0 {
                layout::declare_ports(before, ports);
            }
            *count > 0
        });
    }
}
