//! Access rules: a chain for each tier of a port's rules. At the switch, maps lead from a port's address to its first tier; inside a
//! compartment, the interface does.

use std::io;
use std::net::IpAddr;

use ipnet::IpNet;
use linux_sys::ns::NetNs;
use nft::{Chain, ChainType, CmpOp, Desired, Element, Engine, Expr, Family, Hook, Key, Nft, PayloadBase, Rule, Table, Verdict, rule};

use super::LinuxKernel;
use super::rules::{ACCESS_IN, ACCESS_OUT, FAMILIES, Slots, Tables, always_pass, family_of, spec};
use crate::fact::{Access, AccessList, AccessRule, Place};

fn direction(list: &AccessList) -> &'static str {
    if list.inbound { "in" } else { "out" }
}

fn chain_of(list: &AccessList, tier: usize) -> String {
    format!("{}-{}-{tier}", direction(list), list.port)
}

/// A set of networks that rules name, in both families.
pub(super) fn render_set(tables: &mut Tables, name: &str) {
    for family in FAMILIES {
        tables.of(family).set(spec(family, name)).with_rules();
    }
}

/// The rules of a switch's port.
pub(super) fn render_list(tables: &mut Tables, list: &AccessList) {
    let map = if list.inbound { ACCESS_IN } else { ACCESS_OUT };
    for family in FAMILIES {
        let own: Vec<IpAddr> = list.addresses.iter().copied().filter(|address| family_of(*address) == family).collect();
        if own.is_empty() {
            continue;
        }
        render_chains(tables.of(family), list);
        for address in own {
            let first = Verdict::Jump(chain_of(list, 0));
            tables.element(family, map, Element::new(Key::new().ip(address)).data(first));
        }
    }
}

