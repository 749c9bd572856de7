//! Address translation: the table `ip hns`, its fixed chains and its data maps.
//!
//! ```text
//! prerouting, output  → frontends[-host]: frontend (address · protocol · port) → mark, mark → pick chain
//! pick-N…             → backend (frontend · slot) → address · port, by dnat; the mark becomes "balanced"
//! postrouting         → mark "balanced" → its source; tcp and udp → outbound; NAT networks → masquerade
//! outbound            → address → class; class · destination among the exceptions → as it is; else class → its source
//! ```
//! There is a pick chain for each different way of picking, never one for each frontend, so a change costs the kernel only its own elements.
//! Only a connection's first packet comes here; the others follow the connection.

use std::collections::BTreeSet;
use std::io;

use hcn::Protocol;
use ipnet::{IpNet, Ipv4Net};
use linux_sys::nft::{Batch, Chain, ChainType, DataType, Element, Expr, Family, Hook, Key, Nft, NftError, Rule, SetSpec, Table, Verdict, rule};

use super::links::is_link;
use crate::fact::{BALANCED, Fact, Frontend, NatClass, ONLY_DESTINATIONS, Pick, Plan, Spread};

const FRONTENDS: &str = "frontends";
const BACKENDS: &str = "backends";
const PICKS: &str = "picks";
const HOST_PICKS: &str = "picks-host";
const SOURCES: &str = "sources";
const OUTBOUND: &str = "outbound-classes";
const EXCEPTIONS: &str = "exceptions";
const DESTINATIONS: &str = "destinations";
const MASQUERADED: &str = "masqueraded";

const TCP: u8 = 6;
const UDP: u8 = 17;

fn table() -> Table {
    Table::new(Family::Ip, "hns")
}

/// Whether the table is there: then this kernel ran the service before.
pub fn exist(nft: &Nft) -> io::Result<bool> {
    Ok(nft.tables()?.contains(&table()))
}

/// Writes the table anew, with the facts. In one transaction, so traffic never meets half a table; only where the kernel cannot take it at
/// once, in parts.
pub fn replace(nft: &Nft, facts: &BTreeSet<Fact>) -> io::Result<()> {
    let mut batch = Batch::new();
    batch.destroy_table(&table()).add_table(&table());
    sets(&mut batch);
    chains(&mut batch);
    let facts: Vec<&Fact> = facts.iter().collect();
    put(&mut batch, &facts, true);
    match nft.commit(&batch) {
        Err(NftError::TooLarge { .. }) => Ok(nft.commit_in_parts(&batch)?),
        other => Ok(other?),
    }
}

/// Makes a plan's changes in one transaction.
pub fn change(nft: &Nft, plan: &Plan) -> io::Result<()> {
    let mut batch = Batch::new();
    put(&mut batch, &plan.remove.iter().collect::<Vec<_>>(), false);
    put(&mut batch, &plan.add.iter().collect::<Vec<_>>(), true);
    if batch.is_empty() { Ok(()) } else { Ok(nft.commit(&batch)?) }
}

fn sets(batch: &mut Batch) {
    use DataType::{InetProto, InetService, Ipv4Addr, Mark};
    for set in [
        SetSpec::map(FRONTENDS, [Ipv4Addr, InetProto, InetService], [Mark]),
        SetSpec::map(BACKENDS, [Ipv4Addr, InetProto, InetService, Mark], [Ipv4Addr, InetService]),
        SetSpec::vmap(PICKS, [Mark]),
        SetSpec::vmap(HOST_PICKS, [Mark]),
        SetSpec::map(SOURCES, [Mark], [Ipv4Addr]),
        SetSpec::map(OUTBOUND, [Ipv4Addr], [Mark]),
        SetSpec::set(EXCEPTIONS, [Mark, Ipv4Addr]).interval(),
        SetSpec::set(DESTINATIONS, [Mark, Ipv4Addr]).interval(),
        SetSpec::set(MASQUERADED, [Ipv4Addr]).interval(),
    ] {
        batch.add_set(&table(), &set);
    }
}

/// Priorities of address translation in the IPv4 hooks (linux/netfilter_ipv4.h).
const DNAT: i32 = -100;
const SNAT: i32 = 100;

