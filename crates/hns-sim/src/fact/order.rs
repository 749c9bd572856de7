//! The order in which facts are applied and removed. All of it is here.
//!
//! ```text
//! 1  what goes, fact by fact:   firewalls, links, compartments, each kind's last variant first
//! 2  what comes, fact by fact:  compartments, links, firewalls, each kind's first variant first
//! 3  one transaction:           rules that go, then rules that come
//! ```
//! When a step or the transaction is refused, the steps before it are undone in reverse.

use std::collections::{BTreeMap, BTreeSet};

use hcn::Guid;

use super::{AccessList, Link, Rule};

/// One thing that must hold in the kernel. The kinds are in the order in which they are made; a kind's own facts are in the order of its
/// variants.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fact {
    /// A compartment: a network namespace that processes can enter.
    Compartment(Guid),
    /// A link, or something on it.
    Link(Link),
    /// Access rules inside a compartment.
    Firewall(AccessList),
    /// A rule of the host.
    Rule(Rule),
}

impl From<Link> for Fact {
    fn from(link: Link) -> Self {
        Self::Link(link)
    }
}

impl From<Rule> for Fact {
    fn from(rule: Rule) -> Self {
        Self::Rule(rule)
    }
}

impl Fact {
    /// Whether several objects may need the same fact, so that it goes only with the last of them.
    pub fn is_shared(&self) -> bool {
        match self {
            Self::Compartment(_) | Self::Firewall(_) => false,
            Self::Link(link) => link.is_shared(),
            Self::Rule(rule) => rule.is_shared(),
        }
    }

    /// The rule, where the fact is one: those are changed in one transaction, all others step by step.
    pub fn rule(&self) -> Option<&Rule> {
        if let Self::Rule(rule) = self { Some(rule) } else { None }
    }

    /// The link, where the fact is one.
    pub fn link(&self) -> Option<&Link> {
        if let Self::Link(link) = self { Some(link) } else { None }
    }
}

/// One fact that is made, or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// The fact shall no longer hold.
    Remove(&'a Fact),
    /// The fact shall hold.
    Add(&'a Fact),
}

impl Step<'_> {
    /// The step that undoes this one.
    #[must_use]
    pub fn inverse(self) -> Self {
        match self {
            Self::Remove(fact) => Self::Add(fact),
            Self::Add(fact) => Self::Remove(fact),
        }
    }
}

/// What to do in the kernel: all removals, then all additions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Facts that shall no longer hold, in the order of removal.
    pub remove: Vec<Fact>,
    /// Facts that shall hold, in the order of making.
    pub add: Vec<Fact>,
}

impl Plan {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.add.is_empty()
    }

    /// What is done step by step, before the transaction.
    pub fn steps(&self) -> impl Iterator<Item = Step<'_>> {
        let single = |fact: &&Fact| fact.rule().is_none();
        self.remove.iter().filter(single).map(Step::Remove).chain(self.add.iter().filter(single).map(Step::Add))
    }

    /// Rules that go, in the order of the transaction.
    pub fn removed_rules(&self) -> impl Iterator<Item = &Rule> {
        self.remove.iter().filter_map(Fact::rule)
    }

    /// Rules that come, in the order of the transaction.
    pub fn added_rules(&self) -> impl Iterator<Item = &Rule> {
        self.add.iter().filter_map(Fact::rule)
    }

    /// The plan that undoes this one.
    #[must_use]
    pub fn inverse(&self) -> Self {
        let reversed = |facts: &[Fact]| facts.iter().rev().cloned().collect();
        Self { remove: reversed(&self.add), add: reversed(&self.remove) }
    }
}

/// How many objects need each shared fact.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shared(BTreeMap<Fact, u32>);

impl Shared {
    /// The plan for objects whose facts before give way to those after; notes the shared ones.
    pub fn replace(&mut self, objects: &[(BTreeSet<Fact>, BTreeSet<Fact>)]) -> Plan {
        let (mut remove, mut add) = (BTreeSet::new(), BTreeSet::new());
        for (before, after) in objects {
            let held = |fact: &Fact| self.0.get(fact).copied().unwrap_or(0);
            remove.extend(before.difference(after).filter(|fact| !fact.is_shared() || held(fact) <= 1).cloned());
            add.extend(after.difference(before).filter(|fact| !fact.is_shared() || held(fact) == 0).cloned());
            self.commit(before, after);
        }
        // What one object gives up and another takes over stays.
        let kept: BTreeSet<Fact> = remove.intersection(&add).cloned().collect();
        Plan {
            remove: remove.into_iter().rev().filter(|fact| !kept.contains(fact)).collect(),
            add: add.into_iter().filter(|fact| !kept.contains(fact)).collect(),
        }
    }

    /// Notes that `before` gave way to `after`.
    pub fn commit(&mut self, before: &BTreeSet<Fact>, after: &BTreeSet<Fact>) {
        for fact in after.difference(before).filter(|fact| fact.is_shared()) {
            *self.0.entry(fact.clone()).or_default() += 1;
        }
        for fact in before.difference(after).filter(|fact| fact.is_shared()) {
            if let Some(count) = self.0.get_mut(fact) {
                *count -= 1;
                if *count == 0 {
                    self.0.remove(fact);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
