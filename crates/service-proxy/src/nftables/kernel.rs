//! What is in the kernel: read, compared, written.

use std::collections::{BTreeMap, BTreeSet};

use nft::{Batch, Data, Element, Nft, NftError};

use super::elements::{Class, ElementData, ElementKey, Ground, Role, Set};
use super::forget;
use super::layout::{Layout, Names, table};
use super::state::{Content, Delta, Programmed, all_elements};
use crate::table::{IpFamily, Table, VipKey};

/// A batch of about this many bytes is committed before more is put in, so that memory stays bounded.
const PART: usize = 1 << 20;
/// How many elements become part of a batch at once.
const CHUNK: usize = 1024;

/// The open kernel and what is in it.
pub struct Kernel {
    nft: Nft,
    layout: Layout,
    programmed: Programmed,
    classes: BTreeSet<(IpFamily, Class)>,
    /// Sets that came with VIPs, with the rule that reads each.
    optional: BTreeSet<Set>,
    /// The generation of rules that we left; absent when others may have written meanwhile.
    generation: Option<u32>,
}

impl Kernel {
    /// Reads the kernel and makes it what `wanted` says; what is right stays. Returns how many elements changed.
    pub fn adopt(layout: Layout, wanted: &Table, ground: Ground) -> Result<(Self, usize), NftError> {
        let nft = Nft::open()?;
        let mut kernel =
            Self { nft, layout, programmed: Programmed::default(), classes: BTreeSet::new(), optional: BTreeSet::new(), generation: None };
        let before = kernel.nft.generation()?;
        let mut writer = Writer { nft: &kernel.nft, batch: Batch::new(), commits: 0 };
        let intact = is_intact(&kernel.nft, &kernel.layout)?;
        let mut delta = Delta::default();
        let mut target = all_elements(wanted, &ground);
        if intact {
            kernel.classes = read_classes(&kernel.nft)?;
            let sets: BTreeSet<Set> = kernel.nft.sets(&table())?.iter().filter_map(|set| Set::from_name(&set.name)).collect();
            kernel.optional = read_optional(&kernel.nft, &sets)?;
            for set in sets {
                delta.compare(set, &read_content(&kernel.nft, set)?, target.remove(&set).unwrap_or_default());
            }
        } else {
            kernel.layout.build(&mut writer.batch);
        }
        delta.add.extend(target);
        let writes = delta.len();
        let (mut classes, mut optional) = (kernel.classes.clone(), kernel.optional.clone());
        writer.put(&kernel.layout, delta, &mut classes, &mut optional)?;
        let commits = writer.finish()?;
        (kernel.classes, kernel.optional) = (classes, optional);
        kernel.programmed = Programmed::of(wanted, ground);
        kernel.generation = kernel.generation_after(before, commits)?;
        forget::clients(&kernel.nft, &kernel.sticky(|_| true), wanted, kernel.ground())?;
        kernel.generation = kernel.generation.filter(|left| kernel.nft.generation().is_ok_and(|now| now == *left));
        Ok((kernel, writes))
    }

    /// What elements depend on beside VIPs, as it was when the kernel was last read.
    pub fn ground(&self) -> &Ground {
        self.programmed.ground()
    }

    /// Whether nobody wrote any rules since we did.
    pub fn is_undisturbed(&self) -> Result<bool, NftError> {
        let Some(left) = self.generation else { return Ok(false) };
        Ok(self.nft.generation()? == left)
    }

    /// Makes the VIPs of `dirty` what `wanted` says; returns how many elements changed.
    pub fn change(&mut self, wanted: &Table, dirty: &BTreeSet<VipKey>) -> Result<usize, NftError> {
        if dirty.is_empty() {
            return Ok(0);
        }
        let delta = self.programmed.delta(wanted, dirty);
        if delta.is_empty() {
            self.programmed.take(wanted, dirty);
            return Ok(0);
        }
        let before = self.nft.generation()?;
        let undisturbed = self.generation == Some(before);
        let writes = delta.len();
        let slots_go = delta.remove.keys().any(|set| set.role == Role::Slots);
        let timeouts: BTreeSet<u32> = self.timeouts(dirty).collect();
        let (mut classes, mut optional) = (self.classes.clone(), self.optional.clone());
        let mut writer = Writer { nft: &self.nft, batch: Batch::new(), commits: 0 };
        writer.put(&self.layout, delta, &mut classes, &mut optional)?;
        let commits = writer.finish()?;
        (self.classes, self.optional) = (classes, optional);
        self.programmed.take(wanted, dirty);
        if slots_go && !timeouts.is_empty() {
            let sticky = self.sticky(|seconds| timeouts.contains(&seconds));
            let forgotten = forget::clients(&self.nft, &sticky, wanted, self.ground())?;
            self.generation = self.generation_after(before, commits + forgotten)?.filter(|_| undisturbed);
        } else {
            self.generation = self.generation_after(before, commits)?.filter(|_| undisturbed);
        }
        Ok(writes)
    }

