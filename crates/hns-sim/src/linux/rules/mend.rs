//! Tables that are too large to be written anew at one go are brought to the facts instead, so that no packet meets half a table.
//!
//! ```text
//! 1  elements that are missing or other, but for frontends        in parts
//! 2  every chain but those of ways of picking, anew;              one transaction
//!    and ways of picking that are missing
//! 3  frontends that are missing or other                          in parts
//! 4  elements that nobody means, frontends first                  in parts
//! 5  ways of picking that nobody means                            one transaction
//! ```
//! A way of picking says all it does in its chain's name, so that one of that name is right.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use nft::{Batch, Data, Element, Family, Nft, Table, Verdict};

use super::chains::{ACCESS_IN, ACCESS_OUT, FINGERPRINT, FRONTENDS, HOST_PICKS, PICKS, VERSION, add_chains, chain_of};
use super::elements::elements;
use super::{FAMILIES, Fingerprint, family, is_in_tables, put_chains, table, tunnels};
use crate::fact::{Fact, Selector};

/// Elements that go into one transaction.
const PART: usize = 1000;

/// What leads to chains, or to nothing.
const NOT_DATA: [&str; 6] = [PICKS, HOST_PICKS, ACCESS_IN, ACCESS_OUT, FINGERPRINT, VERSION];

/// Sets of addresses, and those of access rules: they come and go with the chains that name them.
fn goes_with_chains(set: &str) -> bool {
    ["set-", "in-", "out-"].iter().any(|prefix| set.starts_with(prefix))
}

type Set = (Family, String);

/// The elements of a set by their keys.
type Elements = BTreeMap<(Vec<u8>, Vec<u8>), Element>;

fn keyed(elements: impl IntoIterator<Item = Element>) -> Elements {
    let key = |element: &Element| (element.key.clone(), element.key_end.clone().unwrap_or_else(|| element.key.clone()));
    elements.into_iter().map(|element| (key(&element), element)).collect()
}

/// What is to be done in one set.
#[derive(Default)]
struct Change {
    /// Elements that are there with other data.
    old: Vec<Element>,
    new: Vec<Element>,
    stale: Vec<Element>,
}

impl Change {
    fn between(mut there: Elements, wanted: Elements) -> Self {
        let mut change = Self::default();
        for (key, element) in wanted {
            match there.remove(&key) {
                Some(found) if found.data == element.data => {}
                found => {
                    change.old.extend(found);
                    change.new.push(element);
                }
            }
        }
        change.stale = there.into_values().collect();
        change
    }

    /// In parts; what changes is never gone.
    fn write(&self, nft: &Nft, (family, set): &Set) -> io::Result<()> {
        let (table, other) = (table(*family), keyed(self.old.iter().cloned()));
        for part in self.new.chunks(PART) {
            let old: Vec<Element> = keyed(part.iter().cloned()).into_keys().filter_map(|key| other.get(&key).cloned()).collect();
            let mut batch = Batch::new();
            batch.del_elements(&table, set, &old);
            batch.add_elements(&table, set, part);
            nft.commit(&batch)?;
        }
        Ok(())
    }

    fn clean(&self, nft: &Nft, (family, set): &Set) -> io::Result<()> {
        for part in self.stale.chunks(PART) {
            let mut batch = Batch::new();
            batch.del_elements(&table(*family), set, part);
            nft.commit(&batch)?;
        }
        Ok(())
    }
}

/// Whether the kernel's tables were made by this version, so that their sets and ways of picking are what they would be.
pub(super) fn is_ours(nft: &Nft) -> bool {
    nft.elements(&table(Family::Ip), VERSION).is_ok_and(|found| found == [Fingerprint::default().element()])
}

