//! The table's chains, sets and rules.

use std::net::IpAddr;

use nft::{Chain, ChainType, DataType, Desired, Element, Expr, Family, Hook, Key, MetaKey, Rule, SetSpec, Table, Verdict, ct_state, rule};

use crate::policy::{Action, Direction};
use crate::profile::{GroupKey, Ports, Profile, ProfileRule};
use crate::world::Member;

/// The table's name.
const TABLE: &str = "mullion-policy";
/// Before the service proxy's filters, which refuse what no backend serves.
const PRIORITY: i32 = -5;
/// The map from profiles to their chains.
const PROFILES: &str = "profiles";

/// Our table. Family `inet`: both IP versions.
pub fn table() -> Table {
    Table::new(Family::Inet, TABLE)
}

/// One IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    v6: bool,
}

impl Version {
    const BOTH: [Self; 2] = [Self { v6: false }, Self { v6: true }];

    pub fn of(ip: IpAddr) -> Self {
        Self { v6: ip.is_ipv6() }
    }

    fn named(self, name: &str) -> String {
        format!("{name}{}", if self.v6 { '6' } else { '4' })
    }

    fn family(self) -> Family {
        if self.v6 { Family::Ip6 } else { Family::Ip }
    }

    fn address(self) -> DataType {
        if self.v6 { DataType::Ipv6Addr } else { DataType::Ipv4Addr }
    }

    fn load(self, rule: Rule, source: bool, reg: u32) -> Rule {
        match (self.v6, source) {
            (false, true) => rule.load_ip_saddr(reg),
            (false, false) => rule.load_ip_daddr(reg),
            (true, true) => rule.load_ip6_saddr(reg),
            (true, false) => rule.load_ip6_daddr(reg),
        }
    }

    /// From a pod's address to its profile.
    fn pods(self, direction: Direction) -> SetSpec {
        SetSpec::map(self.named(&format!("{direction}-pods")), [self.address()], [DataType::ClassId])
    }

    /// Pairs of a pod's address with itself.
    fn own(self) -> SetSpec {
        SetSpec::set(self.named("own"), [self.address(), self.address()])
    }

    fn group(self, group: &GroupKey) -> SetSpec {
        let name = format!("{}-{}", self.named("g"), group.name());
        match group {
            GroupKey::Pods(_) | GroupKey::Nodes(_) => SetSpec::set(name, [self.address()]),
            GroupKey::Nets(_) => SetSpec::set(name, [self.address()]).interval(),
            GroupKey::Named(..) => SetSpec::set(name, [self.address(), DataType::InetProto, DataType::InetService]),
        }
    }
}

fn profiles() -> SetSpec {
    SetSpec::vmap(PROFILES, [DataType::ClassId])
}

/// The name of a list of ports.
pub fn ports_name(ports: &[Ports]) -> String {
    use sha2::{Digest as _, Sha256};
    let hash = Sha256::digest(format!("{ports:?}"));
    format!("ports-{}", hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect::<String>())
}

/// The table without pods.
pub fn fixed() -> Desired {
    let mut desired = Desired::new(table());
    for version in Version::BOTH {
        for direction in Direction::BOTH {
            desired.set(version.pods(direction)).rank(0);
        }
        desired.set(version.own()).rank(1);
        desired.chain(Chain::regular(version.named("pods")), by_pods(version));
    }
    desired.set(profiles()).rank(u8::MAX);
    let lookup = rule().expr(Expr::Meta { key: MetaKey::Priority, reg: 0 }).vmap(PROFILES, 0);
    desired.chain(Chain::regular("profile"), [lookup]);
    let mut forward = vec![rule().ct_state(ct_state::ESTABLISHED | ct_state::RELATED).accept()];
    forward.extend(Version::BOTH.map(|version| rule().nfproto(version.family()).jump(version.named("pods"))));
    desired.chain(Chain::base("forward", ChainType::Filter, Hook::Forward, PRIORITY), forward);
    desired
}

fn by_pods(version: Version) -> [Rule; 3] {
    let of_family = || rule().nfproto(version.family());
    let width = if version.v6 { 4 } else { 1 };
    let both = version.load(version.load(of_family(), true, 0), false, width);
    let profile = |direction: Direction| {
        let rule = version.load(of_family(), direction == Direction::Egress, 0);
        rule.lookup_data(version.pods(direction).name, 0, 4).expr(Expr::MetaSet { key: MetaKey::Priority, reg: 4 }).jump("profile")
    };
    [both.lookup(version.own().name, 0).return_(), profile(Direction::Egress), profile(Direction::Ingress)]
}

