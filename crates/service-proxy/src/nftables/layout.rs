//! The table's chains, sets and rules: what does not depend on any Service.

use std::collections::BTreeSet;
use std::time::Duration;

use nft::{
    Chain, ChainType, CmpOp, CtKey, DataType, Desired, DesiredSet, DynsetOp, Expr, Family, FibFlags, FibResult, Hook, MetaKey, PayloadBase,
    RejectKind, Rule, SetSpec, Table, ct_state, ct_status, loopback_guard, rule,
};

use super::elements::{Class, INSIDE_SLOTS, Masquerade, Role, Set, suffix};
use super::settings::{Pods, Settings};
use super::state::Row;
use crate::table::IpFamily;

/// The table's name.
pub const TABLE: &str = "mullion-proxy";
/// Most clients that stick to a backend at once, by timeout.
const STICKY: u32 = 65_536;

/// Our table. Family `inet`: both IP versions, and its refusals reach the client.
pub fn table() -> Table {
    Table::new(Family::Inet, TABLE)
}

/// The names and rules of one IP version.
#[derive(Clone, Copy, Debug)]
pub struct Names(pub IpFamily);

impl Names {
    fn of(self, name: &str) -> String {
        format!("{name}{}", suffix(self.0))
    }

    fn set(self, role: Role) -> String {
        role.of(self.0).name()
    }

    /// From class to its chain.
    pub fn classes(self) -> String {
        self.of("classes")
    }

    /// Where clients are noted that stick to a backend: one rule a timeout.
    pub fn learn(self) -> String {
        self.of("learn")
    }

    /// Where clients of guarded VIPs are let in: one rule a length of networks.
    pub fn guard(self) -> String {
        self.of("guard")
    }

    fn serve(self) -> String {
        self.of("serve")
    }

    /// The map of clients that stick to a backend for `seconds`.
    pub fn affinity(self, seconds: u32) -> String {
        format!("{}-{seconds}", self.of("affinity"))
    }

    /// From class to its chain.
    fn classes_spec(self) -> SetSpec {
        SetSpec::vmap(self.classes(), [DataType::ClassId])
    }

    /// The map of clients that stick to a backend for `seconds`, in the kernel's form.
    pub fn clients(self, seconds: u32) -> SetSpec {
        use DataType::{InetProto, InetService};
        let key = [self.address(), self.address(), InetProto, InetService];
        SetSpec::map(self.affinity(seconds), key, [self.address(), InetService]).dynamic(STICKY, Some(Duration::from_secs(seconds.into())))
    }

    fn nft(self) -> Family {
        match self.0 {
            IpFamily::V4 => Family::Ip,
            IpFamily::V6 => Family::Ip6,
        }
    }

    /// A rule for packets of this version. Chains are entered by those alone, but nft(8) shows their headers' fields by name
    /// only where the rule says so.
    fn rule(self) -> Rule {
        rule().nfproto(self.nft())
    }

    fn address(self) -> DataType {
        match self.0 {
            IpFamily::V4 => DataType::Ipv4Addr,
            IpFamily::V6 => DataType::Ipv6Addr,
        }
    }

    /// How many slots of the kernel's registers an address takes.
    fn width(self) -> u32 {
        match self.0 {
            IpFamily::V4 => 1,
            IpFamily::V6 => 4,
        }
    }

    fn load_saddr(self, rule: Rule, reg: u32) -> Rule {
        match self.0 {
            IpFamily::V4 => rule.load_ip_saddr(reg),
            IpFamily::V6 => rule.load_ip6_saddr(reg),
        }
    }

    fn load_daddr(self, rule: Rule, reg: u32) -> Rule {
        match self.0 {
            IpFamily::V4 => rule.load_ip_daddr(reg),
            IpFamily::V6 => rule.load_ip6_daddr(reg),
        }
    }

    /// address · protocol · port, and where the next part of a key goes.
    fn load_vip(self, rule: Rule, reg: u32) -> (Rule, u32) {
        let port = reg + self.width() + 1;
        (self.load_daddr(rule, reg).load_l4proto(port - 1).load_dport(port), port + 1)
    }

    /// The kernel's form of a set.
    fn spec(self, role: Role) -> SetSpec {
        let name = self.set(role);
        let vip = || vec![self.address(), DataType::InetProto, DataType::InetService];
        let and = |last: DataType| [vip(), vec![last]].concat();
        match role {
            Role::Vips | Role::Inside => SetSpec::map(name, vip(), [DataType::ClassId]),
            Role::Slots => SetSpec::map(name, and(DataType::Mark), [self.address(), DataType::InetService]),
            Role::Guarded | Role::Rejected | Role::Dropped | Role::Sticky(_) => SetSpec::set(name, vip()),
            Role::ClusterIps => SetSpec::set(name, [self.address()]),
            Role::Hairpins => SetSpec::set(name, [self.address(), self.address()]),
            Role::Allowed(_) => SetSpec::set(name, and(self.address())),
        }
    }
}

