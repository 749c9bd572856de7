//! What was programmed, and what must change in the kernel (pure).

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use nft::{Data, Element, ElementChange, Entry, Verdict};

use super::elements::{Bytes, Class, ElementData, ElementKey, Item, NetworkContext, Role, Set, elements};
use crate::table::{IpFamily, Table, Vip, VipAddress, VipKey};

/// Elements of one set, in the order of keys.
pub type Content = Vec<(ElementKey, ElementData)>;

/// Elements to take out and to put in, in one transaction.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// With the data that is there.
    pub remove: BTreeMap<Set, Content>,
    /// With the data that should be there.
    pub add: BTreeMap<Set, Content>,
}

impl Delta {
    /// From what is in `set` to what should be.
    pub fn compare(&mut self, set: Set, observed: Content, desired: Content) {
        let rows = |content: Content| content.into_iter().map(Row::from).collect();
        let ElementChange { remove, add } = ElementChange::between(rows(observed), rows(desired));
        for (list, sets) in [(remove, &mut self.remove), (add, &mut self.add)] {
            if !list.is_empty() {
                sets.insert(set, list.into_iter().map(|row| (row.key(), row.data())).collect());
            }
        }
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.add.is_empty()
    }

    /// How many elements change.
    pub fn len(&self) -> usize {
        self.remove.values().chain(self.add.values()).map(Vec::len).sum()
    }
}

/// The classes that elements name.
pub fn classes(content: &BTreeMap<Set, Content>) -> BTreeSet<(IpFamily, Class)> {
    let named = content.iter().filter(|(set, _)| matches!(set.role, Role::Vips | Role::Inside));
    named.flat_map(|(set, items)| items.iter().filter_map(|(_, data)| Some((set.family, Class::from_data(data)?)))).collect()
}

/// An element as the engine compares it.
#[derive(Clone, Copy, Debug)]
pub enum Row {
    /// Of a set, or a map of values.
    Data(ElementKey, ElementData),
    /// Of the map of classes: leads to the class's chain.
    Class(IpFamily, Class),
    /// Of the map of classes, but leads elsewhere.
    Foreign(ElementKey),
}

impl From<(ElementKey, ElementData)> for Row {
    fn from((key, data): (ElementKey, ElementData)) -> Self {
        Self::Data(key, data)
    }
}

impl Row {
    fn key(&self) -> ElementKey {
        match self {
            Self::Data(key, _) | Self::Foreign(key) => *key,
            Self::Class(_, class) => ElementKey::of(&class.data()).unwrap_or(ElementKey::EMPTY),
        }
    }

    fn data(&self) -> ElementData {
        if let Self::Data(_, data) = self { *data } else { ElementData::EMPTY }
    }
}

impl Entry for Row {
    /// The kernel has fixed lengths for keys and data of each of our sets, and all of them fit.
    fn read(element: Element) -> Self {
        let key = ElementKey::of(&element.key).unwrap_or(ElementKey::EMPTY);
        match &element.data {
            Some(Data::Value(data)) => Self::Data(key, ElementData::of(data).unwrap_or(ElementData::EMPTY)),
            Some(Data::Verdict(Verdict::Goto(chain))) => {
                let class = Class::from_data(&key);
                let found = class.and_then(|class| IpFamily::ALL.into_iter().find(|family| class.chain(*family) == *chain).zip(Some(class)));
                found.map_or(Self::Foreign(key), |(family, class)| Self::Class(family, class))
            }
            Some(Data::Verdict(_)) => Self::Foreign(key),
            None => Self::Data(key, ElementData::EMPTY),
        }
    }

    fn element(&self) -> Element {
        let element = Element::new(self.key().to_vec());
        match self {
            Self::Data(_, data) if !data.is_empty() => element.data(Data::Value(data.to_vec())),
            Self::Class(family, class) => element.data(Verdict::Goto(class.chain(*family))),
            _ => element,
        }
    }

    fn cmp_key(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }

    fn same_data(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Data(_, a), Self::Data(_, b)) => a == b,
            (Self::Class(a, _), Self::Class(b, _)) => a == b,
            _ => false,
        }
    }
}

/// Puts items of sets in order; of equal ones one stays.
pub fn by_set(items: impl IntoIterator<Item = Item>) -> BTreeMap<Set, Content> {
    let mut sets: BTreeMap<Set, Content> = BTreeMap::new();
    for (set, key, data) in items {
        sets.entry(set).or_default().push((key, data));
    }
    for content in sets.values_mut() {
        content.sort_unstable();
        content.dedup();
    }
    sets
}

/// The VIPs as they were programmed. A VIP is kept by reference: its elements are derived again when it
/// changes.
#[derive(Debug, Default)]
pub struct Programmed {
    vips: BTreeMap<VipKey, Arc<Vip>>,
    /// How many VIPs mean an element of a shared set.
    shared: HashMap<SharedKey, u32>,
    context: NetworkContext,
}

