//! Compiler of access rules and the sets that they name.

use std::collections::BTreeSet;

use hcn::document::{Acl, Action, NetworkPolicyType, RuleType, SetPolicy, SetPolicyType, TierAcl, Token};
use hcn::{Direction, EndpointPolicy, Guid, HostComputeNetwork, NetworkPolicy};
use ipnet::IpNet;

use super::{forwarding, merged, prefix};
use crate::fact::{Access, AccessList, AccessRule, Fact, Forwarding, Place, Port, Rule, stable_hash};
use crate::state::Endpoint;
use crate::switches::Switches;

/// Sets in sets in sets: deeper nesting is a loop.
const DEEPEST: u8 = 8;

/// What has ports: TCP and UDP.
const WITH_PORTS: [u8; 2] = [6, 17];

fn sets(network: &HostComputeNetwork) -> impl Iterator<Item = SetPolicy> + Clone {
    network.policies.iter().filter_map(NetworkPolicy::as_set)
}

fn words(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|word| !word.is_empty())
}

/// The addresses of a set, and of the sets in it.
fn members(set: &SetPolicy, network: &HostComputeNetwork, depth: u8) -> Vec<String> {
    match set.policy_type {
        SetPolicyType::NestedIpSet if depth < DEEPEST => {
            let inner = set.members().filter_map(|id| sets(network).find(|set| set.id.eq_ignore_ascii_case(id)));
            inner.flat_map(|inner| members(&inner, network, depth + 1)).collect()
        }
        SetPolicyType::NestedIpSet => Vec::new(),
        _ => set.members().map(str::to_owned).collect(),
    }
}

fn set_name(network: &Guid, set: &str) -> String {
    format!("set-{:08x}", stable_hash(&format!("{network} {}", set.to_ascii_lowercase())))
}

pub(super) fn set_facts(id: &Guid, network: &HostComputeNetwork, facts: &mut BTreeSet<Fact>) {
    if forwarding(&network.network_type) == Forwarding::Switched {
        return;
    }
    for set in sets(network) {
        let name = set_name(id, &set.id);
        let members = members(&set, network, 0);
        facts.extend(merged(members.iter().map(String::as_str)).into_iter().map(|prefix| Fact::Rule(Rule::Member { set: name.clone(), prefix })));
        facts.insert(Fact::Rule(Rule::Set(name)));
    }
}

/// What rules and rules of tiers have in common.
struct Given<'a> {
    action: &'a Action,
    protocols: Vec<u32>,
    local: (&'a str, &'a Token),
    remote: (&'a str, &'a Token),
}

pub(super) fn facts(endpoint: &Endpoint, network: &HostComputeNetwork, port: &Port, switches: &Switches, facts: &mut BTreeSet<Fact>) {
    // The network's rules are every endpoint's, among its own.
    let shared = network.policies.iter().filter_map(|policy| policy.settings_as(&NetworkPolicyType::NetworkAcl));
    let own = endpoint.document.policies.iter().filter_map(EndpointPolicy::as_acl);
    let acls: Vec<Acl> = own.chain(shared).collect();
    let tiers: Vec<TierAcl> = endpoint.document.policies.iter().filter_map(EndpointPolicy::as_tier_acl).collect();
    if acls.is_empty() && tiers.is_empty() {
        return;
    }
    let switched = port.forwarding == Forwarding::Switched;
    let inside = |host| Place::Inside { compartment: port.compartment, interface: port.interface.clone(), host };
    for direction in [Direction::In, Direction::Out] {
        let inbound = direction == Direction::In;
        for rule_type in [RuleType::Host, RuleType::Switch] {
            let place = match rule_type {
                RuleType::Host => inside(true),
                _ if switched => inside(false),
                _ => Place::Switch,
            };
            let reader = Reader { network, inbound, spelt: place != Place::Switch };
            let mut last: Vec<&Acl> = acls.iter().filter(|acl| acl.direction == direction && acl.rule_type == rule_type).collect();
            last.sort_by_key(|acl| acl.priority);
            let mut levels: Vec<Vec<AccessRule>> = Vec::new();
            if rule_type == RuleType::Switch {
                levels.extend(reader.tiers(&tiers, &direction));
            }
            levels.push(last.into_iter().filter_map(|acl| reader.rule(&Given::of(acl))).collect());
            let ruled = rule_type == RuleType::Switch && levels.iter().any(|level| !level.is_empty());
            if ruled && switches.rules_deny_the_rest {
                levels.push(vec![AccessRule::everything(Access::Block)]);
            }
            // What no rule matches passes, so rules that all let pass are none, but for those of unusual protocols.
            let counts = |rule: &AccessRule| rule.action == Access::Block || inbound && place == Place::Switch && rule.opens();
            if levels.iter().flatten().any(counts) {
                let addresses = port.addresses.iter().map(IpNet::addr).collect();
                let list = AccessList { port: port.name.clone(), place, inbound, addresses, tiers: levels };
                facts.insert(if list.place == Place::Switch { Fact::Rule(Rule::Access(list)) } else { Fact::Firewall(list) });
            }
        }
    }
}

