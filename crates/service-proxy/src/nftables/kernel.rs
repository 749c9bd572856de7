//! What is in the kernel: adopted at the start, changed by a few elements at a time.

use std::collections::BTreeSet;

use nft::{Desired, Engine, Nft, NftError, Plan};

use super::elements::{Class, NetworkContext, Role, Set};
use super::forget;
use super::layout::{Layout, declare, optional_rules, rows, table};
use super::state::{Programmed, Row, all_elements, classes};
use crate::table::{IpFamily, Table, VipKey};

/// A transaction of about this many bytes is committed before more is put in, so that memory stays bounded.
const PART: usize = 1 << 20;

/// The open kernel and what is in it.
pub struct Kernel {
    engine: Engine,
    layout: Layout,
    programmed: Programmed,
    classes: BTreeSet<(IpFamily, Class)>,
    /// Sets that came with VIPs, with the rule that reads each.
    optional: BTreeSet<Set>,
}

impl Kernel {
    /// Reads the kernel and makes it what `desired` says; what is right stays. Returns how many elements changed.
    pub fn adopt(layout: Layout, desired: &Table, context: NetworkContext) -> Result<(Self, usize), NftError> {
        let engine = Engine::new(Nft::open()?).in_parts_of(PART);
        let target = all_elements(desired, &context);
        let classes = classes(&target);
        let optional: BTreeSet<Set> = target.keys().copied().filter(|set| set.role.is_optional()).collect();
        let mut all = layout.desired(&classes, &optional);
        for (set, content) in target {
            rows(&mut all, set).extend(content.into_iter().map(Row::from));
        }
        let writes = engine.reconcile(vec![all])?.elements;
        let kernel = Self { engine, layout, programmed: Programmed::of(desired, context), classes, optional };
        forget::clients(&kernel.engine, &kernel.sticky(|_| true), desired, kernel.context())?;
        Ok((kernel, writes))
    }

    /// The network context as it was when the kernel was last read.
    pub fn context(&self) -> &NetworkContext {
        self.programmed.context()
    }

    /// Whether nobody wrote any rules since we did.
    pub fn is_undisturbed(&self) -> Result<bool, NftError> {
        self.engine.is_undisturbed()
    }

    /// Makes the VIPs of `dirty` what `desired` says; returns how many elements changed.
    pub fn change(&mut self, desired: &Table, dirty: &BTreeSet<VipKey>) -> Result<usize, NftError> {
        if dirty.is_empty() {
            return Ok(0);
        }
        let delta = self.programmed.delta(desired, dirty);
        if delta.is_empty() {
            self.programmed.take(desired, dirty);
            return Ok(0);
        }
        let slots_go = delta.remove.keys().any(|set| set.role == Role::Slots);
        let timeouts: BTreeSet<u32> = self.timeouts(dirty).collect();
        let (mut before, mut after) = (Desired::new(table()), Desired::new(table()));
        let new_classes: BTreeSet<_> = classes(&delta.add).difference(&self.classes).copied().collect();
        new_classes.iter().for_each(|(family, class)| self.layout.add_class(&mut after, *family, *class));
        let new_sets: BTreeSet<Set> = delta.add.keys().copied().filter(|set| set.role.is_optional() && !self.optional.contains(set)).collect();
        if !new_sets.is_empty() {
            new_sets.iter().for_each(|set| declare(&mut after, *set));
            optional_rules(&mut before, &self.optional);
            optional_rules(&mut after, &self.optional.union(&new_sets).copied().collect());
        }
        for (content, part) in [(delta.remove, &mut before), (delta.add, &mut after)] {
            for (set, content) in content {
                rows(part, set).extend(content.into_iter().map(Row::from));
            }
        }
        let writes = self.engine.apply(Plan::between(vec![before], vec![after]))?.elements;
        self.classes.extend(new_classes);
        self.optional.extend(new_sets);
        self.programmed.take(desired, dirty);
        if slots_go && !timeouts.is_empty() {
            let sticky = self.sticky(|seconds| timeouts.contains(&seconds));
            forget::clients(&self.engine, &sticky, desired, self.context())?;
        }
        Ok(writes)
    }

    fn timeouts(&self, dirty: &BTreeSet<VipKey>) -> impl Iterator<Item = u32> {
        dirty.iter().filter_map(|key| self.programmed.vip(key)?.affinity)
    }

    fn sticky(&self, which: impl Fn(u32) -> bool) -> BTreeSet<Set> {
        self.optional.iter().copied().filter(|set| matches!(set.role, Role::Sticky(seconds) if which(seconds))).collect()
    }
}
