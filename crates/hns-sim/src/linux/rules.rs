//! The host's rules: the tables `ip hns` and `ip6 hns`, their fixed chains and their data maps.
//!
//! ```text
//! prerouting, output  → vips[-host]: VIP (address · protocol · port) → mark, mark → selector chain; then a pod's proxy, if it has one
//! select-N…           → backend (VIP · slot) → address · port, by dnat; the mark becomes the class of source that the backend sees
//! input, output       → pods and their host reach each other where the network says so
//! forward             → access rules of the source's port, then of the destination's
//! postrouting         → mark → its source; tcp and udp → outbound; NAT networks → masquerade; overlays let nothing else out or in
//! outbound-to         → address → class; class · destination among its destinations → its source
//! outbound            → outbound-to; address → class; class · destination among the exceptions → as it is; else class → its source
//! ```
//! There is a chain for each different backend selector, never one for each VIP, so a change costs the kernel only its own elements.
//! Only a connection's first packet comes to the translating chains; the others follow the connection.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use nft::{Chain, ChainType, Desired, Element, Engine, Family, Hook, Key, Nft, Table, Verdict};

use super::access::{render_list, render_set};
use super::tunnels;
use crate::fact::{Fact, Plan, Rule, Selector};

mod chains;
mod elements;
mod hops;

pub(super) use chains::{ACCESS_IN, ACCESS_OUT, Slots, always_pass};
use chains::{FINGERPRINT, VIPS, chain_of, code, selector_rules};
use elements::{elements, mark_key};
pub(super) use elements::{family_of, spec};

/// The tables of both families.
pub(super) const FAMILIES: [Family; 2] = [Family::Ip, Family::Ip6];

fn family(ipv6: bool) -> Family {
    if ipv6 { Family::Ip6 } else { Family::Ip }
}

pub(super) fn table(family: Family) -> Table {
    Table::new(family, "hns")
}

/// Whether the table exists: then this kernel ran the service before.
pub fn exist(nft: &Nft) -> io::Result<bool> {
    Ok(nft.tables()?.contains(&table(Family::Ip)))
}

/// The facts of the tables in one number. The tables hold it too: a service that starts knows by it, without reading thousands of elements,
/// that they are right already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(u64);

impl Default for Fingerprint {
    /// Of tables without facts. Another version of this program may have other chains.
    fn default() -> Self {
        Self(wide_hash(concat!(env!("CARGO_PKG_VERSION"), " 7")))
    }
}

impl Fingerprint {
    fn with<'a>(self, rules: impl IntoIterator<Item = &'a Rule>) -> Self {
        Self(rules.into_iter().fold(self.0, |sum, rule| sum ^ wide_hash(&rule.to_string())))
    }

    fn element(self) -> Element {
        let Self(sum) = self;
        Element::new(Key::new().mark((sum >> 32) as u32).mark(sum as u32))
    }

    fn read(nft: &Nft) -> Vec<Element> {
        nft.elements(&table(Family::Ip), FINGERPRINT).unwrap_or_default()
    }
}

fn wide_hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Makes the tables what the facts say. Tables with the right fingerprint are not touched, since even an empty change can lose the first packet
/// of a connection. Else what differs is written, in one transaction where the kernel takes it at once.
pub fn reconcile(engine: &Engine, facts: &BTreeSet<Fact>) -> io::Result<Fingerprint> {
    let fingerprint = Fingerprint::default().with(facts.iter().filter_map(Fact::rule));
    let found = Fingerprint::read(engine.nft());
    if found == [fingerprint.element()] {
        return Ok(fingerprint);
    }
    // Without a fingerprint until everything is written.
    if !found.is_empty() {
        engine.apply_at_once(nft::Plan::between(fingerprints(found), Vec::new()))?;
    }
    let mut tables = Tables::fixed();
    tables.render(facts.iter().filter_map(Fact::rule));
    engine.reconcile(tables.into())?;
    engine.apply_at_once(nft::Plan::between(Vec::new(), fingerprints(vec![fingerprint.element()])))?;
    Ok(fingerprint)
}

