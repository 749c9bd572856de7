//! From what is in tables to what should be there (pure): a plan, and its operations in an order that the kernel takes and that
//! serves packets meanwhile.
//!
//! ```text
//! 1  tables and sets that are missing; new chains that no hook leads to
//! 2  elements that come or change, sets of the highest rank first, but for rank 0
//! 3  rules: chains that are new at a hook or have other rules; elements that go with rules     together
//! 4  elements that come or change, rank 0
//! 5  elements that go, rank 0 first
//! 6  chains and sets that go                                                                   together
//! ```
//! One transaction where that fits; else what stands together is in one, and so are an element's old and new data. A table with a set
//! of another kind than desired is made anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::desired::{DesiredChain, DesiredSet};
use super::observed::{Observed, ObservedChain, ObservedSet};
use super::{Batch, Chain, Desired, Element, ElementChange, Entry, MapData, NftError, Rule, RuleInfo, SetSpec, Table};

/// Elements of one operation.
const CHUNK: usize = 512;
/// Elements that change in one transaction together.
const REPLACED: usize = 128;

/// What changes in some tables.
#[derive(Debug, Clone)]
pub struct Plan<E = Element> {
    tables: Vec<TablePlan<E>>,
}

/// What changes in one table.
#[derive(Debug, Clone)]
pub(crate) struct TablePlan<E> {
    table: Table,
    create: bool,
    rebuild: bool,
    sets: Vec<SetSpec>,
    /// Missing chains.
    chains: Vec<DesiredChain>,
    changed: Vec<ChangedChain>,
    elements: Vec<SetChange<E>>,
    stale_chains: Vec<String>,
    stale_sets: Vec<String>,
}

#[derive(Debug, Clone)]
struct ChangedChain {
    chain: Chain,
    edit: Edit,
    rules: Vec<Rule>,
}

/// How a chain comes to its rules.
#[derive(Debug, Clone)]
enum Edit {
    /// Delete the chain and make it with another hook.
    Redefine,
    Flush,
    /// Delete these rules.
    Delete(Vec<u64>),
}

#[derive(Debug, Clone)]
struct SetChange<E> {
    set: String,
    rank: u8,
    with_rules: bool,
    interval: bool,
    verdicts: bool,
    change: ElementChange<E>,
}

/// One operation of a transaction.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Operation {
    AddTable,
    DestroyTable,
    AddSet(SetSpec),
    AddChain(Chain),
    FlushChain(String),
    AddRule(String, Rule),
    DeleteRule(String, u64),
    DeleteElements(String, Vec<Element>),
    AddElements(String, Vec<Element>),
    DeleteChain(String),
    FlushSet(String),
    DeleteSet(String),
}

impl Operation {
    pub fn write(self, table: &Table, batch: &mut Batch) {
        match self {
            Self::AddTable => batch.add_table(table),
            Self::DestroyTable => batch.destroy_table(table),
            Self::AddSet(spec) => batch.add_set(table, &spec),
            Self::AddChain(chain) => batch.add_chain(table, &chain),
            Self::FlushChain(chain) => batch.flush_chain(table, &chain),
            Self::AddRule(chain, rule) => batch.add_rule(table, &chain, rule),
            Self::DeleteRule(chain, handle) => batch.del_rule(table, &chain, handle),
            Self::DeleteElements(set, elements) => batch.del_elements(table, &set, &elements),
            Self::AddElements(set, elements) => batch.add_elements(table, &set, &elements),
            Self::DeleteChain(chain) => batch.del_chain(table, &chain),
            Self::FlushSet(set) => batch.flush_set(table, &set),
            Self::DeleteSet(set) => batch.del_set(table, &set),
        };
    }
}

/// Operations that stay in one transaction.
pub(crate) type Unit = Vec<(Table, Operation)>;

impl<E: Entry> TablePlan<E> {
    /// What changes but for elements.
    pub fn of(observed: &Observed, desired: &Desired<E>) -> Self {
        let declared = || desired.sets.values().filter(|set| !set.used);
        let differs = |set: &DesiredSet<E>| observed.sets.get(&set.spec.name).is_some_and(|found| *found != ObservedSet::of(&set.spec));
        let rebuild = !desired.partial && declared().any(differs);
        let nothing = Observed::default();
        let observed = if rebuild { &nothing } else { observed };
        let mut plan = Self {
            table: desired.table.clone(),
            create: !observed.exists,
            rebuild,
            sets: declared().filter(|set| !observed.sets.contains_key(&set.spec.name)).map(|set| set.spec.clone()).collect(),
            chains: Vec::new(),
            changed: Vec::new(),
            elements: Vec::new(),
            stale_chains: Vec::new(),
            stale_sets: Vec::new(),
        };
        for (name, chain) in &desired.chains {
            match observed.chains.get(name) {
                None => plan.chains.push(chain.clone()),
                Some(found) => plan.changed.extend(ChangedChain::between(found, chain, &desired.table)),
            }
        }
        if !desired.partial {
            plan.stale_chains = observed.chains.keys().filter(|name| !desired.chains.contains_key(*name)).cloned().collect();
            plan.stale_sets = observed.sets.keys().filter(|name| !desired.sets.contains_key(*name)).cloned().collect();
        }
        plan
    }

