//! The fixed chains, and those of backend selectors.

use ipnet::IpNet;
use nft::{Chain, ChainType, CmpOp, CtKey, Desired, Expr, Family, Hook, MetaKey, PayloadBase, Rule, ct_state, ct_status, rule};

use super::hops;
use crate::fact::{BALANCED, Distribution, Seen, Selector, TO_FABRIC, USUAL_PROTOCOLS, stable_hash};
use crate::linux::links::{BRIDGE, TUNNEL};

pub(super) const VIPS: &str = "vips";
pub(super) const BACKENDS: &str = "backends";
pub(super) const SELECTORS: &str = "selectors";
pub(super) const HOST_SELECTORS: &str = "selectors-host";
pub(super) const SOURCES: &str = "sources";
pub(super) const OUTBOUND: &str = "outbound-classes";
pub(super) const OUTBOUND_TO: &str = "outbound-to-classes";
pub(super) const EXCEPTIONS: &str = "exceptions";
pub(super) const DESTINATIONS: &str = "destinations";
pub(super) const MASQUERADED: &str = "masqueraded";
pub(super) const GUARDED: &str = "guarded";
pub(super) const HOSTLESS: &str = "hostless";
pub(super) const CLOSED: &str = "closed";
pub(super) const HOST_PATHS: &str = "host-paths";
pub(super) const HOST_ADDRESSES: &str = "host-addresses";
pub(super) const OVERLAY_LINKS: &str = "overlay-links";
pub(super) const TUNNELS: &str = "tunnels";
pub(super) const OVERLAY_PREFIXES: &str = "overlay-prefixes";
pub(super) const PROXIED: &str = "proxied";
pub(super) const UNPROXIED: &str = "unproxied";
pub(super) const FINGERPRINT: &str = "fingerprint";
pub(in super::super) const ACCESS_IN: &str = "access-in";
pub(in super::super) const ACCESS_OUT: &str = "access-out";

/// The class of connections that get the address of their link, as the kernel holds it.
pub(super) const BALANCED_BYTES: [u8; 4] = BALANCED.to_ne_bytes();

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;

/// Priorities of address translation and of filters in the hooks (linux/netfilter_ipv4.h).
pub(super) const DNAT: i32 = -100;
pub(super) const FILTER: i32 = 0;
pub(super) const SNAT: i32 = 100;

/// Where values lie in the rules of a family: the VIP's address, protocol and port from slot 0, then the backend's number; what is looked
/// up from slot 8.
pub(in super::super) struct Slots {
    pub(super) family: Family,
    /// Slots of an address.
    width: u32,
}

pub(super) const FOUND: u32 = 8;

impl Slots {
    pub(in super::super) fn of(family: Family) -> Self {
        Self { family, width: if family == Family::Ip6 { 4 } else { 1 } }
    }

    pub(in super::super) fn saddr(&self, rule: Rule, reg: u32) -> Rule {
        if self.width == 4 { rule.load_ip6_saddr(reg) } else { rule.load_ip_saddr(reg) }
    }

    pub(in super::super) fn daddr(&self, rule: Rule, reg: u32) -> Rule {
        if self.width == 4 { rule.load_ip6_daddr(reg) } else { rule.load_ip_daddr(reg) }
    }

    /// Protocol and port behind the VIP's address.
    pub(super) fn service(&self, rule: Rule) -> Rule {
        rule.load_l4proto(self.width).load_dport(self.width + 1)
    }

    /// Source and destination address side by side.
    pub(super) fn both(&self, rule: Rule) -> Rule {
        self.daddr(self.saddr(rule, 0), self.width)
    }

    fn nothing(&self) -> Vec<u8> {
        vec![0; self.width as usize * 4]
    }

    /// The mark goes: a tunnel's own packets would inherit it, and be translated, too.
    fn snat_by_mark(&self, rule: Rule) -> Rule {
        rule.load_mark(0).lookup_data(SOURCES, 0, FOUND).set_mark(0, u32::MAX).snat(self.family, FOUND, None)
    }
}