/// The set of fingerprints with these elements, as a part of its table.
fn fingerprints(elements: Vec<Element>) -> Vec<Desired> {
    let mut part = Tables::default();
    elements.into_iter().for_each(|element| part.element(Family::Ip, FINGERPRINT, element));
    part.into()
}

/// Makes a plan's changes in one transaction. Returns the tables' fingerprint afterwards.
pub fn change(engine: &Engine, plan: &Plan, fingerprint: Fingerprint) -> io::Result<Fingerprint> {
    let after = fingerprint.with(plan.removed_rules().chain(plan.added_rules()));
    let part = |facts: &[Fact], fingerprint: Fingerprint| {
        let mut part = Tables::default();
        part.render(facts.iter().filter_map(Fact::rule));
        part.element(Family::Ip, FINGERPRINT, fingerprint.element());
        part.into()
    };
    engine.apply_at_once(nft::Plan::between(part(&plan.remove, fingerprint), part(&plan.add, after)))?;
    Ok(after)
}

/// The tables that facts mean, or a part of them.
#[derive(Default)]
pub(super) struct Tables(BTreeMap<Family, Desired>);

impl From<Tables> for Vec<Desired> {
    fn from(Tables(tables): Tables) -> Self {
        tables.into_values().collect()
    }
}

impl Tables {
    /// The fixed chains and sets.
    fn fixed() -> Self {
        let mut tables = Self::default();
        for family in FAMILIES {
            elements::declare_sets(tables.of(family), family);
            chains::render(tables.of(family), family);
        }
        tables.of(Family::Ip).set(spec(Family::Ip, FINGERPRINT)).unmanaged();
        tables.0.insert(Family::Netdev, tunnels::macs());
        tables
    }

    pub(super) fn of(&mut self, family: Family) -> &mut Desired {
        self.0.entry(family).or_insert_with(|| Desired::new(table(family)))
    }

    /// An element of a set that this part does not declare.
    pub(super) fn element(&mut self, family: Family, set: &str, element: Element) {
        let table = self.of(family);
        let set = match table.find_set(set) {
            Some(set) => set,
            None => table.used_set(spec(family, set)).rank(u8::from(set != VIPS)),
        };
        set.push(element);
    }

    fn render<'a>(&mut self, rules: impl IntoIterator<Item = &'a Rule>) {
        for rule in rules {
            for (family, set, element) in elements(rule) {
                self.element(family, &set, element);
            }
            match rule {
                Rule::Selector(selector) => self.selector(*selector),
                Rule::Set(name) => render_set(self, name),
                Rule::Access(list) => render_list(self, list),
                Rule::ToFabric { bridge } => self.fabric_marks(bridge),
                Rule::Kept { ipv6 } => hops::render_kept(self.of(family(*ipv6)), family(*ipv6)),
                Rule::PodHops { ipv6 } => hops::render_pod_hops(self.of(family(*ipv6)), family(*ipv6)),
                _ => {}
            }
        }
    }

    fn selector(&mut self, selector: Selector) {
        let (family, chain) = (family(selector.ipv6), chain_of(selector));
        self.of(family).chain(Chain::regular(&*chain), selector_rules(selector));
        let element = Element::new(mark_key(code(selector))).data(Verdict::Goto(chain));
        if selector.host {
            self.element(family, chains::HOST_SELECTORS, element.clone());
        }
        self.element(family, chains::SELECTORS, element);
    }

    fn fabric_marks(&mut self, bridge: &str) {
        let chain = Chain::base(format!("to-fabric-{bridge}"), ChainType::Filter, Hook::Prerouting, BEHIND_DNAT);
        self.of(Family::Ip).chain(chain, [chains::to_fabric(bridge)]);
    }
}

/// Behind the translation of destinations, so that only what was not translated goes to the fabric.
const BEHIND_DNAT: i32 = -90;