    /// The generation now, when `commits` transactions of ours are all that happened since `before`.
    fn generation_after(&self, before: u32, commits: usize) -> Result<Option<u32>, NftError> {
        let now = self.nft.generation()?;
        Ok((now.wrapping_sub(before) as usize == commits).then_some(now))
    }

    fn timeouts(&self, dirty: &BTreeSet<VipKey>) -> impl Iterator<Item = u32> {
        dirty.iter().filter_map(|key| self.programmed.vip(key)?.affinity)
    }

    fn sticky(&self, which: impl Fn(u32) -> bool) -> BTreeSet<Set> {
        self.optional.iter().copied().filter(|set| matches!(set.role, Role::Sticky(seconds) if which(seconds))).collect()
    }
}

/// Transactions in the making.
struct Writer<'a> {
    nft: &'a Nft,
    batch: Batch,
    commits: usize,
}

impl Writer<'_> {
    /// A delta, with the classes and sets that it needs and that are not there.
    fn put(
        &mut self,
        layout: &Layout,
        delta: Delta,
        classes: &mut BTreeSet<(IpFamily, Class)>,
        optional: &mut BTreeSet<Set>,
    ) -> Result<(), NftError> {
        let is_optional = |set: &Set| matches!(set.role, Role::Sticky(_) | Role::Allowed(_));
        for set in delta.add.keys().copied().filter(is_optional) {
            if optional.insert(set) {
                layout.add_optional(&mut self.batch, set);
            }
        }
        for (family, class) in delta.classes() {
            if classes.insert((family, class)) {
                layout.add_class(&mut self.batch, family, class);
            }
        }
        for (set, content) in delta.remove {
            for chunk in content.chunks(CHUNK) {
                let elements: Vec<Element> = chunk.iter().map(|(key, _)| Element::new(key.to_vec())).collect();
                self.batch.del_elements(&table(), &set.name(), &elements);
                self.commit_if_large()?;
            }
        }
        for (set, content) in delta.add.into_iter().rev() {
            for chunk in content.chunks(CHUNK) {
                let elements: Vec<Element> = chunk.iter().map(element).collect();
                self.batch.add_elements(&table(), &set.name(), &elements);
                self.commit_if_large()?;
            }
        }
        Ok(())
    }

    fn commit_if_large(&mut self) -> Result<(), NftError> {
        if self.batch.bytes() > PART { self.commit() } else { Ok(()) }
    }

    fn commit(&mut self) -> Result<(), NftError> {
        self.commits += self.nft.commit_counted(&self.batch)?;
        self.batch = Batch::new();
        Ok(())
    }

    /// Commits what is left; returns how many transactions there were.
    fn finish(mut self) -> Result<usize, NftError> {
        self.commit()?;
        Ok(self.commits)
    }
}

fn element((key, data): &(ElementKey, ElementData)) -> Element {
    let element = Element::new(key.to_vec());
    if data.is_empty() { element } else { element.data(Data::Value(data.to_vec())) }
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
    let named = IpFamily::ALL
        .into_iter()
        .map(Names)
        .all(|names| present.contains(&names.learn()) && present.contains(&names.guard()) && sets.contains(&names.classes()));
    Ok(named && Set::fixed().all(|set| sets.contains(&set.name())))
}

fn read_content(nft: &Nft, set: Set) -> Result<Content, NftError> {
    // The kernel has fixed lengths for keys and data of each of our sets, and all of them fit.
    let mut content: Content = nft
        .elements(&table(), &set.name())?
        .into_iter()
        .map(|element| {
            let data = match &element.data {
                Some(Data::Value(data)) => ElementData::of(data).unwrap_or(ElementData::EMPTY),
                _ => ElementData::EMPTY,
            };
            (ElementKey::of(&element.key).unwrap_or(ElementKey::EMPTY), data)
        })
        .collect();
    content.sort_unstable();
    Ok(content)
}

/// The classes whose chain is there with its rules.
fn read_classes(nft: &Nft) -> Result<BTreeSet<(IpFamily, Class)>, NftError> {
    let mut classes = BTreeSet::new();
    for family in IpFamily::ALL {
        for class in nft.elements(&table(), &Names(family).classes())?.iter().filter_map(|element| Class::from_data(&element.key)) {
            if !nft.rules(&table(), &class.chain(family))?.is_empty() {
                classes.insert((family, class));
            }
        }
    }
    Ok(classes)
}

/// Of `sets` those that came with VIPs, and whose rule is there.
fn read_optional(nft: &Nft, sets: &BTreeSet<Set>) -> Result<BTreeSet<Set>, NftError> {
    let mut read_by: BTreeMap<IpFamily, BTreeSet<Option<String>>> = BTreeMap::new();
    for family in IpFamily::ALL {
        let names = Names(family);
        for chain in [names.learn(), names.guard()] {
            read_by.entry(family).or_default().extend(nft.rules(&table(), &chain)?.into_iter().map(|rule| rule.comment));
        }
    }
    let has_rule = |set: &Set| read_by.get(&set.family).is_some_and(|rules| rules.contains(&Some(set.name())));
    Ok(sets.iter().copied().filter(has_rule).collect())
}
