//! Profiles as access rules of HNS (pure).
//!
//! | what | where it becomes | since HNS |
//! | --- | --- | --- |
//! | rules | `ACL` policies of the endpoint; lower numbers count first, equal numbers only for equal actions, whose order then means nothing | 9 |
//! | groups of pods and nodes | `SetPolicy` of the network; before, their addresses in each rule | 13 |
//! | tiers, where a rule passes to the next | `TierAcl` policies; before, one list ([`super::boxes`]) | 14 |
//!
//! Rules that name sets for incoming traffic have source and destination the other way round, as Azure's NPM writes them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use hcn::document::{Acl, EndpointPolicyType, TierAcl, TierAclRule};
use hcn::{Direction as HnsDirection, EndpointPolicy};
use ipnet::IpNet;

use super::boxes::{Members, flatten, is_inbound, passes};
use crate::net::{Range, merged};
use crate::policy::{Action, Both, Direction, Protocol};
use crate::profile::{GroupKey, Ports, Profile, ProfileRule};

/// What every rule, set and tier of ours is called by.
pub const MARK: &str = "mullion-np-";
/// Rules for the endpoint itself and its host.
const OWN: u16 = 900;
const FIRST: u16 = 1000;
/// HNS takes numbers up to 65500, and puts rules of its own there.
const LAST: u16 = 65_000;
/// Entries of one address list; HNS takes about 4,000.
const MOST: usize = 3900;

/// What a version of HNS has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    pub sets: bool,
    pub tiers: bool,
}

/// What rules of one endpoint depend on beside its profiles.
pub struct Context<'a> {
    pub abilities: Abilities,
    /// The endpoint's addresses.
    pub own: &'a [IpAddr],
    /// Its host's.
    pub host: &'a [IpAddr],
    pub members: Members<'a>,
}

/// A profile has too many changes between allowing and denying for HNS's numbers.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{count} changes between allowing and denying in a row of rules: HNS has numbers for {most}; use fewer rules of different actions")]
pub struct TooManyRules {
    count: usize,
    most: usize,
}

/// Who stands at the other side in a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Peers {
    Any,
    Addresses(String),
    Set(String),
}

/// A rule before it has a number.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    action: Action,
    peers: Peers,
    protocol: Option<Protocol>,
    /// Joined by commas; empty is all.
    ports: String,
}

/// A set of a network: its name and its addresses.
pub type Sets = BTreeMap<String, Vec<IpAddr>>;

/// The sets of groups that `concerns` and profiles name, those with members alone: rules do not name empty ones.
pub fn sets(profiles: &[Arc<Profile>], concerns: &dyn Fn(&GroupKey) -> bool, members: Members<'_>, tiers: bool) -> Sets {
    let mut sets = Sets::new();
    let named = profiles.iter().filter(|profile| tiers || !passes(profile)).flat_map(|profile| profile.groups());
    let mut groups: Vec<&Arc<GroupKey>> = named.filter(|group| !matches!(***group, GroupKey::Nets(_)) && concerns(group)).collect();
    groups.sort();
    groups.dedup();
    for group in groups {
        for (port, ips) in &*members(group) {
            for ip in ips {
                sets.entry(set_name(group, *port, ip.is_ipv6())).or_default().push(*ip);
            }
        }
    }
    sets
}

/// The name of the group that a set of ours is of.
pub fn group_of(set: &str) -> Option<&str> {
    set.strip_prefix(MARK)?.split('-').next()
}

fn set_name(group: &GroupKey, port: Option<(Protocol, u16)>, v6: bool) -> String {
    let port = port.map(|(protocol, port)| format!("-{}-{port}", protocol.number())).unwrap_or_default();
    format!("{MARK}{}{port}-{}", group.name(), if v6 { 6 } else { 4 })
}

/// Whether a policy of an endpoint is ours.
pub fn is_ours(policy: &EndpointPolicy) -> bool {
    policy.as_acl().is_some_and(|acl| acl.id.starts_with(MARK)) || policy.as_tier_acl().is_some_and(|tier| tier.name.starts_with(MARK))
}

/// The policies of an endpoint with these profiles, in a fixed order.
///
/// # Errors
/// [`TooManyRules`].
pub fn policies(profiles: &Both<Option<Arc<Profile>>>, context: &Context<'_>) -> Result<Vec<EndpointPolicy>, TooManyRules> {
    let mut all = Vec::new();
    for direction in Direction::BOTH {
        let Some(profile) = profiles.of(direction) else { continue };
        let compiler = Compiler { direction, context };
        if passes(profile) && context.abilities.tiers {
            all.extend(compiler.tiers(profile)?);
        } else {
            all.extend(compiler.acls(profile)?);
        }
    }
    Ok(all)
}

struct Compiler<'a> {
    direction: Direction,
    context: &'a Context<'a>,
}