    /// Whether the kernel's table goes with all its elements.
    pub fn rebuilds(&self) -> bool {
        self.rebuild
    }

    /// With what changes in one set.
    pub fn elements(&mut self, set: &DesiredSet<E>, change: ElementChange<E>) {
        if !change.is_empty() {
            let SetSpec { name, interval, data, .. } = &set.spec;
            let verdicts = *data == Some(MapData::Verdict);
            self.elements.push(SetChange { set: name.clone(), rank: set.rank, with_rules: set.with_rules, interval: *interval, verdicts, change });
        }
    }

    fn is_empty(&self) -> bool {
        !self.create
            && !self.rebuild
            && self.sets.is_empty()
            && self.chains.is_empty()
            && self.changed.is_empty()
            && self.elements.is_empty()
            && self.stale_chains.is_empty()
            && self.stale_sets.is_empty()
    }
}

impl ChangedChain {
    fn between(found: &ObservedChain, desired: &DesiredChain, table: &Table) -> Option<Self> {
        let expected = desired.fingerprints(table.family);
        let edit = if !found.is(&desired.chain) {
            Edit::Redefine
        } else if let Some(owners) = &desired.owners {
            let own = |rule: &&RuleInfo| rule.comment.as_ref().is_some_and(|comment| owners.contains(comment));
            let own: Vec<&RuleInfo> = found.rules.iter().filter(own).collect();
            if own.iter().map(|rule| rule.fingerprint).eq(expected.into_iter().map(Some)) {
                return None;
            }
            Edit::Delete(own.into_iter().map(|rule| rule.handle).collect())
        } else if found.fingerprints() == Some(expected) {
            return None;
        } else {
            Edit::Flush
        };
        Some(Self { chain: desired.chain.clone(), edit, rules: desired.rules.clone() })
    }

    fn write(self, put: &mut impl FnMut(Operation)) {
        let name = self.chain.name.clone();
        match self.edit {
            Edit::Redefine => {
                put(Operation::FlushChain(name.clone()));
                put(Operation::DeleteChain(name.clone()));
                put(Operation::AddChain(self.chain));
            }
            Edit::Flush => put(Operation::FlushChain(name.clone())),
            Edit::Delete(handles) => handles.into_iter().for_each(|handle| put(Operation::DeleteRule(name.clone(), handle))),
        }
        self.rules.into_iter().for_each(|rule| put(Operation::AddRule(name.clone(), rule)));
    }
}

impl<E: Entry> SetChange<E> {
    fn is_with_rules(&self, new: bool) -> bool {
        self.with_rules && !new
    }

    /// Elements that come or change; of intervals also those that go, because ranges must not overlap.
    fn gain(&self, mut each: impl FnMut(Vec<Operation>) -> Result<(), NftError>) -> Result<(), NftError> {
        let ElementChange { remove, add } = &self.change;
        let delete = |list: &[E]| (!list.is_empty()).then(|| Operation::DeleteElements(self.set.clone(), elements(list)));
        let insert = |list: &[E]| Operation::AddElements(self.set.clone(), elements(list));
        if add.is_empty() {
            return Ok(());
        }
        if self.removes_with_gain() {
            return each(delete(remove).into_iter().chain([insert(add)]).collect());
        }
        for chunk in add.chunks(if remove.is_empty() { CHUNK } else { REPLACED }) {
            let old: Vec<E> = about(remove, chunk).iter().filter(|old| ElementChange::has_key(chunk, old)).cloned().collect();
            each(delete(&old).into_iter().chain([insert(chunk)]).collect())?;
        }
        Ok(())
    }

    fn removes_with_gain(&self) -> bool {
        self.interval && !self.change.add.is_empty()
    }