/// Leads packets of `ip` in a direction to a profile.
pub fn add_pod(desired: &mut Desired, ip: IpAddr, direction: Direction, profile: u32) {
    let element = Element::new(Key::new().ip(ip)).data(Key::new().mark(profile));
    desired.used_set(Version::of(ip).pods(direction)).rank(0).push(element);
}

/// Lets packets of `ip` to itself pass.
pub fn add_own(desired: &mut Desired, ip: IpAddr) {
    desired.used_set(Version::of(ip).own()).rank(1).push(Element::new(Key::new().ip(ip).ip(ip)));
}

/// Declares the sets of a group, with the ranges of one of networks.
pub fn declare_group(desired: &mut Desired, group: &GroupKey) {
    for version in Version::BOTH {
        let set = desired.set(version.group(group)).rank(1);
        if let GroupKey::Nets(ranges) = group {
            let own = ranges.iter().filter(|range| range.is_v6() == version.v6);
            set.extend(own.map(|range| Element::range(Key::new().ip(range.first()), Key::new().ip(range.last()))));
        }
    }
}

/// A member of a group of pods or nodes.
pub fn add_member(desired: &mut Desired, group: &GroupKey, member: Member) {
    let key = Key::new().ip(member.0);
    let key = match member.1 {
        Some((protocol, port)) => key.proto(protocol.number()).port(port),
        None => key,
    };
    desired.used_set(Version::of(member.0).group(group)).rank(1).push(Element::new(key));
}

/// Declares a set of ports.
pub fn declare_ports(desired: &mut Desired, ports: &[Ports]) {
    let key = |ports: &Ports, port| Key::new().proto(ports.protocol.number()).port(port);
    let areas = ports.iter().map(|ports| Element::area(key(ports, ports.first), key(ports, ports.last)));
    let spec = SetSpec::set(ports_name(ports), [DataType::InetProto, DataType::InetService]).interval();
    desired.set(spec).rank(1).extend(areas);
}

/// The chains of a profile, and the element that leads to them.
pub fn add_profile(desired: &mut Desired, number: u32, profile: &Profile) {
    let (chain, rest) = (format!("p-{number:08x}"), format!("r-{number:08x}"));
    // The priority has done its work.
    let mut rules = vec![rule().load_value(0, [0; 4]).expr(Expr::MetaSet { key: MetaKey::Priority, reg: 0 })];
    rules.extend(profile.admin.iter().flat_map(|one| rules_of(profile.direction, one, &Verdict::Goto(rest.clone()))));
    let mut last: Vec<Rule> = profile.rest.iter().flat_map(|one| rules_of(profile.direction, one, &Verdict::Return)).collect();
    if profile.end.0 == Action::Deny {
        last.push(rule().counter().drop().comment(profile.end.1.to_string()));
    }
    if profile.admin.iter().any(|rule| rule.action == Action::Pass) {
        rules.push(rule().goto(rest.clone()));
        desired.chain(Chain::regular(rest), last);
    } else {
        rules.extend(last);
    }
    desired.chain(Chain::regular(chain.clone()), rules);
    desired.used_set(profiles()).rank(u8::MAX).push(Element::new(Key::new().mark(number)).data(Verdict::Goto(chain)));
}

/// The rules of the kernel for one of a profile; a packet that is to pass goes back to the chain that called.
fn rules_of(direction: Direction, one: &ProfileRule, pass: &Verdict) -> Vec<Rule> {
    let finish = |rule: Rule| {
        let rule = rule.comment(one.origin.to_string());
        match one.action {
            Action::Allow => rule.return_(),
            Action::Deny => rule.counter().drop(),
            Action::Pass => rule.expr(Expr::Verdict(pass.clone())),
        }
    };
    let with_ports = |rule: Rule| match &one.ports {
        None => rule,
        Some(ports) => rule.load_l4proto(8).load_dport(9).lookup(ports_name(ports), 8),
    };
    let mut rules = Vec::new();
    if !one.ports.as_ref().is_some_and(Vec::is_empty) {
        match &one.peers {
            None => rules.push(with_ports(rule())),
            Some(groups) => {
                let pairs = groups.iter().flat_map(|group| Version::BOTH.map(|version| (group, version)));
                rules.extend(pairs.map(|(group, version)| {
                    let peer = version.load(rule().nfproto(version.family()), direction == Direction::Ingress, 0);
                    with_ports(peer.lookup(version.group(group).name, 0))
                }));
            }
        }
    }
    for (group, version) in one.named.iter().flat_map(|group| Version::BOTH.map(|version| (group, version))) {
        let port = if version.v6 { 5 } else { 2 };
        let destination = version.load(rule().nfproto(version.family()), false, 0).load_l4proto(port - 1).load_dport(port);
        rules.push(destination.lookup(version.group(group).name, 0));
    }
    rules.into_iter().map(finish).collect()
}