/// The fixed chains.
pub(super) fn render(table: &mut Desired, family: Family) {
    let slots = Slots::of(family);
    let nat = |name: &str, hook: Hook, priority: i32| Chain::base(name, ChainType::Nat, hook, priority);
    let filter = |name: &str, hook: Hook| Chain::base(name, ChainType::Filter, hook, FILTER);
    table.chain(Chain::regular("vips"), vip_rules(&slots, SELECTORS));
    table.chain(Chain::regular("vips-host"), vip_rules(&slots, HOST_SELECTORS));
    table.chain(Chain::regular("outbound-to"), outbound_to_rules(&slots));
    table.chain(Chain::regular("outbound"), outbound_rules(&slots));
    table.chain(nat("prerouting", Hook::Prerouting, DNAT), prerouting_rules(&slots));
    table.chain(nat("output", Hook::Output, DNAT), [rule().jump("vips-host")]);
    table.chain(nat("postrouting", Hook::Postrouting, SNAT), postrouting_rules(&slots));
    table.chain(filter("forward", Hook::Forward), forward_rules(&slots));
    table.chain(filter("to-host", Hook::Input), to_host_rules(&slots));
    table.chain(filter("from-host", Hook::Output), from_host_rules(&slots));
}

/// VIPs with an address, then those of any host address. The mark carries the backend selector to the map of chains.
fn vip_rules(slots: &Slots, selectors: &str) -> Vec<Rule> {
    let select = || rule().load_mark(0).vmap(selectors, 0);
    let found = |rule: Rule| slots.service(rule).lookup_data(VIPS, 0, FOUND).set_mark_from(FOUND);
    let of_host = rule().daddr_is_local();
    let of_host = if slots.family == Family::Ip { of_host.ip_daddr_not("127.0.0.0/8".parse::<IpNet>().unwrap_or_default()) } else { of_host };
    vec![found(slots.daddr(rule(), 0)), select(), found(of_host.load_value(0, slots.nothing())), select()]
}

/// Load balancers and port mappings, then pods' proxies.
fn prerouting_rules(slots: &Slots) -> Vec<Rule> {
    let proxy = slots.daddr(slots.saddr(rule(), 0).load_l4proto(slots.width), slots.width + 1);
    let port = FOUND + slots.width;
    // The key of an IPv6 proxy takes slots 0 to 8.
    let found = if slots.family == Family::Ip { FOUND } else { 9 };
    let port = if slots.family == Family::Ip { port } else { found + slots.width };
    vec![
        rule().jump("vips"),
        slots.both(rule()).lookup(UNPROXIED, 0).return_(),
        proxy.lookup_data(PROXIED, 0, found).dnat(slots.family, found, Some(port)),
    ]
}

fn postrouting_rules(slots: &Slots) -> Vec<Rule> {
    let elsewhere = slots.daddr(slots.saddr(rule(), 0).lookup(MASQUERADED, 0), 0).lookup_not(MASQUERADED, 0);
    let leaving = slots.saddr(rule(), 0).lookup(OVERLAY_PREFIXES, 0).expr(Expr::Meta { key: MetaKey::OifName, reg: 0 }).lookup_not(OVERLAY_LINKS, 0);
    // The host has no address on the overlay, by which a pod of another host could answer it.
    let entering = slots.saddr(going_to(TUNNELS, rule()), 0).lookup_not(OVERLAY_PREFIXES, 0);
    vec![
        // Where the host's own connections lead is known only here: a load balancer may have changed it on their way out.
        going_to(HOSTLESS, rule().iifname("")).drop(),
        rule().mark(BALANCED, u32::MAX).set_mark(0, u32::MAX).masquerade(),
        slots.snat_by_mark(rule()),
        rule().l4proto(TCP).jump("outbound"),
        rule().l4proto(UDP).jump("outbound"),
        elsewhere.masquerade(),
        leaving.drop(),
        entering.drop(),
    ]
}

/// The destination is listed for the class that the mark says.
fn listed(slots: &Slots, set: &str) -> Rule {
    slots.daddr(rule().load_mark(0), 1).lookup(set, 0)
}