    /// Elements that go.
    fn lose(&self, mut each: impl FnMut(Vec<Operation>) -> Result<(), NftError>) -> Result<(), NftError> {
        if self.removes_with_gain() {
            return Ok(());
        }
        let gone: Vec<E> = self.change.remove.iter().filter(|old| !ElementChange::has_key(&self.change.add, old)).cloned().collect();
        gone.chunks(CHUNK).try_for_each(|chunk| each(vec![Operation::DeleteElements(self.set.clone(), elements(chunk))]))
    }
}

/// The part of `list` from the first key of `chunk` to its last. Both are in the order of keys.
fn about<'a, E: Entry>(list: &'a [E], chunk: &[E]) -> &'a [E] {
    let [first, .., last] = chunk else { return list };
    let from = list.partition_point(|entry| entry.cmp_key(first).is_lt());
    let to = list.partition_point(|entry| entry.cmp_key(last).is_le());
    &list[from..to]
}

fn elements<E: Entry>(list: &[E]) -> Vec<Element> {
    list.iter().map(E::element).collect()
}

/// What a table that holds exactly `desired` would say, but for elements.
fn assumed<E: Entry>(desired: &Desired<E>) -> Observed {
    let chain = |chain: &DesiredChain| {
        let Chain { hook, device, drop_by_default, .. } = &chain.chain;
        let rule = |print| RuleInfo { handle: 0, comment: None, fingerprint: Some(print), expressions: Vec::new(), leads_to: None, counter: None };
        ObservedChain {
            hook: hook.map(|(kind, hook, priority)| (kind.name().to_owned(), hook as u32, priority, device.clone())),
            drop_by_default: *drop_by_default,
            rules: chain.fingerprints(desired.table.family).into_iter().map(rule).collect(),
        }
    };
    Observed {
        exists: true,
        chains: desired.chains.iter().map(|(name, desired)| (name.clone(), chain(desired))).collect(),
        sets: desired.sets.values().filter(|set| !set.used).map(|set| (set.spec.name.clone(), ObservedSet::of(&set.spec))).collect(),
    }
}

impl<E: Entry> Plan<E> {
    pub(crate) fn new(tables: Vec<TablePlan<E>>) -> Self {
        Self { tables: tables.into_iter().filter(|table| !table.is_empty()).collect() }
    }

