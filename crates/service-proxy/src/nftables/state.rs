//! What was programmed, and what must change in the kernel (pure).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use super::elements::{Class, Elements, Set, elements};
use crate::table::{Front, FrontKey, IpFamily, Table, Vip};

/// Elements to take out and to put in, in this order, in one transaction.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// Keys with the data that is there.
    pub remove: Elements,
    /// Keys with the data that should be there.
    pub add: Elements,
}

impl Delta {
    /// From what is there to what should be.
    pub fn between(observed: &Elements, wanted: &Elements) -> Self {
        let differs = |a: &Elements, b: &Elements| -> Elements {
            a.iter().filter(|(key, data)| b.get(key) != Some(data)).map(|(key, data)| (key.clone(), data.clone())).collect()
        };
        Self { remove: differs(observed, wanted), add: differs(wanted, observed) }
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.add.is_empty()
    }

    /// The classes that added elements name.
    pub fn classes(&self) -> BTreeSet<Class> {
        let named = self.add.iter().filter(|((set, _), _)| matches!(set, Set::Frontends | Set::Inside));
        named.filter_map(|(_, data)| Class::from_data(data)).collect()
    }
}

/// The front ends as they were programmed. A front end is kept by reference: its elements are derived again when it
/// changes.
#[derive(Debug, Default)]
pub struct Programmed {
    fronts: BTreeMap<FrontKey, Arc<Front>>,
    /// How many front ends mean an element of a shared set.
    shared: HashMap<(Set, Vec<u8>), usize>,
}

impl Programmed {
    /// Everything of `table`, as after a full pass.
    pub fn of(table: &Table, node_ips: &[Ipv4Addr]) -> Self {
        let mut programmed = Self::default();
        let keys: BTreeSet<FrontKey> = table.iter().map(|(key, _)| *key).collect();
        programmed.take(table, &keys, node_ips);
        programmed
    }

    /// Front ends to look at when `dirty` changed: on an address of the node a front end takes a port from a node port.
    fn affected(dirty: &BTreeSet<FrontKey>, node_ips: &[Ipv4Addr]) -> BTreeSet<FrontKey> {
        let twins = dirty.iter().filter(|key| on_node(key, node_ips)).map(|key| FrontKey { vip: Vip::Node(IpFamily::V4), ..*key });
        dirty.iter().copied().chain(twins).collect()
    }

    /// What must change for `dirty` to be as `table` says.
    pub fn delta(&self, table: &Table, dirty: &BTreeSet<FrontKey>, node_ips: &[Ipv4Addr]) -> Delta {
        let (mut old, mut new) = (Elements::new(), Elements::new());
        let mut counts: BTreeMap<(Set, Vec<u8>), isize> = BTreeMap::new();
        for key in Self::affected(dirty, node_ips) {
            let (before, after) = (self.before(&key, node_ips), Self::after(table, &key, node_ips));
            for (list, all, by) in [(before, &mut old, -1), (after, &mut new, 1)] {
                for (element, data) in list {
                    if element.0.is_shared() {
                        *counts.entry(element).or_default() += by;
                    } else {
                        all.insert(element, data);
                    }
                }
            }
        }
        let mut delta = Delta::between(&old, &new);
        for (element, change) in counts {
            let before = self.shared.get(&element).copied().unwrap_or(0);
            match (before, before.checked_add_signed(change).unwrap_or(0)) {
                (0, 1..) => drop(delta.add.insert(element, Vec::new())),
                (1.., 0) => drop(delta.remove.insert(element, Vec::new())),
                _ => {}
            }
        }
        delta
    }

    /// Notes that `dirty` is now as `table` says.
    pub fn take(&mut self, table: &Table, dirty: &BTreeSet<FrontKey>, node_ips: &[Ipv4Addr]) {
        let affected = Self::affected(dirty, node_ips);
        for key in &affected {
            let (before, after) = (self.before(key, node_ips), Self::after(table, key, node_ips));
            for (elements, up) in [(before, false), (after, true)] {
                self.count(elements, up);
            }
        }
        for key in affected {
            match table.get(&key) {
                Some(front) => drop(self.fronts.insert(key, front.clone())),
                None => drop(self.fronts.remove(&key)),
            }
        }
    }

    /// The affinity timeout with which a front end was programmed.
    pub fn affinity(&self, key: &FrontKey) -> Option<u32> {
        self.fronts.get(key)?.affinity
    }

    fn before(&self, key: &FrontKey, node_ips: &[Ipv4Addr]) -> Elements {
        let front = self.fronts.get(key);
        front.map(|front| elements(key, front, &free_ips(key, node_ips, |k| self.fronts.contains_key(k)))).unwrap_or_default()
    }

    fn after(table: &Table, key: &FrontKey, node_ips: &[Ipv4Addr]) -> Elements {
        let front = table.get(key);
        front.map(|front| elements(key, front, &free_ips(key, node_ips, |k| table.get(k).is_some()))).unwrap_or_default()
    }