impl LinuxKernel {
    fn nft_inside(&self, list: &AccessList) -> io::Result<Option<Nft>> {
        let Place::Inside { compartment, .. } = &list.place else { return Ok(None) };
        match NetNs::open(&self.compartment(compartment)) {
            Ok(ns) => Ok(Some(Nft::open_in(&ns)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn make_inside(&self, list: &AccessList) -> io::Result<()> {
        let Some(nft) = self.nft_inside(list)? else { return Err(super::links::absent("compartment for access rules")) };
        let Place::Inside { interface, .. } = &list.place else { return Ok(()) };
        let tables = FAMILIES.map(|family| {
            let mut table = Desired::new(table_inside(family, list));
            render_chains(&mut table, list);
            let hook = if list.inbound { Hook::Input } else { Hook::Output };
            let here = if list.inbound { rule().iifname(interface) } else { rule().oifname(interface) };
            let rules = always_pass(family).into_iter().chain([here.jump(chain_of(list, 0))]);
            table.chain(Chain::base("hook", ChainType::Filter, hook, 0), rules);
            table
        });
        Ok(Engine::new(nft).reconcile(tables.into()).map(drop)?)
    }

    /// Takes rules out of a compartment, where that still exists.
    pub(super) fn unmake_inside(&self, list: &AccessList) -> io::Result<()> {
        let Some(nft) = self.nft_inside(list)? else { return Ok(()) };
        Ok(Engine::new(nft).delete(FAMILIES.map(|family| table_inside(family, list)))?)
    }
}

fn table_inside(family: Family, list: &AccessList) -> Table {
    let kind = if matches!(list.place, Place::Inside { host: true, .. }) { "host" } else { "switch" };
    Table::new(family, format!("hns-{kind}-{}-{}", direction(list), list.port))
}

/// The sets of a list's rules: each side that names more than one prefix has one.
fn set_of(list: &AccessList, tier: usize, number: usize, side: &str) -> String {
    format!("{}-{number}-{side}", chain_of(list, tier))
}

/// Every rule of a list with its tier and its number there.
fn rules(list: &AccessList) -> impl Iterator<Item = (usize, usize, &AccessRule)> {
    list.tiers.iter().enumerate().flat_map(|(tier, rules)| rules.iter().enumerate().map(move |(number, rule)| (tier, number, rule)))
}

/// The sides of a rule that have a set of their own in that family.
fn own_sets(list: &AccessList, family: Family) -> Vec<(String, Vec<IpNet>)> {
    let mut sets = Vec::new();
    for (tier, number, rule) in rules(list) {
        for (side, nets) in [("from", &rule.sources), ("to", &rule.destinations)] {
            let nets: Vec<IpNet> = of_family(nets, family).copied().collect();
            if nets.len() > 1 {
                sets.push((set_of(list, tier, number, side), nets));
            }
        }
    }
    sets
}

fn of_family(nets: &[IpNet], family: Family) -> impl Iterator<Item = &IpNet> {
    nets.iter().filter(move |net| family_of(net.addr()) == family)
}

fn render_chains(table: &mut Desired, list: &AccessList) {
    let family = table.table().family;
    for (name, nets) in own_sets(list, family) {
        table.set(spec(family, &name)).with_rules().extend(nets.into_iter().map(Element::net));
    }
    let mut chains: Vec<Vec<Rule>> = list.tiers.iter().map(|_| Vec::new()).collect();
    for (tier, number, rule) in rules(list) {
        let matching = alternatives(list, tier, number, rule, family);
        chains[tier].extend(matching.into_iter().map(|matching| decide(matching, rule, list, tier)));
    }
    for (tier, mut rules) in chains.into_iter().enumerate() {
        // What a tier does not match is the next one's.
        if tier + 1 < list.tiers.len() {
            rules.push(rule().goto(chain_of(list, tier + 1)));
        }
        table.chain(Chain::regular(chain_of(list, tier)), rules);
    }
}

fn decide(matching: Rule, rule: &AccessRule, list: &AccessList, tier: usize) -> Rule {
    match rule.action {
        Access::Block => matching.drop(),
        Access::Pass if tier + 1 < list.tiers.len() => matching.goto(chain_of(list, tier + 1)),
        // These are the last to look, but for what drops unusual protocols.
        Access::Allow if list.inbound && list.place == Place::Switch && rule.opens() => matching.accept(),
        // The other direction's rules still look at what these allow.
        Access::Allow | Access::Pass => matching.return_(),
    }
}

/// What one side of a rule asks for.
enum Side {
    Anything,
    Address(IpNet),
    Set(String),
}

fn sides(nets: &[IpNet], named: &[String], own: String, family: Family) -> Vec<Side> {
    if nets.is_empty() && named.is_empty() {
        return vec![Side::Anything];
    }
    let nets: Vec<&IpNet> = of_family(nets, family).collect();
    let plain = match nets.as_slice() {
        [] => None,
        [net] if net.prefix_len() == 0 => Some(Side::Anything),
        [net] => Some(Side::Address(**net)),
        _ => Some(Side::Set(own)),
    };
    plain.into_iter().chain(named.iter().cloned().map(Side::Set)).collect()
}

/// The rules of the kernel that together match what a rule matches, in a family.
fn alternatives(list: &AccessList, tier: usize, number: usize, given: &AccessRule, family: Family) -> Vec<Rule> {
    let slots = Slots::of(family);
    let set = |side: &str| set_of(list, tier, number, side);
    let sources = sides(&given.sources, &given.source_sets, set("from"), family);
    let destinations = sides(&given.destinations, &given.destination_sets, set("to"), family);
    let mut matching = vec![rule()];
    if !given.protocols.is_empty() {
        matching = product(&matching, &given.protocols, |rule, protocol| rule.l4proto(*protocol));
    }
    matching = product(&matching, &sources, |rule, side| match side {
        Side::Anything => rule,
        Side::Address(net) => rule.ip_saddr(*net),
        Side::Set(name) => slots.saddr(rule, 0).lookup(name, 0),
    });
    matching = product(&matching, &destinations, |rule, side| match side {
        Side::Anything => rule,
        Side::Address(net) => rule.ip_daddr(*net),
        Side::Set(name) => slots.daddr(rule, 0).lookup(name, 0),
    });
    for (offset, ports) in [(0, &given.source_ports), (2, &given.destination_ports)] {
        if !ports.is_empty() {
            matching = product(&matching, ports, |rule, range| between(rule, offset, *range));
        }
    }
    matching
}

fn product<T>(rules: &[Rule], choices: &[T], with: impl Fn(Rule, &T) -> Rule) -> Vec<Rule> {
    rules.iter().flat_map(|rule| choices.iter().map(|choice| with(rule.clone(), choice))).collect()
}

fn between(rule: Rule, offset: u32, (first, last): (u16, u16)) -> Rule {
    let compare = |op, port: u16| Expr::Cmp { op, reg: 0, value: port.to_be_bytes().into() };
    let rule = rule.expr(Expr::Payload { base: PayloadBase::Transport, offset, len: 2, reg: 0 });
    if first == last { rule.expr(compare(CmpOp::Eq, first)) } else { rule.expr(compare(CmpOp::Gte, first)).expr(compare(CmpOp::Lte, last)) }
}