impl Compiler<'_> {
    /// The endpoint itself and its host always pass.
    fn own(&self) -> Vec<Line> {
        let ips = self.context.own.iter().chain(self.context.host).map(|ip| Range::of(IpNet::from(*ip)));
        self.spelt(Action::Allow, &Some(merged(ips.collect())), None)
    }

    fn acls(&self, profile: &Profile) -> Result<Vec<EndpointPolicy>, TooManyRules> {
        let lines = if passes(profile) {
            let boxes = flatten(profile, self.context.members);
            boxes.iter().flat_map(|(action, one)| self.spelt(*action, &one.peers, one.ports.as_deref())).collect()
        } else {
            let end = Line { action: profile.end.0, peers: Peers::Any, protocol: None, ports: String::new() };
            profile.rules().flat_map(|rule| self.lines(rule, profile.end.0)).chain([end]).collect()
        };
        let own = self.own().into_iter().map(|line| (OWN, line));
        let numbered: Vec<(u16, Line)> = own.chain(number(lines)?).collect();
        let acls = numbered.into_iter().enumerate().map(|(at, (priority, line))| EndpointPolicy::acl(&self.acl(at, priority, line)));
        Ok(acls.collect())
    }

    /// Three tiers: of the Admin tier, what is behind it, and nothing after: what our tiers allow goes on to rules of others.
    fn tiers(&self, profile: &Profile) -> Result<Vec<EndpointPolicy>, TooManyRules> {
        let line = |action| Line { action, peers: Peers::Any, protocol: None, ports: String::new() };
        let admin = profile.admin.iter().flat_map(|rule| self.lines(rule, Action::Pass));
        let admin: Vec<Line> = self.own().into_iter().chain(admin).chain([line(Action::Pass)]).collect();
        let rest = profile.rest.iter().flat_map(|rule| self.lines(rule, profile.end.0)).chain([line(profile.end.0)]).collect();
        let tiers = [("admin", 1, admin), ("policy", 2, rest)];
        let tiers = tiers.into_iter().map(|(name, order, lines)| {
            let numbered = number(lines)?.into_iter().enumerate();
            let rules = numbered.map(|(at, (priority, line))| {
                let acl = self.acl(at, priority, line);
                TierAclRule {
                    id: acl.id,
                    protocols: acl.protocols,
                    action: acl.action,
                    local_addresses: acl.local_addresses,
                    remote_addresses: acl.remote_addresses,
                    local_ports: acl.local_ports,
                    remote_ports: acl.remote_ports,
                    priority,
                    ..TierAclRule::default()
                }
            });
            let tier = TierAcl {
                name: format!("{MARK}{}-{name}", self.direction),
                direction: self.hns_direction(),
                order,
                rules: rules.collect(),
                ..TierAcl::default()
            };
            Ok(EndpointPolicy::new(EndpointPolicyType::TierAcl, &tier))
        });
        tiers.collect()
    }

    fn hns_direction(&self) -> HnsDirection {
        if is_inbound(self.direction) { HnsDirection::In } else { HnsDirection::Out }
    }

    /// The lines of a rule; one that passes where nothing is left to pass on to does `end`.
    fn lines(&self, rule: &ProfileRule, end: Action) -> Vec<Line> {
        let action = if rule.action == Action::Pass { end } else { rule.action };
        let mut lines = Vec::new();
        for peers in self.peers(rule) {
            for (protocol, ports) in ports_of(rule.ports.as_deref()) {
                lines.push(Line { action, peers: peers.clone(), protocol, ports });
            }
        }
        for group in &rule.named {
            for (port, ips) in &*(self.context.members)(group) {
                let Some((protocol, port_number)) = port else { continue };
                for peers in self.group(group, *port, ips) {
                    lines.push(Line { action, peers, protocol: Some(*protocol), ports: port_number.to_string() });
                }
            }
        }
        lines
    }

    fn peers(&self, rule: &ProfileRule) -> Vec<Peers> {
        let Some(groups) = &rule.peers else { return vec![Peers::Any] };
        let of = |group: &Arc<GroupKey>| match &**group {
            GroupKey::Nets(ranges) => lists(ranges),
            _ => (self.context.members)(group).iter().flat_map(|(port, ips)| self.group(group, *port, ips)).collect(),
        };
        groups.iter().flat_map(of).collect()
    }

    /// Members of a group, as sets or spelt out.
    fn group(&self, group: &GroupKey, port: Option<(Protocol, u16)>, ips: &[IpAddr]) -> Vec<Peers> {
        if !self.context.abilities.sets {
            return lists(&ips.iter().map(|ip| Range::of(IpNet::from(*ip))).collect::<Vec<_>>());
        }
        let has = |v6: bool| ips.iter().any(|ip| ip.is_ipv6() == v6);
        [false, true].into_iter().filter(|v6| has(*v6)).map(|v6| Peers::Set(set_name(group, port, v6))).collect()
    }

    fn spelt(&self, action: Action, peers: &Option<Vec<Range>>, ports: Option<&[Ports]>) -> Vec<Line> {
        let peers = peers.as_ref().map_or_else(|| vec![Peers::Any], |ranges| lists(ranges));
        let with = |peers: Peers| ports_of(ports).into_iter().map(move |(protocol, ports)| Line { action, peers: peers.clone(), protocol, ports });
        peers.into_iter().flat_map(with).collect()
    }

    fn acl(&self, at: usize, priority: u16, line: Line) -> Acl {
        let inbound = is_inbound(self.direction);
        let (mut local, mut remote) = (String::new(), String::new());
        match line.peers {
            Peers::Any => {}
            Peers::Addresses(list) => remote = list,
            // The source, which is on the other side of incoming traffic, stands on this one.
            Peers::Set(name) if inbound => local = name,
            Peers::Set(name) => remote = name,
        }
        let (local_ports, remote_ports) = if inbound { (line.ports, String::new()) } else { (String::new(), line.ports) };
        Acl {
            id: format!("{MARK}{}-{at:04}", self.direction),
            protocols: line.protocol.map_or_else(String::new, |protocol| protocol.number().to_string()).as_str().into(),
            action: match line.action {
                Action::Allow => hcn::document::Action::Allow,
                Action::Deny => hcn::document::Action::Block,
                Action::Pass => hcn::document::Action::Pass,
            },
            direction: self.hns_direction(),
            local_addresses: local,
            remote_addresses: remote,
            local_ports: local_ports.as_str().into(),
            remote_ports: remote_ports.as_str().into(),
            priority,
            ..Acl::default()
        }
    }
}

