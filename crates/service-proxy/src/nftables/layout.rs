//! The table's chains, sets and rules: what does not depend on any Service.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use ipnet::IpNet;
use linux_sys::nft::{
    Batch, Chain, ChainType, CtKey, DataType, DynsetOp, Element, Expr, Family, Hook, RejectKind, Rule, SetSpec, Table, Verdict, ct_state, ct_status,
    rule,
};

use super::elements::{Class, INSIDE_SLOTS, Masquerade, Set};

/// The table's name.
pub const TABLE: &str = "mullion-proxy";
/// From class to its chain.
pub const CLASSES: &str = "classes";
/// Raised whenever rules or sets change, so that another version's table is made anew.
const VERSION: u32 = 1;
/// Marks packets whose source must become the node's, as kube-proxy does.
const MARK: u32 = 0x4000;
/// Most clients that stick to a backend at once, by timeout.
const STICKY: u32 = 65_536;
const UNSERVED: &str = "unserved";
const CLASSIFY: &str = "classify";
/// Where clients are noted that stick to a backend: one rule a timeout.
pub const LEARN: &str = "learn";

/// Our table. Family `inet`: its refusals tell the client, and IPv6 can join it.
pub fn table() -> Table {
    Table::new(Family::Inet, TABLE)
}

/// The map of clients that stick to a backend for `seconds`.
pub fn affinity_map(seconds: u32) -> String {
    format!("affinity-{seconds}")
}

/// The rules of the table for one configuration.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Every pod's address lies here.
    pub cluster_cidr: IpNet,
}

impl Layout {
    /// A chain without rules, whose name tells version and configuration of the table.
    pub fn stamp(&self) -> String {
        let mut hasher = DefaultHasher::new();
        (VERSION, self.cluster_cidr).hash(&mut hasher);
        format!("layout-{:016x}", hasher.finish())
    }

    /// The base chains with their rules.
    pub fn chains(&self) -> Vec<(Chain, Vec<Rule>)> {
        let from_pods = rule().ip_saddr(self.cluster_cidr);
        let inside = |rule: Rule| dispatch(rule, Set::Inside);
        // What follows reads IPv4 headers.
        let v4 = |rules: Vec<Rule>| std::iter::once(rule().nfproto(Family::Ip6).accept()).chain(rules).collect::<Vec<_>>();
        let check = || vec![rule().ct_state(ct_state::NEW).jump(UNSERVED)];
        vec![
            (Chain::regular(self.stamp()), vec![]),
            (Chain::regular(CLASSIFY), vec![rule().load_mark(0).vmap(CLASSES, 0)]),
            (Chain::regular(UNSERVED), unserved()),
            (Chain::base("prerouting", ChainType::Nat, Hook::Prerouting, -100), v4(vec![inside(from_pods), dispatch(rule(), Set::Frontends)])),
            (Chain::base("output", ChainType::Nat, Hook::Output, -100), v4(vec![inside(rule()), dispatch(rule(), Set::Frontends)])),
            (Chain::base("postrouting", ChainType::Nat, Hook::Postrouting, 100), v4(self.masquerade())),
            (Chain::base("filter-input", ChainType::Filter, Hook::Input, 0), v4(check())),
            (Chain::base("filter-forward", ChainType::Filter, Hook::Forward, 0), v4(check())),
            (Chain::base("filter-output", ChainType::Filter, Hook::Output, 0), v4(check())),
        ]
    }

    fn masquerade(&self) -> Vec<Rule> {
        let translated = || rule().ct_status(ct_status::DNAT);
        vec![
            translated().jump(LEARN),
            rule().mark(MARK, MARK).set_mark(0, MARK).masquerade(),
            // A backend that is its own client would answer itself directly.
            translated().load_ip_saddr(0).load_ip_daddr(1).lookup(Set::Hairpins.name(), 0).masquerade(),
            // A backend off the pod network may not know the way back to a pod.
            translated().ip_saddr(self.cluster_cidr).ip_daddr_not(self.cluster_cidr).masquerade(),
        ]
    }

    /// Makes the table anew, without elements.
    pub fn build(&self, batch: &mut Batch) {
        let table = table();
        batch.destroy_table(&table).add_table(&table);
        for set in Set::FIXED {
            batch.add_set(&table, &spec(set));
        }
        batch.add_set(&table, &SetSpec::vmap(CLASSES, [DataType::Mark]));
        let chains = self.chains();
        batch.add_chain(&table, &Chain::regular(LEARN));
        for (chain, _) in &chains {
            batch.add_chain(&table, chain);
        }
        for (chain, rules) in chains {
            for rule in rules {
                batch.add_rule(&table, &chain.name, rule);
            }
        }
    }
}