/// Brings the tables to the facts.
pub(super) fn mend(nft: &Nft, facts: &[&Fact], fingerprint: Fingerprint) -> io::Result<()> {
    let mut base = Batch::new();
    tunnels::add_sets(&mut base);
    nft.commit(&base)?;
    let changes = changes(nft, facts)?;
    let (frontends, others): (Vec<_>, Vec<_>) = changes.iter().partition(|((_, set), _)| set == FRONTENDS);
    others.iter().try_for_each(|(set, change)| change.write(nft, set))?;
    let picks: BTreeSet<Selector> = facts.iter().filter_map(|fact| if let Fact::Selector(pick) = fact { Some(*pick) } else { None }).collect();
    let there = ways_of_picking(nft)?;
    nft.commit(&chains_anew(nft, facts, &there)?)?;
    frontends.iter().try_for_each(|(set, change)| change.write(nft, set))?;
    frontends.iter().chain(&others).try_for_each(|(set, change)| change.clean(nft, set))?;
    let wanted: BTreeSet<(Family, String)> = picks.into_iter().map(|pick| (family(pick.ipv6), chain_of(pick))).collect();
    let mut batch = Batch::new();
    for (family, chain) in there.difference(&wanted) {
        drop_pick(nft, &mut batch, &table(*family), chain)?;
    }
    batch.flush_set(&table(Family::Ip), FINGERPRINT);
    batch.add_elements(&table(Family::Ip), FINGERPRINT, &[fingerprint.element()]);
    Ok(nft.commit(&batch)?)
}

/// What is to be done in each set of data.
fn changes(nft: &Nft, facts: &[&Fact]) -> io::Result<Vec<(Set, Change)>> {
    let mut wanted: BTreeMap<Set, Vec<Element>> = BTreeMap::new();
    for (family, set, element) in facts.iter().filter(|fact| is_in_tables(fact)).flat_map(|fact| elements(fact)) {
        wanted.entry((family, set)).or_default().push(element);
    }
    let mut changes = Vec::new();
    for family in [Family::Netdev].into_iter().chain(FAMILIES) {
        for info in nft.sets(&table(family))? {
            if NOT_DATA.contains(&info.name.as_str()) || goes_with_chains(&info.name) {
                continue;
            }
            let there = keyed(nft.elements(&table(family), &info.name)?);
            let set = (family, info.name);
            let change = Change::between(there, keyed(wanted.remove(&set).unwrap_or_default()));
            changes.push((set, change));
        }
    }
    Ok(changes)
}

fn ways_of_picking(nft: &Nft) -> io::Result<BTreeSet<(Family, String)>> {
    let mut all = BTreeSet::new();
    for family in FAMILIES {
        let names = nft.chains(&table(family))?.into_iter().map(|chain| chain.name);
        all.extend(names.filter(|name| name.starts_with("pick-")).map(|name| (family, name)));
    }
    Ok(all)
}

/// Every chain but those of ways of picking, with the sets that they name; and the ways of picking that are not `there`.
fn chains_anew(nft: &Nft, facts: &[&Fact], there: &BTreeSet<(Family, String)>) -> io::Result<Batch> {
    let mut batch = Batch::new();
    for family in FAMILIES {
        let table = table(family);
        let chains: Vec<String> = nft.chains(&table)?.into_iter().map(|chain| chain.name).filter(|name| !name.starts_with("pick-")).collect();
        for chain in &chains {
            batch.flush_chain(&table, chain);
        }
        for map in [ACCESS_IN, ACCESS_OUT] {
            batch.flush_set(&table, map);
        }
        for chain in &chains {
            batch.del_chain(&table, chain);
        }
        for set in nft.sets(&table)?.into_iter().filter(|set| goes_with_chains(&set.name)) {
            batch.del_set(&table, &set.name);
        }
        add_chains(&mut batch, family);
    }
    for fact in facts.iter().filter(|fact| is_in_tables(fact)) {
        match fact {
            Fact::Selector(pick) if there.contains(&(family(pick.ipv6), chain_of(*pick))) => {}
            Fact::Member { .. } => {
                for (family, set, element) in elements(fact) {
                    batch.add_elements(&table(family), &set, &[element]);
                }
            }
            fact => put_chains(&mut batch, fact, true),
        }
    }
    Ok(batch)
}

/// Takes a way of picking out, with what leads to it.
fn drop_pick(nft: &Nft, batch: &mut Batch, table: &Table, chain: &str) -> io::Result<()> {
    let leads = |element: &Element| element.data == Some(Data::Verdict(Verdict::Goto(chain.to_owned())));
    for map in [PICKS, HOST_PICKS] {
        let leading: Vec<Element> = nft.elements(table, map)?.into_iter().filter(leads).collect();
        batch.del_elements(table, map, &leading);
    }
    batch.flush_chain(table, chain).del_chain(table, chain);
    Ok(())
}