    /// From tables, or parts of tables, that hold `before` to tables that hold `after` in its place. Nothing is read: that is for
    /// users that know what they programmed.
    pub fn between(before: Vec<Desired<E>>, after: Vec<Desired<E>>) -> Self {
        let mut pairs: BTreeMap<Table, [Desired<E>; 2]> = BTreeMap::new();
        for (at, desired) in before.into_iter().map(|d| (0, d)).chain(after.into_iter().map(|d| (1, d))) {
            let table = desired.table.clone();
            pairs.entry(table).or_insert_with_key(|table| [Desired::new(table.clone()), Desired::new(table.clone())])[at] = desired;
        }
        let table_plan = |[mut before, mut after]: [Desired<E>; 2]| {
            after.partial = false;
            let mut plan = TablePlan::of(&assumed(&before), &after);
            let names: BTreeSet<String> = before.sets.keys().chain(after.sets.keys()).cloned().collect();
            for name in names {
                let old = before.sets.get_mut(&name).and_then(|set| set.elements.take()).unwrap_or_default();
                match (after.sets.get_mut(&name), before.sets.get(&name)) {
                    (Some(set), _) => {
                        let new = set.elements.take().unwrap_or_default();
                        plan.elements(set, ElementChange::between(old, new));
                    }
                    (None, Some(set)) if set.used => plan.elements(set, ElementChange::between(old, Vec::new())),
                    (None, _) => {}
                }
            }
            plan
        };
        Self::new(pairs.into_values().map(table_plan).collect())
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// How many elements go and come; one whose data changes counts twice. Maps to verdicts do not count: they are part of the rules.
    pub fn element_count(&self) -> usize {
        self.tables.iter().flat_map(|table| &table.elements).filter(|set| !set.verdicts).map(|set| set.change.len()).sum()
    }

    /// Hands each unit of operations to `each`, in order.
    pub(crate) fn units(mut self, mut each: impl FnMut(Unit) -> Result<(), NftError>) -> Result<(), NftError> {
        let mut rules = Unit::new();
        for plan in &mut self.tables {
            plan.prepare(&mut rules, &mut each)?;
        }
        let new: BTreeSet<(Table, String)> =
            self.tables.iter().flat_map(|plan| plan.sets.iter().map(|set| (plan.table.clone(), set.name.clone()))).collect();
        let mut changes: Vec<(&Table, &SetChange<E>)> =
            self.tables.iter().flat_map(|plan| plan.elements.iter().map(|change| (&plan.table, change))).collect();
        changes.sort_by_key(|(_, change)| change.rank);
        let is_new = |table: &Table, change: &SetChange<E>| new.contains(&(table.clone(), change.set.clone()));
        let (joined, apart): (Vec<_>, Vec<_>) = changes.into_iter().partition(|(table, change)| change.is_with_rules(is_new(table, change)));
        let unit = |table: &Table, operations: Vec<Operation>| operations.into_iter().map(|operation| (table.clone(), operation)).collect::<Unit>();
        for (table, change) in apart.iter().rev().filter(|(_, change)| change.rank > 0) {
            change.gain(|operations| each(unit(table, operations)))?;
        }
        for (table, change) in joined {
            let mut join = |operations| {
                rules.extend(unit(table, operations));
                Ok(())
            };
            change.gain(&mut join)?;
            change.lose(&mut join)?;
        }
        if !rules.is_empty() {
            each(rules)?;
        }
        for (table, change) in apart.iter().filter(|(_, change)| change.rank == 0) {
            change.gain(|operations| each(unit(table, operations)))?;
        }
        for (table, change) in &apart {
            change.lose(|operations| each(unit(table, operations)))?;
        }
        let stale: Unit = self.tables.iter().flat_map(|plan| unit(&plan.table, plan.stale())).collect();
        if stale.is_empty() { Ok(()) } else { each(stale) }
    }
}

impl<E: Entry> TablePlan<E> {
    /// The table, missing sets and chains without hooks are for `each`; `rules` takes what applies to packets at once.
    fn prepare(&mut self, rules: &mut Unit, each: &mut impl FnMut(Unit) -> Result<(), NftError>) -> Result<(), NftError> {
        let table = &self.table;
        let mut first = Unit::new();
        let mut put = |operation| first.push((table.clone(), operation));
        if self.rebuild {
            put(Operation::DestroyTable);
        }
        if self.create {
            put(Operation::AddTable);
        }
        for set in &self.sets {
            put(Operation::AddSet(set.clone()));
        }
        let (base, regular): (Vec<_>, Vec<_>) = std::mem::take(&mut self.chains).into_iter().partition(|chain| chain.chain.hook.is_some());
        for new in &regular {
            put(Operation::AddChain(new.chain.clone()));
        }
        if !first.is_empty() {
            each(first)?;
        }
        for new in regular {
            let rules: Unit = new.rules.into_iter().map(|rule| (table.clone(), Operation::AddRule(new.chain.name.clone(), rule))).collect();
            if !rules.is_empty() {
                each(rules)?;
            }
        }
        let mut put = |operation| rules.push((table.clone(), operation));
        for new in base {
            let name = new.chain.name.clone();
            put(Operation::AddChain(new.chain));
            new.rules.into_iter().for_each(|rule| put(Operation::AddRule(name.clone(), rule)));
        }
        std::mem::take(&mut self.changed).into_iter().for_each(|chain| chain.write(&mut put));
        Ok(())
    }

    fn stale(&self) -> Vec<Operation> {
        let of = |names: &[String], operation: fn(String) -> Operation| names.iter().cloned().map(operation).collect::<Vec<_>>();
        // Rules name sets, and elements name chains.
        let empty = [of(&self.stale_chains, Operation::FlushChain), of(&self.stale_sets, Operation::FlushSet)];
        let gone = [of(&self.stale_sets, Operation::DeleteSet), of(&self.stale_chains, Operation::DeleteChain)];
        empty.into_iter().chain(gone).flatten().collect()
    }
}

impl<E> fmt::Display for Plan<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for plan in &self.tables {
            let table = &plan.table;
            let mut line = |sign: char, text: fmt::Arguments<'_>| writeln!(f, "{sign} {table} {text}");
            if plan.rebuild || plan.create {
                line(if plan.rebuild { '~' } else { '+' }, format_args!("table"))?;
            }
            plan.sets.iter().try_for_each(|set| line('+', format_args!("set {}", set.name)))?;
            plan.chains.iter().try_for_each(|chain| line('+', format_args!("chain {}: {} rules", chain.chain.name, chain.rules.len())))?;
            plan.changed.iter().try_for_each(|chain| line('~', format_args!("chain {}: {} rules", chain.chain.name, chain.rules.len())))?;
            for SetChange { set, change, .. } in &plan.elements {
                line('~', format_args!("set {set}: {} elements go, {} come", change.remove.len(), change.add.len()))?;
            }
            plan.stale_chains.iter().try_for_each(|chain| line('-', format_args!("chain {chain}")))?;
            plan.stale_sets.iter().try_for_each(|set| line('-', format_args!("set {set}")))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
