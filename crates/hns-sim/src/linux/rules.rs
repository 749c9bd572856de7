//! The host's rules: the tables `ip hns` and `ip6 hns`, their fixed chains and their data maps.
//!
//! ```text
//! prerouting, output  → frontends[-host]: frontend (address · protocol · port) → mark, mark → pick chain; then a pod's proxy, if it has one
//! pick-N…             → backend (frontend · slot) → address · port, by dnat; the mark becomes the class of source that the backend sees
//! input, output       → pods and their host reach each other where the network says so
//! forward             → access rules of the source's port, then of the destination's
//! postrouting         → mark → its source; tcp and udp → outbound; NAT networks → masquerade; overlays let nothing else out or in
//! outbound-to         → address → class; class · destination among its destinations → its source
//! outbound            → outbound-to; address → class; class · destination among the exceptions → as it is; else class → its source
//! ```
//! There is a pick chain for each different way of picking, never one for each frontend, so a change costs the kernel only its own elements.
//! Only a connection's first packet comes to the translating chains; the others follow the connection.

use std::collections::BTreeSet;
use std::io;

use nft::{Batch, Chain, ChainType, Element, Family, Hook, Key, Nft, NftError, Table, Verdict};

use super::access::{put_list, put_set};
use super::links::is_link;
use super::tunnels;
use crate::fact::{Fact, Place, Plan, Selector};

mod chains;
mod elements;
mod hops;
mod mend;

pub(super) use chains::{ACCESS_IN, ACCESS_OUT, Slots, always_pass};
use chains::{FINGERPRINT, VERSION, chain_of, code, pick_rules};
pub(super) use elements::family_of;
use elements::{elements, mark_key};

/// The tables of both families.
pub(super) const FAMILIES: [Family; 2] = [Family::Ip, Family::Ip6];

fn family(ipv6: bool) -> Family {
    if ipv6 { Family::Ip6 } else { Family::Ip }
}

pub(super) fn table(family: Family) -> Table {
    Table::new(family, "hns")
}

/// Whether the table is there: then this kernel ran the service before.
pub fn exist(nft: &Nft) -> io::Result<bool> {
    Ok(nft.tables()?.contains(&table(Family::Ip)))
}

/// What the tables say in one number: of each fact that is in them, so that a change of facts is a change of it. It stands in the tables, too:
/// a service that starts knows by it whether they are right already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(u64);

impl Default for Fingerprint {
    /// Of tables without facts. Another version of this program may have other chains.
    fn default() -> Self {
        Self(wide_hash(concat!(env!("CARGO_PKG_VERSION"), " 5")))
    }
}

impl Fingerprint {
    fn with<'a>(self, facts: impl IntoIterator<Item = &'a Fact>) -> Self {
        let in_tables = facts.into_iter().filter(|fact| is_in_tables(fact));
        Self(in_tables.fold(self.0, |sum, fact| sum ^ wide_hash(&fact.to_string())))
    }

    fn element(self) -> Element {
        let Self(sum) = self;
        Element::new(Key::new().mark((sum >> 32) as u32).mark(sum as u32))
    }

    /// Whether the kernel's tables say this.
    fn stands(self, nft: &Nft) -> bool {
        nft.elements(&table(Family::Ip), FINGERPRINT).is_ok_and(|found| found == [self.element()])
    }
}

fn wide_hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Brings the tables to the facts: leaves them alone where they say so already, since even a change at one go can lose the first packet of a
/// connection that is under way.
pub fn reconcile(nft: &Nft, facts: &BTreeSet<Fact>) -> io::Result<Fingerprint> {
    let fingerprint = Fingerprint::default().with(facts);
    if !fingerprint.stands(nft) {
        replace(nft, facts, fingerprint)?;
    }
    Ok(fingerprint)
}

/// Writes the tables anew, with the facts. In one transaction, so traffic never meets half a table. Where the kernel cannot take it at once, the
/// tables that are there are mended; only where they are none, or another version's, they are written in parts.
fn replace(nft: &Nft, facts: &BTreeSet<Fact>, fingerprint: Fingerprint) -> io::Result<()> {
    let mut batch = Batch::new();
    for family in FAMILIES {
        batch.destroy_table(&table(family)).add_table(&table(family));
        elements::add_sets(&mut batch, family);
        chains::add_chains(&mut batch, family);
    }
    tunnels::reset(&mut batch);
    let facts: Vec<&Fact> = facts.iter().collect();
    put(&mut batch, &facts, true);
    batch.add_elements(&table(Family::Ip), VERSION, &[Fingerprint::default().element()]);
    batch.add_elements(&table(Family::Ip), FINGERPRINT, &[fingerprint.element()]);
    match nft.commit(&batch) {
        Err(NftError::TooLarge { .. }) if mend::is_ours(nft) => mend::mend(nft, &facts, fingerprint).or_else(|error| {
            tracing::warn!(%error, "the rules cannot be mended and are written anew, in parts");
            Ok(nft.commit_in_parts(&batch)?)
        }),
        Err(NftError::TooLarge { .. }) => Ok(nft.commit_in_parts(&batch)?),
        other => Ok(other?),
    }
}