/// The rules of the table for one configuration.
#[derive(Clone, Debug)]
pub struct Layout {
    pods: Pods,
    mark: u32,
    masquerade_leaving: bool,
    /// Node ports listen on 127.0.0.1 too.
    localhost: bool,
}

impl Layout {
    /// The layout for `settings`; `localhost` when node ports are to listen there.
    pub fn new(settings: &Settings, localhost: bool) -> Self {
        Self { pods: settings.pods.clone(), mark: settings.masquerade_mark, masquerade_leaving: settings.masquerade_leaving, localhost }
    }

    /// The chains with their rules, but for those that come with VIPs.
    fn chains(&self) -> Vec<(Chain, Vec<Rule>)> {
        let both = |chain: &str| IpFamily::ALL.map(|family| rule().nfproto(Names(family).nft()).jump(Names(family).of(chain)));
        let new = |chain: &str| IpFamily::ALL.map(|family| rule().ct_state(ct_state::NEW).nfproto(Names(family).nft()).jump(Names(family).of(chain)));
        let nat = |name: &str, hook: Hook, at: i32, to: &str| (Chain::base(name, ChainType::Nat, hook, at), both(to).to_vec());
        let filter = |name: &str, hook: Hook| (Chain::base(name, ChainType::Filter, hook, 0), new("unserved").to_vec());
        let mut chains: Vec<(Chain, Vec<Rule>)> = IpFamily::ALL.into_iter().flat_map(|family| self.family_chains(Names(family))).collect();
        chains.extend([
            nat("prerouting", Hook::Prerouting, -100, "dispatch"),
            nat("output", Hook::Output, -100, "dispatch"),
            nat("postrouting", Hook::Postrouting, 100, "source"),
            filter("filter-input", Hook::Input),
            filter("filter-forward", Hook::Forward),
            filter("filter-output", Hook::Output),
        ]);
        if self.localhost {
            chains.push((Chain::base("filter-localhost", ChainType::Filter, Hook::Prerouting, -110), loopback_guard().to_vec()));
        }
        chains
    }

    fn family_chains(&self, names: Names) -> Vec<(Chain, Vec<Rule>)> {
        let guarded = || names.load_vip(names.rule(), 0).0.lookup(names.set(Role::Guarded), 0);
        // The class goes on as the packet's priority: nft(8) aborts when it has to show a rule that looks up in one map what
        // another one gave, and marks belong to others.
        let serve = |rule: Rule, role: Role| {
            let (rule, next) = names.load_vip(rule, 0);
            rule.lookup_data(names.set(role), 0, next).expr(Expr::MetaSet { key: MetaKey::Priority, reg: next }).goto(names.of("classify"))
        };
        let mut served: Vec<Rule> = self.by_pods(names, true).map(|rule| serve(rule, Role::Inside)).into_iter().collect();
        served.extend([serve(from_here(names), Role::Inside), serve(names.rule(), Role::Vips)]);
        let named = |name: String, rules: Vec<Rule>| (Chain::regular(name), rules);
        vec![
            named(names.of("classify"), vec![rule().expr(Expr::Meta { key: MetaKey::Priority, reg: 0 }).vmap(names.classes(), 0)]),
            named(names.serve(), served),
            // Allowed clients return to this chain only when the VIP has no backend.
            named(names.of("dispatch"), vec![guarded().jump(names.guard()), guarded().drop(), rule().goto(names.serve())]),
            named(names.of("source"), self.source(names)),
            named(names.of("unserved"), unserved(names)),
        ]
    }

    /// Comes from a pod, or with `yes` false from anybody else; none where pods cannot be recognised.
    fn by_pods(&self, names: Names, yes: bool) -> Option<Rule> {
        let interface = |name: &str, len: usize| {
            let value = name.bytes().chain(std::iter::repeat(0)).take(len).collect();
            let op = if yes { CmpOp::Eq } else { CmpOp::Neq };
            names.rule().expr(Expr::Meta { key: MetaKey::IifName, reg: 12 }).expr(Expr::Cmp { op, reg: 12, value })
        };
        match &self.pods {
            Pods::Unknown => None,
            Pods::Nets(_) => self.pods.net(names.0).map(|net| if yes { names.rule().ip_saddr(net) } else { names.rule().ip_saddr_not(net) }),
            Pods::Interface(name) => Some(interface(name, 16)),
            Pods::InterfacePrefix(prefix) => Some(interface(prefix, prefix.len().min(15))),
        }
    }

