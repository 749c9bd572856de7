//! Transactions.

use std::ops::Range;

use super::{Chain, Element, Family, Rule, SetSpec, Table, Verdict, header, msg};
use linux_sys::netlink::wire::Writer;

const REQUEST: u16 = libc::NLM_F_REQUEST as u16;
const CREATE: u16 = REQUEST | libc::NLM_F_CREATE as u16;
const APPEND: u16 = CREATE | libc::NLM_F_APPEND as u16;
const ACK: u16 = libc::NLM_F_ACK as u16;
/// Elements of one message: an attribute holds 64 KiB.
const MESSAGE: usize = 32 * 1024;
/// Longest comment that fits the kernel's user data (nft(8): 128 with the closing zero).
const COMMENT: usize = 127;

/// Operations for one transaction, in order ([`super::Nft::commit`]).
#[derive(Debug, Clone, Default)]
pub struct Batch {
    messages: Writer,
    /// Where each operation begins, and what it is called when it fails.
    operations: Vec<(usize, Name)>,
    /// Operations that one transaction must hold, in order.
    joined: Vec<Range<usize>>,
    sets: u32,
}

/// The parts of an operation's name, put together only when it is needed.
#[derive(Debug, Clone)]
struct Name {
    verb: &'static str,
    table: Table,
    object: String,
}

impl Batch {
    /// Without operations.
    pub fn new() -> Self {
        Self::default()
    }

    /// Without operations, so that committing does nothing.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// How many operations (messages) it has.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Its size in bytes as sent.
    pub fn bytes(&self) -> usize {
        self.messages.len() + 40
    }

    /// What `fill` adds is not cut apart by [`super::Nft::commit_in_parts`], unless it needs more than one transaction by itself.
    pub fn together(&mut self, fill: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.len();
        fill(self);
        // Inner groups are part of this one.
        self.joined.retain(|inner| inner.start < start);
        self.joined.push(start..self.len());
        self
    }

    fn push(&mut self, verb: &'static str, table: &Table, object: &str, kind: u16, flags: u16, body: impl FnOnce(&mut Writer)) -> &mut Self {
        self.operations.push((self.messages.len(), Name { verb, table: table.clone(), object: object.to_owned() }));
        let seq = self.operations.len() as u32;
        self.messages.message(msg::of(kind), flags, seq, &header(table.family as u8, 0), |w| {
            w.attr_str(1, &table.name);
            body(w);
        });
        self
    }

    /// Makes a table; that it is there is fine.
    pub fn add_table(&mut self, table: &Table) -> &mut Self {
        self.push("add table", table, "", msg::NEW_TABLE, CREATE, |_| {})
    }

    /// Deletes a table with all that is in it.
    pub fn del_table(&mut self, table: &Table) -> &mut Self {
        self.push("delete table", table, "", msg::DEL_TABLE, REQUEST, |_| {})
    }

    /// Deletes a table if it is there.
    pub fn destroy_table(&mut self, table: &Table) -> &mut Self {
        // Kernels before 6.3 have no such message.
        self.add_table(table).del_table(table)
    }

    /// Makes a chain; that an equal one is there is fine.
    pub fn add_chain(&mut self, table: &Table, chain: &Chain) -> &mut Self {
        self.push("add chain", table, &chain.name, msg::NEW_CHAIN, CREATE, |w| {
            w.attr_str(3, &chain.name);
            if let Some((kind, hook, priority)) = chain.hook {
                w.nest(4, |w| {
                    w.attr_be32(1, hook as u32);
                    w.attr_be32(2, priority as u32);
                    if let Some(device) = &chain.device {
                        w.attr_str(3, device);
                    }
                });
                let policy = if chain.drop_by_default { Verdict::Drop } else { Verdict::Accept };
                w.attr_be32(5, policy.code() as u32);
                w.attr_str(7, kind.name());
            }
        })
    }

    /// Deletes a chain, which must be empty and unused.
    pub fn del_chain(&mut self, table: &Table, chain: &str) -> &mut Self {
        self.push("delete chain", table, chain, msg::DEL_CHAIN, REQUEST, |w| w.attr_str(3, chain))
    }

    /// Deletes all rules of a chain.
    pub fn flush_chain(&mut self, table: &Table, chain: &str) -> &mut Self {
        self.push("flush chain", table, chain, msg::DEL_RULE, REQUEST, |w| w.attr_str(2, chain))
    }

    /// Makes a set or map; that an equal one is there is fine.
    pub fn add_set(&mut self, table: &Table, set: &SetSpec) -> &mut Self {
        self.sets += 1;
        let id = self.sets;
        self.push("add set", table, &set.name, msg::NEW_SET, CREATE, |w| set.write(w, id))
    }

    /// Deletes a set or map, which must be unused.
    pub fn del_set(&mut self, table: &Table, set: &str) -> &mut Self {
        self.push("delete set", table, set, msg::DEL_SET, REQUEST, |w| w.attr_str(2, set))
    }