    fn count(&mut self, elements: Elements, up: bool) {
        for element in elements.into_keys().filter(|(set, _)| set.is_shared()) {
            let count = self.shared.entry(element.clone()).or_default();
            *count = if up { *count + 1 } else { count.saturating_sub(1) };
            if *count == 0 {
                self.shared.remove(&element);
            }
        }
    }
}

/// Every element that `table` means.
pub fn all_elements(table: &Table, node_ips: &[Ipv4Addr]) -> Elements {
    table.iter().flat_map(|(key, _)| Programmed::after(table, key, node_ips)).collect()
}

fn on_node(key: &FrontKey, node_ips: &[Ipv4Addr]) -> bool {
    matches!(key.vip, Vip::Address(IpAddr::V4(ip)) if node_ips.contains(&ip))
}

/// The node's addresses on which no other front end has the same port.
fn free_ips(key: &FrontKey, node_ips: &[Ipv4Addr], taken: impl Fn(&FrontKey) -> bool) -> Vec<Ipv4Addr> {
    let at = |ip: Ipv4Addr| FrontKey { vip: Vip::Address(ip.into()), ..*key };
    node_ips.iter().copied().filter(|ip| !taken(&at(*ip))).collect()
}

#[cfg(test)]
mod tests {
    use cluster::Key;
    use proptest::prelude::*;

    use super::*;
    use crate::table::{Backend, Backends, Kind, Protocol};

    /// A kernel that refuses what nf_tables refuses: adding what is there, removing what is not.
    fn apply(kernel: &mut Elements, delta: &Delta) {
        for (key, data) in &delta.remove {
            assert_eq!(kernel.remove(key).as_ref(), Some(data), "removes what is there: {key:?}");
        }
        for (key, data) in &delta.add {
            assert_eq!(kernel.insert(key.clone(), data.clone()), None, "adds what is not there: {key:?}");
        }
    }

    fn service() -> impl Strategy<Value = Vec<(FrontKey, Front)>> {
        let backend = (1u8..4, any::<bool>()).prop_map(|(n, local)| Backend { address: Ipv4Addr::new(192, 168, 0, n).into(), port: 80, local });
        let front = (0u8..5, prop::collection::vec(backend, 0..4), prop::option::of(Just(60)), any::<bool>()).prop_map(
            |(at, mut backends, affinity, keep)| {
                backends.sort();
                backends.dedup_by_key(|b| b.address);
                let (vip, kind) = match at {
                    0 => (Vip::Node(IpFamily::V4), Kind::NodePort),
                    // One of the node's own addresses.
                    1 => (Vip::Address(Ipv4Addr::new(10, 240, 0, 11).into()), Kind::ExternalIp),
                    n => (Vip::Address(Ipv4Addr::new(10, 96, 0, n).into()), Kind::ClusterIp),
                };
                let backends: Backends = backends.into();
                let inside = keep.then(|| backends.clone());
                let front = Front { backends, inside, keep_client: keep, affinity, ..Front::new("s", kind) };
                (FrontKey { vip, protocol: Protocol::Tcp, port: 80 }, front)
            },
        );
        prop::collection::vec(front, 0..3)
    }

    proptest! {
        #[test]
        fn any_sequence_of_changes_ends_where_a_full_pass_would(changes in prop::collection::vec((0u8..4, service()), 1..30), batch in 1usize..4, ips in 1usize..3) {
            let node_ips = &[Ipv4Addr::new(10, 240, 0, 11), Ipv4Addr::new(10, 250, 0, 11)][..ips];
            let (mut table, mut programmed, mut kernel) = (Table::default(), Programmed::default(), Elements::new());
            for chunk in changes.chunks(batch) {
                let mut dirty = BTreeSet::new();
                for (name, fronts) in chunk {
                    let changed = table.set_service(&Key::new("ns", name.to_string()), fronts.clone());
                    dirty.extend(changed.into_iter().map(|change| change.key));
                }
                let delta = programmed.delta(&table, &dirty, node_ips);
                apply(&mut kernel, &delta);
                programmed.take(&table, &dirty, node_ips);
                prop_assert_eq!(&kernel, &all_elements(&table, node_ips));
                prop_assert!(programmed.delta(&table, &dirty, node_ips).is_empty());
            }
        }
    }

    #[test]
    fn a_full_pass_takes_out_what_is_foreign_to_the_table() {
        let key = |n| (Set::ClusterIps, vec![10, 96, 0, n]);
        let observed = Elements::from([(key(1), vec![]), ((Set::Frontends, vec![1]), vec![7])]);
        let wanted = Elements::from([(key(2), vec![]), ((Set::Frontends, vec![1]), vec![8])]);
        let delta = Delta::between(&observed, &wanted);
        assert_eq!((delta.remove.len(), delta.add.len()), (2, 2), "changed data is removed and added");
    }
}