    /// The packets that get the node's address as their source.
    fn source(&self, names: Names) -> Vec<Rule> {
        let translated = || names.rule().ct_status(ct_status::DNAT);
        let both = names.load_daddr(names.load_saddr(translated(), 0), names.width());
        let mut rules = vec![
            translated().jump(names.learn()),
            rule().mark(self.mark, self.mark).set_mark(0, self.mark).masquerade(),
            // A backend that is its own client would answer itself directly.
            both.lookup(names.set(Role::Hairpins), 0).masquerade(),
        ];
        if let Some(net) = self.pods.net(names.0).filter(|_| self.masquerade_leaving) {
            rules.push(translated().ip_saddr(net).ip_daddr_not(net).masquerade());
        }
        rules
    }

    /// The table without elements of Services: with the chains of `classes`, and the `optional` sets with the rules that read them.
    pub fn desired(&self, classes: &BTreeSet<(IpFamily, Class)>, optional: &BTreeSet<Set>) -> Desired<Row> {
        let mut desired = Desired::new(table());
        for set in Set::fixed().chain(optional.iter().copied()) {
            declare(&mut desired, set);
        }
        for family in IpFamily::ALL {
            desired.set(Names(family).classes_spec()).rank(CLASSES);
        }
        for (chain, rules) in self.chains() {
            desired.chain(chain, rules);
        }
        optional_rules(&mut desired, optional);
        classes.iter().for_each(|(family, class)| self.add_class(&mut desired, *family, *class));
        desired
    }

    /// The chain of a class, and the element that leads to it.
    pub fn add_class(&self, desired: &mut Desired<Row>, family: IpFamily, class: Class) {
        desired.chain(Chain::regular(class.chain(family)), self.class_rules(Names(family), class));
        desired.used_set(Names(family).classes_spec()).rank(CLASSES).push(Row::Class(family, class));
    }

    fn class_rules(&self, names: Names, class: Class) -> Vec<Rule> {
        let mut rules = vec![rule().load_value(0, [0; 4]).expr(Expr::MetaSet { key: MetaKey::Priority, reg: 0 })];
        let marked = match class.masquerade {
            Masquerade::Never => None,
            Masquerade::Outsiders if class.inside => Some(self.by_pods(names, false).unwrap_or_else(|| from_here(names))),
            Masquerade::Outsiders => self.by_pods(names, false),
            Masquerade::Always => Some(rule()),
        };
        rules.extend(marked.map(|rule| rule.set_mark(self.mark, self.mark)));
        let to_target = |rule: Rule, map: String, data: u32| rule.lookup_data(map, 0, data).dnat(names.nft(), data, Some(data + names.width()));
        if class.affinity != 0 {
            let (client, next) = names.load_vip(names.load_saddr(names.rule(), 0), names.width());
            rules.push(to_target(client, names.affinity(class.affinity), next));
        }
        let offset = if class.inside { INSIDE_SLOTS } else { 0 };
        let (vip, next) = names.load_vip(names.rule(), 0);
        let random = Expr::Numgen { random: true, modulus: class.count.into(), offset, reg: next };
        rules.push(to_target(vip.expr(random), names.set(Role::Slots), next + 1));
        rules
    }
}

/// Classes gain elements first and lose them last.
const CLASSES: u8 = u8::MAX;

/// The elements of a set of Services.
pub fn rows(desired: &mut Desired<Row>, set: Set) -> &mut DesiredSet<Row> {
    desired.used_set(Names(set.family).spec(set.role)).rank(set.role.rank())
}

/// A set of Services, without elements.
pub fn declare(desired: &mut Desired<Row>, set: Set) {
    let names = Names(set.family);
    desired.set(names.spec(set.role)).rank(set.role.rank());
    if let Role::Sticky(seconds) = set.role {
        // Packets make its elements.
        desired.set(names.clients(seconds)).unmanaged();
    }
}

/// The chains whose rules read the `optional` sets.
pub fn optional_rules(desired: &mut Desired<Row>, optional: &BTreeSet<Set>) {
    for names in IpFamily::ALL.map(Names) {
        let own = || optional.iter().filter(|set| set.family == names.0);
        let learn = own().filter_map(|set| if let Role::Sticky(seconds) = set.role { Some(learn_rule(names, seconds)) } else { None });
        let allowed = own().filter_map(|set| if let Role::Allowed(bits) = set.role { Some(allow_rule(names, bits)) } else { None });
        desired.chain(Chain::regular(names.learn()), learn).chain(Chain::regular(names.guard()), allowed);
    }
}

