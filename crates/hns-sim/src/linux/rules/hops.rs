//! Chains that are there while something uses them: for connections that keep their destination, and for pods' next hops.
//!
//! ```text
//! kept            → the mark of the connection's backend becomes the packet's, and with it the way (prerouting; output)
//! kept-sources    → VIP → class → its source
//! …-done          → no mark (postrouting)
//! kept-access     → mark → backend → its access rules, which do not find it by the packet's destination (forward; output)
//! pod-hops        → address · destination → mark
//! ```

use nft::{Chain, ChainType, CmpOp, CtKey, Desired, Expr, Family, Hook, Rule, ct_state, ct_status, rule};

use super::BEHIND_DNAT;
use super::chains::{ACCESS_IN, BALANCED_BYTES, DNAT, FILTER, FOUND, SNAT, SOURCES, Slots};
use crate::fact::Hop;

pub(super) const HOPS: &str = "hops";
pub(super) const POD_HOPS: &str = "pod-hops";
pub(super) const KEPT_BACKENDS: &str = "kept-backends";
pub(super) const KEPT_SOURCES: &str = "kept-sources";

/// The connection has a hop; its mark is in slot 0.
fn has_hop(rule: Rule) -> Rule {
    let bits = Expr::Bitwise { from: 0, to: 1, mask: Hop::MASK.to_ne_bytes().into(), xor: vec![0; 4] };
    rule.load_ct_mark(0).expr(bits).expr(Expr::Cmp { op: CmpOp::Eq, reg: 1, value: Hop::MARKS.to_ne_bytes().into() })
}

/// What the client sends follows the backend.
fn follow() -> Vec<Rule> {
    let sent = rule().expr(Expr::Ct { key: CtKey::Direction, reg: 0, reply: None }).expr(Expr::Cmp { op: CmpOp::Eq, reg: 0, value: vec![0] });
    vec![has_hop(sent).set_mark_from(0)]
}

fn sources(slots: &Slots) -> Vec<Rule> {
    let class = || {
        let vip = slots.service(slots.daddr(has_hop(rule()), 0));
        vip.lookup_data(KEPT_SOURCES, 0, FOUND)
    };
    vec![
        class().lookup_data(SOURCES, FOUND, FOUND + 1).snat(slots.family, FOUND + 1, None),
        class().expr(Expr::Cmp { op: CmpOp::Eq, reg: FOUND, value: BALANCED_BYTES.into() }).masquerade(),
        // The client's address stays, whatever its endpoint's translation says: only a translation keeps the chains behind from another.
        slots.saddr(has_hop(rule()), FOUND).snat(slots.family, FOUND, None),
    ]
}

fn access() -> Vec<Rule> {
    let established = rule().ct_state(ct_state::ESTABLISHED | ct_state::RELATED).accept();
    vec![established, has_hop(rule()).lookup_data(HOPS, 0, FOUND).vmap(ACCESS_IN, FOUND)]
}

fn pod_hops(slots: &Slots) -> Vec<Rule> {
    let status = Expr::Ct { key: CtKey::Status, reg: 0, reply: None };
    let balanced = Expr::Bitwise { from: 0, to: 0, mask: ct_status::DNAT.to_ne_bytes().into(), xor: vec![0; 4] };
    let plain = rule().expr(status).expr(balanced).expr(Expr::Cmp { op: CmpOp::Eq, reg: 0, value: vec![0; 4] });
    vec![slots.both(plain).lookup_data(POD_HOPS, 0, FOUND).set_mark_from(FOUND)]
}

/// Once a packet has its way its mark has done its work. A tunnel would look for its own way by it.
fn forget() -> Vec<Rule> {
    vec![rule().mark(Hop::MARKS, Hop::MASK).set_mark(0, u32::MAX)]
}

/// What keeps its destination finds its backend's hop, unless that is the host itself.
pub(super) fn keep(vip: Rule, slots: &Slots) -> Rule {
    let hop = slots.service(vip).lookup_data(KEPT_BACKENDS, 0, FOUND).lookup_data(HOPS, FOUND, FOUND + 1);
    hop.lookup_not(super::chains::HOST_ADDRESSES, FOUND + 1).set_ct_mark_from(FOUND).accept()
}

type Chains<'a> = Vec<(&'a str, ChainType, Hook, i32, Vec<Rule>)>;

fn render(table: &mut Desired, chains: Chains<'_>) {
    for (name, kind, hook, priority, rules) in chains {
        table.chain(Chain::base(name, kind, hook, priority), rules);
    }
}

/// Behind what sends pods' packets to the fabric, and their own hops: a load balancer comes first.
pub(super) fn render_kept(table: &mut Desired, family: Family) {
    let slots = Slots::of(family);
    let chains = vec![
        ("kept", ChainType::Filter, Hook::Prerouting, BEHIND_DNAT + 2, follow()),
        ("kept-host", ChainType::Route, Hook::Output, DNAT + 2, follow()),
        ("kept-done", ChainType::Filter, Hook::Postrouting, FILTER, forget()),
        ("kept-sources", ChainType::Nat, Hook::Postrouting, SNAT - 1, sources(&slots)),
        ("kept-access", ChainType::Filter, Hook::Forward, FILTER - 1, access()),
        ("kept-access-host", ChainType::Filter, Hook::Output, FILTER + 1, access()),
    ];
    render(table, chains);
}

pub(super) fn render_pod_hops(table: &mut Desired, family: Family) {
    let chains = vec![
        ("pod-hops", ChainType::Filter, Hook::Prerouting, BEHIND_DNAT + 1, pod_hops(&Slots::of(family))),
        ("pod-hops-done", ChainType::Filter, Hook::Postrouting, FILTER, forget()),
    ];
    render(table, chains);
}