impl<'a> Given<'a> {
    fn of(acl: &'a Acl) -> Self {
        Self {
            action: &acl.action,
            protocols: acl.protocol_numbers(),
            local: (&acl.local_addresses, &acl.local_ports),
            remote: (&acl.remote_addresses, &acl.remote_ports),
        }
    }
}

/// How the rules of one list are read.
struct Reader<'a> {
    network: &'a HostComputeNetwork,
    inbound: bool,
    /// Sets are spelt out: the switch's are not there.
    spelt: bool,
}

impl Reader<'_> {
    fn tiers(&self, tiers: &[TierAcl], direction: &Direction) -> Vec<Vec<AccessRule>> {
        let mut tiers: Vec<&TierAcl> = tiers.iter().filter(|tier| tier.direction == *direction).collect();
        tiers.sort_by_key(|tier| tier.order);
        let read = |tier: &&TierAcl| {
            let mut rules: Vec<_> = tier.rules.iter().collect();
            rules.sort_by_key(|rule| rule.priority);
            let given = rules.into_iter().map(|rule| Given {
                action: &rule.action,
                protocols: rule.protocol_numbers(),
                local: (&rule.local_addresses, &rule.local_ports),
                remote: (&rule.remote_addresses, &rule.remote_ports),
            });
            given.filter_map(|given| self.rule(&given)).collect()
        };
        tiers.iter().map(read).collect()
    }

    /// A rule by source and destination. Rules for incoming traffic that name sets have them the other way round, as Azure's NPM writes them.
    fn rule(&self, given: &Given<'_>) -> Option<AccessRule> {
        let action = match given.action {
            Action::Allow => Access::Allow,
            Action::Pass => Access::Pass,
            _ => Access::Block,
        };
        let named = [given.local.0, given.remote.0].iter().any(|list| words(list).any(|word| prefix(word).is_none()));
        let (source, destination) = if self.inbound && !named { (given.remote, given.local) } else { (given.local, given.remote) };
        let (sources, source_sets) = self.addresses(source.0)?;
        let (destinations, destination_sets) = self.addresses(destination.0)?;
        // Ports belong to the address on whose side they stand.
        let (of_source, of_destination) = if self.inbound { (given.remote.1, given.local.1) } else { (given.local.1, given.remote.1) };
        let (source_ports, destination_ports) = (ports(of_source), ports(of_destination));
        let ported = !source_ports.is_empty() || !destination_ports.is_empty();
        let named = given.protocols.iter().filter_map(|number| u8::try_from(*number).ok()).collect();
        Some(AccessRule {
            action,
            protocols: if given.protocols.is_empty() && ported { WITH_PORTS.into() } else { named },
            sources,
            source_sets,
            destinations,
            destination_sets,
            source_ports,
            destination_ports,
        })
    }

    /// Addresses and sets of a list; nothing where the list names only what has no member.
    fn addresses(&self, list: &str) -> Option<(Vec<IpNet>, Vec<String>)> {
        let mut plain: Vec<String> = Vec::new();
        let mut named = Vec::new();
        for word in words(list) {
            match sets(self.network).find(|set| prefix(word).is_none() && set.id.eq_ignore_ascii_case(word)) {
                Some(set) if self.spelt => plain.extend(members(&set, self.network, 0)),
                Some(set) => named.push(set_name(&self.network.id, &set.id)),
                None => plain.push(word.to_owned()),
            }
        }
        let plain = merged(plain.iter().map(String::as_str));
        let nothing = words(list).next().is_some() && plain.is_empty() && named.is_empty();
        (!nothing).then_some((plain, named))
    }
}

fn ports(list: &Token) -> Vec<(u16, u16)> {
    let range = |word: &str| match word.split_once('-') {
        Some((first, last)) => Some((first.trim().parse().ok()?, last.trim().parse().ok()?)),
        None => word.parse().ok().map(|port| (port, port)),
    };
    words(list.as_str()).filter_map(range).collect()
}