/// The kernel's form of a set.
fn spec(set: Set) -> SetSpec {
    use DataType::{InetProto, InetService, Ipv4Addr, Mark};
    let front = vec![Ipv4Addr, InetProto, InetService];
    match set {
        Set::Frontends | Set::Inside => SetSpec::map(set.name(), front, [Mark]),
        Set::Slots => SetSpec::map(set.name(), [Ipv4Addr, InetProto, InetService, Mark], [Ipv4Addr, InetService]),
        Set::Rejected | Set::Dropped | Set::Sticky(_) => SetSpec::set(set.name(), front),
        Set::ClusterIps => SetSpec::set(set.name(), [Ipv4Addr]),
        Set::Hairpins => SetSpec::set(set.name(), [Ipv4Addr, Ipv4Addr]),
    }
}

fn load_front(rule: Rule, at: u32) -> Rule {
    rule.load_ip_daddr(at).load_l4proto(at + 1).load_dport(at + 2)
}

/// The class goes on as the packet's mark (whatever the mark was before): nft(8) aborts when it has to show a rule that
/// looks up in one map what another one gave.
fn dispatch(rule: Rule, set: Set) -> Rule {
    load_front(rule, 0).lookup_data(set.name(), 0, 4).set_mark_from(4).goto(CLASSIFY)
}

/// What was not translated although it is for a Service.
fn unserved() -> Vec<Rule> {
    vec![
        load_front(rule(), 0).lookup(Set::Dropped.name(), 0).drop(),
        load_front(rule(), 0).lookup(Set::Rejected.name(), 0).reject(RejectKind::Port),
        rule().load_ip_daddr(0).lookup(Set::ClusterIps.name(), 0).reject(RejectKind::Port),
    ]
}

/// Adds the chain of a class, which may be there.
pub fn add_class(batch: &mut Batch, class: Class, cluster_cidr: IpNet) {
    let table = table();
    let chain = class.chain();
    batch.add_chain(&table, &Chain::regular(&chain)).flush_chain(&table, &chain);
    for rule in class_rules(class, cluster_cidr) {
        batch.add_rule(&table, &chain, rule);
    }
    batch.add_elements(&table, CLASSES, &[Element::new(class.data()).data(Verdict::Goto(chain))]);
}

/// Adds what front ends need whose clients stick for `seconds`: the set of those front ends, the map of their clients,
/// and the rule that notes a client once its backend is known. Set and map may be there, the rule must not.
pub fn add_affinity(batch: &mut Batch, seconds: u32) {
    use DataType::{InetProto, InetService, Ipv4Addr};
    let table = table();
    let sticky = Set::Sticky(seconds);
    batch.add_set(&table, &spec(sticky));
    let clients = SetSpec::map(affinity_map(seconds), [Ipv4Addr, Ipv4Addr, InetProto, InetService], [Ipv4Addr, InetService]);
    batch.add_set(&table, &clients.dynamic(STICKY, Some(Duration::from_secs(seconds.into()))));
    let original = |rule: Rule, key: CtKey, reg: u32| rule.expr(Expr::Ct { key, reg, reply: Some(false) });
    let front = |rule: Rule, at: u32| original(original(rule, CtKey::DstIp, at).load_l4proto(at + 1), CtKey::ProtoDst, at + 2);
    let client = front(original(front(rule(), 8).lookup(sticky.name(), 8), CtKey::SrcIp, 0), 1);
    let note = Expr::Dynset { set: affinity_map(seconds), op: DynsetOp::Update, key: 0, data: Some(4), timeout: None };
    batch.add_rule(&table, LEARN, client.load_ip_daddr(4).load_dport(5).expr(note).comment(sticky.name()));
}

fn class_rules(class: Class, cluster_cidr: IpNet) -> Vec<Rule> {
    let mark = |rule: Rule, value: u32| rule.load_value(0, value.to_ne_bytes()).set_mark_from(0);
    let mut rules = match class.masquerade {
        Masquerade::Never => vec![mark(rule(), 0)],
        Masquerade::Outsiders => vec![mark(rule(), 0), mark(rule().ip_saddr_not(cluster_cidr), MARK)],
        Masquerade::Always => vec![mark(rule(), MARK)],
    };
    if class.affinity != 0 {
        let client = load_front(rule().load_ip_saddr(0), 1);
        rules.push(client.lookup_data(affinity_map(class.affinity), 0, 4).dnat(Family::Ip, 4, Some(5)));
    }
    let offset = if class.inside { INSIDE_SLOTS } else { 0 };
    let random = Expr::Numgen { random: true, modulus: class.count.into(), offset, reg: 3 };
    rules.push(load_front(rule(), 0).expr(random).lookup_data(Set::Slots.name(), 0, 4).dnat(Family::Ip, 4, Some(5)));
    rules
}
