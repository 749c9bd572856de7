//! Validation of access rules.

use hcn::document::{Acl, Action, RuleType, TierAcl, TierAclRule, Token};
use hcn::{Direction, HResult, NetworkPolicy};

use super::policies::sets;
use super::{Result, explained, failure};
use crate::state::{is_address, sets_of};
use crate::switches::Switches;
use crate::versions::has_pass;

/// The highest priority number of a rule at the switch.
const LAST_PRIORITY: u16 = 65500;

/// The most entries of an address list.
pub(super) const MOST_ADDRESSES: usize = 4000;

/// VXLAN as rules count it.
const VXLAN: u32 = 252;

fn invalid(explanation: &str) -> hcn::RawError {
    explained(HResult::INVALID_POLICY, explanation)
}

/// What rules and rules of tiers have in common.
struct Rule<'a> {
    protocols: &'a Token,
    action: &'a Action,
    addresses: [&'a str; 2],
    ports: [&'a Token; 2],
    priority: u16,
}

/// Whether an access rule names that set.
pub(super) fn names(acl: &Acl, set: &str) -> bool {
    sets_of(acl).any(|name| name.eq_ignore_ascii_case(set))
}

/// Refuses an access rule that is none. `policies` are the network's, with the sets that it may name.
pub(super) fn check(acl: &Acl, policies: &[NetworkPolicy], switches: &Switches) -> Result<()> {
    if matches!(acl.direction, Direction::Other(_)) {
        return Err(invalid("A rule's direction is In or Out."));
    }
    match acl.rule_type {
        RuleType::Host if acl.priority != 0 && switches.features().acl_no_host_rule_priority => {
            return Err(invalid("A rule of the host has no priority."));
        }
        RuleType::Other(_) => return Err(invalid("A rule's type is Host or Switch.")),
        _ => {}
    }
    let rule = Rule {
        protocols: &acl.protocols,
        action: &acl.action,
        addresses: [&acl.local_addresses, &acl.remote_addresses],
        ports: [&acl.local_ports, &acl.remote_ports],
        priority: acl.priority,
    };
    check_rule(&rule, policies, switches)
}

/// Refuses a tier of rules that is none.
pub(super) fn check_tier(tier: &TierAcl, policies: &[NetworkPolicy], switches: &Switches) -> Result<()> {
    if tier.name.is_empty() || matches!(tier.direction, Direction::Other(_)) {
        return Err(invalid("A tier has a name and a direction."));
    }
    let rule = |rule: &TierAclRule| {
        let rule = Rule {
            protocols: &rule.protocols,
            action: &rule.action,
            addresses: [&rule.local_addresses, &rule.remote_addresses],
            ports: [&rule.local_ports, &rule.remote_ports],
            priority: rule.priority,
        };
        check_rule(&rule, policies, switches)
    };
    tier.rules.iter().try_for_each(rule)
}

fn check_rule(rule: &Rule<'_>, policies: &[NetworkPolicy], switches: &Switches) -> Result<()> {
    match rule.action {
        Action::Allow | Action::Block => {}
        Action::Pass if has_pass(switches.version) => {}
        Action::Pass | Action::Other(_) => return Err(invalid("A rule allows, blocks or passes.")),
    }
    if rule.priority > LAST_PRIORITY {
        return Err(invalid("A rule's priority is at most 65500."));
    }
    rule.protocols.as_str().split(',').map(str::trim).filter(|word| !word.is_empty()).try_for_each(|word| match word.parse::<u32>() {
        Ok(VXLAN) if !switches.features().acl_support_for_protocol_252 => Err(invalid("This version has no rules for VXLAN.")),
        Ok(0..=256) => Ok(()),
        _ => Err(invalid("A rule's protocols are numbers.")),
    })?;
    for list in rule.addresses {
        check_addresses(list, policies)?;
    }
    if rule.ports.iter().all(|list| list.as_str().split(',').map(str::trim).filter(|word| !word.is_empty()).all(is_port)) {
        Ok(())
    } else {
        Err(invalid("A rule's ports are numbers and ranges."))
    }
}

fn check_addresses(list: &str, policies: &[NetworkPolicy]) -> Result<()> {
    let words = || list.split(',').map(str::trim).filter(|word| !word.is_empty());
    if words().count() > MOST_ADDRESSES {
        return Err(failure(HResult::INVALID_PARAMETER));
    }
    let known = |word: &str| sets(policies).any(|set| set.id.eq_ignore_ascii_case(word));
    match words().find(|word| !is_address(word) && !known(word)) {
        Some(word) => Err(invalid(&format!("{word:?} is neither an address nor a set of the network."))),
        None => Ok(()),
    }
}

/// Whether a word is a port or a range of ports.
fn is_port(word: &str) -> bool {
    let number = |text: &str| text.trim().parse::<u16>().ok();
    match word.split_once('-') {
        Some((first, last)) => number(first).zip(number(last)).is_some_and(|(first, last)| first <= last),
        None => number(word).is_some(),
    }
}