fn chains(batch: &mut Batch) {
    let table = table();
    for chain in ["frontends", "frontends-host", "outbound"] {
        batch.add_chain(&table, &Chain::regular(chain));
    }
    for (chain, hook, priority) in [("prerouting", Hook::Prerouting, DNAT), ("output", Hook::Output, DNAT), ("postrouting", Hook::Postrouting, SNAT)]
    {
        batch.add_chain(&table, &Chain::base(chain, ChainType::Nat, hook, priority));
    }
    for (chain, picks) in [("frontends", PICKS), ("frontends-host", HOST_PICKS)] {
        for rule in frontend_rules(picks) {
            batch.add_rule(&table, chain, rule);
        }
    }
    batch.add_rule(&table, "prerouting", rule().jump("frontends"));
    batch.add_rule(&table, "output", rule().jump("frontends-host"));
    for rule in outbound_rules() {
        batch.add_rule(&table, "outbound", rule);
    }
    for rule in postrouting_rules() {
        batch.add_rule(&table, "postrouting", rule);
    }
}

/// Frontends with an address, then those of any host address. The mark carries the way of picking to the map of chains.
fn frontend_rules(picks: &str) -> [Rule; 4] {
    let pick = || rule().load_mark(0).vmap(picks, 0);
    let of_host = rule().daddr_is_local().ip_daddr_not("127.0.0.0/8".parse::<IpNet>().unwrap_or_default()).load_value(0, [0; 4]);
    [
        rule().load_ip_daddr(0).load_l4proto(1).load_dport(2).lookup_data(FRONTENDS, 0, 4).set_mark_from(4),
        pick(),
        of_host.load_l4proto(1).load_dport(2).lookup_data(FRONTENDS, 0, 4).set_mark_from(4),
        pick(),
    ]
}

fn snat_by_mark(rule: Rule) -> Rule {
    rule.load_mark(0).lookup_data(SOURCES, 0, 4).snat(Family::Ip, 4, None)
}

fn postrouting_rules() -> [Rule; 4] {
    let elsewhere = rule().load_ip_saddr(0).lookup(MASQUERADED, 0).load_ip_daddr(1).lookup_not(MASQUERADED, 1);
    [
        snat_by_mark(rule().mark(BALANCED, u32::MAX)),
        rule().l4proto(TCP).jump("outbound"),
        rule().l4proto(UDP).jump("outbound"),
        elsewhere.masquerade(),
    ]
}

fn outbound_rules() -> [Rule; 5] {
    let listed = |set: &str| rule().load_mark(0).load_ip_daddr(1).lookup(set, 0);
    [
        rule().load_ip_saddr(0).lookup_data(OUTBOUND, 0, 4).set_mark_from(4),
        listed(EXCEPTIONS).return_(),
        snat_by_mark(rule().mark(ONLY_DESTINATIONS, ONLY_DESTINATIONS).load_mark(0).load_ip_daddr(1).lookup(DESTINATIONS, 0)),
        rule().mark(ONLY_DESTINATIONS, ONLY_DESTINATIONS).return_(),
        snat_by_mark(rule()),
    ]
}

/// The mark that stands for a way of picking: its parts side by side, beside every class of [`NatClass`].
fn code(pick: Pick) -> u32 {
    let spread = match pick.spread {
        Spread::Connection => 0,
        Spread::SourceProtocol => 1,
        Spread::Source => 2,
    };
    let flags = u32::from(pick.any_host_address) << 2 | u32::from(pick.keep_source) << 3 | u32::from(pick.host) << 4;
    0x1000_0000 | (spread | flags) << 16 | u32::from(pick.count)
}

/// The chain of a way of picking; its name reads.
fn chain_of(pick: Pick) -> String {
    let spread = match pick.spread {
        Spread::Connection => "",
        Spread::SourceProtocol => "-source-protocol",
        Spread::Source => "-source",
    };
    let flag = |on: bool, text: &'static str| if on { text } else { "" };
    let flags = [flag(pick.any_host_address, "-any"), flag(pick.keep_source, "-keep"), flag(!pick.host, "-nohost")].concat();
    format!("pick-{}{spread}{flags}", pick.count)
}

/// Puts the slot into slot 3, behind the frontend in slots 0 to 2, and translates to its backend.
fn pick_rules(pick: Pick) -> Vec<Rule> {
    let count = u32::from(pick.count);
    let picking = match pick.spread {
        _ if count == 1 => rule().load_value(3, [0; 4]),
        Spread::Connection => rule().load_random(count, 3),
        Spread::Source => rule().load_ip_saddr(8).expr(hash(4, count)),
        Spread::SourceProtocol => rule().load_ip_saddr(8).load_l4proto(9).expr(hash(8, count)),
    };
    let frontend = if pick.any_host_address { picking.load_value(0, [0; 4]) } else { picking.load_ip_daddr(0) };
    let translate = frontend.load_l4proto(1).load_dport(2).lookup_data(BACKENDS, 0, 4).dnat(Family::Ip, 4, Some(5));
    // A mark is always set: the way of picking must not be taken for a class.
    let mark = if pick.keep_source { 0 } else { BALANCED };
    vec![rule().set_mark(mark, u32::MAX), translate]
}