/// Leads clients of a guarded VIP on that are in one of its networks of so many bits.
fn allow_rule(names: Names, bits: u8) -> Rule {
    let set = names.set(Role::Allowed(bits));
    let (vip, next) = names.load_vip(names.rule(), 0);
    let source = names.load_saddr(vip, next);
    let masked = match mask(names, bits) {
        Some(mask) => source.expr(Expr::Bitwise { from: next, to: next, xor: vec![0; mask.len()], mask }),
        None => source,
    };
    masked.lookup(&*set, 0).goto(names.serve()).comment(set)
}

/// Comes from an address of this host.
fn from_here(names: Names) -> Rule {
    const LOCAL: u32 = 2;
    let flags = FibFlags { saddr: true, ..FibFlags::default() };
    let load = Expr::Fib { flags, result: FibResult::AddrType, reg: 15 };
    names.rule().expr(load).expr(Expr::Cmp { op: CmpOp::Eq, reg: 15, value: LOCAL.to_ne_bytes().to_vec() })
}

/// The bits of a network's length; none when all bits count.
fn mask(names: Names, bits: u8) -> Option<Vec<u8>> {
    let all = names.width() * 32;
    let ones = u32::from(bits).min(all);
    (ones < all).then(|| (0..all / 8).map(|byte| 0xff00u16.checked_shr(ones.saturating_sub(byte * 8).min(8)).unwrap_or(0) as u8).collect())
}

/// What was not translated although it is for a Service.
fn unserved(names: Names) -> Vec<Rule> {
    const TCP: u8 = 6;
    let vip = |rule: Rule, role: Role| names.load_vip(rule, 0).0.lookup(names.set(role), 0);
    let cluster_ip = |rule: Rule| names.load_daddr(rule, 0).lookup(names.set(Role::ClusterIps), 0);
    // A client of TCP on this node may hold its socket when an ICMP message comes back, and then ignores it for a second.
    let tcp = || names.rule().l4proto(TCP);
    vec![
        vip(names.rule(), Role::Dropped).drop(),
        vip(tcp(), Role::Rejected).reject(RejectKind::TcpReset),
        vip(names.rule(), Role::Rejected).reject(RejectKind::Port),
        cluster_ip(tcp()).reject(RejectKind::TcpReset),
        cluster_ip(names.rule()).reject(RejectKind::Port),
    ]
}

/// Notes a client that sticks for `seconds` once its backend is known.
fn learn_rule(names: Names, seconds: u32) -> Rule {
    let (source, destination) = match names.0 {
        IpFamily::V4 => (CtKey::SrcIp, CtKey::DstIp),
        IpFamily::V6 => (CtKey::SrcIp6, CtKey::DstIp6),
    };
    let original = |rule: Rule, key: CtKey, reg: u32| rule.expr(Expr::Ct { key, reg, reply: Some(false) });
    // client · address · protocol · port, as the client sent them; the VIP alone is the key of sticky clients.
    let (vip, protocol) = (names.width(), names.width() * 2);
    let sticky = original(original(names.rule(), destination, vip).load_l4proto(protocol), CtKey::ProtoDst, protocol + 1);
    let client = original(sticky.lookup(names.set(Role::Sticky(seconds)), vip), source, 0);
    let target = protocol + 2;
    let note = Expr::Dynset { set: names.affinity(seconds), op: DynsetOp::Update, key: 0, data: Some(target), timeout: None };
    let port = Expr::Payload { base: PayloadBase::Transport, offset: 2, len: 2, reg: target + names.width() };
    let noted = names.load_daddr(client, target).expr(port).expr(note);
    noted.comment(names.set(Role::Sticky(seconds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_have_as_many_ones_as_the_network() {
        for (family, bits, expected) in [
            (IpFamily::V4, 0, Some(vec![0, 0, 0, 0])),
            (IpFamily::V4, 9, Some(vec![255, 128, 0, 0])),
            (IpFamily::V4, 24, Some(vec![255, 255, 255, 0])),
            (IpFamily::V4, 32, None),
            (IpFamily::V6, 20, Some([vec![255, 255, 240], vec![0; 13]].concat())),
            (IpFamily::V6, 128, None),
        ] {
            assert_eq!(mask(Names(family), bits), expected, "{bits}");
        }
    }
}
