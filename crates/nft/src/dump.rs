//! Reads tables, chains, sets, rules and elements from the kernel.

use super::attribute::*;
use super::batch::{family_of, read_comment, read_fingerprint};
use super::set::predecessor;
use super::{Data, Element, Nft, NftError, Table, Verdict, header, msg};
use linux_sys::netlink::wire::{Writer, attr, attrs, be32, be64, text};

const DUMP: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;

/// A chain as listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainInfo {
    pub name: String,
    /// Whether packets enter it by a hook.
    pub base: bool,
}

/// A set or map as listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetInfo {
    pub name: String,
    /// Whether it maps.
    pub map: bool,
}

/// A rule as listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleInfo {
    /// Its number in the table, to delete it by.
    pub handle: u64,
    pub comment: Option<String>,
    /// [`super::Rule::fingerprint`] of the rule that was added; none when another program made it.
    pub fingerprint: Option<u64>,
    /// The kernel's names of its expressions.
    pub expressions: Vec<String>,
    /// The chain that it leads to.
    pub leads_to: Option<String>,
    /// What its counter has counted: packets and bytes.
    pub counter: Option<(u64, u64)>,
}

impl Nft {
    pub(super) fn list<T>(
        &self,
        operation: &str,
        kind: u16,
        family: u8,
        body: impl Fn(&mut Writer),
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>, NftError> {
        let request = |w: &mut Writer, seq| w.message(msg::of(kind), DUMP, seq, &header(family, 0), &body);
        Ok(self.socket().dump(operation, request, |rows, _, payload| rows.extend(read(payload)))?)
    }

    /// The tables of all families.
    ///
    /// # Errors
    /// When the kernel has no nf_tables or forbids it.
    pub fn tables(&self) -> Result<Vec<Table>, NftError> {
        self.list("list tables", msg::GET_TABLE, 0, |_| {}, |p| Some(Table::new(family_of(p)?, text(attr(p.get(4..)?, NFTA_TABLE_NAME)?))))
    }

    /// The chains of a table; none when there is no such table.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn chains(&self, table: &Table) -> Result<Vec<ChainInfo>, NftError> {
        self.list(
            &format!("list chains of {table}"),
            msg::GET_CHAIN,
            table.family as u8,
            |_| {},
            |p| {
                let body = p.get(4..)?;
                let ours = text(attr(body, NFTA_CHAIN_TABLE)?) == table.name;
                ours.then(|| Some(ChainInfo { name: text(attr(body, NFTA_CHAIN_NAME)?), base: attr(body, NFTA_CHAIN_HOOK).is_some() }))?
            },
        )
    }

    /// The sets and maps of a table.
    ///
    /// # Errors
    /// When there is no such table.
    pub fn sets(&self, table: &Table) -> Result<Vec<SetInfo>, NftError> {
        let body = |w: &mut Writer| w.attr_str(NFTA_SET_TABLE, &table.name);
        self.list(&format!("list sets of {table}"), msg::GET_SET, table.family as u8, body, |p| {
            let body = p.get(4..)?;
            let flags = attr(body, NFTA_SET_FLAGS).and_then(be32).unwrap_or(0);
            Some(SetInfo { name: text(attr(body, NFTA_SET_NAME)?), map: flags & NFT_SET_MAP != 0 })
        })
    }

    /// The rules of a chain in order; none when there is no such chain.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn rules(&self, table: &Table, chain: &str) -> Result<Vec<RuleInfo>, NftError> {
        let body = |w: &mut Writer| {
            w.attr_str(NFTA_RULE_TABLE, &table.name);
            w.attr_str(NFTA_RULE_CHAIN, chain);
        };
        self.list(&format!("list rules of {table} {chain}"), msg::GET_RULE, table.family as u8, body, |p| read_rule(p.get(4..)?))
    }

    /// The elements of a set or map, by key. The kernel takes a time that grows with the square of their
    /// number (10,000: 15 ms, 200,000: seconds): for starting up, not for each change.
    ///
    /// # Errors
    /// When there is no such table or set.
    pub fn elements(&self, table: &Table, set: &str) -> Result<Vec<Element>, NftError> {
        let body = |w: &mut Writer| {
            w.attr_str(NFTA_SET_ELEM_LIST_TABLE, &table.name);
            w.attr_str(NFTA_SET_ELEM_LIST_SET, set);
        };
        let raw = self.list(&format!("list elements of {table} {set}"), msg::GET_ELEMENTS, table.family as u8, body, |p| {
            let list = attr(p.get(4..)?, NFTA_SET_ELEM_LIST_ELEMENTS)?;
            Some(attrs(list).filter_map(|(_, e)| read_element(e)).collect::<Vec<_>>())
        })?;
        Ok(join_ranges(raw.concat()))
    }
}

