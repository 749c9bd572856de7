//! The backend for Linux: one nftables table of data maps.
//!
//! No chain belongs to a Service: a packet's address, protocol and port name a class (how many backends, when to
//! translate the source), the class has a chain that picks a slot, and the slot holds the backend. So the rules are few
//! and a change is a handful of map elements in one transaction, whatever the number of Services. At start the elements
//! that are there are compared with the table's, so a restart changes nothing that is right and cuts no connection.
//! The mark of packets to Services is used on the way: other programs' marks on them are lost.
//! Not here: IPv6, node ports on localhost, and forgetting UDP connections to backends that went.

pub mod elements;
mod layout;
pub mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use ipnet::IpNet;
use linux_sys::nft::{Batch, Data, Element, Nft, NftError};

use crate::backend::Outcome;
use crate::table::{FrontKey, Table};
use elements::{Class, Elements, Set};
use layout::{CLASSES, LEARN, Layout, add_affinity, add_class, affinity_map, table};
use state::{Delta, Programmed, all_elements};

/// What the backend needs to know of the node.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The node's addresses, on which node ports listen.
    pub node_ips: Vec<Ipv4Addr>,
    /// Every pod's address lies here.
    pub cluster_cidr: IpNet,
}

/// Keeps the kernel's table equal to ours, in the network namespace of the thread that first syncs.
pub struct Nftables {
    settings: Settings,
    kernel: Option<Kernel>,
}

/// The open kernel and what is in it; absent until it was read.
struct Kernel {
    nft: Nft,
    programmed: Programmed,
    classes: BTreeSet<Class>,
}

