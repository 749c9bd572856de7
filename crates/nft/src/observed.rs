//! A table as the kernel has it, to be compared with the desired one: chains, rules by their fingerprints, and sets. Elements are read set
//! by set.

use std::collections::BTreeMap;

use linux_sys::netlink::wire::{Writer, attr, be32, be64, text};

use super::dump::read_rule;
use super::set::concatenated;
use super::{Chain, MapData, Nft, NftError, RuleInfo, SetSpec, Table, msg};

/// The chains, rules and sets of a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// Whether the table is there.
    pub exists: bool,
    pub(crate) chains: BTreeMap<String, ObservedChain>,
    pub(crate) sets: BTreeMap<String, ObservedSet>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ObservedChain {
    /// Type, hook, priority and device of a base chain.
    pub hook: Option<(String, u32, i32, Option<String>)>,
    pub drop_by_default: bool,
    pub rules: Vec<RuleInfo>,
}

impl ObservedChain {
    /// Whether this chain, but for its rules, is `chain`.
    pub fn is(&self, chain: &Chain) -> bool {
        let hook = chain.hook.map(|(kind, hook, priority)| (kind.name().to_owned(), hook as u32, priority, chain.device.clone()));
        self.hook == hook && (hook.is_none() || self.drop_by_default == chain.drop_by_default)
    }

    pub fn fingerprints(&self) -> Option<Vec<u64>> {
        self.rules.iter().map(|rule| rule.fingerprint).collect()
    }
}

/// A set but for its elements, in the kernel's numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ObservedSet {
    flags: u32,
    key: (u32, u32),
    data: Option<(u32, u32)>,
    timeout: u64,
    size: u32,
}

impl ObservedSet {
    /// What the kernel says of a set of that kind.
    pub fn of(spec: &SetSpec) -> Self {
        const VERDICT: u32 = 0xffff_ff00;
        let data = spec.data.as_ref().map(|data| match data {
            MapData::Verdict => (VERDICT, 0),
            MapData::Values(parts) => concatenated(parts),
        });
        let timeout = spec.timeout.map_or(0, |timeout| timeout.as_millis() as u64);
        Self { flags: spec.flags(), key: concatenated(&spec.key), data, timeout, size: spec.size.unwrap_or(0) }
    }
}

impl Observed {
    /// The comments of a chain's rules.
    pub fn comments(&self, chain: &str) -> impl Iterator<Item = &str> {
        self.chains.get(chain).into_iter().flat_map(|chain| &chain.rules).filter_map(|rule| rule.comment.as_deref())
    }

    /// The names of the sets and maps.
    pub fn sets(&self) -> impl Iterator<Item = &str> {
        self.sets.keys().map(String::as_str)
    }
}

impl Nft {
    /// The chains, rules and sets of a table; nothing when there is no such table.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn observe(&self, table: &Table) -> Result<Observed, NftError> {
        let sets = match self.observed_sets(table) {
            Ok(sets) => sets.into_iter().collect(),
            Err(error) if error.is_not_found() => return Ok(Observed::default()),
            Err(error) => return Err(error),
        };
        let mut chains: BTreeMap<String, ObservedChain> = self.observed_chains(table)?.into_iter().collect();
        let body = |w: &mut Writer| w.attr_str(1, &table.name);
        let rules = self.list(&format!("list rules of {table}"), msg::GET_RULE, table.family as u8, body, |p| {
            let body = p.get(4..)?;
            (text(attr(body, 1)?) == table.name).then(|| Some((text(attr(body, 2)?), read_rule(body)?)))?
        })?;
        for (chain, rule) in rules {
            chains.entry(chain).or_default().rules.push(rule);
        }
        Ok(Observed { exists: true, chains, sets })
    }

    fn observed_chains(&self, table: &Table) -> Result<Vec<(String, ObservedChain)>, NftError> {
        let read = |p: &[u8]| {
            let body = p.get(4..)?;
            let number = |body: &[u8], kind: u16| attr(body, kind).and_then(be32);
            let hook = attr(body, 4).and_then(|hook| {
                let kind = attr(body, 7).map(text).unwrap_or_default();
                Some((kind, number(hook, 1)?, number(hook, 2)? as i32, attr(hook, 3).map(text)))
            });
            let chain = ObservedChain { hook, drop_by_default: number(body, 5) == Some(0), rules: Vec::new() };
            (text(attr(body, 1)?) == table.name).then(|| Some((text(attr(body, 3)?), chain)))?
        };
        self.list(&format!("list chains of {table}"), msg::GET_CHAIN, table.family as u8, |_| {}, read)
    }

    fn observed_sets(&self, table: &Table) -> Result<Vec<(String, ObservedSet)>, NftError> {
        let body = |w: &mut Writer| w.attr_str(1, &table.name);
        self.list(&format!("list sets of {table}"), msg::GET_SET, table.family as u8, body, |p| {
            let body = p.get(4..)?;
            let number = |kind: u16| attr(body, kind).and_then(be32);
            let data = number(6).map(|kind| (kind, if kind >= 0xffff_ff00 { 0 } else { number(7).unwrap_or(0) }));
            let set = ObservedSet {
                flags: number(3).unwrap_or(0) & SetSpec::FLAGS,
                key: (number(4).unwrap_or(0), number(5).unwrap_or(0)),
                data,
                timeout: attr(body, 11).and_then(be64).unwrap_or(0),
                size: attr(body, 9).and_then(|desc| attr(desc, 1)).and_then(be32).unwrap_or(0),
            };
            Some((text(attr(body, 2)?), set))
        })
    }
}