/// Classes that name their destinations. What they do not translate is left to the other classes.
fn outbound_to_rules(slots: &Slots) -> Vec<Rule> {
    vec![
        slots.saddr(rule(), 0).lookup_data(OUTBOUND_TO, 0, FOUND).set_mark_from(FOUND),
        listed(slots, EXCEPTIONS).set_mark(0, u32::MAX).return_(),
        slots.snat_by_mark(listed(slots, DESTINATIONS)),
        rule().set_mark(0, u32::MAX),
    ]
}

fn outbound_rules(slots: &Slots) -> Vec<Rule> {
    vec![
        rule().jump("outbound-to"),
        slots.saddr(rule(), 0).lookup_data(OUTBOUND, 0, FOUND).set_mark_from(FOUND),
        listed(slots, EXCEPTIONS).set_mark(0, u32::MAX).return_(),
        slots.snat_by_mark(rule()),
    ]
}

/// What follows an allowed connection passes; so does the search for neighbours, without which no IPv6 address is reached.
pub(in super::super) fn always_pass(family: Family) -> Vec<Rule> {
    const FIRST_OF_NEIGHBOURS: u8 = 133;
    let kind = Expr::Payload { base: PayloadBase::Transport, offset: 0, len: 1, reg: 0 };
    let neighbours = rule().l4proto(ICMPV6).expr(kind).expr(Expr::Cmp { op: CmpOp::Gte, reg: 0, value: vec![FIRST_OF_NEIGHBOURS] });
    let mut rules = vec![rule().ct_state(ct_state::ESTABLISHED | ct_state::RELATED).accept()];
    rules.extend((family == Family::Ip6).then(|| neighbours.accept()));
    rules
}

fn going_to(set: &str, rule: Rule) -> Rule {
    rule.expr(Expr::Meta { key: MetaKey::OifName, reg: 0 }).lookup(set, 0)
}

/// Containers are not asked by unusual protocols. Most packets are of TCP or UDP, and leave the rule at its beginning.
fn close() -> Rule {
    let mut protocols = USUAL_PROTOCOLS;
    protocols.sort_by_key(|protocol| ![TCP, UDP].contains(protocol));
    let load = rule().load_l4proto(0);
    let unusual = protocols.into_iter().fold(load, |rule, protocol| rule.expr(Expr::Cmp { op: CmpOp::Neq, reg: 0, value: vec![protocol] }));
    going_to(CLOSED, unusual).drop()
}

fn forward_rules(slots: &Slots) -> Vec<Rule> {
    let mut rules = vec![rule().ct_state(ct_state::ESTABLISHED | ct_state::RELATED).accept()];
    rules.extend([slots.saddr(rule(), 0).vmap(ACCESS_OUT, 0), slots.daddr(rule(), 0).vmap(ACCESS_IN, 0), close()]);
    rules
}

fn to_host_rules(slots: &Slots) -> Vec<Rule> {
    let from = |set: &str| rule().expr(Expr::Meta { key: MetaKey::IifName, reg: 0 }).lookup(set, 0);
    let mut rules = always_pass(slots.family);
    rules.extend([
        slots.saddr(rule(), 0).vmap(ACCESS_OUT, 0),
        from(HOSTLESS).drop(),
        slots.daddr(from(GUARDED), 0).lookup(HOST_ADDRESSES, 0).accept(),
        slots.both(from(GUARDED)).lookup_not(HOST_PATHS, 0).drop(),
    ]);
    rules
}

fn from_host_rules(slots: &Slots) -> Vec<Rule> {
    let mut rules = always_pass(slots.family);
    rules.extend([going_to(HOSTLESS, rule()).drop(), slots.daddr(rule(), 0).vmap(ACCESS_IN, 0), close()]);
    rules
}

/// What the ports of a tunnel network send, unless it was translated.
pub(super) fn to_fabric(bridge: &str) -> Rule {
    let status = Expr::Ct { key: CtKey::Status, reg: 0, reply: None };
    let only = Expr::Bitwise { from: 0, to: 0, mask: (ct_status::DNAT | ct_status::SNAT).to_ne_bytes().into(), xor: vec![0; 4] };
    rule().iifname(bridge).expr(status).expr(only).expr(Expr::Cmp { op: CmpOp::Eq, reg: 0, value: vec![0; 4] }).set_mark(TO_FABRIC, u32::MAX)
}