/// Makes a plan's changes in one transaction. Answers the tables' fingerprint afterwards.
pub fn change(nft: &Nft, plan: &Plan, fingerprint: Fingerprint) -> io::Result<Fingerprint> {
    let mut batch = Batch::new();
    put(&mut batch, &plan.remove.iter().collect::<Vec<_>>(), false);
    put(&mut batch, &plan.add.iter().collect::<Vec<_>>(), true);
    if batch.is_empty() {
        return Ok(fingerprint);
    }
    let after = fingerprint.with(plan.remove.iter().chain(&plan.add));
    if after != fingerprint {
        batch.del_elements(&table(Family::Ip), FINGERPRINT, &[fingerprint.element()]);
        batch.add_elements(&table(Family::Ip), FINGERPRINT, &[after.element()]);
    }
    nft.commit(&batch)?;
    Ok(after)
}

/// Whether a fact means something in the tables.
fn is_in_tables(fact: &Fact) -> bool {
    !is_link(fact) || matches!(fact, Fact::BridgeAddress { .. } | Fact::Hop(_) | Fact::Tunnel { .. })
}

/// Elements of one set that follow each other, on their way into a batch together.
#[derive(Default)]
struct Run {
    set: Option<(Family, String)>,
    elements: Vec<Element>,
}

impl Run {
    fn push(&mut self, batch: &mut Batch, family: Family, set: &str, element: Element, add: bool) {
        if self.set.as_ref().is_none_or(|(own, name)| (*own, name.as_str()) != (family, set)) {
            self.flush(batch, add);
            self.set = Some((family, set.to_owned()));
        }
        self.elements.push(element);
    }

    fn flush(&mut self, batch: &mut Batch, add: bool) {
        let elements = std::mem::take(&mut self.elements);
        let Some((family, set)) = self.set.take() else { return };
        if add {
            batch.add_elements(&table(family), &set, &elements);
        } else {
            batch.del_elements(&table(family), &set, &elements);
        }
    }
}

/// Puts facts into the tables, or takes them out, in their order.
fn put(batch: &mut Batch, facts: &[&Fact], add: bool) {
    // One run for each family: most facts that mean something in both mean it in a set of the same name.
    let mut runs = [Run::default(), Run::default(), Run::default()];
    for fact in facts.iter().filter(|fact| is_in_tables(fact)) {
        let found = elements(fact);
        if found.is_empty() {
            runs.iter_mut().for_each(|run| run.flush(batch, add));
            put_chains(batch, fact, add);
            continue;
        }
        for (family, set, element) in found {
            let run = match family {
                Family::Ip => &mut runs[0],
                Family::Ip6 => &mut runs[1],
                _ => &mut runs[2],
            };
            run.push(batch, family, &set, element, add);
        }
    }
    runs.iter_mut().for_each(|run| run.flush(batch, add));
}

/// Puts what has chains or sets of its own.
fn put_chains(batch: &mut Batch, fact: &Fact, add: bool) {
    match fact {
        Fact::Selector(pick) => put_pick(batch, *pick, add),
        Fact::Set(name) => put_set(batch, name, add),
        Fact::Access(list) if list.place == Place::Switch => put_list(batch, list, add),
        Fact::ToFabric { bridge } => put_to_fabric(batch, bridge, add),
        Fact::Kept { ipv6 } => hops::put_kept(batch, family(*ipv6), add),
        Fact::PodHops { ipv6 } => hops::put_pod_hops(batch, family(*ipv6), add),
        _ => {}
    }
}

fn put_pick(batch: &mut Batch, pick: Selector, add: bool) {
    let table = table(family(pick.ipv6));
    let chain = chain_of(pick);
    let key = Element::new(mark_key(code(pick)));
    let maps = if pick.host { [Some(chains::PICKS), Some(chains::HOST_PICKS)] } else { [Some(chains::PICKS), None] };
    if add {
        batch.add_chain(&table, &Chain::regular(&chain));
        for rule in pick_rules(pick) {
            batch.add_rule(&table, &chain, rule);
        }
        for map in maps.into_iter().flatten() {
            batch.add_elements(&table, map, &[key.clone().data(Verdict::Goto(chain.clone()))]);
        }
    } else {
        for map in maps.into_iter().flatten() {
            batch.del_elements(&table, map, std::slice::from_ref(&key));
        }
        batch.flush_chain(&table, &chain).del_chain(&table, &chain);
    }
}

/// Behind the translation of destinations, so that only what was not translated goes to the fabric.
const BEHIND_DNAT: i32 = -90;

fn put_to_fabric(batch: &mut Batch, bridge: &str, add: bool) {
    let (table, chain) = (table(Family::Ip), format!("to-fabric-{bridge}"));
    if add {
        batch.add_chain(&table, &Chain::base(&chain, ChainType::Filter, Hook::Prerouting, BEHIND_DNAT));
        batch.add_rule(&table, &chain, chains::to_fabric(bridge));
    } else {
        batch.flush_chain(&table, &chain).del_chain(&table, &chain);
    }
}
