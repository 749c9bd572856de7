//! What should be in a table: what a user of the engine renders (pure).

use std::collections::{BTreeMap, BTreeSet};

use super::{Chain, Element, Entry, Family, Rule, SetSpec, Table};

/// The desired content of a table, or of the part of it that one user has.
#[derive(Debug, Clone)]
pub struct Desired<E = Element> {
    pub(crate) table: Table,
    pub(crate) partial: bool,
    pub(crate) shared: bool,
    pub(crate) chains: BTreeMap<String, DesiredChain>,
    pub(crate) sets: BTreeMap<String, DesiredSet<E>>,
}

/// A chain with its rules, in order.
#[derive(Debug, Clone)]
pub(crate) struct DesiredChain {
    pub chain: Chain,
    pub rules: Vec<Rule>,
    /// Only rules with one of these comments are compared; `None`: the chain has exactly these rules.
    pub owners: Option<BTreeSet<String>>,
}

impl DesiredChain {
    pub fn fingerprints(&self, family: Family) -> Vec<u64> {
        self.rules.iter().map(|rule| rule.fingerprint(family)).collect()
    }
}

/// A set or map with its elements.
#[derive(Debug, Clone)]
pub struct DesiredSet<E = Element> {
    pub(crate) spec: SetSpec,
    pub(crate) rank: u8,
    pub(crate) with_rules: bool,
    /// The set itself is somebody else's.
    pub(crate) used: bool,
    pub(crate) elements: Option<Vec<E>>,
}

impl<E> DesiredSet<E> {
    /// Where a change needs several transactions, sets gain elements from the highest rank to the lowest and lose them from the lowest
    /// to the highest. Rank 0 leads packets into the table: it gains elements after the rules are there. Without this call it is 1.
    pub fn rank(&mut self, rank: u8) -> &mut Self {
        self.rank = rank;
        self
    }

    /// The elements change in the transaction that changes rules: rules and elements that belong together.
    pub fn with_rules(&mut self) -> &mut Self {
        self.with_rules = true;
        self
    }

    /// The engine neither reads nor changes the elements: rules or other programs do.
    pub fn unmanaged(&mut self) -> &mut Self {
        self.elements = None;
        self
    }

    /// With these elements, too.
    pub fn extend(&mut self, elements: impl IntoIterator<Item = E>) -> &mut Self {
        self.elements.get_or_insert_default().extend(elements);
        self
    }

    /// With this element, too.
    pub fn push(&mut self, element: E) -> &mut Self {
        self.extend([element])
    }
}

impl<E: Entry> Desired<E> {
    /// A table without chains and sets. Chains and sets that the kernel has and this has not are deleted.
    pub fn new(table: Table) -> Self {
        Self { table, partial: false, shared: false, chains: BTreeMap::new(), sets: BTreeMap::new() }
    }

    /// A part of a table: chains and sets that this has not stay.
    #[must_use]
    pub fn partial(self) -> Self {
        Self { partial: true, ..self }
    }

    /// A part of a table that other processes write as well: the engine commits only what it planned from the latest rules.
    #[must_use]
    pub fn shared(self) -> Self {
        Self { partial: true, shared: true, ..self }
    }

    pub fn table(&self) -> &Table {
        &self.table
    }

    /// A chain with exactly these rules.
    pub fn chain(&mut self, chain: Chain, rules: impl IntoIterator<Item = Rule>) -> &mut Self {
        self.chains.insert(chain.name.clone(), DesiredChain { chain, rules: rules.into_iter().collect(), owners: None });
        self
    }

    /// A chain in which these are exactly the rules with one of `owners` as their comment; other rules stay.
    pub fn owned_rules(&mut self, chain: Chain, owners: impl IntoIterator<Item = String>, rules: impl IntoIterator<Item = Rule>) -> &mut Self {
        let owners = Some(owners.into_iter().collect());
        self.chains.insert(chain.name.clone(), DesiredChain { chain, rules: rules.into_iter().collect(), owners });
        self
    }

    /// A set or map, without elements at first; the one of that name where this has one already.
    pub fn set(&mut self, spec: SetSpec) -> &mut DesiredSet<E> {
        let set = self.used_set(spec);
        set.used = false;
        set
    }

    /// A set or map that is there, or that another part declares: only its elements are desired here.
    pub fn used_set(&mut self, spec: SetSpec) -> &mut DesiredSet<E> {
        let new = |spec: SetSpec| DesiredSet { spec, rank: 1, with_rules: false, used: true, elements: Some(Vec::new()) };
        self.sets.entry(spec.name.clone()).or_insert_with(|| new(spec))
    }

    /// The set or map of that name, when this has one.
    pub fn find_set(&mut self, name: &str) -> Option<&mut DesiredSet<E>> {
        self.sets.get_mut(name)
    }
}