    /// Deletes all elements of a set or map.
    pub fn flush_set(&mut self, table: &Table, set: &str) -> &mut Self {
        self.push("flush set", table, set, msg::DEL_ELEMENTS, REQUEST, |w| w.attr_str(2, set))
    }

    /// Adds elements. One that is there with equal data is fine, with other data it is refused:
    /// delete it before, in the same batch.
    pub fn add_elements(&mut self, table: &Table, set: &str, elements: &[Element]) -> &mut Self {
        self.elements("add elements to", table, set, msg::NEW_ELEMENTS, CREATE, elements)
    }

    /// Deletes elements, which must be there; their data plays no part.
    pub fn del_elements(&mut self, table: &Table, set: &str, elements: &[Element]) -> &mut Self {
        self.elements("delete elements of", table, set, msg::DEL_ELEMENTS, REQUEST, elements)
    }

    fn elements(&mut self, verb: &'static str, table: &Table, set: &str, kind: u16, flags: u16, elements: &[Element]) -> &mut Self {
        let mut rest = elements;
        while !rest.is_empty() {
            let mut size = 0;
            let fitting = rest.iter().take_while(|e| {
                size += e.size();
                size <= MESSAGE
            });
            let (now, later) = rest.split_at(fitting.count().max(1));
            rest = later;
            self.push(verb, table, set, kind, flags, |w| {
                w.attr_str(2, set);
                w.nest(3, |w| now.iter().for_each(|e| e.write(w)));
            });
        }
        self
    }

    /// Adds a rule at the end of a chain.
    pub fn add_rule(&mut self, table: &Table, chain: &str, rule: Rule) -> &mut Self {
        self.push("add rule to chain", table, chain, msg::NEW_RULE, APPEND, |w| {
            w.attr_str(2, chain);
            let start = w.len();
            w.nest(4, |w| rule.write(w, table.family));
            let mut notes = rule.comment.as_deref().map(comment_bytes).unwrap_or_default();
            let print = fingerprint(&w.as_bytes()[start + 4..], rule.comment.as_deref());
            notes.extend([FINGERPRINT, 8]);
            notes.extend(print.to_be_bytes());
            w.attr(7, &notes);
        })
    }

    /// Deletes the rule with that handle ([`super::RuleInfo::handle`]).
    pub fn del_rule(&mut self, table: &Table, chain: &str, handle: u64) -> &mut Self {
        self.push("delete rule of chain", table, chain, msg::DEL_RULE, REQUEST, |w| {
            w.attr_str(2, chain);
            w.attr_be64(3, handle);
        })
    }

    /// What operation `index` is called.
    pub(super) fn name(&self, index: usize) -> String {
        let Name { verb, table, object } = &self.operations[index].1;
        format!("{verb} {table} {object}").trim_end().to_owned()
    }

    fn span(&self, range: &Range<usize>) -> Range<usize> {
        let at = |i: usize| self.operations.get(i).map_or(self.messages.len(), |(start, _)| *start);
        at(range.start)..at(range.end)
    }

    /// The operations in `range`, as sent: between a begin and an end, the last one with a request to be acknowledged.
    /// With `generation`, the kernel refuses them when the rules are of another one.
    pub(super) fn datagram(&self, range: Range<usize>, generation: Option<u32>) -> Vec<u8> {
        const SUBSYSTEM: u16 = 10;
        let span = self.span(&range);
        let mut w = Writer::with_capacity(span.len() + 64);
        w.message(msg::BATCH_BEGIN, REQUEST, 0, &header(0, SUBSYSTEM), |w| {
            if let Some(generation) = generation {
                w.attr_be32(1, generation);
            }
        });
        let begin = w.len();
        w.raw(&self.messages.as_bytes()[span.clone()]);
        if let Some(last) = range.end.checked_sub(1) {
            w.add_flags(begin + self.operations[last].0 - span.start, ACK);
        }
        w.message(msg::BATCH_END, REQUEST, range.end as u32 + 1, &header(0, SUBSYSTEM), |_| {});
        w.into_bytes()
    }

    /// Cuts the batch into ranges of operations that need at most `limit` bytes each. Joined operations stay in one range where
    /// that range is within the limit; an operation that needs more than the limit stands alone.
    pub(super) fn parts(&self, limit: usize) -> Vec<Range<usize>> {
        let fits = |range: Range<usize>| self.span(&range).len() + 64 <= limit;
        let mut parts: Vec<Range<usize>> = Vec::new();
        let mut put = |unit: Range<usize>| match parts.last_mut() {
            Some(last) if fits(last.start..unit.end) => last.end = unit.end,
            _ => parts.push(unit),
        };
        let mut joined = self.joined.iter().cloned().peekable();
        let mut at = 0;
        while at < self.len() {
            let unit = joined.next_if(|range| range.start == at && !range.is_empty()).unwrap_or(at..at + 1);
            at = unit.end;
            while joined.next_if(|range| range.start < at).is_some() {}
            if fits(unit.clone()) {
                put(unit);
            } else {
                unit.for_each(|operation| put(operation..operation + 1));
            }
        }
        parts
    }
}

