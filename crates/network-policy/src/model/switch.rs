//! What a switch does with the access rules of a port, as far as their documentation and clients say: tiers in their order, then rules by
//! number; what no rule decides passes.

use std::net::IpAddr;

use hcn::document::{Acl, Action, Token};
use hcn::{Direction as HnsDirection, EndpointPolicy};
use ipnet::IpNet;

use crate::hns::rules::Sets;
use crate::policy::{Direction, Protocol};

/// One rule, of whatever kind.
struct Rule {
    priority: u16,
    acl: Acl,
}

/// Whether the rules of a port let the first packet of a connection pass.
pub fn passes(policies: &[EndpointPolicy], sets: &Sets, direction: Direction, (own, peer): (IpAddr, IpAddr), port: Option<(Protocol, u16)>) -> bool {
    let inbound = direction == Direction::Ingress;
    let wanted = if inbound { HnsDirection::In } else { HnsDirection::Out };
    let mut tiers: Vec<_> = policies.iter().filter_map(EndpointPolicy::as_tier_acl).filter(|tier| tier.direction == wanted).collect();
    tiers.sort_by_key(|tier| tier.order);
    let mut levels: Vec<Vec<Rule>> = Vec::new();
    for tier in tiers {
        let rule = |rule: hcn::document::TierAclRule| Rule {
            priority: rule.priority,
            acl: Acl {
                action: rule.action,
                protocols: rule.protocols,
                local_addresses: rule.local_addresses,
                remote_addresses: rule.remote_addresses,
                local_ports: rule.local_ports,
                remote_ports: rule.remote_ports,
                ..Acl::default()
            },
        };
        levels.push(tier.rules.into_iter().map(rule).collect());
    }
    let acls = policies.iter().filter_map(EndpointPolicy::as_acl).filter(|acl| acl.direction == wanted);
    levels.push(acls.map(|acl| Rule { priority: acl.priority, acl }).collect());
    for mut level in levels {
        level.sort_by_key(|rule| rule.priority);
        let same = |a: &Rule, b: &Rule| a.priority != b.priority || a.acl.action == b.acl.action;
        assert!(level.windows(2).all(|pair| same(&pair[0], &pair[1])), "equal numbers need equal actions");
        match level.iter().find(|rule| matches(&rule.acl, sets, inbound, (own, peer), port)).map(|rule| &rule.acl.action) {
            Some(Action::Allow) => return true,
            Some(Action::Block) => return false,
            _ => {}
        }
    }
    true
}

fn words(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').filter(|word| !word.is_empty())
}

fn matches(acl: &Acl, sets: &Sets, inbound: bool, (own, peer): (IpAddr, IpAddr), port: Option<(Protocol, u16)>) -> bool {
    let is_named = |list: &str| words(list).any(|word| word.parse::<IpNet>().is_err());
    // Azure's NPM: with sets, local is the source and remote the destination.
    let swapped = inbound && (is_named(&acl.local_addresses) || is_named(&acl.remote_addresses));
    let (local, remote) = if swapped { (peer, own) } else { (own, peer) };
    let holds = |list: &str, ip: IpAddr| {
        let member = |word: &str| match word.parse::<IpNet>() {
            Ok(net) => net.contains(&ip),
            Err(_) => sets.get(word).unwrap_or_else(|| panic!("no set {word}")).contains(&ip),
        };
        list.is_empty() || words(list).any(member)
    };
    let protocols = acl.protocol_numbers();
    let protocol_fits = protocols.is_empty() || port.is_some_and(|(protocol, _)| protocols.contains(&u32::from(protocol.number())));
    let port_fits = |list: &Token| {
        let within = |word: &str| {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            port.is_some_and(|(_, port)| (first.parse::<u16>().unwrap()..=last.parse::<u16>().unwrap()).contains(&port))
        };
        list.as_str().is_empty() || words(list.as_str()).any(within)
    };
    // Rules name ports of the destination alone.
    let (destination, other) = if inbound { (&acl.local_ports, &acl.remote_ports) } else { (&acl.remote_ports, &acl.local_ports) };
    assert!(other.as_str().is_empty());
    holds(&acl.local_addresses, local) && holds(&acl.remote_addresses, remote) && protocol_fits && port_fits(destination)
}