fn chain(error: &NftError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

impl Nftables {
    /// A backend that has not touched anything yet.
    pub fn new(settings: Settings) -> Self {
        Self { settings, kernel: None }
    }

    /// Makes the front ends of `dirty` what the table says, or with `full` every one after reading the kernel anew.
    /// A change that the kernel refuses is tried once more against what is really there.
    pub fn sync(&mut self, wanted: &Table, dirty: &BTreeSet<FrontKey>, full: bool) -> Result<Outcome, String> {
        if !full && let Some(kernel) = &mut self.kernel {
            match kernel.change(&self.settings, wanted, dirty) {
                Ok(writes) => return Ok(Outcome { writes, failures: Vec::new() }),
                Err(error) => tracing::warn!("the services' table is not what it was left as; comparing all of it: {}", chain(&error)),
            }
        }
        self.full(wanted).map(|writes| Outcome { writes, failures: Vec::new() }).map_err(|error| chain(&error))
    }

    fn full(&mut self, wanted: &Table) -> Result<usize, NftError> {
        let Settings { node_ips, cluster_cidr } = &self.settings;
        let layout = Layout { cluster_cidr: *cluster_cidr };
        let nft = match self.kernel.take() {
            Some(kernel) => kernel.nft,
            None => Nft::open()?,
        };
        let mut batch = Batch::new();
        let (observed, mut classes) = if is_intact(&nft, &layout)? {
            (read_elements(&nft)?, read_classes(&nft)?)
        } else {
            layout.build(&mut batch);
            (Elements::new(), BTreeSet::new())
        };
        let delta = Delta::between(&observed, &all_elements(wanted, node_ips));
        let writes = fill(&mut batch, &delta, &mut classes, *cluster_cidr);
        nft.commit_in_parts(&batch)?;
        self.kernel = Some(Kernel { nft, programmed: Programmed::of(wanted, node_ips), classes });
        Ok(writes)
    }
}

impl Kernel {
    fn change(&mut self, settings: &Settings, wanted: &Table, dirty: &BTreeSet<FrontKey>) -> Result<usize, NftError> {
        let delta = self.programmed.delta(wanted, dirty, &settings.node_ips);
        if delta.is_empty() {
            self.programmed.take(wanted, dirty, &settings.node_ips);
            return Ok(0);
        }
        let mut batch = Batch::new();
        let mut classes = self.classes.clone();
        let writes = fill(&mut batch, &delta, &mut classes, settings.cluster_cidr);
        self.nft.commit_in_parts(&batch)?;
        self.classes = classes;
        let sticky: BTreeSet<u32> =
            dirty.iter().flat_map(|key| [self.programmed.affinity(key), wanted.get(key).and_then(|front| front.affinity)]).flatten().collect();
        self.programmed.take(wanted, dirty, &settings.node_ips);
        self.forget_clients(&delta, sticky)?;
        Ok(writes)
    }

    /// Takes away sticky clients of backends that went, so that they get another one.
    fn forget_clients(&self, delta: &Delta, timeouts: BTreeSet<u32>) -> Result<(), NftError> {
        let slots = |elements: &Elements| -> BTreeSet<(Vec<u8>, Vec<u8>)> {
            let slots = elements.iter().filter(|((set, _), _)| *set == Set::Slots);
            slots.map(|((_, key), target)| (key[..12].to_vec(), target.clone())).collect()
        };
        let added = slots(&delta.add);
        let gone: BTreeSet<_> = slots(&delta.remove).into_iter().filter(|slot| !added.contains(slot)).collect();
        let known = |seconds: &u32| self.classes.iter().any(|class| class.affinity == *seconds);
        if gone.is_empty() {
            return Ok(());
        }
        for map in timeouts.into_iter().filter(known).map(affinity_map) {
            for client in self.nft.elements(&table(), &map)? {
                let Some(Data::Value(target)) = &client.data else { continue };
                if client.key.len() != 16 || !gone.contains(&(client.key[4..].to_vec(), target.clone())) {
                    continue;
                }
                let mut batch = Batch::new();
                batch.del_elements(&table(), &map, &[Element::new(client.key.clone())]);
                match self.nft.commit(&batch) {
                    // It ended by itself meanwhile.
                    Err(error) if error.is_not_found() => {}
                    other => other?,
                }
            }
        }
        Ok(())
    }
}

/// Puts a delta into `batch`, with the classes that it needs and that are not there; returns how many elements change.
fn fill(batch: &mut Batch, delta: &Delta, classes: &mut BTreeSet<Class>, cluster_cidr: IpNet) -> usize {
    for class in delta.classes() {
        if class.affinity != 0 && classes.iter().all(|other| other.affinity != class.affinity) {
            add_affinity(batch, class.affinity);
        }
        if classes.insert(class) {
            add_class(batch, class, cluster_cidr);
        }
    }
    let mut by_set: BTreeMap<Set, (Vec<Element>, Vec<Element>)> = BTreeMap::new();
    for (set, key) in delta.remove.keys() {
        by_set.entry(*set).or_default().0.push(Element::new(key.clone()));
    }
    for ((set, key), data) in &delta.add {
        let element = Element::new(key.clone());
        let element = if data.is_empty() { element } else { element.data(Data::Value(data.clone())) };
        by_set.entry(*set).or_default().1.push(element);
    }
    // Should it take several transactions: front ends go before their slots, and come after them.
    for (set, (remove, _)) in &by_set {
        batch.del_elements(&table(), &set.name(), remove);
    }
    for (set, (_, add)) in by_set.iter().rev() {
        batch.add_elements(&table(), &set.name(), add);
    }
    delta.remove.len() + delta.add.len()
}

/// Whether the table is there with this layout and all its rules.
fn is_intact(nft: &Nft, layout: &Layout) -> Result<bool, NftError> {
    let present: BTreeSet<String> = nft.chains(&table())?.into_iter().map(|chain| chain.name).collect();
    for (chain, rules) in layout.chains() {
        if !present.contains(&chain.name) || nft.rules(&table(), &chain.name)?.len() != rules.len() {
            return Ok(false);
        }
    }
    let sets: BTreeSet<String> = nft.sets(&table())?.into_iter().map(|set| set.name).collect();
    Ok(present.contains(LEARN) && sets.contains(CLASSES) && Set::FIXED.iter().all(|set| sets.contains(&*set.name())))
}

fn read_elements(nft: &Nft) -> Result<Elements, NftError> {
    let mut all = Elements::new();
    for set in nft.sets(&table())?.iter().filter_map(|set| Set::from_name(&set.name)) {
        for element in nft.elements(&table(), &set.name())? {
            let data = match element.data {
                Some(Data::Value(data)) => data,
                _ => Vec::new(),
            };
            all.insert((set, element.key), data);
        }
    }
    Ok(all)
}

/// The classes whose chain is there with its rules, and for sticky ones the rule that notes clients.
fn read_classes(nft: &Nft) -> Result<BTreeSet<Class>, NftError> {
    let learned: BTreeSet<Option<String>> = nft.rules(&table(), LEARN)?.into_iter().map(|rule| rule.comment).collect();
    let learns = |class: &Class| class.affinity == 0 || learned.contains(&Some(Set::Sticky(class.affinity).name().into_owned()));
    let mut classes = BTreeSet::new();
    for class in nft.elements(&table(), CLASSES)?.iter().filter_map(|element| Class::from_data(&element.key)).filter(learns) {
        if !nft.rules(&table(), &class.chain())?.is_empty() {
            classes.insert(class);
        }
    }
    Ok(classes)
}

#[cfg(test)]
mod tests;