fn hash(len: u32, modulus: u32) -> Expr {
    // Any seed will do, as long as it is the same after a restart: affinity outlives it.
    Expr::Hash { from: 8, len, modulus, seed: 0x4d75_6c6c, offset: 0, reg: 3 }
}

fn frontend_key(frontend: &Frontend) -> Key {
    let Protocol(protocol) = frontend.protocol;
    let address = frontend.address.unwrap_or(std::net::Ipv4Addr::UNSPECIFIED);
    Key::new().ip(address.into()).proto(protocol as u8).port(frontend.port)
}

fn class_and_net(class: NatClass, net: Ipv4Net) -> Element {
    let key = |address: std::net::Ipv4Addr| Key::new().mark(class).ip(address.into());
    Element::area(key(net.network()), key(net.broadcast()))
}

/// The set of a fact and its element there.
fn element(fact: &Fact) -> Option<(&'static str, Element)> {
    Some(match fact {
        Fact::Masquerade(net) => (MASQUERADED, Element::net(IpNet::V4(*net))),
        Fact::Source { class, address } => (SOURCES, Element::new(Key::new().mark(*class)).data(Key::new().ip((*address).into()))),
        Fact::Exception { class, destination } => (EXCEPTIONS, class_and_net(*class, *destination)),
        Fact::Destination { class, destination } => (DESTINATIONS, class_and_net(*class, *destination)),
        Fact::Outbound { address, class } => (OUTBOUND, Element::new(Key::new().ip((*address).into())).data(Key::new().mark(*class))),
        Fact::Backend { frontend, slot, address, port } => {
            let key = frontend_key(frontend).mark(u32::from(*slot));
            (BACKENDS, Element::new(key).data(Key::new().ip((*address).into()).port(*port)))
        }
        Fact::Frontend { frontend, pick } => (FRONTENDS, Element::new(frontend_key(frontend)).data(Key::new().mark(code(*pick)))),
        _ => return None,
    })
}

/// Puts facts into the table, or takes them out, in their order. Elements of one set that follow each other travel together.
fn put(batch: &mut Batch, facts: &[&Fact], add: bool) {
    let table = table();
    let mut run: (&str, Vec<Element>) = ("", Vec::new());
    for fact in facts.iter().filter(|fact| !is_link(fact)) {
        match (element(fact), fact) {
            (Some((set, element)), _) if set == run.0 => run.1.push(element),
            (Some((set, element)), _) => {
                flush(batch, &table, std::mem::replace(&mut run, (set, vec![element])), add);
            }
            (None, Fact::Pick(pick)) => {
                flush(batch, &table, std::mem::take(&mut run), add);
                put_pick(batch, &table, *pick, add);
            }
            (None, _) => {}
        }
    }
    flush(batch, &table, run, add);
}

fn flush(batch: &mut Batch, table: &Table, (set, elements): (&str, Vec<Element>), add: bool) {
    if elements.is_empty() {
        return;
    }
    if add {
        batch.add_elements(table, set, &elements);
    } else {
        batch.del_elements(table, set, &elements);
    }
}

fn put_pick(batch: &mut Batch, table: &Table, pick: Pick, add: bool) {
    let chain = chain_of(pick);
    let key = Element::new(Key::new().mark(code(pick)));
    let maps = if pick.host { [Some(PICKS), Some(HOST_PICKS)] } else { [Some(PICKS), None] };
    if add {
        batch.add_chain(table, &Chain::regular(&chain));
        for rule in pick_rules(pick) {
            batch.add_rule(table, &chain, rule);
        }
        for map in maps.into_iter().flatten() {
            batch.add_elements(table, map, &[key.clone().data(Verdict::Goto(chain.clone()))]);
        }
    } else {
        for map in maps.into_iter().flatten() {
            batch.del_elements(table, map, std::slice::from_ref(&key));
        }
        batch.flush_chain(table, &chain).del_chain(table, &chain);
    }
}