pub(super) fn read_rule(body: &[u8]) -> Option<RuleInfo> {
    let notes = attr(body, NFTA_RULE_USERDATA).unwrap_or(&[]);
    let mut rule = RuleInfo {
        handle: attr(body, NFTA_RULE_HANDLE).and_then(be64)?,
        comment: read_comment(notes),
        fingerprint: read_fingerprint(notes),
        expressions: Vec::new(),
        leads_to: None,
        counter: None,
    };
    for (_, expr) in attrs(attr(body, NFTA_RULE_EXPRESSIONS).unwrap_or(&[])) {
        let name = text(attr(expr, NFTA_EXPR_NAME)?);
        if let ("counter", Some(data)) = (name.as_str(), attr(expr, NFTA_EXPR_DATA)) {
            rule.counter = Some((attr(data, NFTA_COUNTER_PACKETS).and_then(be64)?, attr(data, NFTA_COUNTER_BYTES).and_then(be64)?));
        }
        if let ("immediate", Some(data)) = (name.as_str(), attr(expr, NFTA_EXPR_DATA))
            && let Some(Data::Verdict(Verdict::Jump(chain) | Verdict::Goto(chain))) = attr(data, NFTA_IMMEDIATE_DATA).and_then(read_data)
        {
            rule.leads_to = Some(chain);
        }
        rule.expressions.push(name);
    }
    Some(rule)
}

/// An element and whether it is the end of a range.
fn read_element(body: &[u8]) -> Option<(Element, bool)> {
    let value = |kind| attr(body, kind).and_then(|data| attr(data, NFTA_DATA_VALUE)).map(<[u8]>::to_vec);
    let end = attr(body, NFTA_SET_ELEM_FLAGS).and_then(be32).unwrap_or(0) & NFT_SET_ELEM_INTERVAL_END != 0;
    let mut element = Element::new(value(NFTA_SET_ELEM_KEY)?);
    element.key_end = value(NFTA_SET_ELEM_KEY_END);
    element.area = element.key_end.is_some();
    element.data = attr(body, NFTA_SET_ELEM_DATA).and_then(read_data);
    Some((element, end))
}

fn read_data(body: &[u8]) -> Option<Data> {
    if let Some(value) = attr(body, NFTA_DATA_VALUE) {
        return Some(Data::Value(value.to_vec()));
    }
    let verdict = attr(body, NFTA_DATA_VERDICT)?;
    let chain = || attr(verdict, NFTA_VERDICT_CHAIN).map(text);
    Some(Data::Verdict(match be32(attr(verdict, NFTA_VERDICT_CODE)?)? as i32 {
        libc::NF_DROP => Verdict::Drop,
        libc::NF_ACCEPT => Verdict::Accept,
        libc::NFT_CONTINUE => Verdict::Continue,
        libc::NFT_JUMP => Verdict::Jump(chain()?),
        libc::NFT_GOTO => Verdict::Goto(chain()?),
        libc::NFT_RETURN => Verdict::Return,
        _ => return None,
    }))
}

/// Puts the two elements of each one-part range together again, and sorts by key.
fn join_ranges(mut raw: Vec<(Element, bool)>) -> Vec<Element> {
    // At one key, the end of a range stands before the begin of the next.
    raw.sort_by(|(a, a_end), (b, b_end)| a.key.cmp(&b.key).then(b_end.cmp(a_end)));
    let ranges = raw.iter().any(|(_, end)| *end);
    let mut out: Vec<Element> = Vec::with_capacity(raw.len());
    for (element, end) in raw {
        if !end {
            out.push(element);
        } else if let Some(open) = out.last_mut().filter(|e| e.key_end.is_none()) {
            open.key_end = predecessor(&element.key);
        }
    }
    if ranges && let Some(open) = out.last_mut().filter(|e| e.key_end.is_none()) {
        // Nothing lies behind the last key, so its range has no end element.
        open.key_end = Some(vec![0xff; open.key.len()]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_put_together_from_their_ends() {
        let e = |key: u8| Element::new(vec![key]);
        let joined = join_ranges(vec![(e(0xf0), false), (e(9), true), (e(5), true), (e(5), false), (e(1), false)]);
        assert_eq!(joined, [Element::range(vec![1], vec![4]), Element::range(vec![5], vec![8]), Element::range(vec![0xf0], vec![0xff])]);
    }
}