/// A number for each line: the same while the action stays.
fn number(lines: Vec<Line>) -> Result<Vec<(u16, Line)>, TooManyRules> {
    let changes = lines.windows(2).filter(|pair| pair[0].action != pair[1].action).count();
    let most = usize::from(LAST - FIRST);
    if changes > most {
        return Err(TooManyRules { count: changes, most });
    }
    let (mut priority, mut before) = (FIRST, None);
    let numbered = lines.into_iter().map(|line| {
        if before.replace(line.action).is_some_and(|before| before != line.action) {
            priority += 1;
        }
        (priority, line)
    });
    Ok(numbered.collect())
}

/// Ports by protocol, as HNS lists them.
fn ports_of(ports: Option<&[Ports]>) -> Vec<(Option<Protocol>, String)> {
    let Some(ports) = ports else { return vec![(None, String::new())] };
    let of = |protocol: Protocol| {
        let own: Vec<&Ports> = ports.iter().filter(|ports| ports.protocol == protocol).collect();
        let text = |ports: &&Ports| if ports.first == ports.last { ports.first.to_string() } else { format!("{}-{}", ports.first, ports.last) };
        let list = if own.iter().any(|ports| ports.is_all()) { String::new() } else { own.iter().map(text).collect::<Vec<_>>().join(",") };
        (!own.is_empty()).then_some((Some(protocol), list))
    };
    Protocol::ALL.into_iter().filter_map(of).collect()
}

/// Ranges as address lists that HNS takes, IPv4 and IPv6 apart.
fn lists(ranges: &[Range]) -> Vec<Peers> {
    let mut lists = Vec::new();
    for v6 in [false, true] {
        let nets: Vec<String> = ranges.iter().filter(|range| range.is_v6() == v6).flat_map(|range| range.nets()).map(|net| net.to_string()).collect();
        lists.extend(nets.chunks(MOST).map(|chunk| Peers::Addresses(chunk.join(","))));
    }
    lists
}

/// A full list of an endpoint's policies: what others made, as it was read, and ours behind.
pub fn with_others(read: &[EndpointPolicy], ours: &[EndpointPolicy]) -> Vec<EndpointPolicy> {
    read.iter().filter(|policy| !is_ours(policy)).chain(ours).cloned().collect()
}

/// Whether the endpoint's rules of ours are these, whatever HNS added to them.
pub fn holds(read: &[EndpointPolicy], ours: &[EndpointPolicy]) -> bool {
    let known = |policy: &EndpointPolicy| -> Option<(Option<Acl>, Option<TierAcl>)> {
        is_ours(policy).then(|| (policy.as_acl().map(plain), policy.as_tier_acl()))
    };
    read.iter().filter_map(known).eq(ours.iter().filter_map(known))
}

/// A rule by the members that we write.
fn plain(acl: Acl) -> Acl {
    let Acl { id, protocols, action, direction, local_addresses, remote_addresses, local_ports, remote_ports, rule_type, priority, .. } = acl;
    Acl { id, protocols, action, direction, local_addresses, remote_addresses, local_ports, remote_ports, rule_type, priority, ..Acl::default() }
}