impl Programmed {
    /// Everything of `table`, as after a full pass.
    pub fn of(table: &Table, context: NetworkContext) -> Self {
        let mut programmed = Self { context, ..Self::default() };
        let keys: BTreeSet<VipKey> = table.iter().map(|(key, _)| *key).collect();
        programmed.take(table, &keys);
        programmed
    }

    /// What elements depend on beside VIPs.
    pub fn context(&self) -> &NetworkContext {
        &self.context
    }

    /// VIPs to look at when `dirty` changed: on an address of the node a VIP takes a port from a node port.
    fn affected(&self, dirty: &BTreeSet<VipKey>) -> BTreeSet<VipKey> {
        let twins = dirty.iter().filter(|key| matches!(key.address, VipAddress::Ip(ip) if self.context.node_ips.contains(&ip)));
        let twins = twins.map(|key| VipKey { address: VipAddress::Node(key.family()), ..*key });
        dirty.iter().copied().chain(twins).collect()
    }

    /// What must change for `dirty` to be as `table` says.
    pub fn delta(&self, table: &Table, dirty: &BTreeSet<VipKey>) -> Delta {
        let (mut old, mut new) = (Vec::new(), Vec::new());
        let mut counts: BTreeMap<(Set, ElementKey), i64> = BTreeMap::new();
        for key in self.affected(dirty) {
            let (before, after) = (self.before(&key), items_of(table, &key, &self.context));
            for (list, all, by) in [(before, &mut old, -1), (after, &mut new, 1)] {
                for item in list {
                    if item.0.is_shared() {
                        *counts.entry((item.0, item.1)).or_default() += by;
                    } else {
                        all.push(item);
                    }
                }
            }
        }
        for ((set, key), change) in counts {
            let before = i64::from(self.shared.get(&shared_key(set, &key)).copied().unwrap_or(0));
            for (list, count) in [(&mut old, before), (&mut new, before + change)] {
                if count > 0 {
                    list.push((set, key, ElementData::EMPTY));
                }
            }
        }
        let (mut old, mut new) = (by_set(old), by_set(new));
        let mut delta = Delta::default();
        for set in old.keys().chain(new.keys()).copied().collect::<BTreeSet<_>>() {
            delta.compare(set, old.remove(&set).unwrap_or_default(), new.remove(&set).unwrap_or_default());
        }
        delta
    }

    /// Notes that `dirty` is now as `table` says.
    pub fn take(&mut self, table: &Table, dirty: &BTreeSet<VipKey>) {
        let affected = self.affected(dirty);
        for key in &affected {
            let (before, after) = (self.before(key), items_of(table, key, &self.context));
            for (items, up) in [(before, false), (after, true)] {
                self.count(items, up);
            }
        }
        for key in affected {
            match table.get(&key) {
                Some(vip) => drop(self.vips.insert(key, vip.clone())),
                None => drop(self.vips.remove(&key)),
            }
        }
    }

    /// A VIP as it was programmed.
    pub fn vip(&self, key: &VipKey) -> Option<&Arc<Vip>> {
        self.vips.get(key)
    }

    fn before(&self, key: &VipKey) -> Vec<Item> {
        let Some(vip) = self.vips.get(key) else { return Vec::new() };
        elements(key, vip, &self.context, |ip| !self.vips.contains_key(&at(key, ip)))
    }

    fn count(&mut self, items: Vec<Item>, up: bool) {
        for (set, key, _) in items.into_iter().filter(|(set, ..)| set.is_shared()) {
            let key = shared_key(set, &key);
            let count = self.shared.entry(key).or_default();
            *count = if up { *count + 1 } else { count.saturating_sub(1) };
            if *count == 0 {
                self.shared.remove(&key);
            }
        }
    }
}

/// Whether it is a hairpin, and the address that the element is about: those of hairpins say it twice.
type SharedKey = (bool, Bytes<16>);

fn shared_key(set: Set, key: &ElementKey) -> SharedKey {
    let address = match set.family {
        IpFamily::V4 => 4,
        IpFamily::V6 => 16,
    };
    (set.role == Role::Hairpins, Bytes::of(&key[..address.min(key.len())]).unwrap_or(Bytes::EMPTY))
}

fn at(key: &VipKey, ip: IpAddr) -> VipKey {
    VipKey { address: VipAddress::Ip(ip), ..*key }
}

fn items_of(table: &Table, key: &VipKey, context: &NetworkContext) -> Vec<Item> {
    let Some(vip) = table.get(key) else { return Vec::new() };
    elements(key, vip, context, |ip| table.get(&at(key, ip)).is_none())
}

/// Every element that `table` means.
pub fn all_elements(table: &Table, context: &NetworkContext) -> BTreeMap<Set, Content> {
    by_set(table.iter().flat_map(|(key, _)| items_of(table, key, context)))
}

#[cfg(test)]
mod tests;