/// Type of the note in a rule's user data that holds its fingerprint. nft(8) skips notes that it does not know.
const FINGERPRINT: u8 = 0x4d;

/// A hash (FNV-1a) of a rule's encoded expressions and its comment, the same in every version of this program.
pub(super) fn fingerprint(expressions: &[u8], comment: Option<&str>) -> u64 {
    let bytes = expressions.iter().chain(comment.unwrap_or_default().as_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// nft(8)'s form of a comment: type 0, length, text with a closing zero.
fn comment_bytes(comment: &str) -> Vec<u8> {
    let mut end = comment.len().min(COMMENT);
    while !comment.is_char_boundary(end) {
        end -= 1;
    }
    let text = &comment.as_bytes()[..end];
    let mut bytes = vec![0, text.len() as u8 + 1];
    bytes.extend_from_slice(text);
    bytes.push(0);
    bytes
}

/// The comment in a rule's user data.
pub(super) fn read_comment(data: &[u8]) -> Option<String> {
    note(data, 0).map(linux_sys::netlink::wire::text)
}

/// The fingerprint in a rule's user data.
pub(super) fn read_fingerprint(data: &[u8]) -> Option<u64> {
    note(data, FINGERPRINT)?.try_into().ok().map(u64::from_be_bytes)
}

/// A note (type, length, value) of user data.
fn note(mut data: &[u8], asked: u8) -> Option<&[u8]> {
    while let [kind, len, rest @ ..] = data {
        let value = rest.get(..usize::from(*len))?;
        if *kind == asked {
            return Some(value);
        }
        data = &rest[usize::from(*len)..];
    }
    None
}

/// A family by number is what a dump's header has.
pub(super) fn family_of(payload: &[u8]) -> Option<Family> {
    Family::read(*payload.first()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux_sys::netlink::wire;

    fn batch(elements: usize) -> Batch {
        let mut batch = Batch::new();
        let all: Vec<_> = (0..elements as u32).map(|i| Element::new(i.to_be_bytes().to_vec())).collect();
        batch.add_elements(&Table::new(Family::Ip, "t"), "s", &all);
        batch
    }

    #[test]
    fn many_elements_are_several_messages_and_only_the_last_asks_for_an_answer() {
        let batch = batch(10_000);
        assert!(batch.len() > 3, "{}", batch.len());
        let bytes = batch.datagram(0..batch.len(), None);
        let all: Vec<_> = wire::messages(&bytes).collect();
        assert_eq!(all.len(), batch.len() + 2);
        let asking: Vec<usize> = all.iter().enumerate().filter(|(_, m)| m.flags & ACK != 0).map(|(i, _)| i).collect();
        assert_eq!(asking, [batch.len()]);
        assert_eq!(all[batch.len()].seq as usize, batch.len());
    }

    #[test]
    fn parts_cover_the_batch_in_order_and_within_the_limit() {
        let batch = batch(10_000);
        let parts = batch.parts(60_000);
        assert!(parts.len() > 2);
        assert_eq!(parts.iter().flat_map(Clone::clone).collect::<Vec<_>>(), (0..batch.len()).collect::<Vec<_>>());
        assert!(parts.iter().all(|p| batch.datagram(p.clone(), None).len() <= 60_000));
        assert_eq!(batch.parts(10).len(), batch.len(), "never less than one operation");
        assert!(Batch::new().parts(10).is_empty());
    }

    #[test]
    fn joined_operations_stay_in_one_part_where_they_fit() {
        let table = Table::new(Family::Ip, "t");
        let mut batch = Batch::new();
        for unit in 0..20 {
            batch.together(|batch| {
                for n in 0..=unit % 4 {
                    batch.flush_chain(&table, &format!("chain-{n}"));
                }
            });
            batch.del_chain(&table, "alone");
        }
        let one = batch.span(&(0..1)).len();
        for limit in (one * 4 + 64..one * 12).step_by(10) {
            let parts = batch.parts(limit);
            assert_eq!(parts.iter().flat_map(Clone::clone).collect::<Vec<_>>(), (0..batch.len()).collect::<Vec<_>>());
            let cut = |unit: &Range<usize>| parts.iter().any(|part| part.start > unit.start && part.start < unit.end);
            assert!(!batch.joined.iter().any(cut), "limit {limit}: {parts:?}");
            assert!(parts.iter().all(|part| batch.span(part).len() + 64 <= limit), "limit {limit}");
        }
        assert_eq!(batch.parts(one + 64).len(), batch.len(), "a unit that needs more than the limit is cut");
    }

    #[test]
    fn comments_are_cut_at_a_character() {
        let long = "ä".repeat(100);
        assert_eq!(read_comment(&comment_bytes(&long)).unwrap(), "ä".repeat(63));
        assert_eq!(read_comment(&comment_bytes("svc default/web")).unwrap(), "svc default/web");
        assert_eq!(read_comment(&[7, 200, 1]), None, "cut user data");
    }
}