/// The mark of a backend selector, apart from every class.
pub(super) fn code(selector: Selector) -> u32 {
    0x1000_0000 | stable_hash(&format!("{selector:?}")) & 0x00ff_ffff
}

/// The name of a backend selector's chain: everything that its rules depend on.
pub(super) fn chain_of(selector: Selector) -> String {
    let spread = match selector.distribution {
        Distribution::Connection => "",
        Distribution::SourceProtocol => "-source-protocol",
        Distribution::Source => "-source",
    };
    let flag = |on: bool, text: &'static str| if on { text } else { "" };
    let flags = [
        flag(selector.any_host_address, "-any"),
        flag(!selector.host, "-nohost"),
        flag(selector.guarded, "-guarded"),
        flag(selector.kept, "-kept"),
        flag(selector.mux, "-mux"),
    ]
    .concat();
    let seen = match selector.seen {
        Seen::Client => "-keep".to_owned(),
        Seen::Link => "-link".to_owned(),
        Seen::Class(class) => format!("-{class:08x}"),
    };
    format!("select-{}{spread}{flags}{seen}", selector.count)
}

/// Puts the backend's number behind the VIP and translates to it.
pub(super) fn selector_rules(selector: Selector) -> Vec<Rule> {
    let slots = Slots::of(if selector.ipv6 { Family::Ip6 } else { Family::Ip });
    let (count, number) = (u32::from(selector.count), slots.width + 2);
    let slot = match selector.distribution {
        _ if count == 1 => rule().load_value(number, [0; 4]),
        Distribution::Connection => rule().load_random(count, number),
        Distribution::Source => slots.saddr(rule(), FOUND).expr(hash(slots.width * 4, count, number)),
        Distribution::SourceProtocol => slots.saddr(rule(), FOUND).load_l4proto(FOUND + slots.width).expr(hash(slots.width * 4 + 4, count, number)),
    };
    let vip = if selector.any_host_address { slot.load_value(0, slots.nothing()) } else { slots.daddr(slot, 0) };
    let kept = selector.kept.then(|| hops::keep(vip.clone(), &slots));
    let found = slots.service(vip).lookup_data(BACKENDS, 0, FOUND);
    // A mark is always set: the selector must not be taken for a class.
    let mark = match selector.seen {
        Seen::Client => 0,
        Seen::Class(class) => class,
        Seen::Link => BALANCED,
    };
    let guard = rule().set_mark(0, u32::MAX).expr(Expr::Meta { key: MetaKey::IifName, reg: 0 }).lookup(GUARDED, 0);
    let guard = selector.guarded.then(|| slots.both(guard).lookup_not(HOST_PATHS, 0).return_());
    let translate = found.dnat(slots.family, FOUND, Some(FOUND + slots.width));
    let mux = selector.mux.then(|| came_from_outside(rule()).set_mark(0, u32::MAX));
    guard.into_iter().chain([rule().set_mark(mark, u32::MAX)]).chain(mux).chain(kept).chain([translate]).collect()
}

/// Neither from the host itself nor from a link of a network.
fn came_from_outside(rule: Rule) -> Rule {
    const PREFIX: usize = 3;
    let load = rule.expr(Expr::Meta { key: MetaKey::IifName, reg: 0 });
    let start = Expr::Bitwise { from: 0, to: 0, mask: vec![0xff, 0xff, 0xff, 0], xor: vec![0; 4] };
    let not = |name: &str| {
        let mut value = vec![0; 4];
        value[..name.len()].copy_from_slice(name.as_bytes());
        Expr::Cmp { op: CmpOp::Neq, reg: 0, value }
    };
    [&BRIDGE[..PREFIX], &TUNNEL[..PREFIX], ""].into_iter().fold(load.expr(start), |rule, name| rule.expr(not(name)))
}

fn hash(len: u32, modulus: u32, reg: u32) -> Expr {
    // Any seed will do, as long as it is the same after a restart: affinity outlives it.
    Expr::Hash { from: FOUND, len, modulus, seed: 0x4d75_6c6c, offset: 0, reg }
}
